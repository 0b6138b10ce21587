"""A session's stream: no task for a call, replies together, and no more under way than allowed."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import session_pb2 as session
from wbkv_proto.v1.error_pb2 import Error
from wbkv_proto.varint import varint

from kvstore.api.session import MESSAGE_BYTES, SLICE
from tests.unit.kvstore.api.harness import Served, every, fails, run, until


def puts(numbers: range, value: bytes = b"") -> session.SessionRequest:
    return session.SessionRequest(
        calls=[session.Call(number=i, put=kv.PutRequest(key=b"%d" % i, value=value)) for i in numbers]
    )


async def opened(served: Served) -> Any:
    stream = served.session.Open()
    await stream.read()
    return stream


async def rest(stream: Any) -> list[list[int]]:
    """The numbers of the replies, message by message."""
    return [[reply.number for reply in response.replies] for response in await every(stream)]


def test_a_call_needs_no_task_and_replies_come_together() -> None:
    async def test(served: Served) -> None:
        stream = await opened(served)
        created: list[Any] = []

        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
            created.append(coro)
            return asyncio.Task(coro, loop=loop, **more)

        await stream.write(puts(range(64, 65)))
        await stream.read()  # so the stream's own task exists by now
        served.service.held = True
        await stream.write(puts(range(64)))
        asyncio.get_running_loop().set_task_factory(factory)
        await until(lambda: len(served.service.under_way) == 64)
        served.service.let_go()
        response = await stream.read()
        assert [reply.number for reply in response.replies] == list(range(64))
        assert not [coro for coro in created if "kvstore" in str(coro.cr_code.co_filename)]
        assert len(created) < 8
        asyncio.get_running_loop().set_task_factory(None)
        await stream.done_writing()
        assert await rest(stream) == []

    run(test)


def test_replies_come_as_they_are_ready() -> None:
    async def test(served: Served) -> None:
        stream = await opened(served)
        served.service.held = True
        await stream.write(puts(range(1)))
        await until(lambda: len(served.service.under_way) == 1)
        served.service.held = False
        await stream.write(puts(range(1, 3)))
        assert [reply.number for reply in (await stream.read()).replies] == [1, 2]
        served.service.let_go()
        await stream.done_writing()
        assert await rest(stream) == [[0]]

    run(test)


def test_a_message_of_many_calls_lets_others_go_on() -> None:
    async def test(served: Served) -> None:
        stream = await opened(served)
        served.service.held = True
        # The calls may begin before the one who wrote them is told so: look from the start.
        writing = asyncio.ensure_future(stream.write(puts(range(1000))))
        begun = [0]
        while begun[-1] < 1000:
            await asyncio.sleep(0)
            begun.append(len(served.service.under_way))
        await writing
        assert max(b - a for a, b in itertools.pairwise(begun)) <= 2 * SLICE

    run(test)


def test_no_more_is_read_than_may_be_under_way() -> None:
    async def test(served: Served) -> None:
        stream = await opened(served)
        served.service.held = True
        for i in range(20):
            await stream.write(puts(range(i * 4, i * 4 + 4)))
        await until(lambda: len(served.service.under_way) == 12)
        await asyncio.sleep(0.1)
        assert len(served.service.under_way) == 12
        served.service.held = False
        served.service.let_go()
        await stream.done_writing()
        assert sorted(number for numbers in await rest(stream) for number in numbers) == list(range(80))

    run(test, session_calls=10)


def test_replies_that_nobody_takes_count_as_under_way() -> None:
    async def test(served: Served) -> None:
        await served.kv.Put(kv.PutRequest(key=b"large", value=b"v" * (1 << 20)))
        stream = await opened(served)
        begun = len(served.service.timeouts)

        async def write() -> None:
            for i in range(64):
                call = session.Call(number=i, get=kv.GetRequest(key=b"large"))
                await stream.write(session.SessionRequest(calls=[call]))
            await stream.done_writing()

        writing = asyncio.create_task(write())
        await until(lambda: len(served.service.timeouts) - begun >= 4)
        await asyncio.sleep(0.2)
        assert len(served.service.timeouts) - begun < 32
        assert sorted(number for numbers in await rest(stream) for number in numbers) == list(range(64))
        await writing

    run(test, session_bytes=4 << 20)


def test_large_replies_are_sent_in_several_messages() -> None:
    async def test(served: Served) -> None:
        await served.kv.Put(kv.PutRequest(key=b"k", value=b"v" * (MESSAGE_BYTES // 3)))
        stream = await opened(served)
        served.service.held = True
        calls = [session.Call(number=i, get=kv.GetRequest(key=b"k")) for i in range(7)]
        await stream.write(session.SessionRequest(calls=calls))
        await until(lambda: len(served.service.under_way) == 7)
        served.service.let_go()
        await stream.done_writing()
        assert await rest(stream) == [[0, 1], [2, 3], [4, 5], [6]]

    run(test)


def test_a_number_may_be_used_again_once_its_reply_has_come() -> None:
    async def test(served: Served) -> None:
        stream = await opened(served)
        for _ in range(50):
            await stream.write(puts(range(1)))
            assert [reply.number for reply in (await stream.read()).replies] == [0]

    run(test)


def test_a_number_used_twice_at_once_ends_the_stream() -> None:
    async def test(served: Served) -> None:
        stream = await opened(served)
        served.service.held = True
        await stream.write(puts(range(5)))
        await stream.write(puts(range(4, 5)))
        code, error = await fails(every(stream))
        assert (code, error.kind) == (grpc.StatusCode.INVALID_ARGUMENT, Error.INVALID_REQUEST)
        assert "two calls under way have the number 4" in error.message
        await until(lambda: not served.service.under_way)

    run(test)


def test_too_many_calls_in_a_message_end_the_stream() -> None:
    async def test(served: Served) -> None:
        stream = await opened(served)
        await stream.write(puts(range(11)))
        _, error = await fails(every(stream))
        assert (error.kind, error.limit.name, error.limit.value) == (
            *(Error.LIMIT_EXCEEDED, "session_calls"),
            10,
        )
        assert not served.service.timeouts

    run(test, session_calls=10)


def test_a_call_that_the_service_cancels_is_told() -> None:
    async def test(served: Served) -> None:
        stream = await opened(served)
        served.service.held = True
        await stream.write(puts(range(1)))
        await until(lambda: len(served.service.under_way) == 1)
        for future in list(served.service.under_way):
            future.cancel()
        (reply,) = (await stream.read()).replies
        assert reply.error.kind == Error.UNAVAILABLE

    run(test)


def test_lengths_are_written_as_protobuf_does() -> None:
    for length in (0, 1, 127, 128, 300, 16383, 16384, 1 << 20):
        reply = session.Reply(error={"message": "x" * length})
        raw = reply.SerializeToString()
        whole = session.SessionResponse(replies=[reply]).SerializeToString()
        assert whole == b"\x12" + varint(len(raw)) + raw
