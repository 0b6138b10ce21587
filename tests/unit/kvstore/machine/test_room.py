"""However much a request reads, its results stay small enough to be kept and sent."""

from __future__ import annotations

from kvstore.machine.codec import encode_result
from kvstore.machine.machine import Machine
from kvstore.machine.merge import merge
from kvstore.machine.operations import ENTRY_BYTES, RESULTS_BYTES
from kvstore.machine.request import Get, Limits, Operation, Put, Range, Scan, Shape, Transaction
from kvstore.machine.results import Failed, Fault, Got, OperationResult, Outcome, Scanned
from kvstore.machine.state import MachineState, Store
from kvstore.wire.connection import LinkLimits
from tests.unit.kvstore.machine.test_machine import PLACEMENT, A, B, message

TOO_LARGE = Failed(Fault.VALUE_TOO_LARGE)
LARGE = b"v" * (1 << 20)
FIT = RESULTS_BYTES // (len(LARGE) + ENTRY_BYTES + 1)


def results_of(machine: Machine, time: int, *operations: Operation) -> list[OperationResult]:
    machine.deliver(message(time, Transaction(then=operations)))
    while machine.running:
        machine.run()
    (executed,) = machine.drain().results
    assert isinstance(executed.result, Outcome)
    assert len(encode_result(executed.result)) < LinkLimits().frame
    return [result for _, result in executed.result.results]


def machine_with(*keys: bytes, value: bytes) -> Machine:
    limits = Limits(transaction_rows=1 << 20)  # so that results are too large first
    machine = Machine(A, Store(), MachineState(PLACEMENT), limits)
    results_of(machine, 1, *(Put(key, value) for key in keys))
    return machine


def test_a_key_that_is_read_often() -> None:
    machine = machine_with(b"a", value=LARGE)
    found = results_of(machine, 2, *[Get(b"a")] * Limits().operations)
    assert all(isinstance(result, Got) and result.entry is not None for result in found[:FIT])
    assert found[FIT:] == [TOO_LARGE] * (Limits().operations - FIT)


def test_what_fits_is_returned_though_something_before_it_did_not() -> None:
    machine = machine_with(b"a", value=LARGE)
    results_of(machine, 2, Put(b"b", b"small"))
    found = results_of(machine, 3, *[Get(b"a")] * (FIT + 1), Get(b"b"), Get(b"c"))
    assert found[FIT] == TOO_LARGE
    assert isinstance(found[-2], Got)
    assert found[-1] == Got(None)


def test_a_scan_ends_where_there_is_no_more_room() -> None:
    keys = [b"%04x" % i for i in range(1 << 12)]
    machine = machine_with(*keys, value=b"")
    wide = Scan(Range(b"", b"m"), limit_bytes=8 << 20, shape=Shape.KEYS)
    found = results_of(machine, 2, *[wide] * 100)
    whole = Scanned(found[0].entries, len(keys), more=False) if isinstance(found[0], Scanned) else None
    assert found[0] == whole
    assert [entry.key for entry in found[0].entries] == keys
    cut = [result for result in found if isinstance(result, Scanned) and result.more]
    assert len(cut) == 1
    assert 0 < cut[0].count < len(keys)
    assert found[-1] == TOO_LARGE


def test_a_single_entry_is_returned_whatever_its_size() -> None:
    machine = Machine(A, Store(), MachineState(PLACEMENT), Limits(value_bytes=10 << 20))
    results_of(machine, 1, Put(b"a", b"v" * (9 << 20)))
    for operation in (Get(b"a"), Scan(Range(b"a", b"b"))):
        (found,) = results_of(machine, 2 + isinstance(operation, Scan), operation)
        assert found != TOO_LARGE


def test_a_scan_of_two_groups_fails_if_it_does_in_one() -> None:
    asked = Scan(Range(b"l", b"n"))
    here = Outcome(succeeded=True, unmet=(), results=((0, Scanned((), 0, more=False)),))
    there = Outcome(succeeded=True, unmet=(), results=((0, TOO_LARGE),))
    for parts in ({A: here, B: there}, {A: there, B: here}):
        assert merge(Transaction(then=(asked,)), PLACEMENT, parts).results == (TOO_LARGE,)
