"""The interface that the store needs of an ordering replica.

Processes of every fault-tolerant protocol (`multicast.process.replica.Replica`) provide it. The store reads
positions, ballots and memberships through it, raises clocks, and changes nothing else of the replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from multicast.delivered import DeliveredIds
from multicast.membership import Membership
from multicast.topology import Topology
from multicast.types import Ballot, Destinations, GroupId, ReplicaId, Timestamp


@runtime_checkable
class ReplicaView(Protocol):
    """One replica of one group, as the store's partition of that group sees it."""

    @property
    def me(self) -> ReplicaId:
        """The replica's id."""

    # Ballots: who leads, and whether a strict read may be answered

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads its group."""

    @property
    def ballot(self) -> Ballot:
        """The highest ballot that this replica has promised; number 0 before the first."""

    @property
    def cballot(self) -> Ballot:
        """The ballot that this replica takes part in; if it leads, the one that it leads."""

    @property
    def reading_ballot(self) -> Ballot | None:
        """See `multicast.protocol.Protocol.reading_ballot`."""

    @property
    def readers(self) -> tuple[Sequence[ReplicaId], int]:
        """The members of the current ballot, and the size of a quorum of them."""

    def is_in_ballot(self, ballot: Ballot) -> bool:
        """Whether this replica is in the ballot and has promised no higher one."""

    @property
    def is_current(self) -> bool:
        """Whether this replica takes part in its group, and has all that its leader had a moment ago."""

    # Groups

    @property
    def others(self) -> tuple[ReplicaId, ...]:
        """The other members of this replica's group."""

    @property
    def membership(self) -> Membership:
        """The newest known membership of this replica's group."""

    @property
    def topology(self) -> Topology:
        """The known members of all groups."""

    def leader_of(self, group: GroupId) -> ReplicaId:
        """The presumed leader of a group."""

    # Time

    @property
    def clock(self) -> int:
        """The time of the highest timestamp issued or seen here."""

    def quorum_time(self) -> int:
        """At a leader: the time of day in ticks, as a quorum of the group has reached it; 0 if there is
        none.
        """

    def raise_clock(self, time: int) -> None:
        """Let the next local timestamps be above this time."""

    # Deliveries

    @property
    def delivered_ids(self) -> DeliveredIds:
        """The ids of all delivered messages: part of every checkpoint."""

    def retained_groups(self) -> Sequence[tuple[Timestamp, Destinations]]:
        """Delivered messages of several groups that the ordering has not collected yet, in order."""

    def oldest_retained(self) -> Timestamp | None:
        """The first of these, without looking at all of them."""
