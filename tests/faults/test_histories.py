"""What the checkers of histories find, each in the smallest history that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.history import Action, Change, History, Wrong, check_order

X, Y = b"x", b"y"


def write(revision: int, begun: float, ended: float, *keys: bytes, **reads: int) -> Action:
    seen = {key.encode(): version for key, version in reads.items()}
    return Action("w", "write", begun, ended, revision, dict.fromkeys(keys, b"%d" % revision), seen)


def read(begun: float, ended: float, **reads: int) -> Action:
    return Action("r", "read", begun, ended, reads={k.encode(): version for k, version in reads.items()})


def change(revision: int, *keys: bytes, created: int = 0, version: int = 1) -> Change:
    versions = dict.fromkeys(keys, (created or revision, version))
    return Change(revision, dict.fromkeys(keys, b"%d" % revision), versions)


def test_what_overlaps_may_come_in_any_order() -> None:
    check_order([write(1, 0, 1, X), write(2, 1, 3, X), read(2, 4, x=1), read(1.5, 4, x=2)])


BROKEN = {
    "a stale read": [write(1, 0, 1, X), write(2, 2, 3, X), read(4, 5, x=1)],
    "a read of nothing": [write(1, 0, 1, X), read(2, 3, x=0)],
    "reads that go back": [write(1, 0, 1, X), write(2, 2, 9, X), read(3, 4, x=2), read(5, 6, x=1)],
    "half of a transaction": [write(1, 0, 1, X, Y), write(2, 2, 9, X, Y), read(3, 8, x=2, y=1)],
    "a lost update": [write(1, 0, 1, X), write(2, 2, 9, X, x=1), write(3, 2, 9, X, x=1)],
    "skew": [write(1, 0, 1, X, Y), write(2, 2, 9, X, y=1), write(3, 2, 9, Y, x=1)],
    "two orders": [
        write(1, 0, 1, X, Y), write(2, 2, 9, X), write(3, 2, 9, Y),
        read(3, 9, x=2, y=1), read(3, 9, x=1, y=3),
    ],
    "time through another key": [
        write(1, 0, 1, X, Y), write(3, 2, 3, X), write(2, 4, 5, Y), read(2, 9, x=1, y=2),
    ],
    "what nobody wrote": [write(1, 0, 1, X), read(2, 3, x=7)],
}  # fmt: skip


@pytest.mark.parametrize("actions", BROKEN.values(), ids=BROKEN)
def test_a_broken_order_is_found(actions: list[Action]) -> None:
    with pytest.raises(Wrong):
        check_order(actions)


def test_changes_are_what_was_answered(tmp_path: Path) -> None:
    history = History([write(1, 0, 1, X), write(2, 2, 3, X, Y)])
    history.changes = [change(1, X), Change(2, {X: b"2", Y: b"2"}, {X: (1, 2), Y: (2, 1)})]
    history.check()
    history.write(tmp_path / "history.jsonl")
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 4


WRONG_CHANGES = {
    "lost": [change(1, X)],
    "out of order": [change(2, Y), change(1, X)],
    "half": [change(1, X), change(2)],
    "twice": [change(1, X), change(2, Y), change(3, Y, created=2, version=2)],
    "a gap": [change(1, X), change(2, Y, version=2)],
    "other values": [change(1, X), Change(2, {Y: b"7"}, {Y: (2, 1)})],
}


@pytest.mark.parametrize("changes", WRONG_CHANGES.values(), ids=WRONG_CHANGES)
def test_wrong_changes_are_found(changes: list[Change]) -> None:
    with pytest.raises(Wrong):
        History([write(1, 0, 1, X), write(2, 2, 3, Y)], changes).check()


def test_an_old_read_sees_its_revision() -> None:
    history = History([write(1, 0, 1, X), write(3, 2, 3, Y)], [change(1, X), change(3, Y)])
    old = Action("r", "old", 4, 5, reads={X: 1, Y: 0}, at=2, strict=False)
    history.actions.append(old)
    history.check()
    old.at = 3
    with pytest.raises(Wrong):
        history.check()
