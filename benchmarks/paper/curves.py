"""Latency over throughput with growing numbers of clients: the paper's Figures 4 (LAN) and 5 (WAN)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.load import Plan
from benchmarks.paper.clusters import GIVE_BACK_S, Clusters, as_plan, from_plan, in_turns
from benchmarks.paper.points import Point
from benchmarks.paper.runner import Measure
from multicast.protocol import Timing

PROTOCOLS: Final = ("whitebox", "fastcast", "ftskeen")
DESTINATIONS: Final = (1, 2, 4, 6, 8, 10)

MODERATE: Final = 30
"""Clients of the wide area at moderate load: ten in each region. The tables say what share of the local
area's peak that makes, for each protocol and number of destinations; see docs/evaluation.md."""
LONE: Final = 3
"""Clients of the wide area whose messages hardly ever conflict: one in each region."""

NEAR: Final = Timing(give_back_s=GIVE_BACK_S)
FAR: Final = Timing(give_back_s=GIVE_BACK_S, retry_s=2.0)
"""In the wide area, messages are not repeated just because they take long."""

MIDDLE: Final = 1
"""The node of the region that is nearest to the others."""
SETTLE_S: Final = 0.0003
_TURN_S: Final = 1.5
"""Seconds of a turn beside its warm-up and its round: client processes start, connect, and end."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Every number of destinations with every number of clients, the protocols taking turns in each point."""

    name: str
    protocols: Sequence[str]
    destinations: Sequence[int]
    clients: Sequence[int]
    rounds: int
    base: Plan
    """The plan of every turn, apart from its protocol, destinations and clients."""
    together: int | None = None
    """The node that leads all groups; without one, leaders are spread."""
    settle_per_client_s: float = 0.0
    """More warm-up and a longer round for each client and destination: a closed loop of many needs as long to
    become steady as its messages wait for each other."""

    def points(self) -> list[Point]:
        """All points. Those with the same destinations follow each other: peaks are neighbours in time."""
        return [self._point(dest, clients) for dest in self.destinations for clients in self.clients]

    def _point(self, dest: int, clients: int) -> Point:
        load = self._load(dest, clients)
        plan = {"protocols": list(self.protocols), "rounds": self.rounds, "load": as_plan(load)}
        if self.together is not None:
            plan["together"] = self.together
        turn_s = load.warm_up_s + load.seconds + _TURN_S
        turns = self.rounds * len(self.protocols)
        return Point(self.name, f"dest{dest:02}-clients{clients:04}", plan, turns * turn_s)

    def _load(self, dest: int, clients: int) -> Plan:
        more_s = round(self.settle_per_client_s * clients * dest, 2)
        warm_up_s, seconds = self.base.warm_up_s + more_s, self.base.seconds + more_s
        return replace(self.base, dest=dest, clients=clients, rounds=1, warm_up_s=warm_up_s, seconds=seconds)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Measure]:
        """Clusters of all protocols are up together."""
        with Clusters(len(self.protocols), self.together) as clusters:

            def measure(point: Point) -> dict[str, Any]:
                load = from_plan(point.plan["load"])
                plans = [replace(load, protocol=protocol) for protocol in point.plan["protocols"]]
                return in_turns(plans, point.plan["rounds"], clusters)

            yield measure


def lan(protocols: Sequence[str] = PROTOCOLS, *, quick: bool = False) -> Curves:
    """Ten groups of three on three nodes of one machine."""
    if quick:
        base = Plan(warm_up_s=0.5, seconds=1.0, timing=NEAR)
        return Curves("lan", protocols, (1, 2, 10), (10, 200), 1, base, settle_per_client_s=2 * SETTLE_S)
    base = Plan(warm_up_s=0.5, seconds=1.2, timing=NEAR)
    clients = (1, 10, 50, 200, 500, 1000)
    return Curves("lan", protocols, DESTINATIONS, clients, 3, base, settle_per_client_s=SETTLE_S)


def wan(protocols: Sequence[str] = PROTOCOLS, *, quick: bool = False) -> Curves:
    """The same in three emulated regions, with clients in each."""
    if quick:
        base = Plan(warm_up_s=1.0, seconds=1.5, regions=True, timing=FAR)
        return Curves("wan", protocols, (1, 2, 10), (LONE, MODERATE), 1, base)
    base = Plan(warm_up_s=1.0, seconds=2.5, regions=True, timing=FAR)
    clients = (LONE, MODERATE, 100, 600)
    return Curves("wan", protocols, DESTINATIONS, clients, 2, base, settle_per_client_s=SETTLE_S)


def together(protocols: Sequence[str] = PROTOCOLS, *, quick: bool = False) -> Curves:
    """The wide area at moderate load, with all leaders in the region in the middle."""
    base = Plan(warm_up_s=1.0, seconds=1.5 if quick else 2.5, regions=True, timing=FAR)
    if quick:
        return Curves("together", protocols, (2,), (MODERATE,), 1, base, MIDDLE)
    return Curves("together", protocols, DESTINATIONS, (MODERATE,), 2, base, MIDDLE)
