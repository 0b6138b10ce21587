"""What ordering a message of 60 bytes costs, in CPU time of all replicas together, without network and disk.

Replicas are wired to each other in memory. Each in turn handles everything that has come for it and drains
its `Ready` once, as a node does in one turn of its loop. CPU time includes this wiring. 64 messages are in
flight, each to a random set of groups. The protocols take turns.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.record import Benchmark, Figure
from multicast import PROTOCOLS
from multicast.messages import Message
from multicast.numbering import Numbering
from multicast.process import Replica
from multicast.protocol import Start
from multicast.topology import Topology
from multicast.types import ClientId, Destinations, GroupId, MessageId, Process
from multicast.whitebox import WhiteBox

CLIENT = ClientId(1)
PAYLOAD, IN_FLIGHT = bytes(60), 64


class Wiring:
    """Replicas in one process; virtual time moves only when nothing else can."""

    def __init__(self, groups: int, replicas: int, protocol: type[Replica[Any]] = WhiteBox) -> None:
        self.topology = Topology.uniform(groups, replicas)
        self.now = 0.0
        members = [m for g in self.topology.groups for m in self.topology.members(g)]
        self.replicas = {m: protocol(Start(m, self.topology, random.Random(str(m)), 0.0)) for m in members}
        senders: list[Process] = [CLIENT, *members]
        self.links: dict[Process, dict[Process, list[Message]]] = {
            source: {target: [] for target in members} for source in senders
        }
        """By sender, then by receiver: what a real link would carry in one frame."""
        self.delivered = 0
        while not all(any(self.replicas[m].is_leader for m in self.topology.members(g))
                      for g in self.topology.groups):  # fmt: skip
            self.tick()
            self.turn()
        self.leaders = {
            g: next(m for m in self.topology.members(g) if self.replicas[m].is_leader)
            for g in self.topology.groups
        }
        self.numbers = Numbering(CLIENT)
        self.in_flight: list[MessageId] = []
        self.rng = random.Random(1)

    def retire(self, kept: Destinations) -> None:
        """Remove the replicas of other groups, which exist elsewhere: their heartbeats do not count."""
        self.replicas = {me: replica for me, replica in self.replicas.items() if me.group in kept}
        self.links = {
            source: {target: messages for target, messages in links.items() if target in self.replicas}
            for source, links in self.links.items()
            if source == CLIENT or source in self.replicas
        }

    def tick(self) -> None:
        self.now += 0.05
        for replica in self.replicas.values():
            replica.executed(replica.last_delivered)
            replica.tick(self.now)

    def turn(self) -> None:
        """Every replica handles what it has received, once."""
        for me, replica in self.replicas.items():
            for sender, links in self.links.items():
                messages = links[me]
                if messages:
                    links[me] = []
                    replica.receive(sender, messages, self.now)
            ready = replica.ready()
            links = self.links[me]
            for sends in (ready.send, ready.promise):
                for receivers, message in sends:
                    for receiver in receivers:
                        links[receiver].append(message)
            self.delivered += len(ready.deliver)

    def busy(self) -> bool:
        return any(messages for links in self.links.values() for messages in links.values())

    def multicast(self, dests: Sequence[Destinations], payload: bytes) -> None:
        """Send messages as a client. Its time does not count."""
        for mid in self.in_flight:
            self.numbers.done(mid.sequence)
        self.in_flight = []
        for dest in dests:
            message = self.numbers.next(dest, payload)
            self.in_flight.append(message.mid)
            for group in dest:
                self.links[CLIENT][self.leaders[group]].append(message)

    def run(self, sets: Sequence[Destinations], payload: bytes, in_flight: int, messages: int) -> float:
        """Order messages to random sets of groups. Returns CPU seconds of each message."""
        expected = self.delivered + messages * sum(len(self.topology.members(g)) for g in sets[0])
        used = 0.0
        for _ in range(messages // in_flight):
            self.multicast(self.rng.choices(sets, k=in_flight), payload)
            start = time.process_time()
            while self.busy():
                self.turn()
            self.tick()
            self.turn()
            used += time.process_time() - start
        if self.delivered != expected:
            raise SystemExit(f"delivered {self.delivered}, expected {expected}")
        return used / messages


def rounds(
    wirings: Mapping[str, Wiring], sets: Sequence[Destinations], messages: int, count: int
) -> dict[str, list[float]]:
    """CPU microseconds of a message in each wiring, taken in turns: a noisy machine disturbs all alike."""
    found: dict[str, list[float]] = {name: [] for name in wirings}
    for _ in range(count):
        for name, wiring in wirings.items():
            gc.collect()
            found[name].append(wiring.run(sets, PAYLOAD, IN_FLIGHT, messages) * 1e6)
    return found


def costs(sizes: Any) -> Iterator[Figure]:
    """Each protocol, by destinations."""
    for groups, dest, fewer in ((2, 2, 1), (10, 4, 4), (10, 10, 8)):
        sets = list(itertools.combinations(map(GroupId, range(groups)), dest))
        protocols = {name: protocol for name, protocol in PROTOCOLS.items() if name != "skeen"}
        wirings = {name: Wiring(groups, 3, protocol) for name, protocol in protocols.items()}  # type: ignore[arg-type]  # all but Skeen's have replicas
        messages = max(IN_FLIGHT, sizes.messages // fewer)
        for name, samples in rounds(wirings, sets, messages, sizes.rounds).items():
            yield Figure.of(f"to {dest} of {groups} groups of 3, {name}", "µs of CPU", samples)


def scaling(sizes: Any) -> Iterator[Figure]:
    """Whether a message costs the same after many others, and beside many other groups."""
    young, aged, beside = Wiring(2, 3), Wiring(2, 3), Wiring(32, 3)
    dest = [(GroupId(0), GroupId(1))]
    while aged.delivered < 6 * sizes.aged:
        aged.run(dest, PAYLOAD, IN_FLIGHT, 64 * IN_FLIGHT)
    beside.retire(dest[0])
    found = rounds({"young": young, "aged": aged, "beside": beside}, dest, sizes.messages, sizes.rounds)
    names = {"aged": f"after {sizes.aged:,} messages / at first", "beside": "beside 30 groups / alone"}
    for key, name in names.items():
        ratios = [one / other for one, other in zip(found[key], found["young"], strict=True)]
        yield Figure.of(f"ratio of CPU: {name}", "", ratios)
    held = [len(replica.entries) for replica in aged.replicas.values()]
    yield Figure.of("entries that a replica holds then", "", held)


def measure(sizes: Any) -> Iterator[Figure]:
    """Costs, and how they scale."""
    yield from costs(sizes)
    yield from scaling(sizes)


BENCHMARK = Benchmark(
    "core_cost", "ordering", __doc__, measure,
    {"messages": (1280, 128), "rounds": (20, 2), "aged": (300_000, 1_000)},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
