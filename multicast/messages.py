"""What processes say to each other. The names are the paper's, where the paper has the message.

Messages are plain slotted classes for speed. Whoever holds one may not change it: the same object may
be on its way to several receivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from multicast.membership import Membership
from multicast.types import (
    NO_TIMESTAMP,
    Ballot,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    ReplicaId,
    Timestamp,
)


class EntryState(NamedTuple):
    """What a process knows of one message, as recovery and disks carry it."""

    mid: MessageId
    dest: Destinations
    payload: bytes
    ack_below: int
    phase: Phase
    local_ts: Timestamp
    global_ts: Timestamp


class Delivery(NamedTuple):
    """One message at its place in its group's order; a tuple, so that runs of them become columns soon."""

    mid: MessageId
    dest: Destinations
    payload: bytes
    ack_below: int
    local_ts: Timestamp
    global_ts: Timestamp
    previous_ts: Timestamp
    """Global timestamp of the message this group delivered just before."""
    mismatch: bool
    """The client used this number before, in this group, for something else: do not execute."""


class Multicast(NamedTuple):
    """MULTICAST(m): a client, or a process that holds m too long, asks a leader to order m."""

    mid: MessageId
    dest: Destinations
    payload: bytes
    ack_below: int
    """The client holds definite results of all its messages numbered below this."""


@dataclass(slots=True)
class Accept:
    """ACCEPT(m, g, b, lts): the leader of b proposes a local timestamp. Like Paxos' 2a.

    One message serves a run of proposals, as columns of the same length.
    """

    dests: tuple[Destinations, ...]
    """dest(m) of each message; or a single one, if all have the same."""
    group: GroupId
    ballot: Ballot
    mids: tuple[MessageId, ...]
    local_ts: tuple[Timestamp, ...]
    payloads: tuple[bytes, ...]
    """Only to its own group does a leader send payloads, and with them what to forget; to others, nothing."""
    ack_below: tuple[int, ...]
    after: Timestamp = NO_TIMESTAMP
    """The last local timestamp that the leader had issued before, in this ballot."""


@dataclass(slots=True)
class AcceptAck:
    """ACCEPT_ACK(m, g, Bal): a member of g holds these proposals durably. Like Paxos' 2b.

    One acknowledgement serves all messages that were accepted together, in one ballot of each group.
    """

    mids: tuple[MessageId, ...]
    group: GroupId
    ballots: tuple[Ballot, ...]
    """In the order of groups, the ballots of all destinations of all these messages, and perhaps of more: Bal
    of one message are those of dest(m)."""
    issued: Timestamp = NO_TIMESTAMP
    """Of a leader: the last local timestamp that it has issued in its ballot."""


Decision: TypeAlias = tuple[MessageId, Timestamp, Timestamp]
"""A message, its local and its global timestamp: what DELIVER says of it."""


@dataclass(slots=True)
class Deliver:
    """DELIVER(m, b, lts, gts), for messages that follow each other in the group's order.

    It names what the group delivered just before the first of them.
    """

    ballot: Ballot
    previous_ts: Timestamp
    run: tuple[Decision, ...]


@dataclass(slots=True)
class NewLeader:
    """NEWLEADER(b): asks the group to join ballot b. Like Paxos' 1a."""

    ballot: Ballot


@dataclass(slots=True)
class StatePart:
    """Which piece of a state sent in pieces this is."""

    transfer: int
    index: int
    count: int


@dataclass(slots=True)
class NewLeaderAck:
    """NEWLEADER_ACK(b, cballot, clock, entries), in bounded pieces. Like Paxos' 1b."""

    ballot: Ballot
    cballot: Ballot
    clock: int
    executed: Timestamp
    part: StatePart
    entries: tuple[EntryState, ...]


@dataclass(slots=True)
class NewState:
    """NEW_STATE(b, clock, entries), in bounded pieces: the state the ballot starts from."""

    ballot: Ballot
    clock: int
    part: StatePart
    entries: tuple[EntryState, ...]


@dataclass(slots=True)
class NewStateAck:
    """NEWSTATE_ACK(b): a member holds the ballot's state durably."""

    ballot: Ballot


Instance: TypeAlias = tuple[MessageId, Timestamp]
"""Which question a group decides by consensus: m's local timestamp, where the second part is bottom; or that
the group's clock passes the second part, as m's global timestamp."""

LocalTimestamp: TypeAlias = tuple[MessageId, Destinations, bytes, int, Timestamp]
"""What may be decided: the group gives m, to these destinations, with its payload and ack_below, this local
timestamp."""


class LocalTimestamps(NamedTuple):
    """A run of these answers, as columns of the same length."""

    mids: tuple[MessageId, ...] = ()
    dests: tuple[Destinations, ...] = ()
    payloads: tuple[bytes, ...] = ()
    ack_below: tuple[int, ...] = ()
    local_ts: tuple[Timestamp, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[LocalTimestamp]) -> LocalTimestamps:
        """These, in order."""
        return cls(*zip(*rows, strict=True))


class ClockUpdates(NamedTuple):
    """A run of the other answers: the group's clock passes these messages' global timestamps.

    They are the questions too, for there is no other answer. Columns of the same length.
    """

    mids: tuple[MessageId, ...] = ()
    global_ts: tuple[Timestamp, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Instance]) -> ClockUpdates:
        """These, in order."""
        return cls(*zip(*rows, strict=True))


@dataclass(slots=True)
class Phase2a:
    """Paxos' 2a: the leader of the ballot asks for votes, in several instances at once."""

    ballot: Ballot
    local: LocalTimestamps
    clocks: ClockUpdates


@dataclass(slots=True)
class Phase2b:
    """Paxos' 2b: a member has voted, durably, in all these instances."""

    ballot: Ballot
    local: tuple[MessageId, ...]
    """Messages whose local timestamps it has voted for."""
    clocks: ClockUpdates


@dataclass(slots=True)
class Propose:
    """PROPOSE(m, g, lts) of Figure *skeen*, from a leader to another.

    One message serves all that the one has for the other at a time, as columns of the same length.
    """

    group: GroupId
    ballot: Ballot
    """Whose leader says so. It decides nothing; it tells the others whom to talk to."""
    mids: tuple[MessageId, ...]
    dests: tuple[Destinations, ...]
    local_ts: tuple[Timestamp, ...]
    decided: tuple[bool, ...]
    """Whether the group has decided it; else it is its leader's word only (FastCast)."""


@dataclass(slots=True)
class Hint:
    """Not here: this process does not lead its group; the ballot names who it thinks does."""

    group: GroupId
    ballot: Ballot


@dataclass(slots=True)
class Heartbeat:
    """The leader of the ballot is alive, has delivered so far, and knows these groups' watermarks."""

    ballot: Ballot
    last_delivered: Timestamp
    executed: tuple[tuple[GroupId, Timestamp], ...]
    lowest: Timestamp = NO_TIMESTAMP
    """A lower bound of the local timestamps that it has yet to deliver, those included that it has yet to
    issue."""
    issued: Timestamp = NO_TIMESTAMP
    """The last local timestamp that it has issued in its ballot, and sent."""


@dataclass(slots=True)
class HeartbeatAck:
    """A member hears the leader: which ballots it is in, and how far it has executed durably."""

    ballot: Ballot
    cballot: Ballot
    executed: Timestamp
    wall_time: int = 0
    """Its time of day, in ticks, if its clock is hybrid."""


@dataclass(slots=True)
class PreVote:
    """Would you join a ballot of mine? Asked before any ballot is spent, so that a cut-off process
    that cannot win does not depose a leader that works.
    """

    ballot: Ballot


@dataclass(slots=True)
class PreVoteAck:
    """Yes: I hear no leader either."""

    ballot: Ballot


@dataclass(slots=True)
class HandOver:
    """The leader of the ballot is about to stop: please lead instead. It leads on until somebody does."""

    ballot: Ballot


@dataclass(slots=True)
class Join:
    """A replica that is no member, for its disk is new, would take the place of the one with its number."""

    address: str
    """Where it is to be found."""
    evicts: ReplicaId | None
    """An operator wants it in the place of this one, even if that is well."""


@dataclass(slots=True)
class MembersWanted:
    """Please say who is in the group."""

    group: GroupId


@dataclass(slots=True)
class Members:
    """Who is in a group, as far as the sender knows: a fact, if perhaps an old one."""

    membership: Membership


@dataclass(slots=True)
class CatchUp:
    """Please send what the group delivered after this."""

    after: Timestamp


@dataclass(slots=True)
class Deliveries:
    """A run of the group's deliveries without gaps; the sender's own last one tells if there is more."""

    deliveries: tuple[Delivery, ...]
    last_delivered: Timestamp


@dataclass(slots=True)
class Executed:
    """A quorum of the group has durably executed everything up to the watermark: a fact for ever."""

    group: GroupId
    watermark: Timestamp
    reply_wanted: bool


Message: TypeAlias = (
    Multicast
    | Accept
    | AcceptAck
    | Deliver
    | NewLeader
    | NewLeaderAck
    | NewState
    | NewStateAck
    | Phase2a
    | Phase2b
    | Propose
    | Hint
    | Heartbeat
    | HeartbeatAck
    | PreVote
    | PreVoteAck
    | HandOver
    | Join
    | MembersWanted
    | Members
    | CatchUp
    | Deliveries
    | Executed
)


TO_ANYONE: Final = (Multicast, Join, MembersWanted)
"""What is said to whoever is there: a machine may hand it to another replica of the group than was meant."""


def about(message: object) -> Sequence[MessageId]:
    """The application messages whose ordering this one is a step of."""
    match message:
        case Multicast():
            return (message.mid,)
        case Accept() | AcceptAck() | Propose():
            return message.mids
        case Deliver():
            return [mid for mid, _, _ in message.run]
        case Phase2a():
            return message.local.mids + message.clocks.mids
        case Phase2b():
            return message.local + message.clocks.mids
    return ()
