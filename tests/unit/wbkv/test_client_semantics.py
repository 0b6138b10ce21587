"""What the client promises of transactions, ids and locks, where a schedule could break it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import wbkv
from wbkv.client import Client
from wbkv.codecs import Values
from wbkv.core.effects import Ask, Plan
from wbkv.core.environment import SYSTEM
from wbkv.core.identity import WINDOW, Identity
from wbkv.core.locks import Holding
from wbkv.core.requests import Requests
from wbkv.core.transactions import Attempt
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

from kvstore.machine import sessions
from tests.unit.wbkv.model import ModelLink, drive, lost, script, told

# Interactive transactions

BYTES = Values(wbkv.codecs.BYTES)


def test_what_is_written_during_a_scan_takes_nothing_away_from_it(
    link: ModelLink, client: Client[bytes]
) -> None:
    for key in b"abcdef":
        link.store.put(bytes((key,)), b"old")
    with client.transaction() as tx:
        tx.put("b", b"before")
        seen = {}
        for entry in tx.scan(wbkv.EVERYTHING):
            seen[entry.key] = entry.value
            tx.put("e", b"during")
        assert list(seen) == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert (seen[b"b"], seen[b"e"]) == (b"before", b"old")
        assert tx.get("e") == b"during"


def interleave(
    link: ModelLink, first: Plan[Any], second: Plan[Any], between: Callable[[], None]
) -> list[Any]:
    """Two tasks: both ask, then something happens before the second is answered."""
    asked = [first.send(None), second.send(None)]
    results = []
    for plan, ask in zip((first, second), asked, strict=True):
        assert isinstance(ask, Ask)
        answer = link.ask(ask)
        with pytest.raises(StopIteration) as end:
            plan.send(answer)
        results.append(end.value.value)
        between()
    return results


def test_tasks_of_one_transaction_read_the_same(link: ModelLink, requests: Requests[bytes]) -> None:
    link.store.put(b"a", b"1")
    attempt = Attempt(requests, None)
    values = interleave(
        link, attempt.get(BYTES, "a", None), attempt.get(BYTES, "a", None), lambda: link.store.put(b"a", b"2")
    )
    assert values == [b"1", b"1"]
    attempt.put(BYTES, "b", b"")
    with pytest.raises(wbkv.Aborted):
        drive(link, attempt.commit())


def test_tasks_of_one_transaction_add_up(link: ModelLink, requests: Requests[bytes]) -> None:
    attempt = Attempt(requests, None)
    assert interleave(
        link, attempt.add("n", 1, None, None), attempt.add("n", 1, None, None), lambda: None
    ) == [1, 2]
    drive(link, attempt.commit())
    assert link.store.at(b"n")[1] == b"2"


@pytest.mark.parametrize("value", [b"", b" 1", b"1_0", b"+1", b"01", "\u0663".encode()])
def test_a_transaction_counts_as_the_store_does(link: ModelLink, client: Client[bytes], value: bytes) -> None:
    link.store.put(b"n", value)
    with pytest.raises(wbkv.OperationFailed, match="not a number"), client.transaction() as tx:
        tx.add("n")


def test_a_function_that_has_committed_is_not_run_again(link: ModelLink, client: Client[bytes]) -> None:
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


def test_a_range_is_protected_from_what_comes_after_its_scan(link: ModelLink, client: Client[bytes]) -> None:
    link.store.put(b"user/1", b"")
    tx = client.transaction()
    tx.put("count", b"%d" % len(list(tx.scan("user/"))))
    link.store.put(b"user/2", b"")
    with pytest.raises(wbkv.Aborted, match="user/"):
        tx.commit()
    with client.transaction() as tx:
        tx.put("count", b"%d" % len(list(tx.scan("user/"))))
        link.store.put(b"other", b"")
    assert link.store.at(b"count")[1] == b"2"


# What a client has seen


@pytest.mark.parametrize("operation", [wbkv.get("a"), wbkv.scan("a")])
def test_a_transaction_that_reads_has_seen_what_it_shows(
    link: ModelLink, client: Client[bytes], operation: wbkv.Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.store.put(b"a", b"")
    mod = link.store.at(b"a")[0]
    monkeypatch.setattr(link.store, "_header", lambda own: kv.Header(revision=1))  # it lags behind the reads
    client.txn().then(operation).commit()
    assert client._requests.calls.seen == mod


# Ids


def test_an_old_request_does_not_hold_up_new_ones() -> None:
    identity = Identity(SYSTEM)
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


REFUSALS = (
    ApiError.INVALID_REQUEST, ApiError.FUTURE_REVISION, ApiError.REQUEST_EXPIRED, ApiError.WINDOW_FULL,
)  # fmt: skip


@pytest.mark.parametrize("kind", REFUSALS, ids=ApiError.Kind.Name)
def test_a_refusal_says_nothing_of_an_attempt_before_it(
    link: ModelLink, client: Client[bytes], kind: ApiError.Kind
) -> None:
    link.before = script(told(kind))
    with pytest.raises(wbkv.Error) as found:
        client.put("a", b"")
    assert not isinstance(found.value, wbkv.OutcomeUnknown)
    link.before = script(lost(), told(kind))
    with pytest.raises(wbkv.OutcomeUnknown):
        client.put("a", b"")


# Locks


def test_a_renewal_that_comes_late_does_not_end_another_holding(
    link: ModelLink, requests: Requests[bytes]
) -> None:
    holding = Holding(requests, "lock", 10.0)
    assert drive(link, holding.acquire(None))
    late = holding.renew()
    asked = late.send(None)
    assert drive(link, holding.release())
    assert drive(link, holding.acquire(None))
    assert isinstance(asked, Ask)
    with pytest.raises(StopIteration) as end:
        late.send(link.ask(asked))
    assert end.value.value is False
    assert not holding.lost


def test_a_lock_taken_over_has_a_new_token(link: ModelLink, requests: Requests[bytes]) -> None:
    dead, heir = Holding(requests, "lock", 0.001), Holding(requests, "lock", 10.0)
    assert drive(link, dead.acquire(None))
    assert drive(link, heir.acquire(5.0))
    assert heir.token > dead.token

    def write_under(holding: Holding) -> bool:
        plan = requests.transact((holding.condition(),), (wbkv.put("x", b""),), (), None)
        return bool(drive(link, plan).succeeded)

    assert not write_under(dead)
    assert write_under(heir)
