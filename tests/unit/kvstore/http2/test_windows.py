"""Flow control: what a client may send, what it may be sent, and what is held meanwhile."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from kvstore.http2 import frames
from kvstore.http2.connection import RECEIVE_WINDOW, Limits
from kvstore.http2.errors import ErrorCode
from kvstore.http2.frames import WINDOW, frame
from kvstore.http2.output import CHUNK, OUTPUT_BYTES
from kvstore.http2.status import Status
from tests.unit.kvstore.http2.bytes import call, data, greeted, head, message, setting

WIDE = Limits(message_bytes=1 << 20, streams=64)


def window(stream: int, more: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, stream, struct.pack(">L", more))


def granted(found: list[Any], stream: int) -> int:
    return sum(
        struct.unpack(">L", each.payload)[0]
        for each in found
        if each.kind == frames.WINDOW_UPDATE and each.stream == stream
    )


# What the client takes


def test_no_more_is_sent_than_the_stream_takes() -> None:
    peer = greeted()
    peer.send(setting(frames.INITIAL_WINDOW_SIZE, 10), call(1, b"x" * 20))
    assert len(peer.answer().messages) == 10
    peer.send(window(1, 3))
    assert len(peer.answer().messages) == 13
    assert peer.done == 0
    peer.send(window(1, 1000))
    assert peer.answer().messages == message(b"x" * 20)
    assert (peer.answer().status, peer.done) == (Status.OK, 1)


def test_a_larger_initial_window_lets_waiting_streams_go_on() -> None:
    peer = greeted()
    peer.send(setting(frames.INITIAL_WINDOW_SIZE, 0), call(1, b"one"), call(3, b"three"))
    assert [peer.answer(stream).messages for stream in (1, 3)] == [b"", b""]
    peer.send(setting(frames.INITIAL_WINDOW_SIZE, 10))
    assert [peer.answer(stream).messages for stream in (1, 3)] == [message(b"one"), message(b"three")]


def test_a_window_may_become_negative() -> None:
    peer = greeted()
    peer.send(setting(frames.INITIAL_WINDOW_SIZE, 10), call(1, b"x" * 20))
    peer.send(setting(frames.INITIAL_WINDOW_SIZE, 0))
    peer.send(window(1, 10))
    assert len(peer.answer().messages) == 10
    peer.send(window(1, 1))
    assert len(peer.answer().messages) == 11


def test_no_more_is_sent_than_the_connection_takes_and_streams_take_turns() -> None:
    peer = greeted(WIDE)
    peer.send(setting(frames.INITIAL_WINDOW_SIZE, 1 << 20))
    peer.send(call(1, b"x" * 60_000), call(3, b"y" * 60_000))
    sent = [len(peer.answer(stream).messages) for stream in (1, 3)]
    assert sum(sent) == WINDOW
    for _ in range(4):
        peer.send(window(0, 16_384))
    both = [len(peer.answer(stream).messages) for stream in (1, 3)]
    assert sum(both) == sum(sent) or both == [60_005, 60_005]
    assert peer.answer(3).messages == message(b"y" * 60_000)


def test_streams_that_wait_for_the_connection_take_turns() -> None:
    peer = greeted(WIDE)
    peer.send(setting(frames.INITIAL_WINDOW_SIZE, 1 << 20))
    peer.send(*(call(stream, b"x" * 65_000) for stream in (1, 3, 5)))
    before = [len(peer.answer(stream).messages) for stream in (1, 3, 5)]
    peer.send(window(0, 5 * 16_384))
    sent = [len(peer.answer(stream).messages) for stream in (1, 3, 5)]
    assert sum(sent) - sum(before) == 5 * 16_384
    assert max(sent) - min(sent) <= 16_384


def test_frames_are_no_larger_than_the_client_takes() -> None:
    peer = greeted(WIDE)
    peer.send(window(0, 1 << 24), setting(frames.INITIAL_WINDOW_SIZE, 1 << 24))
    peer.send(call(1, b"x" * 20_000))
    peer.send(setting(frames.MAX_FRAME_SIZE, 1 << 20), call(3, b"x" * 200_000))
    peer.take()
    for stream, most in ((1, 16_384), (3, CHUNK)):
        sizes = [len(f.payload) for f in peer.came if f.stream == stream and f.kind == frames.DATA]
        assert max(sizes) == most


def test_one_write_is_bounded_and_the_rest_waits_where_it_is_reserved() -> None:
    peer = greeted(WIDE)
    peer.send(window(0, 1 << 24), setting(frames.INITIAL_WINDOW_SIZE, 1 << 24))
    peer.connection.receive(b"".join(call(stream, b"x" * 100_000) for stream in range(1, 41, 2)))
    peer.connection.receive(b"")
    sizes = []
    while peer.connection.output._awake:
        sizes.append(len(peer.connection.output.take()))
    assert max(sizes) < OUTPUT_BYTES + CHUNK
    assert sum(sizes) > 2_000_000


def test_nothing_but_control_is_sent_while_the_transport_is_full() -> None:
    peer = greeted(WIDE)
    peer.connection.output.paused = True
    peer.send(call(1, b"hello"))
    assert (peer.answer().messages, peer.done) == (b"", 0)
    peer.connection.output.resume()
    peer.take()
    assert (peer.answer().messages, peer.done) == (message(b"hello"), 1)


def test_a_writer_waits_for_its_client() -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(setting(frames.INITIAL_WINDOW_SIZE, 8), head(1, __path=b"/s/Chat"))
        peer.send(data(message(b"one") + message(b"two") + message(b"three"), end=False))
        await peer.settle()
        assert peer.requests == [b"", b"one", b"two"]
        assert peer.answer().messages == message(b"one")
        peer.send(window(1, 100))
        await peer.settle()
        assert peer.answer().messages == message(b"one") + message(b"two") + message(b"three")

    asyncio.run(test())


def test_a_writer_that_waits_learns_that_the_call_is_over() -> None:
    async def test() -> None:
        peer = greeted()
        begun: list[Any] = []
        peer.methods["/s/Chat"] = peer.methods["/s/Chat"]._replace(begin=lambda call, _: begun.append(call))
        peer.send(setting(frames.INITIAL_WINDOW_SIZE, 0), head(1, __path=b"/s/Chat"))
        writing = asyncio.create_task(begun[0].write(b"hello"))
        await peer.settle()
        begun[0].finish(Status.UNAVAILABLE)
        with pytest.raises(asyncio.CancelledError):
            await writing

    asyncio.run(test())


def test_a_call_that_ends_amid_a_message_is_reset() -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(setting(frames.INITIAL_WINDOW_SIZE, 8), head(1, __path=b"/s/Chat", grpc_timeout=b"1S"))
        peer.send(data(message(b"hello"), end=False))
        await peer.settle()
        assert len(peer.answer().messages) == 8
        peer.connection.expire(2.0)
        peer.take()
        assert (peer.answer().status, peer.answer().reset) == (None, ErrorCode.CANCEL)
        await peer.settle()
        assert peer.calls == 0

    asyncio.run(test())


# What the client sends


def test_data_beyond_the_window_of_a_stream() -> None:
    peer = greeted()
    peer.accepts = False
    peer.send(head(), data(message(b"x" * 99_999)[:WINDOW], end=False))
    assert peer.goodbye() is None
    peer.send(data(b"x", end=False))
    goodbye = peer.goodbye()
    assert goodbye is not None
    assert goodbye[0] is ErrorCode.FLOW_CONTROL_ERROR


def test_data_beyond_the_window_of_the_connection() -> None:
    peer = greeted(Limits(100_000, 20))
    peer.accepts = False
    most = RECEIVE_WINDOW // WINDOW + 6
    for number in range(most):
        peer.send(head(2 * number + 1), data(message(b"x" * 99_999)[:WINDOW], 2 * number + 1, end=False))
    goodbye = peer.goodbye()
    assert goodbye is not None
    assert goodbye[2] == "data beyond the connection's window"
    assert peer.connection._held == 0


def test_a_large_message_is_announced_and_then_its_sender_may_send_all_of_it() -> None:
    peer = greeted()
    peer.accepts = False
    raw = message(b"x" * 90_000)
    assert granted(peer.send(head(), data(raw[:1000], end=False)), 1) == 0
    ((served, size),) = peer.announced
    assert size == 90_000
    room = Room()
    served.accept(room)
    assert granted(peer.take(), 1) == len(raw)
    peer.send(data(raw[1000:]))
    assert peer.requests == [b"x" * 90_000]
    assert room.released == 0  # until the call is over
    peer.send(window(0, 1 << 20), window(1, 1 << 20))
    assert (peer.answer().status, room.released) == (Status.OK, 1)


def test_a_large_message_that_is_refused_is_not_received() -> None:
    peer = greeted()
    peer.accepts = False
    peer.send(head(), data(message(b"x" * 90_000)[:1000], end=False))
    peer.announced[0][0].finish(Status.RESOURCE_EXHAUSTED, "no room")
    peer.take()
    answer = peer.answer()
    assert (answer.status, answer.details, answer.reset) == (8, "no room", ErrorCode.NO_ERROR)
    assert (peer.connection._held, peer.connection.streams) == (0, {})
    room = Room()
    peer.announced[0][0].accept(room)
    assert room.released == 1
    peer.send(data(b"x" * 1000, end=False))  # what was under way
    assert peer.goodbye() is None


class Room:
    """A reservation."""

    released = 0

    def release(self) -> None:
        self.released += 1


@pytest.mark.parametrize("whole", [True, False])
def test_a_message_over_the_limit_is_refused_by_its_first_bytes(*, whole: bool) -> None:
    peer = greeted(Limits(9_000, 4))
    raw = message(b"x" * 9_001)
    peer.send(head(), data(raw) if whole else data(raw[:5], end=False))
    answer = peer.answer()
    assert answer.status is Status.RESOURCE_EXHAUSTED
    assert answer.details == "a message of 9,001 bytes exceeds the limit of 9,000 bytes"
    assert not peer.announced


def test_a_compressed_message_is_refused() -> None:
    peer = greeted()
    peer.send(head(1), data(message(b"zip", compressed=1)))
    answer = peer.answer()
    assert answer.status is Status.UNIMPLEMENTED
    assert answer.headers["grpc-accept-encoding"] == "identity"


@pytest.mark.parametrize("path", [b"/s/Echo", b"/s/Chat"])
def test_a_request_that_ends_amid_its_message(path: bytes) -> None:
    async def test() -> None:
        peer = greeted()
        peer.send(head(1, __path=path), data(message(b"hello")[:-1]))
        await peer.settle()
        assert peer.answer().status is Status.INTERNAL
        assert peer.calls == 0

    asyncio.run(test())


def test_a_unary_call_has_one_request() -> None:
    peer = greeted()
    peer.send(head(1), data(message(b"a") + message(b"b")))
    peer.send(head(3, end=True))
    peer.send(head(5), data(b"", 5))
    assert [peer.answer(stream).status for stream in (1, 3, 5)] == [Status.INTERNAL] * 3
    assert peer.requests == []


def test_a_stream_that_is_not_read_stops_its_sender() -> None:
    async def test() -> None:
        peer = greeted()
        begun: list[Any] = []
        peer.methods["/s/Chat"] = peer.methods["/s/Chat"]._replace(begin=lambda call, _: begun.append(call))
        peer.send(head(1, __path=b"/s/Chat"))
        ones = data(message(b"x" * 11) * 4000, end=False)
        assert granted(peer.send(ones), 1) == 0
        for _ in range(2100):
            assert (await begun[0].read()).message == b"x" * 11
        more = granted(peer.take(), 1)
        assert WINDOW // 2 <= more <= 2100 * 16
        peer.send(data(b"", end=True))
        for _ in range(1900):
            await begun[0].read()
        assert await begun[0].read() is None
        assert granted(peer.take(), 1) == 0

    asyncio.run(test())


def test_large_messages_of_a_stream_are_announced_one_by_one_with_their_rooms() -> None:
    async def test() -> None:
        peer = greeted()
        peer.accepts = False
        begun: list[Any] = []
        peer.methods["/s/Chat"] = peer.methods["/s/Chat"]._replace(begin=lambda call, _: begun.append(call))
        peer.send(
            head(1, __path=b"/s/Chat"), data(message(b"a") + message(b"b" * 9000) + message(b"c" * 9000))
        )
        assert (await begun[0].read()).message == b"a"
        reading = asyncio.create_task(begun[0].read())
        await peer.settle()
        assert len(peer.announced) == 1
        room = Room()
        begun[0].accept(room)
        arrived = await reading
        assert arrived == (b"b" * 9000, room)
        assert (len(peer.announced), room.released) == (2, 0)
        last = Room()
        begun[0].accept(last)
        peer.connection.lost()
        assert (room.released, last.released) == (0, 1)
        with pytest.raises(asyncio.CancelledError):
            await begun[0].read()
        with pytest.raises(asyncio.CancelledError):
            await begun[0].write(b"late")

    asyncio.run(test())


def test_the_connection_goes_on_while_streams_are_not_read() -> None:
    """A session that waits must not keep other calls of its client from being sent."""

    async def test() -> None:
        peer = greeted(Limits(1000, 500))
        begun: list[Any] = []
        peer.methods["/s/Chat"] = peer.methods["/s/Chat"]._replace(begin=lambda call, _: begun.append(call))
        for stream in range(1, 61, 2):
            peer.send(head(stream, __path=b"/s/Chat"), data(message(b"x" * 995) * 65, stream, end=False))
        assert peer.connection._held == 30 * 65_000
        assert peer.connection._receive_window >= RECEIVE_WINDOW // 2
        peer.connection.lost()
        assert peer.connection._held == 0

    asyncio.run(test())


def test_what_is_held_is_bounded() -> None:
    async def test() -> None:
        peer = greeted(Limits(1000, 100))
        peer.methods["/s/Chat"] = peer.methods["/s/Chat"]._replace(begin=lambda call, _: None)
        most = 100 * 8197 + RECEIVE_WINDOW
        sent = 0
        for stream in range(1, 201, 2):
            peer.send(head(stream, __path=b"/s/Chat"))
            while (
                peer.connection._receive_window >= 16_000
                and peer.connection.streams[stream].receive_window >= 16_000
            ):
                peer.send(data(message(b"x" * 995) * 16, stream, end=False))
                sent += 16_000
        assert most - 20_000 < sent <= most
        assert peer.connection._held == sent
        assert granted(peer.take(), 0) == 0
        for stream in (1, 3, 5, 7, 9, 11, 13, 15, 17):
            peer.send(frame(frames.RST_STREAM, 0, stream, b"\0\0\0\x08"))
        peer.take()
        assert peer.connection._receive_window > RECEIVE_WINDOW // 3

    asyncio.run(test())
