"""Availability: a partition with a connected quorum answers, through every connected node, within a bound.

Probes are empty ordered messages and strict reads, so that they change nothing that a workload checks. A
probe counts if everything it needs was connected from its beginning to its end: the node that was asked is
up, and so is a quorum of the group; and each of these reaches each other, directly or through one other node.
It also counts if they have a core (`core`): then leaders outside of it may reach each other no more, and hand
over to members that do.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection
from typing import Any, Final

from kvstore.machine.commands import Tick
from kvstore.machine.request import Get
from kvstore.simulation.store import StoreCluster
from kvstore.store import errors
from kvstore.store.questions import StrictRead
from multicast.sim.checkers import Violation
from multicast.sim.faults import CutLink, Fault, Heal, MendLink
from multicast.types import GroupId

AVAILABLE_S: Final = 3.0
"""How long a partition may be silent although a quorum of it is connected: a cut is noticed within half a
second, an election takes up to one, and links may be cut and mended again meanwhile."""

SETTLED_S: Final = 4.0
"""After so long with the same links, no leader hands over to a better connected member any more."""

EVERY_S: Final = 0.3
"""Between two probes of a partition through a node."""

Links = Collection[tuple[int, int]]
"""Of machines, the second of which does not hear the first."""


def connected(cut: Links, machines: Collection[int]) -> bool:
    """Return whether each of these machines reaches each other, directly or through one other of them."""
    return all(_reaches(cut, machines, one, other) for one, other in itertools.permutations(machines, 2))


def _reaches(cut: Links, machines: Collection[int], source: int, target: int) -> bool:
    """A relay must be connected with the source, which must hear of it what the target hears."""
    if (source, target) not in cut:
        return True
    others = [machine for machine in machines if machine not in (source, target)]
    there = any(not {(source, relay), (relay, source), (relay, target)} & set(cut) for relay in others)
    back = (target, source) not in cut or any(
        not {(target, relay), (relay, source)} & set(cut) for relay in others
    )
    return there and back


def core(cut: Links, machines: Collection[int]) -> tuple[int, ...]:
    """Return a majority of the machines whose links to each other are whole, and that every other machine has
    a whole link to; empty if there is none.

    Each of them reaches every machine, directly or through one other of them.
    """

    def whole(one: int, other: int) -> bool:
        return (one, other) not in cut and (other, one) not in cut

    for found in itertools.combinations(machines, len(machines) // 2 + 1):
        others = [machine for machine in machines if machine not in found]
        if all(whole(*pair) for pair in itertools.combinations(found, 2)) and all(
            any(whole(machine, inner) for inner in found) for machine in others
        ):
            return found
    return ()


def served(cut: Links, machines: Collection[int]) -> bool:
    """Return whether partitions must serve through every machine."""
    return connected(cut, machines) or bool(core(cut, machines))


class Probes:
    """Probes of all partitions through all nodes."""

    def __init__(self, simulation: StoreCluster, bound_s: float = AVAILABLE_S) -> None:
        self.answered = 0
        self.slowest_s = 0.0
        self._simulation = simulation
        self._bound_s = bound_s
        self._broken_at = float("-inf")
        """When links were last cut so that not all machines were connected; infinity while they are."""
        self._was_connected = True
        self._stopped = False

    def links_changed(self) -> None:
        """Note when machines are connected."""
        simulation = self._simulation
        is_connected = served(simulation.cut_links, list(simulation.machines))
        if not is_connected:
            self._broken_at = float("inf")
        elif not self._was_connected:
            self._broken_at = simulation.loop.now
        self._was_connected = is_connected

    def start(self, every_s: float = EVERY_S) -> None:
        """Probe again and again, until `stop`."""
        if not self._stopped:
            self.probe_all()
            self._simulation.loop.at(self._simulation.loop.now + every_s, self.start, every_s)

    def stop(self) -> None:
        """Probe no more: the run is to come to rest."""
        self._stopped = True

    def probe_all(self) -> None:
        """Probe every partition through every node that is up."""
        for number in list(self._simulation.machines):
            for group in self._simulation.topology.groups:
                self.probe(number, group)

    def probe(self, number: int, group: GroupId, bound_s: float | None = None) -> None:
        """Order an empty message and read strictly, in one partition, through one node."""
        bound_s = self._bound_s if bound_s is None else bound_s
        machine = self._simulation.machines[number]
        if machine.node is None:
            return
        gateway = machine.application.gateway
        key = self._simulation.key_of(group)
        began, application = self._simulation.loop.now, machine.application
        for kind in ("write", "strict read"):
            waiting = [kind]

            def done(outcome: Any, waiting: list[str] = waiting) -> None:
                if waiting and not isinstance(outcome, errors.StoreError):
                    waiting.clear()
                    self.answered += 1
                    self.slowest_s = max(self.slowest_s, self._simulation.loop.now - began)

            if kind == "write":
                gateway.command(group, Tick(), done)
            else:
                gateway.ask(group, StrictRead((Get(key),)), done, of_leader=True)
            self._simulation.loop.at(began + bound_s, self._check, began, number, group, application, waiting)
        machine.turn_soon()

    def _runs(self, application: Any) -> bool:
        machines = self._simulation.machines.values()
        return any(machine.node is not None and machine.application is application for machine in machines)

    def _check(self, began: float, number: int, group: GroupId, application: Any, waiting: list[str]) -> None:
        simulation = self._simulation
        if waiting and self._broken_at < began and self._runs(application):
            raise Violation(
                "Availability",
                f"partition {group} has not answered a {waiting[0]} through node {number} within "
                f"{simulation.loop.now - began:.1f} s, although it is connected; "
                f"cut: {sorted(simulation.cut_links)}",
            )


class CutLinks(StoreCluster):
    """Links are cut and mended, as by the faults "links"; and some stay cut for ever, so that each node still
    reaches each other through one other, or that a core remains. Everything must complete all the same, and
    no partition be silent.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.probes = Probes(self)
        self._hand_overs: dict[int, int] = {}
        """How many each node had made, a while after the last change of links."""
        self.lasting = self._draw_lasting(self._fork("lasting cuts"))

    def _draw_lasting(self, rng: random.Random) -> list[tuple[int, int]]:
        """Return cuts that leave all machines connected, or a core."""
        links = list(itertools.permutations(self.machines, 2))
        rng.shuffle(links)
        found: list[tuple[int, int]] = []
        for link in links[: rng.randint(1, len(links))]:
            if served([*found, link], list(self.machines)):
                found.append(link)
        return found

    def start(self) -> None:
        """Start all nodes, and cut links that stay cut, each at some time."""
        super().start()
        rng = self._fork("times of lasting cuts")
        for link in self.lasting:
            self.loop.at(rng.uniform(0.5, 3.0), self.inject, CutLink(*link))
        self.loop.at(2.0, self.probes.start)

    def inject(self, fault: Fault) -> None:
        """Keep lasting cuts, and note which machines are connected."""
        if isinstance(fault, MendLink) and (fault.source, fault.target) in self.lasting:
            return
        super().inject(fault)
        if isinstance(fault, Heal):
            for link in self.lasting:
                super().inject(CutLink(*link))
            self.loop.at(self.loop.now + SETTLED_S, self._settled)
            self.loop.at(self.loop.now + 2 * AVAILABLE_S, self.probes.stop)
        self.probes.links_changed()

    def hand_overs(self) -> dict[int, int]:
        """Return how often leaders on each node have handed over to better connected members."""
        nodes = {number: machine.node for number, machine in self.machines.items()}
        return {number: node.hand_overs.count for number, node in nodes.items() if node is not None}

    def _settled(self) -> None:
        self._hand_overs = self.hand_overs()

    def _check_end(self) -> None:
        super()._check_end()
        if (found := self.hand_overs()) != self._hand_overs:
            raise Violation("Stability", f"leaders still hand over: {self._hand_overs}, then {found}")
