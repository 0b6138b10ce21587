"""One node: a replica of any number of groups, on one log, one state and one network.

The node does no I/O of its own: see `ports`. It works in turns. Whatever has come (frames, durable batches,
the time) is handled first; then `turn` drains all replicas together: one batch of records for the log, one
frame for each other node, and what the application has to do. What its own replicas say to each other stays.

The contract of `multicast`, and where it is kept:

- promises leave when their batch, and all before it, are durable: `_waiting`, `durable`;
- nothing of a delivery is durable in the application before its records are in the log: `commit(..., after)`;
- a replica may report what it has executed when the application has made that durable: `committed`.

What messages mean is the `Application`'s business, and so is what clients are told.
"""

from __future__ import annotations

import logging
import operator
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, TypeAlias
from typing import Protocol as Interface

from kvstore.config.addresses import NodeId
from kvstore.node.ports import Application, Clock, Log, Network
from kvstore.node.snapshots import SnapshotReceiver, SnapshotSender, decode_checkpoint, pieces_of
from kvstore.storage.errors import BadSnapshot
from kvstore.wire.frames import Envelope, WireError
from kvstore.wire.messages import SnapshotAck, SnapshotPiece
from multicast.client import MulticastRefused, Reply
from multicast.durable import Record
from multicast.errors import InvalidArgument, InvariantBroken, PeerViolation
from multicast.membership import Membership
from multicast.messages import TO_ANYONE, Deliveries, Delivery, Message, Multicast
from multicast.protocol import Protocol, Ready, Send, Start, Timing
from multicast.topology import Topology
from multicast.types import ClientId, GroupId, Process, ReplicaId, Timestamp

logger = logging.getLogger(__name__)

COMMIT_S: Final = 0.5
"""How often the application's state is committed, if there is anything to commit."""

_OF_SNAPSHOTS: Final = frozenset((SnapshotPiece, SnapshotAck))

TRANSFER_S: Final = 5.0
"""How long a piece of a snapshot may take, before the transfer may begin anew."""


class Observer(Interface):
    """Who watches a node, for checkers."""

    def sent(self, replica: ReplicaId, receivers: Sequence[Process], message: object) -> None:
        """A replica's message leaves it."""

    def delivered(self, replica: ReplicaId, delivery: Delivery) -> None:
        """A replica's application got a message."""

    def installed(self, replica: ReplicaId) -> None:
        """A replica's application was replaced by a snapshot."""

    def learned(self, replica: ReplicaId, membership: Membership) -> None:
        """A replica knows who is in a group."""


class DeliveryObserver(Interface):
    """Who keeps what a node delivers: see `kvstore.node.recorder`."""

    def began(self, group: GroupId, position: Timestamp) -> None:
        """The group's replica has started, with everything up to this position."""

    def delivered(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Its next deliveries."""

    def jumped(self, group: GroupId, position: Timestamp) -> None:
        """It has taken over the state of another, which is at this position."""

    def write(self) -> None:
        """Let go of all that: the state that it led to is about to be committed."""


@dataclass(slots=True)
class Statistics:
    """What a node has done since it started."""

    turns: int = 0
    batches: int = 0
    records: int = 0
    delivered: int = 0
    refused: int = 0
    """Messages that no correct process sends."""
    strays: int = 0
    """Messages for a replica that is not here, or from here to one that is nowhere."""


@dataclass(slots=True)
class _Hosted:
    """A replica of this node, and what is not yet committed of it."""

    replica: Protocol
    applied: bool = False
    """Whether anything was, since the last commit of the state."""
    position: Timestamp = field(default=Timestamp(0))
    replaced: bool = False
    """Whether a snapshot has taken the place of the state that is being committed."""


_Queues: TypeAlias = dict[tuple[Process, Process], list[Any]]
"""Messages, by sender and receiver, in the order in which they were sent."""


def _envelopes(queues: _Queues) -> list[Envelope]:
    return [(sender, receiver, messages) for (sender, receiver), messages in queues.items()]


class Node:
    """All replicas of one process of the operating system."""

    def __init__(
        self,
        me: NodeId,
        topology: Topology,
        replicas: Iterable[ReplicaId],
        protocol: type[Protocol],
        *,
        node_of: Callable[[ReplicaId], NodeId | None],
        place: str = "",
        clock: Clock,
        network: Network,
        log: Log,
        application: Application,
        rng: random.Random,
        timing: Timing,
        wall_s: float | None = None,
        observer: Observer | None = None,
        recorder: DeliveryObserver | None = None,
        on_learned: Callable[[Membership], None] = lambda _: None,
    ) -> None:
        """`replicas` are those of this node's disk. `node_of` says where others are, as far as known; `place`
        is what to tell those who do not know where this node is. With `wall_s`, the time of day is the
        clock's plus that: see `multicast.protocol.Start`.
        """
        self.me = me
        self.topology = topology
        self._protocol = protocol
        self._timing = timing
        self._node_of = node_of
        self._place = place
        self._wall_s = wall_s
        self._clock = clock
        self._network = network
        self._log = log
        self._application = application
        self._application_messages = frozenset(application.messages)
        self._observer = observer
        self._recorder = recorder
        self._on_learned = on_learned
        self.statistics = Statistics()
        self._hosted: dict[ReplicaId, _Hosted] = {}
        self._by_group: dict[GroupId, _Hosted] = {}
        self._waiting: deque[tuple[int, ReplicaId, list[Send]]] = deque()
        """Promises, and the batch that must be durable before they leave."""
        self._records: dict[GroupId, list[Record]] = defaultdict(list)
        """For the log's next batch: it is written when a promise, or a commit of the state, waits for it."""
        self._written = self._durable = 0
        """Numbers of the last batch handed to the log, and of the last durable one."""
        self._links: dict[NodeId, _Queues] = defaultdict(dict)
        """What leaves at the end of the turn, by node."""
        self._answers: _Queues = {}
        """What leaves to clients."""
        self._local: _Queues = {}
        """Between replicas of this node, and from a replica to itself."""
        self._routes: dict[Process, dict[Sequence[Process], list[list[Any]]]] = defaultdict(dict)
        """Into which of these queues a message goes, by sender and receivers: few, for many messages."""
        self._clients: dict[ClientId, NodeId] = {}
        """Clients that live on other nodes, and where they last spoke from."""
        self._strays: list[Message] = []
        """What was sent to replicas of which nobody knows where they are."""
        self._dirty: dict[ReplicaId, None] = {}
        self._committing = False
        self._rng = rng
        self._outgoing: dict[tuple[ReplicaId, ReplicaId], SnapshotSender] = {}
        self._incoming: dict[ReplicaId, SnapshotReceiver] = {}
        self._pieces: list[tuple[ReplicaId, ReplicaId, SnapshotPiece | SnapshotAck]] = []
        """Of snapshots, to be sent with this turn."""
        now = clock.now()
        self._commit_at = now + COMMIT_S
        self.wake_at = now
        """When to call `tick`."""
        self._wakes: dict[ReplicaId, float] = {}
        for replica in replicas:
            self.host(replica)

    def host(self, replica: ReplicaId, evicts: ReplicaId | None = None) -> None:
        """Start a replica from what the disk has of its group: nothing, if it is to become a member.

        It takes the place of the member with its number if that is gone, or if it `evicts` just that one.
        """
        group, now = replica.group, self._clock.now()
        if group in self._by_group:
            raise InvalidArgument(f"node {self.me} has a replica of group {group} already")
        start = Start(
            replica, self.topology, random.Random(self._rng.getrandbits(64)), now, self._timing,
            self._log.load(group), self._application.load(group), self._place, evicts, self._wall_s,
        )  # fmt: skip
        hosted = _Hosted(self._protocol(start), position=start.checkpoint.position)
        self._hosted[replica] = self._by_group[group] = hosted
        self._application.host(hosted.replica)
        if self._recorder is not None:
            self._recorder.began(group, hosted.position)
        self._dirty[replica] = None
        self._wakes[replica] = now

    # What comes in

    def receive(self, envelopes: Iterable[Envelope], node: NodeId | None = None) -> None:
        """Messages from a node or a client. Who sent them has been checked; what they say has not."""
        now = self._clock.now()
        for sender, receiver, messages in envelopes:
            if node is not None and not isinstance(sender, ReplicaId):
                self._clients[sender] = node
            self._take(sender, receiver, messages, now)

    def _take(self, sender: Process, receiver: Process, messages: Sequence[Any], now: float) -> None:
        if receiver in self._application.processes:
            self._tell(receiver, sender, messages)
            return
        hosted = self._hosted.get(receiver) if isinstance(receiver, ReplicaId) else None
        if hosted is None:
            hosted = self._stand_in(receiver, messages)
            if hosted is None:
                self.statistics.strays += 1
                logger.debug("%s is not on node %s: %s asked for it", receiver, self.me, sender)
                return
        self._dirty[hosted.replica.me] = None
        if self._application_messages.isdisjoint(map(type, messages)):
            if len(messages) == 1 and type(messages[0]) in _OF_SNAPSHOTS:
                self._transfer(hosted, sender, messages[0], now)
            else:
                self._handle(hosted.replica, sender, messages, now)
        elif len(messages) == 1:
            self._tell(hosted.replica.me, sender, messages)
        else:
            own = self._application_messages
            for applications, run in groupby(messages, lambda message: type(message) in own):
                if applications:
                    self._tell(hosted.replica.me, sender, list(run))
                else:
                    self._handle(hosted.replica, sender, list(run), now)

    def _tell(self, receiver: Process, sender: Process, messages: Sequence[Any]) -> None:
        try:
            self._application.receive(receiver, sender, messages)
        except (PeerViolation, InvalidArgument) as error:
            self._refuse(sender, str(error))

    def _stand_in(self, receiver: Process, messages: Sequence[Message | Reply]) -> _Hosted | None:
        """Who was here before, on another disk, is gone; but some things are said to whoever is there."""
        if not isinstance(receiver, ReplicaId) or not all(isinstance(m, TO_ANYONE) for m in messages):
            return None
        return self._by_group.get(receiver.group)

    def _handle(
        self, replica: Protocol, sender: Process, messages: Sequence[Message | Reply], now: float
    ) -> None:
        """Everything from one sender. What is refused does not keep the rest from being handled."""
        rest = iter(messages)
        while True:
            try:
                replica.receive(sender, rest, now)  # type: ignore[arg-type]  # a Reply is refused by it
            except PeerViolation as error:
                self._refuse(sender, str(error))
            except InvalidArgument as error:
                self._refuse(sender, str(error))
                if not isinstance(sender, ReplicaId):
                    refused = messages[-1 - operator.length_hint(rest)]
                    self._answer_refused(replica.me, sender, refused, str(error))
            else:
                return

    def _answer_refused(self, me: ReplicaId, client: ClientId, message: object, why: str) -> None:
        """A client must not wait for ever for what nobody does for it."""
        if isinstance(message, Multicast):
            refused = MulticastRefused(message.mid, me.group, why)
            if self._observer is not None:
                self._observer.sent(me, (client,), refused)
            self._answers.setdefault((me, client), []).append(refused)

    def _refuse(self, sender: Process, why: str) -> None:
        self.statistics.refused += 1
        logger.warning("refused what %s sent: %s", sender, why)

    # Snapshots

    def _transfer(
        self, hosted: _Hosted, sender: Process, message: SnapshotPiece | SnapshotAck, now: float
    ) -> None:
        if not isinstance(sender, ReplicaId) or sender.group != hosted.replica.me.group:
            self._refuse(sender, "snapshots are for members of the same group")
        elif isinstance(message, SnapshotAck):
            self._next_piece(hosted.replica.me, sender, message, now)
        else:
            self._take_piece(hosted, sender, message, now)

    def _bring_up(self, hosted: _Hosted, target: ReplicaId, after: Timestamp, now: float) -> None:
        """A replica has missed more than ours retains. The state may have it still; else it gets all.

        So does whoever has nothing yet: of most applications, that is less than all that ever happened.
        """
        me, timing = hosted.replica.me, self._timing
        missed = (
            self._application.deliveries(me.group, after, timing.part_entries, timing.part_bytes)
            if after
            else ()
        )
        if missed and missed[0].previous_ts == after:
            self._route(me, [((target,), Deliveries(tuple(missed), hosted.position))])
        else:
            self._send_snapshot(hosted, target, now)

    def _send_snapshot(self, hosted: _Hosted, target: ReplicaId, now: float) -> None:
        """The replica needs all: begin, unless that is on its way already."""
        me = hosted.replica.me
        known = self._outgoing.get((me, target))
        if known is not None and now < known.deadline:
            return
        transfer = self._rng.getrandbits(62)
        pieces = pieces_of(transfer, hosted.replica.checkpoint(), self._application.snapshot(me.group))
        outgoing = SnapshotSender(transfer, pieces, next(pieces), now + TRANSFER_S)
        self._outgoing[me, target] = outgoing
        self._pieces.append((me, target, outgoing.sent))

    def _next_piece(self, me: ReplicaId, target: ReplicaId, ack: SnapshotAck, now: float) -> None:
        outgoing = self._outgoing.get((me, target))
        if outgoing is None or (ack.transfer, ack.index) != (outgoing.transfer, outgoing.sent.index):
            return
        if outgoing.sent.last:
            del self._outgoing[me, target]
            return
        outgoing.sent, outgoing.deadline = next(outgoing.pieces), now + TRANSFER_S
        self._pieces.append((me, target, outgoing.sent))

    def _take_piece(self, hosted: _Hosted, source: ReplicaId, piece: SnapshotPiece, now: float) -> None:
        me = hosted.replica.me
        incoming = self._incoming.get(me)
        if piece.index == 0:
            incoming = self._incoming[me] = SnapshotReceiver(source, piece.transfer)
        if incoming is None or incoming.transfer != piece.transfer or not incoming.add(piece):
            return
        self._pieces.append((me, source, SnapshotAck(piece.transfer, piece.index)))
        if piece.last:
            del self._incoming[me]
            self._drain(now)
            try:
                self._install(hosted, incoming, now)
            except (WireError, BadSnapshot) as error:
                self._refuse(source, str(error))

    def _install(self, hosted: _Hosted, incoming: SnapshotReceiver, now: float) -> None:
        """Take the snapshot's place, if it is ahead of ours. A bad one changes nothing."""
        replica = hosted.replica
        checkpoint = decode_checkpoint(b"".join(incoming.ordering))
        if not replica.takes(checkpoint):
            return
        self._application.install(replica.me.group, incoming.state, checkpoint)
        if not replica.install(checkpoint, now):
            raise InvariantBroken(f"{replica.me} did not take the snapshot that its state has taken")
        logger.info("%s took a snapshot of %s, at %d", replica.me, incoming.source, checkpoint.position)
        hosted.applied = True
        hosted.position = checkpoint.position
        hosted.replaced = self._committing
        if self._recorder is not None:
            self._recorder.jumped(replica.me.group, checkpoint.position)
        if self._observer is not None:
            self._observer.installed(replica.me)

    def durable(self, number: int) -> None:
        """The log's batches up to this one are durable: their promises leave with the next turn."""
        self._durable = max(self._durable, number)

    def committed(self, executed: Mapping[GroupId, Timestamp]) -> None:
        """The application is durable; of these groups, everything up to here is executed.

        Not of one whose state was replaced meanwhile: the snapshot may have executed less, and what is
        reported is never taken back.
        """
        self._committing = False
        for hosted in self._hosted.values():
            watermark = executed.get(hosted.replica.me.group)
            if watermark is not None and not hosted.replaced:
                hosted.replica.executed(watermark)
            hosted.replaced = False

    def tick(self) -> None:
        """Time has passed."""
        now = self._clock.now()
        for replica, hosted in self._hosted.items():
            if self._wakes[replica] <= now:
                hosted.replica.tick(now)
                self._dirty[replica] = None

    def nominate(self, replica: ReplicaId) -> None:
        """Leader selection, or an operator, wants this replica to lead."""
        self._hosted[replica].replica.nominate(self._clock.now())
        self._dirty[replica] = None

    # A turn

    def turn(self) -> None:
        """Do all that the replicas want done."""
        self.statistics.turns += 1
        now = self._clock.now()
        self._release()
        while self._dirty or self._local or self._speak(now):
            self._drain(now)
            self._release()
        self._commit(now)
        self._flush()
        self.wake_at = min([self._commit_at, self._application.wake_at, *self._wakes.values()])

    def _drain(self, now: float) -> None:
        """Until no replica of this node has anything for another: then one batch for the log, if need be.

        Nobody waits for the records of mere deliveries, so they go with the next that somebody waits for:
        that halves the commits of a busy node, and what it promises never queues behind what it does not.
        """
        promises: list[tuple[ReplicaId, list[Send]]] = []
        while self._dirty or self._local:
            self._handle_local(now)
            if not self._dirty:
                continue
            me, _ = self._dirty.popitem()
            hosted = self._hosted[me]
            ready = hosted.replica.ready()
            self._wakes[me] = ready.wake_at
            for membership in ready.learned:
                self._on_learned(membership)
                self._routes.clear()
                if self._observer is not None:
                    self._observer.learned(me, membership)
            self._route(me, ready.send)
            self._apply(hosted, ready, now)
            if ready.persist:
                self._records[me.group] += ready.persist
            if ready.promise:
                promises.append((me, ready.promise))
        if promises:
            self._write()
        for me, sends in promises:
            self._waiting.append((self._written, me, sends))

    def _write(self) -> None:
        """Hand all records to the log, as one batch."""
        if self._records:
            records, self._records = self._records, defaultdict(list)
            self._written = self._log.write(records)
            self.statistics.batches += 1
            self.statistics.records += sum(map(len, records.values()))

    def _handle_local(self, now: float) -> None:
        """What replicas of this node have for each other."""
        local, self._local = self._local, {}
        self._routes.clear()
        for (sender, receiver), messages in local.items():
            self._take(sender, receiver, messages, now)

    def _speak(self, now: float) -> bool:
        """Send what the application says. Whether a process of this node has to hear it."""
        for me, receivers, message in self._application.turn(now):
            self._route(me, [(receivers, message)])
        return bool(self._local)

    def _route(self, me: Process, sends: Iterable[tuple[Sequence[Process], Any]]) -> None:
        """Put messages where they leave from."""
        routes = self._routes[me]
        for receivers, message in sends:
            if self._observer is not None and isinstance(me, ReplicaId):
                self._observer.sent(me, receivers, message)
            route = routes.get(receivers)
            if route is None:
                route = routes[receivers] = [self._queue(me, receiver) for receiver in receivers]
            for queue in route:
                queue.append(message)

    def _queue(self, me: Process, receiver: Process) -> list[Any]:
        if receiver in self._hosted or receiver in self._application.processes:
            queues = self._local
        elif not isinstance(receiver, ReplicaId):
            home = self._clients.get(receiver)
            queues = self._answers if home is None else self._links[home]
        elif (node := self._node_of(receiver)) is None or node == self.me:
            return self._strays
        else:
            queues = self._links[node]
        return queues.setdefault((me, receiver), [])

    def _apply(self, hosted: _Hosted, ready: Ready, now: float) -> None:
        me = hosted.replica.me
        group = me.group
        if ready.deliver:
            self._application.deliver(group, ready.deliver)
            if self._recorder is not None:
                self._recorder.delivered(group, ready.deliver)
            if self._observer is not None:
                for delivery in ready.deliver:
                    self._observer.delivered(me, delivery)
            hosted.applied = True
            hosted.position = ready.deliver[-1].global_ts
            self.statistics.delivered += len(ready.deliver)
        for target, after in ready.transfers:
            self._bring_up(hosted, target, after, now)
        asked = [(asker, message) for asker, message in ready.duplicates if not isinstance(asker, ReplicaId)]
        if asked:
            self._application.repeat(group, asked)

    def _release(self) -> None:
        """Promises leave whose records, and all before them, are durable."""
        while self._waiting and self._waiting[0][0] <= self._durable:
            _, me, sends = self._waiting.popleft()
            self._route(me, sends)

    def _commit(self, now: float) -> None:
        """Commit the state now and then, behind the log."""
        if now < self._commit_at:
            return
        self._commit_at = now + COMMIT_S
        if not self._committing:
            self.commit()
        elif self._recorder is not None:
            self._recorder.write()

    def commit(self) -> None:
        """Commit what was applied since the last time: now and then, and before the node stops."""
        self._write()
        if self._recorder is not None:
            self._recorder.write()
        positions = {}
        for me, hosted in self._hosted.items():
            if hosted.applied or self._application.unsaved(me.group):
                positions[me.group] = hosted.position
                hosted.applied = False
        if positions:
            self._committing = True
            self._application.commit(positions, self._written)

    def _flush(self) -> None:
        links, self._links = self._links, defaultdict(dict)
        answers, self._answers = self._answers, {}
        self._routes.clear()
        pieces, self._pieces = self._pieces, []
        frames = {node: _envelopes(queues) for node, queues in links.items()}
        for me, target, piece in pieces:
            node = self._node_of(target)
            if node is not None and node != self.me:
                frames.setdefault(node, []).append((me, target, [piece]))
        for node, frame in frames.items():
            self._network.send(node, frame)
        if answers:
            self._network.answer(_envelopes(answers))
        self.statistics.strays += len(self._strays)
        self._strays.clear()

    # Stopping, and looking

    def hand_over(self, replicas: Iterable[ReplicaId]) -> set[ReplicaId]:
        """Ask others to lead the groups that these lead. Those for which there is somebody to ask."""
        asked = set()
        for me in replicas:
            if self._hosted[me].replica.hand_over(self._clock.now()):
                self._dirty[me] = None
                asked.add(me)
        return asked

    def leading(self) -> set[ReplicaId]:
        """The replicas of this node that lead their groups."""
        return {me for me, hosted in self._hosted.items() if hosted.replica.is_leader}

    def status(self) -> dict[ReplicaId, dict[str, Any]]:
        """Each replica, for people."""
        return {
            me: {
                **hosted.replica.status_of(),
                "delivered": hosted.position,
                **self._application.status(me.group),
            }
            for me, hosted in self._hosted.items()
        }

    @property
    def replicas(self) -> Mapping[ReplicaId, Protocol]:
        """The replicas of this node."""
        return {me: hosted.replica for me, hosted in self._hosted.items()}
