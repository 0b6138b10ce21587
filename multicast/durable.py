"""The durable state behind a replica's promises, as records that are only ever appended.

A protocol emits records; the host makes them durable in order, batch by batch. `Durable` folds records into
the state that a replica restarts from. The application keeps what deliveries did to it (the position, the
delivered ids) and gives it back as a `Checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterable
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


Record: TypeAlias = Promised | Joined | Accepted | Voted | Delivery | Learned | Dropped | Configured
"""A `Delivery` records that the message's timestamps are decided; if the message was accepted here, its
payload is on disk already."""


@dataclass(slots=True)
class Durable:
    """The fold of all durable records: the promises that a restarted replica still knows."""

    ballot: Ballot = NO_BALLOT
    cballot: Ballot = NO_BALLOT
    clock: int = 0
    entries: dict[MessageId, EntryState] = field(default_factory=dict)
    memberships: dict[GroupId, Membership] = field(default_factory=dict)
    """The newest known membership of each group that has changed its own."""

    def apply(self, records: Iterable[Record]) -> None:
        """Fold further records, in the order in which they were emitted."""
        entries = self.entries
        for record in records:
            match record:
                case Accepted(dests, mids, local_ts, payloads, ack_below, clock):
                    self.clock = max(self.clock, clock)
                    dests = expand_dests(dests, len(mids))
                    columns = zip(mids, dests, payloads, ack_below, local_ts, strict=True)
                    for mid, dest, payload, below, ts in columns:
                        self._accept(EntryState(mid, dest, payload, below, Phase.ACCEPTED, ts, NO_TIMESTAMP))
                case Voted(local, clock):
                    self.clock = max(self.clock, clock)
                    for mid, dest, payload, ack_below, ts in zip(*local, strict=True):
                        self._accept(
                            EntryState(mid, dest, payload, ack_below, Phase.ACCEPTED, ts, NO_TIMESTAMP)
                        )
                case Delivery(mid, dest, payload, ack_below, local_ts, global_ts):
                    entries[mid] = EntryState(
                        mid, dest, payload, ack_below, Phase.COMMITTED, local_ts, global_ts
                    )
                case Learned(entry):
                    entries[entry.mid] = entry
                case Dropped(mids):
                    for mid in mids:
                        entries.pop(mid, None)
                case Promised(ballot):
                    self.ballot = ballot
                case Configured(membership):
                    self.memberships[membership.group] = membership
                case Joined(ballot, clock, new):
                    self.ballot = self.cballot = ballot
                    self.clock = max(self.clock, clock)
                    self.entries = entries = {entry.mid: entry for entry in new}

    def _accept(self, state: EntryState) -> None:
        known = self.entries.get(state.mid)
        if known is None or known.phase is not Phase.COMMITTED:
            self.entries[state.mid] = state


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
