"""Simulated clients of the store: each calls nodes' gateways over connections that break, and tries again.

What a client does is a script: a generator that yields what it asks for and gets what became of it, or None
if the outcome is unknown. A client runs several at the same time, as one session.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kvstore.machine.commands import Tick
from kvstore.simulation.history import Asked, Call, Cut, OrderCall, ReadAtCall, StrictCall, Think, Transact
from kvstore.store import errors
from kvstore.store.application import StoreApplication
from kvstore.store.gateway import Committed, Identity, Ordered
from kvstore.store.questions import NotYetReply, Values
from kvstore.store.questions import ReadAt as AtQuestion
from kvstore.store.questions import StrictRead as StrictQuestion
from multicast.numbering import Numbering
from multicast.sim.run import WALL_S
from multicast.types import TICKS_PER_S, ClientId, GroupId, timestamp

if TYPE_CHECKING:
    from kvstore.simulation.store import StoreSimulation

Script: TypeAlias = Generator[Asked | Think, Any, None]
Done: TypeAlias = Callable[[Any], None]

AGAIN: Final = (errors.Unavailable, errors.Overloaded, errors.FutureRevision, errors.DeadlinePassed)
"""Errors that say that nothing has happened: retry."""

TIMEOUTS_S: Final = (0.3, 1.5)
LIFE_S: Final = 60.0


class StoreClient:
    """One session."""

    def __init__(self, simulation: StoreSimulation, number: int, share: int) -> None:
        self.simulation = simulation
        self.rng = random.Random(f"{simulation.seed} store client {number}")
        self.number = number
        self.id = self.rng.getrandbits(63)
        self.home = number % simulation.scenario.replicas
        """The node that it asks first."""
        self.alive = True
        self.seen = 0
        """The highest revision that it has seen."""
        self._left = share
        self._numbering = Numbering(ClientId(self.id))
        self.lanes: list[Lane] = []

    def start(self, script: Callable[[StoreClient], Script], lanes: int) -> None:
        """Run the script so many times at once."""
        self.lanes = [Lane(self, script(self)) for _ in range(lanes)]
        for lane in self.lanes:
            lane.resume(None)

    def more(self) -> bool:
        """Whether the script has something left to do, which is taken."""
        self._left -= 1
        return self._left >= 0

    @property
    def idle(self) -> bool:
        """Whether it has nothing more to do."""
        return not self.alive or all(lane.over for lane in self.lanes)

    def identity(self) -> Identity:
        """The next request's."""
        number = self._numbering.take()
        life_s = LIFE_S if self.rng.random() < 0.95 else self.rng.uniform(0.0, 0.5)
        return Identity(self.id, number, self._numbering.ack_below, self.revision_in(life_s))

    def revision_in(self, seconds: float) -> int:
        """What revisions will be like then."""
        return timestamp(int((WALL_S + self.simulation.loop.now + seconds) * TICKS_PER_S), GroupId(0))

    def know(self, identity: Identity) -> None:
        """The request has a definite result."""
        self._numbering.done(identity.sequence)


class Lane:
    """One script of a client, and the call that it waits for."""

    def __init__(self, client: StoreClient, script: Script) -> None:
        self._client = client
        self._simulation = client.simulation
        self._script = script
        self.over = False
        self.call: Call | None = None
        self._attempt = 0

    def resume(self, outcome: Any) -> None:
        """Go on with the script."""
        self.call = None
        if not self._client.alive:
            return
        try:
            asked = self._script.send(outcome)
        except StopIteration:
            self.over = True
            return
        loop, client = self._simulation.loop, self._client
        if isinstance(asked, Think):
            loop.at(loop.now + asked.seconds, self.resume, None)
            return
        identity = client.identity() if isinstance(asked, Transact) else None
        self.call = self._simulation.history.invoke(client.id, asked, loop.now, identity)
        self._try(self.call)

    def _try(self, call: Call) -> None:
        if call is not self.call or not self._client.alive:
            return
        rng, loop = self._client.rng, self._simulation.loop
        call.attempts += 1
        self._attempt = call.attempts
        node = self._client.home
        if call.attempts > 1 or rng.random() < 0.1:
            node = rng.randrange(self._simulation.scenario.replicas)
        timeout_s = rng.uniform(*TIMEOUTS_S)
        handler = partial(_HANDLERS[type(call.asked)], self._simulation, call, timeout_s)
        self._simulation.call(node, rng, handler, partial(self._answer, call, call.attempts))
        loop.at(loop.now + timeout_s, self._timeout, call, call.attempts)

    def _timeout(self, call: Call, attempt: int) -> None:
        if call is self.call and attempt == self._attempt:
            if self._client.rng.random() < 0.05:
                self.resume(None)
            else:
                self._try(call)

    def _answer(self, call: Call, attempt: int, outcome: Any) -> None:
        if call is not self.call:
            call.more.append(outcome)
        elif not isinstance(outcome, AGAIN) or isinstance(call.asked, OrderCall):
            self._finish(call, outcome)
        elif attempt == self._attempt:
            self._attempt = 0
            loop, rng = self._simulation.loop, self._client.rng
            loop.at(loop.now + rng.uniform(0.01, 0.1), self._try, call)

    def _finish(self, call: Call, outcome: Any) -> None:
        client, loop = self._client, self._simulation.loop
        if not client.alive:
            return
        call.returned = loop.now
        call.outcome = outcome
        if call.identity is not None:
            client.know(call.identity)
            if client.rng.random() < 0.1:
                loop.at(loop.now + client.rng.expovariate(2.0), self._repeat, call)
        if isinstance(outcome, Committed | Values):
            client.seen = max(client.seen, outcome.revision)
        self.resume(outcome)

    def _repeat(self, call: Call) -> None:
        """A request turns up once more, as from a slow network."""
        rng = self._client.rng
        handler = partial(_HANDLERS[type(call.asked)], self._simulation, call, 1.0)
        node = rng.randrange(self._simulation.scenario.replicas)
        self._simulation.call(node, rng, handler, partial(self._answer, call, 0))


# What a node does for a client: as `kvstore.store.service` does it, without its event loop.


def _transact(_: StoreSimulation, call: Call, __: float, node: StoreApplication, done: Done) -> None:
    assert isinstance(call.asked, Transact)
    node.gateway.transact(call.asked.transaction, done, identity=call.identity)


def _strict(
    simulation: StoreSimulation, call: Call, timeout_s: float, node: StoreApplication, done: Done
) -> None:
    assert isinstance(call.asked, StrictCall)
    question = StrictQuestion(call.asked.operations)
    number = node.gateway.ask(call.asked.group, question, done, of_leader=True)
    simulation.loop.at(simulation.loop.now + timeout_s, node.gateway.forget, number)


def _at(
    simulation: StoreSimulation, call: Call, timeout_s: float, node: StoreApplication, done: Done
) -> None:
    """A replica that has not come so far is asked again, when its group has been made to move."""
    asked, loop, gateway = call.asked, simulation.loop, node.gateway
    assert isinstance(asked, ReadAtCall)
    until = loop.now + timeout_s

    def ask(_: object = None) -> None:
        if loop.now < until:
            question = AtQuestion(asked.operations, asked.revision)
            number = gateway.ask(asked.group, question, answered, of_leader=False)
            loop.at(until, gateway.forget, number)

    def answered(response: Any) -> None:
        if isinstance(response, NotYetReply):
            gateway.command(asked.group, Tick(), moved, at_least=asked.revision)
        else:
            done(response)

    def moved(_: Ordered | errors.StoreError) -> None:
        loop.at(loop.now + 0.02, ask)

    ask()


def _cut(_: StoreSimulation, call: Call, __: float, node: StoreApplication, done: Done) -> None:
    assert isinstance(call.asked, Cut)
    node.gateway.cut(call.asked.ranges, done)


def _order(_: StoreSimulation, call: Call, __: float, node: StoreApplication, done: Done) -> None:
    asked = call.asked
    assert isinstance(asked, OrderCall)
    node.gateway.command(asked.group, asked.command, done, at_least=asked.at_least)


_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    Transact: _transact,
    StrictCall: _strict,
    ReadAtCall: _at,
    Cut: _cut,
    OrderCall: _order,
}
