"""What ordering a message costs three nodes, in CPU time, whatever else the machine does.

The nodes are real, with their disks and the wire format between them, but all in this process and thread, and
without sockets: so protocols, and versions of them, can be compared on a busy machine. Every message goes to
a random subset of the groups; so many are in flight, and come and are answered in bulk. Their clients' own
time does not count.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import json
import pstats
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosting import Host
from kvstore.bare.application import BareMulticast
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.node.directory import Directory
from kvstore.node.ports import Application
from kvstore.wire.frames import ORDERING_CODEC, Envelope
from multicast import PROTOCOLS, VARIANTS
from multicast.client import Reply, Sender
from multicast.protocol import Timing
from multicast.types import ClientId, GroupId, ReplicaId

PATIENT = Timing(retry_s=1000.0, election_s=10.0, heartbeat_s=0.1)
"""Nobody repeats anything: here messages wait for their turn, not for the network."""


class Bare(Host):
    """A node of bare multicast, in the machine's time."""

    def __init__(self, config: Config, me: NodeId, machine: Machine) -> None:
        self.machine = machine
        super().__init__(config, me, machine.hosts)

    def application(self, config: Config) -> Application:
        """Only the order counts."""
        return BareMulticast(self.disk.state)

    def now(self) -> float:
        """`ports.Clock`."""
        return self.machine.now

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """`ports.Network`."""
        self.machine.answers.append(ORDERING_CODEC.encode(envelopes))


class Machine:
    """Three of them, driven in turns, and their client."""

    def __init__(self, folder: Path, protocol: str, groups: int) -> None:
        self.now = 0.0
        self.answers: list[bytes] = []
        config = Config.local(
            3, groups, 1 if protocol == "skeen" else 3, folder, ports=range(1, 4), protocol=protocol,
            durability="os", application="multicast", timing=PATIENT,
        )  # fmt: skip
        self.hosts: dict[NodeId, Bare] = {}
        for node in config.nodes:
            self.hosts[node] = Bare(config, node, self)
        self.node_of = Directory(config.incarnations).node_of
        self.client = Sender(ClientId(1), config.topology, retry_s=1000.0)
        self.cpu_s = 0.0
        while not self._led():
            self.now += 0.05
            self.round()

    def _led(self) -> bool:
        led = {r.group for h in self.hosts.values() for r, p in h.node.replicas.items() if p.is_leader}
        return len(led) == len(self.client.topology.groups)

    def round(self) -> None:
        """A turn of every node; its CPU time counts."""
        for host in self.hosts.values():
            began = time.thread_time()
            host.turn()
            self.cpu_s += time.thread_time() - began

    def run(
        self, sets: Sequence[tuple[GroupId, ...]], in_flight: int, messages: int, rng: random.Random
    ) -> None:
        """Order so many messages, in closed loop."""
        asked = done = 0
        while done < messages:
            while asked - done < in_flight and asked < messages:
                self.client.multicast(rng.choice(sets), bytes(20), self.now)
                asked += 1
            self._ask()
            self.now += 0.002
            self.round()
            for data in self.answers:
                for _, _, answers in ORDERING_CODEC.decode(data):
                    for answer in answers:
                        assert isinstance(answer, Reply)
                        self.client.step(answer, self.now)
            self.answers.clear()
            done += len(self.client.finished)
            self.client.finished.clear()

    def _ask(self) -> None:
        frames: dict[NodeId, dict[ReplicaId, list[Any]]] = {}
        for receivers, message in self.client.drain():
            for receiver in receivers:
                assert isinstance(receiver, ReplicaId)
                node = self.node_of(receiver)
                assert node is not None
                frames.setdefault(node, {}).setdefault(receiver, []).append(message)
        for node, queues in frames.items():
            data = ORDERING_CODEC.encode(
                [(self.client.client, receiver, found) for receiver, found in queues.items()]
            )
            self.hosts[node].inbox.append((None, data))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--protocol", choices=PROTOCOLS | VARIANTS, default="whitebox")
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--dest", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=200)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    arguments = parser.parse_args()
    sets = list(itertools.combinations(map(GroupId, range(arguments.groups)), arguments.dest))
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), arguments.protocol, arguments.groups)
        rng = random.Random(1)
        machine.run(sets, arguments.in_flight, arguments.messages, rng)
        for _ in range(arguments.rounds):
            gc.collect()
            machine.cpu_s = 0.0
            for host in machine.hosts.values():
                host.frames = host.bytes = 0
            if arguments.profile:
                with cProfile.Profile() as profile:
                    machine.run(sets, arguments.in_flight, arguments.messages, rng)
                pstats.Stats(profile).sort_stats("tottime").print_stats(30)
                return
            machine.run(sets, arguments.in_flight, arguments.messages, rng)
            figures.append(machine.cpu_s / arguments.messages * 1e6)
        bytes_each = sum(host.bytes for host in machine.hosts.values()) / arguments.messages
        frames_each = sum(host.frames for host in machine.hosts.values()) / arguments.messages
    best, median = min(figures), statistics.median(figures)
    if arguments.json:
        print(
            json.dumps({"us_per_message": median, "best": best, "bytes": bytes_each, "frames": frames_each})
        )
    else:
        print(
            f"{median:.0f} us of CPU per message (best {best:.0f}), all nodes together; "
            f"{bytes_each:.0f} bytes in {frames_each:.2f} frames between nodes"
        )


if __name__ == "__main__":
    main()
