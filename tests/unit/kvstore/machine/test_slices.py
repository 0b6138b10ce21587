"""Transactions on ranges, in slices and within limits: rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kvstore.machine.commands import Command, Compact
from kvstore.machine.machine import Machine
from kvstore.machine.ordered import MemoryMap
from kvstore.machine.request import (
    Delete,
    DeleteRange,
    Get,
    LimitExceeded,
    Limits,
    Operation,
    Put,
    Range,
    Scan,
    Shape,
    Transaction,
    Unchanged,
    validate,
)
from kvstore.machine.results import WRITTEN, Aborted, Deleted, Failed, Failure, Fault, Outcome, Scanned, Unmet
from kvstore.machine.slices import Overlay
from kvstore.machine.state import Effects, MachineState, Store, Vote
from tests.unit.kvstore.machine.test_machine import PLACEMENT, A, B, message, mid, then, ts
from tests.unit.kvstore.machine.test_machine_model import copy_of

HERE = Range(b"", b"m")
COUNT = Scan(HERE, shape=Shape.COUNT)
SMALL = Limits(transaction_rows=6, delete_keys=4)


def machine_of(limits: Limits | None = None, slice_rows: int = 2, keys: int = 6) -> Machine:
    machine = Machine(A, Store(), MachineState(PLACEMENT), limits, slice_rows=slice_rows)
    machine.deliver(message(1, then(*(Put(b"k%d" % number, b"") for number in range(keys)))))
    machine.drain()
    return machine


def drive(machine: Machine) -> None:
    while machine.running:
        machine.run()


def execute(machine: Machine, time: int, command: Command) -> Any:
    machine.deliver(message(time, command))
    drive(machine)
    (executed,) = machine.drain().results
    return executed.result


def too_many(operation: int) -> Aborted:
    return Aborted(in_then=True, failures=(Failure(operation, Fault.TOO_MANY_ROWS),))


def results(machine: Machine, time: int, *operations: Operation) -> list[Any]:
    outcome = execute(machine, time, then(*operations))
    assert isinstance(outcome, Outcome)
    return [result for _, result in outcome.results]


def test_others_go_on_between_slices() -> None:
    machine = machine_of()
    machine.deliver(message(2, then(COUNT, Put(b"l", b""))))
    assert machine.running
    machine.deliver(message(3, then(Put(b"k9", b""))))
    machine.deliver(message(4, then(Put(b"lx", b""), Get(b"lx")), "A"))
    machine.deliver(message(5, then(Put(b"k0", b"changed"))))
    machine.deliver(message(6, then(Get(b"l"))))
    assert [each.delivered.gts for each in machine.drain().results] == [ts(3), ts(4), ts(5)]
    assert machine.watermark == ts(1)
    drive(machine)
    effects = machine.drain()
    assert [each.delivered.gts for each in effects.results] == [ts(2), ts(6)]
    assert machine.watermark == ts(6)
    counted = effects.results[0].result
    assert isinstance(counted, Outcome)
    assert counted.results[0] == (0, Scanned((), 6, more=False))


def test_what_runs_is_in_no_commit_and_begins_anew() -> None:
    machine = machine_of()
    store = machine_store(machine)
    machine.deliver(message(2, then(DeleteRange(HERE), Put(b"l", b""))))
    for _ in range(3):
        machine.run()
    state = machine.state()
    assert machine.running
    assert len(state.waiting) == 1
    assert state.watermark == ts(1)
    assert [entry.key for entry in machine.versions.scan(HERE)] == [b"k%d" % number for number in range(6)]
    again = Machine(A, copy_of(store), state)
    for each in (machine, again):
        while each.running:
            each.run()
        (executed,) = each.drain().results
        expected = ((0, Deleted(6)), (1, WRITTEN))
        assert executed.result == Outcome(succeeded=True, unmet=(), results=expected)
        assert [entry.key for entry in each.versions.scan(HERE)] == [b"l"]


def machine_store(machine: Machine) -> Store:
    return Store(
        latest=machine.versions._latest,
        history=machine.versions._history,
        sessions=machine._sessions._sessions,
        results=machine._sessions._results,
        outcomes=machine._outcomes,
    )


def test_slices_are_shared_in_turn() -> None:
    machine = machine_of(keys=20)
    machine.run()
    machine.deliver(message(2, then(COUNT)))
    machine.deliver(message(3, then(Scan(Range(b"k0", b"k1"), shape=Shape.COUNT))))
    ended = []
    while machine.running:
        machine.run()
        ended += [each.delivered.gts for each in machine.drain().results]
    assert ended == [ts(3), ts(2)], "a short one does not wait for a long one"


def test_slices_are_shared_by_clients() -> None:
    """One client's many transactions do not hold up another's."""
    machine = machine_of(keys=20, slice_rows=4)
    machine.run()
    for time in range(2, 12):
        machine.deliver(message(time, then(COUNT)))
    other = message(12, then(COUNT))
    machine.deliver(replace(other, request=replace(other.request, client=2)))
    ended = []
    while machine.running:
        machine.run()
        ended += [each.delivered.gts for each in machine.drain().results]
    assert ended.index(ts(12)) <= 1
    assert ended[0] == ts(2) or ended[1] == ts(2), "the oldest goes on, too"


def test_operations_on_ranges_see_what_those_before_them_wrote() -> None:
    machine = machine_of()
    found = results(
        machine, 2, Put(b"a", b""), Delete(b"k0"), COUNT, DeleteRange(Range(b"k2", b"k4")), COUNT, Scan(HERE)
    )
    assert found[2].count == 6
    assert found[3] == Deleted(2)
    assert found[4].count == 4
    assert [entry.key for entry in found[5].entries] == [b"a", b"k1", b"k4", b"k5"]


def test_ranges_share_the_rows_of_a_transaction() -> None:
    machine = machine_of(SMALL)
    assert results(machine, 2, COUNT) == [Scanned((), 6, more=False)]
    assert results(machine, 3, COUNT, COUNT) == [Failed(Fault.TOO_MANY_ROWS)] * 2
    keys = Scan(HERE, shape=Shape.KEYS)
    for result in results(machine, 4, keys, keys):
        assert (result.count, result.more) == (3, True)
    backwards = results(machine, 5, Scan(HERE, reverse=True), COUNT)[0]
    assert [entry.key for entry in backwards.entries] == [b"k5", b"k4", b"k3"]
    conditions = (Unchanged(HERE, ts(1)), Unchanged(HERE, ts(1)))
    outcome = execute(machine, 6, Transaction(conditions, (Put(b"a", b""),)))
    assert outcome.unmet == (Unmet(0, Fault.TOO_MANY_ROWS), Unmet(1, Fault.TOO_MANY_ROWS))
    assert machine.versions.get(b"a") is None


def test_limits_do_not_count_what_compaction_has_yet_to_drop() -> None:
    """Replicas drop such rows at different times, and must come to the same results."""
    late, prompt = machine_of(SMALL, keys=9), machine_of(SMALL, keys=9)
    for machine in (late, prompt):
        execute(machine, 2, then(*(Delete(b"k%d" % number) for number in range(4))))
        execute(machine, 3, Compact(ts(2)))
    while prompt.work():
        pass
    assert len(machine_store(late).latest._rows) > len(machine_store(prompt).latest._rows)  # type: ignore[attr-defined]
    asked: list[Command] = [
        then(COUNT),
        Transaction((Unchanged(HERE, ts(3)),), (Get(b"a"),)),
        then(DeleteRange(HERE, 2), DeleteRange(HERE, 2)),
        then(DeleteRange(HERE)),
        then(COUNT),
    ]
    for time, command in enumerate(asked, 4):
        assert execute(late, time, command) == execute(prompt, time, command), command


def test_removed_keys_count_until_they_are_compacted() -> None:
    machine = machine_of(SMALL, keys=7)
    results(machine, 2, Delete(b"k0"))
    assert results(machine, 3, COUNT) == [Failed(Fault.TOO_MANY_ROWS)]
    execute(machine, 4, Compact(ts(3)))
    assert results(machine, 5, COUNT) == [Scanned((), 6, more=False)]


def test_a_delete_of_too_many_keys_does_nothing() -> None:
    machine = machine_of(SMALL)
    for time, allowed in ((2, False), (3, True)):
        asked = Transaction((), (Put(b"a", b""), DeleteRange(HERE)), allow_failures=allowed)
        assert execute(machine, time, asked) == too_many(1)
    assert next(machine.versions.scan(HERE)).key == b"k0"
    assert results(machine, 4, DeleteRange(Range(b"k0", b"k4"))) == [Deleted(4)]


def test_one_group_with_too_many_keys_stops_the_delete_in_all() -> None:
    both = Range(b"k", b"n")
    here, there = machine_of(SMALL), Machine(B, Store(), MachineState(PLACEMENT), SMALL)
    there.deliver(message(1, then(Put(b"m", b"")), "B"))
    there.drain()
    for machine in (here, there):
        machine.deliver(message(2, then(DeleteRange(both)), "AB"))
        while machine.running:
            machine.run()
    votes: dict[Machine, Effects] = {machine: machine.drain() for machine in (here, there)}
    assert [vote.can_then for vote, _ in votes[here].votes] == [False]
    assert [vote.can_then for vote, _ in votes[there].votes] == [True]
    there.vote(Vote(ts(2), mid(2), A, yes=True, can_then=False))
    (executed,) = there.drain().results
    assert executed.result == Aborted(in_then=True, failures=())
    assert there.versions.get(b"m") is not None


def test_a_delete_with_a_limit_says_where_to_go_on() -> None:
    machine = machine_of(SMALL)
    start, pages = b"", []
    for time in range(2, 20):
        (deleted,) = results(machine, time, DeleteRange(Range(start, b"m"), 2))
        pages.append(deleted.count)
        if not deleted.resume:
            break
        start = deleted.resume
    assert pages == [2, 2, 2]
    assert list(machine.versions.scan(HERE)) == []


def test_a_delete_has_a_limit_of_bytes() -> None:
    limits = Limits(delete_bytes=100)
    machine = machine_of(limits, keys=0)
    sizes = (200, 40, 40, 40)
    results(machine, 2, *(Put(b"k%d" % number, b"v" * size) for number, size in enumerate(sizes)))
    assert execute(machine, 3, then(DeleteRange(HERE))) == too_many(0)
    assert results(machine, 4, DeleteRange(HERE, 9)) == [Deleted(1, b"k1")], "the first, whatever its size"
    assert results(machine, 5, DeleteRange(HERE, 9)) == [Deleted(2, b"k3")]
    assert results(machine, 6, DeleteRange(HERE)) == [Deleted(1)]


def test_limits_of_range_deletes_are_judged_before_ordering() -> None:
    validate(then(DeleteRange(HERE, 4), DeleteRange(HERE)), SMALL)
    with pytest.raises(LimitExceeded, match=r"are 5 keys together, .* limit of 4 keys \(delete_keys\)"):
        validate(then(DeleteRange(HERE, 4), DeleteRange(HERE, 1)), SMALL)
    with pytest.raises(LimitExceeded, match="in `otherwise` are 5 keys together"):
        validate(Transaction((), (), (DeleteRange(HERE, 4), DeleteRange(HERE, 1))), SMALL)
    validate(Transaction((), (), (DeleteRange(HERE, 4), DeleteRange(HERE))), SMALL)


def test_an_overlay_hides_what_is_below_it() -> None:
    below: MemoryMap[bytes, int] = MemoryMap({b"a": 1, b"b": 2, b"c": 3})
    overlay = Overlay(below)
    overlay.put(b"b", 20)
    overlay.delete(b"c")
    overlay.put(b"d", 40)
    expected = [(b"a", 1), (b"b", 20), (b"d", 40)]
    assert list(overlay.items(b"", None)) == expected
    assert list(overlay.items(b"", None, reverse=True)) == expected[::-1]
    assert (overlay.get(b"b"), overlay.get(b"c"), overlay.get(b"a")) == (20, None, 1)
    assert overlay.marks(b"", None, 2, 9).keys == (b"b",)
    assert list(below.items(b"", None)) == [(b"a", 1), (b"b", 2), (b"c", 3)]
    overlay.apply()
    assert list(below.items(b"", None)) == expected


def test_history_is_not_read_for_keys_that_did_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_of()
    results(machine, 2, Put(b"k0", b"again"))
    looked_at: list[int] = []
    versions = machine.versions
    monkeypatch.setattr(versions._history, "get", looked_at.append)
    assert list(versions.scan_at(Range(b"k1", b"m"), 0)) == []
    assert looked_at == []


def test_ranges_without_rows_are_done_in_slices_too() -> None:
    machine = machine_of(slice_rows=100)
    machine.run()
    machine.deliver(message(2, then(*[Scan(Range(b"a", b"b"))] * 100)))
    steps = 0
    while machine.running:
        machine.run()
        steps += 1
    assert 5 <= steps <= 20
    (executed,) = machine.drain().results
    assert isinstance(executed.result, Outcome)
    assert [found for _, found in executed.result.results] == [Scanned((), 0, more=False)] * 100
