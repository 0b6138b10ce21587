"""Transactions that pass a long one: what it reads is as of its revision, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.machine.codec import decode_machine_state, encode_machine_state
from kvstore.machine.commands import Command, Compact
from kvstore.machine.machine import Machine
from kvstore.machine.request import Delete, DeleteRange, Get, Put, Range, Scan, Shape, Transaction, Unchanged
from kvstore.machine.results import DONE, Got, Outcome, Scanned
from kvstore.machine.state import MachineState, Store, Vote
from multicast.errors import InvariantBroken, PeerViolation
from tests.sim import store_mutants as mutants
from tests.unit.kvstore.machine.test_machine import PLACEMENT, A, B, exists, message, mid, then, ts
from tests.unit.kvstore.machine.test_machine_model import copy_of

KEYS = 12
HERE = Range(b"", b"m")
COUNT = Scan(HERE, shape=Shape.COUNT)
ELSEWHERE = exists(b"n")
"""A condition of another group, whose vote is needed."""


class Replica:
    """A machine with slices of two rows, and all its results."""

    def __init__(self, kind: type[Machine] = Machine) -> None:
        self.kind = kind
        self.store = Store()
        self.machine = kind(A, self.store, MachineState(PLACEMENT), slice_rows=2)
        self.results: dict[int, Any] = {}
        self.deliver(1, then(*(Put(b"k%02d" % number, b"old") for number in range(KEYS))))

    def deliver(self, time: int, command: Command, destinations: str = "A") -> None:
        self.machine.deliver(message(time, command, destinations))
        self.drain()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.machine.run()
            self.drain()

    def vote(self, time: int, *, yes: bool = True) -> None:
        self.machine.vote(Vote(ts(time), mid(time), B, yes))
        self.drain()

    def restart(self) -> None:
        state = decode_machine_state(encode_machine_state(self.machine.state()))
        self.store = copy_of(self.store)
        self.machine = self.kind(A, self.store, state, slice_rows=2)
        self.drain()

    def drain(self) -> None:
        for executed in self.machine.drain().results:
            self.results[executed.delivered.request.sequence] = executed.result

    def finish(self) -> None:
        while self.machine.running:
            self.step()
        while self.machine.work():
            pass


def entries(result: Any) -> list[tuple[bytes, bytes]]:
    assert isinstance(result, Scanned)
    return [(entry.key, entry.value) for entry in result.entries]


OLD = [(b"k%02d" % number, b"old") for number in range(KEYS)]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_writes_pass_a_read(restarts: bool, reverse: bool) -> None:  # noqa: FBT001
    replica = Replica()
    replica.deliver(2, then(Scan(HERE, reverse=reverse), COUNT, Get(b"k03")))
    for number in range(3, 9):
        time = 2 * number
        replica.deliver(
            time, then(Put(b"k03", b"%d" % time), Put(b"k%02dx" % number, b"new"), Delete(b"k05"))
        )
        replica.deliver(time + 1, then(Put(b"k05", b"back"), Delete(b"k%02d" % number)))
        assert {time, time + 1} <= replica.results.keys(), "they wait for it"
        assert 2 not in replica.results
        replica.step()
        if restarts:
            replica.restart()
    assert replica.machine.watermark == ts(1)
    replica.finish()
    scanned, counted, got = [result for _, result in replica.results[2].results]
    assert entries(scanned) == (OLD[::-1] if reverse else OLD)
    assert counted == Scanned((), KEYS, more=False)
    assert isinstance(got, Got)
    assert got.entry is not None
    assert got.entry.value == b"old"
    assert replica.machine.watermark == ts(17)


def test_only_what_it_writes_stays_locked() -> None:
    replica = Replica()
    replica.deliver(2, then(COUNT, Put(b"k00", b"own"), DeleteRange(Range(b"k10", b"k12"))))
    replica.deliver(3, then(Put(b"k01", b"")))
    assert not replica.machine.is_waited_for()
    replica.deliver(4, then(Get(b"k00")))
    assert replica.machine.is_waited_for()
    replica.deliver(5, then(Put(b"k11", b"")))
    assert 3 in replica.results
    assert not {2, 4, 5} & replica.results.keys()
    replica.finish()
    assert not replica.machine.is_waited_for()
    assert replica.results[4].results[0][1].entry.value == b"own"
    assert replica.results[2].results[0] == (0, Scanned((), KEYS, more=False))


@pytest.mark.parametrize("key", [b"k01", b"k01x"], ids=["there", "new"])
@pytest.mark.parametrize("versions", range(98, 102))
def test_a_key_that_is_written_all_the_time_does_not_hold_up_a_step(
    key: bytes, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its versions are followed in slices, too, wherever a slice ends: also at the last of them."""
    replica = Replica()
    replica.deliver(2, then(Scan(HERE), *(Get(key) for _ in range(3))))
    for time in range(3, 3 + versions):
        replica.deliver(time, then(Put(key, b"%d" % time)))
    looked_at: list[int] = []
    history = replica.machine.versions._history
    get = history.get

    def noting(revision: int) -> Any:
        looked_at.append(revision)
        return get(revision)

    monkeypatch.setattr(history, "get", noting)
    most = steps = 0
    while replica.machine.running:
        looked_at.clear()
        replica.step()
        most = max(most, len(looked_at))
        steps += 1
        assert steps < 10 * versions, "it begins again and again"
    assert 0 < most <= 4
    assert entries(replica.results[2].results[0][1]) == OLD


def floor_rises(replica: Replica) -> None:
    """A key is removed, the removal is forgotten, and the key is written anew, while a count runs."""
    replica.deliver(2, then(COUNT))
    replica.deliver(3, then(Delete(b"k11")))
    replica.deliver(4, Compact(ts(3)))
    replica.deliver(5, then(Put(b"k11", b"new")))
    replica.finish()
    assert replica.results[2].results[0] == (0, Scanned((), KEYS, more=False))
    assert replica.results[4] == DONE


def evaluated_and_passed(replica: Replica) -> None:
    """What passes a transaction after its evaluation has no influence on its conditions."""
    condition = Unchanged(HERE, ts(1))
    replica.deliver(2, Transaction((condition, ELSEWHERE), (Put(b"l", b""),)), "AB")
    replica.step(20)
    assert not replica.results.keys() & {2}
    replica.deliver(3, then(Delete(b"k11")))
    assert 3 in replica.results, "it waits for conditions that are evaluated"
    replica.deliver(4, Compact(ts(3)))
    replica.restart()
    replica.vote(2)
    replica.finish()
    assert replica.results[2].succeeded


def executed_and_passed(replica: Replica) -> None:
    """A restart forgets votes. A transaction that was being executed with them needs them no more."""
    replica.deliver(2, Transaction((ELSEWHERE,), (COUNT, Put(b"l", b""))), "AB")
    replica.vote(2)
    replica.deliver(3, then(Delete(b"k11")))
    assert 3 in replica.results
    replica.restart()
    replica.deliver(4, Compact(ts(3)))
    replica.vote(2)
    replica.finish()
    assert replica.results[2].results[0] == (0, Scanned((), KEYS, more=False))


def operations_wait_for_votes(replica: Replica) -> None:
    """What the operations read is locked while votes are missing: nobody knows for how long."""
    replica.deliver(2, Transaction((Unchanged(HERE, ts(1)), ELSEWHERE), (COUNT,)), "AB")
    replica.deliver(3, then(Delete(b"k11")))
    replica.step(20)
    replica.deliver(4, Compact(ts(3)))
    replica.vote(2)
    replica.finish()
    assert replica.results[2].results[0] == (0, Scanned((), KEYS, more=False))


def passed_twice(replica: Replica) -> None:
    """A transaction that has passed another, and is itself passed, goes on after a restart."""
    replica.deliver(2, then(COUNT))
    replica.deliver(3, Transaction((ELSEWHERE,), (Put(b"k11", b"new"), COUNT)), "AB")
    replica.step()
    replica.restart()
    replica.step(2)
    replica.vote(3)
    replica.deliver(4, then(Put(b"k12", b"")))
    assert 4 in replica.results
    replica.restart()
    replica.finish()
    for time, index in ((2, 0), (3, 1)):
        outcome = replica.results[time]
        assert isinstance(outcome, Outcome)
        assert outcome.results[index] == (index, Scanned((), KEYS, more=False))


SCENARIOS = [floor_rises, evaluated_and_passed, executed_and_passed, operations_wait_for_votes, passed_twice]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_that_passes_it_changes_a_result(scenario: Callable[[Replica], None]) -> None:
    scenario(Replica())


@pytest.mark.parametrize(
    ("mutant", "scenario"),
    [
        (mutants.ReadsWhatHasPassedIt, passed_twice),
        (mutants.FloorRisesUnderReads, floor_rises),
        (mutants.ForgetsWhatItEvaluated, evaluated_and_passed),
        (mutants.ForgetsItsOutcome, executed_and_passed),
        (mutants.PassesWhatWaitsForVotes, operations_wait_for_votes),
    ],
)
def test_sabotages_are_caught(mutant: type[Machine], scenario: Callable[[Replica], None]) -> None:
    with pytest.raises((AssertionError, InvariantBroken, PeerViolation)):
        scenario(Replica(mutant))


def test_a_compaction_below_a_long_transaction_does_not_end_its_slices() -> None:
    replica = Replica()
    replica.deliver(2, then(Delete(b"k10")))
    replica.deliver(3, then(Scan(HERE), COUNT))
    replica.deliver(4, then(Delete(b"k11"), Put(b"k10", b"new")))
    replica.deliver(5, Compact(ts(3)))
    replica.deliver(6, then(Put(b"k11", b"newer"), Delete(b"k10")))
    assert replica.machine.running
    replica.restart()
    replica.finish()
    expected = [entry for entry in OLD if entry[0] != b"k10"]
    assert entries(replica.results[3].results[0][1]) == expected
    assert replica.results[3].results[1] == (1, Scanned((), len(expected), more=False))


@pytest.mark.parametrize("is_sliced", [False, True])
def test_a_long_transaction_does_not_bring_back_what_compaction_has_dropped(is_sliced: bool) -> None:  # noqa: FBT001
    """A key that it makes and removes was removed before; nothing would ever drop that row again."""
    replica = Replica()
    replica.deliver(2, then(Delete(b"k05")))
    replica.deliver(3, Compact(ts(2)))
    replica.deliver(4, then(Put(b"k05", b"new"), Delete(b"k05"), Scan(HERE)))
    if is_sliced:
        assert replica.machine.running
    else:
        replica.finish()
    while replica.machine.work():
        pass
    replica.finish()
    assert replica.results[4].succeeded
    replica.deliver(5, Compact(ts(4)))
    replica.finish()
    assert replica.store.latest.get(b"k05") is None
