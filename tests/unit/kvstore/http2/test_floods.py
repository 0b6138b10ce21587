"""Clients that mean harm: what they can make grow has a bound, and they are disconnected."""

from __future__ import annotations

import asyncio

import pytest

from kvstore.http2 import frames
from kvstore.http2.connection import CONTINUATIONS
from kvstore.http2.errors import ErrorCode
from kvstore.http2.frames import END_HEADERS, frame
from kvstore.http2.headers import FEW, LIST_BYTES, REMEMBERED, SHORT, literal
from kvstore.http2.patience import BURST, PER_S
from kvstore.http2.status import Status
from tests.unit.kvstore.http2.bytes import Peer, block, call, data, greeted, head, message, setting

CALM = ErrorCode.ENHANCE_YOUR_CALM
PING = frame(frames.PING, 0, 0, b"12345678")
RESET = b"\0\0\0\x08"


def calmed(peer: Peer) -> bool:
    goodbye = peer.goodbye()
    return goodbye is not None and goodbye[0] is CALM


def rapid_reset(stream: int) -> bytes:
    return call(stream, __path=b"/s/Late") + frame(frames.RST_STREAM, 0, stream, RESET)


@pytest.mark.parametrize(
    ("what", "most"),
    [
        (lambda n: PING, BURST),
        (lambda n: frame(frames.PING, frames.ACK, 0, b"12345678"), BURST),
        (lambda n: setting(frames.INITIAL_WINDOW_SIZE, n), BURST // 10),
        (lambda n: frame(frames.SETTINGS, frames.ACK, 0), BURST),
        (lambda n: frame(frames.PRIORITY, 0, 1, b"12345"), BURST),
        (lambda n: frame(0xFF, 0, 0, b""), BURST),
        (lambda n: frame(frames.GOAWAY, 0, 0, b"\0" * 8), BURST),
        (lambda n: frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"), BURST),
        (lambda n: rapid_reset(2 * n + 1), BURST),
        (lambda n: head(2 * n + 1, __path=b"/none", end=True), BURST),
        (lambda n: head(2 * n + 1, __path=None, end=True), BURST),
        (lambda n: (head() if not n else b"") + data(b"", end=False), BURST),
        (lambda n: (call() if not n else b"") + data(b"late", end=False), BURST),
        (lambda n: (call() if not n else b"") + frame(frames.RST_STREAM, 0, 1, RESET), BURST),
    ],
    ids=(
        *("ping", "pong", "settings", "acks", "priority", "unknown", "goaway", "window", "reset", "path"),
        *("malformed", "empty", "closed", "resets"),
    ),
)
def test_floods_of_frames_that_serve_no_call(what: object, most: int) -> None:
    async def test() -> None:
        assert callable(what)
        peer = greeted()
        for n in range(most - 20):
            peer.send(what(n))
        assert peer.goodbye() is None
        for n in range(most - 20, most + 2):
            peer.send(what(n))
        assert calmed(peer)
        assert all(work.cancelled() for work in peer.works)

    asyncio.run(test())


def test_patience_comes_back_with_time() -> None:
    peer = greeted()
    for _ in range(3):
        for _ in range(BURST - 100):
            peer.connection.receive(PING)
        peer.take()
        peer.now += BURST / PER_S
    assert peer.goodbye() is None


def test_patience_is_not_saved_up() -> None:
    peer = greeted()
    for _ in range(BURST + 1):
        peer.now += 1.0
        peer.connection.receive(PING)
    peer.take()
    assert peer.goodbye() is None
    for _ in range(2 * BURST + 2):
        peer.connection.receive(PING)
    peer.take()
    assert calmed(peer)


def test_patience_comes_back_with_work() -> None:
    """Clients extend windows, and ping, as they receive."""
    peer = greeted()
    update = frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\x0a")
    for number in range(2 * BURST):
        peer.connection.receive(call(2 * number + 1, b"") + update + PING)
        if number % 100 == 0:
            peer.take()
    assert peer.goodbye() is None


def test_cancelling_every_call_once_is_no_flood() -> None:
    async def test() -> None:
        peer = greeted()
        for number in range(4096):
            peer.send(rapid_reset(2 * number + 1))
        assert peer.goodbye() is None

    asyncio.run(test())


def test_continuations_without_end() -> None:
    peer = greeted()
    peer.send(frame(frames.HEADERS, 0, 1, b""))
    for _ in range(CONTINUATIONS):
        peer.send(frame(frames.CONTINUATION, 0, 1, b""))
    assert peer.goodbye() is None
    peer.send(frame(frames.CONTINUATION, 0, 1, b""))
    assert calmed(peer)


def test_a_header_block_that_is_too_long() -> None:
    peer = greeted()
    peer.send(frame(frames.HEADERS, 0, 1, block()))
    peer.send(frame(frames.CONTINUATION, 0, 1, b"\0" * 16_384))
    assert calmed(peer)
    assert peer.connection._block is None or len(peer.connection._block[2]) <= 2 * LIST_BYTES


def test_a_header_list_that_is_small_on_the_wire_and_large_in_memory() -> None:
    peer = greeted()
    large = b"\x40\x01a" + b"\x7f\x81\x0f" + b"v" * 2048  # put into the table once ...
    peer.send(frame(frames.HEADERS, END_HEADERS, 1, large + b"\xbe" * 500))  # ... and named 500 times
    assert calmed(peer)


def test_many_headers() -> None:
    peer = greeted()
    peer.send(frame(frames.HEADERS, END_HEADERS, 1, literal("a", b"") * 1000))
    assert calmed(peer)


def test_few_blocks_are_remembered() -> None:
    peer = greeted()
    for number in range(100):
        peer.send(call(2 * number + 1, x=b"%d" % number))
    assert len(peer.connection._headers._remembered) == REMEMBERED


def test_blocks_that_are_long_or_mean_much_are_not_remembered() -> None:
    peer = greeted()
    peer.send(call(1, x=b"v" * SHORT))
    large = b"\x40\x01a" + b"\x7f\x81\x07" + b"v" * 1024
    peer.send(frame(frames.HEADERS, END_HEADERS, 3, block() + large) + data(message(), 3))
    peer.send(frame(frames.HEADERS, END_HEADERS, 5, block() + b"\xbe") + data(message(), 5))
    many = b"".join(literal("a", b"") for _ in range(FEW))
    peer.send(frame(frames.HEADERS, END_HEADERS, 7, block() + many) + data(message(), 7))
    assert len(peer.requests) == 4
    assert not peer.connection._headers._remembered
    peer.send(call(9))
    assert len(peer.connection._headers._remembered) == 1


def test_a_trickle_of_a_request_takes_no_more_than_has_arrived() -> None:
    peer = greeted()
    peer.send(head())
    raw = message(b"x" * 90_000)
    for i in range(2_000):
        peer.connection.receive(data(raw[i : i + 1], end=False))
    incoming = peer.connection.streams[1]._incoming
    assert incoming is not None
    assert len(incoming._buffer) == 2_000


def test_clients_that_never_read_hold_what_was_reserved() -> None:
    peer = greeted()
    peer.send(setting(frames.INITIAL_WINDOW_SIZE, 0))
    for stream in range(1, 200, 2):
        peer.send(call(stream, b"x" * 1000))
    assert len(peer.connection.streams) == 4  # and no more than these
    assert peer.done == 0
    assert not [each for each in peer.came if each.kind == frames.DATA]


def test_a_client_that_is_disconnected_is_told_why() -> None:
    peer = greeted()
    peer.send(call(7), head(3))
    assert peer.goodbye() == (ErrorCode.PROTOCOL_ERROR, 7, "the number 3 of a stream is not new")
    assert peer.answer(7).status is Status.OK
