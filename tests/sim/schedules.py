"""Directed schedules: runs that random seeds produce once in hundreds, produced every time.

Each takes a protocol and plays one schedule with it, with all checkers on, on links that take a millisecond
and disks that take none. The protocol itself must survive; the mutant that a schedule was written for must
not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

from multicast import messages as msg
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
        self, protocol: type[Protocol], groups: int, replicas: int, timing: Timing, commit_s: float = 0.05
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
        self.held: list[tuple[Process, Process, Any]] = []
        self.start()
        self.wait(0.2)

    def member(self, group: GroupId, number: int) -> ReplicaId:
        return self.topology.members(group)[number]

    def leader(self, group: GroupId) -> ReplicaId | None:
        """Return the group's leader in its highest ballot."""
        hosts = [self.hosts[m] for m in self.topology.members(group)]
        leading: list[Any] = [host.replica for host in hosts if host.replica and host.replica.is_leader]
        return max(leading, key=lambda replica: replica.cballot).me if leading else None

    def leader_first(self, group: GroupId) -> list[ReplicaId]:
        """Return the members of a group that has a leader: the leader, and then the others."""
        leader = self.leader(group)
        assert leader is not None
        return [leader, *(m for m in self.topology.members(group) if m != leader)]

    # Many actions take `wait_s`: how long the run goes on before the schedule's next line.

    def wait(self, seconds: float) -> None:
        until = self.loop.now + seconds
        self.run_until(lambda: (self.loop.peek() or until) >= until, until)
        self.loop.now = until

    def lose(self, rule: Rule | None, wait_s: float = 0.0) -> None:
        self.network.loses = rule
        self.wait(wait_s)

    def hold(self, source: Process, target: Process, message: Any) -> bool:
        """Lose a message, as a rule does, and keep it in `held`: a schedule may send it later."""
        self.held.append((source, target, message))
        return True

    def send(self, source: Process, target: Process, message: Any, wait_s: float = 0.0) -> None:
        self.network.send(source, target, message)
        self.wait(wait_s)

    def multicast(self, *groups: GroupId, wait_s: float = 0.0) -> MessageId:
        mid = self.client.submit(groups, b"a message")
        self.wait(wait_s)
        return mid

    def submit_and_die(self, payload: bytes, *groups: GroupId, wait_s: float) -> MessageId:
        """The mortal client multicasts a message, and dies after the wait."""
        mid = self.mortal.submit(groups, payload)
        self.wait(wait_s)
        self.mortal.die(halfway=False)
        return mid

    def nominate(self, replica: ReplicaId, wait_s: float, times: int = 1) -> None:
        for _ in range(times):
            self.hosts[replica].nominate()
            self.wait(wait_s)

    def hand(self, mid: MessageId, replica: ReplicaId, wait_s: float = 0.0) -> None:
        """Its client's MULTICAST reaches a replica now."""
        self._arrived(mid.client, replica, self.multicasts.known[mid])
        self.wait(wait_s)

    def ask_again(self, mid: MessageId, asker: ReplicaId, replica: ReplicaId, wait_s: float = 0.0) -> None:
        """A leader multicasts the message again, to another group's replica."""
        self._arrived(asker, replica, self.multicasts.known[mid])
        self.wait(wait_s)

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

    def finish(self, after_s: float = 0.0) -> None:
        """Heal, and demand that everything comes to its end."""
        self.wait(after_s)
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
    story.lose(lambda s, t, m: isinstance(m, (msg.Accept, msg.Phase2a)))
    story.submit_and_die(b"resurrect me", G0, wait_s=0.05)
    story.lose(None)
    story.isolate(old)
    for _ in range(3):
        story.multicast(G0)
    story.wait(3.0)
    second = story.leader(G0)
    assert second in others
    story.down(second)
    story.network.heal()
    story.finish(after_s=3.0)


def forgotten_promise(protocol: type[Protocol]) -> None:
    """A follower promises b2, restarts, and would help b1 commit what b2's quorum does not know."""
    story = Story(protocol, 1, 5, Timing(retry_s=5.0))
    old, candidate, forgetful, late, loyal = (story.member(G0, n) for n in (0, 4, 3, 2, 1))
    story.lose(lambda s, t, m: isinstance(m, msg.NewLeader) and t in (old, loyal, late))
    story.nominate(candidate, wait_s=0.01)
    story.crash(forgetful, 0.001)
    story.wait(0.02)
    story.lose(lambda s, t, m: t in (late, candidate) or s == candidate)
    story.multicast(G0, wait_s=0.02)
    story.lose(None)
    replica: Any = story.hosts[candidate].replica
    story.send(candidate, late, msg.NewLeader(replica.ballot), wait_s=0.05)
    for _ in range(3):
        story.multicast(G0)
    story.finish(after_s=1.0)


def new_state_again(protocol: type[Protocol]) -> None:
    """A follower accepts m before its leader does, and is sent the ballot's state once more."""
    story = Story(protocol, 2, 3, Timing(retry_s=5.0))
    leader, follower, _ = story.leader_first(G0)
    story.lose(lambda s, t, m: isinstance(m, msg.Accept) and m.group == G1 and t == leader)
    story.multicast(G0, G1, wait_s=0.02)
    story.send(follower, leader, msg.HeartbeatAck(NO_BALLOT, NO_BALLOT, NO_TIMESTAMP), wait_s=0.02)
    story.crash(follower, 0.01)
    story.finish(after_s=0.05)


def snapshot_of_the_unfinished(protocol: type[Protocol]) -> None:
    """M is delivered at g0 only; a replica learns it by snapshot, and then leads replicas without it."""
    story = Story(protocol, 2, 3, Timing(history=0))
    (leader, witness, away), remote = story.leader_first(G0), story.leader(G1)
    story.down(away)

    def rule(source: Process, target: Process, message: Any) -> bool:
        if isinstance(message, msg.AcceptAck):
            return target == remote and message.group == G0
        return isinstance(message, msg.Deliver) and target == witness

    story.lose(rule)
    story.multicast(G0, G1, wait_s=0.01)
    assert len(story.hosts[leader].log) == 1
    story.isolate(witness)
    story.restart(away)
    story.wait(0.6)
    assert len(story.hosts[away].log) == 1
    story.down(leader)
    story.network.heal()
    story.nominate(away, wait_s=0.3)
    story.lose(None, wait_s=3.0)
    story.restart(leader)
    story.finish()


def lower_proposal(
    protocol: type[Protocol], lost: type = msg.Accept, also: Rule | None = None, later: Rule | None = None
) -> None:
    """A leader proposes a high local timestamp and dies; its successor proposes a lower one.

    While it lives, messages of type `lost` to its siblings, and what `also` names, are lost; then `later`.
    """
    story = Story(protocol, 2, 3, Timing())
    first, *siblings = story.leader_first(G1)
    story.lose(lambda s, t, m: (isinstance(m, lost) and t in siblings) or bool(also and also(s, t, m)))
    for number in range(10):
        story.mortal.submit([G1], b"only raises the clock %d" % number)
    story.wait(0.01)
    story.mortal.die(halfway=False)
    story.multicast(G0, G1, wait_s=0.01)
    story.down(first)
    story.lose(later, wait_s=3.0)
    story.finish()


def executed_behind_the_leader(protocol: type[Protocol]) -> None:
    """All but the leader of b2 learn that m was delivered in b1; g1 must not forget m before it does."""
    # The leader must not get out of it by giving leadership back to one that knows more.
    story = Story(protocol, 2, 3, Timing(give_back_s=1e6))
    old, middle, new = story.leader_first(G0)

    def delivered_in_secret(s: Process, t: Process, m: Any) -> bool:
        if isinstance(m, msg.Deliveries) and t == middle:
            return story.hold(s, t, m)
        hidden = isinstance(m, (msg.Deliver, msg.Deliveries, msg.CatchUp)) and new in (s, t)
        return hidden or (isinstance(m, msg.Deliver) and t == middle)

    story.lose(delivered_in_secret)
    story.multicast(G0, G1, wait_s=0.15)
    assert story.held
    abroad = story.topology.members(G1)

    def cut_off(s: Process, t: Process, m: Any) -> bool:
        apart = (s == new and t in abroad) or (t == new and s in abroad)
        return apart or delivered_in_secret(s, t, m)

    story.lose(lambda s, t, m: old in (s, t) or cut_off(s, t, m))
    story.nominate(new, wait_s=0.1)
    story.lose(None)
    story.send(*story.held[0])
    story.lose(cut_off, wait_s=3.0)
    story.finish()


def pieces_of_two_lives(protocol: type[Protocol]) -> None:
    """A promise arrives in pieces; its sender restarts between them, and lists its entries anew."""
    story = Story(protocol, 2, 3, Timing(part_entries=1))
    old, successor, witness = story.topology.members(G0)
    assert story.leader(G0) == old
    story.crash(witness, 0.001)
    story.wait(0.02)
    story.lose(lambda s, t, m: s == story.mortal.sender.client and t == old)
    x = story.submit_and_die(b"first heard of, last accepted", G0, G1, wait_s=0.02)

    def only_the_witness(source: Process, target: Process, message: Any) -> bool:
        if isinstance(message, msg.Accept):
            return target == successor
        if isinstance(message, msg.AcceptAck):
            return x in message.mids
        return isinstance(message, (msg.Deliver, msg.CatchUp, msg.Multicast)) and isinstance(
            source, ReplicaId
        )

    story.lose(only_the_witness)
    story.multicast(G0, wait_s=0.01)
    assert len(story.hosts[old].log) == 1
    story.send(story.mortal.sender.client, old, story.multicasts.known[x], wait_s=0.01)
    story.down(old)
    story.lose(lambda s, t, m: isinstance(m, msg.NewLeaderAck) and t == successor and m.part.index == 1)
    story.nominate(successor, wait_s=0.01)
    story.crash(witness, 0.001)
    story.lose(None, wait_s=1.0)
    story.finish()


def decided_above_its_ballot(protocol: type[Protocol]) -> None:
    """A follower of b2 learns what b3 decided of m; then b2's own, lower proposal of m arrives."""
    story = Story(protocol, 2, 3, Timing(retry_s=5.0))
    third, second, follower = story.topology.members(G0)
    remote = story.leader_first(G1)[0]
    assert story.leader(G0) == third

    def first(s: Process, t: Process, m: Any) -> bool:
        late = isinstance(m, msg.CatchUp) and s == follower
        return story.hold(s, t, m) if late else isinstance(m, msg.Deliver) and t == follower

    story.lose(first)
    story.multicast(G0, wait_s=0.15)
    asked = story.held.pop()
    story.lose(lambda s, t, m: third in (s, t))
    story.nominate(second, wait_s=0.05)
    assert story.leader(G0) == second

    def propose_to_nobody(s: Process, t: Process, m: Any) -> bool:
        if isinstance(m, msg.Accept) and t == follower and not story.held:
            return story.hold(s, t, m)
        return third in (s, t) or isinstance(m, msg.Accept) or (isinstance(m, msg.Multicast) and t == remote)

    story.lose(propose_to_nobody)
    message = story.mortal.submit([G0, G1], b"decided twice?")
    story.hand(message, second, wait_s=0.01)
    proposed = story.held.pop()

    def follower_away(s: Process, t: Process, m: Any) -> bool:
        if isinstance(m, msg.Accept) and m.group == G1:
            return False
        return follower in (s, t) or (isinstance(m, msg.AcceptAck) and t == remote and m.group == G0)

    story.lose(follower_away)
    story.nominate(third, wait_s=0.03, times=2)  # the first ballot is too low; a hint says so
    assert story.leader(G0) == third
    story.hand(message, third)
    story.hand(message, remote, wait_s=0.03)
    assert len(story.hosts[third].log) == 2
    story.lose(lambda s, t, m: not isinstance(m, (msg.CatchUp, msg.Deliveries)) and follower_away(s, t, m))
    story.send(*asked, wait_s=0.01)
    assert len(story.hosts[follower].log) == 2
    story.lose(None)
    story.network.send(*proposed)
    story.lose(follower_away, wait_s=0.01)
    story.lose(None)
    story.nominate(follower, wait_s=0.5)
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
    story.multicast(G0, wait_s=0.3)
    assert story.hosts[away].commit.checkpoint.executed > story.hosts[leader].executed
    story.isolate(away)
    story.hosts[away].late = Never()
    story.multicast(G0, wait_s=0.1)
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
    story.multicast(G0, wait_s=0.1)
    assert story.hosts[away].executed > story.hosts[away].commit.checkpoint.executed
    story.hosts[away].late = Never()
    story.isolate(away)
    story.multicast(G0, wait_s=0.02)
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
