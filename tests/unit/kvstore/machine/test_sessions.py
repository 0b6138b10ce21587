"""Exactly once, within a window and until a deadline."""

from __future__ import annotations

import pytest

from kvstore.machine import sessions
from kvstore.machine.commands import Request, Tick
from kvstore.machine.ordered import MemoryMap
from kvstore.machine.results import DONE, Refusal, Refused
from kvstore.machine.sessions import Repeated, Session, Sessions, Stored
from multicast.types import NO_TIMESTAMP, GroupId, Timestamp

A, B = GroupId(0), GroupId(1)
ONE, OTHER = 1, 2
LATER = 1000


def request(
    client: int, sequence: int, ack_below: int = 0, digest: int = 0, deadline: int = LATER
) -> Request:
    return Request(client, sequence, ack_below, deadline, digest, Tick())


class Table:
    """Sessions, with requests delivered one after the other."""

    def __init__(self, window: int = 4) -> None:
        self.rows: MemoryMap[tuple[int, tuple[GroupId, ...]], Session] = MemoryMap()
        self.sessions = Sessions(self.rows, MemoryMap(), window)
        self.gts = NO_TIMESTAMP

    def admit(
        self, wanted: Request, destinations: tuple[GroupId, ...] = (A,), gts: int = 0
    ) -> Repeated | Refused | None:
        self.gts = Timestamp(gts or self.gts + 1)
        found = self.sessions.admit(wanted, destinations, self.gts)
        if found is None:
            self.sessions.open(wanted, destinations, self.gts)
        return found

    def execute(self, wanted: Request, destinations: tuple[GroupId, ...] = (A,), gts: int = 0) -> None:
        assert self.admit(wanted, destinations, gts) is None
        self.sessions.executed(wanted, destinations, self.gts, DONE)

    def results(self) -> list[tuple[int, tuple[GroupId, ...], int]]:
        return [number for number, _ in self.sessions._results.items((0, (), 0), None)]


def refusal(found: Repeated | Refused | None) -> Refusal:
    assert isinstance(found, Refused)
    return found.refusal


def test_a_full_window_names_itself() -> None:
    table = Table()
    assert table.admit(request(ONE, 5, 2)) is None
    assert table.admit(request(ONE, 6, 2)) == Refused(
        Refusal.WINDOW_FULL,
        "request 6 of client 1, which has acknowledged those below 2, exceeds its window of 4",
    )


def test_the_table_is_bounded_by_the_window() -> None:
    table = Table()
    for sequence in range(100):
        table.execute(request(ONE, sequence, max(0, sequence - 3)))
        assert len(table.results()) <= 4
    table.execute(request(ONE, 10**9, 10**9))
    assert len(table.results()) == 1
    assert len(list(table.rows.items((0, ()), None))) == 1


def test_acknowledged_results_are_forgotten_and_others_are_not() -> None:
    table = Table()
    table.execute(request(ONE, 1))
    table.execute(request(ONE, 2))
    table.execute(request(OTHER, 1))
    table.execute(request(ONE, 1), (A, B))
    table.execute(request(ONE, 3, 2))
    assert refusal(table.admit(request(ONE, 1))) is Refusal.FORGOTTEN
    for known, destinations, gts in (
        (request(ONE, 2), (A,), 2),
        (request(OTHER, 1), (A,), 3),
        (request(ONE, 1), (A, B), 4),
    ):
        assert table.sessions.find(known, destinations) == Repeated(DONE, Timestamp(gts))


class Deletes(MemoryMap[tuple[int, tuple[GroupId, ...], int], Stored]):
    """Counts them."""

    __slots__ = ("deleted",)

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[int] = []

    def delete(self, key: tuple[int, tuple[GroupId, ...], int]) -> None:
        self.deleted.append(key[2])
        super().delete(key)


def test_numbers_that_went_elsewhere_are_not_looked_for() -> None:
    table, results = Table(window=1000), Deletes()
    table.sessions = Sessions(table.rows, results, 1000)
    for sequence in (1, 2, 5, 200, 201):
        table.execute(request(ONE, sequence))
    table.execute(request(ONE, 900, 201))
    assert results.deleted == [1, 2, 5, 200]
    table.execute(request(ONE, 901, 202))
    table.execute(request(ONE, 902, 203))
    assert results.deleted == [1, 2, 5, 200, 201]
    assert [number for _, _, number in table.results()] == [900, 901, 902]


def test_sessions_beyond_those_that_are_remembered_are_found_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "_KEPT", 2)
    table = Table()
    clients = range(1, 6)
    for client in clients:
        table.execute(request(client, 1))
    for client in clients:
        assert isinstance(table.admit(request(client, 1)), Repeated)
        table.execute(request(client, 2, 2))
    assert table.results() == [(client, (A,), 2) for client in clients]
    assert len(table.sessions._kept) == 2


def test_an_acknowledgement_never_goes_back() -> None:
    table = Table()
    table.execute(request(ONE, 5, 5))
    table.execute(request(ONE, 6, 3))
    assert refusal(table.admit(request(ONE, 4, 3))) is Refusal.FORGOTTEN


def test_another_request_of_the_same_number_is_a_mismatch_before_and_after_execution() -> None:
    table = Table()
    first = request(ONE, 1, digest=7)
    assert table.admit(first) is None
    assert table.admit(first) == Repeated(None, Timestamp(1))
    assert refusal(table.admit(request(ONE, 1, digest=8))) is Refusal.MISMATCH
    table.sessions.executed(first, (A,), Timestamp(1), DONE)
    assert refusal(table.admit(request(ONE, 1, digest=8))) is Refusal.MISMATCH
    assert table.admit(first) == Repeated(DONE, Timestamp(1))
    assert table.admit(request(ONE, 1, digest=8), (A, B)) is None, "to others it is another request"


def test_what_comes_after_its_deadline_is_expired_and_changes_nothing() -> None:
    table = Table()
    late = request(ONE, 9, ack_below=6, deadline=10)
    assert table.admit(late, gts=11) == Refused(
        Refusal.EXPIRED, "request 9 of client 1 was delivered after its deadline 10"
    )
    assert not list(table.rows.items((0, ()), None))
    assert table.admit(request(ONE, 9, deadline=10), gts=10) == Refused(
        Refusal.WINDOW_FULL,
        "request 9 of client 1, which has acknowledged those below 0, exceeds its window of 4",
    )
    assert table.admit(late, gts=10) is None


def test_a_session_ends_at_its_last_deadline_whether_its_rows_are_there_or_not() -> None:
    swept, left = Table(), Table()
    for table in (swept, left):
        table.execute(request(ONE, 1, deadline=20), gts=5)
        table.execute(request(ONE, 2, deadline=15), gts=6)
        assert table.admit(request(ONE, 3, deadline=18), gts=7) is None
        table.execute(request(OTHER, 1, deadline=50), gts=8)
    list(swept.sessions.sweep(21))
    assert swept.results() == [(OTHER, (A,), 1)]
    for table in (swept, left):
        table.execute(request(ONE, 2, digest=9, deadline=40), gts=30)
        assert table.admit(request(ONE, 3, digest=9, deadline=40), gts=31) is None, "not the one that is open"
        table.sessions.executed(request(ONE, 3, deadline=18), (A,), Timestamp(7), DONE)
        assert refusal(table.admit(request(ONE, 3, digest=8, deadline=40), gts=32)) is Refusal.MISMATCH
        table.sessions.executed(request(ONE, 3, digest=9, deadline=40), (A,), Timestamp(31), DONE)
        assert table.results() == [(ONE, (A,), 2), (ONE, (A,), 3), (OTHER, (A,), 1)]
        assert table.rows.get((ONE, (A,))) == Session(0, 40, 30)


def test_a_repetition_keeps_its_session_alive() -> None:
    table = Table()
    table.execute(request(ONE, 1, deadline=20))
    assert table.admit(request(ONE, 1, deadline=60)) == Repeated(DONE, Timestamp(1))
    list(table.sessions.sweep(50))
    assert table.admit(request(ONE, 1, deadline=60), gts=51) == Repeated(DONE, Timestamp(1))


def test_all_sessions_are_swept() -> None:
    table = Table()
    for client in range(150):
        table.execute(request(client, 1, deadline=500), (A,) if client % 2 else (A, B))
        table.execute(request(client, 1, deadline=700 if client % 3 else 500), (A, GroupId(2)))
    list(table.sessions.sweep(600))
    assert [client for (client, _), _ in table.rows.items((0, ()), None)] == [c for c in range(150) if c % 3]
    assert len(table.results()) == 100
