"""Simulated watchers: they follow all changes, from node to node, and must miss none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kvstore.machine.commands import Tick
from kvstore.machine.request import Range
from kvstore.simulation.checks import Replay
from kvstore.store.feeds import MergedFeed, Transactions
from kvstore.store.gateway import Gateway
from kvstore.store.questions import Changes, CompactedReply, Event, Feed
from multicast.sim.checkers import Violation
from multicast.sim.network import Loop
from multicast.types import GroupId

if TYPE_CHECKING:
    from kvstore.simulation.store import StoreSimulation
    from kvstore.store.application import StoreApplication

EVERYTHING: Final = (Range(b"", None),)
PATIENCE_S: Final = 1.5
PROGRESS_S: Final = 0.4
PAGE_BYTES: Final = 60


class NodeWatch:
    """What a node does for a watcher: as `kvstore.store.service` does it, without its event loop."""

    def __init__(self, gateway: Gateway, loop: Loop, after: int, push: Callable[[Any], None]) -> None:
        self._gateway = gateway
        self._loop = loop
        self._push = push
        self._feed = MergedFeed(gateway.groups, after)
        self._passed_on, self._passed_on_at = after, loop.now
        self._asked: dict[GroupId, int] = {}
        self.closed = False
        for group in gateway.groups:
            self._ask(group)
        self._move()

    def close(self) -> None:
        """End the watch."""
        self.closed = True
        for number in self._asked.values():
            self._gateway.forget(number)

    def _ask(self, group: GroupId) -> None:
        if not self.closed:
            question = Feed(self._feed.upto[group], EVERYTHING, PAGE_BYTES, 0.3)
            self._asked[group] = self._gateway.ask(
                group, question, partial(self._answered, group), of_leader=False
            )

    def _answered(self, group: GroupId, response: Any) -> None:
        if self.closed:
            return
        if isinstance(response, CompactedReply):
            self.close()
            self._push(response)
            return
        if isinstance(response, Changes):
            self._feed.take(group, response)
        complete = self._feed.complete
        if complete > self._passed_on:
            found = self._feed.drain()
            if found or self._loop.now >= self._passed_on_at + PROGRESS_S:
                self._passed_on, self._passed_on_at = complete, self._loop.now
                self._push((complete, found))
        self._loop.at(self._loop.now + 0.01, self._ask, group)

    def _move(self) -> None:
        """Groups are moved past what waits to be passed on, or was told long ago."""
        if self.closed:
            return
        wanted = self._feed.wanted
        if self._loop.now >= self._passed_on_at + PROGRESS_S:
            wanted = max(wanted, self._passed_on + 1)
        for group, upto in self._feed.upto.items():
            if upto < wanted:
                self._gateway.command(group, Tick(), lambda _: None, at_least=wanted)
        self._loop.at(self._loop.now + 0.2, self._move)


class Watcher:
    """Follows all changes. What breaks its connection makes it ask another node for what comes after."""

    def __init__(self, simulation: StoreSimulation, number: int) -> None:
        self._simulation = simulation
        self._rng = simulation.fork(f"watcher {number}")
        self._loop = simulation.loop
        self.seen = 0
        self.batches: list[tuple[int, int, Transactions]] = []
        """After which revision, up to which, and what there was."""
        self.connections = 0
        self.gaps = 0
        """How often what was to come next was compacted."""
        self.over = False
        self._watch: NodeWatch | None = None
        self._heard_at = 0.0

    def start(self) -> None:
        """Begin to watch."""
        self._connect()
        self._look()

    def _connect(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        self.connections += 1
        self._heard_at = self._loop.now
        node = self._rng.randrange(self._simulation.scenario.replicas)
        handler = partial(self._open, self.connections)
        self._simulation.call(node, self._rng, handler, lambda _: None)

    def _open(self, connection: int, node: StoreApplication, _: Callable[[Any], None]) -> None:
        if connection == self.connections and not self.over:
            push = partial(self._pushed, connection, node)
            self._watch = NodeWatch(node.gateway, self._loop, self.seen, push)

    def _pushed(self, connection: int, node: StoreApplication, what: Any) -> None:
        """Something leaves the node. It comes in order, or not at all."""
        simulation = self._simulation
        if simulation.runs(node):
            at = max(self._loop.now + simulation.scenario.delays.sample(self._rng), self._heard_at)
            self._heard_at = at
            self._loop.at(at, self._heard, connection, what)

    def _heard(self, connection: int, what: Any) -> None:
        if connection != self.connections or self.over:
            return
        if isinstance(what, CompactedReply):
            self.gaps += 1
            self.seen = max(self.seen, what.floor)
            self._connect()
            return
        upto, found = what
        self.batches.append((self.seen, upto, found))
        self.seen = upto
        if self._rng.random() < 0.02 and not self._simulation.healed:
            self._connect()

    def _look(self) -> None:
        if self._simulation.done_at <= self.seen:
            self.over = True
            if self._watch is not None:
                self._watch.close()
        if not self.over:
            if self._loop.now > self._heard_at + PATIENCE_S:
                self._connect()
            self._loop.at(self._loop.now + 0.1, self._look)

    def check(self, found: Replay) -> None:
        """Every batch has exactly the transactions of the order, whole."""
        expected = events_of(found)
        for after, upto, transactions in self.batches:
            should = [(gts, events) for gts, events in expected if after < gts <= upto]
            if list(transactions) != should:
                raise Violation("Feed", f"after {after}, up to {upto}: {transactions}, not {should}")


def events_of(found: Replay) -> list[tuple[int, tuple[Event, ...]]]:
    """What each transaction changed, by the model."""
    events: dict[int, list[Event]] = {}
    for group in found.model.groups.values():
        before: dict[bytes, Any] = {}
        for revision, values in group.states:
            for key in before.keys() | values.keys():
                entry = values.get(key)
                if entry != before.get(key):
                    event = Event(key, None, 0, 0)
                    if entry is not None:
                        event = Event(key, entry.value, entry.create_revision, entry.version)
                    events.setdefault(revision, []).append(event)
            before = values
    return [(revision, tuple(sorted(each))) for revision, each in sorted(events.items())]
