"""The nouns of the protocol: groups, replicas, clients, messages, timestamps, ballots.

Every noun is its own type, so that a ballot cannot be passed where a timestamp is meant. The two that
are compared millions of times, `Timestamp` and `ClientId`, are integers at run time and distinct types
to the type checker.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from typing import Final, NamedTuple, NewType, TypeAlias

GroupId = NewType("GroupId", int)
ClientId = NewType("ClientId", int)

GROUP_BITS: Final = 10
"""A timestamp keeps its group in the low bits, so that integers order as the paper's pairs (t, g)."""

GROUPS_MAX: Final = 1 << GROUP_BITS

TIME_MAX: Final = (1 << 43) - 1
"""The highest clock value. Timestamps stay below 2^53, which every JSON reader reads exactly. In ticks of
hybrid clocks it is 27 years."""

TICKS_PER_S: Final = 10_000
"""Ticks of a hybrid clock per second: one tick is 100 microseconds."""

Timestamp = NewType("Timestamp", int)
"""The paper's pair (time, group), ordered lexicographically, packed as ``time << GROUP_BITS | group``."""

TIMESTAMP_MAX: Final = TIME_MAX << GROUP_BITS | GROUPS_MAX - 1
"""The highest timestamp of any group."""

NO_TIMESTAMP: Final = Timestamp(0)
"""The paper's bottom: below every timestamp a group can issue, since clocks start by ticking to 1."""


def timestamp(time: int, group: GroupId) -> Timestamp:
    """The timestamp (time, group)."""
    return Timestamp(time << GROUP_BITS | group)


def time_of(ts: Timestamp) -> int:
    """The paper's time(ts): the first component."""
    return ts >> GROUP_BITS


def group_of(ts: Timestamp) -> GroupId:
    """The group that issued the timestamp: the second component."""
    return GroupId(ts & (GROUPS_MAX - 1))


def format_timestamp(ts: Timestamp) -> str:
    """Return the timestamp for people: ``time.group``, or ``-`` for the bottom."""
    return f"{time_of(ts)}.{group_of(ts)}" if ts else "-"


DISK_BITS: Final = 48
"""The low bits of an incarnation that stand for a disk; those above count how often a group's replica has
begun anew on it."""

_INCARNATION_BITS: Final = 64

BEGUN_MAX: Final = (1 << _INCARNATION_BITS - DISK_BITS) - 1
"""How often the replica of one group can begin anew on one disk."""


def disk_of(incarnation: int) -> int:
    """Return the part of an incarnation that all replicas on one disk share."""
    return incarnation & (1 << DISK_BITS) - 1


def begun_anew(incarnation: int, times: int) -> int:
    """Return the incarnation of a replica that has begun anew so often on the disk of this incarnation."""
    return (incarnation + (times << DISK_BITS)) % (1 << _INCARNATION_BITS)


class ReplicaId(NamedTuple):
    """One process of one group, on one disk.

    A new disk gets another incarnation, and so does a replica that has lost its log and begins anew on its
    disk (`begun_anew`).
    """

    group: GroupId
    number: int
    incarnation: int

    def __str__(self) -> str:
        return f"g{self.group}r{self.number}" + (f"#{self.incarnation:x}" if self.incarnation else "")


Process: TypeAlias = ReplicaId | ClientId
"""A sender or receiver: a replica of a group, or a client that multicasts."""


class MessageId(NamedTuple):
    """An application message's identity: its client, its number, and a digest of its content.

    The digest binds the number to payload and destinations. Two different requests under one number are two
    different messages: they are ordered separately, and the second is reported as a mismatch on delivery.
    """

    client: ClientId
    sequence: int
    digest: int

    def __str__(self) -> str:
        return f"{self.client}:{self.sequence}"


Destinations: TypeAlias = tuple[GroupId, ...]
"""dest(m): the destination groups, strictly increasing."""


def expand_dests(dests: tuple[Destinations, ...], count: int) -> tuple[Destinations, ...]:
    """Return the destinations of each of `count` messages; a single set in `dests` stands for all."""
    return dests * count if len(dests) == 1 else dests


LARGE_BYTES = 1 << 17
"""Payloads of at least this size are digested once by a process that gets them several times in a row."""


def digest_of(destinations: Destinations, payload: bytes) -> int:
    """Return the digest that binds a message's number to its destinations and payload."""
    if len(payload) >= LARGE_BYTES:
        return _digest_of_large(tuple(destinations), payload)
    return _digest(destinations, payload)


def _digest(destinations: Destinations, payload: bytes) -> int:
    digest = _digest_of_destinations(destinations).copy()
    digest.update(payload)
    return int.from_bytes(digest.digest(), "big")


@functools.lru_cache(2)
def _digest_of_large(destinations: Destinations, payload: bytes) -> int:
    """Cached, for leaders of several groups on one node get the same payload, one after the other."""
    digest = begin_digest(destinations)
    digest.update(payload)
    return digest_in(digest)


def begin_digest(destinations: Destinations) -> hashlib._Hash:
    """Return the start of the digest of a large payload, which may be updated piece by piece.

    Most machines compute SHA-256 twice as fast as BLAKE2.
    """
    return hashlib.sha256(repr(tuple(destinations)).encode())


def digest_in(digest: hashlib._Hash) -> int:
    """Return what `digest_of` returns for a large payload, from its whole digest."""
    return int.from_bytes(digest.digest()[:8], "big")


@functools.lru_cache(4096)
def _digest_of_destinations(destinations: Destinations) -> hashlib.blake2b:
    """Return the start of a digest; cached, for there are few sets, and leaders compute every digest."""
    return hashlib.blake2b(repr(tuple(destinations)).encode(), digest_size=8)


class Ballot(NamedTuple):
    """A period in which one replica leads its group, in one fixed configuration."""

    number: int
    leader: ReplicaId
    configuration: int

    def __str__(self) -> str:
        return f"b{self.number}@{self.leader}" if self.number else "-"


Vector: TypeAlias = tuple[Ballot, ...]
"""Bal: the ballots of a message's proposals, in the order of its destinations."""

NO_BALLOT: Final = Ballot(0, ReplicaId(GroupId(-1), -1, 0), 0)
"""The paper's bottom ballot: below every ballot that a process leads."""


NUMBER_STEP: Final = 1 << 20
"""How far a ballot's number may be above the known ones without being a jump."""

NUMBER_JUMP: Final = 1 << 32
"""The highest jump. Numbers rise by one with each attempt to lead, and an attempt takes a time-out: of 10 ms
each, this is more than a year of nothing but failed elections. A peer that lies needs decades to exhaust
them."""


class Phase(enum.IntEnum):
    """The paper's phase[m]: the progress of a message at one process (Figure *vars*)."""

    START = 0
    PROPOSED = 1
    ACCEPTED = 2
    COMMITTED = 3


class Status(enum.Enum):
    """The paper's status: the role of a process in its group (Figure *vars*)."""

    LEADER = "leader"
    FOLLOWER = "follower"
    RECOVERING = "recovering"
