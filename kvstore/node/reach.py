"""Which nodes hear which: what a node knows of all links, in each direction.

A node counts its own ticks, one per heartbeat, in which no frame of a peer has arrived. (Ticks, not time: a
node that was stopped has missed nothing.) After `DEAF_TICKS` it lists the peer as unheard, and says so to all
peers (`Reach`): only the receiver of a link knows that it is cut. A node passes on what it is told by nodes
that it hears, so that a node learns of a cut link although the way back is cut too.

A link that comes and goes stays listed for longer each time, so that its frames are relayed all the while.

A node *reaches* another if frames pass in both directions, directly or relayed. It also tells which groups'
leaders it does not reach: `kvstore.node.handover` uses that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvstore.config.addresses import NodeId
from kvstore.wire.messages import Hearing, Reach
from multicast.types import GroupId

DEAF_TICKS: Final = 4
"""Ticks without a frame after which a peer is listed as unheard."""

HOLD_TICKS: Final = 5
HOLD_TICKS_MAX: Final = 320
"""How many ticks a listed peer must be heard before it is not listed any more: the first time, and the most.
It doubles each time that the peer is listed again soon."""

STABLE: Final = 10
"""A peer that was heard for so many times as long is stable: the next time counts as the first."""

STALE_TICKS: Final = 12
"""What a node has said counts for so many ticks."""


@dataclass(slots=True)
class _Peer:
    """A link from a peer to this node."""

    missed: int = 0
    """Ticks since a frame has arrived."""
    listed: bool = False
    used: bool = False
    """Whether a frame of it was relayed to this node since it was listed."""
    before: bool = False
    """Whether it was listed before."""
    steady: int = 0
    """Ticks in which it was heard: since it was listed, or not listed any more."""
    hold: int = HOLD_TICKS


@dataclass(slots=True)
class _Row:
    """What another node has said last."""

    hearing: Hearing
    at: int = -STALE_TICKS
    """The tick in which it arrived."""
    direct_at: int = -STALE_TICKS
    """The same, from the node itself."""
    deaf: dict[NodeId, int] = field(default_factory=dict)
    troubled_at: int = -STALE_TICKS
    """The tick in which it last listed any node."""


@dataclass(slots=True)
class News:
    """Whether a message has said anything new."""

    any: bool
    to_pass_on: bool
    """Whether its sender's own links have changed."""

    def __bool__(self) -> bool:
        return self.any


class Reachability:
    """What a node knows of the links between nodes."""

    def __init__(
        self,
        me: NodeId,
        life: int,
        epoch_of: Callable[[NodeId], int],
        peers: Callable[[], Collection[NodeId]],
        groups: Sequence[GroupId] = (),
        leads: Callable[[], Collection[GroupId]] = tuple,
    ) -> None:
        """`epoch_of` returns the epoch under which frames of a node may be relayed to this one; `leads`, the
        groups whose leaders are here.
        """
        self._me = me
        self._life = life
        self._epoch_of = epoch_of
        self.peers = peers
        """Returns the other nodes."""
        self._groups = groups
        self._leads = leads
        self._heard: set[NodeId] = set()
        self._links: dict[NodeId, _Peer] = {}
        self._rows: dict[NodeId, _Row] = {}
        self._tick = 0
        self._number = 0

    # This node's own links

    def heard(self, node: NodeId) -> None:
        """Note that a frame of the node has arrived directly."""
        self._heard.add(node)

    def begins_anew(self, node: NodeId) -> None:
        """Note that another life of the node has been heard: its links are new."""
        self._links[node] = _Peer()

    def relayed_from(self, node: NodeId) -> None:
        """Note that a frame of the node was relayed to this one."""
        if node in self._links:
            self._links[node].used = True

    def tick(self) -> None:
        """Count a tick: list peers that were not heard for long, and those no more that were heard again."""
        self._tick += 1
        heard, self._heard = self._heard, set()
        for node in self.peers():
            link = self._links.setdefault(node, _Peer())
            if node in heard:
                self._was_heard(link)
            else:
                self._was_silent(link)

    def _was_heard(self, link: _Peer) -> None:
        link.missed = 0
        link.steady += 1
        first = link.hold == HOLD_TICKS and not link.used
        if link.listed and (first or link.steady >= link.hold):
            link.listed, link.steady = False, 0
        elif not link.listed and link.steady >= STABLE * link.hold:
            link.hold, link.before = HOLD_TICKS, False

    def _was_silent(self, link: _Peer) -> None:
        link.missed += 1
        if link.missed < DEAF_TICKS:
            return
        if not link.listed:
            if link.before and link.steady < STABLE * link.hold:
                link.hold = min(2 * link.hold, HOLD_TICKS_MAX)
            link.listed, link.before, link.used = True, True, False
        link.steady = 0

    def hears(self, node: NodeId) -> bool:
        """Return whether frames of the node arrive here directly, as far as is known."""
        link = self._links.get(node)
        return link is None or not link.listed

    def unheard(self) -> list[NodeId]:
        """Return the peers that this node does not hear."""
        return sorted(node for node in self.peers() if not self.hears(node))

    # What nodes say to each other

    def report(self) -> Reach:
        """Return what this node says to its peers, with a new number."""
        self._number += 1
        unheard = self.unheard()
        own = Hearing(
            self._me, self._life, self._number, tuple((node, self._epoch_of(node)) for node in unheard),
            *self._standing(),
        )  # fmt: skip
        return Reach(own, tuple(self._passed_on(set(unheard))))

    def _standing(self) -> tuple[tuple[GroupId, ...], tuple[GroupId, ...], tuple[NodeId, ...], int]:
        """Return the groups led here, those whose leaders are not reached, the nodes that are not, and how
        many are.
        """
        leads, peers = tuple(sorted(self._leads())), sorted(self.peers())
        apart = tuple(node for node in peers if not self.reaches(node))
        rows = [self._rows[node] for node in peers if node not in apart]
        led = {group for row in rows for group in row.hearing.leads}
        missed = tuple(group for group in self._groups if group not in led and group not in leads)
        return leads, missed, apart, len(peers) - len(apart)

    def _passed_on(self, unheard: set[NodeId]) -> list[Hearing]:
        """Return what nodes have said to this node, if any is in trouble.

        As it was said: what a node leaves out because it hears nothing of it, another may need.
        """
        rows = [
            row
            for node, row in sorted(self._rows.items())
            if node not in unheard and self._tick - row.direct_at < DEAF_TICKS
        ]
        if not any(self._tick - row.troubled_at < STALE_TICKS for row in rows):
            return []
        return [row.hearing for row in rows]

    def learn(self, node: NodeId, reach: Reach) -> News:
        """Take what a node has said."""
        own = self._learn(reach.own, direct=True)
        others = [self._learn(h, direct=False) for h in reach.others if h.node not in (self._me, node)]
        return News(own or any(others), own)

    def _learn(self, hearing: Hearing, *, direct: bool) -> bool:
        """Take the newest; of two lives, the one that was heard last. Return whether it differs."""
        peers = self.peers()
        if hearing.node not in peers:
            return False
        row = self._rows.get(hearing.node)
        if row is None:
            row = self._rows[hearing.node] = _Row(hearing)
        elif row.hearing.life == hearing.life and row.hearing.number >= hearing.number:
            if direct:
                row.direct_at = self._tick
            return False
        before = row.deaf
        row.deaf = {node: epoch for node, epoch in hearing.deaf if node == self._me or node in peers}
        row.hearing = hearing._replace(deaf=tuple(row.deaf.items()))
        row.at = self._tick
        if direct:
            row.direct_at = self._tick
        if row.deaf:
            row.troubled_at = self._tick
        return row.deaf != before

    def _fresh(self, node: NodeId) -> _Row | None:
        row = self._rows.get(node)
        return None if row is None or self._tick - row.at >= STALE_TICKS else row

    def own(self) -> Hearing:
        """Return what this node would tell now, without its links."""
        return Hearing(self._me, self._life, self._number, (), *self._standing())

    def said_by(self, node: NodeId) -> Hearing | None:
        """Return what another node has said of late; None if it has said nothing."""
        row = self._fresh(node)
        return None if row is None else row.hearing

    @property
    def is_settled(self) -> bool:
        """Whether other nodes have had time to hear this one."""
        return self._tick > STALE_TICKS

    def reaches(self, node: NodeId) -> bool:
        """Return whether frames to the node arrive there, and its frames here, directly or relayed."""
        row = self._fresh(node)
        if row is None or (self._me in row.deaf and not self._relays_to(node, row)):
            return False
        return self.hears(node) or any(
            other not in row.deaf and self.hears(other) and node not in more.deaf
            for other in self.peers()
            if other != node and (more := self._fresh(other)) is not None
        )

    def invitation(self, target: NodeId) -> int:
        """Return the epoch under which a node that does not hear this one takes relayed frames; 0 if it
        hears this node, as far as is known.
        """
        if self._tick <= DEAF_TICKS:
            return 0  # it speaks of a former life of this node: it has had no time to hear this one
        row = self._fresh(target)
        return 0 if row is None else row.deaf.get(self._me, 0)

    def relay_to(self, target: NodeId, preferred: NodeId | None, rng: random.Random) -> NodeId | None:
        """Return a node that hears this one, and that the target hears: the preferred one if possible."""
        row = self._fresh(target)
        if row is None:
            return None
        found = self._relays_to(target, row)
        if preferred in found:
            return preferred
        return rng.choice(found) if found else None

    def _relays_to(self, target: NodeId, row: _Row) -> list[NodeId]:
        return [
            node
            for node in sorted(self.peers())
            if node != target and node not in row.deaf
            and (other := self._fresh(node)) is not None and self._me not in other.deaf
        ]  # fmt: skip
