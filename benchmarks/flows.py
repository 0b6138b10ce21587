"""Pictures of every protocol's message flow, where each link takes a time δ, and disks take none.

In the first set, a client multicasts m to two groups that have nothing else to do. In the second, the convoy,
another message reaches a leader just before its clock passes m's global timestamp: the worst that can happen
to m without failures. The pictures of a set have one scale, so that 3δ and 6δ look different at a glance.

`python -m benchmarks.flows` writes them to docs/flows/.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

from multicast import PROTOCOLS
from multicast.client import Reply
from multicast.process import Replica
from multicast.sim import Scenario, Simulation, Workload
from multicast.sim.diagram import Unit, render_svg
from multicast.sim.host import DiskDelays
from multicast.sim.network import Delays
from multicast.sim.trace import DELIVER, LEAD, Event, Flow, FlowRecorder, Mark
from multicast.types import ClientId, GroupId, MessageId

FOLDER = Path(__file__).parents[1] / "docs" / "flows"
WIDTH = 1000
TITLES = {
    "whitebox": "White-box multicast",
    "fastcast": "FastCast",
    "ftskeen": "Fault-tolerant Skeen",
    "skeen": "Skeen's protocol",
}
DELTA_S = 1 / 64
"""A power of two, so that sums of it are exact."""
START_S = 1.0
"""When m is multicast: every group has a leader by then."""
LONGEST, LONGEST_CONVOY = 7, 13
"""How many δ the slowest protocol needs: what the axes show."""
JUST = 1 / 16
"""How long before is just before, in δ."""
A, B = GroupId(0), GroupId(1)
ANN, BOB = ClientId(1), ClientId(2)


class Run:
    """Two groups with leaders and nothing to do, until ANN multicasts m to both."""

    def __init__(self, protocol: str, *, ahead_at_b: bool) -> None:
        self.recorder = FlowRecorder()
        self.alone = protocol == "skeen"
        scenario = Scenario(
            PROTOCOLS[protocol], groups=2, replicas=1 if self.alone else 3, faults="none",
            workload=Workload(clients=2, messages=0, repeats=0), delays=Delays(DELTA_S, DELTA_S),
            disk=DiskDelays(0, 0), skew=0, turn_s=0,
        )  # fmt: skip
        self.simulation = Simulation(scenario, seed=1, observers=[self.recorder])
        self.recorder.loop = self.simulation.loop
        self.names: dict[str, str] = {}
        self.mids: list[MessageId] = []
        topology = self.simulation.topology
        self.leaders = [topology.preferred_leader(group) for group in topology.groups]
        self.simulation.start()
        if ahead_at_b:  # so that B's local timestamp is the global one
            self.at(-20, self.raise_clock)
        self.at(0, self.multicast)

    def at(self, deltas: float, call: Callable[[], None]) -> None:
        self.simulation.loop.at(START_S + deltas * DELTA_S, call)

    def raise_clock(self) -> None:
        for _ in range(2):
            self.simulation.clients[ANN].submit((B,), b"")

    def multicast(self) -> None:
        self.name(self.simulation.clients[ANN].submit((A, B), b""), "m")

    def conflict(self) -> None:
        """BOB multicasts m', which takes no time to A's leader, but δ to B's."""
        simulation, bob = self.simulation, self.simulation.clients[BOB].sender
        message = bob.multicast((A, B), b"", simulation.loop.now)
        bob.drain()
        self.name(message.mid, "m'")
        simulation.multicasts.add(message)
        self.recorder.client_sent(BOB, self.leaders, message)
        simulation.hosts[self.leaders[0]].receive(BOB, message)
        simulation.network.send(BOB, self.leaders[1], message)

    def name(self, mid: MessageId, name: str) -> None:
        self.mids.append(mid)
        self.names[str(mid)] = name

    def clock_passes(self) -> float:
        """How many δ after the start A's leader passes m's global timestamp: its clock's second step."""
        host = self.simulation.hosts[self.leaders[0]]
        self.run_until(lambda: isinstance(host.replica, Replica) and host.replica.clock > 1)
        return since_start(self.simulation.loop.now)

    def finish(self) -> None:
        """Run until every replica has delivered every message."""
        hosts = self.simulation.hosts.values()
        self.run_until(
            lambda: bool(self.mids) and all(m in host.positions for host in hosts for m in self.mids)
        )
        leaders = [host.me for host in hosts if host.replica is not None and host.replica.is_leader]
        if leaders != self.leaders:
            raise RuntimeError(f"{leaders} lead, but the client expected {self.leaders}")

    def run_until(self, done: Callable[[], bool]) -> None:
        if not self.simulation.run_until(done, START_S + DELTA_S * LONGEST_CONVOY):
            raise RuntimeError(f"m was not delivered within {LONGEST_CONVOY}δ")

    def latency(self, *, leaders: bool) -> float:
        """When the last leader, or the last follower, has delivered m, in δ."""
        marks = [mark for mark in self.recorder.flow.events if isinstance(mark, Mark)]
        mine = [m for m in marks if m.kind == DELIVER and m.text.split()[0] == str(self.mids[0])]
        return max((since_start(m.at) for m in mine if (m.process in self.leaders) == leaders), default=0.0)

    def flow(self) -> Flow:
        """What happened, with times in δ, without answers to clients, nor elections of lone processes."""
        events: list[Event] = []
        for event in self.recorder.flow.events:
            if isinstance(event, Mark):
                if event.kind != LEAD or not self.alone:
                    events.append(dataclasses.replace(event, at=since_start(event.at)))
            elif not isinstance(event.message, Reply):
                assert event.sent_at is not None
                arrived = None if event.arrived_at is None else since_start(event.arrived_at)
                events.append(
                    dataclasses.replace(event, sent_at=since_start(event.sent_at), arrived_at=arrived)
                )
        return Flow(events, since_start(self.simulation.loop.now), slowest_s=1.0)


def since_start(at: float) -> float:
    """A time in δ."""
    return (at - START_S) / DELTA_S


def run(protocol: str, *, convoy: bool) -> Run:
    """One protocol, with or without a message that gets in the way."""
    found = Run(protocol, ahead_at_b=convoy)
    if convoy:
        found.at(Run(protocol, ahead_at_b=True).clock_passes() - JUST, found.conflict)
    found.finish()
    return found


def picture(protocol: str, *, convoy: bool) -> str:
    """The flow of one run as SVG."""
    found = run(protocol, convoy=convoy)
    deliverers, almost = "processes" if found.alone else "leaders", "almost " if convoy else ""
    title = TITLES[protocol] + (", convoy: m waits for m'; " if convoy else ": ")
    title += f"{deliverers} deliver m after {almost}{math.ceil(found.latency(leaders=True))}δ"
    if followers := found.latency(leaders=False):
        title += f", followers after {math.ceil(followers)}δ"
    names = {"c1": "client", "c2": "client", **found.names}
    for replica in found.simulation.hosts:
        led = "process" if found.alone else "leader"
        names[str(replica)] = led if replica in found.leaders else "follower"
    return render_svg(
        found.flow(), start_s=-0.25, end_s=(LONGEST_CONVOY if convoy else LONGEST) + 0.25,
        title=title, width=WIDTH, unit=Unit("δ", 1, 1), names=names,
    )  # fmt: skip


def pictures() -> dict[str, str]:
    """All pictures, by the names of their files."""
    return {
        f"{protocol}{'-convoy' if convoy else ''}.svg": picture(protocol, convoy=convoy)
        for protocol in TITLES
        for convoy in (False, True)
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, encoding="utf-8", newline="\n")
        print(f"wrote {FOLDER / name}")


if __name__ == "__main__":
    main()
