"""Sequences of faults and of operators' actions on whole nodes, and whether the store serves afterwards."""

from __future__ import annotations

import itertools
import random
from typing import Any, Final

from kvstore.config.addresses import NodeId
from kvstore.simulation import StoreCluster, scenario_of
from kvstore.simulation.availability import Probes, connected
from kvstore.simulation.nodes import NodeView, SimMachine
from multicast.protocol import Timing
from multicast.sim import Workload
from multicast.sim.checkers import Violation
from multicast.sim.faults import CutLink
from multicast.types import GroupId, Process, ReplicaId

ACTIONS: Final = ("kill", "stop", "wipe", "replace", "restart all", "cut", "pause")
SERVES_S: Final = 2.0
"""How soon a partition with a connected quorum serves, through every node that is up."""
STEADY_S: Final = 0.9
"""The same, once it serves: no retries are needed any more."""
PAUSE_S: Final = 1.5

SEQUENCES: Final = [sequence for length in (2, 3) for sequence in itertools.product(ACTIONS, repeat=length)]


class Operated(StoreCluster):
    """A store whose nodes are killed, replaced and so on; no client but the probes."""

    def __init__(self, sequence: tuple[str, ...], seed: int = 0) -> None:
        self._homes: dict[ReplicaId, int] = {}
        """The machines of replicas that have replaced others."""
        scenario = scenario_of(
            "none", workload=Workload(clients=0, messages=0), timing=Timing(history=6, part_entries=4)
        )
        super().__init__(scenario, seed)
        self.sequence = sequence
        self.choice = random.Random(f"{sequence} {seed}")
        self.probes = Probes(self, SERVES_S)
        self.said: list[str] = []

    # Replicas of one number on several machines

    def node_of(self, replica: ReplicaId) -> NodeId:
        return NodeId(f"n{self._homes.get(replica, replica.number)}")

    def _machine_of(self, process: Process) -> int | None:
        if isinstance(process, ReplicaId):
            return self._homes.get(process, process.number)
        return super()._machine_of(process)

    def _arrived(self, source: Process, target: Process, message: object) -> None:
        if isinstance(target, ReplicaId):
            machine = self.machines[self._homes.get(target, target.number)]
        else:
            machine = self.clients[target].machine
        machine.receive((source, target, [message]), self._home(source))

    # Actions

    def up(self) -> list[int]:
        return [number for number, machine in self.machines.items() if machine.node is not None]

    def do(self, action: str) -> None:
        """Do something to a node that is up, or to a link between two; "kill of 1" names the node."""
        up = self.up()
        if not up:
            return
        # Half of the time to one that leads: it matters most.
        leading = [n for n in up if (node := self.machines[n].node) is not None and node.leading()]
        number = self.choice.choice(leading if leading and self.choice.random() < 0.5 else up)
        action, _, named = action.partition(" of ")
        number = int(named) if named else number
        self.said.append(f"{action} {number}")
        machine = self.machines[number]
        if action == "kill":
            self._view(machine).crash()
        elif action == "stop":
            assert machine.node is not None
            machine.node.hand_over(sorted(machine.node.leading()))
            machine.turn_soon()
            self.loop.at(self.loop.now + 0.3, self._end, machine, machine.node)
        elif action == "wipe":
            self.wipe(machine.replicas[0], 0.1)
        elif action == "replace":
            self._replace(machine)
        elif action == "restart all":
            for each in up:
                self._view(self.machines[each]).crash()
            for other_machine in self.machines.values():
                self.loop.at(self.loop.now + 0.05, self.restart, other_machine.replicas[0])
        elif action == "cut" and len(up) > 1:
            other = self.choice.choice([each for each in up if each != number])
            self.inject(CutLink(number, other))
            if self.choice.random() < 0.5:
                self.inject(CutLink(other, number))
        elif action == "pause":
            machine.pause(PAUSE_S)

    def _view(self, machine: SimMachine) -> NodeView:
        return self.views[machine.replicas[0]]

    def _end(self, machine: SimMachine, node: object) -> None:
        if machine.node is node:
            self._view(machine).crash()

    def wipe(self, replica: ReplicaId, down_s: float) -> None:
        """Unless the group would not survive that, by its members or because others are down."""
        machine = self.machines[self._homes.get(replica, replica.number)]
        others = [m for m in self.members() if m is not machine]
        if all(map(self.survives_without, machine.replicas)) and all(m.node is not None for m in others):
            if machine.node is not None:
                self._view(machine).crash()
            number = int(machine.me[1:])
            new = SimMachine(self, machine.me)
            self._machines[number] = new
            for lost in machine.replicas:
                self.hosts[lost].gone = True
                self._add(new, number, lost)
            self.loop.at(self.loop.now + down_s, self.restart, new.replicas[0])

    def members(self) -> list[SimMachine]:
        """The machines of current members."""
        found = {
            self._homes.get(member, member.number)
            for group in self.topology.groups
            for member in self.topology.membership(group).current.members
        }
        return [self.machines[number] for number in sorted(found)]

    def _replace(self, machine: SimMachine) -> None:
        """An operator lets a new node replace another, which stays up."""
        if machine not in self.members() or not all(
            self.topology.membership(group).is_complete for group in self.topology.groups
        ):
            return
        number = max(self.machines) + 1
        new = self._machines[number] = SimMachine(self, NodeId(f"n{number}"))
        pairs = [(self._add(new, number, old), old) for old in machine.replicas]
        new.replicas = []
        new.start()
        for replica, old in pairs:
            assert new.node is not None
            new.node.host(replica, evicts=old)
            self.views[replica].restarted()
        new.replicas = [replica for replica, _ in pairs]
        new.turn_soon()

    def _add(self, machine: SimMachine, number: int, old: ReplicaId) -> ReplicaId:
        used = [each.incarnation for each in self.views if each[:2] == old[:2]]
        new = old._replace(incarnation=max(used) + 1)
        self._homes[new] = number
        machine.replicas.append(new)
        self.hosts[new] = self.views[new] = NodeView(new, machine, self._observers)
        return new

    # The run

    def serves(self, group: GroupId) -> bool:
        """Whether a quorum of the group is up and connected."""
        membership = self.topology.membership(group)
        up = [machine.replicas for machine in self.machines.values() if machine.node is not None]
        alive = [member for member in membership.everyone if any(member in replicas for replicas in up)]
        return connected(self.cut_links, self.up()) and membership.agrees(alive)

    def check(self) -> int:
        """Run the sequence, then probe. Return the number of answered probes."""
        self.start()
        self.run_until(lambda: False, 2.0)
        for action in self.sequence:
            self.run_until(lambda: False, self.loop.now + self.choice.choice((0.5, 1.5, 3.0)))
            self.do(action)
        self._settle()
        try:
            for bound_s in (SERVES_S, STEADY_S):
                served = [group for group in self.topology.groups if self.serves(group)]
                for number in self.up():
                    for group in served:
                        self.probes.probe(number, group, bound_s)
                self.run_until(lambda: False, self.loop.now + SERVES_S + 0.1)
        except Violation as violation:
            raise AssertionError(f"{self.said}: {violation}") from violation
        return self.probes.answered

    def _settle(self) -> None:
        """The last action ends: a paused node goes on, and nodes that start are there."""
        self.run_until(lambda: False, self.loop.now + 0.3)
        self.run_until(lambda: not any(m.paused for m in self.machines.values()), self.loop.now + PAUSE_S)


def outcome(sequence: tuple[str, ...], seed: int = 0) -> Any:
    """Run one sequence."""
    return Operated(sequence, seed).check()
