"""Directed schedules of the whole store: a few messages are held back, the rest takes its way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kvstore.machine import Decision, Vote
from kvstore.machine.request import (
    Arithmetic,
    Calculate,
    Compare,
    Get,
    Operation,
    Operator,
    Put,
    Range,
    Subject,
    Transaction,
)
from kvstore.simulation import StoreCluster, scenario_of
from kvstore.simulation.history import AbortedCall, Asked, Call, Cut, ReadAtCall, StrictCall, Transact
from kvstore.store import watches
from kvstore.store.errors import OutcomeUnknown, TransactionAborted
from kvstore.store.feeds import FeedPosition
from kvstore.store.gateway import Committed, Identity
from kvstore.store.messages import Levels, Results, Votes
from kvstore.store.questions import Changes, Event, Values
from kvstore.store.service import Consistency
from kvstore.wire.messages import SnapshotAck, SnapshotPiece
from multicast.errors import PeerViolation
from multicast.messages import Hint, about
from multicast.sim.checkers import Violation
from multicast.sim.clients import Workload
from multicast.sim.faults import Wipe
from multicast.sim.network import Delays
from multicast.types import GroupId, MessageId, Process, ReplicaId
from wbkv_sim.workloads import Register

A, C = GroupId(0), GroupId(1)
OUTSIDER = ReplicaId(GroupId(2), 1, 0)
LATER = 1 << 35
LONG_S = 60.0


STAGES: list[Stage] = []
"""All that were made and not closed."""


class Stage(StoreCluster):
    """Groups without faults, whose calls are made by a test, one by one, of the nodes' services."""

    def __init__(self, groups: int = 3) -> None:
        workload = Workload(clients=1, messages=0, window=1, think_s=1.0)
        delays = Delays(0.001, 0.001)
        scenario = scenario_of("none", groups, clock="logical", workload=workload, delays=delays, skew=0.0)
        super().__init__(scenario, 0)
        STAGES.append(self)
        self._keys = Register(self.placement, 1.0).keys
        self._next = 0
        self.start()
        self.wait(lambda: all(self.leader(group).reading_ballot for group in self.placement.groups))
        # Until then, a gateway does not multicast requests with deadlines.
        self.wait(
            lambda: all(machine.application.gateway.clocks.informed for machine in self._machines.values())
        )

    def leader(self, group: GroupId, number: int | None = None) -> Any:
        """The replica that leads at first, or another."""
        leader = self.topology.preferred_leader(group)
        return self.hosts[leader if number is None else ReplicaId(group, number, 0)].replica

    def key(self, group: GroupId, number: int = 0) -> bytes:
        return self._keys[group][number]

    def wait(self, done: Callable[[], bool], seconds: float = 5.0) -> bool:
        return self.run_until(done, self.loop.now + seconds)

    def pause(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def ask(self, node: int, asked: Asked, deadline: int = LATER) -> Call:
        """A call that begins now, at a node, and not at the very time that another ended."""
        self.pause(1e-6)
        self._next += 1
        identity = Identity(7, self._next, 0, deadline) if isinstance(asked, Transact) else None
        call = self.history.invoke(7, asked, self.loop.now, identity)
        call.attempts = 1
        with self._servers[node].loop.running():
            asyncio.ensure_future(self._begin(node, call)).add_done_callback(partial(self._done, call))
        return call

    def _begin(self, node: int, call: Call) -> Awaitable[Committed]:
        service, asked = self.services[node], call.asked
        if isinstance(asked, Transact):
            return service.transact(asked.transaction, identity=call.identity, timeout_s=LONG_S)
        if isinstance(asked, StrictCall):
            return service.read(asked.operations, timeout_s=LONG_S)
        assert isinstance(asked, ReadAtCall)
        return service.read(
            asked.operations,
            consistency=Consistency.SERIALIZABLE,
            revision=asked.revision,
            timeout_s=LONG_S,
        )

    def _done(self, call: Call, future: asyncio.Future[Committed]) -> None:
        if future.cancelled():
            return  # the test is over
        call.returned, call.outcome = self.loop.now, future.exception()
        if isinstance(call.outcome, TransactionAborted):
            call.outcome = AbortedCall(call.outcome.revision, call.outcome.in_then, call.outcome.failures)
        elif call.outcome is None:
            call.outcome = future.result()
            if not isinstance(call.asked, Transact):
                call.outcome = Values(call.outcome.complete, call.outcome.results)

    def do(self, node: int, *operations: Operation) -> Call:
        """A transaction without conditions."""
        return self.ask(node, Transact(Transaction(then=operations)))

    def answered(self, call: Call, seconds: float = 5.0) -> bool:
        return self.wait(lambda: call.returned is not None, seconds)

    def message(self, node: int) -> MessageId:
        """What a node's gateway has multicast last."""
        mid: MessageId = list(self._machines[node].application.gateway._calls)[-1]
        return mid

    def hold(self, mid: MessageId, group: GroupId) -> None:
        """Nothing of a message reaches a group, until further notice."""

        def loses(_: Process, target: Process, message: object) -> bool:
            concerned = getattr(message, "mid", None) == mid or mid in about(message)
            return isinstance(target, ReplicaId) and target.group == group and concerned

        self.network.loses = loses

    def hold_votes(self, group: GroupId) -> None:
        """No votes or outcomes reach a group."""
        self.network.loses = lambda _, target, message: (
            isinstance(message, Votes) and isinstance(target, ReplicaId) and target.group == group
        )

    def hint(self, node: int, group: GroupId, number: int) -> None:
        """A node's gateway hears who leads."""
        ballot = self.leader(group, number).ballot
        self._machines[node].application.gateway._sender.step(Hint(group, ballot), self.loop.now)

    def finish(self, within_s: float = 30.0) -> None:
        """Nothing is held back any more, everything ends, and all of it is checked."""
        self.network.loses = None
        self.network.heal()
        self.healed = True
        if not self.wait(self.converged, within_s):
            raise Violation("Termination", self._what_is_missing())
        self._check_end()


def falling_path(hops: int = 1, *, changes_leader: bool = False, aborts: bool = False) -> None:
    """The circle of four transactions that ordering alone allows (hops = 1), and longer ones.

    Each Zi is to groups i and i + 1. The last one is pending at group `hops`, and has not reached the group
    after it, where the clock is low. The one before waits behind it there, and is delivered at its other
    group; the others are delivered. Z0 wrote what T1 reads at group 0. When T1 has its answer, T2 writes in
    the last group. Then the last Z gets there, after T2, and before all other Zs. With `aborts`, T1 is
    aborted, since what Z0 wrote is not a number: that tells its client of Z0 as well as a value would.
    """
    stage = Stage(hops + 2)
    groups = [GroupId(number) for number in range(hops + 2)]
    for group in groups[:-1]:
        for _ in range(10 * (hops + 1 - group)):
            assert stage.answered(stage.do(0, Put(stage.key(group, 1), b"clock")))
    for i in range(hops, -1, -1):
        stage.do(1, Put(stage.key(groups[i]), b"z"), Put(stage.key(groups[i + 1]), b"z"))
        mid = stage.message(1)
        if i == hops:
            stage.hold(mid, groups[-1])
            assert stage.wait(lambda: mid in stage.leader(groups[hops]).entries, 0.1)  # noqa: B023 - at once
        else:
            assert stage.wait(lambda: mid in stage.leader(groups[i]).delivered_ids, 0.2)  # noqa: B023 - called at once
    first, node = groups[0], 0
    if changes_leader:
        node = 1
        assert stage.wait(lambda: mid in stage.leader(first, 1).delivered_ids, 0.2)
        stage.hosts[ReplicaId(first, 1, 0)].nominate()
        assert stage.wait(lambda: stage.leader(first, 1).reading_ballot is not None, 0.3)
        stage.hint(node, first, 1)
    asked = Calculate(stage.key(first), Arithmetic.ADD, 1) if aborts else Get(stage.key(first))
    read = stage.do(node, asked)
    in_time = stage.answered(read, 0.9)
    if in_time:
        assert stage.answered(stage.do(1, Put(stage.key(groups[-1]), b"2")), 0.9)
    else:
        stage.pause(1.5)
    stage.finish()
    assert not in_time, "the gate has let it pass, and no circle was found"


def waits_for_a_vote() -> tuple[Stage, Call]:
    """A transaction with conditions in A and C is executed at C, and waits for C's vote at A."""
    stage = Stage()
    conditions = tuple(Compare(stage.key(group), Subject.EXISTS, Operator.EQUAL, 0) for group in (A, C))
    puts = tuple(Put(stage.key(group), b"new") for group in (A, C))
    stage.hold_votes(A)
    call = stage.ask(2, Transact(Transaction(conditions, puts)))
    partition = stage._machines[0].application.partition(A)
    assert stage.wait(lambda: partition.machine.waiting > 0, 1.0)
    return stage, call


def lies(stage: Stage, sender: ReplicaId, votes: Votes) -> None:
    """A replica sends the leader of A votes; the connection may be closed for that."""
    with contextlib.suppress(PeerViolation):
        stage._machines[0].application.partition(A).receive(sender, votes, stage.loop.now)


def a_vote_of_another_group() -> None:
    """A replica votes for a group that is not its own."""
    stage, call = waits_for_a_vote()
    machine = stage._machines[0].application.partition(A).machine
    ((gts, voters),) = machine.open_votes()
    assert voters == {C}
    lies(stage, OUTSIDER, Votes((Vote(gts, stage.message(2), C, yes=False),)))
    stage.finish()
    assert isinstance(call.outcome, Committed)


def an_outcome_of_another_group() -> None:
    """A replica of a group that has nothing to do with a transaction tells its outcome."""
    stage, call = waits_for_a_vote()
    machine = stage._machines[0].application.partition(A).machine
    ((gts, _),) = machine.open_votes()
    lies(stage, OUTSIDER, Votes((), ((gts, Decision.OTHERWISE),)))
    stage.finish()
    assert isinstance(call.outcome, Committed)


def strict_reads_wait() -> None:
    """Who has read at C what a transaction wrote reads it at A, too."""
    stage, call = waits_for_a_vote()
    seen = stage.ask(1, StrictCall((Get(stage.key(C)),)))
    assert stage.answered(seen, 0.3)
    assert isinstance(seen.outcome, Values)
    read = stage.ask(0, StrictCall((Get(stage.key(A)),)))
    stage.answered(read, 0.3)
    stage.finish()
    assert isinstance(call.outcome, Committed)


def reads_at_any_replica_are_of_one_revision() -> None:
    """What is executed ahead of a transaction that waits is not shown before it."""
    stage, _ = waits_for_a_vote()
    ahead = stage.do(0, Put(stage.key(A, 1), b"ahead"))
    assert stage.answered(ahead, 0.5)
    assert isinstance(ahead.outcome, Committed)
    assert ahead.outcome.complete < ahead.outcome.revision
    both = (Get(stage.key(A)), Get(stage.key(A, 1)))
    assert stage.answered(stage.ask(0, ReadAtCall(both)), 0.3)
    stage.ask(0, ReadAtCall(both, ahead.outcome.revision))
    stage.pause(0.3)
    stage.finish()


def a_refusal_is_heard() -> None:
    """The answer to a request that came too late gets lost. It leaves no trace, and is asked for again: then
    it may as well have been executed and forgotten.
    """
    stage = Stage()
    stage.network.loses = lambda _, __, message: isinstance(message, Results)
    call = stage.ask(2, Transact(Transaction(then=(Put(stage.key(A), b"late"),))), deadline=1)
    stage.pause(0.3)
    stage.finish()
    assert isinstance(call.outcome, OutcomeUnknown)


def a_busy_gateway_repeats() -> None:
    """Answers get lost on a node that has a turn every few milliseconds."""
    stage = Stage()
    stage.network.loses = lambda _, __, message: isinstance(message, Results)
    call = stage.do(2, Put(stage.key(A), b"lost"))
    for i in range(300):
        stage.loop.at(stage.loop.now + i / 100, stage._machines[2].turn_soon)
    stage.pause(0.3)
    stage.network.loses = None
    if not stage.answered(call, 2.0):
        raise Violation("Termination", f"{call} is not answered")
    stage.finish()


def new_leaders_find_each_other() -> None:
    """Both groups of a message have other leaders than the other one thinks, and order nothing together."""
    stage = Stage(2)
    stage.network.loses = lambda _, __, message: isinstance(message, Levels)
    call = stage.do(0, *(Put(stage.key(group), b"both") for group in (A, C)))
    assert stage.answered(call)
    for group in (A, C):
        stage.hosts[ReplicaId(group, 2, 0)].nominate()
    assert stage.wait(lambda: all(stage.leader(group, 2).reading_ballot for group in (A, C)), 1.0)
    stage.finish(within_s=3.0)


def a_cut_is_below_what_follows() -> None:
    """One group's clock is far ahead of another's. What is written after a cut comes after it there, too."""
    stage = Stage(2)
    for _ in range(10):
        assert stage.answered(stage.do(0, Put(stage.key(A), b"clock")))
    stage.pause(0.5)  # until gateways know of it
    cut = stage.history.invoke(7, Cut((Range(b"", None),)), stage.loop.now)

    def done(outcome: object) -> None:
        cut.outcome, cut.returned = outcome, stage.loop.now

    stage._machines[0].application.gateway.cut((Range(b"", None),), done)
    stage._machines[0].turn_soon()
    assert stage.answered(cut)
    assert stage.answered(stage.do(0, Put(stage.key(C), b"later")))
    stage.finish()


def a_hub_starts_in_the_middle() -> None:
    """A hub begins while one group's feed has passed its part of a transaction, and the other's has not."""
    halves = [Event(b"%d" % group, b"", 15, 15) for group in (A, C)]
    hub_type: Any = vars(watches)["Hub"]  # or a sabotage of it
    hub = hub_type({A: FeedPosition(10), C: FeedPosition(20)}, buffer_bytes=1000)
    audience = hub.join((Range(b"", None),))
    hub.take(A, Changes(20, ((15, (halves[A],)),), 0, 10))
    cursor = hub.cursor(audience, 10)
    if cursor is not None:  # else its watcher reads history
        for piece in cursor.take(1000).transactions:
            if set(piece.events) != {*halves} and piece.first and piece.last:
                raise Violation("Watch", f"a watcher got {piece} as a whole transaction")


def a_snapshot_goes_on() -> None:
    """The connection by which a snapshot travels breaks: an acknowledgement gets lost, and later a piece."""
    stage = Stage(1)
    for _ in range(10):
        assert stage.answered(stage.do(0, Put(stage.key(A), b"old")))
    lost: list[object] = []

    def loses(_: Process, __: Process, message: object) -> bool:
        of = SnapshotPiece if lost else SnapshotAck
        if len(lost) == 2 or not isinstance(message, of) or message.index != 2 + len(lost):
            return False
        lost.append(message)
        return True

    stage.network.loses = loses
    stage.inject(Wipe(ReplicaId(A, 2, 0), 0.1))
    assert stage.wait(lambda: bool(lost), 2.0)
    position = stage.leader(A).last_delivered
    host = next(host for me, host in stage.hosts.items() if me.number == 2 and me.incarnation)
    replica: Any = host.replica
    if not stage.wait(lambda: len(lost) == 2 and replica.last_delivered >= position, 2.0):
        raise Violation("Termination", f"{host.me} has no state yet")
    stage.finish()


def a_deposed_leader_does_not_answer() -> None:
    """A leader cut off from its group does not know that another one leads."""
    stage = Stage()
    assert stage.answered(stage.do(0, Put(stage.key(A), b"old")))
    members = [ReplicaId(A, number, 0) for number in range(3)]
    for other in members[1:]:
        stage.network.cut(members[0], other)
        stage.network.cut(other, members[0])
    stage.hosts[members[1]].nominate()
    assert stage.wait(lambda: stage.leader(A, 1).reading_ballot is not None, 0.3)
    stage.hint(1, A, 1)
    assert stage.answered(stage.do(1, Put(stage.key(A), b"new")), 0.3)
    assert stage.leader(A).is_leader, "it does not know yet"
    stage.answered(stage.ask(0, StrictCall((Get(stage.key(A)),))), 0.1)
    stage.finish()
