"""Relays: frames to a node that does not hear this one go through a third node that reaches it.

A cut link between the leaders of two groups would stop every transaction over both, and everything behind it.
Relaying heals it below the protocol, for leaders, followers and gateways alike. It is one hop: the origin
sends `Relayed` to a node that hears it and that the target hears; that node passes the frame on to the target
itself and to no other. A relay does not read the frame, and drops it if it has too much for the target.

Frames of one node to another stay FIFO, and none arrives twice; some may be lost, as between connections:

- The origin counts its *periods*: 0 while frames have always been direct, odd while they are relayed, even
  when they are direct again. Relayed frames have a period and a number. Direct messages after period 0 have
  their period in front (`Period`), for each pair of processes, since only messages of one pair are in order
  on a link. The target takes only what is above the last by period and number. So whatever was overtaken, on
  the old way or at another relay, is dropped.
- Periods begin anew with each *life* of the origin, and lives have random numbers. Between lives, the target
  decides by the *epoch*, a random number that it tells with "I do not hear you". A relayed frame of an
  unknown life makes the target draw another epoch, and the life that then answers is the newer one: the
  older had ended before it could learn that epoch. So does each direct connection that is accepted, and
  what is known of lives then begins anew; a life that is relayed later is not older than the connection's.

Senders are checked against the origin, not against the relay. docs/divergence.md, 18, has the argument.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvstore.config.addresses import NodeId
from kvstore.node.ports import Network
from kvstore.node.reach import DEAF_TICKS, Reachability
from kvstore.wire.connection import LinkLimits
from kvstore.wire.frames import Envelope, FrameCodec, WireError
from kvstore.wire.messages import NODE, RELAY, Period, Reach, Relayed
from kvstore.wire.payloads import split_in_two
from multicast.errors import PeerViolation
from multicast.types import GroupId, Process

logger = logging.getLogger(__name__)

FRAME_MAX: Final = LinkLimits().message - 4096
"""The largest frame that is relayed: with its header it must fit into a message, which travels in slices."""

BACKLOG_MAX: Final = FRAME_MAX + (4 << 20)
"""Unsent bytes to a node above which relayed frames to it are dropped, the frame included. A link drops its
whole queue at more than this: the rest is for frames of its own."""

SMALL: Final = 16 << 10
SMALL_BACKLOG_MAX: Final = BACKLOG_MAX + (8 << 20)
"""The same for frames of at most so many bytes: heartbeats, and whatever else others wait for, pass when
large frames do not."""

TICK: Final = 0.75
"""Heartbeats between two ticks, at least. Replicas' heartbeats make the turns in which ticks happen."""

PAIRS_MAX: Final = 1 << 16
"""Pairs of processes whose periods are remembered, for each node."""

LIVES: Final = 16
"""Former lives of a node that are remembered: as long as frames of them may be under way."""

_NUMBER: Final = 63
"""Bits of lives and epochs."""


@dataclass(slots=True)
class _Route:
    """How this node's frames to a target travel."""

    relay: NodeId | None = None
    epoch: int = 0
    period: int = 0
    number: int = 0
    doubted: int = 0
    """Ticks since the relay was last known to hear this node, and the target the relay."""


@dataclass(slots=True)
class _Origin:
    """The last frames of another node to this one."""

    epoch: int
    life: int = 0
    """0 while unknown."""
    former: deque[int] = field(default_factory=lambda: deque(maxlen=LIVES))
    suspect: bool = False
    """Whether the epoch was drawn because of a frame of another life."""
    relayed: bool = False
    """Whether the life is known by a relayed frame, and not by the direct connection."""
    period: int = 0
    number: int = 0
    pairs: dict[tuple[Process, Process], int] = field(default_factory=dict)
    """The period of direct messages, by sender and receiver."""

    def renew(self, epoch: int) -> None:
        """Forget the life, since there is a new direct connection, of that life or of a newer one."""
        self.life, self.epoch = 0, epoch
        self.suspect = self.relayed = False
        self.period = self.number = 0
        self.pairs.clear()

    def begin(self, life: int, *, relayed: bool) -> None:
        """Begin another life."""
        if self.life:
            self.former.append(self.life)
        self.life, self.suspect, self.relayed = life, False, relayed
        self.period = self.number = 0
        self.pairs.clear()


@dataclass(slots=True)
class RelayCounts:
    """Counters of relayed frames since the node started."""

    sent: int = 0
    """Frames of this node that went through another."""
    received: int = 0
    """Frames to this node that came through another."""
    forwarded: int = 0
    """Frames that this node passed on."""
    dropped: int = 0
    """Frames that this node did not pass on, for lack of room or of a link, or that were too large."""
    overtaken: int = 0
    """Frames that arrived too late, by either way, and were dropped."""


class Relays:
    """A node's network with relays: see the module. Sends like `kvstore.node.ports.Network`."""

    def __init__(
        self,
        me: NodeId,
        network: Network,
        codec: FrameCodec,
        may_send: Callable[[NodeId, Process], bool],
        rng: random.Random,
        heartbeat_s: float,
        now: float,
        groups: Sequence[GroupId] = (),
        leads: Callable[[], Collection[GroupId]] = tuple,
    ) -> None:
        """`may_send` tells whether messages of a process may come from a node; `leads` returns which of all
        `groups` are led here.
        """
        self._me = me
        self._network = network
        self._codec = codec
        self._may_send = may_send
        self._rng = rng
        self._tick_s = TICK * heartbeat_s
        self.tick_at = now
        """When to call `tick`, at the earliest."""
        self._life = self._draw()
        self._origins: dict[NodeId, _Origin] = {}
        self._routes: dict[NodeId, _Route] = {}
        """By target, if frames to it were ever relayed."""
        self.reach = Reachability(me, self._life, self._epoch_of, lambda: network.peers, groups, leads)
        self._logged: set[NodeId] = set()
        self.on_own: Callable[[NodeId, Any], None] = _reject
        """Takes other messages between nodes themselves, and raises for those that it does not know."""
        self.counts = RelayCounts()

    def _draw(self) -> int:
        return 1 + self._rng.getrandbits(_NUMBER - 1)

    def _epoch_of(self, node: NodeId) -> int:
        return self._origin(node).epoch

    def _origin(self, node: NodeId) -> _Origin:
        found = self._origins.get(node)
        if found is None:
            found = self._origins[node] = _Origin(self._draw())
        return found

    # Time

    def connected(self, node: NodeId) -> None:
        """Note that a connection of this node was accepted: nothing on earlier ones arrives any more, and no
        life that is older than this connection's learns the new epoch.
        """
        if node in self._origins:
            self._origins[node].renew(self._draw())
            if not self.reach.hears(node):
                self._tell()

    def tick(self, now: float) -> None:
        """Count what was heard, decide how frames travel, and tell all peers what is heard here."""
        self.tick_at = now + self._tick_s
        if self._network.peers:
            self.reach.tick()
            for route in self._routes.values():
                route.doubted += 1
            self._choose_routes()
            self._tell()

    def _tell(self) -> None:
        frame: list[Envelope] = [(NODE, NODE, (self.reach.report(),))]
        for node in list(self._network.peers):
            self._network.send(node, frame)

    def _choose_routes(self) -> None:
        for target in list(self._network.peers):
            epoch = self.reach.invitation(target)
            route = self._routes.get(target)
            if not epoch and route is None:
                continue
            preferred = None if route is None else route.relay
            relay = self.reach.relay_to(target, preferred, self._rng) if epoch else None
            if relay is not None:
                route = self._routes.setdefault(target, _Route())
                self._travel_by(target, route, relay, epoch)
            elif route is not None and route.relay is not None and not (epoch and route.doubted < DEAF_TICKS):
                self._travel_directly(target, route)

    def _travel_by(self, target: NodeId, route: _Route, relay: NodeId, epoch: int) -> None:
        if route.relay is None:
            route.period += 1
            if target not in self._logged:
                self._logged.add(target)
                logger.warning(
                    "%s does not hear this node: frames to it go through %s (logged once)", target, relay
                )
        route.relay, route.epoch, route.doubted = relay, epoch, 0

    def _travel_directly(self, target: NodeId, route: _Route) -> None:
        logger.info("frames to %s go directly again", target)
        route.period += 1
        route.relay = None

    # Sending

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """Send all of one turn's messages to one node, directly or through a relay."""
        route = self._routes.get(node)
        if route is None:
            self._network.send(node, envelopes)
        elif route.relay is None:
            # Each has a tag of its own: a frame has no message twice between the same two processes.
            life, period = self._life, route.period
            tagged = [(one, other, [Period(life, period), *messages]) for one, other, messages in envelopes]
            self._network.send(node, tagged)
        else:
            self._send_by(node, route, route.relay, envelopes)

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """Send to clients, on the connections they last used."""
        self._network.answer(envelopes)

    def _send_by(self, target: NodeId, route: _Route, relay: NodeId, envelopes: Sequence[Envelope]) -> None:
        data = self._codec.encode(envelopes)
        if len(data) > FRAME_MAX:
            halves = split_in_two(envelopes)
            self.counts.dropped += not halves
            for half in halves:
                self._send_by(target, route, relay, half)
            return
        if not self._has_room(relay, len(data)):
            self.counts.dropped += 1
            return
        route.number += 1
        self.counts.sent += 1
        relayed = Relayed(self._me, target, route.epoch, self._life, route.period, route.number, data)
        self._network.send(relay, [(NODE, RELAY, (relayed,))])

    # Receiving

    def receive(
        self, node: NodeId, envelopes: Sequence[Envelope]
    ) -> tuple[NodeId, Sequence[Envelope]] | None:
        """Take a frame of a peer. Return what the node is to handle, and the node that it comes from.

        Raises `PeerViolation` for what no correct node sends.
        """
        self.reach.heard(node)
        if envelopes and envelopes[0][0] == NODE:
            [(_, _, messages), *rest] = envelopes
            if rest or len(messages) != 1:
                raise PeerViolation(f"{node} sent {len(messages)} messages to this node itself at once")
            return self._on_own(node, messages[0])
        known = self._origins.get(node)
        if not (known is not None and known.period) and not _is_tagged(envelopes):
            return node, envelopes
        origin = self._origin(node)
        kept = [kept for envelope in envelopes if (kept := self._untagged(origin, envelope)) is not None]
        return (node, kept) if kept else None

    def _untagged(self, origin: _Origin, envelope: Envelope) -> Envelope | None:
        """Return direct messages of a pair without their period; None if they were overtaken."""
        sender, receiver, messages = envelope
        pair = sender, receiver
        if messages and type(tag := messages[0]) is Period:
            messages = messages[1:]
            if tag.life != origin.life:
                self.counts.overtaken += 1
                return None
            if len(origin.pairs) >= PAIRS_MAX:
                origin.pairs.clear()
            origin.pairs[pair] = tag.period
            origin.period = max(origin.period, tag.period)
        if origin.pairs.get(pair, 0) < origin.period:
            self.counts.overtaken += 1
            return None
        return sender, receiver, messages

    def _on_own(self, node: NodeId, message: Any) -> tuple[NodeId, Sequence[Envelope]] | None:
        """Handle a message between nodes themselves."""
        if isinstance(message, Relayed):
            return self._on_relayed(node, message)
        if not isinstance(message, Reach):
            self.on_own(node, message)
            return None
        if message.own.node != node:
            raise PeerViolation(f"{node} tells what {message.own.node!r:.80} hears as its own")
        origin = self._origin(node)
        if message.own.life in origin.former:
            self.counts.overtaken += 1
            return None
        if message.own.life != origin.life:
            if origin.relayed:
                # The relayed life has learned an epoch that is younger than this connection, and is newer.
                origin.former.append(message.own.life)
                self.counts.overtaken += 1
                return None
            origin.begin(message.own.life, relayed=False)
            origin.epoch = self._draw()
            self.reach.begins_anew(node)
        news = self.reach.learn(node, message)
        if news:
            self._choose_routes()
        if news.to_pass_on:
            self._tell()
        return None

    def _on_relayed(self, node: NodeId, message: Relayed) -> tuple[NodeId, Sequence[Envelope]] | None:
        if message.target != self._me:
            self._forward(node, message)
            return None
        name = message.origin
        if name in (node, self._me) or name not in self._network.peers:
            raise PeerViolation(f"{node} relayed a frame of {name!r:.80}")
        if not self._is_next(name, message):
            self.counts.overtaken += 1
            return None
        try:
            envelopes = self._codec.decode(message.frame)
        except WireError as error:
            raise PeerViolation(f"{node} relayed a frame of {name}: {error}") from None
        for sender, _, _ in envelopes:
            if sender == NODE or not self._may_send(name, sender):
                raise PeerViolation(f"{node} relayed a frame of {name}: {sender} does not live there")
        self.counts.received += 1
        self.reach.relayed_from(name)
        return name, envelopes

    def _is_next(self, name: NodeId, message: Relayed) -> bool:
        """Return whether the frame is above the last one of its origin, and note that it is the last."""
        origin = self._origin(name)
        if message.epoch != origin.epoch or message.life in origin.former:
            return False
        if message.life != origin.life:
            if origin.life and not origin.suspect:
                origin.epoch, origin.suspect = self._draw(), True
                self._tell()
                return False
            origin.begin(message.life, relayed=True)
        origin.suspect = False
        if (message.period, message.number) <= (origin.period, origin.number):
            return False
        origin.period, origin.number = message.period, message.number
        return True

    def _forward(self, node: NodeId, message: Relayed) -> None:
        """Pass a frame on to its target itself, never to another relay."""
        if message.origin != node:
            raise PeerViolation(f"{node} wants a frame of {message.origin!r:.80} relayed")
        target = message.target
        if target not in self._network.peers or not self._has_room(target, len(message.frame)):
            self.counts.dropped += 1
            return
        self.counts.forwarded += 1
        self._network.send(target, [(NODE, RELAY, (message,))])

    def _has_room(self, node: NodeId, size: int) -> bool:
        """Return whether the link to a node has room for a relayed frame."""
        most = SMALL_BACKLOG_MAX if size <= SMALL else BACKLOG_MAX
        return self._network.backlog(node) + size <= most

    # Status

    def status(self) -> dict[str, Any]:
        """Return the relays of this node, for people."""
        counts = self.counts
        return {
            "unheard": self.reach.unheard(),
            "through": {target: route.relay for target, route in self._routes.items() if route.relay},
            "sent": counts.sent,
            "received": counts.received,
            "forwarded": counts.forwarded,
            "dropped": counts.dropped,
            "overtaken": counts.overtaken,
        }


def _is_tagged(envelopes: Sequence[Envelope]) -> bool:
    return bool(envelopes and envelopes[0][2]) and type(envelopes[0][2][0]) is Period


def _reject(node: NodeId, message: Any) -> None:
    raise PeerViolation(f"{node} sent {type(message).__name__} to this node itself")
