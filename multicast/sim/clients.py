"""Simulated clients: each multicasts a number of messages to random groups, and may die half-way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multicast.client import MulticastRefused, Reply, Sender
from multicast.messages import Hint, Members, Message
from multicast.sim.checkers import Multicasts
from multicast.sim.host import Observer
from multicast.sim.network import Loop, Network
from multicast.topology import Topology
from multicast.types import ClientId, GroupId, MessageId, Process


@dataclass(frozen=True, slots=True)
class Workload:
    """The load of all clients."""

    clients: int = 4
    messages: int = 200
    """The number of messages of all clients together."""
    window: int = 4
    """The number of messages that a client has in flight."""
    think_s: float = 0.1
    """Mean pause before a client's next message."""
    spread: int = 3
    """The most destinations of one message."""
    payload: int = 24
    repeats: float = 0.1
    """The share of finished messages that arrive once more, as from a slow network."""


class SimClient:
    """A closed loop of multicasts, with a few in flight."""

    def __init__(
        self,
        client: ClientId,
        topology: Topology,
        workload: Workload,
        messages: int,
        *,
        loop: Loop,
        network: Network,
        rng: random.Random,
        multicasts: Multicasts,
        changed: Callable[[], None],
        observers: Sequence[Observer] = (),
    ) -> None:
        self.sender = Sender(client, topology)
        self.alive = True
        self.finished: list[MessageId] = []
        self.multicast: list[MessageId] = []
        self._topology = topology
        self._workload = workload
        self._left = messages
        self._loop = loop
        self._network = network
        self._rng = rng
        self._multicasts = multicasts
        self._wake_at = float("inf")
        self._changed = changed
        self._observers = observers
        for _ in range(workload.window):
            self._think()

    @property
    def idle(self) -> bool:
        """Whether it has nothing more to do: every message is answered, or the client is dead."""
        return not self.alive or (self._left <= 0 and not self.sender.pending)

    def _think(self) -> None:
        self._loop.at(self._loop.now + self._rng.expovariate(1 / self._workload.think_s), self._next)

    def destinations(self) -> Sequence[GroupId]:
        """Return the destinations of the next message."""
        groups = self._topology.groups
        most = min(self._workload.spread, len(groups))
        return self._rng.sample(groups, self._rng.randint(1, most))

    def _next(self) -> None:
        if not self.alive or self._left <= 0:
            return
        self._left -= 1
        self.submit(self.destinations(), self._rng.randbytes(self._workload.payload))

    def submit(self, dest: Sequence[GroupId], payload: bytes) -> MessageId:
        """Multicast one message now."""
        message = self.sender.multicast(dest, payload, self._loop.now)
        self._multicasts.add(message)
        self.multicast.append(message.mid)
        self._flush()
        return message.mid

    def die(self, *, halfway: bool) -> None:
        """Stop for ever; perhaps in the middle of sending one last message to its leaders."""
        if self.alive and halfway and self._left > 0:
            groups = sorted(self._rng.sample(self._topology.groups, min(2, len(self._topology.groups))))
            message = self.sender.multicast(groups, b"last words", self._loop.now)
            self._multicasts.add(message)
            self.multicast.append(message.mid)
            self.sender.sends = self.sender.sends[: self._rng.randint(0, len(groups) - 1)]
            self._flush()
        self.alive = False
        self._changed()

    def receive(self, sender: Process, message: object) -> None:
        """Handle an answer or a hint."""
        if not self.alive:
            return
        assert isinstance(message, (Reply, MulticastRefused, Hint, Members))
        for observer in self._observers:
            observer.received(self.sender.client, sender, message)
        self.sender.step(message, self._loop.now)
        finished, self.sender.finished = self.sender.finished, {}
        for mid in finished:
            self.finished.append(mid)
            self._think()
            if self._rng.random() < self._workload.repeats:
                self._loop.at(self._loop.now + 2 * self._rng.random(), self._repeat, mid)
        self._flush()
        self._changed()

    def _repeat(self, mid: MessageId) -> None:
        message = self._multicasts.known[mid]
        for group in message.dest:
            self._send(self._topology.members(group), message)

    def _tick(self) -> None:
        if self.alive:
            self._wake_at = float("inf")
            self.sender.tick(self._loop.now)
            self._flush()

    def _flush(self) -> None:
        for receivers, message in self.sender.drain():
            self._send(receivers, message)
        wake_at = self.sender.wake_at
        if wake_at is not None and wake_at < self._wake_at:
            self._wake_at = wake_at
            self._loop.at(wake_at, self._tick)

    def _send(self, receivers: Sequence[Process], message: Message) -> None:
        for observer in self._observers:
            observer.client_sent(self.sender.client, receivers, message)
        for receiver in receivers:
            self._network.send(self.sender.client, receiver, message)
