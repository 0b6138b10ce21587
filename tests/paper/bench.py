"""A workbench for the paper's stories: real replicas, links and disks worked by hand.

The test decides what happens. Links are FIFO; `pump` carries messages along every link that no `hold` rule
blocks, earliest arrival first, until nothing moves. Disks are instant unless held. No process is ticked
unless the test does it, so no time-out fires behind its back. `sent` remembers all that was said, in order.

A lower-case letter and a number name a replica: a0, a1, a2 are group A. Group A starts with leader a0, B
with b1, C with c2 (`Topology.preferred_leader`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from multicast import types as t
from multicast.durable import Durable, Record
from multicast.messages import Accept, AcceptAck, Deliver, Delivery, Message, Multicast
from multicast.numbering import Numbering
from multicast.protocol import Send, Start, Timing
from multicast.topology import Topology
from multicast.whitebox import WhiteBox

A, B, C = t.GroupId(0), t.GroupId(1), t.GroupId(2)
ANN, BOB = t.ClientId(1), t.ClientId(2)

STEPS_MAX: Final = 100_000
"""More messages than any story needs: past this, processes are chattering for ever."""

M = TypeVar("M", bound=Message)
Who = Collection[t.Process]


@dataclass(frozen=True, slots=True)
class Sent:
    """One message to one receiver, which may be the sender itself."""

    number: int
    source: t.Process
    target: t.Process
    message: Message
    arrival: float

    @property
    def ends(self) -> tuple[t.Process, t.Process]:
        """Sender and receiver."""
        return self.source, self.target


@dataclass(frozen=True, slots=True)
class Hold:
    """Blocks links at their first message that matches; what is behind it waits too."""

    sources: Who | None
    targets: Who | None
    kind: type[Message] | None

    def matches(self, sent: Sent) -> bool:
        """Whether this message may not pass."""
        return (
            (self.sources is None or sent.source in self.sources)
            and (self.targets is None or sent.target in self.targets)
            and (self.kind is None or type(sent.message) is self.kind)
        )


@dataclass(slots=True)
class Machine:
    """One replica, its disk and its application."""

    replica: WhiteBox | None = None
    durable: Durable = field(default_factory=Durable)
    disk_held: bool = False
    batches: deque[tuple[list[Record], list[Send]]] = field(default_factory=deque)
    own: deque[Message] = field(default_factory=deque)
    log: list[Delivery] = field(default_factory=list)
    delivered_at: dict[t.MessageId, float] = field(default_factory=dict)


class Bench:
    """Groups of replicas that have just elected their preferred leaders."""

    def __init__(self, groups: int = 2, replicas: int = 3, timing: Timing | None = None) -> None:
        self.topology = Topology.uniform(groups, replicas)
        self.timing = timing or Timing()
        self.now = 0.0
        self.delay: Callable[[t.Process, t.Process, Message], float] = lambda source, target, message: 0.0
        self.watch: Callable[[t.ReplicaId], None] = lambda member: None
        """Called whenever a replica has handled a message."""
        self.traffic: list[Sent] = []
        self._count = 0
        self._links: dict[tuple[t.Process, t.Process], deque[Sent]] = {}
        self._holds: list[Hold] = []
        self._numbers: dict[t.ClientId, Numbering] = {}
        self.machines = {m: Machine() for g in self.topology.groups for m in self.topology.members(g)}
        for member in self.machines:
            self._start(member)
        self.tick(*(self.topology.preferred_leader(group) for group in self.topology.groups))
        self.pump()
        for group in self.topology.groups:
            self.leader(group)
        self.traffic.clear()

    # Looking

    def __getitem__(self, member: t.ReplicaId) -> WhiteBox:
        """A replica that is up."""
        replica = self.machines[member].replica
        assert replica is not None, f"{member} is down"
        return replica

    def members(self, *groups: t.GroupId) -> tuple[t.ReplicaId, ...]:
        """The members of some groups."""
        return tuple(m for group in groups for m in self.topology.members(group))

    def leader(self, group: t.GroupId) -> t.ReplicaId:
        """Return the group's leader; in the highest ballot, if several processes lead."""
        leading = [m for m in self.members(group) if self.machines[m].replica and self[m].is_leader]
        assert leading, f"group {group} has no leader"
        return max(leading, key=lambda m: self[m].cballot)

    def status(self, member: t.ReplicaId) -> t.Status:
        """Whether it is LEADER, FOLLOWER or RECOVERING."""
        return self[member].status

    def phase(self, member: t.ReplicaId, m: Multicast) -> t.Phase:
        """phase[m]"""
        entry = self[member].entries.get(m.mid)
        return t.Phase.START if entry is None else entry.phase

    def local_ts(self, member: t.ReplicaId, m: Multicast) -> t.Timestamp:
        """local_ts[m]"""
        entry = self[member].entries.get(m.mid)
        return t.NO_TIMESTAMP if entry is None else entry.local_ts

    def log(self, member: t.ReplicaId) -> list[t.MessageId]:
        """What it has delivered, in order."""
        return [delivery.mid for delivery in self.machines[member].log]

    def global_ts(self, m: Multicast) -> t.Timestamp:
        """The global timestamp with which m was delivered; the same wherever it was."""
        found = {d.global_ts for machine in self.machines.values() for d in machine.log if d.mid == m.mid}
        assert len(found) == 1, f"{m.mid} was delivered with {len(found)} global timestamps"
        return found.pop()

    def sent(self, kind: type[M], m: Multicast | None = None) -> list[tuple[t.Process, t.Process, M]]:
        """All messages of one kind, to oneself included, in the order in which they were sent."""
        return [
            (sent.source, sent.target, sent.message)
            for sent in self.traffic
            if isinstance(sent.message, kind) and (m is None or m.mid in _spoken_of(sent.message))
        ]

    def ends(self, kind: type[M], m: Multicast | None = None) -> list[tuple[t.Process, t.Process]]:
        """Senders and receivers of all messages of one kind, in the order in which they were sent."""
        return [(source, target) for source, target, _ in self.sent(kind, m)]

    def check_delivered(self, members: Iterable[t.ReplicaId], *messages: Multicast) -> None:
        """Each of these processes has delivered exactly these messages, in this order; and `check_order`."""
        expected = [m.mid for m in messages]
        for member in members:
            assert self.log(member) == expected, f"{member} delivered {self.log(member)}, not {expected}"
        self.check_order()

    def check_order(self) -> None:
        """Integrity and Ordering, and Invariants 3b and 4, on what applications got."""
        by_mid: dict[t.MessageId, t.Timestamp] = {}
        by_ts: dict[t.Timestamp, t.MessageId] = {}
        for group in self.topology.groups:
            logs = sorted((self.log(m) for m in self.members(group)), key=len)
            for log in logs:
                assert len(set(log)) == len(log), f"group {group} delivered something twice: {log}"
                assert log == logs[-1][: len(log)], f"group {group} has two orders: {log}, {logs[-1]}"
        for member, machine in self.machines.items():
            places = [delivery.global_ts for delivery in machine.log]
            assert places == sorted(places), f"{member} delivered against the order: {places}"
            for delivery in machine.log:
                assert by_mid.setdefault(delivery.mid, delivery.global_ts) == delivery.global_ts
                assert by_ts.setdefault(delivery.global_ts, delivery.mid) == delivery.mid

    # Sending. With `pump`, messages are carried at once: what can move, moves.

    def message(self, *dest: t.GroupId, client: t.ClientId = ANN) -> Multicast:
        """Return a new message of the client, not sent yet."""
        numbers = self._numbers.setdefault(client, Numbering(client))
        return numbers.next(tuple(sorted(dest)), b"payload")

    def send(self, m: Multicast, *targets: t.ReplicaId, at: float | None = None, pump: bool = False) -> None:
        """MULTICAST(m) leaves its client, now or later: to these, or to the leaders of its destinations."""
        for target in targets or [self.leader(group) for group in m.dest]:
            self._post(m.mid.client, target, m, self.now if at is None else at)
        if pump:
            self.pump()

    def multicast(self, *dest: t.GroupId, client: t.ClientId = ANN, pump: bool = False) -> Multicast:
        """A new message of the client, sent to the leaders of its destinations."""
        m = self.message(*dest, client=client)
        self.send(m, pump=pump)
        return m

    def raise_clock(self, group: t.GroupId, by: int) -> None:
        """The group delivers messages of its own until its clock is so much higher."""
        for _ in range(by):
            self.multicast(group, client=BOB)
        self.pump()

    def inject(self, source: t.Process, target: t.ReplicaId, message: Message) -> None:
        """Let a message that is late or repeated arrive now, past what is on the link."""
        self[target].step(source, message, self.now)
        self._drain(target)
        self.watch(target)

    # Links

    def hold(
        self, sources: Who | None = None, targets: Who | None = None, kind: type[Message] | None = None
    ) -> Hold:
        """From now on, `pump` leaves such messages, and whatever is behind them, where they are."""
        hold = Hold(sources, targets, kind)
        self._holds.append(hold)
        return hold

    def isolate(self, *members: t.ReplicaId) -> None:
        """Nothing reaches these, and nothing of theirs reaches anybody."""
        self.hold(sources=members)
        self.hold(targets=members)

    def release(self, *holds: Hold, pump: bool = False) -> None:
        """What these rules held, or all rules, may pass."""
        self._holds = [hold for hold in self._holds if holds and hold not in holds]
        if pump:
            self.pump()

    def lose(self, sources: Who | None = None, targets: Who | None = None) -> None:
        """These connections break: what is on them is lost."""
        for (source, target), link in self._links.items():
            if (sources is None or source in sources) and (targets is None or target in targets):
                link.clear()

    def pump(self, until: float = float("inf")) -> None:
        """Carry messages, earliest arrival first, until none can move (before that time)."""
        for _ in range(STEPS_MAX):
            heads = [link[0] for link in self._links.values() if link]
            ready = [sent for sent in heads if not any(hold.matches(sent) for hold in self._holds)]
            sent = min(ready, key=lambda sent: (sent.arrival, sent.number), default=None)
            if sent is None or sent.arrival > until:
                return
            self._links[sent.ends].popleft()
            self.now = max(self.now, sent.arrival)
            if isinstance(sent.target, t.ReplicaId) and self.machines[sent.target].replica is not None:
                self.inject(sent.source, sent.target, sent.message)
        raise AssertionError(f"still not quiet after {STEPS_MAX} messages")

    def _post(self, source: t.Process, target: t.Process, message: Message, at: float) -> None:
        self._count += 1
        link = self._links.setdefault((source, target), deque())
        arrival = at + self.delay(source, target, message)
        if link:
            arrival = max(arrival, link[-1].arrival)
        sent = Sent(self._count, source, target, message, arrival)
        self.traffic.append(sent)
        if source != target:
            link.append(sent)

    # Time, leaders, disks, crashes

    def tick(self, *members: t.ReplicaId, after: float = 0.0) -> None:
        """Let time pass, and let these replicas, and no others, notice."""
        self.now += after
        for member in members:
            self[member].tick(self.now)
            self._drain(member)

    def nominate(self, member: t.ReplicaId) -> None:
        """The leader selection service nominates a process: it calls `recover`."""
        self[member].recover()
        self._drain(member)

    def elect(self, member: t.ReplicaId) -> None:
        """Nominate a process, and let it become the leader."""
        self.nominate(member)
        self.pump()
        assert self[member].is_leader, f"{member} did not become leader"

    def hold_disk(self, *members: t.ReplicaId) -> None:
        """From now on, nothing these replicas write becomes durable."""
        for member in members:
            self.machines[member].disk_held = True

    def release_disk(self, *members: t.ReplicaId) -> None:
        """What waited for the disks of these replicas becomes durable."""
        for member in members:
            self.machines[member].disk_held = False
            self._flush(member)
            self._drain(member)

    def crash(self, *members: t.ReplicaId, lose: bool = False) -> None:
        """The processes die, with all that was not durable. What they have sent is on its way, or lost."""
        for member in members:
            machine = self.machines[member]
            self.machines[member] = Machine(durable=machine.durable)
            self.lose(targets=[member])
        if lose:
            self.lose(sources=members)

    def restart(self, *members: t.ReplicaId) -> None:
        """The processes are back, from what was durable; their applications start again with nothing."""
        for member in members:
            assert self.machines[member].replica is None, f"{member} is up"
            self.lose(sources=[member])
            self.lose(targets=[member])
            self._start(member)

    def _start(self, member: t.ReplicaId) -> None:
        machine = self.machines[member]
        rng = random.Random(str(member))
        start = Start(member, self.topology, rng, self.now, self.timing, machine.durable)
        machine.replica = WhiteBox(start)

    def _drain(self, member: t.ReplicaId) -> None:
        """Fulfil the contract of a host (`multicast`), until the replica has nothing left to do."""
        machine, replica = self.machines[member], self[member]
        while True:
            ready = replica.ready()
            self._send_all(member, ready.send)
            for delivery in ready.deliver:
                machine.log.append(delivery)
                machine.delivered_at[delivery.mid] = self.now
            if ready.persist or ready.promise:
                machine.batches.append((ready.persist, ready.promise))
                self._flush(member)
            if not machine.own:
                return
            replica.step(member, machine.own.popleft(), self.now)

    def _flush(self, member: t.ReplicaId) -> None:
        """Make batches durable, in order; a held disk lets only those pass that write nothing."""
        machine = self.machines[member]
        while machine.batches and not (machine.disk_held and machine.batches[0][0]):
            records, promises = machine.batches.popleft()
            machine.durable.apply(records)
            self._send_all(member, promises)

    def _send_all(self, source: t.ReplicaId, sends: Iterable[Send]) -> None:
        for receivers, message in sends:
            for receiver in receivers:
                self._post(source, receiver, message, self.now)
                if receiver == source:
                    self.machines[source].own.append(message)


def _spoken_of(message: object) -> tuple[t.MessageId, ...]:
    """The application messages that a protocol message is about."""
    if isinstance(message, (Accept, AcceptAck)):
        return message.mids
    if isinstance(message, Deliver):
        return tuple(mid for mid, _, _ in message.run)
    mid: t.MessageId | None = getattr(message, "mid", None)
    return () if mid is None else (mid,)
