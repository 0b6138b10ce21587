"""What ordering a message costs, in CPU time of all replicas together, with no network and no disk.

Replicas are wired to each other in memory. Each in turn handles everything that has come for it and drains
its `Ready` once, as a node does in one turn of its loop. CPU time includes this wiring.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from multicast import PROTOCOLS
from multicast.messages import Message
from multicast.numbering import Numbering
from multicast.process import Replica
from multicast.protocol import Start
from multicast.sim.delays import group_size
from multicast.topology import Topology
from multicast.types import ClientId, Destinations, GroupId, MessageId, Process
from multicast.whitebox import WhiteBox

CLIENT = ClientId(1)


class Wiring:
    """Replicas in one process; virtual time moves only when nothing else can."""

    def __init__(self, groups: int, replicas: int, protocol: type[Replica[Any]] = WhiteBox) -> None:
        self.topology = Topology.uniform(groups, replicas)
        self.now = 0.0
        members = [m for g in self.topology.groups for m in self.topology.members(g)]
        self.replicas = {m: protocol(Start(m, self.topology, random.Random(str(m)), 0.0)) for m in members}
        everyone: list[Process] = [CLIENT, *members]
        self.links: dict[Process, dict[Process, list[Message]]] = {
            source: {target: [] for target in members} for source in everyone
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
        """Other groups exist, but live elsewhere: their own heartbeats are not these messages' cost."""
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
        """What the client does; its time is not the replicas'."""
        for mid in self.in_flight:
            self.numbers.done(mid.sequence)
        self.in_flight = []
        for dest in dests:
            message = self.numbers.next(dest, payload)
            self.in_flight.append(message.mid)
            for group in dest:
                self.links[CLIENT][self.leaders[group]].append(message)

    def run(self, sets: Sequence[Destinations], payload: bytes, in_flight: int, messages: int) -> float:
        """Order so many messages to any of these sets of groups, some of them in flight at any time; CPU
        seconds for each.
        """
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


def rounds(wiring: Wiring, sets: Sequence[Destinations], arguments: argparse.Namespace) -> Iterator[float]:
    for _ in range(arguments.rounds):
        gc.collect()
        yield wiring.run(sets, bytes(arguments.payload), arguments.in_flight, arguments.messages) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="whitebox")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--dest", type=int, default=2)
    parser.add_argument("--random", action="store_true", help="each message to a random subset of the groups")
    parser.add_argument("--payload", type=int, default=60)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--messages", type=int, default=1280)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sets = list(itertools.combinations(map(GroupId, range(arguments.groups)), arguments.dest))
    protocol: Any = PROTOCOLS[arguments.protocol]
    wiring = Wiring(arguments.groups, group_size(protocol, arguments.replicas), protocol)
    figures = list(rounds(wiring, sets if arguments.random else sets[:1], arguments))
    median, best = statistics.median(figures), min(figures)
    if arguments.json:
        print(json.dumps({"us_per_message": median, "best": best, "rounds": figures}))
    else:
        print(f"{median:.1f} us of CPU per message (best {best:.1f}), all replicas together")


if __name__ == "__main__":
    main()
