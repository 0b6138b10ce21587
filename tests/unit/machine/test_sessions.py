"""Exactly once, within a window."""

from __future__ import annotations

from kvstore.machine.ordered import MemoryMap
from kvstore.machine.results import DONE, Refusal, Refused
from kvstore.machine.sessions import Repeated, Sessions
from multicast.types import ClientId, MessageId

ONE, OTHER = ClientId(1), ClientId(2)


def sessions(window: int = 4) -> Sessions:
    return Sessions(MemoryMap(), MemoryMap(), window)


def execute(table: Sessions, mid: MessageId, ack_below: int = 0) -> None:
    assert table.admit(mid, ack_below) is None
    table.executed(mid, DONE)


def refusal(found: Repeated | Refused | None) -> Refusal:
    assert isinstance(found, Refused)
    return found.refusal


def test_a_full_window_names_itself() -> None:
    table = sessions()
    assert table.admit(MessageId(ONE, 5, 0), 2) is None
    found = table.admit(MessageId(ONE, 6, 0), 2)
    assert found == Refused(
        Refusal.WINDOW_FULL,
        "request 6 of client 1, which has acknowledged those below 2, exceeds its window of 4",
    )


def test_the_table_is_bounded_by_the_window() -> None:
    table = sessions()
    for sequence in range(100):
        execute(table, MessageId(ONE, sequence, 0), max(0, sequence - 3))
        assert len(list(table._results.items((ONE, 0), None))) <= 4
    execute(table, MessageId(ONE, 10**9, 0), 10**9)
    assert len(list(table._results.items((ONE, 0), None))) == 1


def test_acknowledged_results_are_forgotten_and_others_are_not() -> None:
    table = sessions()
    execute(table, MessageId(ONE, 1, 0))
    execute(table, MessageId(ONE, 2, 0))
    execute(table, MessageId(OTHER, 1, 0))
    execute(table, MessageId(ONE, 3, 0), 2)
    found = table.admit(MessageId(ONE, 1, 0), 0)
    assert refusal(found) is Refusal.FORGOTTEN
    assert table.find(MessageId(ONE, 2, 0)) == Repeated(DONE)
    assert table.find(MessageId(OTHER, 1, 0)) == Repeated(DONE)


def test_an_acknowledgement_never_goes_back() -> None:
    table = sessions()
    execute(table, MessageId(ONE, 5, 0), 5)
    execute(table, MessageId(ONE, 6, 0), 3)
    assert refusal(table.admit(MessageId(ONE, 4, 0), 3)) is Refusal.FORGOTTEN


def test_another_request_of_the_same_number_is_a_mismatch_before_and_after_execution() -> None:
    table = sessions()
    assert table.admit(MessageId(ONE, 1, 7), 0) is None
    assert table.admit(MessageId(ONE, 1, 7), 0) == Repeated(None)
    assert refusal(table.admit(MessageId(ONE, 1, 8), 0)) is Refusal.MISMATCH
    table.executed(MessageId(ONE, 1, 7), DONE)
    assert refusal(table.admit(MessageId(ONE, 1, 8), 0)) is Refusal.MISMATCH
    assert table.admit(MessageId(ONE, 1, 7), 0) == Repeated(DONE)


def test_expiry_forgets_one_client_for_good() -> None:
    table = sessions()
    execute(table, MessageId(ONE, 1, 0))
    execute(table, MessageId(OTHER, 1, 0))
    assert table.admit(MessageId(ONE, 2, 0), 0) is None
    table.expire(ONE)
    table.executed(MessageId(ONE, 2, 0), DONE)
    assert [number for number, _ in table._results.items((ONE, 0), None)] == [(OTHER, 1)]
    assert refusal(table.admit(MessageId(ONE, 1, 0), 0)) is Refusal.EXPIRED
    assert refusal(table.admit(MessageId(ONE, 9, 0), 9)) is Refusal.EXPIRED
