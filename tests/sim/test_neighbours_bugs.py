"""One test, or a few, for each fault found when the paper's authors' own C implementation was tried.

Simulated runs are under all checkers, which raise at the first step that breaks an invariant; what a test
adds is the directed schedule, and that the run comes to its end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from multicast import types as t
from multicast.client import Reply
from multicast.durable import Durable
from multicast.messages import (
    Accept,
    AcceptAck,
    Deliveries,
    EntryState,
    Message,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    StatePart,
)
from multicast.protocol import Ready, Timing
from multicast.sim.checkers import Checker
from multicast.sim.clients import SimClient, Workload
from multicast.sim.faults import ClientDeath, Crash, Cut, Heal, Reset
from multicast.sim.host import DiskDelays, Host
from multicast.sim.network import Delays, Network
from multicast.sim.run import Scenario, Simulation
from multicast.topology import Topology
from multicast.whitebox import WhiteBox
from tests.unit.multicast import replicas as by_hand
from tests.unit.multicast.replicas import BOTH, CLIENT, G0, G1, drain, follow, proposal, replica_ids, stand

PROTOCOL: type[WhiteBox] = WhiteBox
"""What is tested. A sabotaged subclass in its place must make the tests fail."""

FOR_EVER_S = 1e6
QUIET = Workload(clients=2, messages=0)
LOAD = Workload(clients=4, messages=120, window=4, think_s=0.02, spread=2)


# Simulated runs


def simulate(
    workload: Workload = QUIET, *, seed: int = 1, observers: Sequence[Checker] = (), **options: Any
) -> Simulation:
    """A run whose groups all have leaders. Options are those of `Scenario`."""
    options.setdefault("groups", 2)
    scenario = Scenario(PROTOCOL, faults="none", workload=workload, **options)
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


def hosts(simulation: Simulation, group: t.GroupId) -> list[Host]:
    return [simulation.hosts[m] for m in simulation.topology.members(group) if simulation.hosts[m].up]


def leaders(simulation: Simulation, group: t.GroupId) -> list[Host]:
    return [host for host in hosts(simulation, group) if white_box(host).is_leader]


def leader(simulation: Simulation, group: t.GroupId) -> Host:
    (found,) = leaders(simulation, group)
    return found


def recovering(simulation: Simulation, group: t.GroupId) -> list[Host]:
    return [host for host in hosts(simulation, group) if white_box(host).status is t.Status.RECOVERING]


def multicast(simulation: Simulation, client: int, dest: t.Destinations, payload: bytes = b"x") -> Multicast:
    """A client sends one message, to all its leaders."""
    chosen = simulation.clients[t.ClientId(client)]
    message = chosen.sender.multicast(dest, payload, simulation.loop.now)
    simulation.multicasts.add(message)
    chosen.multicast.append(message.mid)
    chosen._flush()
    return message


def half_multicast(
    simulation: Simulation, client: int, dest: t.Destinations, target: t.ReplicaId
) -> Multicast:
    """A client sends one message to one process, and forgets about it."""
    message = simulation.clients[t.ClientId(client)].sender.numbers.next(dest, b"half")
    simulation.multicasts.add(message)
    simulation.network.send(t.ClientId(client), target, message)
    return message


def finished(simulation: Simulation) -> int:
    return sum(len(client.finished) for client in simulation.clients.values())


def idle(simulation: Simulation) -> bool:
    return all(client.idle for client in simulation.clients.values())


def waiting_for(simulation: Simulation, group: t.GroupId) -> bool:
    """Whether a client waits for this group's answer."""
    pending = [item for client in simulation.clients.values() for item in client.sender.pending.values()]
    return any(group in item.unanswered for item in pending)


def log(host: Host) -> list[t.MessageId]:
    return [delivery.mid for delivery in host.log]


def collected(simulation: Simulation) -> bool:
    return not any(white_box(host).entries for host in simulation.hosts.values() if host.up)


# A process driven by hand


R = replica_ids(G0, 5)
ALONE = replica_ids(G1, 1)


def process(me: t.ReplicaId, topology: Topology, **options: Any) -> WhiteBox:
    return by_hand.start(PROTOCOL, me, topology, **options)


def promise(
    ballot: t.Ballot, cballot: t.Ballot, *entries: EntryState, clock: int = 0, part: StatePart = by_hand.WHOLE
) -> NewLeaderAck:
    return NewLeaderAck(ballot, cballot, clock, t.NO_TIMESTAMP, part, entries)


def entry(
    sequence: int, phase: t.Phase, local: int, dest: t.Destinations = (G0,), gts: int = 0
) -> EntryState:
    m = by_hand.multicast(sequence, dest, b"%d" % sequence)
    global_ts = t.timestamp(gts or local, G0) if phase is t.Phase.COMMITTED else t.NO_TIMESTAMP
    return EntryState(*m, phase, t.timestamp(local, G0), global_ts)


# "SIGKILL of a leader under two-group load left no client progressing"


@pytest.mark.parametrize("victim", BOTH)
@pytest.mark.parametrize("seed", range(3))
def test_clients_progress_after_a_leader_was_killed_under_load(victim: t.GroupId, seed: int) -> None:
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
    client = simulation.clients[t.ClientId(1)]
    client.sender.retry_s = FOR_EVER_S
    killed = leader(simulation, G0)
    simulation.inject(Crash(killed.me, FOR_EVER_S))
    mids = [multicast(simulation, 1, BOTH, b"%d" % number).mid for number in range(5)]
    run(simulation, lambda: client.idle, 10.0)
    assert sorted(client.finished) == sorted(mids)
    assert leader(simulation, G0) is not killed


def test_a_follower_does_not_drop_a_multicast_in_silence() -> None:
    simulation = simulate()
    client = simulation.clients[t.ClientId(1)]
    client.sender.retry_s = FOR_EVER_S
    wrong = next(host.me for host in hosts(simulation, G0) if not white_box(host).is_leader)
    client.sender.leaders[G0] = t.Ballot(0, wrong, 0)
    multicast(simulation, 1, (G0,))
    run(simulation, lambda: client.idle, 5.0)


# "groups of five crashed on failover"


@pytest.mark.parametrize("seed", range(2))
def test_groups_of_five_survive_failover_after_failover(seed: int) -> None:
    workload = Workload(clients=4, messages=200, window=4, think_s=0.02, spread=2)
    simulation = simulate(workload, seed=seed, replicas=5)
    led: list[t.ReplicaId] = []
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


def candidate_of_five() -> tuple[WhiteBox, t.Ballot]:
    candidate = process(R[0], Topology.uniform(1, 5))
    return candidate, stand(candidate, R[1:3])


def new_states(said: by_hand.Said, receiver: t.ReplicaId) -> list[NewState]:
    return [message for message in said.to(receiver) if isinstance(message, NewState)]


def test_recovery_merges_once_after_the_whole_quorum_answered() -> None:
    """The first answer lacks a committed message, which the second has."""
    candidate, ballot = candidate_of_five()
    committed = entry(1, t.Phase.COMMITTED, 4, gts=6)
    old = t.Ballot(0, R[3], 0)
    candidate.step(R[1], promise(ballot, t.NO_BALLOT), 0.0)
    assert drain(candidate).messages == []
    assert candidate.cballot == t.NO_BALLOT
    candidate.step(R[2], promise(ballot, old, committed, clock=6), 0.0)
    said = drain(candidate)
    assert candidate.cballot == ballot
    for other in R[1:]:
        (state,) = new_states(said, other)
        assert state.entries == (committed,)
        assert state.clock >= 6
    for other in R[1:3]:
        candidate.step(other, NewStateAck(ballot), 0.0)
    delivered = drain(candidate).deliver
    assert [(d.mid, d.local_ts, d.global_ts) for d in delivered] == [
        (committed.mid, t.timestamp(4, G0), t.timestamp(6, G0))
    ]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_only_the_highest_ballots_accepted_messages_survive_in_whatever_order_they_come(
    order: tuple[int, int],
) -> None:
    candidate, ballot = candidate_of_five()
    low, high = t.Ballot(0, R[3], 0), t.Ballot(0, R[4], 0)
    stale, moved = entry(1, t.Phase.ACCEPTED, 3), entry(2, t.Phase.ACCEPTED, 4)
    committed, replaced = entry(3, t.Phase.COMMITTED, 2), entry(2, t.Phase.ACCEPTED, 9)
    answers = {
        1: (R[1], promise(ballot, low, stale, moved, committed, clock=4)),
        2: (R[2], promise(ballot, high, replaced, entry(3, t.Phase.ACCEPTED, 2), clock=9)),
    }
    for number in order:
        candidate.step(*answers[number], 0.0)
    (state,) = new_states(drain(candidate), R[4])
    assert sorted(state.entries) == sorted((replaced, committed))
    assert state.clock == 9


def test_what_comes_after_the_quorum_changes_nothing() -> None:
    candidate, ballot = candidate_of_five()
    kept = entry(1, t.Phase.ACCEPTED, 3)
    candidate.step(R[1], promise(ballot, t.Ballot(0, R[3], 0), kept, clock=3), 0.0)
    candidate.step(R[2], promise(ballot, t.NO_BALLOT), 0.0)
    drain(candidate)
    candidate.step(R[3], promise(ballot, t.Ballot(0, R[4], 0), clock=8), 0.0)
    assert drain(candidate).messages == []
    assert candidate.entries[kept.mid].state() == kept


# "a MULTICAST repeated after garbage collection was delivered twice"


@pytest.mark.parametrize("what", ["nothing", "new leader", "everyone restarted"])
def test_a_multicast_repeated_after_garbage_collection_is_not_delivered_twice(what: str) -> None:
    simulation = simulate()
    client = simulation.clients[t.ClientId(1)]
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
            simulation.network.send(t.ClientId(1), member, message)
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

    def listen(sender: t.Process, message: object) -> None:
        if isinstance(message, Reply):
            answers.append(message)
        receive(sender, message)

    setattr(client, "receive", listen)  # noqa: B010  # mypy forbids assigning to a method
    return answers


def test_an_accept_repeated_after_garbage_collection_brings_no_entry_back() -> None:
    accepts: list[tuple[Host, Sequence[t.Process], Accept]] = []

    class Tap(Checker):
        def sent(self, host: Host, receivers: Sequence[t.Process], message: object) -> None:
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
def test_a_multicast_sent_to_one_of_two_leaders_does_not_block_its_group(informed: t.GroupId) -> None:
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
def test_a_proposal_whose_message_is_lost_with_its_leader_blocks_no_group(informed: t.GroupId) -> None:
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
    replica = process(R[0], Topology({G0: R[:1], G1: by_hand.THERE}))
    replica.tick(0.0)
    drain(replica)
    assert replica.status is t.Status.LEADER
    own, m = replica.cballot, by_hand.multicast(1, BOTH)
    replica.step(CLIENT, m, 0.0)
    old, new = t.Ballot(1, by_hand.THERE[1], 0), t.Ballot(2, by_hand.THERE[2], 0)
    replica.step(old.leader, proposal(old, [m], 9), 0.0)
    assert AcceptAck((m.mid,), G0, (own, old), t.timestamp(1, G0)) in drain(replica).to(old.leader)
    # One acknowledgement of the old proposal: no quorum.
    replica.step(by_hand.THERE[1], AcceptAck((m.mid,), G1, (own, old)), 0.0)
    replica.step(new.leader, proposal(new, [m], 5), 0.0)
    assert AcceptAck((m.mid,), G0, (own, new), t.timestamp(1, G0)) in drain(replica).to(new.leader)
    replica.step(by_hand.THERE[2], AcceptAck((m.mid,), G1, (own, new)), 0.0)
    assert drain(replica).deliver == [], "votes for two different proposals are no quorum"
    replica.step(by_hand.THERE[0], AcceptAck((m.mid,), G1, (own, new)), 0.0)
    assert [delivery.global_ts for delivery in drain(replica).deliver] == [t.timestamp(5, G1)]
    # And a late ACCEPT of the old ballot would have changed nothing.
    replica.step(old.leader, proposal(old, [m], 9), 0.0)
    assert drain(replica).deliver == []


def test_the_own_groups_lower_proposal_replaces_the_old_one_in_a_follower() -> None:
    """A follower accepted 9 in the old ballot; the new ballot starts without it and proposes 3."""
    follower = process(R[1], Topology({G0: R[:3], G1: ALONE}))
    far, old, new = t.Ballot(1, ALONE[0], 0), t.Ballot(1, R[0], 0), t.Ballot(2, R[2], 0)
    m = by_hand.multicast(1, BOTH)
    follow(follower, old)
    follower.step(far.leader, proposal(far, [m], 2), 0.0)
    follower.step(R[0], proposal(old, [m], 9), 0.0)
    assert AcceptAck((m.mid,), G0, (old, far)) in drain(follower).to(R[0])
    follower.step(R[2], NewState(new, 2, by_hand.WHOLE, ()), 0.0)
    follower.step(R[2], proposal(new, [m], 3), 0.0)
    assert AcceptAck((m.mid,), G0, (new, far)) in drain(follower).to(R[2])
    assert follower.entries[m.mid].local_ts == t.timestamp(3, G0)
    assert follower.clock >= 9, "a clock never falls"


# "the leader, talking to itself over a socket, starved its own delivery by seconds"


def test_no_replica_talks_to_itself_over_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    links: set[tuple[t.Process, t.Process]] = set()
    send = Network.send

    def record(self: Network, source: t.Process, target: t.Process, message: object) -> None:
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

    def sent(self, host: Host, receivers: Sequence[t.Process], message: object) -> None:
        if isinstance(message, (NewLeaderAck, NewState)):
            self.check(message, [len(state.payload) for state in message.entries])
        elif isinstance(message, Deliveries):
            self.check(message, [len(delivery.payload) for delivery in message.deliveries])

    def check(self, message: object, payloads: list[int]) -> None:
        self.sizes[type(message)].append(len(payloads))
        assert len(payloads) <= BOUNDED.part_entries, f"{len(payloads)} entries in {type(message).__name__}"
        assert sum(payloads) <= BOUNDED.part_bytes or len(payloads) == 1, f"{sum(payloads)} bytes"

    def stepped(self, host: Host, sender: t.Process, message: Message) -> None:
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
    run(simulation, lambda: not recovering(simulation, G0), 9.0)
    simulation.inject(Crash(second.me, 3.0))
    run(simulation, lambda: leaders(simulation, G0) not in ([], [second]), 30.0)
    multicast(simulation, 1, BOTH, b"after that")
    run(simulation, lambda: len(first.log) == len(absent.log) == len(present.log) == 42, 30.0)
    assert log(first) == log(absent) == log(present)
    assert frames.lost == (lose is not None)
    for kind, sizes in frames.sizes.items():
        assert sum(sizes) >= 40, f"no large state was sent as {kind.__name__}: the test shows nothing"


def many(count: int) -> list[EntryState]:
    return [entry(number, t.Phase.ACCEPTED, number) for number in range(1, count + 1)]


def pieces(
    ballot: t.Ballot, cballot: t.Ballot, states: list[EntryState], transfer: int
) -> list[NewLeaderAck]:
    cut = [states[at : at + 3] for at in range(0, len(states), 3)]
    return [
        promise(ballot, cballot, *piece, part=StatePart(transfer, index, len(cut)))
        for index, piece in enumerate(cut)
    ]


@pytest.mark.parametrize("lost", range(4))
def test_a_promise_with_a_piece_missing_is_no_promise(lost: int) -> None:
    candidate = process(R[0], Topology.uniform(1, 3), timing=BOUNDED)
    ballot = stand(candidate, R[1:2])
    states = many(12)
    arriving = pieces(ballot, t.Ballot(0, R[1], 0), states, transfer=1)
    del arriving[lost]
    for piece in arriving:
        candidate.step(R[1], piece, 0.0)
    assert drain(candidate).messages == []
    assert candidate.cballot == t.NO_BALLOT
    # It asks again, and gets the whole.
    candidate.tick(candidate.timing.retry_s + 0.01)
    assert NewLeader(ballot) in drain(candidate).to(R[1])
    for piece in pieces(ballot, t.Ballot(0, R[1], 0), states, transfer=2):
        candidate.step(R[1], piece, 0.3)
    found = [state for message in new_states(drain(candidate), R[2]) for state in message.entries]
    assert sorted(found) == sorted(states)


def test_a_new_state_with_a_piece_missing_is_not_joined() -> None:
    follower = process(R[1], Topology.uniform(1, 3), timing=BOUNDED)
    ballot = t.Ballot(1, R[0], 0)
    states = many(9)
    for transfer, indices in [(1, [0, 2]), (2, [1, 2]), (3, [0, 1])]:
        for index in indices:
            part = StatePart(transfer, index, 3)
            follower.step(R[0], NewState(ballot, 9, part, tuple(states[3 * index : 3 * index + 3])), 0.0)
    assert follower.cballot == t.NO_BALLOT
    assert drain(follower).messages == []
    follower.step(R[0], NewState(ballot, 9, StatePart(3, 2, 3), tuple(states[6:])), 0.0)
    assert follower.status is t.Status.FOLLOWER
    assert drain(follower).to(R[0]) == [NewStateAck(ballot)]
    assert sorted(follower.held()) == sorted(states)


def test_pieces_of_a_member_that_restarts_meanwhile_are_not_mixed() -> None:
    """After its restart a member may list its entries in another order. The candidate, which holds the first
    piece from the member's former life, must not complete it with the last piece from the new one.
    """
    timing = Timing(part_entries=1)
    topology = Topology({G0: R[:3], G1: ALONE})
    far, old = t.Ballot(1, ALONE[0], 0), t.Ballot(1, R[2], 0)
    member, disk = process(R[1], topology, timing=timing), Durable()
    follow(member, old)
    both = [by_hand.multicast(number, BOTH, b"%d" % number) for number in (1, 2)]
    mids = [m.mid for m in both]
    # The far proposals arrive for 2 first, the own leader's for 1 first: both accepted.
    for number, ballot in ((2, far), (1, far), (1, old), (2, old)):
        member.step(ballot.leader, proposal(ballot, [both[number - 1]], number), 0.0)
    acknowledged = {mid for m in drain(member, disk).to(R[2]) if isinstance(m, AcceptAck) for mid in m.mids}
    assert acknowledged == set(mids)

    candidate = process(R[0], topology, timing=timing)
    candidate.note_ballot(G0, old)
    ballot = stand(candidate, R[1:2])
    member.step(R[0], NewLeader(ballot), 0.0)
    first_life = drain(member, disk).to(R[0])
    assert len(first_life) == 2
    candidate.step(R[1], first_life[0], 0.0)

    member = process(R[1], topology, timing=timing, durable=disk, life=2)
    candidate.tick(timing.retry_s + 0.01)
    assert NewLeader(ballot) in drain(candidate).to(R[1])
    member.step(R[0], NewLeader(ballot), 0.3)
    second_life = drain(member, disk).to(R[0])
    assert len(second_life) == 2
    for piece in second_life:
        candidate.step(R[1], piece, 0.3)
    assert candidate.cballot == ballot
    held = {state.mid for state in candidate.held()}
    assert held == set(mids), f"acknowledged and lost: {set(mids) - held}"


# "a paused leader never noticed"


def concerns(replica: t.ReplicaId, call: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
    """Whether an event needs this replica's process to run."""
    owner = getattr(call, "__self__", None)
    if isinstance(owner, Host):
        return owner.me == replica
    return isinstance(owner, Network) and arguments[1] == replica


def pause(simulation: Simulation, replica: t.ReplicaId, for_s: float) -> None:
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
    times: dict[t.MessageId, list[float]] = {}
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


def note_times(simulation: Simulation, client: SimClient, times: dict[t.MessageId, list[float]]) -> None:
    """Note when each message was first sent, and when its client knew that it was finished."""
    flush, receive = client._flush, client.receive

    def noting_flush() -> None:
        for mid in client.sender.pending:
            times.setdefault(mid, [simulation.loop.now, float("inf")])
        flush()

    def noting_receive(sender: t.Process, message: object) -> None:
        pending = set(client.sender.pending)
        receive(sender, message)
        for mid in pending - set(client.sender.pending):
            times[mid][1] = simulation.loop.now

    setattr(client, "_flush", noting_flush)  # noqa: B010  # mypy forbids assigning to a method
    setattr(client, "receive", noting_receive)  # noqa: B010 - a method is replaced
