"""Bad input, vanishing clients, deadlines: clear errors, nothing left behind, no stack traces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import session_pb2 as session
from wbkv_proto.v1.error_pb2 import Error

from kvstore.machine import Limits
from kvstore.machine.request import INT64_MAX, REVISION_MAX
from kvstore.store import errors
from tests.unit.kvstore.api.harness import Served, every, fails, run, until
from tests.unit.kvstore.api.scenarios import get, put

SMALL = Limits(key_bytes=8, value_bytes=1024, transaction_bytes=4096, operations=4, scan_bytes=2048)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Whatever clients do, the log has no stack trace, and none is printed."""
    with caplog.at_level(logging.DEBUG, "kvstore"):
        yield
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info] == []
    assert "Traceback" not in capfd.readouterr().err


async def settled(served: Served, before: int) -> None:
    """Nothing is under way any more, and no task is left."""
    await until(lambda: not served.service.under_way and not served.service.open)
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def warm(served: Served) -> int:
    """How many tasks a server and a client have that do nothing."""
    await served.kv.Get(kv.GetRequest(key=b"k"))
    await asyncio.sleep(0.05)
    return len(asyncio.all_tasks())


# Limits


def test_limits_are_named() -> None:
    async def test(served: Served) -> None:
        expected = [
            (served.kv.Put(kv.PutRequest(key=b"k" * 9)), "key_bytes", 8),
            (served.kv.Get(kv.GetRequest(key=b"k" * 9)), "key_bytes", 8),
            (served.kv.Put(kv.PutRequest(key=b"k", value=b"v" * 1025)), "value_bytes", 1024),
            (served.kv.Txn(kv.TxnRequest(then=[get(b"k")] * 5)), "operations", 4),
            (served.kv.Txn(kv.TxnRequest(then=[put(b"12345", b"v" * 1024)] * 4)), "transaction_bytes", 4096),
            (every(served.kv.Scan(kv.ScanRequest(range=kv.Range(prefix=b"k" * 9)))), "key_bytes", 8),
        ]
        for call, name, value in expected:
            code, error = await fails(call)
            assert (code, error.kind) == (grpc.StatusCode.INVALID_ARGUMENT, Error.LIMIT_EXCEEDED)
            assert (error.limit.name, error.limit.value) == (name, value)

    run(test, SMALL)


def test_the_largest_transaction_passes_and_a_larger_message_does_not() -> None:
    async def test(served: Served) -> None:
        largest = kv.TxnRequest(then=[put(b"%d" % i, b"v" * 1023) for i in range(4)])
        assert (await served.kv.Txn(largest)).succeeded
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.kv.Put(kv.PutRequest(key=b"k", value=b"v" * (80 << 10)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not served.service.under_way

    run(test, SMALL)


def test_no_transaction_within_the_limits_is_larger_than_a_message() -> None:
    async def test(served: Served) -> None:
        limits = served.service.limits
        bound = limits.transaction_bytes // limits.operations // 2
        interval = kv.Interval(start=b"a" * bound, end=b"b" * bound)
        scan = kv.Scan(
            range=kv.Range(interval=interval),
            limit=INT64_MAX,
            limit_bytes=limits.scan_bytes,
            reverse=True,
            shape=kv.COUNT,
        )
        largest = kv.TxnRequest(
            then=[kv.Operation(scan=scan)] * limits.operations,
            id=kv.RequestId(client=INT64_MAX, sequence=INT64_MAX, ack_below=INT64_MAX, deadline=REVISION_MAX),
            min_revision=1,
        )
        assert len(largest.SerializeToString()) > limits.transaction_bytes + 64 * 1024
        assert (await served.kv.Txn(largest)).succeeded

    run(test)


def test_results_that_are_too_large_are_told_as_such() -> None:
    async def test(served: Served) -> None:
        await served.kv.Put(kv.PutRequest(key=b"k", value=b"v" * 900))
        code, error = await fails(served.kv.Txn(kv.TxnRequest(then=[get(b"k")] * 2)))
        assert (code, error.kind) == (grpc.StatusCode.RESOURCE_EXHAUSTED, Error.RESPONSE_TOO_LARGE)
        assert (error.limit.name, error.limit.value, error.revision) == ("response_bytes", 1500, 0)
        then = [get(b"k"), get(b"k"), put(b"done", b"")]
        code, error = await fails(served.kv.Txn(kv.TxnRequest(then=then)))
        assert error.kind == Error.RESPONSE_TOO_LARGE
        done = await served.kv.Get(kv.GetRequest(key=b"done"))
        assert done.entry.mod_revision == error.revision

    run(test, response_bytes=1500)


# Bytes that are no messages


GARBAGE = b"\xff" * 20


def raw(served: Served) -> Any:
    """The channel, for bytes instead of messages."""
    return served.channel


@pytest.mark.parametrize(
    "method",
    [
        *(f"wbkv.v1.KV/{name}" for name in ("Txn", "Get", "Put", "Delete", "Snapshot", "Compact")),
        *("wbkv.v1.Cluster/Topology", "wbkv.v1.Cluster/Status", "grpc.health.v1.Health/Check"),
    ],
)
def test_garbage_in_a_call(method: str) -> None:
    async def test(served: Served) -> None:
        code, error = await fails(raw(served).unary_unary(f"/{method}")(GARBAGE))
        assert (code, error.kind) == (grpc.StatusCode.INVALID_ARGUMENT, Error.INVALID_REQUEST)
        assert "malformed request: not a valid " in error.message

    run(test)


@pytest.mark.parametrize("method", ["wbkv.v1.KV/Scan", "wbkv.v1.KV/Watch", "grpc.health.v1.Health/Watch"])
def test_garbage_before_a_stream(method: str) -> None:
    async def test(served: Served) -> None:
        code, error = await fails(every(raw(served).unary_stream(f"/{method}")(GARBAGE)))
        assert (code, error.kind) == (grpc.StatusCode.INVALID_ARGUMENT, Error.INVALID_REQUEST)

    run(test)


REFLECTION = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("method", ["wbkv.v1.Session/Open", REFLECTION])
def test_garbage_in_a_stream(method: str) -> None:
    async def test(served: Served) -> None:
        before = await warm(served)
        stream = raw(served).stream_stream(f"/{method}")()
        await stream.write(GARBAGE)
        code, error = await fails(every(stream))
        assert (code, error.kind) == (grpc.StatusCode.INVALID_ARGUMENT, Error.INVALID_REQUEST)
        await settled(served, before)

    run(test)


def test_a_method_that_there_is_not() -> None:
    async def test(served: Served) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(served).unary_unary("/wbkv.v1.KV/Drop")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(test)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000,
        bytes(range(256)) * 100,
        b"PRI * HTTP/2.0\r\n\r\n",
    ],
    ids=["http1", "http2", "bytes", "half"],
)
def test_garbage_on_the_port(said: bytes) -> None:
    async def test(served: Served) -> None:
        before = await warm(served)
        host, port = served.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        try:
            await writer.drain()
            await asyncio.wait_for(reader.read(100), 0.3)
        except (ConnectionError, TimeoutError):
            pass
        writer.close()
        await served.kv.Put(kv.PutRequest(key=b"k", value=b"still there"))
        await settled(served, before)

    run(test)


# Deadlines


def test_a_deadline_reaches_the_service() -> None:
    async def test(served: Served) -> None:
        await served.kv.Get(kv.GetRequest(key=b"k"))
        await served.kv.Get(kv.GetRequest(key=b"k"), timeout=1000)
        assert served.service.timeouts[0] == 10
        assert 500 < served.service.timeouts[1] < 1500
        stream = served.session.Open()
        await stream.read()
        calls = [
            session.Call(number=1, get=kv.GetRequest(key=b"k")),
            session.Call(number=2, get=kv.GetRequest(key=b"k"), timeout_ms=1500),
        ]
        await stream.write(session.SessionRequest(calls=calls))
        await stream.done_writing()
        await every(stream)
        assert served.service.timeouts[2:] == [10, 1.5]

    run(test)


def test_without_a_deadline_there_is_a_default() -> None:
    async def test(served: Served) -> None:
        served.service.held = True
        code, error = await fails(served.kv.Put(kv.PutRequest(key=b"k")))
        assert (code, error.kind) == (grpc.StatusCode.DEADLINE_EXCEEDED, Error.DEADLINE_PASSED)
        assert (error.retryable, error.same_id) == (True, True)
        assert not served.service.under_way

    run(test, default_timeout_s=0.05)


def test_a_call_whose_deadline_passes_leaves_nothing() -> None:
    async def test(served: Served) -> None:
        before = await warm(served)
        served.service.held = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.kv.Put(kv.PutRequest(key=b"k"), timeout=0.05)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await settled(served, before)

    run(test)


# Clients that go away

PATIENT_S = 1000.0
"""Calls do not end by themselves while a test runs."""


def test_cancelled_calls_leave_nothing() -> None:
    async def test(served: Served) -> None:
        before = await warm(served)
        served.service.held = True
        calls = [served.kv.Put(kv.PutRequest(key=b"k")) for _ in range(20)]
        calls += [served.kv.Get(kv.GetRequest(key=b"k")) for _ in range(20)]
        await until(lambda: len(served.service.under_way) == 40)
        for call in calls:
            call.cancel()
        del calls, call
        await settled(served, before)
        served.service.let_go()
        served.service.held = False
        assert not (await served.kv.Get(kv.GetRequest(key=b"k"))).HasField("entry")

    run(test, default_timeout_s=PATIENT_S)


def test_streams_that_are_not_read_to_their_end_leave_nothing() -> None:
    async def test(served: Served) -> None:
        for i in range(20):
            await served.kv.Put(kv.PutRequest(key=b"%d" % i, value=b"v" * 1000))
        before = await warm(served)
        scan = served.kv.Scan(kv.ScanRequest(range=kv.Range(prefix=b""), page_bytes=1))
        await scan.read()
        watch = served.kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=b"")]))
        await watch.read()
        await until(lambda: served.service.open == 2 or served.service.open == 1)
        scan.cancel()
        watch.cancel()
        del scan, watch
        await settled(served, before)

    run(test)


def test_a_connection_that_breaks_leaves_nothing() -> None:
    async def test(served: Served) -> None:
        before = await warm(served)
        other = type(served)(served.service, served.api, served.address)
        served.service.held = True
        stream = other.session.Open()
        await stream.read()
        watch = other.kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=b"")], after=1, progress_ms=50))
        await watch.read()
        calls = [session.Call(number=i, put=kv.PutRequest(key=b"k")) for i in range(100)]
        await stream.write(session.SessionRequest(calls=calls))
        await until(lambda: len(served.service.under_way) == 100)
        await other.close()
        del stream, watch, other
        await settled(served, before)

    run(test, session_calls=100, default_timeout_s=PATIENT_S)


def test_a_stopped_server_ends_its_streams() -> None:
    async def test(served: Served) -> None:
        await served.kv.Put(kv.PutRequest(key=b"k"))
        watch = served.kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=b"")], after=1))
        await watch.read()
        served.service.held = True
        call = asyncio.ensure_future(_code(served.kv.Put(kv.PutRequest(key=b"k"))))
        await until(lambda: len(served.service.under_way) == 1)
        await served.api.stop()
        assert await call in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert await _code(every(watch)) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert not served.service.under_way

    run(test)


def test_nothing_begins_while_a_server_stops() -> None:
    async def test(served: Served) -> None:
        served.api._calls.stopping = True
        served.service.held = True
        stream = served.session.Open()
        watch = served.kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=b"")]))
        for call in (served.kv.Put(kv.PutRequest(key=b"k")), every(stream), every(watch)):
            code, error = await fails(call)
            assert (code, error.kind) == (grpc.StatusCode.UNAVAILABLE, Error.UNAVAILABLE)

    run(test)


async def _code(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


# Errors of the node


@pytest.mark.parametrize(
    ("error", "code", "kind", "retryable", "same_id"),
    [
        (errors.Unavailable("no quorum"), "UNAVAILABLE", "UNAVAILABLE", True, True),
        (errors.Overloaded("too much"), "RESOURCE_EXHAUSTED", "OVERLOADED", True, False),
        (errors.OutcomeUnknown("lost"), "UNKNOWN", "OUTCOME_UNKNOWN", True, True),
        (errors.WindowFull("full"), "RESOURCE_EXHAUSTED", "WINDOW_FULL", False, False),
    ],
)
def test_a_node_that_cannot(error: Exception, code: str, kind: str, retryable: int, same_id: int) -> None:
    async def test(served: Served) -> None:
        served.service.failure = error
        found = await fails(served.kv.Put(kv.PutRequest(key=b"k")))
        stream = served.session.Open()
        await stream.write(session.SessionRequest(calls=[session.Call(put=kv.PutRequest(key=b"k"))]))
        await stream.done_writing()
        _, answer = await every(stream)
        assert answer.replies[0].error == found[1]
        assert (found[0].name, Error.Kind.Name(found[1].kind)) == (code, kind)
        assert (found[1].retryable, found[1].same_id) == (retryable, same_id)
        assert [leader.node for leader in found[1].leaders] == (["n1"] if kind == "UNAVAILABLE" else [])

    run(test)


def test_a_message_is_cut_to_what_metadata_takes() -> None:
    async def test(served: Served) -> None:
        served.service.failure = errors.Unavailable("x" * 100_000)
        _, error = await fails(served.kv.Put(kv.PutRequest(key=b"k")))
        assert len(error.message) < 1000

    run(test)
