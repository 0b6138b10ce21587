"""One test, or a few, for each fault found when the paper's authors' own C implementation was tried.

Simulated runs are under all checkers, which raise at the first step that breaks an invariant; what a test
adds is the directed schedule, and that the run comes to its end.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from multicast.client import Reply
from multicast.durable import Durable
from multicast.messages import (
    Accept,
    AcceptAck,
    Deliveries,
    Delivery,
    EntryState,
    Message,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    PreVoteAck,
    StatePart,
)
from multicast.protocol import Ready, Start, Timing
from multicast.sim.checkers import Checker
from multicast.sim.clients import SimClient, Workload
from multicast.sim.faults import ClientDeath, Crash, Cut, Heal, Reset
from multicast.sim.host import DiskDelays, Host
from multicast.sim.network import Delays, Network
from multicast.sim.run import Scenario, Simulation
from multicast.topology import Topology
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Status,
    digest_of,
    timestamp,
)
from multicast.whitebox import WhiteBox

PROTOCOL: type[WhiteBox] = WhiteBox
"""What is tested. A sabotaged subclass in its place must make the tests fail."""

G0, G1 = GroupId(0), GroupId(1)
BOTH: Destinations = (G0, G1)
FOR_EVER_S = 1e6
QUIET = Workload(clients=2, messages=0)
LOAD = Workload(clients=4, messages=120, window=4, think_s=0.02, spread=2)


# Simulated runs


def simulate(
    workload: Workload = QUIET,
    *,
    seed: int = 1,
    groups: int = 2,
    replicas: int = 3,
    timing: Timing | None = None,
    disk: DiskDelays | None = None,
    delays: Delays | None = None,
    observers: Sequence[Checker] = (),
    checkers: bool = True,
) -> Simulation:
    """A run whose groups all have leaders."""
    scenario = Scenario(
        PROTOCOL, groups=groups, replicas=replicas, faults="none", workload=workload,
        timing=timing or Timing(), disk=disk or DiskDelays(), delays=delays or Delays(), checkers=checkers,
    )  # fmt: skip
    simulation = Simulation(scenario, seed, observers)
    simulation.start()
    run(simulation, lambda: all(leaders(simulation, group) for group in simulation.topology.groups), 10.0)
    return simulation


def run(simulation: Simulation, done: Callable[[], object], within_s: float) -> None:
    """Let time pass until it is true, which must be soon enough."""
    assert simulation.run_until(lambda: bool(done()), simulation.loop.now + within_s), "it never happened"


def rest(simulation: Simulation, for_s: float) -> None:
    simulation.run_until(lambda: False, simulation.loop.now + for_s)


def white_box(host: Host) -> WhiteBox:
    assert isinstance(host.replica, WhiteBox)
    return host.replica


def hosts(simulation: Simulation, group: GroupId) -> list[Host]:
    return [simulation.hosts[m] for m in simulation.topology.members(group) if simulation.hosts[m].up]


def leaders(simulation: Simulation, group: GroupId) -> list[Host]:
    return [host for host in hosts(simulation, group) if white_box(host).is_leader]


def leader(simulation: Simulation, group: GroupId) -> Host:
    (found,) = leaders(simulation, group)
    return found


def recovering(simulation: Simulation, group: GroupId) -> list[Host]:
    return [host for host in hosts(simulation, group) if white_box(host).status is Status.RECOVERING]


def multicast(simulation: Simulation, client: int, dest: Destinations, payload: bytes = b"x") -> Multicast:
    """A client sends one message, to all its leaders."""
    chosen = simulation.clients[ClientId(client)]
    message = chosen.sender.multicast(dest, payload, simulation.loop.now)
    simulation.multicasts.add(message)
    chosen.multicast.append(message.mid)
    chosen._flush()
    return message


def half_multicast(simulation: Simulation, client: int, dest: Destinations, target: ReplicaId) -> Multicast:
    """A client sends one message to one process, and forgets about it."""
    message = simulation.clients[ClientId(client)].sender.numbers.next(dest, b"half")
    simulation.multicasts.add(message)
    simulation.network.send(ClientId(client), target, message)
    return message


def finished(simulation: Simulation) -> int:
    return sum(len(client.finished) for client in simulation.clients.values())


def idle(simulation: Simulation) -> bool:
    return all(client.idle for client in simulation.clients.values())


def waiting_for(simulation: Simulation, group: GroupId) -> bool:
    """Whether a client waits for this group's answer."""
    pending = [item for client in simulation.clients.values() for item in client.sender.pending.values()]
    return any(group in item.unanswered for item in pending)


def log(host: Host) -> list[MessageId]:
    return [delivery.mid for delivery in host.log]


def collected(simulation: Simulation) -> bool:
    return not any(white_box(host).entries for host in simulation.hosts.values() if host.up)


# A process driven by hand


def replica_ids(group: int, count: int) -> list[ReplicaId]:
    return [ReplicaId(GroupId(group), number, 0) for number in range(count)]


R = replica_ids(0, 5)
CLIENT = ClientId(7)
WHOLE = StatePart(1, 0, 1)


def process(
    me: ReplicaId,
    topology: Topology,
    timing: Timing | None = None,
    durable: Durable | None = None,
    life: int = 1,
) -> WhiteBox:
    """A process with its own randomness in each of its lives, as hosts give it."""
    rng = random.Random(f"{me} {life}")
    return PROTOCOL(Start(me, topology, rng, 0.0, timing or Timing(), durable or Durable()))


class Said:
    """What a process wants done, with what it says to itself handed back to it."""

    def __init__(self, replica: WhiteBox, disk: Durable | None = None) -> None:
        self.messages: list[tuple[Process, Message]] = []
        self.deliver: list[Delivery] = []
        while ready := replica.ready():
            self.deliver += ready.deliver
            if disk is not None:
                disk.apply(ready.persist)
            for receivers, message in [*ready.send, *ready.promise]:
                for receiver in receivers:
                    if receiver == replica.me:
                        replica.step(receiver, message, replica.now)
                    else:
                        self.messages.append((receiver, message))

    def to(self, receiver: Process) -> list[Message]:
        return [message for to, message in self.messages if to == receiver]

    def new_states(self, receiver: Process) -> list[NewState]:
        return [message for message in self.to(receiver) if isinstance(message, NewState)]


def stand(replica: WhiteBox, voters: Sequence[ReplicaId], now: float = 0.0) -> Ballot:
    """The process opens a ballot; its NEWLEADER is out."""
    replica.tick(now)
    Said(replica)
    ballot = replica.pre_vote_for
    assert ballot is not None
    for voter in voters:
        replica.step(voter, PreVoteAck(ballot), now)
    Said(replica)
    assert replica.ballot == ballot
    return ballot


def promise(
    ballot: Ballot, cballot: Ballot, *entries: EntryState, clock: int = 0, part: StatePart = WHOLE
) -> NewLeaderAck:
    return NewLeaderAck(ballot, cballot, clock, NO_TIMESTAMP, part, entries)


def entry(sequence: int, phase: Phase, local: int, dest: Destinations = (G0,), gts: int = 0) -> EntryState:
    payload = b"%d" % sequence
    mid = MessageId(CLIENT, sequence, digest_of(dest, payload))
    global_ts = timestamp(gts or local, G0) if phase is Phase.COMMITTED else NO_TIMESTAMP
    return EntryState(mid, dest, payload, 1, phase, timestamp(local, G0), global_ts)


# "SIGKILL of a leader under two-group load left no client progressing"


@pytest.mark.parametrize("victim", BOTH)
@pytest.mark.parametrize("seed", range(3))
def test_clients_progress_after_a_leader_was_killed_under_load(victim: GroupId, seed: int) -> None:
    simulation = simulate(LOAD, seed=seed)
    run(simulation, lambda: finished(simulation) >= 20 and waiting_for(simulation, victim), 10.0)
    killed = leader(simulation, victim)
    simulation.inject(Crash(killed.me, FOR_EVER_S))
    assert not idle(simulation)
    run(simulation, lambda: idle(simulation), 20.0)
    assert finished(simulation) == LOAD.messages
    assert leader(simulation, victim).me != killed.me


def test_the_other_groups_leader_repeats_what_the_killed_one_has_lost() -> None:
    """A leader multicasts a message again that stays uncommitted for too long, even if clients never do."""
    simulation = simulate()
    client = simulation.clients[ClientId(1)]
    client.sender.retry_s = FOR_EVER_S
    killed = leader(simulation, G0)
    simulation.inject(Crash(killed.me, FOR_EVER_S))
    mids = [multicast(simulation, 1, BOTH, b"%d" % number).mid for number in range(5)]
    run(simulation, lambda: client.idle, 10.0)
    assert sorted(client.finished) == sorted(mids)
    assert leader(simulation, G0) is not killed


def test_a_follower_does_not_drop_a_multicast_in_silence() -> None:
    simulation = simulate()
    client = simulation.clients[ClientId(1)]
    client.sender.retry_s = FOR_EVER_S
    wrong = next(host.me for host in hosts(simulation, G0) if not white_box(host).is_leader)
    client.sender.leaders[G0] = Ballot(0, wrong, 0)
    multicast(simulation, 1, (G0,))
    run(simulation, lambda: client.idle, 5.0)


# "groups of five crashed on failover"


@pytest.mark.parametrize("seed", range(2))
def test_groups_of_five_survive_failover_after_failover(seed: int) -> None:
    workload = Workload(clients=4, messages=200, window=4, think_s=0.02, spread=2)
    simulation = simulate(workload, seed=seed, replicas=5)
    led: list[ReplicaId] = []
    for goal in (30, 80, 130):
        run(simulation, lambda goal=goal: finished(simulation) >= goal, 20.0)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        first = leader(simulation, G0)
        second = next(host for host in hosts(simulation, G0) if host is not first)
        led.append(first.me)
        for host in (first, second):
            simulation.inject(Crash(host.me, FOR_EVER_S))
        run(simulation, lambda first=first: leaders(simulation, G0) not in ([], [first]), 20.0)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        simulation.restart(first.me)
        simulation.restart(second.me)
    run(simulation, lambda: idle(simulation), 30.0)
    assert finished(simulation) == workload.messages
    assert len(led) == 3
    run(simulation, simulation.converged, 30.0)
    assert len({tuple(log(host)) for host in hosts(simulation, G0)}) == 1


# "recovery merged each NEWLEADER_ACK as it came instead of waiting for the quorum"


def test_recovery_merges_once_after_the_whole_quorum_answered() -> None:
    """The first answer lacks a committed message, which the second has."""
    candidate = process(R[0], Topology.uniform(1, 5))
    ballot = stand(candidate, R[1:3])
    committed = entry(1, Phase.COMMITTED, 4, gts=6)
    old = Ballot(0, R[3], 0)
    candidate.step(R[1], promise(ballot, NO_BALLOT), 0.0)
    early = Said(candidate)
    assert early.messages == []
    assert candidate.cballot == NO_BALLOT
    candidate.step(R[2], promise(ballot, old, committed, clock=6), 0.0)
    said = Said(candidate)
    assert candidate.cballot == ballot
    for other in R[1:]:
        (state,) = said.new_states(other)
        assert state.entries == (committed,)
        assert state.clock >= 6
    for other in R[1:3]:
        candidate.step(other, NewStateAck(ballot), 0.0)
    delivered = Said(candidate).deliver
    assert [(d.mid, d.local_ts, d.global_ts) for d in delivered] == [
        (committed.mid, timestamp(4, G0), timestamp(6, G0))
    ]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_only_the_highest_ballots_accepted_messages_survive_in_whatever_order_they_come(
    order: tuple[int, int],
) -> None:
    candidate = process(R[0], Topology.uniform(1, 5))
    ballot = stand(candidate, R[1:3])
    low, high = Ballot(0, R[3], 0), Ballot(0, R[4], 0)
    stale, moved = entry(1, Phase.ACCEPTED, 3), entry(2, Phase.ACCEPTED, 4)
    committed, replaced = entry(3, Phase.COMMITTED, 2), entry(2, Phase.ACCEPTED, 9)
    answers = {
        1: (R[1], promise(ballot, low, stale, moved, committed, clock=4)),
        2: (R[2], promise(ballot, high, replaced, entry(3, Phase.ACCEPTED, 2), clock=9)),
    }
    for number in order:
        candidate.step(*answers[number], 0.0)
    (state,) = Said(candidate).new_states(R[4])
    assert sorted(state.entries) == sorted((replaced, committed))
    assert state.clock == 9


def test_what_comes_after_the_quorum_changes_nothing() -> None:
    candidate = process(R[0], Topology.uniform(1, 5))
    ballot = stand(candidate, R[1:3])
    kept = entry(1, Phase.ACCEPTED, 3)
    candidate.step(R[1], promise(ballot, Ballot(0, R[3], 0), kept, clock=3), 0.0)
    candidate.step(R[2], promise(ballot, NO_BALLOT), 0.0)
    Said(candidate)
    candidate.step(R[3], promise(ballot, Ballot(0, R[4], 0), clock=8), 0.0)
    assert Said(candidate).messages == []
    assert candidate.entries[kept.mid].state() == kept


# "a MULTICAST repeated after garbage collection was delivered twice"


@pytest.mark.parametrize("what", ["nothing", "new leader", "everyone restarted"])
def test_a_multicast_repeated_after_garbage_collection_is_not_delivered_twice(what: str) -> None:
    simulation = simulate()
    client = simulation.clients[ClientId(1)]
    message = multicast(simulation, 1, BOTH)
    run(simulation, lambda: idle(simulation), 5.0)
    run(simulation, lambda: collected(simulation), 10.0)
    if what == "new leader":
        simulation.inject(Crash(leader(simulation, G0).me, FOR_EVER_S))
    elif what == "everyone restarted":
        for replica in simulation.hosts:
            simulation.inject(Crash(replica, 0.1))
    rest(simulation, 0.2)
    run(simulation, lambda: all(leaders(simulation, group) for group in BOTH), 10.0)
    for group in BOTH:
        for member in simulation.topology.members(group):
            simulation.network.send(ClientId(1), member, message)
    answers = answered(client)
    rest(simulation, 5.0)
    for group in BOTH:
        for host in hosts(simulation, group):
            assert log(host) == [message.mid]
        # The client is answered again: it may have missed the first answer.
        positions = {at for answer in answers if answer.group == group for at in answer.positions}
        assert positions == {hosts(simulation, group)[0].log[0].global_ts}


def answered(client: SimClient) -> list[Reply]:
    """The replies a client gets from now on."""
    answers: list[Reply] = []
    receive = client.receive

    def listen(sender: Process, message: object) -> None:
        if isinstance(message, Reply):
            answers.append(message)
        receive(sender, message)

    setattr(client, "receive", listen)  # noqa: B010  # mypy forbids assigning to a method
    return answers


def test_an_accept_repeated_after_garbage_collection_brings_no_entry_back() -> None:
    accepts: list[tuple[Host, Sequence[Process], Accept]] = []

    class Tap(Checker):
        def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
            if isinstance(message, Accept):
                accepts.append((host, receivers, message))

    simulation = simulate(observers=[Tap()])
    multicast(simulation, 1, BOTH)
    run(simulation, lambda: idle(simulation), 5.0)
    run(simulation, lambda: collected(simulation), 10.0)
    assert accepts
    for host, receivers, accept in accepts[:]:
        for receiver in receivers:
            simulation.network.send(host.me, receiver, accept)
    rest(simulation, 0.5)
    assert collected(simulation)
    assert {len(host.log) for host in simulation.hosts.values()} == {1}


# "garbage collection never ran with local-only traffic in two groups"


@pytest.mark.parametrize("dead", [False, True])
def test_garbage_is_collected_with_local_traffic_only(dead: bool) -> None:  # noqa: FBT001 - a parameter of the test
    simulation = simulate()
    if dead:
        follower = next(host for host in hosts(simulation, G0) if not white_box(host).is_leader)
        simulation.inject(Crash(follower.me, FOR_EVER_S))
    for number in range(40):
        multicast(simulation, 1 + number % 2, (BOTH[number % 2],), b"%d" % number)
    run(simulation, lambda: idle(simulation), 5.0)
    assert not collected(simulation), "too early to show anything"
    run(simulation, lambda: collected(simulation), 3.0)
    assert {len(host.log) for host in simulation.hosts.values() if host.up} == {20}
    for host in simulation.hosts.values():
        if host.up:
            rest(simulation, 0.1)
            assert host.durable.entries == {}


@pytest.mark.parametrize("seed", range(4))
def test_garbage_that_a_crash_brought_back_is_collected_again(seed: int) -> None:
    """Some replicas' records of dropping are lost with a crash of all; others' are not. No client multicasts
    any more, so a replica that holds the message again depends on what its leader finds out for it.
    """
    simulation = simulate(seed=seed)
    multicast(simulation, 1, BOTH)
    run(simulation, lambda: idle(simulation), 5.0)
    run(simulation, lambda: collected(simulation), 10.0)
    for replica in simulation.hosts:
        simulation.inject(Crash(replica, 0.1))
    rest(simulation, 0.2)
    run(simulation, simulation.converged, 60.0)


# "a MULTICAST sent to one of two leaders blocked its group for good"


@pytest.mark.parametrize("informed", BOTH)
def test_a_multicast_sent_to_one_of_two_leaders_does_not_block_its_group(informed: GroupId) -> None:
    simulation = simulate()
    half = half_multicast(simulation, 1, BOTH, leader(simulation, informed).me)
    simulation.inject(ClientDeath(0, halfway=False))
    rest(simulation, 0.05)
    assert half.mid in white_box(leader(simulation, informed)).entries
    for group in BOTH:
        multicast(simulation, 2, (group,))
    run(simulation, lambda: idle(simulation), 3.0)
    run(simulation, simulation.converged, 10.0)
    for host in simulation.hosts.values():
        assert half.mid in log(host)


@pytest.mark.parametrize("informed", BOTH)
def test_a_proposal_whose_message_is_lost_with_its_leader_blocks_no_group(informed: GroupId) -> None:
    """The other group only ever hears the ACCEPT. It must neither wait for the message nor keep it."""
    simulation = simulate(timing=Timing(orphan_s=2.0))
    (other,) = set(BOTH) - {informed}
    doomed = leader(simulation, informed)
    members = simulation.topology.members(informed)
    simulation.inject(Cut((doomed.me,), members))
    half = half_multicast(simulation, 1, BOTH, doomed.me)
    run(simulation, lambda: half.mid in white_box(leader(simulation, other)).entries, 0.2)
    simulation.inject(Crash(doomed.me, 0.1))
    simulation.inject(Heal())
    multicast(simulation, 2, (other,))
    run(simulation, lambda: idle(simulation), 2.0)
    run(simulation, lambda: leaders(simulation, informed), 5.0)
    multicast(simulation, 2, BOTH)
    run(simulation, lambda: idle(simulation), 5.0)
    run(simulation, lambda: collected(simulation), 10.0)


# "a re-proposed lower local timestamp left the old maximum in place"


def test_a_lower_timestamp_that_is_proposed_again_replaces_the_old_maximum() -> None:
    """Group 1's new leader proposes 5 where its predecessor, never accepted by a quorum, proposed 9."""
    here = replica_ids(0, 1)[0]
    there = replica_ids(1, 3)
    topology = Topology({G0: [here], G1: there})
    replica = process(here, topology)
    replica.tick(0.0)
    Said(replica)
    assert replica.status is Status.LEADER
    own = replica.cballot
    dest, payload = BOTH, b"x"
    mid = MessageId(CLIENT, 1, digest_of(dest, payload))
    replica.step(CLIENT, Multicast(mid, dest, payload, 1), 0.0)
    old, new = Ballot(1, there[1], 0), Ballot(2, there[2], 0)
    replica.step(old.leader, Accept((dest,), G1, old, (mid,), (timestamp(9, G1),), (), ()), 0.0)
    assert AcceptAck((mid,), G0, (own, old), timestamp(1, G0)) in Said(replica).to(old.leader)
    # One acknowledgement of the old proposal: no quorum.
    replica.step(there[1], AcceptAck((mid,), G1, (own, old)), 0.0)
    replica.step(new.leader, Accept((dest,), G1, new, (mid,), (timestamp(5, G1),), (), ()), 0.0)
    assert AcceptAck((mid,), G0, (own, new), timestamp(1, G0)) in Said(replica).to(new.leader)
    replica.step(there[2], AcceptAck((mid,), G1, (own, new)), 0.0)
    assert Said(replica).deliver == [], "votes for two different proposals are no quorum"
    replica.step(there[0], AcceptAck((mid,), G1, (own, new)), 0.0)
    assert [delivery.global_ts for delivery in Said(replica).deliver] == [timestamp(5, G1)]
    # And a late ACCEPT of the old ballot would have changed nothing.
    replica.step(old.leader, Accept((dest,), G1, old, (mid,), (timestamp(9, G1),), (), ()), 0.0)
    assert Said(replica).deliver == []


def test_the_own_groups_lower_proposal_replaces_the_old_one_in_a_follower() -> None:
    """A follower accepted 9 in the old ballot; the new ballot starts without it and proposes 3."""
    topology = Topology({G0: R[:3], G1: replica_ids(1, 1)})
    follower = process(R[1], topology)
    far = Ballot(1, replica_ids(1, 1)[0], 0)
    old, new = Ballot(1, R[0], 0), Ballot(2, R[2], 0)
    dest, payload = BOTH, b"x"
    mid = MessageId(CLIENT, 1, digest_of(dest, payload))
    follower.step(R[0], NewState(old, 0, WHOLE, ()), 0.0)
    follower.step(far.leader, Accept((dest,), G1, far, (mid,), (timestamp(2, G1),), (), ()), 0.0)
    follower.step(R[0], Accept((dest,), G0, old, (mid,), (timestamp(9, G0),), (payload,), (1,)), 0.0)
    assert AcceptAck((mid,), G0, (old, far)) in Said(follower).to(R[0])
    follower.step(R[2], NewState(new, 2, WHOLE, ()), 0.0)
    follower.step(R[2], Accept((dest,), G0, new, (mid,), (timestamp(3, G0),), (payload,), (1,)), 0.0)
    assert AcceptAck((mid,), G0, (new, far)) in Said(follower).to(R[2])
    assert follower.entries[mid].local_ts == timestamp(3, G0)
    assert follower.clock >= 9, "a clock never falls"


# "the leader, talking to itself over a socket, starved its own delivery by seconds"


def test_no_replica_talks_to_itself_over_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    links: set[tuple[Process, Process]] = set()
    send = Network.send

    def record(self: Network, source: Process, target: Process, message: object) -> None:
        links.add((source, target))
        send(self, source, target, message)

    monkeypatch.setattr(Network, "send", record)
    early: list[Message] = []

    class Watched(PROTOCOL):  # type: ignore[misc, valid-type]  # a class made at run time
        def ready(self) -> Ready:
            ready: Ready = super().ready()
            early.extend(message for receivers, message in ready.send if self.me in receivers)
            return ready

    monkeypatch.setattr(f"{__name__}.PROTOCOL", Watched)
    simulation = simulate(LOAD)
    run(simulation, lambda: finished(simulation) >= 30, 10.0)
    simulation.inject(Crash(leader(simulation, G0).me, 1.0))
    run(simulation, lambda: idle(simulation), 20.0)
    assert len(links) > 30
    assert not [link for link in links if link[0] == link[1]]
    assert early == [], "what a process says to itself waits for its disk"


def test_a_leaders_own_delivery_takes_no_network_delay() -> None:
    delay_s = 3.0
    # A leader alone sends no ACCEPT that the checkers could see.
    simulation = simulate(
        groups=1, replicas=1, delays=Delays(delay_s, delay_s), disk=DiskDelays(0.001, 0.001), checkers=False
    )
    (host,) = simulation.hosts.values()
    sent_at = simulation.loop.now
    for number in range(50):
        multicast(simulation, 1, (G0,), b"%d" % number)
    run(simulation, lambda: len(host.log) == 50, 10.0)
    assert simulation.loop.now <= sent_at + delay_s + 0.01


# "state transfer in one unbounded frame"

BOUNDED = Timing(part_entries=3, part_bytes=100)


class Frames(Checker):
    """Every piece of state that is sent, and that none is too big. May break one connection."""

    def __init__(self, lose: type[NewLeaderAck | NewState | Deliveries] | None = None) -> None:
        self.sizes: dict[type, list[int]] = {NewLeaderAck: [], NewState: [], Deliveries: []}
        self.lost = 0
        self.lose = lose
        self.simulation: Simulation | None = None

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        if isinstance(message, (NewLeaderAck, NewState)):
            self.check(message, [len(state.payload) for state in message.entries])
        elif isinstance(message, Deliveries):
            self.check(message, [len(delivery.payload) for delivery in message.deliveries])

    def check(self, message: object, payloads: list[int]) -> None:
        self.sizes[type(message)].append(len(payloads))
        assert len(payloads) <= BOUNDED.part_entries, f"{len(payloads)} entries in {type(message).__name__}"
        assert sum(payloads) <= BOUNDED.part_bytes or len(payloads) == 1, f"{sum(payloads)} bytes"

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """With the second piece, the connection breaks: what follows it is lost."""
        if self.lose is None or not isinstance(message, self.lose) or self.simulation is None or self.lost:
            return
        if sender == host.me or (not isinstance(message, Deliveries) and message.part.index != 1):
            return
        self.lost += 1
        self.simulation.inject(Reset(sender, host.me))


def payload_of(number: int) -> bytes:
    # Some are bigger than a frame may be, and go alone.
    return bytes(250) if number % 9 == 4 else bytes(10 + number)


@pytest.mark.parametrize("lose", [None, NewLeaderAck, NewState, Deliveries])
def test_states_travel_in_bounded_pieces_and_a_lost_piece_only_costs_time(
    lose: type[NewLeaderAck | NewState | Deliveries] | None,
) -> None:
    frames = Frames(lose)
    # Nothing is executed durably, so nothing is collected, and states grow.
    simulation = simulate(timing=BOUNDED, disk=DiskDelays(commit_s=FOR_EVER_S), observers=[frames])
    first = leader(simulation, G0)
    absent, present = (host for host in hosts(simulation, G0) if host is not first)
    everyone = tuple(simulation.hosts)
    simulation.inject(Cut(everyone, (absent.me,)))
    for number in range(40):
        multicast(simulation, 1 + number % 2, BOTH, payload_of(number))
    run(simulation, lambda: idle(simulation) and len(present.log) == 40, 10.0)
    assert absent.log == []
    frames.simulation = simulation
    simulation.inject(Heal())
    simulation.inject(Crash(first.me, FOR_EVER_S))
    run(simulation, lambda: leaders(simulation, G0), 30.0)
    multicast(simulation, 1, BOTH, b"after")
    run(simulation, lambda: idle(simulation), 10.0)
    run(simulation, lambda: len(absent.log) == len(present.log) == 41, 10.0)
    # Now all have much to tell.
    simulation.restart(first.me)
    run(simulation, lambda: len(first.log) == 41, 20.0)
    second = leader(simulation, G0)
    run(
        simulation,
        lambda: all(white_box(h).status is not Status.RECOVERING for h in hosts(simulation, G0)),
        9.0,
    )
    simulation.inject(Crash(second.me, 3.0))
    run(simulation, lambda: leaders(simulation, G0) not in ([], [second]), 30.0)
    multicast(simulation, 1, BOTH, b"after that")
    run(simulation, lambda: len(first.log) == len(absent.log) == len(present.log) == 42, 30.0)
    assert log(first) == log(absent) == log(present)
    assert frames.lost == (lose is not None)
    for kind, sizes in frames.sizes.items():
        assert sum(sizes) >= 40, f"no large state was sent as {kind.__name__}: the test shows nothing"


def many(count: int) -> list[EntryState]:
    return [entry(number, Phase.ACCEPTED, number) for number in range(1, count + 1)]


def pieces(ballot: Ballot, cballot: Ballot, states: list[EntryState], transfer: int) -> list[NewLeaderAck]:
    cut = [states[at : at + 3] for at in range(0, len(states), 3)]
    return [
        promise(ballot, cballot, *piece, part=StatePart(transfer, index, len(cut)))
        for index, piece in enumerate(cut)
    ]


@pytest.mark.parametrize("lost", range(4))
def test_a_promise_with_a_piece_missing_is_no_promise(lost: int) -> None:
    candidate = process(R[0], Topology.uniform(1, 3), BOUNDED)
    ballot = stand(candidate, R[1:2])
    states = many(12)
    arriving = pieces(ballot, Ballot(0, R[1], 0), states, transfer=1)
    del arriving[lost]
    for piece in arriving:
        candidate.step(R[1], piece, 0.0)
    assert Said(candidate).messages == []
    assert candidate.cballot == NO_BALLOT
    # It asks again, and gets the whole.
    candidate.tick(candidate.timing.retry_s + 0.01)
    assert NewLeader(ballot) in Said(candidate).to(R[1])
    for piece in pieces(ballot, Ballot(0, R[1], 0), states, transfer=2):
        candidate.step(R[1], piece, 0.3)
    found = [state for message in Said(candidate).new_states(R[2]) for state in message.entries]
    assert sorted(found) == sorted(states)


def test_a_new_state_with_a_piece_missing_is_not_joined() -> None:
    follower = process(R[1], Topology.uniform(1, 3), BOUNDED)
    ballot = Ballot(1, R[0], 0)
    states = many(9)
    for transfer, indices in [(1, [0, 2]), (2, [1, 2]), (3, [0, 1])]:
        for index in indices:
            part = StatePart(transfer, index, 3)
            follower.step(R[0], NewState(ballot, 9, part, tuple(states[3 * index : 3 * index + 3])), 0.0)
    assert follower.cballot == NO_BALLOT
    assert Said(follower).messages == []
    follower.step(R[0], NewState(ballot, 9, StatePart(3, 2, 3), tuple(states[6:])), 0.0)
    assert follower.status is Status.FOLLOWER
    assert Said(follower).to(R[0]) == [NewStateAck(ballot)]
    assert sorted(follower.held()) == sorted(states)


def test_pieces_of_a_member_that_restarts_meanwhile_are_not_mixed() -> None:
    """After its restart a member may list its entries in another order. The candidate, which holds the first
    piece from the member's former life, must not complete it with the last piece from the new one.
    """
    timing = Timing(part_entries=1)
    topology = Topology({G0: R[:3], G1: replica_ids(1, 1)})
    far = Ballot(1, replica_ids(1, 1)[0], 0)
    old = Ballot(1, R[2], 0)
    member, disk = process(R[1], topology, timing), Durable()
    member.step(R[2], NewState(old, 0, WHOLE, ()), 0.0)
    mids = [MessageId(CLIENT, number, digest_of(BOTH, b"%d" % number)) for number in (1, 2)]
    # The far proposals arrive for 2 first, the own leader's for 1 first: both accepted.
    for number in (2, 1):
        lts = timestamp(number, G1)
        member.step(far.leader, Accept((BOTH,), G1, far, (mids[number - 1],), (lts,), (), ()), 0.0)
    for number in (1, 2):
        lts = timestamp(number, G0)
        run = (mids[number - 1],), (lts,), (b"%d" % number,), (1,)
        member.step(R[2], Accept((BOTH,), G0, old, *run), 0.0)
    acknowledged = {mid for m in Said(member, disk).to(R[2]) if isinstance(m, AcceptAck) for mid in m.mids}
    assert acknowledged == set(mids)

    candidate = process(R[0], topology, timing)
    candidate.note_ballot(G0, old)
    ballot = stand(candidate, R[1:2])
    member.step(R[0], NewLeader(ballot), 0.0)
    first_life = Said(member, disk).to(R[0])
    assert len(first_life) == 2
    candidate.step(R[1], first_life[0], 0.0)

    member = process(R[1], topology, timing, disk, life=2)
    candidate.tick(timing.retry_s + 0.01)
    assert NewLeader(ballot) in Said(candidate).to(R[1])
    member.step(R[0], NewLeader(ballot), 0.3)
    second_life = Said(member, disk).to(R[0])
    assert len(second_life) == 2
    for piece in second_life:
        candidate.step(R[1], piece, 0.3)
    assert candidate.cballot == ballot
    held = {state.mid for state in candidate.held()}
    assert held == set(mids), f"acknowledged and lost: {set(mids) - held}"


# "a paused leader never noticed"


def concerns(replica: ReplicaId, call: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
    """Whether an event needs this replica's process to run."""
    owner = getattr(call, "__self__", None)
    if isinstance(owner, Host):
        return owner.me == replica
    return isinstance(owner, Network) and arguments[1] == replica


def pause(simulation: Simulation, replica: ReplicaId, for_s: float) -> None:
    """Let time pass with one process stopped: its ticks, its disk and what it is sent wait for it."""
    loop = simulation.loop
    until = loop.now + for_s
    held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    while (at := loop.peek()) is not None and at <= until:
        _, _, call, arguments = loop._events[0]
        if concerns(replica, call, arguments):
            heapq.heappop(loop._events)
            held.append((call, arguments))
        else:
            loop.step()
    for call, arguments in held:
        loop.at(until, call, *arguments)


@pytest.mark.parametrize("seed", range(4))
def test_a_paused_leader_does_no_harm_and_notices(seed: int) -> None:
    workload = Workload(clients=4, messages=300, window=4, think_s=0.05, spread=2)
    simulation = simulate(workload, seed=seed)
    run(simulation, lambda: finished(simulation) >= 20, 10.0)
    paused = leader(simulation, G0)
    ballot = white_box(paused).cballot
    before = finished(simulation)
    pause(simulation, paused.me, 5.0)
    assert finished(simulation) > before + 20, "clients waited for the paused leader"
    assert white_box(paused).is_leader, "it cannot know better yet"
    (successor,) = [host for host in leaders(simulation, G0) if host is not paused]
    rest(simulation, 1.0)
    assert leaders(simulation, G0) == [successor]
    assert white_box(paused).ballot > ballot
    run(simulation, lambda: idle(simulation), 30.0)
    run(simulation, simulation.converged, 30.0)
    assert finished(simulation) == workload.messages
    assert log(paused) == log(successor)


def test_a_leader_paused_for_less_than_a_time_out_stays() -> None:
    simulation = simulate()
    paused = leader(simulation, G0)
    ballot = white_box(paused).cballot
    multicast(simulation, 1, BOTH)
    pause(simulation, paused.me, 0.2)
    run(simulation, lambda: idle(simulation), 2.0)
    rest(simulation, 2.0)
    assert white_box(leader(simulation, G0)).cballot == ballot


# "without any failure, one client's later message was ordered before its earlier one"


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sent_after_a_message_was_finished_is_ordered_after_it(seed: int) -> None:
    """In every group that delivers both; whichever client sent them."""
    workload = Workload(clients=6, messages=240, window=2, think_s=0.002, spread=2)
    times: dict[MessageId, list[float]] = {}
    scenario = Scenario(PROTOCOL, groups=3, faults="none", workload=workload)
    simulation = Simulation(scenario, seed)
    for client in simulation.clients.values():
        note_times(simulation, client, times)
    simulation.start()
    run(simulation, lambda: idle(simulation), 60.0)
    run(simulation, simulation.converged, 30.0)
    pairs = 0
    for sequence in simulation.order.sequences.values():
        for index, later in enumerate(sequence):
            for earlier in sequence[:index]:
                # The one that is ordered later was not finished before the other was sent.
                assert times[later][1] >= times[earlier][0], f"{later} was finished before {earlier} was sent"
                pairs += times[earlier][1] < times[later][0]
    assert pairs > 1000, "hardly anything was sent one after the other: the test shows nothing"


def note_times(simulation: Simulation, client: SimClient, times: dict[MessageId, list[float]]) -> None:
    """Note when each message was first sent, and when its client knew that it was finished."""
    flush, receive = client._flush, client.receive

    def noting_flush() -> None:
        for mid in client.sender.pending:
            times.setdefault(mid, [simulation.loop.now, float("inf")])
        flush()

    def noting_receive(sender: Process, message: object) -> None:
        pending = set(client.sender.pending)
        receive(sender, message)
        for mid in pending - set(client.sender.pending):
            times[mid][1] = simulation.loop.now

    setattr(client, "_flush", noting_flush)  # noqa: B010  # mypy forbids assigning to a method
    setattr(client, "receive", noting_receive)  # noqa: B010 - a method is replaced
