"""Acceptors: handshakes, superseded and silent connections, and what clients may send."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from wbkv_proto.link_pb2 import Reason

from kvstore.config.addresses import NodeId
from kvstore.wire.connection import SWEEPS, LinkLimits
from kvstore.wire.frames import PROTOCOL_VERSION, Envelope
from kvstore.wire.handshake import DiallingSide
from multicast.client import Reply
from multicast.messages import Hint
from multicast.types import NO_BALLOT, ClientId, Timestamp
from tests.unit.kvstore.wire.harness import (
    CLIENT,
    G0,
    G1,
    HASH,
    N1,
    N2,
    N3,
    QUICK,
    SECRET,
    SMALL,
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
)

REFUSALS = {
    "version": (
        hello(N2, version=PROTOCOL_VERSION + 1),
        Reason.WRONG_VERSION,
        f"version {PROTOCOL_VERSION + 1}",
    ),
    "no version": (hello(N2, version=0), Reason.WRONG_VERSION, "version 0"),
    "cluster": (hello(N2, cluster="another"), Reason.WRONG_CLUSTER, "'another'"),
    "topology": (hello(N2, topology_hash=b"\x12\x34"), Reason.WRONG_TOPOLOGY, "1234"),
    "a client's topology": (hello(client=CLIENT, topology_hash=b""), Reason.WRONG_TOPOLOGY, HASH.hex()),
    "unknown": (hello(N3), Reason.UNKNOWN_NODE, "'n3'"),
    "nameless": (hello(NodeId("")), Reason.UNKNOWN_NODE, "''"),
    "ourselves": (hello(N1), Reason.OWN_ID, "'n1'"),
    "not for us": (hello(N2, to=N3), Reason.WRONG_NODE, "'n3'"),
    "a client's, not for us": (hello(client=CLIENT, to=""), Reason.WRONG_NODE, "''"),
    "nowhere": (hello(N3, address="nowhere"), Reason.UNKNOWN_NODE, "'n3'"),
    "no name": (hello(NodeId("../n3"), address="127.0.0.1:9"), Reason.UNKNOWN_NODE, "'../n3'"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_rejected_hello_is_answered_with_the_reason_and_logged_once(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    said, reason, text = REFUSALS[case]
    async with nodes(N1, absent=[N2]) as (a,):
        caplog.clear()
        for _ in range(3):
            wire = await Wire.dial(a.address)
            answer = await wire.introduce(said, then=framed(b"more"))
            assert answer.refusal.reason == reason
            assert text in answer.refusal.text
            await wire.ended()
        statistics = a.transport.statistics()
        everything = [*statistics["peers"].values(), statistics["clients"], statistics["strangers"]]
        assert sum(counts["refusals"] for counts in everything) == 3
        assert not any(counts["connections"] or counts["bad_frames"] for counts in everything)
        assert sum(text in record.getMessage() for record in caplog.records) == 1


async def test_a_hello_without_a_sender_is_a_bad_frame() -> None:
    nameless = hello(N2)
    nameless.ClearField("node")
    async with nodes(N1, absent=[N2]) as (a,):
        wire = await Wire.dial(a.address)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await wire.introduce(nameless)
        await wire.ended()
        assert a.count("bad_frames") == 1


async def test_a_connection_without_a_handshake_times_out() -> None:
    async def mute(wire: Wire) -> None:
        await wire.reader.read()

    limits = LinkLimits(handshake_s=0.05, backoff_min_s=0.002, backoff_max_s=0.02)
    async with nodes(N1, absent=[N2], limits=limits) as (a,), listener(mute) as address:
        opening = DiallingSide(SECRET, hello(N2)).opening()
        for start in (b"", b"\0", framed(opening)[:-1], framed(opening)):
            wire = await Wire.dial(a.address)
            wire.write(start)
            await wire.ended()
        assert a.count("timeouts") == 4
        a.peers[N2] = address
        await until(lambda: "no answer" in a.count("problem", N2))


async def test_the_number_of_nodes_is_limited() -> None:
    wires = []
    async with nodes(N1, absent=[N2], limits=dataclasses.replace(QUICK, peers=2)) as (a,):
        for number, name in enumerate(("n3", "n4")):
            wire = await Wire.dial(a.address)
            answer = await wire.introduce(hello(NodeId(name), address=f"127.0.0.1:{number + 1}"))
            assert answer.HasField("welcome") == (name == "n3")
            wires.append(wire)
        assert answer.refusal.reason == Reason.TOO_MANY_CONNECTIONS
        named = await Wire.dial(a.address, hello(N2))  # nodes that are named are never kept out
        for wire in (*wires, named):
            wire.abort()


async def test_the_number_of_connections_is_limited() -> None:
    limits = LinkLimits(strangers=3, clients=2, handshake_s=60.0, backoff_min_s=0.002, backoff_max_s=0.02)
    async with nodes(N1, absent=[N2], limits=limits) as (a,):
        strangers = [await Wire.dial(a.address) for _ in range(3)]
        await until(lambda: a.count("connected") == 3)
        strangers.append(await Wire.dial(a.address))
        oldest = strangers.pop(0)
        assert (await oldest.answer()).refusal.reason == Reason.TOO_MANY_CONNECTIONS
        await oldest.ended()
        assert a.count("connected") == 3
        clients = [await Wire.dial(a.address, hello(client=ClientId(n))) for n in (1, 2)]
        one_more = await Wire.dial(a.address)
        assert (await one_more.introduce(hello(client=CLIENT))).refusal.reason == Reason.TOO_MANY_CONNECTIONS
        await one_more.ended()
        peer = await Wire.dial(a.address, hello(N2))  # nodes are not kept out by clients
        clients.pop().abort()
        await until(lambda: a.clients("connected") == 1)
        clients.append(await Wire.dial(a.address, hello(client=CLIENT)))
        for wire in (*strangers, *clients, peer):
            wire.abort()


async def test_a_new_connection_replaces_the_old() -> None:
    async with nodes(N1, absent=[N2]) as (a,):
        old = await Wire.dial(a.address, hello(N2))
        old.say(replica(N2), replica(N1), number(1))
        await until(lambda: a.numbers() == [1])
        new = await Wire.dial(a.address, hello(N2))
        old.say(replica(N2), replica(N1), number(2))
        new.say(replica(N2), replica(N1), number(3))
        await old.ended()
        new.say(replica(N2), replica(N1), number(4))
        await until(lambda: 4 in a.numbers())
        assert a.numbers() == [1, 3, 4]
        assert a.count("receives", N2)
        new.abort()
        await until(lambda: not a.count("receives", N2))


async def test_what_is_left_of_a_superseded_connection_is_not_read() -> None:
    """Also what had come already, when it is superseded while the node has paused."""
    async with nodes(N1, absent=[N2]) as (a,):
        old = await Wire.dial(a.address, hello(N2))
        a.heard = lambda: a.transport.pause(paused=True)
        for value in range(50):
            old.say(replica(N2), replica(N1), number(value))
        await until(lambda: a.frames)
        new = await Wire.dial(a.address, hello(N2))
        new.say(replica(N2), replica(N1), number(100))
        await old.ended()
        a.heard = lambda: None
        a.transport.pause(paused=False)
        await until(lambda: 100 in a.numbers())
        assert a.numbers() == [0, 100]
        new.abort()


async def test_a_silent_peer_is_closed() -> None:
    limits = LinkLimits(idle_s=0.1)
    async with nodes(N1, absent=[N2], limits=limits) as (a,):
        for said in (hello(N2), hello(client=CLIENT)):
            wire = await Wire.dial(a.address, said)
            await wire.ended()
        assert a.count("timeouts", N2) == a.clients("timeouts") == 1


async def test_a_peer_that_sends_is_not_closed_and_links_send_pings() -> None:
    async with nodes(N1, N2) as (a, b):
        wire = await Wire.dial(a.address, hello(client=CLIENT))
        inbound = b.transport._acceptor.peers[N1]
        client = a.transport._acceptor.clients[CLIENT]
        for _ in range(3 * SWEEPS):
            a.transport._sweep()
            b.transport._sweep()
            wire.write(bytes(4))
            await until(lambda: inbound.silent == 0 and client.silent == 0)
        assert a.linked()
        assert b.linked()
        assert a.count("frames_in", N2) == b.count("frames_in", N1) == 0
        for _ in range(SWEEPS):
            a.transport._acceptor.sweep()
        assert not client.over
        a.transport._acceptor.sweep()
        await wire.ended()


async def test_a_peer_that_is_not_read_from_is_not_silent() -> None:
    async with nodes(N1, absent=[N2]) as (a,):
        wire = await Wire.dial(a.address, hello(N2))
        a.transport.pause(paused=True)
        wire.say(replica(N2), replica(N1), number(1))
        for _ in range(3 * SWEEPS):
            a.transport._acceptor.sweep()
        a.transport.pause(paused=False)
        await until(lambda: a.numbers() == [1])
        assert a.count("timeouts", N2) == 0
        wire.abort()


async def test_clients_multicast_and_are_answered_where_they_last_spoke() -> None:
    async with nodes(N1, absent=[N2]) as (a,):
        first = await Wire.dial(a.address, hello(client=CLIENT))
        first.say(CLIENT, replica(N1), large(1, 10), large(2, 10))
        await until(lambda: len(a.requests) == 1)
        assert a.requests == [(CLIENT, [(CLIENT, replica(N1), [large(1, 10), large(2, 10)])])]
        reply, hint = Reply((large(1, 10).mid,), G0, (Timestamp(1),)), Hint(G0, NO_BALLOT)
        answers: list[Envelope] = [(replica(N1), CLIENT, [reply]), (replica(N1, G1), CLIENT, [hint])]
        a.transport.answer(answers)
        assert await first.read() == encode(answers)
        second = await Wire.dial(a.address, hello(client=CLIENT))
        a.transport.answer(answers[:1])
        assert await second.read() == encode(answers[:1])
        first.say(CLIENT, replica(N1), large(3, 10))
        await until(lambda: len(a.requests) == 2)
        a.transport.answer(answers[1:])
        assert await first.read() == encode(answers[1:])
        first.abort()
        await until(lambda: a.clients("connected") == 1)
        a.transport.answer(answers)
        unknown: Envelope = (replica(N1), ClientId(5), [reply])
        a.transport.answer(iter([unknown]))
        assert a.clients("dropped") == 3
        second.say(CLIENT, replica(N1), large(4, 10))
        await until(lambda: len(a.requests) == 3)
        a.transport.answer(answers)
        assert await second.read() == encode(answers)
        assert a.clients("frames_out") == 4
        third = await Wire.dial(a.address, hello(client=CLIENT))
        second.abort()
        await until(lambda: a.clients("connected") == 1)
        a.transport.answer(answers)
        assert await third.read() == encode(answers)
        third.abort()


FORBIDDEN = {
    "another message": encode([(CLIENT, replica(N1), [large(1, 5), number(1)])]),
    "a reply": encode([(CLIENT, replica(N1), [Reply((large(1, 5).mid,), G0, (Timestamp(1),))])]),
    "another's name": encode([(ClientId(1), replica(N1), [large(1, 5)])]),
    "a replica's name": encode([(replica(N2), replica(N1), [large(1, 5)])]),
    "a replica's name, and no message": encode([(replica(N2), replica(N1), [])]),
    "another's message": encode([(CLIENT, replica(N1), [large(1, 5, ClientId(1))])]),
    "the second envelope": encode(
        [(CLIENT, replica(N1), [large(1, 5)]), (ClientId(1), replica(N1), [large(1, 5)])]
    ),
    "garbage": b"\xff" * 10,
}


@pytest.mark.parametrize("case", FORBIDDEN)
async def test_clients_may_only_multicast_in_their_own_name(case: str) -> None:
    async with nodes(N1, absent=[N2]) as (a,):
        wire = await Wire.dial(a.address, hello(client=CLIENT))
        wire.say(CLIENT, replica(N1), large(1, 10))
        wire.write(framed(FORBIDDEN[case]))
        wire.say(CLIENT, replica(N1), large(2, 10))
        await wire.ended()
        await until(lambda: not a.clients("connected"))
        assert a.requests == [(CLIENT, [(CLIENT, replica(N1), [large(1, 10)])])]
        assert a.clients("bad_frames") == 1


async def test_a_client_that_does_not_read_its_answers_is_reset() -> None:
    async with nodes(N1, absent=[N2], limits=SMALL) as (a,):
        wire = await Wire.dial(a.address, hello(client=CLIENT))
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it wrong
        answers = [Reply((large(n, 1).mid,), G0, (Timestamp(1),)) for n in range(2000)]
        while not a.clients("resets"):
            a.transport.answer([(replica(N1), CLIENT, answers)])
            await asyncio.sleep(0)
        await until(lambda: not a.clients("connected"))
        wire.abort()
