"""Connections: frames on real sockets, their limits, and bytes that no correct node sends."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
import tracemalloc
from typing import Any

import pytest

from kvstore.wire.connection import LinkLimits
from kvstore.wire.frames import Envelope
from kvstore.wire.handshake import DiallingSide
from multicast.errors import InvalidArgument
from multicast.messages import EntryState, NewLeaderAck, NewState, StatePart
from multicast.types import NO_TIMESTAMP, Ballot, ClientId, MessageId, Phase, Timestamp
from tests.unit.kvstore.wire.harness import (
    CLIENT,
    G0,
    G1,
    N1,
    N2,
    N3,
    QUICK,
    SECRET,
    SMALL,
    Node,
    Wire,
    encode,
    framed,
    hello,
    large,
    listener,
    nodes,
    number,
    replica,
    until,
    welcome,
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"frame": 0},
        {"idle_s": float("nan")},
        {"frame": 1 << 32, "buffer": 1 << 40},
        {"buffer": 1000},
        {"partial": 1000},
    ],
)
def test_limits_must_make_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        LinkLimits(**wrong)


async def test_a_turns_messages_to_a_node_are_one_frame() -> None:
    async with nodes(N1, N2) as (a, b):
        envelopes: list[Envelope] = [
            (replica(N1, group), replica(N2, group), [number(n) for n in range(group, group + 3)])
            for group in (G0, G1)
        ]
        a.transport.send(N2, envelopes)
        a.transport.send(N2, envelopes[:1])
        await until(lambda: len(b.frames) == 2)
        assert b.frames == [(N1, envelopes), (N1, envelopes[:1])]
        assert b.sizes == [len(encode(envelopes)), len(encode(envelopes[:1]))]
        assert a.count("frames_out", N2) == b.count("frames_in", N1) == 2
        assert a.count("bytes_out", N2) == b.count("bytes_in", N1) == sum(b.sizes)


async def test_large_messages_go_through_and_larger_turns_are_split() -> None:
    async with nodes(N1, N2, limits=LinkLimits(frame=4 << 20, buffer=64 << 20)) as (a, b):
        one = large(99, 12 << 20)
        a.send(N2, one)
        many = [large(n, 600_000) for n in range(30)]
        a.transport.send(N2, [(replica(N1), replica(N2), many[:25]), (replica(N1), replica(N2), many[25:])])
        await until(lambda: sum(len(e[2]) for _, envelopes in b.frames for e in envelopes) == 31)
        assert b.frames[0] == (N1, [(replica(N1), replica(N2), [one])])
        rest = [message for _, envelopes in b.frames[1:] for e in envelopes for message in e[2]]
        assert rest == many
        assert b.count("bad_frames", N1) == 0
        assert a.count("epochs", N2) == 0


async def test_a_message_beyond_the_limit_begins_an_epoch_and_keeps_the_connection() -> None:
    async with nodes(N1, N2, limits=SMALL) as (a, b):
        before = b.transport._acceptor.peers[N1]
        a.send(N2, number(1), large(1, SMALL.message + 1), number(2))
        a.send(N2, number(3))
        await until(lambda: 3 in b.numbers())
        assert b.numbers() == [3]
        assert b.transport._acceptor.peers[N1] is before
        assert a.count("epochs", N2) == before.flow.epoch == 1
        assert a.count("resets", N2) == 0


async def test_frames_may_come_in_any_pieces() -> None:
    async with nodes(N1, absent=[N2]) as (a,):
        wire = await Wire.dial(a.address)
        handshake = DiallingSide(SECRET, hello(N2))
        for byte in framed(handshake.opening()):
            wire.write(bytes([byte]))
            await asyncio.sleep(0)
        stream = framed(handshake.answered(await wire.read()) or b"")
        stream += b"".join(framed(encode([(replica(N2), replica(N1), [number(n)])])) for n in range(40))
        stream += bytes(8)  # two empty ones
        stream += framed(encode([(replica(N2), replica(N1), [large(5, 3000), number(40)])]))
        rng = random.Random(1)
        while stream:
            size = rng.choice((1, 1, 2, 3, 5, 50, 500))
            wire.write(stream[:size])
            stream = stream[size:]
            await asyncio.sleep(0)
        await until(lambda: len(a.numbers()) == 41)
        assert a.numbers(N2) == list(range(41))
        assert a.count("frames_in", N2) == 41
        assert a.count("bad_frames", N2) == 0
        wire.abort()


async def test_what_was_sent_leaves_before_a_node_closes() -> None:
    async with nodes(N1, N2) as (a, b):
        for value in range(100):
            a.send(N2, number(value), large(value, 200_000))
        await a.transport.close()
        await until(lambda: len(b.frames) == 100)
        assert b.numbers() == list(range(100))


async def test_a_paused_node_does_not_read_on() -> None:
    """The sender notices; what has come and waits here is one read of the loop at most."""
    async with nodes(N1, N2) as (a, b):
        a.transport.pause(paused=True)
        for value in range(20):
            b.send(N1, large(value, 1_000_000))
        inbound = a.transport._acceptor.peers[N2]
        await asyncio.sleep(0.05)
        assert len(inbound._rest) < 1 << 20
        link = b.transport._links[N1]._connection
        assert link is not None
        assert link.transport.get_write_buffer_size() < 1 << 20
        assert link._flow.queued > 1_000_000
        a.transport.pause(paused=False)
        await until(lambda: len(a.frames) == 20)


class NeverReads:
    """A peer that accepts connections and then reads nothing until it is released."""

    def __init__(self) -> None:
        self.connections = 0
        self.released = asyncio.Event()

    async def __call__(self, wire: Wire) -> None:
        await welcome(wire)
        self.connections += 1
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it wrong
        await self.released.wait()


async def test_a_slow_reader_falls_behind_and_delays_no_other_peer() -> None:
    peer, limits = NeverReads(), SMALL
    async with nodes(N1, N3, absent=[N2], limits=limits) as (a, c), listener(peer) as address:
        a.peers[N2] = address
        await until(lambda: a.count("sends", N2) and a.count("sends", N3))
        payloads = [large(n, 50_000) for n in range(50)]
        a.send(N2, payloads[0])  # so that nothing is measured that happens once only
        tracemalloc.start()
        sent = 0
        connection = a.transport._links[N2]._connection
        assert connection is not None
        while not connection._flow.behind:
            a.send(N2, payloads[sent % 50])
            assert connection._flow.queued <= limits.buffer
            a.send(N3, number(sent))
            sent += 1
            await asyncio.sleep(0)
        for _ in range(100):  # nothing more is queued
            a.send(N2, payloads[0])
        assert connection._flow.queued == 0
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await until(lambda: len(c.numbers()) == sent)
        assert c.numbers() == list(range(sent))
        assert peak < 3 * limits.buffer
        assert a.count("resets", N2) == a.count("epochs", N3) == c.count("epochs", N1) == 0
        assert a.count("dropped", N2) > 0
        assert a.transport._links[N2]._connection is connection
        peer.released.set()


async def test_a_peer_that_fell_behind_goes_on_with_a_new_epoch() -> None:
    """Its connection stays; what was dropped is a gap, and nothing after it is missing."""
    async with nodes(N1, N2, limits=SMALL) as (a, b):
        connection = a.transport._links[N2]._connection
        inbound = b.transport._acceptor.peers[N1]
        assert connection is not None
        b.transport.pause(paused=True)
        sent = 0
        while not connection._flow.behind:
            a.send(N2, number(sent), large(sent, 50_000))
            sent += 1
            await asyncio.sleep(0)
        b.transport.pause(paused=False)
        await until(lambda: not connection._flow.behind)
        for value in range(sent, sent + 10):
            a.send(N2, number(value), large(value, 30_000))
        await until(lambda: sent + 9 in b.numbers())
        found = b.numbers()
        assert found[-10:] == list(range(sent, sent + 10))
        assert found[:-10] == list(range(len(found) - 10))
        assert b.transport._acceptor.peers[N1] is inbound
        assert a.count("epochs", N2) == inbound.flow.epoch == 1
        assert a.count("resets", N2) == b.count("bad_frames", N1) == 0


def state(kind: Any, transfer: int, size: int, count: int) -> list[Any]:
    """A state with `count` entries of `size` bytes, in pieces of 64 KiB."""
    each = max(1, (64 << 10) // size)
    rng = random.Random(size)
    ballot, accepted = Ballot(1, replica(N1), 0), Phase.ACCEPTED
    entries = []
    for n in range(count):
        mid, stamp = MessageId(CLIENT, n, n), Timestamp(n + 1)
        entries.append(EntryState(mid, (G0,), rng.randbytes(size), 1, accepted, stamp, NO_TIMESTAMP))
    pieces: list[Any] = []
    for index in range(-(-count // each)):
        part = StatePart(transfer, index, -(-count // each))
        its = tuple(entries[index * each : (index + 1) * each])
        if kind is NewState:
            pieces.append(NewState(ballot, 1, part, its))
        else:
            pieces.append(NewLeaderAck(ballot, Ballot(0, replica(N1), 0), 1, NO_TIMESTAMP, part, its))
    return pieces


def pieces_of(node: Node) -> list[Any]:
    return [
        message
        for _, envelopes in node.frames
        for _, _, messages in envelopes
        for message in messages
        if isinstance(message, NewState | NewLeaderAck)
    ]


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
@pytest.mark.parametrize("size", [200_000, 1_000])
@pytest.mark.parametrize("kind", [NewState, NewLeaderAck])
async def test_a_state_larger_than_the_buffer_arrives(kind: Any, size: int, delay_s: float) -> None:
    """All of it leaves in one turn. What follows in the next turns does not make the queue drop it either."""
    delays = {(N1, N2): delay_s}
    async with nodes(N1, N2, limits=SMALL, delays=delays) as (a, b):
        pieces = state(kind, 1, size, 5 * SMALL.buffer // size)
        a.send(N2, number(0), *pieces)
        for value in range(1, 50):
            a.send(N2, number(value), large(value, 2_000))
            if value % 10 == 0:
                a.send(N2, *state(kind, value, size, 5 * SMALL.buffer // size))  # it is repeated meanwhile
            await asyncio.sleep(0)
        await until(lambda: 49 in b.numbers())
        assert pieces_of(b)[: len(pieces)] == pieces
        assert b.numbers() == list(range(50))
        assert a.count("epochs", N2) == a.count("dropped", N2) == b.count("bad_frames", N1) == 0


async def test_a_state_leaves_other_messages_their_bound() -> None:
    async with nodes(N1, N2, limits=SMALL) as (a, b):
        connection = a.transport._links[N2]._connection
        assert connection is not None
        b.transport.pause(paused=True)
        a.send(N2, *state(NewState, 1, 200_000, 25))
        for value in range(100):
            a.send(N2, large(value, 9_000))
            assert connection._flow.queued > 2 * SMALL.buffer
        for value in range(100, 150):
            a.send(N2, large(value, 9_000))
        assert connection._flow.behind
        assert connection._flow.queued == 0
        b.transport.pause(paused=False)
        await until(lambda: not connection._flow.behind)
        repeated = state(NewState, 2, 200_000, 25)
        a.send(N2, *repeated)
        await until(lambda: pieces_of(b)[-25:] == repeated)
        assert b.count("bad_frames", N1) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is Linux's")
async def test_a_peer_that_never_reads_is_disconnected_before_the_buffer_is_full() -> None:
    peer = NeverReads()
    limits = LinkLimits(idle_s=0.4, backoff_min_s=0.002, backoff_max_s=0.02)
    async with nodes(N1, absent=[N2], limits=limits) as (a,), listener(peer) as address:
        a.peers[N2] = address
        await until(lambda: a.count("sends", N2))
        a.send(N2, large(1, 12 << 20))
        await until(lambda: peer.connections == 2)
        assert a.count("resets", N2) == 0
        peer.released.set()


GOOD = encode([(replica(N2), replica(N1), [number(7), large(1, 200)])])

WRONG = {
    "unparsable": framed(b"\xff" * 100),
    "not a frame of ours": framed(GOOD[:-1]),
    "another node's replica": framed(encode([(replica(N3), replica(N1), [number(1)])])),
    "one of them another's": framed(
        encode([(replica(N2), replica(N1), [number(1)]), (replica(N3), replica(N1), [number(2)])])
    ),
    "our own replica": framed(encode([(replica(N1), replica(N1), [number(1)])])),
    "a client's": framed(encode([(CLIENT, replica(N1), [large(1, 10)])])),
    "too long": (QUICK.frame + 1).to_bytes(4, "big"),
    "the longest": b"\xff" * 4,
    "another Hello": framed(hello(N2).SerializeToString()),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_frame_closes_its_connection_only(case: str) -> None:
    async with nodes(N1, N3, absent=[N2]) as (a, c):
        await until(lambda: c.count("sends", N1))
        wire = await Wire.dial(a.address, hello(N2))
        wire.write(framed(GOOD) + WRONG[case] + framed(GOOD))
        await wire.ended()
        await until(lambda: not a.count("receives", N2))
        assert a.numbers(N2) == [7]
        assert a.count("bad_frames", N2) == 1
        c.send(N1, number(8))
        await until(lambda: a.numbers(N3) == [8])
        again = await Wire.dial(a.address, hello(N2))
        again.write(framed(GOOD))
        await until(lambda: a.numbers(N2) == [7, 7])
        again.abort()


@pytest.mark.parametrize("cut", [1, 3, 4, 5, -1])
async def test_a_truncated_frame_is_counted(cut: int) -> None:
    async with nodes(N1, absent=[N2]) as (a,):
        wire = await Wire.dial(a.address, hello(N2))
        wire.write(framed(GOOD) + framed(GOOD)[:cut])
        wire.writer.write_eof()
        await wire.ended()
        assert a.numbers() == [7]
        assert a.count("bad_frames", N2) == 1
        whole = await Wire.dial(a.address, hello(N2))
        whole.write(framed(GOOD))
        whole.writer.write_eof()
        await whole.ended()
        await until(lambda: not a.count("receives", N2))
        assert a.count("bad_frames", N2) == 1


async def test_an_announced_length_takes_no_memory() -> None:
    async with nodes(N1, absent=[N2]) as (a,):
        wires = [await Wire.dial(a.address, hello(client=ClientId(n))) for n in range(1, 21)]
        tracemalloc.start()
        for wire in wires:
            wire.write(QUICK.frame.to_bytes(4, "big") + bytes(10))
        inbounds = list(a.transport._acceptor.client_connections)
        await until(lambda: all(len(inbound._rest) == 14 for inbound in inbounds))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 << 20
        for wire in wires:
            wire.abort()


async def test_unfinished_frames_are_bounded_in_total() -> None:
    """Clients announce large frames, and send all but the end: those that keep most are closed."""
    limits = dataclasses.replace(QUICK, frame=1 << 20, message=1 << 20, buffer=2 << 20, partial=4 << 20)
    async with nodes(N1, N3, absent=[N2], limits=limits) as (a, c):
        await until(lambda: c.count("sends", N1))
        wires = [await Wire.dial(a.address, hello(client=ClientId(n))) for n in range(1, 17)]
        for wire in wires:
            wire.write((1 << 20).to_bytes(4, "big") + bytes((1 << 20) - 1))
        acceptor = a.transport._acceptor
        await until(lambda: a.clients("bad_frames") >= 12)
        assert sum(inbound.partial for inbound in acceptor.welcomed()) <= limits.partial + (64 << 10) * len(
            wires
        )
        c.send(N1, number(8))
        await until(lambda: a.numbers(N3) == [8])
        for wire in wires:
            wire.abort()


async def test_garbage_never_hurts_the_node() -> None:
    rng = random.Random(5)

    def garbage(choice: int) -> bytes:
        if choice < 2:
            return rng.randbytes(rng.randrange(1, 200))
        stream = bytearray(framed(GOOD) * 3)
        if choice == 2:
            for _ in range(rng.randrange(1, 6)):
                stream[rng.randrange(len(stream))] = rng.randrange(256)
        else:
            del stream[rng.randrange(len(stream)) :]
            stream += rng.randbytes(20)
        return bytes(stream)

    async with nodes(N1, N3, absent=[N2]) as (a, c):
        await until(lambda: c.count("sends", N1))
        for value in range(300):
            choice = rng.randrange(4)
            wire = await Wire.dial(a.address, *([hello(N2)] if choice else []))
            wire.write(garbage(choice))
            wire.writer.write_eof()
            await wire.ended()
            c.send(N1, number(value))
        await until(lambda: len(a.numbers(N3)) == 300)
        assert a.numbers(N3) == list(range(300))
        assert a.count("bad_frames") > 20
        assert a.count("bad_frames", N2) > 20
        await until(lambda: a.count("connected") == 0)


async def test_delays_keep_the_order() -> None:
    async with nodes(N1, N2, delays={(N1, N2): 0.05}) as (a, b):
        loop = asyncio.get_running_loop()
        started = loop.time()
        for value in range(50):
            a.send(N2, number(value))
            b.send(N1, number(value))
            await asyncio.sleep(0)
        await until(lambda: len(a.numbers()) == 50)
        if loop.time() - started < 0.04:  # else this machine was busy, and they may have come
            assert not b.numbers()
        await until(lambda: len(b.numbers()) == 50)
        assert loop.time() - started >= 0.045
        assert b.numbers() == list(range(50))


async def test_what_is_delayed_counts_as_unsent_and_is_lost_with_its_connection() -> None:
    async with nodes(N1, N2, limits=SMALL, delays={(N1, N2): 3600.0}) as (a, b):
        for value in range(30):  # a slice has a header
            a.send(N2, large(value, 50_000))
            assert a.count("epochs", N2) == (value >= 20)
        link = a.transport._links[N2]
        assert link._connection is not None
        link._connection.abort()
        await until(lambda: not a.count("sends", N2))
        assert not b.frames
