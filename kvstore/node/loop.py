"""One node: a replica of any number of groups, on one log, one state and one network.

The node does no I/O of its own: see `ports`. It works in turns. It first handles what has arrived (frames,
durable batches, timers); then `turn` drains all replicas together: one batch of records for the log, one
frame for each other node, and the application's work. Messages between its own replicas never leave it.

The contract of `multicast`, and where it is kept:

- promises leave when their batch, and all before it, are durable: `_waiting`, `durable`;
- no effect of a delivery is durable before its records are in the log: `commit(..., after)`;
- a replica may report what it has executed when the application has made that durable: `committed`.

The `Application` decides what messages mean, and what clients get as answers.
"""

from __future__ import annotations

import logging
import operator
import random
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Final

from kvstore.config.addresses import NodeId
from kvstore.node.clock_watch import ClockWatch
from kvstore.node.handover import HandOvers
from kvstore.node.outbox import Outbox
from kvstore.node.pace import MOVING_S
from kvstore.node.ports import Application, Clock, DeliveryObserver, Log, Network, Observer
from kvstore.node.relay import Relays
from kvstore.node.snapshots import SnapshotReceiver, SnapshotTransfers, decode_checkpoint
from kvstore.node.staging import Staging
from kvstore.storage.errors import BadSnapshot, DamagedLog, DamagedRow
from kvstore.storage.records import payload_bytes
from kvstore.wire.frames import Envelope, FrameCodec, WireError
from kvstore.wire.messages import ByName, SnapshotAck, SnapshotPiece
from multicast.client import MulticastRefused, Reply
from multicast.durable import Record
from multicast.errors import InvalidArgument, InvariantBroken, PeerViolation
from multicast.membership import Membership
from multicast.messages import TO_ANYONE, Deliveries, Heartbeat, Message, Multicast, Recall, Recalled
from multicast.protocol import Protocol, Ready, Send, Start, Timing
from multicast.quorum_time import WallClock
from multicast.topology import Topology
from multicast.types import GroupId, Process, ReplicaId, Timestamp

logger = logging.getLogger(__name__)

COMMIT_S: Final = 0.5
"""Interval between commits of the application's state, if there is anything to commit."""

WARNED_MAX: Final = 1024
"""Senders of which a rejected message is logged."""

LARGE_BATCH_BYTES: Final = 1 << 20
"""Payloads of one group's records that make them a batch of their own, for which no other group waits."""

WAITING_MAX: Final = 1 << 16
"""Promises that wait for a log without space. More are dropped, as if they had been lost."""

BEGUN_ANEW: Final = "the log was damaged and is set aside: the replica begins anew when its group admits it"

_UNWRITTEN: Final = frozenset((Heartbeat, Recall, Recalled))
"""Messages that a node without space handles: they need no disk."""

_SNAPSHOT_MESSAGES: Final = frozenset((SnapshotPiece, SnapshotAck))


@dataclass(slots=True)
class Statistics:
    """Counters of a node since it started."""

    turns: int = 0
    batches: int = 0
    records: int = 0
    delivered: int = 0
    refused: int = 0
    """Messages that no correct process sends."""
    strays: int = 0
    """Messages to a replica that is not on this node, or from here to one whose node is unknown."""


@dataclass(slots=True)
class _Hosted:
    """A replica of this node, and the uncommitted part of its state."""

    replica: Protocol
    applied: bool = False
    """Whether anything was applied since the last commit of the state."""
    position: Timestamp = field(default=Timestamp(0))
    delivered_at: float = float("-inf")
    replaced: bool = False
    """Whether a snapshot has replaced the state that is being committed."""


class Node:
    """All replicas of one operating-system process."""

    _begun: Collection[GroupId] = frozenset()
    """Groups whose replicas have begun anew on this disk."""

    def __init__(
        self,
        me: NodeId,
        topology: Topology,
        replicas: Iterable[ReplicaId],
        protocol: type[Protocol],
        *,
        node_of: Callable[[ReplicaId], NodeId | None],
        may_send: Callable[[NodeId, Process], bool] | None = None,
        address: str = "",
        clock: Clock,
        network: Network,
        codec: FrameCodec,
        log: Log,
        application: Application,
        rng: random.Random,
        timing: Timing,
        wall: WallClock | None = None,
        observer: Observer | None = None,
        recorder: DeliveryObserver | None = None,
        on_learned: Callable[[Membership], None] = lambda _: None,
        begun: Collection[GroupId] = (),
    ) -> None:
        """Start the replicas of this node's disk. `node_of` returns the node of another replica, if known;
        `address` is announced to processes that do not know this node. With `wall`, which returns the
        time of day, clocks are hybrid: see `multicast.protocol.Start`. `begun` are groups whose replicas
        have begun anew, since their logs were damaged: the disk may still have the states of former ones.
        """
        self.me = me
        self.topology = topology
        self._protocol = protocol
        self._timing = timing
        self._address = address
        self._wall = wall
        self._clock = clock
        self._log = log
        self._application = application
        self._application_messages = frozenset(application.messages)
        self._special = self._application_messages | {ByName}
        """Classes of messages that are not passed to replicas as they are."""
        self._observer = observer
        self._recorder = recorder
        self._on_learned = on_learned
        self.statistics = Statistics()
        self.damaged: dict[GroupId, str] = {}
        """What was wrong with the states of replicas that are not yet restored."""
        self._begun = frozenset(begun)
        self._aside: dict[ReplicaId, int] = {}
        """Replicas that were stopped, and the batch that must be durable before they start again."""
        self._hosted: dict[ReplicaId, _Hosted] = {}
        self._by_group: dict[GroupId, _Hosted] = {}
        self._waiting: deque[tuple[int, ReplicaId, list[Send]]] = deque()
        """Promises, and the batch that must be durable before they leave."""
        self._records: dict[GroupId, list[Record]] = defaultdict(list)
        """The log's next batch: written when a promise, or a commit of the state, waits for it."""
        self._written = self._durable = 0
        """Numbers of the last batch handed to the log, and of the last durable one."""
        self._violation: str | None = None
        """What was wrong with the first message of a frame that no correct process sends."""
        self._warned: set[Process] = set()
        self._written_of: dict[GroupId, int] = {}
        """The number of the last batch with records of a group."""
        self._split_upto = 0
        """The number of the last batch that has only one group's records since they are large."""
        self._dirty: dict[ReplicaId, None] = {}
        self._committing = False
        self.muted = False
        """Whether the disk has no space: then nothing is accepted, and leaders hand over. Reads go on."""
        self._rng = rng
        self._outbox = Outbox(me, self._hosted, application, node_of, observer)
        self._transfers = SnapshotTransfers()
        now = clock.now()
        if may_send is None:
            may_send = partial(_lives_on, node_of)
        self.relays = Relays(
            me, network, codec, may_send, _fork(rng, now), timing.heartbeat_s, now, topology.groups,
            lambda: [hosted.replica.me.group for hosted in self._hosted.values() if hosted.replica.is_leader],
        )  # fmt: skip
        self.hand_overs = HandOvers(self.relays.reach, node_of, network.behind, _fork(rng, now))
        first = _fork(rng, now).getrandbits(48)
        self.staging = Staging(me, network, codec, log, node_of, self._by_group.__contains__, first)
        self.relays.on_own = self._receive_own
        self._commit_at = now + COMMIT_S
        self.wake_at = now
        """When to call `tick`."""
        self._clock_watch = ClockWatch()
        self._wakes: dict[ReplicaId, float] = {}
        self._first_wake: float | None = None
        """The earliest of them; None if one has changed."""
        for replica in replicas:
            self.host(replica)

    def host(self, replica: ReplicaId, evicts: ReplicaId | None = None) -> None:
        """Start a replica from the disk's state of its group, which is empty if it is to become a member.

        It replaces the member with its number if that member is gone, or if it `evicts` that very member.
        """
        group = replica.group
        if group in self._by_group:
            raise InvalidArgument(f"node {self.me} already has a replica of group {group}")
        try:
            self._start(replica, evicts)
        except DamagedRow as error:
            self._note_damage(replica, error)
            self._application.drop(group, str(error))
            self._start(replica, evicts)

    def _start(self, replica: ReplicaId, evicts: ReplicaId | None) -> None:
        group, now = replica.group, self._clock.now()
        durable = self._log.load(group)
        if group in self._begun and not durable.executed:
            # What the disk has is the state of a former replica, whose log has what belongs to it.
            self.damaged.setdefault(group, BEGUN_ANEW)
            self._application.drop(group, BEGUN_ANEW)
        start = Start(
            replica, self.topology, random.Random(self._rng.getrandbits(64)), now, self._timing,
            durable, self._application.load(group), self._address, evicts, self._wall, trusts_log=False,
        )  # fmt: skip
        hosted = _Hosted(self._protocol(start), position=start.checkpoint.position)
        hosted.replica.knows_digest = self.staging.knows
        self._application.host(hosted.replica)
        self._hosted[replica] = self._by_group[group] = hosted
        hosted.replaced = self._committing
        if self._recorder is not None:
            self._recorder.began(group, hosted.position)
        self._dirty[replica] = None
        self._wakes[replica] = now
        self._first_wake = None
        self._outbox.forget_routes()

    # Damage

    def _note_damage(self, replica: ReplicaId, error: DamagedRow) -> None:
        self.damaged[replica.group] = str(error)
        logger.critical("%s has a damaged state, and steps aside until it is restored: %s", replica, error)

    def set_aside(self, group: GroupId, error: DamagedRow) -> None:
        """Stop the group's replica, whose state is damaged.

        It starts again from its log, without a state, when all that it has written is durable: as after a
        crash.
        """
        hosted = self._by_group.pop(group, None)
        if hosted is None:
            return
        me = hosted.replica.me
        self._note_damage(me, error)
        del self._hosted[me], self._wakes[me]
        self._first_wake = None
        self._dirty.pop(me, None)
        self._waiting = deque(row for row in self._waiting if row[1] != me)
        self._application.drop(group, str(error))
        self._outbox.forget_routes()
        self._write()
        self._aside[me] = self._written
        if self._observer is not None:
            self._observer.set_aside(me)

    def _bring_back(self) -> None:
        for group, error in list(self._application.damaged.items()):
            self.set_aside(group, error)
            self._application.damaged.pop(group, None)
        for me, written in list(self._aside.items()):
            if self._log.durable >= written:
                del self._aside[me]
                try:
                    self.host(me)
                except DamagedLog as error:
                    self.damaged[me.group] = str(error)
                    logger.critical("%s stays away until its node starts again: %s", me, error)
                    continue
                if self._observer is not None:
                    self._observer.brought_back(me)

    # Incoming messages and events

    def receive(self, envelopes: Sequence[Envelope], node: NodeId | None = None) -> None:
        """Handle messages from a node or a client. Only their senders have been checked.

        Raises `PeerViolation` for a message that no correct process sends: that message has changed nothing,
        and later envelopes are not handled. The connection that it came by cannot be trusted any more. What
        was relayed is only logged: its relay does not read it.
        """
        if node is None:
            self._receive(envelopes, None)
            return
        taken = self.relays.receive(node, envelopes)
        if taken is None:
            return
        origin, envelopes = taken
        try:
            self._receive(envelopes, origin)
        except PeerViolation as error:
            if origin == node:
                raise
            logger.warning("rejected a frame of %s that %s relayed: %s", origin, node, error)

    def _receive(self, envelopes: Iterable[Envelope], node: NodeId | None) -> None:
        now = self._clock.now()
        self._violation = None
        for sender, receiver, messages in envelopes:
            if node is not None and not isinstance(sender, ReplicaId):
                self._outbox.route(sender, node)
            self._take(sender, receiver, messages, now, node)
            if self._violation is not None:
                raise PeerViolation(self._violation)

    def _receive_own(self, node: NodeId, message: Any) -> None:
        """Handle a message of a node itself."""
        self.staging.refuses = self.muted
        self.staging.receive(node, message, self._clock.now())

    def _take(
        self, sender: Process, receiver: Process, messages: Sequence[Any], now: float,
        node: NodeId | None = None,
    ) -> None:  # fmt: skip
        hosted = self._hosted.get(receiver)  # type: ignore[arg-type]  # a client's id is not among them
        if hosted is None:
            if receiver in self._application.processes:
                self._pass_on(receiver, sender, messages)
                return
            hosted = self._stand_in(receiver, messages)
            if hosted is None:
                self.statistics.strays += 1
                logger.debug("dropped messages from %s: %s is not on node %s", sender, receiver, self.me)
                return
        self._dirty[hosted.replica.me] = None
        if self.muted:
            messages = [m for m in messages if type(m) in self._application_messages or type(m) in _UNWRITTEN]
            if not messages:
                return
        if len(messages) == 1 and type(messages[0]) in self._application_messages:
            self._pass_on(hosted.replica.me, sender, messages)
        elif self._special.isdisjoint(map(type, messages)):
            if len(messages) == 1 and type(messages[0]) in _SNAPSHOT_MESSAGES:
                try:
                    self._transfer(hosted, sender, messages[0], now)
                except DamagedRow as error:
                    self.set_aside(hosted.replica.me.group, error)
            else:
                self._handle(hosted.replica, sender, messages, now)
        else:
            own = self._application_messages
            whole = self._resolved(sender, messages, node)
            for applications, run in groupby(whole, lambda message: type(message) in own):
                if hosted.replica.me not in self._hosted:
                    return
                if applications:
                    self._pass_on(hosted.replica.me, sender, list(run))
                else:
                    self._handle(hosted.replica, sender, list(run), now)

    def _resolved(self, sender: Process, messages: Iterable[Any], node: NodeId | None) -> Iterator[Any]:
        """Yield the messages with their payloads. Those with unknown names are lost, as on a link."""
        for message in messages:
            if type(message) is not ByName:
                yield message
                continue
            try:
                whole = self.staging.resolve(node, message)
            except PeerViolation as error:
                self._refuse(sender, error)
            else:
                if whole is not None:
                    yield whole

    def _pass_on(self, receiver: Process, sender: Process, messages: Sequence[Any]) -> None:
        try:
            self._application.receive(receiver, sender, messages)
        except (PeerViolation, InvalidArgument) as error:
            self._refuse(sender, error)
        except DamagedRow as error:
            if not isinstance(receiver, ReplicaId):
                raise
            self.set_aside(receiver.group, error)

    def _stand_in(self, receiver: Process, messages: Sequence[Message | Reply]) -> _Hosted | None:
        """Return the successor of a replica on a lost disk, for messages that any replica may handle."""
        if not isinstance(receiver, ReplicaId) or not all(isinstance(m, TO_ANYONE) for m in messages):
            return None
        return self._by_group.get(receiver.group)

    def _handle(
        self, replica: Protocol, sender: Process, messages: Sequence[Message | Reply], now: float
    ) -> None:
        """Handle messages of one sender. The node rejects invalid ones, and handles the rest."""
        rest = iter(messages)
        while True:
            try:
                replica.receive(sender, rest, now)  # type: ignore[arg-type]  # a Reply is refused by it
            except PeerViolation as error:
                self._refuse(sender, error)
            except InvalidArgument as error:
                self._refuse(sender, error)
                if isinstance(sender, ReplicaId):
                    continue
                refused = messages[-1 - operator.length_hint(rest)]
                if isinstance(refused, Multicast):  # without an answer, the client would wait for ever
                    answer = MulticastRefused(refused.mid, replica.me.group, str(error))
                    self._outbox.answer(replica.me, sender, answer)
            else:
                return

    def _refuse(self, sender: Process, error: Exception) -> None:
        """Count a message that is rejected, and log the first of each sender."""
        self.statistics.refused += 1
        if isinstance(error, PeerViolation) and self._violation is None:
            self._violation = f"{sender}: {error}"
        if sender not in self._warned and len(self._warned) < WARNED_MAX:
            self._warned.add(sender)
            logger.warning("rejected a message of %s: %s (logged once)", sender, error)

    # Snapshots

    def _transfer(
        self, hosted: _Hosted, sender: Process, message: SnapshotPiece | SnapshotAck, now: float
    ) -> None:
        me = hosted.replica.me
        if not isinstance(sender, ReplicaId) or sender.group != me.group:
            self._refuse(sender, PeerViolation("snapshots are for members of the same group"))
        elif isinstance(message, SnapshotAck):
            self._transfers.acknowledge(me, sender, message, now)
        elif message.index == 0 and not hosted.replica.awaits(sender, message.transfer, now):
            self.statistics.strays += 1  # it was asked for in an earlier life; or never
            logger.debug("dropped a snapshot of %s that %s has not asked for", sender, me)
        elif (snapshot := self._transfers.receive(me, sender, message, now)) is not None:
            self._drain(now)
            if me not in self._hosted:
                return
            try:
                self._install(hosted, snapshot, now)
            except (WireError, BadSnapshot) as error:
                self._refuse(sender, PeerViolation(str(error)))

    def _bring_up(
        self, hosted: _Hosted, target: ReplicaId, after: Timestamp, number: int, now: float
    ) -> None:
        """Send a replica what it has missed, if the state still has the deliveries; else a snapshot.

        An empty replica gets a snapshot: most applications' state is smaller than their history.
        """
        me, timing = hosted.replica.me, self._timing
        limits = timing.part_entries, timing.part_bytes
        missed = self._application.deliveries(me.group, after, *limits) if after else ()
        if missed and missed[0].previous_ts == after:
            self._outbox.add(me, [((target,), Deliveries(tuple(missed), hosted.position))])
        elif not self._transfers.is_sending(me, target, number, now):
            state = self._application.snapshot(me.group)
            self._transfers.send(me, target, number, hosted.replica.checkpoint(), state, now)

    def _install(self, hosted: _Hosted, snapshot: SnapshotReceiver, now: float) -> None:
        """Replace the replica's state by the snapshot if that is ahead. An invalid one changes nothing."""
        replica = hosted.replica
        checkpoint = decode_checkpoint(b"".join(snapshot.ordering))
        if not replica.takes(checkpoint):
            return
        self._application.install(replica.me.group, snapshot.state, checkpoint, snapshot.source)
        if not replica.install(checkpoint, now):
            raise InvariantBroken(f"{replica.me} did not install the snapshot that its state comes from")
        logger.info("%s took a snapshot of %s, at %d", replica.me, snapshot.source, checkpoint.position)
        hosted.applied = True
        hosted.position = checkpoint.position
        hosted.replaced = self._committing
        if self._recorder is not None:
            self._recorder.jumped(replica.me.group, checkpoint.position)
        if self._observer is not None:
            self._observer.installed(replica.me)

    def durable(self, number: int) -> None:
        """Note that the log's batches up to this one are durable: their promises leave with the next turn."""
        self._durable = max(self._durable, number)
        self.staging.durable(self._clock.now())

    def committed(self, executed: Mapping[GroupId, Timestamp]) -> None:
        """Report what these groups have executed: the application has committed it.

        A group whose state was replaced meanwhile reports nothing: the snapshot may have executed less, and
        a report is never taken back.
        """
        self._committing = False
        for hosted in self._hosted.values():
            watermark = executed.get(hosted.replica.me.group)
            if watermark is not None and not hosted.replaced:
                hosted.replica.executed(watermark)
                restored = bool(watermark) and not hosted.replica.is_restoring
                if restored and self.damaged.pop(hosted.replica.me.group, ""):
                    logger.warning("%s is restored, at %d", hosted.replica.me, watermark)
            hosted.replaced = False

    def tick(self) -> None:
        """Advance the replicas whose timers are due."""
        now = self._clock.now()
        for replica, hosted in self._hosted.items():
            if self._wakes[replica] <= now:
                hosted.replica.tick(now)
                self._dirty[replica] = None
                if hosted.replica.forgot:
                    # All groups share one log: each may have forgotten something, whoever remembers it.
                    self._log.distrust(hosted.replica.forgot)
                    return
        if self.staging.wake_at <= now:
            self.staging.tick(now)
        if self._clock_watch.is_due(now):
            for replica, hosted in self._hosted.items():
                self._clock_watch.look(replica, hosted.replica.time_of_day())

    def nominate(self, replica: ReplicaId) -> None:
        """Let this replica try to lead, as leader selection or an operator wants."""
        self._hosted[replica].replica.nominate(self._clock.now())
        self._dirty[replica] = None

    # The turn

    def under_way(self, now: float) -> int:
        """Return how many messages are under way: `pace` decides by it when the next `turn` begins."""
        under_way = self._application.under_way(now)
        for hosted in self._by_group.values():
            if hosted.delivered_at > now - MOVING_S and (queued := hosted.replica.queued) > under_way:
                under_way = queued
        return under_way

    def turn(self) -> None:
        """Drain the replicas and the application: write, apply, commit and send."""
        self.statistics.turns += 1
        now = self._clock.now()
        if self._aside or self._application.damaged:
            self._bring_back()
        outbox = self._outbox
        if self._waiting:
            self._release()
        while self._dirty or outbox.local or self._send_application(now):
            self._drain(now)
            if self._waiting:
                self._release()
        if now >= self._commit_at:
            self._commit(now)
        staging = self.staging if self.staging.active else None
        self.statistics.strays += outbox.flush(self.relays, self._transfers.take_pieces(), now, staging)
        if now >= self.relays.tick_at:
            self.relays.tick(now)
            self._hand_over_to_better_connected(now)
        # Replicas wake for their heartbeats, and so often enough for ticks.
        wake = self._first_wake
        if wake is None:
            wake = min(self._wakes.values(), default=self.relays.tick_at)
            self._first_wake = wake if self._wakes else None
        self.wake_at = min(
            self._commit_at, self._application.wake_at, self.staging.wake_at, outbox.wake_at, wake
        )

    def _drain(self, now: float) -> None:
        """Run the replicas until none has a message for another; then write one batch if a promise needs it.

        No promise waits for the records of mere deliveries, so they go with the next batch that is needed:
        that halves the commits of a busy node, and promises never queue behind records that none needs.
        """
        outbox = self._outbox
        promises: list[tuple[ReplicaId, list[Send]]] = []
        while self._dirty or outbox.local:
            if outbox.local:
                for (sender, receiver), messages in outbox.take_local().items():
                    self._take(sender, receiver, messages, now)
                if not self._dirty:
                    continue
            me, _ = self._dirty.popitem()
            hosted = self._hosted[me]
            ready = hosted.replica.ready()
            if ready.wake_at != self._wakes[me]:
                self._wakes[me] = ready.wake_at
                self._first_wake = None
            for membership in ready.learned:
                self._on_learned(membership)
                outbox.forget_routes()
                if self._observer is not None:
                    self._observer.learned(me, membership)
            if ready.send:
                outbox.add(me, ready.send)
            if ready.deliver or ready.transfers or ready.duplicates:
                try:
                    self._apply(hosted, ready, now)
                except DamagedRow as error:
                    self.set_aside(me.group, error)
                    continue
            if ready.persist:
                self._records[me.group] += ready.persist
            if ready.promise:
                promises.append((me, ready.promise))
        if promises:
            self._write()
        split = self._split_upto > self._durable
        for me, sends in promises:
            number = self._written_of.get(me.group, 0) if split else self._written
            if len(self._waiting) < WAITING_MAX or not self.muted:
                self._waiting.append((number, me, sends))

    def _write(self) -> None:
        """Hand all records to the log, as one batch; the large records of a group are a batch of their own,
        behind it. A promise waits for the records of its own group only.
        """
        if not self._records:
            return
        records, self._records = self._records, defaultdict(list)
        self.statistics.records += sum(map(len, records.values()))
        batches: list[dict[GroupId, list[Record]]] = []
        if len(records) > 1:
            apart = self._log.referred
            large = [
                group for group, batch in records.items() if payload_bytes(batch, apart) > LARGE_BATCH_BYTES
            ]
            batches = [{group: records.pop(group)} for group in large]
        for batch in [records, *batches] if records else batches:
            self._written = self._log.write(batch)
            self._written_of.update(dict.fromkeys(batch, self._written))
            self.statistics.batches += 1
        if batches:
            self._split_upto = self._written

    def _send_application(self, now: float) -> bool:
        """Send the application's messages; return whether any is for a process of this node."""
        for me, receivers, message in self._application.turn(now):
            self._outbox.add(me, [(receivers, message)])
        if self._application.damaged:
            self._bring_back()
        return bool(self._outbox.local)

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
            if self.staging.active:
                self.staging.delivered(group, ready.deliver)
            hosted.applied = True
            hosted.position = ready.deliver[-1].global_ts
            hosted.delivered_at = now
            self.statistics.delivered += len(ready.deliver)
        for target, after, number in ready.transfers:
            self._bring_up(hosted, target, after, number, now)
        asked = [(asker, message) for asker, message in ready.duplicates if not isinstance(asker, ReplicaId)]
        if asked:
            self._application.repeat(group, asked)

    def _release(self) -> None:
        """Send the promises whose records, and all before them, are durable."""
        while self._waiting and self._waiting[0][0] <= self._durable:
            _, me, sends = self._waiting.popleft()
            self._outbox.add(me, sends)
        if self._waiting and self._split_upto > self._durable:
            self._release_groups()

    def _release_groups(self) -> None:
        """Send the promises that wait only for large records of other groups; in order, for each replica."""
        waiting, self._waiting = self._waiting, deque()
        blocked: set[ReplicaId] = set()
        for number, me, sends in waiting:
            if number <= self._durable and me not in blocked:
                self._outbox.add(me, sends)
            else:
                blocked.add(me)
                self._waiting.append((number, me, sends))

    def _commit(self, now: float) -> None:
        """Commit the state, behind the log; called every COMMIT_S."""
        self._commit_at = now + COMMIT_S
        if not self._committing:
            self.commit()
        elif self._recorder is not None:
            self._recorder.write()

    def commit(self) -> None:
        """Commit what was applied since the last commit; also called before the node stops."""
        self._write()
        if self._recorder is not None:
            self._recorder.write()
        positions = {}
        for me, hosted in list(self._hosted.items()):
            replica = hosted.replica
            try:
                if replica.is_restoring and self._application.executed(me.group) < replica.reported:
                    continue  # what the disk has may be worth more, if no other member has it
                if me.group in self._begun and not hosted.position:
                    continue  # for the same reason
                if hosted.applied or self._application.unsaved(me.group):
                    positions[me.group] = hosted.position
                    hosted.applied = False
            except DamagedRow as error:
                self.set_aside(me.group, error)
        if positions:
            self._committing = True
            self._application.commit(positions, self._written)

    # Handover and status

    def hand_over(self, replicas: Iterable[ReplicaId]) -> set[ReplicaId]:
        """Ask other members to lead in place of these replicas; return those that have a member to ask."""
        asked = set()
        for me in replicas:
            if self._hosted[me].replica.hand_over(self._clock.now()):
                self._dirty[me] = None
                asked.add(me)
        return asked

    def _hand_over_to_better_connected(self, now: float) -> None:
        """Let leaders that do not reach others hand over to members that do, with this node's next turn."""
        led = [hosted.replica for hosted in self._hosted.values() if hosted.replica.is_leader]
        for me in self.hand_overs.tick(led, now):
            self._dirty[me] = None

    def accept_time(self) -> list[GroupId]:
        """Let the groups that this node leads, and that do not believe the time of day, follow it from now
        on.

        Return these groups.
        """
        accepted = []
        for me, hosted in self._hosted.items():
            held = hosted.replica.time_of_day().get("held")
            if held and hosted.replica.accept_time(self._clock.now()):
                self._dirty[me] = None
                accepted.append(me.group)
        return accepted

    def leading(self) -> set[ReplicaId]:
        """Return the replicas of this node that lead their groups."""
        return {me for me, hosted in self._hosted.items() if hosted.replica.is_leader}

    def status(self) -> dict[ReplicaId, dict[str, Any]]:
        """Return the status of each replica."""
        return {
            me: {
                **hosted.replica.status_of(),
                "delivered": hosted.position,
                "time": hosted.replica.time_of_day(),
                **self._application.status(me.group),
                **({"damage": self.damaged[me.group]} if me.group in self.damaged else {}),
            }
            for me, hosted in self._hosted.items()
        }

    @property
    def replicas(self) -> Mapping[ReplicaId, Protocol]:
        """The replicas of this node."""
        return {me: hosted.replica for me, hosted in self._hosted.items()}


def _lives_on(node_of: Callable[[ReplicaId], NodeId | None], node: NodeId, process: Process) -> bool:
    return not isinstance(process, ReplicaId) or node_of(process) == node


def _fork(rng: random.Random, now: float) -> random.Random:
    """Return another generator that depends on this one and on the time, and leave this one as it is."""
    copy = random.Random()
    copy.setstate(rng.getstate())
    return random.Random(f"relays {copy.getrandbits(128)} {now}")
