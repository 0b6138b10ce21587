"""A simulated machine: one replica, its disk, and a plain log as its application.

The disk makes batches durable in order, each after a delay; a crash loses the batches that are not yet
durable, whole. The application's own state (the log, its position, the delivered ids) is committed lazily,
behind the batches that were handed out before it. It may execute late what it has delivered, like a store
that waits for another group's vote.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from multicast.client import Reply
from multicast.durable import Checkpoint, Dropped, Durable, Record
from multicast.membership import Membership
from multicast.messages import Delivery, Message
from multicast.protocol import Protocol, Send, Start, Timing
from multicast.quorum_time import OWN_CLIENTS, WallClock
from multicast.sim.faults import Fault
from multicast.sim.network import Loop, Network
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, ClientId, MessageId, Process, ReplicaId, Timestamp


@dataclass(slots=True)
class LogSnapshot:
    """The application's whole state, for a replica that is too far behind."""

    checkpoint: Checkpoint
    log: tuple[Delivery, ...]
    number: int = 0
    """The number by which the replica has asked for it."""


@dataclass(slots=True)
class Commit:
    """The application's state as last committed."""

    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    length: int = 0


@dataclass(slots=True)
class DiskCopy:
    """What was durable at some time."""

    durable: Durable
    commit: Commit
    log: tuple[Delivery, ...]


@dataclass(slots=True)
class RecordBatch:
    """Records that become durable together, and the messages that wait for that."""

    records: list[Record]
    promises: list[Send]
    commit: Commit | None = None
    reported: bool = True
    """Whether the commit is reported to the replica; not if a snapshot has replaced that state."""


class Observer:
    """An observer of a run, notified of every event immediately; a subclass overrides what it needs."""

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """A replica's message leaves."""

    def stepping(self, host: Host, sender: Process, message: Message) -> None:
        """A replica is about to handle a message."""

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """A replica has handled a message."""

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """A replica's application got a message."""

    def dropped(self, host: Host, mids: Sequence[MessageId]) -> None:
        """A replica forgets messages for good."""

    def installed(self, host: Host) -> None:
        """A replica's application was replaced by a snapshot."""

    def learned(self, host: Host, membership: Membership) -> None:
        """A replica has learned a membership, of its own group or another."""

    def crashed(self, host: Host) -> None:
        """A replica is down, its volatile state gone."""

    def restarted(self, host: Host) -> None:
        """A replica is up again, from what was durable."""

    def client_sent(self, client: ClientId, receivers: Sequence[Process], message: object) -> None:
        """A client's message leaves."""

    def received(self, receiver: Process, sender: Process, message: object) -> None:
        """A message that no protocol handles has arrived: an answer at a client, a snapshot at a replica."""

    def injected(self, fault: Fault) -> None:
        """A fault is about to happen, or all cuts are about to end."""


@dataclass(frozen=True, slots=True)
class DiskDelays:
    """The time until a batch is durable, in seconds, and the interval between commits of the state."""

    least_s: float = 0.0002
    most_s: float = 0.004
    commit_s: float = 0.25

    def sample(self, rng: random.Random) -> float:
        """Draw one batch's delay."""
        return self.least_s + (self.most_s - self.least_s) * rng.random()


def execute(log: Sequence[Delivery], executed: Timestamp, late: random.Random | None) -> Timestamp:
    """Return the position up to which an application executes now: its last delivery, or less if `late`."""
    left = [delivery.global_ts for delivery in log if delivery.global_ts > executed]
    count = len(left) if late is None or late.random() < 0.5 else late.randint(0, len(left))
    return left[count - 1] if count else executed


class Host:
    """One replica and its machine."""

    def __init__(
        self,
        me: ReplicaId,
        topology: Topology,
        protocol: type[Protocol],
        *,
        loop: Loop,
        network: Network,
        rng: random.Random,
        observers: Sequence[Observer],
        timing: Timing,
        disk: DiskDelays,
        skew: float = 0.0,
        turn_s: float = 0.0,
        wall: WallClock | None = None,
        late: random.Random | None = None,
    ) -> None:
        """`late` decides how much of what was delivered is executed when the state is committed; without it,
        all is.
        """
        self.me = me
        self._topology = topology
        self._protocol = protocol
        self._loop = loop
        self._network = network
        self._rng = rng
        self._observers = observers
        self._timing = timing
        self._disk = disk
        self._rate = 1.0 + skew
        self._turn_s = turn_s
        self._turning = False
        self._wall = wall
        self.late = late
        self.replica: Protocol | None = None
        self.durable = Durable()
        self.commit = Commit()
        self.log: list[Delivery] = []
        self.executed = NO_TIMESTAMP
        """The position up to which the application has executed what it has delivered."""
        self.positions: dict[MessageId, Timestamp] = {}
        self.stalled_until = 0.0
        self.gone = False
        """Whether its disk is lost: no process will ever be this replica again."""
        self.copies: list[DiskCopy] = []
        """Copies of its disk, from the oldest on."""
        self.rolled_back = False
        """Whether a copy has replaced its disk."""
        self._had_executed = NO_TIMESTAMP
        self.on_forgot: Callable[[Host], None] | None = None
        """Called when the replica has found that its log was rolled back."""
        self.evicts: ReplicaId | None = None
        """A healthy member that an operator wants it to replace."""
        self.address = ""
        self.violation: Exception | None = None
        self._batches: deque[RecordBatch] = deque()
        self._life = 0
        self._wake_at = float("inf")
        self._wake_local = 0.0
        self._own: deque[tuple[Process, Message]] = deque()
        self._suspended_until = 0.0
        self._stood_still_s = 0.0
        """For how long its monotonic clock has stood still."""

    @property
    def up(self) -> bool:
        """Whether the process runs."""
        return self.replica is not None

    def local(self, time: float) -> float:
        """Convert virtual time to this machine's monotonic clock."""
        return time * self._rate - self._stood_still_s

    def suspend(self, seconds: float) -> None:
        """Suspend the machine: nothing happens on it, and its monotonic clock stands still."""
        if self.up and self._loop.now >= self._suspended_until:
            self._suspended_until = self._loop.now + seconds
            self._stood_still_s += seconds * self._rate

    def _is_suspended(self, call: Callable[..., None], *arguments: object) -> bool:
        """Return whether the machine is suspended; then the call follows when it goes on."""
        if self._loop.now >= self._suspended_until:
            return False
        self._loop.at(self._suspended_until, call, *arguments)
        return True

    def start(self) -> None:
        """Start the process from what is durable."""
        self._life += 1
        self._turning = False
        self._wake_at = float("inf")
        start = Start(
            self.me, self._topology, self._rng, self.local(self._loop.now),
            self._timing, self.durable, self.commit.checkpoint, address=self.address, evicts=self.evicts,
            wall=self._wall, trusts_log=self._life == 1,
        )  # fmt: skip
        self.replica = self._protocol(start)
        del self.log[self.commit.length :]
        self.executed = self.commit.checkpoint.executed
        self.positions = {delivery.mid: delivery.global_ts for delivery in self.log}
        for observer in self._observers:
            observer.restarted(self)
        self.tick(self._life)
        self._loop.at(self._loop.now + self._disk.commit_s * self._rng.random(), self._commit, self._life)

    def crash(self) -> None:
        """Kill the process; what was not durable is lost."""
        self.replica = None
        self._suspended_until = 0.0
        self._life += 1
        self._batches.clear()
        self._own.clear()
        for observer in self._observers:
            observer.crashed(self)

    @property
    def once_executed(self) -> Timestamp:
        """The highest position that the replica has ever durably executed: others may rely on it, even if its
        disk was rolled back.
        """
        return max(self.commit.checkpoint.executed, self._had_executed)

    def copy_disk(self) -> None:
        """Copy what is durable."""
        log = tuple(self.log[: self.commit.length])
        self.copies.append(DiskCopy(self.durable.copy(), self.commit, log))

    def roll_back(self, copy: DiskCopy) -> None:
        """Replace the disk by a copy, while the process is down."""
        self.rolled_back = True
        self._had_executed = self.once_executed
        self.durable, self.commit, self.log = copy.durable.copy(), copy.commit, list(copy.log)

    def receive(self, sender: Process, message: object) -> None:
        """Handle a message from the network."""
        replica = self.replica
        if replica is None or self._is_suspended(self._receive_later, self._life, sender, message):
            return
        if isinstance(message, LogSnapshot):
            for observer in self._observers:
                observer.received(self.me, sender, message)
            self._drain()
            now = self.local(self._loop.now)
            asked = isinstance(sender, ReplicaId) and replica.awaits(sender, message.number, now)
            if asked and replica.install(message.checkpoint, now):
                self.log = list(message.log)
                self.executed = message.checkpoint.executed
                for batch in self._batches:
                    batch.reported = False
                self.positions = {delivery.mid: delivery.global_ts for delivery in self.log}
                for observer in self._observers:
                    observer.installed(self)
        else:
            self._step(sender, message)  # type: ignore[arg-type]  # the network carries only messages
        if not self._turn_s:
            self._drain()
        elif not self._turning:
            self._turning = True
            self._loop.at(self._loop.now + self._turn_s * self._rng.random(), self._turn, self._life)

    def _receive_later(self, life: int, sender: Process, message: object) -> None:
        """Handle what arrived while the machine was suspended, unless the process has died since."""
        if life == self._life:
            self.receive(sender, message)

    def _turn(self, life: int) -> None:
        """End a turn of the loop: drain all that was handled in it together."""
        if life == self._life and self.replica is not None and not self._is_suspended(self._turn, life):
            self._turning = False
            self._drain()

    def _step(self, sender: Process, message: Message) -> None:
        assert self.replica is not None
        for observer in self._observers:
            observer.stepping(self, sender, message)
        self.replica.step(sender, message, self.local(self._loop.now))
        for observer in self._observers:
            observer.stepped(self, sender, message)

    def tick(self, life: int) -> None:
        """Call the replica at the time that it asked for."""
        if self.replica is not None and life == self._life and not self._is_suspended(self.tick, life):
            if self._loop.now < self._wake_at < float("inf"):
                return  # it asked for this time once, and was called before: its clock must not run ahead
            self._wake_at = float("inf")
            # Rounding must not let the clock fall short of the requested time.
            self.replica.tick(max(self.local(self._loop.now), self._wake_local))
            self._drain()
            if self.replica.forgot and self.on_forgot is not None:
                self.on_forgot(self)

    def nominate(self) -> None:
        """Let leader selection nominate this replica, if it is up."""
        if self.replica is not None and not self._is_suspended(self.nominate):
            self.replica.nominate(self.local(self._loop.now))
            self._drain()

    def _drain(self) -> None:
        """Drain the replica and act on it, until nothing is left at this instant."""
        replica = self.replica
        assert replica is not None
        while True:
            ready = replica.ready()
            for membership in ready.learned:
                for observer in self._observers:
                    observer.learned(self, membership)
            for record in ready.persist:
                if isinstance(record, Dropped):
                    for observer in self._observers:
                        observer.dropped(self, record.mids)
            for receivers, message in ready.send:
                self._send(receivers, message)
            for delivery in ready.deliver:
                self._deliver(delivery)
            for asker, repeated in ready.duplicates:
                if not isinstance(asker, ReplicaId):
                    self._reply(repeated.mid)
            for target, _, number in ready.transfers:
                self._send((target,), dataclasses.replace(self.snapshot(), number=number))
            if ready.persist or ready.promise:
                self._write(RecordBatch(ready.persist, ready.promise))
            if not self._own:
                break
            sender, own = self._own.popleft()
            self._step(sender, own)
        wake_at = (ready.wake_at + self._stood_still_s) / self._rate
        if wake_at < self._wake_at:
            self._wake_at = wake_at
            self._wake_local = min(ready.wake_at, self.local(wake_at) + 1e-6)
            self._loop.at(wake_at, self.tick, self._life)

    def snapshot(self) -> LogSnapshot:
        """Return the application's state, which may have executed more than is durable."""
        assert self.replica is not None
        checkpoint = dataclasses.replace(self.replica.checkpoint(), executed=self.executed)
        return LogSnapshot(checkpoint, tuple(self.log))

    def _send(self, receivers: Sequence[Process], message: Message | Reply | LogSnapshot) -> None:
        for observer in self._observers:
            observer.sent(self, receivers, message)
        for receiver in receivers:
            if receiver == self.me and not isinstance(message, Reply | LogSnapshot):
                self._own.append((self.me, message))
            else:
                self._network.send(self.me, receiver, message)

    def _deliver(self, delivery: Delivery) -> None:
        self.log.append(delivery)
        self.positions[delivery.mid] = delivery.global_ts
        for observer in self._observers:
            observer.delivered(self, delivery)
        assert self.replica is not None
        if self.replica.is_leader and delivery.mid.client not in OWN_CLIENTS:
            self._reply(delivery.mid)

    def _reply(self, mid: MessageId) -> None:
        position = self.positions.get(mid, NO_TIMESTAMP)
        self._send((mid.client,), Reply((mid,), self.me.group, (position,)))

    def _write(self, batch: RecordBatch) -> None:
        """Hand a batch to the disk. On an idle disk without delay it is durable at once."""
        busy = bool(self._batches)
        if not busy and not batch.records and batch.commit is None:
            self._durable(batch)
            return
        self._batches.append(batch)
        if not busy:
            self._sync()

    def _sync(self) -> None:
        delay = self._disk.sample(self._rng)
        at = max(self._loop.now, self.stalled_until) + delay
        if at <= self._loop.now:
            while self._batches:
                self._durable(self._batches.popleft())
        else:
            self._loop.at(at, self._synced, self._life, len(self._batches))

    def _synced(self, life: int, count: int) -> None:
        """Finish a group commit: all that was waiting when the sync began is durable."""
        if life != self._life or self.replica is None or self._is_suspended(self._synced, life, count):
            return
        done = [self._batches.popleft() for _ in range(count)]
        for batch in done:
            self._durable(batch)
        if self._batches:
            self._sync()
        self._drain()

    def _durable(self, batch: RecordBatch) -> None:
        self.durable.apply(batch.records)
        if batch.commit is not None:
            self.commit = batch.commit
            assert self.replica is not None
            if batch.reported:
                self.replica.executed(batch.commit.checkpoint.executed)
        for receivers, message in batch.promises:
            self._send(receivers, message)

    def commit_every(self, seconds: float) -> None:
        """Commit the application's state at this interval from now on."""
        self._disk = dataclasses.replace(self._disk, commit_s=seconds)
        self._commit(self._life)

    def _commit(self, life: int) -> None:
        """Commit the application's state lazily, behind everything handed to the disk so far."""
        replica = self.replica
        if life != self._life or replica is None or self._is_suspended(self._commit, life):
            return
        self._drain()
        self.executed = execute(self.log, self.executed, self.late)
        if len(self.log) > self.commit.length or self.executed > self.commit.checkpoint.executed:
            checkpoint = dataclasses.replace(self.snapshot().checkpoint, entries=())
            self._write(RecordBatch([], [], Commit(checkpoint, len(self.log))))
            self._drain()
        self._loop.at(self._loop.now + self._disk.commit_s, self._commit, life)
