"""Transports: nodes that are connected to each other, paused, cut and healed."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from kvstore.config.addresses import Address, NodeId
from kvstore.local.cluster import free_ports
from multicast.errors import InvalidArgument
from multicast.types import ClientId
from tests.unit.kvstore.wire.harness import (
    CLIENT,
    N1,
    N2,
    N3,
    Node,
    Wire,
    hello,
    large,
    nodes,
    number,
    replica,
    until,
)


async def test_frames_arrive_whole_and_in_order() -> None:
    async with nodes(N1, N2, N3) as (a, b, c):
        sent = []
        for value in range(300):
            messages = [number(value), large(value, value * 37 % 5000)]
            a.send(N2, *messages)
            sent.append((N1, [(replica(N1), replica(N2), messages)]))
            b.send(N1, number(value))
            b.send(N3, number(value))
        await until(lambda: len(b.frames) == 300 and len(a.frames) == 300 and len(c.frames) == 300)
        assert b.frames == sent
        assert a.numbers() == c.numbers() == list(range(300))
        assert not c.numbers(N1)


async def test_only_peers_can_be_sent_to() -> None:
    async with nodes(N1, N2) as (a, _):
        for unknown in (N1, N3):
            with pytest.raises(InvalidArgument, match=repr(unknown)):
                a.send(unknown, number(1))
            with pytest.raises(InvalidArgument, match=repr(unknown)):
                a.transport.cut(unknown, incoming=True)


async def test_a_peer_is_added_once() -> None:
    async with nodes(N1, N2) as (a, b):
        for _ in range(2):
            a.transport.add_peer(N1, ("127.0.0.1", 9))
            a.transport.add_peer(N2, ("127.0.0.1", 9))
        a.send(N2, number(7))
        await until(lambda: b.numbers() == [7])
        assert list(a.transport.statistics()["peers"]) == [N2]


async def test_an_unknown_node_is_dialled_at_the_address_of_its_hello() -> None:
    port = free_ports(1)[0]
    async with nodes(N1, N2) as (a, b):
        peers = {N1: a.address, N2: b.address, N3: ("127.0.0.1", port)}
        newcomer = Node(N3, peers, port=port, incarnation=2**64 - 1)
        try:
            await newcomer.start()
            await until(lambda: newcomer.linked() and a.linked() and b.linked())
            assert (N3, 2**64 - 1) in a.disks
            assert (N1, 0) in newcomer.disks
            a.send(N3, number(7))
            newcomer.send(N1, number(8))
            await until(lambda: newcomer.numbers(N1) == [7] and a.numbers(N3) == [8])
        finally:
            await newcomer.transport.close()


async def test_nodes_of_two_clusters_reject_each_other(caplog: pytest.LogCaptureFixture) -> None:
    peers: dict[NodeId, Address] = dict.fromkeys((N1, N2), ("127.0.0.1", 9))
    a, b = Node(N1, peers), Node(N2, peers, cluster="another")
    for node in (a, b):
        await node.start()
    await until(lambda: min(a.count("refused", N2), b.count("refused", N1)) > 5)
    assert "the cluster" in a.count("problem", N2)
    assert not a.linked()
    assert not b.linked()
    warnings = [
        r.getMessage()
        for r in caplog.records
        if r.levelno >= logging.WARNING and "rejected" in r.getMessage()
    ]
    assert len(warnings) == 4  # each node rejects the other, and is rejected
    for node in (a, b):
        await node.transport.close()


async def test_a_paused_node_gets_nothing_and_then_everything_in_order() -> None:
    async with nodes(N1, N2, N3) as (a, b, c):
        wire = await Wire.dial(a.address, hello(client=CLIENT))

        def enough() -> None:
            if len(a.frames) + len(a.requests) in (7, 20, 150):
                a.transport.pause(paused=True)

        a.heard = enough
        for value in range(100):
            b.send(N1, number(value))
            c.send(N1, number(1000 + value))
            wire.say(CLIENT, replica(N1), large(value, 10))
        for pause in (7, 20, 150):
            await until(lambda: a.transport._acceptor.paused)
            late = await Wire.dial(a.address, hello(client=ClientId(pause)))
            late.say(ClientId(pause), replica(N1), large(1, 10, ClientId(pause)))
            await asyncio.sleep(0.02)
            assert len(a.frames) + len(a.requests) == pause
            a.transport.pause(paused=False)
            a.transport.pause(paused=False)
            late.writer.close()
        await until(lambda: len(a.frames) == 200 and len(a.requests) >= 100)
        assert a.numbers(N2) == list(range(100))
        assert a.numbers(N3) == list(range(1000, 1100))
        positions = [e[2][0].mid.sequence for client, [e] in a.requests if client == CLIENT]
        assert positions == list(range(100))
        wire.abort()


async def test_cuts_drop_frames_one_way_and_end() -> None:
    async with nodes(N1, N2, N3) as (a, b, c):
        a.transport.cut(N2, incoming=False)
        c.transport.cut(N1, incoming=True)
        for value in range(5):
            a.send(N2, number(value))
            a.send(N3, number(value))
            b.send(N1, number(value))
        await until(lambda: len(a.numbers(N2)) == 5 and c.count("dropped", N1) == 5)
        assert a.count("dropped", N2) == 5
        assert not b.frames
        assert not c.frames
        before = [node.transport._acceptor.peers[N1] for node in (b, c)]
        a.transport.heal()
        c.transport.heal()
        # What was lost must not be missing within a connection.
        await until(
            lambda: all(inbound.over for inbound in before) and a.linked() and b.linked() and c.linked()
        )
        a.send(N2, number(7))
        a.send(N3, number(8))
        await until(lambda: b.frames and c.frames)
        assert b.numbers() == [7]
        assert c.numbers() == [8]


async def test_a_cut_that_lost_nothing_leaves_the_connections() -> None:
    async with nodes(N1, N2) as (a, b):
        a.transport.cut(N2, incoming=False)
        a.transport.cut(N2, incoming=True)
        a.transport.heal()
        a.send(N2, number(1))
        b.send(N1, number(2))
        await until(lambda: a.numbers() and b.numbers())
        assert a.count("connections", N2) == 2


async def test_a_taken_port_is_named() -> None:
    async with nodes(N1, absent=[N2]) as (a,):
        host, port = a.address
        assert host == "127.0.0.1"
        assert port
        twin = Node(N1, a.peers, port=port)
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
            await twin.start()
        await twin.transport.close()


async def test_statistics_are_plain() -> None:
    async with nodes(N1, N2) as (a, _):
        statistics = a.transport.statistics()
        assert json.loads(json.dumps(statistics)) == statistics
        assert set(statistics) == {"peers", "clients", "strangers"}
