"""The order of revisions must explain the history by itself."""

from __future__ import annotations

import pytest
from wbkv import checker

from benchmarks.checker_speed import Shape, simulate
from tests.unit.wbkv.checker.brute import Transaction, check
from tests.unit.wbkv.checker.planted import at_once, first_and_then


def revised(transactions: list[Transaction], *revisions: int | None) -> list[Transaction]:
    return [t._replace(revision=revision) for t, revision in zip(transactions, revisions, strict=True)]


def test_revisions_are_unique() -> None:
    verdict = check(revised(at_once("a x 1", "a y 1", "a z 1"), 5, 5, 6))
    assert [(a.name, a.text) for a in verdict.anomalies] == [
        ("revision-order", "T1 and T2 both have revision 5.")
    ]


WRONG = {
    "lists, writes": revised(at_once("a x 1", "a x 2", "r x 1,2"), 5, 3, None),
    "lists, a read of the later": revised(at_once("a x 1", "r x 1; a y 1"), 5, 3),
    "lists, a missed write": revised(at_once("a x 1", "r x []; a y 1"), 3, 5),
    "lists, by way of one without a revision": revised(
        at_once("a x 1", "r x 1; r y []", "a y 1"), 5, None, 3
    ),
    "lists, nobody has read": revised(first_and_then("a x 1", "a x 2", process=False), 5, 3),
    "registers, a read of the later": revised(at_once("w x 1", "r x =1; w y 1"), 5, 3),
    "registers, a missed write": revised(at_once("w x 1", "w x 2", "r x =1; w y 1"), 3, 4, 5),
    "registers, writes": revised(first_and_then("w x 1", "w x 2", process=False), 5, 3),
    "registers, one writer": revised(at_once("w x 1", "w x 2; w y 1", "r x =1; r y =1"), 1, 2, None),
    "registers, two readers": revised(
        at_once("w x 1", "w y 1", "w x 2", "r x =1; r y =2", "w y 2"), 1, 2, 3, None, 4
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_revisions_explain_what_was_seen(name: str) -> None:
    assert check([t._replace(revision=None) for t in WRONG[name]]).holds
    verdict = check(WRONG[name])
    assert verdict.names() == {"revision-order": 1}
    text = verdict.anomalies[0].text
    assert "has the later" in text or "as revisions tell" in text


def test_right_revisions_hold() -> None:
    assert check(revised(at_once("a x 1", "a x 2", "r x 1,2"), 3, 5, None)).holds
    assert check(revised(at_once("a x 1", "r x []; a y 1"), 5, 3)).holds
    assert check(revised(at_once("w x 1", "w x 2", "r x =1; w y 1"), 3, 5, 4)).holds


def test_revisions_need_not_follow_time_where_nobody_can_tell() -> None:
    assert check(revised(first_and_then("a x 1", "a y 1", process=False), 5, 3)).holds
    assert check(revised(first_and_then("w x 1", "w y 1", process=True), 5, 3)).holds


def test_revisions_of_reads_are_not_asked_for() -> None:
    assert check(revised(at_once("a x 1", "r x 1", "r x 1"), 5, 3, 3)).holds


def test_a_wrong_revision_in_a_large_history() -> None:
    for kind in ("list-append", "register"):
        recorded = list(simulate(Shape(kind, 1_000), seed=3))
        assert checker.check(checker.of_events(recorded)).holds
        some = [event for event in recorded if "revision" in event]
        first, last = some[100], some[-100]
        first["revision"], last["revision"] = last["revision"], first["revision"]
        assert "revision-order" in checker.check(checker.of_events(recorded)).names()


def test_what_revisions_tell_of_registers_is_said() -> None:
    (anomaly,) = check(WRONG["registers, a missed write"]).anomalies
    assert "as revisions tell" in anomaly.text
