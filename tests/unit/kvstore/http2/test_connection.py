"""The rules of HTTP/2 for one connection: what is answered, and what ends a stream or the connection."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from kvstore.http2 import frames
from kvstore.http2.connection import NOT_HTTP2
from kvstore.http2.errors import ErrorCode
from kvstore.http2.frames import END_HEADERS, END_STREAM, PREFACE, frame
from kvstore.http2.headers import literal
from kvstore.http2.status import Status
from tests.unit.kvstore.http2.bytes import (
    FIELDS,
    HELLO,
    Peer,
    block,
    call,
    data,
    greeted,
    head,
    message,
    setting,
)


def test_it_greets_with_its_settings_and_a_window() -> None:
    peer = Peer()
    first, window = peer.take()
    assert first.kind == frames.SETTINGS
    settings = dict(struct.iter_unpack(">HL", first.payload))
    assert settings == {frames.MAX_CONCURRENT_STREAMS: 4, frames.MAX_HEADER_LIST_SIZE: 16_384}
    assert (window.kind, window.stream) == (frames.WINDOW_UPDATE, 0)
    (acknowledged,) = peer.send(HELLO)
    assert (acknowledged.kind, acknowledged.flags) == (frames.SETTINGS, frames.ACK)


def test_a_call_is_answered_at_once() -> None:
    peer = greeted()
    assert len(peer.send(call())) == 3
    answer = peer.answer()
    assert (answer.status, answer.messages, answer.reset) == (Status.OK, message(b"hello"), None)
    assert answer.headers[":status"] == "200"
    assert answer.headers["content-type"] == "application/grpc"
    assert (peer.calls, peer.done, peer.connection.streams) == (0, 1, {})


def test_what_comes_byte_by_byte_is_the_same() -> None:
    peer = Peer()
    for byte in HELLO + call(1) + call(3, b"x" * 300):
        peer.connection.receive(bytes((byte,)))
    peer.take()
    assert peer.requests == [b"hello", b"x" * 300]
    assert peer.answer(3).status is Status.OK


def test_all_replies_of_a_round_leave_together() -> None:
    peer = greeted()
    before = peer.wakes
    peer.connection.receive(b"".join(call(stream) for stream in (1, 3, 5, 7)))
    assert peer.wakes == before + 1
    assert len(peer.take()) == 12


def test_a_request_may_come_in_any_number_of_frames() -> None:
    raw = message(b"y" * 50)
    peer = greeted()
    peer.send(head(1), *(data(raw[i : i + 3], end=False) for i in range(0, len(raw), 3)), data(b""))
    assert peer.requests == [b"y" * 50]
    padded = bytes((4,)) + raw + b"\0" * 4
    peer.send(head(3), frame(frames.DATA, frames.PADDED | END_STREAM, 3, padded))
    assert peer.requests[1:] == [b"y" * 50]


def test_a_unary_call_begins_without_the_end_of_its_stream() -> None:
    peer = greeted()
    peer.send(head(), data(message(b"a"), end=False))
    assert peer.requests == [b"a"]
    assert peer.answer().reset is ErrorCode.NO_ERROR  # its client need not send the end


def test_headers_may_be_padded_and_have_a_priority_and_come_in_pieces() -> None:
    peer = greeted()
    whole = block()
    payload = bytes((2,)) + b"\0\0\0\0\7" + whole + b"\0\0"
    flags = frames.PADDED | frames.PRIORITIZED | END_HEADERS
    peer.send(frame(frames.HEADERS, flags, 1, payload), data(message()))
    peer.send(
        frame(frames.HEADERS, 0, 3, whole[:10]),
        frame(frames.CONTINUATION, 0, 3, whole[10:20]),
        frame(frames.CONTINUATION, END_HEADERS, 3, whole[20:]),
        data(message(), 3),
    )
    assert len(peer.requests) == 2


def test_blocks_with_references_are_read_and_remembered_only_while_the_table_stays() -> None:
    """A block of one byte means another header once something is put into the table."""
    peer = greeted()

    def indexed(name: bytes, value: bytes) -> bytes:
        return b"\x40" + bytes((len(name),)) + name + bytes((len(value),)) + value

    def begin(stream: int, headers: bytes) -> bytes:
        return frame(frames.HEADERS, END_HEADERS, stream, headers) + data(message(), stream)

    fixed = b"\x83\x86"  # POST, http
    rest = b"".join(literal(name, FIELDS[name]) for name in ("te", "content-type"))
    peer.send(begin(1, fixed + indexed(b":path", b"/s/Echo") + rest))
    newest = fixed + b"\xbe" + rest
    peer.send(begin(3, newest), begin(5, newest))
    assert len(peer.requests) == 3
    peer.send(begin(7, fixed + indexed(b":path", b"/s/None") + rest))
    peer.send(begin(9, newest))
    assert len(peer.requests) == 3
    assert [peer.answer(stream).status for stream in (5, 7, 9)] == [0, 12, 12]


def test_an_unknown_method() -> None:
    peer = greeted()
    peer.send(call(1, __path=b"/s/None"))
    answer = peer.answer()
    assert (answer.status, answer.details) == (Status.UNIMPLEMENTED, "unknown method /s/None")
    assert (peer.calls, peer.connection.streams) == (0, {})
    assert peer.goodbye() is None


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"__method": b"GET"}, "405"), ({"content_type": b"text/html"}, "415"), ({"content_type": None}, "415")],
)
def test_what_is_not_a_call_has_an_answer_of_http(changes: dict[str, Any], status: str) -> None:
    peer = greeted()
    peer.send(call(1, **changes))
    assert peer.answer().headers[":status"] == status
    assert not peer.requests


@pytest.mark.parametrize(
    "fields",
    [
        block(__method=None),
        block(__path=None),
        block(__scheme=None),
        block() + literal(":path", b"/s/Echo"),
        block() + literal(":authority", b"late"),
        block(__status=b"200"),
        block() + literal("Upper", b""),
        block(connection=b"close"),
        literal("te", b"trailers"),
    ],
)
def test_malformed_headers_end_their_stream(fields: bytes) -> None:
    peer = greeted()
    peer.send(frame(frames.HEADERS, END_HEADERS, 1, fields), data(message()))
    assert peer.answer().reset is ErrorCode.PROTOCOL_ERROR
    peer.send(call(3))
    assert peer.answer(3).status is Status.OK


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(frames.DATA, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (head(2), ErrorCode.PROTOCOL_ERROR),
        (head(0), ErrorCode.PROTOCOL_ERROR),
        (call(5) + head(3), ErrorCode.PROTOCOL_ERROR),
        (call(1) + call(1), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, END_HEADERS, 1, b"\xff" * 20), ErrorCode.COMPRESSION_ERROR),
        (frame(frames.HEADERS, END_HEADERS, 1, b"\x40\x05ab"), ErrorCode.COMPRESSION_ERROR),
        (frame(frames.HEADERS, END_HEADERS, 1, b"\x3f\xff\xff\x7f"), ErrorCode.COMPRESSION_ERROR),
        (frame(frames.HEADERS, END_HEADERS | frames.PADDED, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, END_HEADERS | frames.PADDED, 1, b"\x05ab"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, END_HEADERS | frames.PRIORITIZED, 1, b"ab"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.HEADERS, 0, 1, b"") + frame(frames.PING, 0, 0, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 0, 1, b"") + frame(frames.CONTINUATION, 0, 3), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.CONTINUATION, END_HEADERS, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PUSH_PROMISE, 0, 1, b"\0\0\0\2"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, b"1234"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.SETTINGS, frames.ACK, 0, b"123456"), ErrorCode.FRAME_SIZE_ERROR),
        (setting(frames.INITIAL_WINDOW_SIZE, 2**31), ErrorCode.FLOW_CONTROL_ERROR),
        (setting(frames.MAX_FRAME_SIZE, 100), ErrorCode.PROTOCOL_ERROR),
        (setting(frames.MAX_FRAME_SIZE, 2**24), ErrorCode.PROTOCOL_ERROR),
        (setting(frames.ENABLE_PUSH, 2), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\0"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0\0\0\0"), ErrorCode.PROTOCOL_ERROR),
        (call(1) + frame(frames.RST_STREAM, 0, 1, b"\0\0"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.PRIORITY, 0, 1, b"1234"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.GOAWAY, 0, 0, b"1234"), ErrorCode.PROTOCOL_ERROR),
        (frame(0xFF, 0, 0, b"x" * 16_385), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_what_ends_the_connection(sent: bytes, code: ErrorCode) -> None:
    peer = greeted()
    peer.send(sent)
    goodbye = peer.goodbye()
    assert goodbye is not None
    assert goodbye[0] is code
    assert peer.connection.closing
    assert not peer.connection.streams
    before = len(peer.requests)
    assert peer.send(call(99)) == []  # nothing is read any more
    assert len(peer.requests) == before


@pytest.mark.parametrize(
    "sent",
    [
        frame(0xFF, 3, 77, b"unknown"),
        frame(frames.PRIORITY, 0, 9, b"12345"),
        frame(frames.GOAWAY, 0, 0, b"\0" * 8),
        setting(0x99, 1),
        call(1) + data(b"late"),
        call(1) + frame(frames.RST_STREAM, 0, 1, b"\0\0\0\0"),
        call(1) + frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
    ],
)
def test_what_does_not_matter(sent: bytes) -> None:
    peer = greeted()
    peer.send(sent)
    peer.send(call(3))
    assert peer.answer(3).status is Status.OK
    assert peer.goodbye() is None


def test_a_ping_is_answered() -> None:
    peer = greeted()
    (answer,) = peer.send(frame(frames.PING, 0, 0, b"12345678"))
    assert (answer.kind, answer.flags, answer.payload) == (frames.PING, frames.ACK, b"12345678")
    assert peer.send(frame(frames.PING, frames.ACK, 0, b"12345678")) == []


def test_the_first_frame_is_the_settings() -> None:
    for wrong in (call(), frame(frames.SETTINGS, frames.ACK, 0), frame(frames.PING, 0, 0, b"12345678")):
        peer = Peer()
        peer.send(PREFACE + wrong)
        assert peer.goodbye() == (ErrorCode.PROTOCOL_ERROR, 0, "the first frame is not the settings")


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\0", b"PRI * HTTP/2.0\r\n\r\nXX", b"PRJ"])
def test_what_is_not_http2_is_told_so(said: bytes) -> None:
    peer = Peer()
    peer.connection.receive(said)
    assert peer.connection.output.take().endswith(NOT_HTTP2)
    assert peer.connection.closing
    head, _, body = NOT_HTTP2.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head


def test_data_behind_the_end_of_a_stream() -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(call(1, __path=b"/s/Late"), data(b"more"))
        assert peer.answer().reset is ErrorCode.STREAM_CLOSED
        assert peer.works[0].cancelled()

    asyncio.run(test())


def test_a_request_may_end_with_headers() -> None:
    async def test() -> None:
        peer = greeted()
        trailers = literal("x", b"y")
        end = frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, trailers)
        peer.send(head(1, __path=b"/s/Chat"), data(message(b"a"), end=False), end)
        await peer.settle()
        assert (peer.answer().status, peer.answer().messages) == (Status.OK, message(b"a"))
        peer.send(call(3, __path=b"/s/Late"), frame(frames.HEADERS, END_HEADERS, 3, trailers))
        assert peer.answer(3).reset is ErrorCode.PROTOCOL_ERROR

    asyncio.run(test())


def test_too_many_streams_are_refused() -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(*(call(stream, __path=b"/s/Late") for stream in (1, 3, 5, 7, 9)))
        assert peer.answer(9).reset is ErrorCode.REFUSED_STREAM
        assert len(peer.works) == peer.calls == 4
        peer.send(frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"))
        peer.send(call(11, __path=b"/s/Late"))
        assert len(peer.works) == 5

    asyncio.run(test())


def test_too_many_calls_at_the_node_are_refused() -> None:
    async def test() -> None:
        peer = greeted(calls=1)
        peer.send(call(1, __path=b"/s/Late"), call(3))
        assert peer.answer(3).status is Status.RESOURCE_EXHAUSTED

    asyncio.run(test())


def test_work_that_is_slow_to_end_counts_until_then() -> None:
    async def test() -> None:
        peer = greeted()
        stubborn = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await stubborn.wait()

        peer.methods["/s/Chat"] = peer.methods["/s/Chat"]._replace(
            begin=lambda call, raw: asyncio.get_running_loop().create_task(work())
        )
        peer.send(*(head(stream, __path=b"/s/Chat") for stream in (1, 3, 5, 7)))
        await peer.settle()
        peer.send(*(frame(frames.RST_STREAM, 0, stream, b"\0\0\0\x08") for stream in (1, 3, 5, 7)))
        await peer.settle()
        assert not peer.connection.streams
        peer.send(call(9))
        assert peer.answer(9).reset is ErrorCode.REFUSED_STREAM
        assert peer.calls == 4
        stubborn.set()
        await peer.settle()
        peer.send(call(11))
        assert peer.answer(11).status is Status.OK
        assert peer.calls == 0

    asyncio.run(test())


def test_a_cancelled_call_cancels_its_work() -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(call(1, __path=b"/s/Late"))
        peer.send(frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"))
        assert peer.works[0].cancelled()
        assert (peer.done, peer.calls) == (1, 0)
        peer.served[0].reply(b"late")
        peer.served[0].finish(Status.OK)
        assert peer.take() == []

    asyncio.run(test())


def test_a_lost_connection_cancels_all_work() -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(*(call(stream, __path=b"/s/Late") for stream in (1, 3)), head(5, __path=b"/s/Chat"))
        await peer.settle()
        peer.connection.lost()
        await asyncio.sleep(0)
        assert [work.cancelled() for work in peer.works] == [True, True]
        await peer.settle()
        assert (peer.done, peer.calls) == (3, 0)

    asyncio.run(test())


def test_calls_after_the_farewell_are_not_served() -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(call(1, __path=b"/s/Late"))
        peer.connection.go_away()
        peer.take()
        assert peer.goodbye() == (ErrorCode.NO_ERROR, 1, "")
        assert peer.send(call(3)) == []
        peer.served[0].reply(b"done")
        peer.take()
        assert peer.answer().status is Status.OK

    asyncio.run(test())


# Time


def test_a_deadline_ends_a_call() -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(call(1, __path=b"/s/Late", grpc_timeout=b"1500m"))
        assert peer.served[0].time_remaining() == 1.5
        peer.now = 1.4
        peer.connection.expire(peer.now)
        assert peer.take() == []
        peer.now = 1.6
        peer.connection.expire(peer.now)
        peer.take()
        assert peer.answer().status is Status.DEADLINE_EXCEEDED
        assert peer.works[0].cancelled()
        await asyncio.sleep(0)
        assert peer.calls == 0

    asyncio.run(test())


def test_a_request_that_never_ends_to_arrive() -> None:
    peer = greeted()
    peer.send(head(1), data(message(b"x" * 100)[:50], end=False))
    peer.connection.expire(0.0)
    peer.connection.expire(29.0)
    assert peer.connection.streams
    peer.connection.expire(31.0)
    peer.take()
    assert peer.answer().status is Status.DEADLINE_EXCEEDED
    assert not peer.connection.streams


def test_a_large_message_of_a_stream_that_never_ends_to_arrive() -> None:
    """What is reserved for it is released."""

    async def test() -> None:
        peer = greeted()
        raw = message(b"x" * 9000)
        peer.send(head(1, __path=b"/s/Chat"), data(raw[:8500], end=False))
        await peer.settle()
        peer.connection.expire(1e6)
        assert not peer.connection.streams
        await peer.settle()
        assert (peer.answer().status, peer.calls) == (Status.DEADLINE_EXCEEDED, 0)
        peer.send(head(3, __path=b"/s/Chat"), data(raw[:8500], 3, end=False))
        peer.send(data(raw[8500:] + message(b"more")[:7], 3, end=False))
        await peer.settle()
        peer.connection.expire(1e6)  # it has arrived, and a small one holds nothing
        assert list(peer.connection.streams) == [3]
        peer.connection.lost()
        await peer.settle()

    asyncio.run(test())


def test_a_call_without_a_deadline_may_take_long_once_it_has_arrived() -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(head(1, __path=b"/s/Late"))
        peer.connection.expire(0.0)
        peer.send(data(message()))
        peer.connection.expire(1e6)
        assert peer.take() == []

    asyncio.run(test())
