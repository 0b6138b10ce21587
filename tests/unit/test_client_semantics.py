"""What the client promises of transactions, ids and locks, where a schedule could break it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import wbkv
from google.protobuf.message import Message
from wbkv import codecs
from wbkv.client import Client
from wbkv.core.calls import Calls
from wbkv.core.effects import TOPOLOGY, Ask, Failure, Open, Plan, failed
from wbkv.core.identity import WINDOW, Identity
from wbkv.core.locks import Holding
from wbkv.core.requests import Requests
from wbkv.core.routing import Router
from wbkv.core.transactions import Attempt
from wbkv.links.tasks import AsyncLink
from wbkv.links.threads import run
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as Told

from kvstore.machine import sessions


class Store:
    """A store of one partition in a few lines, as a link."""

    def __init__(self, page: int = 2) -> None:
        self.rows: dict[bytes, kv.Entry] = {}
        self.revision = 1000
        self.page = page
        self.asked: list[Message] = []
        self.script: list[Failure | None] = []
        """What becomes of the next requests instead: None for nothing special."""
        self.lag = 0
        """How far what is complete is behind what reads show."""
        self._changed: dict[bytes, int] = {}

    def ask(self, ask: Ask) -> Message | Failure:
        if ask.method is TOPOLOGY:
            return failed(Told.UNAVAILABLE, "no map")
        request: Any = type(ask.request).FromString(ask.request.SerializeToString())
        self.asked.append(request)
        if self.script and (found := self.script.pop(0)) is not None:
            return found
        if isinstance(request, kv.GetRequest):
            return kv.GetResponse(header=self._header(0), entry=self.rows.get(request.key))
        if isinstance(request, kv.PutRequest):
            request = kv.TxnRequest(then=[kv.Operation(put=kv.Put(key=request.key, value=request.value))])
        return self._txn(request)

    def _header(self, own: int) -> kv.Header:
        return kv.Header(revision=self.revision - self.lag, transaction_revision=own)

    def _txn(self, request: kv.TxnRequest) -> kv.TxnResponse:
        unmet = [i for i, each in enumerate(request.conditions) if not self._holds(each)]
        operations = request.otherwise if unmet else request.then
        self.revision += 1
        results = [self._perform(operation) for operation in operations]
        return kv.TxnResponse(
            header=self._header(self.revision if request.conditions or request.id.client else 0),
            succeeded=not unmet,
            unmet=[kv.Unmet(condition=i) for i in unmet],
            results=results,
        )

    def _holds(self, condition: kv.Condition) -> bool:
        if condition.HasField("unchanged"):
            asked = condition.unchanged
            return not any(
                _within(key, asked.range) and mod > asked.since for key, mod in self._changed.items()
            )
        compare = condition.compare
        found = self.rows.get(compare.key, kv.Entry())
        subject = compare.WhichOneof("operand")
        assert subject is not None
        has = compare.key in self.rows if subject == "exists" else getattr(found, subject)
        return bool(has == getattr(compare, subject))

    def _perform(self, operation: kv.Operation) -> kv.OperationResult:
        kind = operation.WhichOneof("operation")
        asked: Any = getattr(operation, str(kind))
        if kind == "get":
            return kv.OperationResult(got=kv.Got(entry=self.rows.get(asked.key)))
        if kind == "put":
            self.put(asked.key, asked.value, self.revision)
            return kv.OperationResult(written=kv.Written())
        assert kind == "delete"
        self._changed[asked.key] = self.revision
        return kv.OperationResult(deleted=kv.Deleted(count=int(self.rows.pop(asked.key, None) is not None)))

    def put(self, key: bytes, value: bytes, revision: int = 0) -> None:
        """Somebody else writes."""
        if not revision:
            self.revision += 1
        now = revision or self.revision
        old = self.rows.get(key)
        created, version = (old.create_revision, old.version + 1) if old else (now, 1)
        self.rows[key] = kv.Entry(
            key=key, value=value, create_revision=created, mod_revision=now, version=version
        )
        self._changed[key] = now

    def open(self, open_: Open) -> _Pages:
        request = open_.request
        assert isinstance(request, kv.ScanRequest)
        keys = sorted((key for key in self.rows if _within(key, request.range)), reverse=request.reverse)
        rows = [self.rows[key] for key in keys][: request.limit or None]
        pages = [rows[i : i + self.page] for i in range(0, len(rows), self.page)] or [[]]
        header = self._header(0)
        return _Pages(iter([kv.ScanResponse(header=header, entries=page) for page in pages]))

    def next(self, stream: Any, timeout_s: float) -> Message | Failure | None:
        return next(stream.pages, None)

    async def in_loop(self) -> AsyncLink:
        raise NotImplementedError

    def close(self) -> None:
        pass


class _Pages:
    def __init__(self, pages: Iterator[kv.ScanResponse]) -> None:
        self.pages = pages

    def cancel(self) -> None:
        pass


def _within(key: bytes, asked: kv.Range) -> bool:
    if asked.HasField("prefix"):
        return key.startswith(asked.prefix)
    return asked.interval.start <= key and (not asked.interval.end or key < asked.interval.end)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def calls() -> Calls:
    router = Router(("n1:1",))
    router.stale = False
    router._learned_at = time.monotonic()
    return Calls(router, 5.0)


@pytest.fixture
def client(store: Store, calls: Calls) -> Client[bytes]:
    return Client(store, Requests(calls, codecs.BYTES, "strict"))


# Interactive transactions


def test_what_is_written_during_a_scan_takes_nothing_away_from_it(
    store: Store, client: Client[bytes]
) -> None:
    for key in b"abcdef":
        store.put(bytes((key,)), b"old")
    with client.transaction() as tx:
        tx.put("b", b"before")
        seen = {}
        for entry in tx.scan(wbkv.EVERYTHING):
            seen[entry.key] = entry.value
            tx.put("e", b"during")
        assert list(seen) == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert (seen[b"b"], seen[b"e"]) == (b"before", b"old")
        assert tx.get("e") == b"during"


def interleave(store: Store, first: Plan[Any], second: Plan[Any], between: Callable[[], None]) -> list[Any]:
    """Two tasks: both ask, then something happens before the second is answered."""
    asked = [first.send(None), second.send(None)]
    results = []
    for plan, ask in zip((first, second), asked, strict=True):
        assert isinstance(ask, Ask)
        answer = store.ask(ask)
        with pytest.raises(StopIteration) as end:
            plan.send(answer)
        results.append(end.value.value)
        between()
    return results


def test_tasks_of_one_transaction_read_the_same(store: Store, calls: Calls) -> None:
    store.put(b"a", b"1")
    attempt = Attempt(Requests(calls, codecs.BYTES, "strict"), None)
    values = interleave(store, attempt.get("a"), attempt.get("a"), lambda: store.put(b"a", b"2"))
    assert values == [b"1", b"1"]
    attempt.put("b", b"")
    with pytest.raises(wbkv.Aborted):
        run(store, attempt.commit())


def test_tasks_of_one_transaction_add_up(store: Store, calls: Calls) -> None:
    attempt = Attempt(Requests(calls, codecs.BYTES, "strict"), None)
    assert interleave(store, attempt.add("n", 1), attempt.add("n", 1), lambda: None) == [1, 2]
    run(store, attempt.commit())
    assert store.rows[b"n"].value == b"2"


@pytest.mark.parametrize("value", [b"", b" 1", b"1_0", b"+1", b"01", "\u0663".encode()])
def test_a_transaction_counts_as_the_store_does(store: Store, client: Client[bytes], value: bytes) -> None:
    store.put(b"n", value)
    with pytest.raises(wbkv.OperationFailed, match="not a number"), client.transaction() as tx:
        tx.add("n")


def test_a_function_that_has_committed_is_not_run_again(store: Store, client: Client[bytes]) -> None:
    runs = []

    @wbkv.transactional
    def work(tx: wbkv.Transaction[bytes]) -> None:
        runs.append(tx.get("b"))
        tx.add("a")
        tx.commit()
        raise LookupError("after the commit")

    with pytest.raises(LookupError):
        work(client)
    assert len(runs) == 1


def test_a_range_is_protected_from_what_comes_after_its_scan(store: Store, client: Client[bytes]) -> None:
    store.put(b"user/1", b"")
    tx = client.transaction()
    tx.put("count", b"%d" % len(list(tx.scan("user/"))))
    store.put(b"user/2", b"")
    with pytest.raises(wbkv.Aborted, match="user/"):
        tx.commit()
    with client.transaction() as tx:
        tx.put("count", b"%d" % len(list(tx.scan("user/"))))
        store.put(b"other", b"")
    assert store.rows[b"count"].value == b"2"


# What a client has seen


@pytest.mark.parametrize("operation", [wbkv.get("a"), wbkv.scan("a")])
def test_a_transaction_that_reads_has_seen_what_it_shows(
    store: Store, client: Client[bytes], operation: wbkv.Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(b"a", b"")
    mod = store.rows[b"a"].mod_revision
    entry = store.rows[b"a"]
    scanned = kv.OperationResult(scanned=kv.Scanned(entries=[entry], count=1))
    got = kv.OperationResult(got=kv.Got(entry=entry))
    monkeypatch.setattr(store, "_perform", lambda asked: got if asked.HasField("get") else scanned)
    store.lag = 500
    client.txn().then(operation).commit()
    assert client._requests.calls.seen == mod


# Ids


def test_an_old_request_does_not_hold_up_new_ones() -> None:
    identity = Identity()
    old = kv.RequestId()
    first = identity.sign(old)
    for number in range(2, WINDOW + 1):
        message = kv.RequestId()
        signed = identity.sign(message)
        assert (message.client, message.sequence, message.ack_below) == (old.client, number, 1)
        identity.done(signed)
    message = kv.RequestId()
    signed = identity.sign(message)
    assert message.client != old.client
    assert (message.sequence, message.ack_below) == (1, 1)
    identity.done(first)  # its number is another client's, too
    other = kv.RequestId()
    identity.sign(other)
    assert (other.client, other.sequence, other.ack_below) == (message.client, 2, 1)
    identity.done(signed)


def test_the_window_is_the_stores() -> None:
    assert WINDOW == sessions.WINDOW


REFUSALS = (Told.INVALID_REQUEST, Told.FUTURE_REVISION, Told.REQUEST_EXPIRED, Told.WINDOW_FULL)


@pytest.mark.parametrize("kind", REFUSALS, ids=Told.Kind.Name)
def test_a_refusal_says_nothing_of_an_attempt_before_it(
    store: Store, client: Client[bytes], kind: Told.Kind
) -> None:
    refusal = Failure(Told(kind=kind, message="no"))
    store.script = [refusal]
    with pytest.raises(wbkv.Error) as found:
        client.put("a", b"")
    assert not isinstance(found.value, wbkv.OutcomeUnknown)
    store.script = [failed(Told.UNAVAILABLE, "the connection broke"), refusal]
    with pytest.raises(wbkv.OutcomeUnknown):
        client.put("a", b"")


# Locks


def test_a_renewal_that_comes_late_does_not_end_another_holding(store: Store, calls: Calls) -> None:
    holding = Holding(Requests(calls, codecs.BYTES, "strict"), "lock", 10.0)
    assert run(store, holding.acquire(None))
    late = holding.renew()
    asked = late.send(None)
    assert run(store, holding.release())
    assert run(store, holding.acquire(None))
    assert isinstance(asked, Ask)
    with pytest.raises(StopIteration) as end:
        late.send(store.ask(asked))
    assert end.value.value is False
    assert not holding.lost


def test_a_lock_taken_over_has_a_new_token(store: Store, calls: Calls) -> None:
    requests = Requests(calls, codecs.BYTES, "strict")
    dead, heir = Holding(requests, "lock", 0.001), Holding(requests, "lock", 10.0)
    assert run(store, dead.acquire(None))
    assert run(store, heir.acquire(5.0))
    assert heir.token > dead.token

    def write_under(holding: Holding) -> bool:
        plan = requests.transact((holding.condition(),), (wbkv.put("x", b""),), (), None)
        return run(store, plan).succeeded

    assert not write_under(dead)
    assert write_under(heir)
