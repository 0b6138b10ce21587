"""The production node under the simulator: all faults, all checkers; and sabotages of its own contract."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from kvstore.node.loop import Node, _Hosted
from kvstore.node.outbox import LINGER_S
from kvstore.node.snapshots import SnapshotReceiver
from kvstore.simulation import NodeSimulation, SimState
from multicast import PROTOCOLS
from multicast.messages import Accept, Deliver, Delivery, Hint
from multicast.protocol import Ready, Timing
from multicast.sim import Outcome, Scenario, Workload
from multicast.sim.checkers import Violation
from multicast.sim.host import DiskDelays
from multicast.types import NO_BALLOT, NO_TIMESTAMP, GroupId, Timestamp
from multicast.whitebox import WhiteBox

MANY = [name for name in PROTOCOLS if name != "skeen"]
SLOW = DiskDelays(0.001, 0.02, 0.25)
"""Disks on which there is time to do something too early."""


def run(seed: int, node: type[Node] = Node, state: type[SimState] = SimState, **options: object) -> Outcome:
    simulation = NodeSimulation(Scenario(**options), seed)  # type: ignore[arg-type]  # options of any type
    simulation.node_type = node
    for machine in simulation._machines.values():
        machine.state = state(machine, simulation.pieces)
    return simulation.run()


@pytest.mark.parametrize("protocol", MANY)
@pytest.mark.parametrize("seed", range(6))
def test_comes_through_all_faults(protocol: str, seed: int) -> None:
    clock = "hybrid" if seed % 2 else "logical"
    assert run(seed, protocol=PROTOCOLS[protocol], clock=clock).violation is None


@pytest.mark.parametrize("seed", range(6))
def test_comes_through_with_snapshots_all_the_time(seed: int) -> None:
    outcome = run(seed, timing=Timing(history=0, part_entries=2), disk=SLOW, workload=Workload(messages=120))
    assert outcome.violation is None


class Tells(SimState):
    """A state that has the last deliveries of a group for replicas that missed them."""

    kept = 6
    told: ClassVar[dict[bool, int]] = {}

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        found = super().deliveries(group, after, count, size)
        whole = bool(found) and found[0].previous_ts == after
        self.told[whole] = self.told.get(whole, 0) + 1
        return found


def test_comes_through_with_deliveries_of_the_state_and_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tells, "told", {})
    for seed in range(6):
        timing = Timing(history=0, part_entries=2)
        outcome = run(seed, state=Tells, timing=timing, disk=SLOW, workload=Workload(messages=120))
        assert outcome.violation is None
    assert min(Tells.told[True], Tells.told[False]) > 3, "both ways were gone"


class ComparesReports(Node):
    """A replica that takes a snapshot while another is being committed reports nothing for that commit."""

    replaced: ClassVar[int] = 0

    def committed(self, executed: Mapping[GroupId, Timestamp]) -> None:
        replicas: list[Any] = [hosted.replica for hosted in self._hosted.values() if hosted.replaced]
        before = [replica.executed_ts for replica in replicas]
        super().committed(executed)
        assert [replica.executed_ts for replica in replicas] == before
        more = [executed.get(r.me.group, NO_TIMESTAMP) > r.executed_ts for r in replicas]
        ComparesReports.replaced += sum(more)


def test_a_state_that_a_snapshot_has_replaced_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ComparesReports, "replaced", 0)
    for seed in range(40):  # some schedules replace a state that is being committed
        timing = Timing(history=0, part_entries=2)
        outcome = run(seed, ComparesReports, timing=timing, disk=SLOW, workload=Workload(messages=120))
        assert outcome.violation is None
        if ComparesReports.replaced:
            break
    assert ComparesReports.replaced, "otherwise the runs show nothing"


@pytest.mark.parametrize(("groups", "replicas"), [(1, 1), (4, 1), (1, 5), (6, 3)])
def test_any_number_of_groups_on_a_node(groups: int, replicas: int) -> None:
    assert run(3, groups=groups, replicas=replicas, workload=Workload(messages=80)).violation is None


def test_one_seed_is_one_run() -> None:
    assert run(7).trace == run(7).trace != run(8).trace


class PromisesLeaveAtOnce(Node):
    """Acknowledgements do not wait for the log."""

    def _release(self) -> None:
        self._durable = self._written
        super()._release()


class ExecutedBeforeItIsDurable(Node):
    """What was delivered is reported as executed before the state that has it is committed."""

    def _apply(self, hosted: _Hosted, ready: Ready, now: float) -> None:
        super()._apply(hosted, ready, now)
        hosted.replica.executed(hosted.position)


class ForgetsTheStateOfASnapshot(Node):
    """A replica installs a snapshot's ordering state without the application's."""

    def _install(self, hosted: _Hosted, snapshot: SnapshotReceiver, now: float) -> None:
        snapshot.state.clear()
        super()._install(hosted, snapshot, now)


class KeepsRecordsFromACommit(Node):
    """The application commits deliveries whose records have not been handed to the log yet."""

    def commit(self) -> None:
        records, self._records = self._records, defaultdict(list)
        super().commit()
        self._records = records


class StateAheadOfTheLog(SimState):
    """The application commits without waiting for the log."""

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        super().commit(positions, 0)


@pytest.mark.parametrize("node", [PromisesLeaveAtOnce, ExecutedBeforeItIsDurable, ForgetsTheStateOfASnapshot])
def test_sabotages_of_the_node_are_caught(node: type[Node]) -> None:
    for seed in range(40):
        timing = Timing(history=0) if node is ForgetsTheStateOfASnapshot else Timing()
        outcome = run(seed, node, timing=timing, disk=SLOW)
        if outcome.violation is not None:
            assert outcome.error is None, "a mutant that just breaks down shows nothing"
            return
    pytest.fail(f"{node.__name__} came through 40 seeds")


class PromisesInOrder(Node):
    """A checker: the promises of a replica leave in the order in which it has made them."""

    def _release(self) -> None:
        before = list(self._waiting)
        super()._release()
        held = {me for _, me, _ in self._waiting}
        stays = [id(sends) for _, _, sends in self._waiting]
        passed = dict.fromkeys(held, False)
        for _, me, sends in before:
            if me in passed:
                passed[me] = passed[me] or id(sends) in stays
                if passed[me] and id(sends) not in stays:
                    raise Violation("Promises", f"one of {me} has overtaken another")


class LingersBriefly(Node):
    """Deliveries stay in the outbox until their time is over, and no other message does."""

    stayed: ClassVar[int] = 0

    def turn(self) -> None:
        due = self._outbox.wake_at
        super().turn()
        now = self._clock.now()
        if now - due > LATE_S:
            raise Violation("Lingering", f"a delivery has stayed on {self.me} until {now}, not {due}")
        stays = [m for queues in self._outbox._links.values() for queue in queues.values() for m in queue]
        if any(type(message) is not Deliver for message in stays):
            raise Violation("Lingering", f"{stays} stay on {self.me}")
        LingersBriefly.stayed += len(stays)


class OversleepsDeliveries(LingersBriefly):
    """Nothing wakes the node when the time of its deliveries is over."""

    def turn(self) -> None:
        super().turn()
        if self.wake_at == self._outbox.wake_at:
            self.wake_at += 0.1


class TurnsInTime(Node):
    """Input that needs no turn at once gets one before long; and no such turn sends what others wait for."""

    put_off: ClassVar[int] = 0
    _since: float | None = None

    def receive(self, *arguments: Any) -> None:
        super().receive(*arguments)
        if not self.is_due and self._dirty and self._since is None:
            self._since = self._clock.now()

    def tick(self) -> None:
        now = self._clock.now()
        self.is_due = self.is_due or any(at <= now for at in self._wakes.values())
        super().tick()

    def turn(self) -> None:
        now, since, self._since = self._clock.now(), self._since, None
        if since is not None and now - since > LINGER_S + LATE_S:
            raise Violation("Turns", f"{self.me} has slept since {since} until {now}")
        undue, waiting = not self.is_due, len(self._waiting)
        sent: list[object] = []
        add = self._outbox.add

        def note(me: Any, sends: Any) -> None:
            sends = list(sends)
            sent.extend(message for _, message in sends if type(message) is not Deliver)
            add(me, sends)

        self._outbox.add = note  # type: ignore[method-assign]  # for this turn
        super().turn()
        self._outbox.add = add  # type: ignore[method-assign]
        if undue and (sent or len(self._waiting) > waiting):
            raise Violation("Turns", f"{self.me} put off a turn that sends {sent or self._waiting[-1]}")
        TurnsInTime.put_off += undue and since is not None


class OversleepsInput(TurnsInTime):
    """Nothing wakes the node for input that needs no turn at once."""

    def receive(self, *arguments: Any) -> None:
        before = self.wake_at
        super().receive(*arguments)
        self.wake_at = before


class PutsOffAcknowledgements(WhiteBox):
    """What a replica has accepted is acknowledged in its group's next turn, whenever that is."""

    @property
    def is_due(self) -> bool:
        return bool(self.proposed or self._ready.send)


class PutsOffProposals(WhiteBox):
    """What a leader has to propose is proposed in its node's next turn, whenever that is."""

    @property
    def is_due(self) -> bool:
        return bool(self.acked or self._ready.promise or self._ready.send)


@pytest.mark.parametrize(
    ("node", "protocol", "sound"),
    [
        (TurnsInTime, WhiteBox, True),
        (OversleepsInput, WhiteBox, False),
        (TurnsInTime, PutsOffAcknowledgements, False),
        (TurnsInTime, PutsOffProposals, False),
    ],
)
def test_turns_are_put_off_only_if_no_process_waits_and_not_for_long(
    node: type[Node], protocol: type[WhiteBox], monkeypatch: pytest.MonkeyPatch, *, sound: bool
) -> None:
    monkeypatch.setattr(TurnsInTime, "put_off", 0)
    outcomes = [run(seed, node, protocol=protocol, faults="none") for seed in range(3)]
    assert all(outcome.error is None for outcome in outcomes)
    assert all(outcome.violation is None for outcome in outcomes) == sound, outcomes
    assert TurnsInTime.put_off or not sound, "otherwise the runs show nothing"


LATE_S = 0.01
"""More than turns of the simulated process add to a delay."""


@pytest.mark.parametrize("node", [LingersBriefly, OversleepsDeliveries])
@pytest.mark.parametrize("kept", [(Deliver,), (Deliver, Accept)])
def test_only_deliveries_linger_and_not_for_long(
    node: type[Node], kept: tuple[type, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.node.outbox.UNHURRIED", frozenset(kept))
    monkeypatch.setattr(LingersBriefly, "stayed", 0)
    outcomes = [run(seed, node, faults="none") for seed in range(3)]
    sound = node is LingersBriefly and kept == (Deliver,)
    assert all(outcome.error is None for outcome in outcomes)
    assert all(outcome.violation is None for outcome in outcomes) == sound, outcomes
    assert LingersBriefly.stayed or not sound, "otherwise the runs show nothing"


class WaitsForOthersRecords(Node):
    """When large records are a batch of their own, promises wait for the batch in front of it."""

    def _write(self) -> None:
        before = dict(self._written_of)
        super()._write()
        if self._split_upto == self._written:
            self._written_of.update(dict.fromkeys(self._written_of, min(before.values(), default=0)))


class OvertakesItself(PromisesInOrder):
    """A promise leaves when its own batch is durable, whichever of its replica's still wait."""

    def _release_groups(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for number, me, sends in waiting:
            if number <= self._durable:
                self._outbox.add(me, sends)
            else:
                self._waiting.append((number, me, sends))


def test_promises_wait_for_the_records_of_their_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.node.loop.LARGE_BATCH_BYTES", 0)  # all groups have batches of their own
    sound = [run(seed, PromisesInOrder, disk=SLOW) for seed in range(4)]
    assert not any(outcome.violation for outcome in sound), sound
    for seed in range(20):
        found = run(seed, WaitsForOthersRecords, disk=SLOW)
        assert found.error is None
        if found.violation is not None:
            return
    pytest.fail("WaitsForOthersRecords came through 20 seeds")


def a_promise_behind_records_of_another_group(node_type: type[Node]) -> bool:
    """A replica's promise waits for a batch of another group, as long as batches have all groups' records.
    Then batches are split, and its next promise waits for less: only for its own group's records, which are
    durable. Return whether that one stays behind the first.
    """
    simulation = NodeSimulation(Scenario(faults="none"), 1)
    simulation.node_type = node_type
    simulation.start()
    simulation.run_until(lambda: False, 0.5)
    node: Any = simulation._machines[0].node
    replica, other, *_ = node.replicas
    hint = Hint(replica.group, NO_BALLOT)
    sends = [((replica._replace(number=1),), hint)]
    node._durable, node._split_upto = 10, 12
    node._waiting = deque([(11, replica, sends), (10, replica, list(sends)), (10, other, [])])
    node._release()
    return [(number, me) for number, me, _ in node._waiting] == [(11, replica), (10, replica)]


def test_promises_of_a_replica_leave_in_order() -> None:
    assert a_promise_behind_records_of_another_group(PromisesInOrder)
    with pytest.raises(Violation, match="overtaken"):
        a_promise_behind_records_of_another_group(OvertakesItself)


def often(seed: int, state: type[SimState]) -> Outcome:
    """Groups of one, whose states commit often while their logs are slow."""
    return run(seed, state=state, replicas=1, disk=DiskDelays(0.0, 0.2, 0.25))


def test_a_state_ahead_of_its_log_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract's strictest clause: who restarts so takes for collected what other groups still need."""
    monkeypatch.setattr("kvstore.node.loop.COMMIT_S", 0.03)
    outcomes = [often(seed, StateAheadOfTheLog) for seed in range(30)]
    assert any(outcome.violation is not None and outcome.error is None for outcome in outcomes)
    for seed in range(30):
        assert often(seed, SimState).violation is None


def test_a_state_ahead_of_records_that_nobody_waits_for_is_caught() -> None:
    outcome = run(0, KeepsRecordsFromACommit)
    assert outcome.error is None
    assert outcome.violation is not None
    assert outcome.violation.startswith("Contract")
