"""Each anomaly is found and named, alone and in a large history."""

from __future__ import annotations

from typing import Any

import pytest
from wbkv import checker

from benchmarks.checker_speed import Shape, simulate
from tests.unit.wbkv.checker.brute import Transaction, check, events
from tests.unit.wbkv.checker.planted import LISTS, REGISTERS, WITH_READS, at_once, first_and_then, parse

ALL = [
    *(pytest.param("list-append", name, history, id=f"lists-{name}") for name, history in LISTS.items()),
    *(pytest.param("register", name, history, id=f"registers-{name}") for name, history in REGISTERS.items()),
]


def among(kind: str, planted: list[Transaction], seed: int) -> list[dict[str, Any]]:
    """A clean history in the middle of which something else has happened."""
    stretched = [
        t._replace(
            process=t.process + 100_000, start=2_000 + t.start * 50, end=2_000 + t.end * 50,
            operations=[[f, f"planted {k}", v] for f, k, v in t.operations],
        )
        for t in planted
    ]  # fmt: skip
    clean = list(simulate(Shape(kind, 500, revisions=False), seed))
    assert clean[-1]["time"] > 7_000
    return sorted([*clean, *events(stretched)], key=lambda event: int(event["time"]))


@pytest.mark.parametrize(("kind", "name", "history"), ALL)
def test_planted_alone(kind: str, name: str, history: list[Transaction]) -> None:
    verdict = check(history)
    assert verdict.history == kind
    assert verdict.names() == {name: 1}
    (anomaly,) = verdict.anomalies
    assert set(anomaly.transactions) <= verdict.transactions.keys()
    if anomaly.cycle:
        assert tuple(step.source for step in anomaly.cycle) == anomaly.transactions
        assert [step.target for step in anomaly.cycle] == [*anomaly.transactions[1:], anomaly.transactions[0]]


@pytest.mark.parametrize(("kind", "name", "history"), ALL)
def test_planted_in_a_large_history(kind: str, name: str, history: list[Transaction]) -> None:
    verdict = checker.check(checker.of_events(among(kind, history, seed=7)))
    assert verdict.names() == {name: 1}
    assert any("planted" in text for one in verdict.transactions.values() for text in one.operations)


@pytest.mark.parametrize("name", WITH_READS)
def test_cycles_of_writes_that_reads_have_ordered(name: str) -> None:
    assert next(iter(check(WITH_READS[name]).names())) == name


@pytest.mark.parametrize(("kind", "name", "history"), ALL)
def test_a_weaker_model_allows_what_needs_more_order(
    kind: str, name: str, history: list[Transaction]
) -> None:
    assert check(history, "sequential").holds == name.endswith("-realtime")
    assert check(history, "serializable").holds == name.endswith(("-realtime", "-process"))


def test_a_cycle_says_why() -> None:
    (anomaly,) = check(LISTS["G-single"]).anomalies
    texts = {step.kind: step.text for step in anomaly.cycle}
    assert texts == {
        "wr": 'T1 appended 1 to "x", which T2 saw',
        "rw": 'T2 saw "y" empty, without 1, which T1 appended',
    }
    assert {(step.kind, step.key, step.before, step.after) for step in anomaly.cycle} == {
        ("wr", "x", 1, None),
        ("rw", "y", None, 1),
    }


def test_the_shortest_cycle_is_shown() -> None:
    ring = [f"r k{n} []; a k{(n + 1) % 9} 1" for n in range(9)]
    (anomaly,) = check(at_once(*ring)).anomalies
    assert (anomaly.name, len(anomaly.cycle)) == ("G2-item", 9)
    shorter = list(ring)
    shorter[0] = ring[0] + "; r s []; r t 1"
    shorter[4] = ring[4] + "; a s 1; a t 1"
    (anomaly,) = check(at_once(*shorter)).anomalies
    assert (anomaly.name, sorted(anomaly.transactions)) == ("G-single", [1, 5])


def test_the_shortest_cycle_of_real_time_is_shown() -> None:
    # The long way takes three dependencies, the short one a single one.
    history = first_and_then("a y 1; a s 1", "r x []; r s []", "a x 1; a z 1", "r z 1; r y []", process=False)
    found = {anomaly.name: len(anomaly.cycle) for anomaly in check(history).anomalies}
    assert found == {"G-single-realtime": 2}


def test_evidence_that_needs_less_comes_first_and_alone() -> None:
    """Who is on a cycle by values alone is not told to be on one of real time, too."""
    both = first_and_then("a x 1; r y 1", "a y 1; r x 1", process=False)
    assert list(check(both).names()) == ["G1c"]
    # Another stale read elsewhere is still told.
    late = [Transaction(9, 200, 210, "ok", parse("a q 1")), Transaction(8, 220, 230, "ok", parse("r q []"))]
    assert list(check([*both, *late]).names()) == ["G1c", "G-single-realtime"]


def test_of_two_cycles_with_a_common_transaction_the_stronger_is_told() -> None:
    history = at_once("r x 1; r y []", "a x 1; a y 1; r z 1", "a z 1; r x 1")
    assert check(history).names() == {"G1c": 1}


def test_cycles_without_a_common_transaction_are_told_even_in_one_knot() -> None:
    history = at_once(
        "a p 1; r q 1; r n 1", "a q 1; r p 1; a m 1", "r m 1; r x []; a y 1", "r y []; a x 1; a n 1"
    )
    assert check(history).names() == {"G1c": 1, "write-skew": 1}


def test_one_write_that_many_missed_is_told_once() -> None:
    late = [Transaction(n, 100, 110, "ok", parse("r x []")) for n in range(5, 8)]
    (anomaly,) = check([Transaction(1, 10, 20, "ok", parse("a x 1")), *late]).anomalies
    assert (anomaly.name, anomaly.others) == ("G-single-realtime", 2)


def test_each_knot_has_its_own_cycle() -> None:
    knots = []
    for n in range(100):
        for place, text in enumerate((f"r x{n} []; a y{n} 1", f"r y{n} []; a x{n} 1")):
            knots.append(Transaction(2 * n + place, 10, 20, "ok", parse(text)))
    verdict = check(knots)
    assert verdict.names() == {"write-skew": 64}
    assert verdict.warnings == ("36 more knots of transactions are not explained",)


def test_a_transaction_whose_outcome_is_unknown_counts_if_it_was_seen() -> None:
    unknown = {0: "unknown"}
    assert check(at_once("a x 1; a y 1", "r x []; r y []", outcomes=unknown)).holds
    assert check(at_once("a x 1; a y 1", "r x 1; r y []", outcomes=unknown)).names() == {"G-single": 1}
    assert check(at_once("w x 1; w y 1", "r x =1; r y =", outcomes=unknown)).names() == {"G-single": 1}


def test_one_that_failed_may_have_tried_the_same_value() -> None:
    assert check(at_once("a x 1", "a x 1", "r x 1", outcomes={0: "fail"})).holds
    assert check(at_once("a x 1", "a x 1", "r x 1", outcomes={1: "fail"})).holds
    assert check(at_once("w x 1", "w x 1", "r x =1", outcomes={0: "fail"})).holds
    intermediate = at_once("w x 1", "w x 1; w x 2", "r x =1", outcomes={0: "fail"})
    assert check(intermediate).names() == {"G1b": 1}


def test_own_appends_show_in_their_order() -> None:
    assert check(at_once("a x 1; a x 2", "r x 1,2")).holds
    assert check(at_once("a x 1; a x 2", "r x 2,1")).names() == {"incompatible-order": 1}
    assert check(at_once("a x 1; a x 2", "r x 2")).names() == {"incompatible-order": 1}
    assert check(at_once("a x 1; r x 1; a x 2; r x 1,2")).holds
    assert check(at_once("r x 1; a x 1")).names() == {"internal": 1}


def test_nothing_follows_from_a_key_whose_reads_contradict_each_other() -> None:
    history = at_once("a x 1; a y 1", "a x 2; a y 2", "r x 1,2", "r x 2,1", "r y 2,1")
    assert check(history).names() == {"incompatible-order": 1}


def test_a_lost_update_is_told_once_however_many_there_are() -> None:
    verdict = check(at_once(*(f"r x []; a x {n}" for n in range(1, 6))))
    assert verdict.names() == {"lost-update": 1}
    assert verdict.anomalies[0].others == 3


@pytest.mark.parametrize(
    "history",
    [
        first_and_then("r x =; w x 1", "r x =; w x 2", process=False),
        first_and_then("r x =; w x 1", "r x =; w x 2", process=True),
        first_and_then("r x []; a x 1", "r x []; a x 2", process=False),
        first_and_then("r x =; w x 1", "r x =; w x 2", "r x =1", process=False),
    ],
)
def test_a_lost_update_is_not_told_as_a_stale_read_too(history: list[Transaction]) -> None:
    assert check(history).names() == {"lost-update": 1}


def test_registers_are_ordered_by_real_time() -> None:
    def read(place: int, value: int) -> Transaction:
        return Transaction(10 + place, 100 * place, 100 * place + 50, "ok", [["r", "x", value]])

    writes = [Transaction(n, 1, 1_000, "ok", [["w", "x", n]]) for n in (1, 2)]
    assert check([*writes, read(1, 1), read(2, 2), read(3, 2)]).holds
    verdict = check([*writes, read(1, 1), read(2, 2), read(3, 1)])
    assert verdict.names() == {"G-single-realtime": 1}
    assert any("as real time tells" in step.text for step in verdict.anomalies[0].cycle)
    assert check([*writes, read(1, 1), read(2, 2), read(3, 1)], "sequential").holds


@pytest.mark.parametrize("seen", [2, 3])
def test_a_version_precedes_all_that_follow_at_the_same_time(seen: int) -> None:
    """Neither of two concurrent writes hides the other from who missed both."""
    history = [
        Transaction(1, 0, 10, "ok", parse("w x 1")),
        Transaction(2, 20, 40, "ok", parse("w x 2; w y 2")),
        Transaction(3, 21, 41, "ok", parse("w x 3; w y 3")),
        Transaction(4, 15, 60, "ok", parse(f"r x =1; r y ={seen}")),
    ]
    verdict = check(history)
    assert verdict.names() == {"G-single-realtime": 1}
    assert len(verdict.anomalies[0].cycle) == 2


def test_verdicts_do_not_add_up() -> None:
    recording = checker.of_events(events(LISTS["G1b"]))
    first = checker.check(recording)
    assert checker.check(recording) == first
    with pytest.raises(ValueError, match="unknown model 'linearizable'"):
        checker.check(recording, "linearizable")
