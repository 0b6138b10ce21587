"""What a node holds of its clients' requests is bounded, and nothing of them is left when they fail."""

from __future__ import annotations

import asyncio
import gc
import types
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import session_pb2 as session

from kvstore.api.bounds import REPLY_BYTES, Bounds
from kvstore.api.intake import COPIES, SMALL, WAITING, Intake
from kvstore.machine import Limits
from kvstore.store.errors import Overloaded
from tests.unit.kvstore.api.harness import Client, Served, every, fails, run, until

TOTAL = 1 << 20
LARGE = TOTAL // COPIES // 4
"""So large that one connection may have two under way."""


def large(key: bytes = b"k") -> kv.PutRequest:
    return kv.PutRequest(key=key, value=b"v" * (LARGE - 100))


# The intake itself


def test_small_requests_are_not_counted() -> None:
    async def test() -> None:
        intake = Intake(TOTAL)
        assert await intake.admit("a", SMALL, 1.0) is None
        assert intake.used == 0

    asyncio.run(test())


def test_large_requests_count_until_they_are_released_and_few_wait() -> None:
    async def test() -> None:
        intake = Intake(TOTAL)
        first = await intake.admit("a", LARGE, 1.0)
        await intake.admit("a", LARGE, 1.0)
        assert first is not None
        assert intake.used == 2 * COPIES * LARGE
        waiting = [asyncio.ensure_future(intake.admit("a", LARGE, 10.0)) for _ in range(10)]
        await asyncio.sleep(0)
        assert intake.waiting == TOTAL // WAITING
        refused = [each for each in waiting if each.done()]
        assert len(refused) == 10 - TOTAL // WAITING // LARGE
        for each in refused:
            with pytest.raises(Overloaded, match=r"65,536 bytes.* 524,288 bytes.*\(request_budget_bytes\)"):
                each.result()
        assert await intake.admit("b", LARGE, 1.0) is not None  # others have room
        first.release()
        await waiting[0]
        for each in waiting[1:]:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert intake.waiting == 0

    asyncio.run(test())


def test_a_large_request_that_waits_in_vain_names_the_limit() -> None:
    async def test() -> None:
        intake = Intake(TOTAL)
        await intake.admit("a", 2 * LARGE, 1.0)
        with pytest.raises(Overloaded, match="request_budget_bytes"):
            await intake.admit("a", LARGE, 0.01)
        assert intake.waiting == 0

    asyncio.run(test())


# The API


def test_large_unary_requests_under_way_are_bounded_and_small_ones_go_on() -> None:
    async def test(served: Served) -> None:
        served.service.held = True
        calls = [asyncio.ensure_future(served.kv.Put(large())) for _ in range(50)]
        await until(lambda: sum(each.done() for each in calls) >= 40)
        intake = served.api.intake
        assert intake.used <= TOTAL
        refused = [each for each in calls if each.done()]
        code, error = await fails(refused[0])
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.retryable
        assert "request_budget_bytes" in error.message
        served.service.held = False
        await served.kv.Put(kv.PutRequest(key=b"small", value=b"v"))
        other = Client(served.address)
        await other.kv.Put(large())
        await other.close()
        served.service.let_go()
        await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: intake.used == 0)

    run(test, request_budget_bytes=TOTAL)


def test_a_large_message_of_a_session_counts_until_its_calls_are_over() -> None:
    async def test(served: Served) -> None:
        intake = served.api.intake
        stream = served.session.Open()
        await stream.read()
        served.service.held = True
        calls = [session.Call(number=number, put=large()) for number in (1, 2)]
        await stream.write(session.SessionRequest(calls=calls))
        await until(lambda: len(served.service.under_way) == 2)
        assert intake.used >= 2 * COPIES * (LARGE - 100)
        served.service.held = False
        served.service.let_go()
        await stream.read()
        await until(lambda: intake.used == 0)
        await stream.write(session.SessionRequest(calls=[session.Call(number=3)] * 20_000))
        with pytest.raises(grpc.aio.AioRpcError, match="session_calls"):
            await every(stream)
        await until(lambda: intake.used == 0)

    run(test, request_budget_bytes=TOTAL)


def test_the_request_of_a_watch_counts_while_the_watch_is_open() -> None:
    async def test(served: Served) -> None:
        intake = served.api.intake
        ranges = [kv.Range(prefix=b"%03d" % number + b"k" * 200) for number in range(100)]
        asked = kv.WatchRequest(ranges=ranges)
        stream = served.kv.Watch(asked)
        await stream.read()
        assert intake.used == COPIES * asked.ByteSize()
        stream.cancel()
        await until(lambda: intake.used == 0)

    run(test, request_budget_bytes=TOTAL)


def test_an_absurd_number_of_operations_is_not_looked_at() -> None:
    class Operations(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("its operations are looked at")

    limits = Limits(operations=10)
    message = types.SimpleNamespace(
        then=Operations([1] * 11), otherwise=Operations(), conditions=Operations()
    )
    assert Bounds(limits, 1, 1 << 20).of("txn", message) == REPLY_BYTES


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("/wbkv.v1.KV/Txn", b"\xff" * LARGE),
        ("/wbkv.v1.KV/Txn", b"\x12\x00" * LARGE),
        ("/wbkv.v1.KV/Put", large(b"").SerializeToString()),
        ("/wbkv.v1.KV/Watch", b"\x0a\x00" * LARGE),
        ("/wbkv.v1.Session/Open", b"\x0a\x00" * LARGE),
    ],
    ids=["malformed", "wide", "no key", "watch", "session"],
)
def test_no_garbage_holds_a_rejected_request(method: str, request_: bytes) -> None:
    """Cycles of references are collected seldom: megabytes must not hang on each."""

    async def test(served: Served) -> None:
        call: Any = served.channel.stream_stream(method)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                stream = call()
                await stream.write(request_)
                with pytest.raises(grpc.aio.AioRpcError):
                    await every(stream)
            del stream
            await asyncio.sleep(0.05)
            gc.collect()
            frames = [each for each in gc.garbage if isinstance(each, types.FrameType)]
            held = [value for frame in frames for value in frame.f_locals.values()]
            assert not [value for value in gc.garbage + held if is_large(value)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    run(test)


def is_large(value: object) -> bool:
    """Whether it is a part of a request that is worth counting."""
    if isinstance(value, Message):
        return value.ByteSize() >= LARGE // 2
    return isinstance(value, bytes) and len(value) >= LARGE // 2
