"""Hand-over between cut links: a leader that does not reach other leaders hands over to a member that does.

Relays (`relay`) connect nodes that have a neighbour in common. Leaders on two nodes without one wait for each
other, and transactions over their groups stop both groups. So once per tick, each node compares itself, for
every group that it leads, with the nodes of the group's other members: by how many groups' leaders they do
not reach, and if that is equal, by how many nodes they reach, since every node has clients. What a node
reaches it tells the others (`reach`).

The leader hands over if a member that it reaches stays strictly better for some ticks, and reaches a quorum
of its group. A member that is silent may have been better before; now it is down, or its process stopped. Of
two groups that could both move, the one with the lower id is more patient. Each hand-over doubles the
patience, until the group has been left alone for long. Members that are worse do not get a group back, though
they are its preferred leaders.

A leader also hands over if a quorum of its group has told, within a short time, that its node reads too
slowly for what they send, and that they have dropped it (`wire.flow`).

Hand-overs are always safe: they are elections. docs/divergence.md, 18, argues that they end.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kvstore.config.addresses import NodeId
from kvstore.node.reach import Reachability
from kvstore.wire.messages import Hearing
from multicast.protocol import Protocol
from multicast.types import GroupId, ReplicaId

logger = logging.getLogger(__name__)

PATIENCE_TICKS: Final = 3
"""How many ticks a member must be better before a leader hands over to it."""

LOWER_ID: Final = 3
"""How many times as patient the group with the lowest id is, of those that do not reach each other."""

DOUBLED_MAX: Final = 6
"""How often patience is doubled, at most."""

BEHIND_TICKS: Final = 20
"""How long it counts that a node has told that this one reads too slowly."""

CALM_TICKS: Final = 200
"""Ticks without a hand-over, times its present factor, after which a group's patience is the first again."""


@dataclass(slots=True)
class _Watch:
    """What is remembered of one group that is led here, or was."""

    ticks: int = 0
    """Ticks in a row in which a member was better."""
    extra: int = 0
    """Random ticks more, so that two groups do not move at once again and again."""
    moves: int = 0
    """Hand-overs, each of which doubles the patience."""
    moved_at: int = -BEHIND_TICKS


class HandOvers:
    """Decides for all groups that a node leads."""

    def __init__(
        self,
        reach: Reachability,
        node_of: Callable[[ReplicaId], NodeId | None],
        behind: Callable[[NodeId], int],
        rng: random.Random,
    ) -> None:
        """`behind` returns how often a node has told that this one reads too slowly."""
        self._reach = reach
        self._node_of = node_of
        self._behind = behind
        self._rng = rng
        self._told: dict[NodeId, tuple[int, int]] = {}
        """How often each node has told so, and the tick of the last time."""
        self._watches: dict[GroupId, _Watch] = {}
        self._tick = 0
        self.count = 0
        """Hand-overs since the node started."""

    def tick(self, led: Iterable[Protocol], now: float) -> list[ReplicaId]:
        """Look at the replicas that lead, and let them hand over; return those that have asked a member."""
        self._tick += 1
        self._listen()
        if not self._reach.is_settled:
            return []
        own: Hearing | None = None
        asked = []
        for replica in led:
            own = own or self._reach.own()
            if self._look(replica, own, now):
                asked.append(replica.me)
        return asked

    def _look(self, replica: Protocol, own: Hearing, now: float) -> bool:
        """Compare the leader with the other members; return whether it has asked one to lead."""
        group = replica.me.group
        better, worse = self._compared(replica, own)
        replica.avoided = worse
        watch = self._watches.setdefault(group, _Watch())
        if watch.moves and self._tick - watch.moved_at > CALM_TICKS << watch.moves:
            watch.moves = 0
        rested = self._tick - watch.moved_at > BEHIND_TICKS << watch.moves
        if rested and self._is_behind(replica) and replica.hand_over(now):
            logger.warning("group %d: a quorum tells that this node reads too slowly: it hands over", group)
            self._moved(watch)
            return True
        if not better:
            watch.ticks = 0
            return False
        if not watch.ticks:
            watch.extra = self._rng.randrange(PATIENCE_TICKS)
        watch.ticks += 1
        if watch.ticks <= self._patience(group, own, watch) + watch.extra:
            return False
        if not replica.hand_over(now, better):
            return False
        logger.warning(
            "group %d: this node does not reach the leaders of groups %s, or not nodes %s: "
            "it hands over to a member that reaches more",
            group, list(own.missed), list(own.apart),
        )  # fmt: skip
        self._moved(watch)
        return True

    def _moved(self, watch: _Watch) -> None:
        self.count += 1
        watch.ticks, watch.moves, watch.moved_at = 0, min(watch.moves + 1, DOUBLED_MAX), self._tick

    def _is_behind(self, replica: Protocol) -> bool:
        """Return whether a quorum of its group has told, of late, that this node reads too slowly."""
        members, quorum = replica.readers
        told = 0
        for member in members:
            node = self._node_of(member)
            if member == replica.me or node is None or node not in self._told:
                continue
            told += self._tick - self._told[node][1] < BEHIND_TICKS
        return told >= quorum

    def _listen(self) -> None:
        """Note which nodes have told that this one reads too slowly."""
        for node in self._reach.peers():
            count = self._behind(node)
            if count != self._told.get(node, (0, 0))[0]:
                self._told[node] = count, self._tick

    def _patience(self, group: GroupId, own: Hearing, watch: _Watch) -> int:
        """Return for how many ticks a member must be better."""
        others = [other for other in own.missed if other != group]
        stays = bool(others) and group < min(others)
        return (PATIENCE_TICKS * (LOWER_ID if stays else 1)) << watch.moves

    def _compared(self, replica: Protocol, own: Hearing) -> tuple[list[ReplicaId], frozenset[ReplicaId]]:
        """Return the best of the members that are better connected, and all that are worse or silent."""
        group = replica.me.group
        members, quorum = replica.readers
        better: dict[ReplicaId, tuple[int, int]] = {}
        worse = set()
        for member in members:
            node = self._node_of(member)
            said = None if node is None else self._reach.said_by(node)
            if member == replica.me:
                continue
            # What a node has said counts for a while, though it may be silent since.
            if said is None or node in own.apart or self._is_better(own, said, group):
                worse.add(member)
            elif self._is_better(said, own, group):
                within = sum(self._node_of(other) not in said.apart for other in members)
                if within >= quorum:
                    better[member] = _rank(said, group)
        best = max(better.values(), default=None)
        return [member for member, rank in better.items() if rank == best], frozenset(worse)

    def _is_better(self, one: Hearing, other: Hearing, group: GroupId) -> bool:
        """Return whether one node is strictly better connected than another, as a leader of this group.

        Nodes that are all connected may know more or fewer of them while members are replaced.
        """
        first, second = _rank(one, group), _rank(other, group)
        return first[0] > second[0] or (first > second and bool(other.apart))


def _rank(said: Hearing, group: GroupId) -> tuple[int, int]:
    """Return how well connected a node is: the number of leaders that it misses, and of nodes it reaches."""
    return -sum(missed != group for missed in said.missed), said.reached
