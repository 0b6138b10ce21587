"""The reply gate in a small world: groups are single processes that order by Skeen's protocol.

Time is virtual. What is left out (replicas, disks, elections) is what the gate does not see. Leaders do
change: the new one knows what was delivered and may not be closed, and nothing else. Histories are searched
for cycles in conflicts and real time. `Closed` sees all groups, and checks what a gate takes for closed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from kvstore.machine.request import Footprint
from kvstore.store.gate import Announcement, Gate
from multicast.queue import DeliveryQueue
from multicast.types import Destinations, GroupId, Timestamp, time_of, timestamp

DELAY_S = 0.001
"""What a message delay of the model, 1.0, is for the gate."""


@dataclass(eq=False, slots=True)
class Transaction:
    """What a client did, and when; what it touches in each group."""

    name: str
    footprints: dict[GroupId, Footprint]
    invoked: float
    responded: float | None = None
    waiting: set[GroupId] = field(default_factory=set)

    @property
    def destinations(self) -> Destinations:
        return tuple(sorted(self.footprints))


Delay: TypeAlias = Callable[[str, str, GroupId], float]
"""How long something takes: what it is, the transaction's name, and the group it comes to or is from."""

GateType: TypeAlias = type[Gate[Transaction]]


class World:
    """The groups, their links, and what has happened. Without a gate, answers leave on execution."""

    def __init__(
        self, groups: int, delay: Delay, gate: GateType | None, *, loses: random.Random | None = None
    ):
        self.now = 0.0
        self.delay = delay
        self.gate = gate
        self.loses = loses
        self.history: list[Transaction] = []
        self.accesses: dict[tuple[GroupId, bytes], list[tuple[Transaction, bool]]] = {}
        self.on_response: Callable[[Transaction], None] = lambda transaction: None
        self.groups = [Group(self, GroupId(number)) for number in range(groups)]
        self.closed: Closed | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, delay: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), what))

    def run(self, until: float = float("inf")) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def invoke(self, name: str, footprints: dict[GroupId, Footprint], *, read: bool = False) -> None:
        """A client multicasts a transaction, or sends a strict read to a group."""
        transaction = Transaction(name, footprints, self.now, waiting=set(footprints))
        self.history.append(transaction)
        for number in transaction.destinations:
            group = self.groups[number]
            arrive = group.read if read else group.multicast
            self.after(self.delay("multicast", name, number), partial(arrive, transaction))

    def access(self, transaction: Transaction, group: GroupId) -> None:
        """The transaction takes its place in the order of each of its keys."""
        footprint = transaction.footprints[group]
        for key in footprint.reads:
            self.accesses.setdefault((group, key), []).append((transaction, False))
        for key in footprint.writes:
            self.accesses.setdefault((group, key), []).append((transaction, True))

    def respond(self, transaction: Transaction, group: GroupId) -> None:
        transaction.waiting.discard(group)
        if not transaction.waiting and transaction.responded is None:
            transaction.responded = self.now
            self.on_response(transaction)


class Group:
    """A leader's part of Skeen's protocol, and the gate."""

    def __init__(self, world: World, number: GroupId) -> None:
        self.world = world
        self.number = number
        self.gate = world.gate(number) if world.gate else None
        self.clock = 0
        self.delivered: list[tuple[Timestamp, Transaction]] = []
        self._queue: DeliveryQueue[Transaction] = DeliveryQueue()
        self._proposals: dict[Transaction, dict[GroupId, Timestamp]] = {}
        self._global_ts: dict[Transaction, Timestamp] = {}
        self._unanswered: dict[Transaction, bool] = {}  # and whether it is executed
        self._deposed: list[Gate[Transaction]] = []
        self._wake_at = float("inf")

    def multicast(self, transaction: Transaction) -> None:
        self.clock += 1
        local_ts = timestamp(self.clock, self.number)
        self._queue.propose(local_ts, transaction)
        for number in transaction.destinations:
            if number != self.number:
                delay = self.world.delay("propose", transaction.name, number)
                arrive = self.world.groups[number].propose
                self.world.after(delay, partial(arrive, transaction, self.number, local_ts))
        self.propose(transaction, self.number, local_ts)

    def propose(self, transaction: Transaction, sender: GroupId, local_ts: Timestamp) -> None:
        proposals = self._proposals.setdefault(transaction, {})
        proposals[sender] = local_ts
        if len(proposals) < len(transaction.footprints):
            return
        del self._proposals[transaction]
        global_ts = max(proposals.values())
        self.clock = max(self.clock, time_of(global_ts))
        self._queue.commit(proposals[self.number], global_ts)
        self._global_ts[transaction] = global_ts
        while (ready := self._queue.pop()) is not None:
            self._deliver(ready, self._global_ts.pop(ready))
        self.turn()

    def _deliver(self, transaction: Transaction, global_ts: Timestamp) -> None:
        self.delivered.append((global_ts, transaction))
        self.world.access(transaction, self.number)
        self._unanswered[transaction] = False
        if self.gate is not None:
            footprint = transaction.footprints[self.number]
            self.gate.delivered(global_ts, transaction.destinations, transaction, footprint)
        self.world.after(
            self.world.delay("execute", transaction.name, self.number), partial(self._execute, transaction)
        )

    def _execute(self, transaction: Transaction) -> None:
        self._unanswered[transaction] = True
        if self.gate is None:
            self._answer(transaction)
        else:
            self.gate.executed(transaction)
            self.turn()

    def read(self, transaction: Transaction) -> None:
        """A strict read, of one group only: it sees what is delivered."""
        self.world.access(transaction, self.number)
        self._unanswered[transaction] = True
        if self.gate is not None:
            self.gate.read(transaction, transaction.footprints[self.number])
        self._execute(transaction)

    def _answer(self, transaction: Transaction) -> None:
        del self._unanswered[transaction]
        delay = self.world.delay("answer", transaction.name, self.number)
        self.world.after(delay, partial(self.world.respond, transaction, self.number))

    def turn(self) -> None:
        if self.gate is None:
            return
        gate = self.gate
        answers, announcements, calm = gate.turn(self.world.now * DELAY_S)
        if self.world.closed is not None:
            self.world.closed.check(self.number, gate.closed)
        for transaction in answers:
            self._answer(transaction)
        self._announce(announcements + calm)
        wake_at = gate.wake_at / DELAY_S
        if wake_at < self._wake_at:
            self._wake_at = wake_at
            self.world.after(wake_at - self.world.now + 1e-9, self._wake)

    def _wake(self) -> None:
        self._wake_at = float("inf")
        self.turn()

    def repeat(self) -> None:
        if self.gate is not None:
            self._announce(self.gate.repeat())

    def _announce(self, announcements: list[tuple[GroupId, Announcement]]) -> None:
        for number, announcement in announcements:
            if self.world.loses is None or self.world.loses.random() > 0.1:
                delay = self.world.delay("announce", "", number)
                self.world.after(delay, partial(self.world.groups[number].hear, announcement))

    def hear(self, announcement: Announcement) -> None:
        assert self.gate is not None
        self.gate.heard(announcement)
        self.turn()
        for gate in self._deposed:
            gate.heard(announcement)
            for transaction in gate.turn(self.world.now * DELAY_S).answers:
                if transaction in self._unanswered:
                    self._answer(transaction)

    def change_leader(self, *, behind: int = 0) -> None:
        """Another replica leads. It knows what is retained, and answers what is repeated to it.

        It may have to deliver again the last of what the old leader has delivered. Then the old one does not
        know that it is deposed, and keeps the reads that it has not answered yet.
        """
        old = self.gate
        if old is None or self.world.gate is None:
            return
        self.gate = self.world.gate(self.number)
        known = len(self.delivered) - behind
        for global_ts, transaction in self.delivered[:known]:
            if global_ts > old.closed:
                self.gate.delivered(global_ts, transaction.destinations)
        self.gate.new_ballot(timestamp(self.clock + 1, GroupId(0)))
        for global_ts, transaction in self.delivered[known:]:
            footprint = transaction.footprints[self.number]
            self.gate.delivered(global_ts, transaction.destinations, transaction, footprint)
        delivered = {transaction for _, transaction in self.delivered}
        for transaction, executed in self._unanswered.items():
            if executed and (transaction in delivered or not behind):
                self.gate.executed(transaction)
        if behind:
            self._deposed.append(old)
        self.repeat()
        self.turn()


class NotClosed(AssertionError):
    """A gate takes for closed what is not."""


class Closed:
    """Whatever falling path of messages one follows from what is closed, all its groups have delivered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._checked = [Timestamp(0)] * len(world.groups)

    def check(self, group: GroupId, closed: Timestamp) -> None:
        ceilings = {group: closed}
        todo = [group]
        while todo:
            here = todo.pop()
            for global_ts, transaction in reversed(self._world.groups[here].delivered):
                if global_ts <= self._checked[here]:
                    break
                if global_ts > ceilings[here]:
                    continue
                for there in transaction.destinations:
                    delivered = self._world.groups[there].delivered
                    if not delivered or delivered[-1][0] < global_ts:
                        raise NotClosed(f"{closed} at {group}: {there} has not delivered {transaction.name}")
                    if global_ts > max(self._checked[there], ceilings.get(there, 0)):
                        ceilings[there] = global_ts
                        todo.append(there)
        for number, ceiling in ceilings.items():
            self._checked[number] = max(self._checked[number], ceiling)


def cycle(world: World) -> list[str]:
    """The transactions that no order can put in line with conflicts and real time; none, if there is one.

    Real time is a line of moments: a response leads to its moment, a moment to the next, and an invocation's
    moment to its transaction.
    """
    after: dict[object, list[object]] = {}
    for accesses in world.accesses.values():
        writer: Transaction | None = None
        readers: list[Transaction] = []
        for transaction, writes in accesses:
            if writes:
                for before in [*readers, writer] if writer else readers:
                    after.setdefault(before, []).append(transaction)
                writer, readers = transaction, []
            else:
                readers.append(transaction)
                if writer:
                    after.setdefault(writer, []).append(transaction)
    moments = [(t.invoked, 0, t) for t in world.history]
    moments += [(t.responded, 1, t) for t in world.history if t.responded is not None]
    moments.sort(key=lambda moment: moment[:2])  # at the same time: invoked before the other has responded
    for number, (_, responds, transaction) in enumerate(moments):
        after.setdefault(number, []).append(number + 1)
        if responds:
            after.setdefault(transaction, []).append(number)
        else:
            after[number].append(transaction)
    return [node.name for node in _without_order(after) if isinstance(node, Transaction)]


def _without_order(after: dict[object, list[object]]) -> list[object]:
    """What remains when everything without predecessors, and without successors, is taken away."""
    for _ in range(2):
        count: dict[object, int] = dict.fromkeys(after, 0)
        for node, successors in after.items():
            for successor in successors:
                if successor is not node:
                    count[successor] = count.get(successor, 0) + 1
        free = [node for node, predecessors in count.items() if not predecessors]
        for node in free:
            for successor in after.get(node, ()):
                if successor is not node:
                    count[successor] -= 1
                    if not count[successor]:
                        free.append(successor)
        left = set(count) - set(free)
        backwards: dict[object, list[object]] = {}
        for node, successors in after.items():
            for successor in successors:
                if node in left and successor in left and node is not successor:
                    backwards.setdefault(successor, []).append(node)
        after = backwards
    return list(after)


class Workload:
    """Clients in closed loops. Delays have heavy tails, as of networks that lose packets."""

    def __init__(
        self,
        seed: int,
        gate: GateType | None,
        *,
        groups: int = 4,
        clients: int = 8,
        keys: int = 8,
        transactions: int = 10,
        reads: float = 0.2,
        leader_changes: bool = False,
        loses: bool = False,
        check_closed: bool = False,
    ) -> None:
        self._random = random.Random(seed)
        self.world = World(groups, self._delay, gate, loses=random.Random(seed) if loses else None)
        if check_closed:
            self.world.closed = Closed(self.world)
        self.world.on_response = self._next
        self._keys = keys
        self._reads = reads
        self._left = clients * transactions
        self._names = itertools.count()
        for _ in range(clients):
            self.world.after(self._random.random(), self._invoke)
        self._changes = leader_changes
        if leader_changes or loses:
            self.world.after(5.0, self._disturb)

    def run(self) -> World:
        self.world.run()
        assert all(transaction.responded is not None for transaction in self.world.history), "not answered"
        assert all(not group.gate for group in self.world.groups), "not closed"
        return self.world

    def _delay(self, what: str, name: str, group: GroupId) -> float:
        if what == "execute":
            return self._random.choice((0.0, 0.0, 0.0, 1.0))
        return 0.2 + self._random.paretovariate(1.1) * 0.3

    def _next(self, transaction: Transaction) -> None:
        self.world.after(0.01, self._invoke)

    def _invoke(self) -> None:
        if not self._left:
            return
        self._left -= 1
        draw = self._random
        groups = len(self.world.groups)
        read = draw.random() < self._reads
        number = 1 if read else min(groups, draw.choice((1, 1, 2, 2, 3)))
        footprints = {}
        for group in draw.sample(range(groups), number):
            keys = tuple({b"%d" % draw.randrange(self._keys) for _ in range(2)})
            reads = read or draw.random() < 0.3
            footprints[GroupId(group)] = Footprint(reads=keys) if reads else Footprint(writes=keys)
        self.world.invoke(f"T{next(self._names)}", footprints, read=read)

    def _disturb(self) -> None:
        """A timer that repeats announcements, and now and then another leader."""
        group = self._random.choice(self.world.groups)
        if self._changes and self._left:
            group.change_leader()
        for other in self.world.groups:
            other.repeat()
        unanswered = any(transaction.responded is None for transaction in self.world.history)
        if unanswered or any(group.gate for group in self.world.groups):
            self.world.after(5.0, self._disturb)
