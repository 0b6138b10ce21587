"""Directed schedules: runs that random seeds produce once in hundreds, produced every time.

Each takes a protocol and plays one schedule with it, with all checkers on, on links that take a millisecond
and disks that take none. The protocol itself must survive; the mutant that a schedule was written for must
not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from multicast.messages import (
    Accept,
    AcceptAck,
    CatchUp,
    Deliver,
    Deliveries,
    HeartbeatAck,
    Multicast,
    NewLeader,
    NewLeaderAck,
    Phase2a,
)
from multicast.protocol import Protocol, Timing
from multicast.sim.checkers import Checker, Violation
from multicast.sim.clients import Workload
from multicast.sim.faults import Stall
from multicast.sim.host import DiskDelays
from multicast.sim.network import Delays
from multicast.sim.run import Scenario, Simulation
from multicast.types import NO_BALLOT, NO_TIMESTAMP, ClientId, GroupId, MessageId, Process, ReplicaId

G0, G1 = GroupId(0), GroupId(1)
Rule: TypeAlias = Callable[[Process, Process, Any], bool]


class Story(Simulation):
    """A simulation whose faults a test decides, message by message."""

    def __init__(
        self,
        protocol: type[Protocol],
        groups: int,
        replicas: int,
        timing: Timing,
        commit_s: float = 0.05,
    ) -> None:
        scenario = Scenario(
            protocol=protocol, groups=groups, replicas=replicas, faults="none", timing=timing,
            delays=Delays(0.001, 0.001, 0.0), disk=DiskDelays(0.0, 0.0, commit_s), skew=0.0, turn_s=0.0,
            late=False,
            workload=Workload(clients=2, messages=0, window=0, repeats=0.0),
        )  # fmt: skip
        super().__init__(scenario, seed=0)
        self.client = self.clients[ClientId(1)]
        self.mortal = self.clients[ClientId(2)]
        """A client that a schedule kills after a multicast, so that it never retries."""
        self.start()
        self.wait(0.2)

    def member(self, group: GroupId, number: int) -> ReplicaId:
        return self.topology.members(group)[number]

    def leader(self, group: GroupId) -> ReplicaId | None:
        """Return the group's leader in its highest ballot."""
        hosts = [self.hosts[m] for m in self.topology.members(group)]
        leading: list[Any] = [host.replica for host in hosts if host.replica and host.replica.is_leader]
        return max(leading, key=lambda replica: replica.cballot).me if leading else None

    def wait(self, seconds: float) -> None:
        until = self.loop.now + seconds
        self.run_until(lambda: (self.loop.peek() or until) >= until, until)
        self.loop.now = until

    def lose(self, rule: Rule | None) -> None:
        self.network.loses = rule

    def multicast(self, *groups: GroupId) -> MessageId:
        return self.client.submit(groups, b"a message")

    def hand(self, mid: MessageId, replica: ReplicaId) -> None:
        """Its client's MULTICAST reaches a replica now."""
        self._arrived(mid.client, replica, self.multicasts.known[mid])

    def ask_again(self, mid: MessageId, asker: ReplicaId, replica: ReplicaId) -> None:
        """A leader multicasts the message again, to another group's replica."""
        self._arrived(asker, replica, self.multicasts.known[mid])

    def down(self, replica: ReplicaId) -> None:
        if self.hosts[replica].up:
            self.hosts[replica].crash()

    def isolate(self, replica: ReplicaId) -> None:
        for other in self.hosts:
            if other != replica:
                self.network.cut(replica, other)
                self.network.cut(other, replica)

    def ignore(self, *checkers: type[Checker]) -> None:
        """Do without some checkers."""
        self._observers[:] = [o for o in self._observers if not isinstance(o, checkers)]

    def finish(self) -> None:
        """Heal, and demand that everything comes to its end."""
        self.lose(None)
        self.heal()
        for host in self.hosts.values():
            host.commit_every(0.05)
        if not self.run_until(self.converged, self.loop.now + 60.0):
            raise Violation("Termination", self._what_is_missing())
        self._check_end()


def three_ballots(protocol: type[Protocol]) -> None:
    """b1 accepts m at its leader only; b2 delivers others; b3 hears of m from the old leader."""
    story = Story(protocol, 1, 3, Timing())
    old, others = story.member(G0, 0), [story.member(G0, 1), story.member(G0, 2)]
    story.lose(lambda source, target, message: isinstance(message, (Accept, Phase2a)))
    story.mortal.submit([G0], b"resurrect me")
    story.wait(0.05)
    story.mortal.die(halfway=False)
    story.lose(None)
    story.isolate(old)
    for _ in range(3):
        story.multicast(G0)
    story.wait(3.0)
    second = story.leader(G0)
    assert second in others
    story.down(second)
    story.network.heal()
    story.wait(3.0)
    story.finish()


def forgotten_promise(protocol: type[Protocol]) -> None:
    """A follower promises b2, restarts, and would help b1 commit what b2's quorum does not know."""
    story = Story(protocol, 1, 5, Timing(retry_s=5.0))
    old, candidate, forgetful, late, loyal = (story.member(G0, n) for n in (0, 4, 3, 2, 1))
    story.lose(
        lambda source, target, message: isinstance(message, NewLeader) and target in (old, loyal, late)
    )
    story.hosts[candidate].nominate()
    story.wait(0.01)
    story.crash(forgetful, 0.001)
    story.wait(0.02)
    story.lose(lambda source, target, message: target in (late, candidate) or source == candidate)
    story.multicast(G0)
    story.wait(0.02)
    story.lose(None)
    replica: Any = story.hosts[candidate].replica
    story.network.send(candidate, late, NewLeader(replica.ballot))
    story.wait(0.05)
    for _ in range(3):
        story.multicast(G0)
    story.wait(1.0)
    story.finish()


def new_state_again(protocol: type[Protocol]) -> None:
    """A follower accepts m before its leader does, and is sent the ballot's state once more."""
    story = Story(protocol, 2, 3, Timing(retry_s=5.0))
    leader = story.leader(G0)
    assert leader is not None
    follower = next(m for m in story.topology.members(G0) if m != leader)
    story.lose(
        lambda source, target, message: (
            isinstance(message, Accept) and message.group == G1 and target == leader
        )
    )
    story.multicast(G0, G1)
    story.wait(0.02)
    story.network.send(follower, leader, HeartbeatAck(NO_BALLOT, NO_BALLOT, NO_TIMESTAMP))
    story.wait(0.02)
    story.crash(follower, 0.01)
    story.wait(0.05)
    story.finish()


def snapshot_of_the_unfinished(protocol: type[Protocol]) -> None:
    """M is delivered at g0 only; a replica learns it by snapshot, and then leads replicas without it."""
    story = Story(protocol, 2, 3, Timing(history=0))
    leader, remote = story.leader(G0), story.leader(G1)
    assert leader is not None
    assert remote is not None
    witness, away = (m for m in story.topology.members(G0) if m != leader)
    story.down(away)

    def rule(source: Process, target: Process, message: Any) -> bool:
        if isinstance(message, AcceptAck):
            return target == remote and message.group == G0
        return isinstance(message, Deliver) and target == witness

    story.lose(rule)
    story.multicast(G0, G1)
    story.wait(0.01)
    assert len(story.hosts[leader].log) == 1
    story.isolate(witness)
    story.restart(away)
    story.wait(0.6)
    assert len(story.hosts[away].log) == 1
    story.down(leader)
    story.network.heal()
    story.hosts[away].nominate()
    story.wait(0.3)
    story.lose(None)
    story.wait(3.0)
    story.restart(leader)
    story.finish()


def lower_proposal(
    protocol: type[Protocol], lost: type = Accept, also: Rule | None = None, later: Rule | None = None
) -> None:
    """A leader proposes a high local timestamp and dies; its successor proposes a lower one.

    While it lives, messages of type `lost` to its siblings, and what `also` names, are lost; then `later`.
    """
    story = Story(protocol, 2, 3, Timing())
    first = story.leader(G1)
    assert first is not None
    siblings: Sequence[Process] = [m for m in story.topology.members(G1) if m != first]
    story.lose(
        lambda s, t, m: (isinstance(m, lost) and t in siblings) or (also is not None and also(s, t, m))
    )
    for number in range(10):
        story.mortal.submit([G1], b"only raises the clock %d" % number)
    story.wait(0.01)
    story.mortal.die(halfway=False)
    story.multicast(G0, G1)
    story.wait(0.01)
    story.down(first)
    story.lose(later)
    story.wait(3.0)
    story.finish()


def executed_behind_the_leader(protocol: type[Protocol]) -> None:
    """All but the leader of b2 learn that m was delivered in b1; g1 must not forget m before it does."""
    # The leader must not get out of it by giving leadership back to one that knows more.
    story = Story(protocol, 2, 3, Timing(give_back_s=1e6))
    old, remote = story.leader(G0), story.leader(G1)
    assert old is not None
    assert remote is not None
    middle, new = (m for m in story.topology.members(G0) if m != old)
    held: list[tuple[Process, Process, Any]] = []

    def delivered_in_secret(source: Process, target: Process, message: Any) -> bool:
        if isinstance(message, Deliveries) and target == middle:
            held.append((source, target, message))
            return True
        return (isinstance(message, (Deliver, Deliveries, CatchUp)) and new in (source, target)) or (
            isinstance(message, Deliver) and target == middle
        )

    story.lose(delivered_in_secret)
    story.multicast(G0, G1)
    story.wait(0.15)
    assert held
    abroad = story.topology.members(G1)

    def cut_off(source: Process, target: Process, message: Any) -> bool:
        apart = (source == new and target in abroad) or (target == new and source in abroad)
        return apart or delivered_in_secret(source, target, message)

    story.lose(lambda s, t, m: old in (s, t) or cut_off(s, t, m))
    story.hosts[new].nominate()
    story.wait(0.1)
    story.lose(None)
    story.network.send(*held[0])
    story.lose(cut_off)
    story.wait(3.0)
    story.finish()


def pieces_of_two_lives(protocol: type[Protocol]) -> None:
    """A promise arrives in pieces; its sender restarts between them, and lists its entries anew."""
    story = Story(protocol, 2, 3, Timing(part_entries=1))
    old, successor, witness = story.topology.members(G0)
    assert story.leader(G0) == old
    story.crash(witness, 0.001)
    story.wait(0.02)
    story.lose(lambda s, t, m: s == story.mortal.sender.client and t == old)
    x = story.mortal.submit([G0, G1], b"first heard of, last accepted")
    story.wait(0.02)
    story.mortal.die(halfway=False)

    def only_the_witness(source: Process, target: Process, message: Any) -> bool:
        if isinstance(message, Accept):
            return target == successor
        if isinstance(message, AcceptAck):
            return x in message.mids
        return isinstance(message, (Deliver, CatchUp, Multicast)) and isinstance(source, ReplicaId)

    story.lose(only_the_witness)
    story.multicast(G0)
    story.wait(0.01)
    assert len(story.hosts[old].log) == 1
    story.network.send(story.mortal.sender.client, old, story.multicasts.known[x])
    story.wait(0.01)
    story.down(old)
    story.lose(lambda s, t, m: isinstance(m, NewLeaderAck) and t == successor and m.part.index == 1)
    story.hosts[successor].nominate()
    story.wait(0.01)
    story.crash(witness, 0.001)
    story.lose(None)
    story.wait(1.0)
    story.finish()


def decided_above_its_ballot(protocol: type[Protocol]) -> None:
    """A follower of b2 learns what b3 decided of m; then b2's own, lower proposal of m arrives."""
    story = Story(protocol, 2, 3, Timing(retry_s=5.0))
    third, second, follower = story.topology.members(G0)
    remote = story.leader(G1)
    assert story.leader(G0) == third
    assert remote is not None
    held: list[tuple[Process, Process, Any]] = []

    def hold(source: Process, target: Process, message: Any) -> bool:
        held.append((source, target, message))
        return True

    def first(s: Process, t: Process, m: Any) -> bool:
        late = isinstance(m, CatchUp) and s == follower
        return hold(s, t, m) if late else isinstance(m, Deliver) and t == follower

    story.lose(first)
    story.multicast(G0)
    story.wait(0.15)
    asked = held.pop()
    story.lose(lambda s, t, m: third in (s, t))
    story.hosts[second].nominate()
    story.wait(0.05)
    assert story.leader(G0) == second

    def propose_to_nobody(s: Process, t: Process, m: Any) -> bool:
        if isinstance(m, Accept) and t == follower and not held:
            return hold(s, t, m)
        return third in (s, t) or isinstance(m, Accept) or (isinstance(m, Multicast) and t == remote)

    story.lose(propose_to_nobody)
    message = story.mortal.submit([G0, G1], b"decided twice?")
    story.hand(message, second)
    story.wait(0.01)
    proposed = held.pop()

    def follower_away(s: Process, t: Process, m: Any) -> bool:
        if isinstance(m, Accept) and m.group == G1:
            return False
        return follower in (s, t) or (isinstance(m, AcceptAck) and t == remote and m.group == G0)

    story.lose(follower_away)
    for _ in range(2):  # the first ballot is too low; a hint says so
        story.hosts[third].nominate()
        story.wait(0.03)
    assert story.leader(G0) == third
    story.hand(message, third)
    story.hand(message, remote)
    story.wait(0.03)
    assert len(story.hosts[third].log) == 2
    story.lose(lambda s, t, m: not isinstance(m, (CatchUp, Deliveries)) and follower_away(s, t, m))
    story.network.send(*asked)
    story.wait(0.01)
    assert len(story.hosts[follower].log) == 2
    story.lose(None)
    story.network.send(*proposed)
    story.lose(follower_away)
    story.wait(0.01)
    story.lose(None)
    story.hosts[follower].nominate()
    story.wait(0.5)
    story.finish()


class Never(random.Random):
    """An application that executes nothing."""

    def random(self) -> float:
        return 1.0

    def randint(self, a: int, b: int) -> int:
        return a


def executed_less(protocol: type[Protocol]) -> None:
    """A leader executes nothing for a while; a follower that has executed more needs a snapshot of it."""
    story = Story(protocol, 1, 3, Timing(history=0))
    leader, away, _ = story.topology.members(G0)
    assert story.leader(G0) == leader
    story.hosts[leader].late = Never()
    story.multicast(G0)
    story.wait(0.3)
    assert story.hosts[away].commit.checkpoint.executed > story.hosts[leader].executed
    story.isolate(away)
    story.hosts[away].late = Never()
    story.multicast(G0)
    story.wait(0.1)
    story.network.heal()
    story.wait(1.0)
    story.crash(away, 0.01)
    story.wait(0.2)
    story.hosts[leader].late = story.hosts[away].late = None
    story.finish()


def executed_less_than_what_is_being_saved(protocol: type[Protocol]) -> None:
    """A snapshot that has executed nothing arrives while a state that has executed more is being saved."""
    story = Story(protocol, 1, 3, Timing(history=0))
    leader, away, _ = story.topology.members(G0)
    assert story.leader(G0) == leader
    story.hosts[leader].late = Never()
    story.inject(Stall(away, 0.4))
    story.multicast(G0)
    story.wait(0.1)
    assert story.hosts[away].executed > story.hosts[away].commit.checkpoint.executed
    story.hosts[away].late = Never()
    story.isolate(away)
    story.multicast(G0)
    story.wait(0.02)
    story.network.heal()
    story.wait(0.2)
    assert len(story.hosts[away].log) == 2
    assert story.hosts[away].executed == NO_TIMESTAMP
    story.wait(1.0)
    story.hosts[leader].late = story.hosts[away].late = None
    story.finish()


def play(schedule: Callable[[type[Protocol]], None], protocol: type[Protocol]) -> str | None:
    """What broke, if anything did."""
    try:
        schedule(protocol)
    except Violation as violation:
        return str(violation)
    return None
