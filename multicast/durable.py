"""What a replica keeps on disk for its promises, as records that are only ever appended.

A protocol emits records; the host writes them in order and calls them durable together, batch by batch.
`Durable` folds records into the state a replica restarts from. What deliveries did to the application
(the position, the delivered ids) is the application's to keep and comes back as a `Checkpoint`.
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
    """This replica has joined the ballot, and nothing below it from now on."""

    ballot: Ballot


@dataclass(slots=True)
class Joined:
    """The ballot's initial state has replaced what was here: cballot = ballot."""

    ballot: Ballot
    clock: int
    entries: tuple[EntryState, ...]


@dataclass(slots=True)
class Accepted:
    """The own group's proposals are accepted in the current ballot; the clock is past all groups'.

    One record serves a run of messages, as columns of the same length.
    """

    dests: tuple[Destinations, ...]
    """Of each message; or a single one, if all have the same."""
    mids: tuple[MessageId, ...]
    local_ts: tuple[Timestamp, ...]
    payloads: tuple[bytes, ...]
    ack_below: tuple[int, ...]
    clock: int


@dataclass(slots=True)
class Voted:
    """This replica has voted, in its current ballot, for answers to instances of consensus.

    Votes that the clock passes a timestamp are kept as a clock that is past all of them.
    """

    local: LocalTimestamps
    clock: int


@dataclass(slots=True)
class Learned:
    """A decided and delivered message, taken over with a snapshot."""

    entry: EntryState


@dataclass(slots=True)
class Dropped:
    """Nobody can need these messages any more."""

    mids: tuple[MessageId, ...]


@dataclass(slots=True)
class Configured:
    """This replica has learnt who is in a group, its own or another."""

    membership: Membership


Record: TypeAlias = Promised | Joined | Accepted | Voted | Delivery | Learned | Dropped | Configured
"""A `Delivery` says that the message's timestamps are decided; if it was accepted here, its payload is
on disk already."""


@dataclass(slots=True)
class Durable:
    """The fold of all durable records: what a restarted replica still knows of its promises."""

    ballot: Ballot = NO_BALLOT
    cballot: Ballot = NO_BALLOT
    clock: int = 0
    entries: dict[MessageId, EntryState] = field(default_factory=dict)
    memberships: dict[GroupId, Membership] = field(default_factory=dict)
    """The newest known of the groups that have changed theirs."""

    def apply(self, records: Iterable[Record]) -> None:
        """Fold some more records, in the order in which they were emitted."""
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

    An application saves it with its own state, in one commit, and gives it back on restart. It also
    travels with a snapshot to a replica that is too far behind for single deliveries; then `entries`
    are the delivered messages that other groups may still ask for, and `membership` is what the deliveries
    that it leaves out may have changed.
    """

    position: Timestamp = NO_TIMESTAMP
    delivered: DeliveredIds = field(default_factory=DeliveredIds)
    entries: tuple[EntryState, ...] = ()
    membership: Membership | None = None
    """Of the group, at this position or later."""
    executed: Timestamp = NO_TIMESTAMP
    """Up to where everything is executed in this state, at most its position: what may be reported of it,
    once it is durable. An application that executes what it has delivered at once has one number for both."""
