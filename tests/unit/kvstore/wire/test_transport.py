"""Transports: nodes that are connected to each other, paused, cut and healed."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from wbkv_proto.link_pb2 import Reason

from kvstore.config.addresses import Address, NodeId
from kvstore.local.cluster import free_ports
from kvstore.wire.frames import Envelope
from multicast.errors import InvalidArgument
from multicast.membership import Configuration, Membership
from multicast.messages import Members
from multicast.types import ClientId
from tests.unit.kvstore.wire.harness import (
    CLIENT,
    G0,
    N1,
    N2,
    N3,
    SMALL,
    Node,
    Wire,
    hello,
    large,
    listener,
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
            a.send(unknown, number(1))  # is dropped: a newcomer may have just disconnected
            with pytest.raises(InvalidArgument, match=repr(unknown)):
                a.transport.cut(unknown, incoming=True)
        assert a.transport.statistics()["newcomers"]["dropped"] == 2


async def test_a_peer_is_added_once() -> None:
    async with nodes(N1, N2) as (a, b):
        for _ in range(2):
            a.transport.add_peer(N1, ("127.0.0.1", 9))
            a.transport.add_peer(N2, ("127.0.0.1", 9))
        a.send(N2, number(7))
        await until(lambda: b.numbers() == [7])
        assert list(a.transport.statistics()["peers"]) == [N2]


def _membership(value: int) -> Members:
    return Members(Membership(Configuration(G0, value, [replica(N1)])))


async def test_a_newcomer_is_not_dialled_until_it_is_named() -> None:
    """What is for it leaves on the connection that it dialled; its address is only its own word."""
    port = free_ports(1)[0]
    dialled: list[Wire] = []

    async def bystander(wire: Wire) -> None:
        dialled.append(wire)
        await wire.ended()

    async with nodes(N1, N2) as (a, b), listener(bystander) as chosen:
        peers = {N1: a.address, N2: b.address, N3: chosen}  # it says that it is where it is not
        newcomer = Node(N3, peers, port=port, incarnation=2**64 - 1)
        try:
            newcomer.address = await newcomer.transport.start()
            await until(lambda: newcomer.count("sends", N1) and newcomer.count("sends", N2))
            await until(lambda: (N3, 2**64 - 1) in a.disks)
            newcomer.send(N1, number(8))
            await until(lambda: a.numbers(N3) == [8])
            a.send(N3, _membership(7))
            await until(lambda: newcomer.frames)
            assert newcomer.frames == [(N1, [(replica(N1), replica(N3), [_membership(7)])])]
            statistics = a.transport.statistics()
            assert list(statistics["peers"]) == [N2]
            assert statistics["newcomers"]["connected"] == 1
            assert not dialled
            a.transport.add_peer(N3, ("127.0.0.1", port))  # a membership names it
            await until(lambda: a.count("sends", N3) and newcomer.count("receives", N1))
            a.send(N3, number(9))
            await until(lambda: newcomer.numbers(N1) == [9])
            assert a.transport.statistics()["newcomers"]["connected"] == 0
        finally:
            await newcomer.transport.close()


async def test_replicas_send_newcomers_only_facts_and_questions() -> None:
    """Anything else could change its order when the newcomer is named, and gets a connection of its own."""
    port = free_ports(1)[0]
    async with nodes(N1, N2) as (a, b):
        peers = {N1: a.address, N2: b.address, N3: ("127.0.0.1", port)}
        newcomer = Node(N3, peers, port=port, incarnation=2**64 - 1)
        try:
            newcomer.address = await newcomer.transport.start()
            await until(lambda: newcomer.count("sends", N1) and N3 in a.transport._acceptor.peers)
            a.send(N3, number(1))
            await until(lambda: newcomer.count("bad_frames", N1) == 1)
            assert not newcomer.frames
            await until(lambda: newcomer.count("connections", N1) > 1 and N3 in a.transport._acceptor.peers)
            client_answer: Envelope = (replica(N1), CLIENT, [number(2)])
            a.transport.send(N3, [client_answer])
            await until(lambda: newcomer.numbers(N1) == [2])
            of_another: Envelope = (replica(N2), CLIENT, [number(3)])
            a.transport.send(N3, [of_another])
            await until(lambda: newcomer.count("bad_frames", N1) == 2)
            assert newcomer.numbers(N1) == [2]
        finally:
            await newcomer.transport.close()


async def test_a_node_may_not_claim_the_disk_of_another(caplog: pytest.LogCaptureFixture) -> None:
    async with nodes(N1, absent=[N2], admits=lambda node, _: node != N2) as (a,):
        for _ in range(2):
            wire = await Wire.dial(a.address)
            answer = await wire.introduce(hello(N2, incarnation=7))
            assert answer.refusal.reason == Reason.WRONG_INCARNATION
            await wire.ended()
        assert not a.disks
        assert sum("0000000000000007" in record.getMessage() for record in caplog.records) == 1


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


async def test_slices_are_heard_before_their_message_is_complete() -> None:
    async with nodes(N1, N2, limits=SMALL) as (a, b):
        b.send(N1, large(1, SMALL.message // 2))
        await until(lambda: a.frames)
        assert a.slices > 2


async def test_a_node_is_told_that_it_reads_too_slowly() -> None:
    async with nodes(N1, N2, limits=SMALL) as (a, b):
        assert a.network.behind(N2) == 0
        a.transport.pause(paused=True)
        value = 0
        while not b.count("dropped", N1):
            b.send(N1, large(value := value + 1, SMALL.message // 2))
            await asyncio.sleep(0)
        a.transport.pause(paused=False)
        await until(lambda: a.network.behind(N2))
        assert b.network.behind(N1) == 0


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
        assert set(statistics) == {"peers", "newcomers", "clients", "strangers"}
