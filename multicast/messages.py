"""The messages between processes. The names are the paper's, where the paper has the message.

Messages are plain slotted classes for speed. No holder may change a message: the same object may be on its
way to several receivers.
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
    """The state of one message at a process, as recovery and disks carry it."""

    mid: MessageId
    dest: Destinations
    payload: bytes
    ack_below: int
    phase: Phase
    local_ts: Timestamp
    global_ts: Timestamp


class Delivery(NamedTuple):
    """One message at its position in its group's order; a tuple, so that runs become columns quickly."""

    mid: MessageId
    dest: Destinations
    payload: bytes
    ack_below: int
    local_ts: Timestamp
    global_ts: Timestamp
    previous_ts: Timestamp
    """Global timestamp of the message this group delivered just before."""
    mismatch: bool
    """The client used this number before, in this group, for another request: do not execute."""


class Multicast(NamedTuple):
    """MULTICAST(m): asks a leader to order m. Sent by a client, or by a process that holds m for too long."""

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
    """A leader sends payloads, and `ack_below`, to its own group only; both are empty for other groups."""
    ack_below: tuple[int, ...]
    after: Timestamp = NO_TIMESTAMP
    """The last local timestamp that the leader had issued in this ballot before these."""


@dataclass(slots=True)
class AcceptAck:
    """ACCEPT_ACK(m, g, Bal): a member of g holds these proposals durably. Like Paxos' 2b.

    One acknowledgement serves all messages that were accepted together, in one ballot of each group.
    """

    mids: tuple[MessageId, ...]
    group: GroupId
    ballots: tuple[Ballot, ...]
    """In the order of groups, the ballots of all destinations of all these messages, and perhaps of more
    groups: Bal of one message is those of dest(m)."""
    issued: Timestamp = NO_TIMESTAMP
    """From a leader: the last local timestamp that it has issued in its ballot."""


Decision: TypeAlias = tuple[MessageId, Timestamp, Timestamp]
"""A message, its local and its global timestamp, as in DELIVER."""


@dataclass(slots=True)
class Deliver:
    """DELIVER(m, b, lts, gts), for messages that follow each other in the group's order.

    `previous_ts` is the global timestamp that the group delivered just before the first of them.
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
    """The position of one piece in a state that is sent in pieces."""

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
    wall_us: int = 0
    """The member's time of day, in microseconds, if its clock is hybrid."""


Instance: TypeAlias = tuple[MessageId, Timestamp]
"""An instance of consensus in a group. If the timestamp is bottom, the group decides m's local timestamp;
otherwise it decides that its clock passes the timestamp, m's global one."""

LocalTimestamp: TypeAlias = tuple[MessageId, Destinations, bytes, int, Timestamp]
"""A value that may be decided: m, its destinations, payload, `ack_below`, and the local timestamp that the
group gives it."""


class LocalTimestamps(NamedTuple):
    """A run of such values, as columns of the same length."""

    mids: tuple[MessageId, ...] = ()
    dests: tuple[Destinations, ...] = ()
    payloads: tuple[bytes, ...] = ()
    ack_below: tuple[int, ...] = ()
    local_ts: tuple[Timestamp, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[LocalTimestamp]) -> LocalTimestamps:
        """Return the rows as columns, in order."""
        return cls(*zip(*rows, strict=True))


class ClockUpdates(NamedTuple):
    """A run of the other decisions: the group's clock passes these messages' global timestamps.

    They are instances and values at once, for no other value can be decided. Columns of the same length.
    """

    mids: tuple[MessageId, ...] = ()
    global_ts: tuple[Timestamp, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Instance]) -> ClockUpdates:
        """Return the rows as columns, in order."""
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
    """PROPOSE(m, g, lts) of Figure *skeen*, from one leader to another.

    One message serves all proposals between the two leaders at a time, as columns of the same length.
    """

    group: GroupId
    ballot: Ballot
    """The ballot of the sender. It decides nothing; it tells the other leaders where to send."""
    mids: tuple[MessageId, ...]
    dests: tuple[Destinations, ...]
    local_ts: tuple[Timestamp, ...]
    decided: tuple[bool, ...]
    """Whether the group has decided the timestamp; otherwise its leader only proposes it (FastCast)."""


@dataclass(slots=True)
class Hint:
    """The sender does not lead its group; the ballot names the leader that it knows of."""

    group: GroupId
    ballot: Ballot


@dataclass(slots=True)
class Heartbeat:
    """The leader of the ballot is alive, has delivered so far, and knows these groups' watermarks."""

    ballot: Ballot
    last_delivered: Timestamp
    executed: tuple[tuple[GroupId, Timestamp], ...]
    lowest: Timestamp = NO_TIMESTAMP
    """A lower bound of the local timestamps that the leader has yet to deliver, including those that it has
    yet to issue."""
    issued: Timestamp = NO_TIMESTAMP
    """The last local timestamp that the leader has issued in its ballot, and sent."""
    sent_us: int = 0
    """The leader's monotonic time, in microseconds: the acknowledgement repeats it."""
    alive_only: bool = False
    """Whether it has overtaken other messages of the leader, and says only that the leader is alive."""
    counts: tuple[int, ...] = ()
    """The members' counts, as far as the leader knows, in the order of the ballot's configuration."""


@dataclass(slots=True)
class HeartbeatAck:
    """A member's answer to a heartbeat: its ballots, and the position up to which it has durably executed."""

    ballot: Ballot
    cballot: Ballot
    executed: Timestamp
    wall_us: int = 0
    """The member's time of day, in microseconds, if its clock is hybrid."""
    sent_us: int = 0
    """`sent_us` of the heartbeat that this answers."""
    count: int = 0
    """The member's count: see `durable.Counted`."""


@dataclass(slots=True)
class PreVote:
    """Asks whether a member would join this ballot, before the ballot is spent.

    So a process that is cut off and cannot win does not depose a leader that works.
    """

    ballot: Ballot


@dataclass(slots=True)
class PreVoteAck:
    """A member would join the ballot: it hears no leader either."""

    ballot: Ballot


@dataclass(slots=True)
class HandOver:
    """The leader of the ballot asks the receiver to lead; it leads on until another member does."""

    ballot: Ballot


@dataclass(slots=True)
class Join:
    """A replica on a new disk, not a member yet, asks to replace the member with its number."""

    address: str
    """The address of the joining replica."""
    evicts: ReplicaId | None
    """The member that an operator wants it to replace, even if that member is healthy."""


@dataclass(slots=True)
class MembersWanted:
    """Asks for the members of the group."""

    group: GroupId


@dataclass(slots=True)
class Members:
    """The members of a group, as far as the sender knows: a fact, though perhaps a stale one."""

    membership: Membership


@dataclass(slots=True)
class CatchUp:
    """Asks for the group's deliveries after this position, or for a snapshot.

    A snapshot that answers it has this number: no other is taken from the receiver.
    """

    after: Timestamp
    number: int = 0


@dataclass(slots=True)
class Deliveries:
    """A run of the group's deliveries without gaps; the sender's `last_delivered` tells if there are more."""

    deliveries: tuple[Delivery, ...]
    last_delivered: Timestamp


@dataclass(slots=True)
class Executed:
    """A quorum of the group has durably executed everything up to the watermark: a permanent fact."""

    group: GroupId
    watermark: Timestamp
    reply_wanted: bool


@dataclass(slots=True)
class Recall:
    """A replica that has started asks which count of its own a member remembers."""

    life: int
    """A random number of the asking replica's life, which the answer repeats."""


@dataclass(slots=True)
class Recalled:
    """The count of the asking replica that the sender remembers; 0 if it has never heard one."""

    life: int
    count: int
    version: int
    """The version of the group's membership that the sender knows."""


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
    | Recall
    | Recalled
)


TO_ANYONE: Final = (Multicast, Join, MembersWanted)
"""Messages that any replica of the group may handle, whichever of them was addressed."""

TO_NEWCOMERS: Final = (Hint, Members, MembersWanted)
"""Messages to a replica on a node that no membership names yet: facts and questions, in any order."""


def about(message: object) -> Sequence[MessageId]:
    """Return the application messages that this message helps to order."""
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
