"""Whatever a client sends: nothing is raised, what is held is bounded, and others are served."""

from __future__ import annotations

import asyncio
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.http2 import frames
from kvstore.http2.connection import RECEIVE_WINDOW
from kvstore.http2.frames import FRAME_BYTES, PREFACE, frame
from kvstore.http2.output import CHUNK, OUTPUT_BYTES
from kvstore.http2.status import Status
from tests.campaigns import CAMPAIGN
from tests.unit.kvstore.http2.bytes import (
    HELLO,
    LIMITS,
    Peer,
    block,
    call,
    data,
    greeted,
    head,
    message,
    setting,
)

STREAMS = st.integers(0, 12)
PATHS = st.sampled_from((b"/s/Echo", b"/s/Late", b"/s/Chat", b"/none"))
PAYLOADS = st.binary(max_size=40) | st.integers(0, 20_000).map(bytes)

VALID = st.one_of(
    st.builds(lambda stream, path: head(2 * stream + 1, __path=path), STREAMS, PATHS),
    st.builds(lambda stream, path, raw: call(2 * stream + 1, raw, __path=path), STREAMS, PATHS, PAYLOADS),
    st.builds(lambda stream, raw, end: data(message(raw), stream, end=end), STREAMS, PAYLOADS, st.booleans()),
    st.builds(lambda stream, raw, end: data(raw, stream, end=end), STREAMS, PAYLOADS, st.booleans()),
    st.builds(lambda stream: frame(frames.RST_STREAM, 0, stream, b"\0\0\0\x08"), STREAMS),
    st.builds(
        lambda stream, more: frame(frames.WINDOW_UPDATE, 0, stream, struct.pack(">L", more)),
        STREAMS,
        st.integers(1, 1 << 20),
    ),
    st.builds(setting, st.integers(0, 8), st.integers(0, 1 << 18)),
    st.just(frame(frames.PING, 0, 0, b"12345678")),
)
ANY = st.builds(
    frame,
    st.integers(0, 12),
    st.integers(0, 255),
    STREAMS,
    st.binary(max_size=60) | st.just(block()) | st.integers(0, FRAME_BYTES).map(bytes),
)
MUTATED = st.builds(
    lambda raw, at, byte: raw[: at % len(raw)] + bytes((byte,)) + raw[at % len(raw) + 1 :],
    VALID,
    st.integers(0, 200),
    st.integers(0, 255),
)
SENT = st.lists(VALID | ANY | MUTATED | st.binary(max_size=30), max_size=30)


def held(peer: Peer) -> int:
    """Bytes that a connection holds for its client."""
    found = len(peer.connection._rest)
    for stream in peer.connection.streams.values():
        if stream._incoming is not None:
            found += len(stream._incoming._buffer)
    return found


@settings(max_examples=3000 if CAMPAIGN else 300, deadline=None)
@given(st.sampled_from((b"", PREFACE, HELLO)), SENT, st.integers(1, 5000), st.booleans())
def test_nothing_that_a_client_sends_is_too_much(
    first: bytes, sent: list[bytes], cut: int, accepts: object
) -> None:
    async def test() -> None:
        peer, other = Peer(), greeted()
        peer.accepts = bool(accepts)
        raw = first + b"".join(sent)
        answered = 0
        for number, i in enumerate(range(0, len(raw), cut)):
            peer.connection.receive(raw[i : i + cut])
            answered += len(peer.connection.output.take())
            assert held(peer) <= RECEIVE_WINDOW + LIMITS.streams * (LIMITS.message_bytes + 65_535)
            assert len(peer.connection.streams) <= peer.calls <= LIMITS.streams + len(peer.works)
            if number % 8 == 0:
                await asyncio.sleep(0)
            if number % 50 == 0:
                other.send(call(number // 50 * 2 + 1))
                assert other.answer(number // 50 * 2 + 1).status is Status.OK
        assert answered <= 4 * len(raw) + OUTPUT_BYTES + CHUNK
        for _ in range(5):
            await asyncio.sleep(0)
        peer.connection.lost()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (peer.calls, peer.connection._held, peer.connection.streams) == (0, 0, {})
        assert peer.done == len(peer.served)

    asyncio.run(test())
