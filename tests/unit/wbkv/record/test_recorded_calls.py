"""Which events a recorded client's calls leave, whatever becomes of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import wbkv
from wbkv import codecs
from wbkv.client import Client
from wbkv.core.effects import Failure
from wbkv.core.recording import requests_of
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

from tests.unit.wbkv.model import ModelLink, connected, lost, script, told


class Recorded:
    """A client of a model store, and what it has recorded."""

    def __init__(self, link: ModelLink, model: Any = "register", timeout_s: float = 5.0) -> None:
        self.file = io.BytesIO()
        self.history = wbkv.History(self.file, model=model)
        requests = requests_of(connected(link, timeout_s), codecs.BYTES, "strict", self.history)
        self.client = Client(link, requests)

    def events(self) -> list[Any]:
        """Since the last time, without times: type, process, revision, operations."""
        self.history.flush()
        lines = [json.loads(line) for line in self.file.getvalue().splitlines()]
        self.file.seek(0)
        self.file.truncate()
        return [
            (line["type"], line["process"], *([line["revision"]] if "revision" in line else []), line["txn"])
            for line in lines
            if "type" in line
        ]


@pytest.fixture
def registers(link: ModelLink) -> Recorded:
    return Recorded(link)


def test_single_calls(registers: Recorded) -> None:
    client = registers.client
    revision = client.put("x", b"7")
    assert client.get("x") == b"7"
    entry = client.entry("y")
    assert entry is None
    assert client.get_many(["x", "y"]) == [b"7", None]
    assert registers.events() == [
        ("invoke", 0, [["w", "x", 7]]), ("ok", 0, revision, [["w", "x", 7]]),
        ("invoke", 0, [["r", "x", None]]), ("ok", 0, [["r", "x", 7]]),
        ("invoke", 0, [["r", "y", None]]), ("ok", 0, [["r", "y", None]]),
        ("invoke", 0, [["r", "x", None], ["r", "y", None]]), ("ok", 0, [["r", "x", 7], ["r", "y", None]]),
    ]  # fmt: skip


def test_what_is_not_strict_is_left_out(registers: Recorded) -> None:
    client = registers.client
    assert client.get("x", consistency="serializable") is None
    assert client.get("x", revision=5) is None
    assert client.get_many(["x", "y"], consistency="serializable") == [None, None]
    assert client.get_many([]) == []
    assert list(client.scan("x")) == []
    client.txn().when(wbkv.absent("x")).commit()
    assert registers.events() == []


def test_the_codec_does_not_matter(registers: Recorded) -> None:
    client = registers.client.using(codecs.JSON)
    client.put("x", ["a", 1])
    assert client.get("x") == ["a", 1]
    events = registers.events()
    assert events[0] == ("invoke", 0, [["w", "x", '["a",1]']])
    assert events[-1] == ("ok", 0, [["r", "x", '["a",1]']])


def test_of_two_branches_one_fails(registers: Recorded) -> None:
    client = registers.client

    def commit() -> int:
        txn = client.txn().when(wbkv.absent("x")).then(wbkv.get("y"), wbkv.put("x", b"1"))
        return txn.otherwise(wbkv.get("x"), wbkv.put("y", b"2")).commit().revision

    first, second = commit(), commit()
    then = [["r", "y", None], ["w", "x", 1]]
    otherwise = [["r", "x", None], ["w", "y", 2]]
    assert registers.events() == [
        ("invoke", 0, then), ("invoke", 1, otherwise), ("fail", 1, otherwise), ("ok", 0, first, then),
        ("invoke", 0, then), ("invoke", 1, otherwise), ("fail", 0, then),
        ("ok", 1, second, [["r", "x", 1], ["w", "y", 2]]),
    ]  # fmt: skip


def test_an_interactive_transaction_is_its_commit(link: ModelLink, registers: Recorded) -> None:
    client, store = registers.client, link.store
    store.put(b"x", b"1")
    with client.transaction() as tx:
        assert tx.get("x") == b"1"
        tx.put("y", b"2")
        assert tx.get("y") == b"2"
    assert registers.events()[2:] == [
        ("invoke", 0, [["r", "x", None], ["w", "y", 2]]),
        ("ok", 0, tx.revision, [["r", "x", 1], ["w", "y", 2]]),
    ]
    tx = client.transaction()
    tx.get("x")
    tx.put("y", b"3")
    store.put(b"x", b"4")
    with pytest.raises(wbkv.Aborted):
        tx.commit()
    assert registers.events()[2:] == [
        ("invoke", 0, [["r", "x", None], ["w", "y", 3]]),
        ("fail", 0, [["r", "x", None], ["w", "y", 3]]),
    ]


def test_transactions_that_only_read(registers: Recorded) -> None:
    client = registers.client
    with client.transaction() as tx:
        tx.get_many(["x", "y"])
    once = [
        ("invoke", 0, [["r", "x", None], ["r", "y", None]]),
        ("ok", 0, [["r", "x", None], ["r", "y", None]]),
    ]
    assert registers.events() == once
    with client.transaction() as tx:
        tx.get("x")
        tx.get("y")
    assert registers.events()[4:] == once


def test_lists_are_appended_to(link: ModelLink) -> None:
    lists = Recorded(link, "list-append")
    link.store.put(b"x", b"1,2,")
    with lists.client.transaction() as tx:
        tx.append("x", b"3,")
        tx.append("x", b"4,")
    assert lists.events()[-1][-1] == [["r", "x", [1, 2]], ["append", "x", 3], ["append", "x", 4]]
    assert link.store.at(b"x")[1] == b"1,2,3,4,"


def test_what_cannot_be_recorded_is_not_sent(link: ModelLink, registers: Recorded) -> None:
    client = registers.client
    tx = client.transaction()
    tx.delete("x")
    calls: list[Callable[[], object]] = [
        lambda: client.delete("x"), lambda: client.delete(wbkv.EVERYTHING), lambda: client.add("x"),
        lambda: client.append("x", b"1"),
        lambda: client.txn().then(wbkv.put("x", b"1"), wbkv.delete("y")).commit(),
        lambda: client.txn().when(wbkv.absent("x")).otherwise(wbkv.minimum("x", 1)).commit(), tx.commit,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(wbkv.InvalidRequest, match="cannot express"):
            call()
    assert link.asked == []
    assert registers.events() == []


def _put(client: Client[bytes]) -> object:
    return client.put("x", b"1")


def _txn(client: Client[bytes]) -> object:
    return client.txn().when(wbkv.absent("x")).then(wbkv.put("x", b"1")).otherwise(wbkv.get("y")).commit()


def _interactive(client: Client[bytes]) -> object:
    with client.transaction() as tx:
        tx.put("x", b"1")
    return None


OUTCOMES = [
    pytest.param([told(ApiError.INVALID_REQUEST)], "fail", id="refused"),
    pytest.param([told(ApiError.PINNED)], "fail", id="pinned"),
    pytest.param([told(ApiError.INTERNAL)], "unknown", id="internal"),
    pytest.param([told(ApiError.RESPONSE_TOO_LARGE)], "unknown", id="executed"),
    pytest.param([lost(), told(ApiError.REQUEST_EXPIRED)], "unknown", id="perhaps executed"),
    pytest.param([lost(begun=False)] * 99, "fail", id="not sent"),
    pytest.param([lost()] * 99, "unknown", id="lost"),
]


@pytest.mark.parametrize("write", [_put, _txn, _interactive])
@pytest.mark.parametrize(("failures", "outcome"), OUTCOMES)
def test_what_is_known_of_a_write(
    link: ModelLink, failures: list[Failure], outcome: str, write: Callable[[Client[bytes]], object]
) -> None:
    recorded = Recorded(link, timeout_s=0.05)
    link.before = script(*failures)
    with pytest.raises(wbkv.Error):
        write(recorded.client)
    written, *others = [event for event in recorded.events() if event[0] != "invoke"]
    assert written == (outcome, 0, [["w", "x", 1]])
    assert all(event == ("fail", 1, [["r", "y", None]]) for event in others)
    link.before = script()
    recorded.client.put("x", b"2")
    first = recorded.events()[0]
    assert first[2] == [["w", "x", 2]]
    assert (first[1] == 0) is (outcome == "fail" and write is not _txn)


@pytest.mark.parametrize("write", [_put, _txn, _interactive])
def test_what_is_interrupted_is_unknown(
    link: ModelLink, registers: Recorded, write: Callable[[Client[bytes]], object]
) -> None:
    def interrupt(ask: object) -> Any:
        raise KeyboardInterrupt

    link.before = interrupt  # as Ctrl-C does
    with pytest.raises(KeyboardInterrupt):
        write(registers.client)
    with pytest.raises(KeyboardInterrupt):
        registers.client.get("x")
    found = [event for event in registers.events() if event[0] != "invoke"]
    assert found[0] == ("unknown", 0, [["w", "x", 1]])
    assert {event[0] for event in found[1:]} == {"fail"}


def test_an_operation_that_failed_leaves_no_ok(link: ModelLink, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(link, "list-append")
    failure = kv.OperationResult(failed=kv.Failed(fault=kv.VALUE_TOO_LARGE))
    monkeypatch.setattr(link.store, "_perform", lambda *_: failure)
    with pytest.raises(wbkv.OperationFailed):
        recorded.client.append("x", b"1,")
    recorded.client.txn(allow_failures=True).then(wbkv.append("x", b"1,")).commit()
    assert [event[0] for event in recorded.events()] == ["invoke", "fail", "invoke", "unknown"]


def test_closing_a_client_writes_what_it_recorded(registers: Recorded) -> None:
    registers.client.get("x")
    registers.client.close()
    assert len(registers.file.getvalue().splitlines()) == 3
