"""The durable state behind a replica's promises, as records that are only ever appended.

A protocol emits records; the host makes them durable in order, batch by batch. `Durable` folds records into
the state that a replica restarts from. The application keeps what deliveries did to it (the position, the
delivered ids) and gives it back as a `Checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from multicast.delivered import DeliveredIds
from multicast.membership import Membership
from multicast.messages import Delivery, EntryState, LocalTimestamps
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    Ballot,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    ReplicaId,
    Timestamp,
    expand_dests,
)


@dataclass(slots=True)
class Promised:
    """This replica has joined the ballot, and joins none below it from now on."""

    ballot: Ballot


@dataclass(slots=True)
class Joined:
    """The ballot's initial state has replaced this replica's: cballot = ballot."""

    ballot: Ballot
    clock: int
    entries: tuple[EntryState, ...]


@dataclass(slots=True)
class Accepted:
    """The own group's proposals are accepted in the current ballot; the clock has passed all groups'
    proposals.

    One record serves a run of messages, as columns of the same length.
    """

    dests: tuple[Destinations, ...]
    """The destinations of each message; or a single set, if all have the same."""
    mids: tuple[MessageId, ...]
    local_ts: tuple[Timestamp, ...]
    payloads: tuple[bytes, ...]
    ack_below: tuple[int, ...]
    clock: int


@dataclass(slots=True)
class Voted:
    """This replica has voted, in its current ballot, in instances of consensus.

    Votes that the clock passes a timestamp are kept as one clock that has passed all of them.
    """

    local: LocalTimestamps
    clock: int


@dataclass(slots=True)
class Learned:
    """A decided and delivered message that came with a snapshot."""

    entry: EntryState


@dataclass(slots=True)
class Dropped:
    """No process can need these messages any more."""

    mids: tuple[MessageId, ...]


@dataclass(slots=True)
class Configured:
    """This replica has learned a membership, of its own group or another."""

    membership: Membership


@dataclass(slots=True)
class Reported:
    """Everything up to here is executed in this replica's state, and other processes may have been told so.

    The state itself says so too; but a replica whose state is lost must still know it.
    """

    executed: Timestamp


@dataclass(slots=True)
class Counted:
    """This replica has made something durable since its count rose last, to this one now.

    Other members remember the count, so that a log which was rolled back is recognised (`process.memories`).
    """

    count: int


@dataclass(slots=True)
class Remembered:
    """Another member of the group has told this count of its own."""

    member: ReplicaId
    count: int


Record: TypeAlias = (
    Promised
    | Joined
    | Accepted
    | Voted
    | Delivery
    | Learned
    | Dropped
    | Configured
    | Reported
    | Counted
    | Remembered
)
"""A `Delivery` records that the message's timestamps are decided; if the message was accepted here, its
payload is on disk already."""


Proposal: TypeAlias = tuple[Destinations, bytes, int, Timestamp]
"""What the last acceptance says of a message: dest, payload, ack_below, local_ts."""


class Durable:
    """The fold of all durable records: the promises that a restarted replica still knows.

    It keeps the last record of each message as it came, and makes entries only when they are asked for: most
    messages are dropped before. Runs of messages are folded without running any Python code for one of them.
    """

    __slots__ = ("ballot", "cballot", "clock", "count", "executed", "latest", "memberships", "memories")

    def __init__(self) -> None:
        self.ballot = self.cballot = NO_BALLOT
        self.clock = 0
        self.executed = NO_TIMESTAMP
        """What may have been reported as executed."""
        self.memberships: dict[GroupId, Membership] = {}
        """The newest known membership of each group that has changed its own."""
        self.latest: dict[MessageId, Proposal | Delivery | EntryState] = {}
        """What the last record of each message says."""
        self.count = 0
        """The replica's own count."""
        self.memories: dict[ReplicaId, int] = {}
        """The counts of the group's other members, as far as they are remembered."""

    def apply(self, records: Iterable[Record]) -> None:
        """Fold further records, in the order in which they were emitted."""
        for record in records:
            match record:
                case Accepted(dests, mids, local_ts, payloads, ack_below, clock):
                    dests = expand_dests(dests, len(mids))
                    proposals = zip(dests, payloads, ack_below, local_ts, strict=True)
                    self._accept(mids, proposals, clock)
                case Delivery(mid):
                    self.latest[mid] = record
                case Dropped(mids):
                    for mid in mids:
                        self.latest.pop(mid, None)
                case Voted(local, clock):
                    self._accept(local.mids, zip(*local[1:], strict=True), clock)
                case Learned(entry):
                    self.latest[entry.mid] = _proposal_if_accepted(entry)
                case Promised(ballot):
                    self.ballot = ballot
                case Configured(membership):
                    self.memberships[membership.group] = membership
                    self._forget_former(membership)
                case Counted(count):
                    self.count = max(self.count, count)
                case Remembered(member, count):
                    self.memories[member] = max(self.memories.get(member, 0), count)
                case Reported(executed):
                    self.executed = max(self.executed, executed)
                case Joined(ballot, clock, entries):
                    self.ballot = self.cballot = ballot
                    self.clock = max(self.clock, clock)
                    self.latest = {entry.mid: _proposal_if_accepted(entry) for entry in entries}
                case _:
                    raise TypeError(f"{type(record).__name__} is not a record")

    def _forget_former(self, membership: Membership) -> None:
        """Forget counts of replicas that are not members any more: they take part in nothing."""
        for member in list(self.memories):
            if member.group == membership.group and member not in membership.everyone:
                del self.memories[member]

    def deliver(self, mids: Iterable[MessageId], deliveries: Iterable[Delivery]) -> None:
        """Fold deliveries of these messages."""
        self.latest.update(zip(mids, deliveries, strict=True))

    def _accept(self, mids: Sequence[MessageId], proposals: Iterable[Proposal], clock: int) -> None:
        latest = self.latest
        self.clock = max(self.clock, clock)
        accepted = zip(mids, proposals, strict=True)
        if latest.keys().isdisjoint(mids):
            latest.update(accepted)
        else:
            for mid, proposal in accepted:
                if not _decided(latest.get(mid)):
                    latest[mid] = proposal

    @property
    def entries(self) -> dict[MessageId, EntryState]:
        """The state of all messages that still matter. It is made anew for each caller."""
        return {mid: _entry(mid, last) for mid, last in self.latest.items()}

    def entry(self, mid: MessageId) -> EntryState | None:
        """Return the state of one message."""
        last = self.latest.get(mid)
        return None if last is None else _entry(mid, last)

    def records(self) -> list[Record]:
        """Return the fewest records whose fold equals this one."""
        members = [Configured(membership) for membership in self.memberships.values()]
        joined = Joined(self.cballot, self.clock, (*self.entries.values(),))
        counts: list[Record] = [Counted(self.count)] if self.count else []
        counts += [Remembered(member, count) for member, count in self.memories.items()]
        return [*members, *counts, Reported(self.executed), joined, Promised(self.ballot)]

    def copy(self) -> Durable:
        """Return a fold of the same records, which others may continue."""
        copied = Durable()
        copied.ballot, copied.cballot, copied.clock = self.ballot, self.cballot, self.clock
        copied.executed, copied.count, copied.memories = self.executed, self.count, dict(self.memories)
        copied.memberships, copied.latest = dict(self.memberships), dict(self.latest)
        return copied

    def _state(self) -> tuple[object, ...]:
        promises = self.ballot, self.cballot, self.clock, self.executed
        return *promises, self.entries, self.memberships, self.count, self.memories

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Durable) and self._state() == other._state()

    def __repr__(self) -> str:
        return f"Durable{self._state()}"

    __hash__ = None  # type: ignore[assignment]  # it changes


def _decided(last: Proposal | Delivery | EntryState | None) -> bool:
    """Whether accepting the message again changes nothing."""
    return isinstance(last, Delivery) or (isinstance(last, EntryState) and last.phase is Phase.COMMITTED)


def _proposal_if_accepted(entry: EntryState) -> Proposal | EntryState:
    """Return an accepted entry as a proposal: then a compacted log amounts to the log that it replaces."""
    _, dest, payload, ack_below, phase, local_ts, global_ts = entry
    if phase is Phase.ACCEPTED and global_ts == NO_TIMESTAMP:
        return dest, payload, ack_below, local_ts
    return entry


def _entry(mid: MessageId, last: Proposal | Delivery | EntryState) -> EntryState:
    if isinstance(last, EntryState):
        return last
    if isinstance(last, Delivery):
        return EntryState(
            mid, last.dest, last.payload, last.ack_below, Phase.COMMITTED, last.local_ts, last.global_ts
        )
    dest, payload, ack_below, local_ts = last
    return EntryState(mid, dest, payload, ack_below, Phase.ACCEPTED, local_ts, NO_TIMESTAMP)


@dataclass(slots=True)
class Checkpoint:
    """The ordering side of an application's state at one position of its group's order.

    An application commits it together with its own state, and gives it back on restart. It also travels with
    a snapshot to a replica that is too far behind for single deliveries. Then `entries` are the delivered
    messages that other groups may still ask for, and `membership` is what the skipped deliveries may have
    changed.
    """

    position: Timestamp = NO_TIMESTAMP
    delivered: DeliveredIds = field(default_factory=DeliveredIds)
    entries: tuple[EntryState, ...] = ()
    membership: Membership | None = None
    """The group's membership, at this position or later."""
    executed: Timestamp = NO_TIMESTAMP
    """The position up to which everything is executed in this state, at most `position`. It may be reported
    once this state is durable. An application that executes at once has one number for both."""
