"""Staging: a large payload is spread before its message is ordered.

Between its proposal and its commit a message holds back every later message of its groups (the convoy), and
its ACCEPT holds back what follows it on its links and in the log. So a large message must cost there what a
small one costs. A gateway therefore stages a large payload first:

- The *source*, the gateway's node, sends the payload in pieces to every node that has a replica of a
  destination, its own included. A piece is acknowledged when it is durable in the log of its receiver, and
  few are under way at a time. Pieces take turns with small frames on the link, and with small batches in the
  log.
- The *name* of a payload is the SHA-256 of its destinations and its bytes. Each receiver computes it from
  what it got: equal names are equal payloads, whatever a peer says.
- When every receiver has the whole payload, or was given up, the source tells the *holders* of each other,
  and the gateway multicasts.

From then on a node that sends a message with this payload to a holder sends the name instead (`ByName`). The
protocol does not know of that: a message has its payload whole when a replica sees it, and the same bytes
object for all groups. The log knows payloads by these objects, and refers to the staged rows.

A holder may have forgotten a payload: it has restarted, or a replica is late. Then it drops the message, as
if the link had lost it, and tells the sender, which sends the payload itself from then on. So staging never
decides anything: without it, everything is as with any other message, only slower for its neighbours.

Memory is bounded before it is used: `StagingLimits.held`. What is staged and not delivered is never dropped
for something new; a payload that is not delivered for `expire_s` is.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvstore.config.addresses import NodeId
from kvstore.node.ports import Log, Network
from kvstore.wire.frames import Envelope, FrameCodec, WireError
from kvstore.wire.messages import NODE, STAGE, ByName, Holders, StageAck, StagePiece, Unstaged
from kvstore.wire.payloads import payloads_of, with_payloads
from multicast.errors import PeerViolation
from multicast.messages import Delivery, Multicast
from multicast.types import Destinations, GroupId, Process, ReplicaId, begin_digest, digest_in

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """Sizes in bytes, and times."""

    piece: int = 256 << 10
    """With its header a piece exceeds what a link sends in one frame, so that it is sent in slices."""
    window: int = 4
    """Pieces under way to one node."""
    payload: int = 32 << 20
    held: int = 128 << 20
    """What is staged here, or on its way here, and not delivered. Each payload counts as a quarter of a piece
    at least."""
    patience_s: float = 0.5
    """How long a node may make no progress before it is given up."""
    silent_s: float = 5.0
    """How long nothing is staged at a node that was given up."""
    expire_s: float = 20.0
    """How long a payload is kept that no message delivers."""


LIMITS: Final = StagingLimits()

OnStaged = Callable[[int], None]
"""Gets the digest of the payload, for the message's id."""


@dataclass(slots=True, eq=False)
class Staged:
    """A whole payload on this node, durable in its log."""

    name: bytes
    payload: bytes
    dest: Destinations
    stage: int
    """Its number in the log."""
    waiting: set[GroupId]
    """Destinations on this node that have not delivered it."""
    expires_at: float
    holders: set[NodeId] = field(default_factory=set)
    """Other nodes that have it."""


@dataclass(slots=True, eq=False)
class _Incoming:
    """A payload on its way to this node."""

    source: NodeId
    transfer: int
    size: int
    dest: Destinations
    stage: int
    digest: hashlib._Hash
    expires_at: float
    pieces: list[bytes] = field(default_factory=list)
    """What has arrived, unless the payload is this node's own."""
    count: int = 0
    """The number of pieces that have arrived."""
    arrived: int = 0
    """Their bytes."""
    durable: int = 0
    """The number of pieces that are durable."""
    payload: bytes = b""
    """The whole payload, once it is."""


@dataclass(slots=True, eq=False)
class _Target:
    """A node that a payload is sent to."""

    patient_until: float
    sent: int = 0
    acknowledged: int = 0


@dataclass(slots=True, eq=False)
class _Outgoing:
    """A payload that this node spreads."""

    number: int
    payload: bytes
    dest: Destinations
    on_staged: OnStaged
    targets: dict[NodeId, _Target]
    digest: hashlib._Hash
    hashed: int = 0
    """Pieces that are part of the digest."""
    holders: list[NodeId] = field(default_factory=list)


class Staging:
    """The staged payloads of one node: see the module."""

    def __init__(
        self,
        me: NodeId,
        network: Network,
        codec: FrameCodec,
        log: Log,
        node_of: Callable[[ReplicaId], NodeId | None],
        hosts: Callable[[GroupId], bool],
        first: int,
        limits: StagingLimits = LIMITS,
    ) -> None:
        """`hosts` tells whether this node has a replica of a group. `first` is the number of the first
        transfer, which differs in each life of the node.
        """
        self._me = me
        self._network = network
        self._codec = codec
        self._log = log
        self._node_of = node_of
        self._hosts = hosts
        self.limits = limits
        self.refuses = False
        """Whether nothing more is staged here: the disk has no space."""
        self.wake_at = float("inf")
        self.held = 0
        """Bytes that are reserved for payloads."""
        self._numbers = first
        self._outgoing: dict[int, _Outgoing] = {}
        self._incoming: dict[tuple[NodeId, int], _Incoming] = {}
        self._writing: deque[tuple[int, _Incoming]] = deque()
        """Pieces that are not durable yet, in the order of their numbers in the log."""
        self._staged: dict[bytes, Staged] = {}
        self._by_id: dict[int, Staged] = {}
        """By the identity of the payload's bytes object, which is kept as long."""
        self._silent: dict[NodeId, float] = {}
        """Nodes that were given up, and until when nothing is staged there."""

    @property
    def active(self) -> bool:
        """Whether any payload is staged here."""
        return bool(self._staged)

    # The source

    def stage(
        self, payload: bytes, dest: Destinations, members: Iterable[ReplicaId], done: OnStaged, now: float
    ) -> None:
        """Spread a payload to the nodes of these replicas. Call `done` when that has ended, now or later."""
        self._numbers += 1
        nodes = {self._node_of(member) for member in members}
        self._silent = {node: until for node, until in self._silent.items() if until > now}
        known = [node for node in sorted(filter(None, nodes)) if node not in self._silent]
        reachable = [node for node in known if node == self._me or node in self._network.peers]
        targets = {node: _Target(now + self.limits.patience_s) for node in reachable}
        out = _Outgoing(self._numbers, payload, dest, done, targets, begin_digest(dest))
        self._outgoing[out.number] = out
        if len(payload) > self.limits.payload:
            targets.clear()
        for node in list(targets):
            self._send_pieces(out, node, now)
        self._look_whether_done(out, now)
        self._wake(now)

    def _room(self, size: int) -> int:
        """Return what a payload counts for: one of few bytes costs more than these."""
        return max(size, self.limits.piece // 4)

    def _count(self, size: int) -> int:
        return -(-size // self.limits.piece)

    def _send_pieces(self, out: _Outgoing, node: NodeId, now: float) -> None:
        target, count = out.targets[node], self._count(len(out.payload))
        most = min(count, target.acknowledged + self.limits.window)
        while target.sent < most:
            data = self._piece_of(out, target.sent)
            piece = StagePiece(out.number, target.sent, len(out.payload), out.dest, data)
            target.sent += 1
            if node != self._me:
                self._network.send(node, [(NODE, STAGE, (piece,))])
            elif not self._take_piece(node, piece, now, out.payload):
                self._give_up(out, node)
                return

    def _piece_of(self, out: _Outgoing, index: int) -> bytes:
        start = index * self.limits.piece
        data = out.payload[start : start + self.limits.piece]
        if index == out.hashed:
            out.digest.update(data)
            out.hashed += 1
        return data

    def _give_up(self, out: _Outgoing, node: NodeId) -> None:
        out.targets.pop(node, None)

    def _acknowledged(self, node: NodeId, ack: StageAck, now: float) -> None:
        out = self._outgoing.get(ack.transfer)
        target = None if out is None else out.targets.get(node)
        if out is None or target is None:
            return
        if not target.acknowledged <= ack.pieces <= target.sent:
            raise PeerViolation(f"{node} acknowledges {ack.pieces} of {target.sent} pieces")
        self._silent.pop(node, None)
        if ack.pieces > target.acknowledged:
            target.acknowledged = ack.pieces
            target.patient_until = now + self.limits.patience_s
        if ack.refused:
            self._give_up(out, node)
        elif ack.name:
            self._has_all(out, node, ack.name)
        else:
            self._send_pieces(out, node, now)
        self._look_whether_done(out, now)

    def _has_all(self, out: _Outgoing, node: NodeId, name: bytes) -> None:
        """Note that a node has the payload, under the right name."""
        if out.hashed == self._count(len(out.payload)) and name == out.digest.digest():
            out.holders.append(node)
        else:
            logger.warning("%s has staged another payload than it was sent", node)
        del out.targets[node]

    def _look_whether_done(self, out: _Outgoing, now: float) -> None:
        if out.targets or out.number not in self._outgoing:
            return
        del self._outgoing[out.number]
        while out.hashed < self._count(len(out.payload)):
            self._piece_of(out, out.hashed)
        holders = Holders(out.digest.digest(), tuple(out.holders))
        for node in out.holders:
            if node == self._me:
                self._note_holders(holders)
            else:
                self._network.send(node, [(NODE, STAGE, (holders,))])
        out.on_staged(digest_in(out.digest))

    # Receivers

    def receive(self, node: NodeId, message: Any, now: float) -> None:
        """Handle a message of a node. Raises `PeerViolation` for one that no correct node sends."""
        if isinstance(message, StagePiece):
            self._take_piece(node, message, now)
        elif isinstance(message, StageAck):
            self._acknowledged(node, message, now)
        elif isinstance(message, Holders):
            self._note_holders(message)
        elif isinstance(message, Unstaged):
            found = self._staged.get(message.name)
            if found is not None:
                found.holders.discard(node)
        else:
            raise PeerViolation(f"{node} sent {type(message).__name__} to this node itself")
        self._wake(now)

    def _take_piece(self, node: NodeId, piece: StagePiece, now: float, whole: bytes | None = None) -> bool:
        """Write a piece to the log. `whole` is the payload, if it is this node's own. Return whether it was
        taken.
        """
        key = node, piece.transfer
        if piece.index == 0 and not self._begin(key, piece, now):
            return False
        coming = self._incoming.get(key)
        if coming is None:
            return False  # it was refused, or has expired
        if piece.index != coming.count or (piece.size, piece.dest) != (coming.size, coming.dest):
            self._drop(key)  # the link has lost a piece; the source gives up
            return False
        if not 0 < len(piece.data) <= coming.size - coming.arrived:
            self._drop(key)
            raise PeerViolation(f"{node} sent a piece of {len(piece.data)} bytes, beyond {coming.size}")
        coming.count += 1
        coming.arrived += len(piece.data)
        coming.expires_at = now + self.limits.expire_s
        coming.digest.update(piece.data)
        if whole is None:
            coming.pieces.append(piece.data)
        if coming.arrived == coming.size:
            coming.payload = b"".join(coming.pieces) if whole is None else whole
            coming.pieces.clear()
        self._writing.append((self._log.stage_piece(coming.stage, piece.data), coming))
        return True

    def _begin(self, key: tuple[NodeId, int], piece: StagePiece, now: float) -> bool:
        """Reserve room for a payload. Return whether there is."""
        node, transfer = key
        if key in self._incoming:
            self._drop(key)
        if not 1 < piece.size <= self.limits.payload:  # payloads of one byte are not objects of their own
            raise PeerViolation(f"{node} stages {piece.size} bytes, not 2 to {self.limits.payload}")
        room = self._room(piece.size)
        if self.refuses or self.held + room > self.limits.held:
            self._answer(node, StageAck(transfer, 0, b"", refused=True), now)
            return False
        self.held += room
        digest, stage = begin_digest(piece.dest), self._log.stage()
        self._incoming[key] = _Incoming(node, transfer, piece.size, piece.dest, stage, digest, 0.0)
        return True

    def _drop(self, key: tuple[NodeId, int]) -> None:
        """Forget a payload that is not here entirely."""
        coming = self._incoming.pop(key)
        self.held -= self._room(coming.size)
        self._log.unstage(coming.stage)

    def durable(self, now: float) -> None:
        """Acknowledge what the log has made durable since."""
        if not self._writing:
            return
        written: dict[_Incoming, None] = {}
        while self._writing and self._writing[0][0] <= self._log.staged:
            _, coming = self._writing.popleft()
            coming.durable += 1
            written[coming] = None
        for coming in written:
            key = coming.source, coming.transfer
            if self._incoming.get(key) is not coming:
                continue  # it has expired
            name = b""
            if coming.arrived == coming.size and coming.durable == coming.count:
                del self._incoming[key]
                name = self._complete(coming, now)
            self._answer(coming.source, StageAck(coming.transfer, coming.durable, name, refused=False), now)

    def _complete(self, coming: _Incoming, now: float) -> bytes:
        name = coming.digest.digest()
        if name in self._staged:  # of another source, or attempt
            self.held -= self._room(coming.size)
            self._log.unstage(coming.stage)
            self._staged[name].expires_at = now + self.limits.expire_s
            return name
        groups = {group for group in coming.dest if self._hosts(group)}
        found = Staged(name, coming.payload, coming.dest, coming.stage, groups, now + self.limits.expire_s)
        self._staged[name] = self._by_id[id(found.payload)] = found
        self._log.refer(coming.stage, found.payload)
        return name

    def _answer(self, node: NodeId, ack: StageAck, now: float) -> None:
        if node != self._me:
            self._network.send(node, [(NODE, STAGE, (ack,))])
        elif not ack.refused:
            self._acknowledged(node, ack, now)

    def _note_holders(self, message: Holders) -> None:
        found = self._staged.get(message.name)
        if found is not None:
            found.holders.update(node for node in message.nodes if node != self._me)

    # Messages

    def knows(self, message: Multicast) -> bool:
        """Return whether the digest in the message's id is that of its payload: it was computed here."""
        found = self._by_id.get(id(message.payload))
        return found is not None and found.dest == message.dest and _number(found.name) == message.mid.digest

    def by_name(self, node: NodeId, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Return messages to a node with the names of payloads that it has, in place of these."""
        return [
            (sender, receiver, [self._named(node, sender, receiver, message) for message in messages])
            for sender, receiver, messages in envelopes
        ]

    def _named(self, node: NodeId, sender: Process, receiver: Process, message: Any) -> Any:
        payloads = payloads_of(message)
        names: dict[int, bytes] = {}
        for column, payload in enumerate(payloads):
            found = self._by_id.get(id(payload))
            if found is not None and node in found.holders:
                names[column] = found.name
        if not names:
            return message
        slim = with_payloads(message, payloads, dict.fromkeys(names, b""))
        return ByName(tuple(names.items()), self._codec.encode([(sender, receiver, (slim,))]))

    def resolve(self, node: NodeId | None, message: ByName) -> Any | None:
        """Return the message with its payloads; None if some are not here, and the sender is told which."""
        try:
            [(_, _, [slim])] = self._codec.decode(message.frame)
        except (WireError, ValueError) as error:
            raise PeerViolation(f"not a message with names of payloads: {error}") from None
        payloads = payloads_of(slim)
        if not message.names:
            raise PeerViolation(f"{type(slim).__name__} came without names of payloads")
        found: dict[int, bytes] = {}
        missing: dict[bytes, None] = {}
        for column, name in message.names:
            if not column < len(payloads):
                raise PeerViolation(f"a name of a payload that {type(slim).__name__} does not have")
            staged = self._staged.get(name)
            if staged is None:
                missing[name] = None
            else:
                found[column] = staged.payload
        if not missing:
            return with_payloads(slim, payloads, found)
        if node is not None:  # of all at once, or a state would be lost as often as it has payloads
            for name in missing:
                self._network.send(node, [(NODE, STAGE, (Unstaged(name),))])
        return None

    def delivered(self, group: GroupId, deliveries: Iterable[Delivery]) -> None:
        """Forget payloads that all groups of this node have delivered."""
        for delivery in deliveries:
            found = self._by_id.get(id(delivery.payload))
            if found is not None:
                found.waiting.discard(group)
                if not found.waiting:
                    self._forget(found)

    def _forget(self, found: Staged) -> None:
        del self._staged[found.name], self._by_id[id(found.payload)]
        self.held -= self._room(len(found.payload))
        self._log.unstage(found.stage)

    # Time

    def tick(self, now: float) -> None:
        """Give up nodes that make no progress, and payloads that nothing delivers."""
        for out in list(self._outgoing.values()):
            for node, target in list(out.targets.items()):
                if target.patient_until <= now:
                    self._give_up(out, node)
                    if node != self._me:
                        self._silent[node] = now + self.limits.silent_s
            self._look_whether_done(out, now)
        for key, coming in list(self._incoming.items()):
            if coming.expires_at <= now:
                self._drop(key)
        for found in list(self._staged.values()):
            if found.expires_at <= now:
                self._forget(found)
        self.wake_at = float("inf")
        self._wake(now)

    def _wake(self, now: float) -> None:
        """Set when to look next. What happens meanwhile does not put that off."""
        if self._outgoing:
            due = now + self.limits.patience_s / 2
        elif self._incoming or self._staged:
            due = now + self.limits.expire_s / 4
        else:
            self.wake_at = float("inf")
            return
        self.wake_at = min(self.wake_at, due)


def _number(name: bytes) -> int:
    return int.from_bytes(name[:8], "big")
