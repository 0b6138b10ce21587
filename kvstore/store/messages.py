"""What the store's processes send each other: structs, so that they are on the wire what they are here."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from kvstore.machine import Decision, Vote
from kvstore.machine.request import INT64_MAX
from kvstore.storage.ports import Origin
from kvstore.store.gate import Announcement
from kvstore.store.questions import Question, Response
from multicast.types import Ballot, GroupId, MessageId, Timestamp

Position: TypeAlias = Annotated[Timestamp, msgspec.Meta(ge=0, le=INT64_MAX)]
"""A position in the order of messages, within what a disk can have as a key."""


class Results(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A group has executed these messages: where they are in its order, and what became of them."""

    group: GroupId
    complete: Timestamp
    """Everything up to here is executed."""
    mids: tuple[MessageId, ...]
    places: tuple[Timestamp, ...]
    results: tuple[bytes, ...]


class Votes(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What is known of transactions that several groups vote on. All of it stays true for ever."""

    votes: tuple[Vote, ...] = ()
    outcomes: tuple[tuple[Position, Decision], ...] = ()


class VotesWanted(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A request for what is known of the transactions at these positions."""

    places: tuple[Position, ...]


class Levels(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """What a group's gate announces."""

    announcement: Announcement


class CalmLevels(Levels, frozen=True, array_like=True, tag=12):
    """The same, when no answer is known to wait for it."""


class BallotCheck(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A leader asks whether its ballot is still current; a member confirms it."""

    ballot: Ballot
    number: int
    asked: bool


class RaiseClock(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A request to raise the clock: the next multicast is to have a position above this time."""

    time: int


class Query(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A question of a gateway to a replica, which is not ordered."""

    number: int
    question: Question


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The answer to a `Query`."""

    number: int
    response: Response


class Span(NamedTuple):
    """A slice of what replicas compare: keys, or rows of history by their revisions, as 8 bytes."""

    history: bool
    start: bytes
    """The first key; or the revision *after* which rows of history begin."""
    end: bytes | None
    """Exclusive upper bound of the keys; or the last revision of history."""


class DigestWanted(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A leader asks another member for the digest of what it has in a span, as of a revision."""

    number: int
    revision: Position
    span: Span


class Digest(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The answer to a `DigestWanted`."""

    number: int
    digest: bytes
    origin: Origin | None
    """Of the member's state, if it is a copy that is not confirmed."""


class CopyConfirmed(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A leader tells a member that its copy of a state agrees with others, everywhere."""

    origin: Origin


StoreMessage: TypeAlias = (
    Results | Votes | VotesWanted | Levels | BallotCheck | RaiseClock | Query | Answer
    | DigestWanted | Digest | CopyConfirmed | CalmLevels
)  # fmt: skip
STORE_MESSAGES: Final = frozenset(
    (
        Results, Votes, VotesWanted, Levels, BallotCheck, RaiseClock, Query, Answer,
        DigestWanted, Digest, CopyConfirmed, CalmLevels,
    )
)  # fmt: skip

UNHURRIED: Final = frozenset((CalmLevels,))
"""Classes of messages that no process waits for."""
