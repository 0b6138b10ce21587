"""Links: a node dials its peers, again and again, and speaks only to the node that it means."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Any

import pytest
from wbkv_proto.link_pb2 import Answer, Welcome

from kvstore.config.addresses import NodeId
from kvstore.wire.connection import HELLO_MAX, LinkLimits
from kvstore.wire.frames import ORDERING_CODEC
from kvstore.wire.link import Link, _reach
from tests.unit.kvstore.wire.harness import (
    N1,
    N2,
    N3,
    QUICK,
    SECRET,
    Node,
    Wire,
    framed,
    hello,
    listener,
    nodes,
    number,
    replica,
    until,
    welcome,
)


async def test_a_node_that_comes_back_is_connected_again() -> None:
    async with nodes(N1, N2) as (a, b):
        a.send(N2, number(1))
        await until(lambda: b.numbers() == [1])
        await b.transport.close()
        await until(lambda: not a.count("sends", N2) and not a.count("receives", N2))
        a.send(N2, number(2))
        assert a.count("dropped", N2) == 1
        again = Node(N2, a.peers, port=b.address[1])
        await again.start()
        await until(lambda: a.linked() and again.linked())
        a.send(N2, number(3))
        again.send(N1, number(4))
        await until(lambda: again.numbers() and a.numbers())
        assert again.numbers() == [3]
        assert a.numbers() == [4]
        await again.transport.close()


async def test_a_node_that_connects_is_dialled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its back-off has become."""
    async with nodes(N1, absent=[N2]) as (a,):
        await until(lambda: "cannot connect" in a.count("problem", N2))
        monkeypatch.setattr("kvstore.wire.link.random.uniform", lambda *_: 1e9)
        await asyncio.sleep(0.05)  # let it wait for what is longer than this test
        b = Node(N2, a.peers)
        await b.start()
        await until(lambda: a.linked() and b.linked())
        await b.transport.close()


async def test_back_off_grows_to_its_limit_and_is_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    timeout = asyncio.timeout

    def noting(delay: float) -> asyncio.Timeout:
        pauses.append(delay)
        return timeout(0)

    limits = LinkLimits(backoff_min_s=0.001, backoff_max_s=8.0)
    link = Link(N2, {N2: ("127.0.0.1", 9)}, hello(N1, to=N2), ORDERING_CODEC, limits, SECRET)

    async def refused() -> None:
        pass

    monkeypatch.setattr(link, "_connect", refused)
    monkeypatch.setattr("kvstore.wire.link.asyncio.timeout", noting)
    link.start()
    await until(lambda: len(pauses) > 40)
    await link.close()
    assert all(0.5 <= (p + 0.001) / min(8.0, 0.001 * 2**n) <= 1 for n, p in enumerate(pauses, 1))
    assert len({round(p, 9) for p in pauses[20:40]}) > 10


async def test_peers_that_do_not_connect_delay_no_other_peer() -> None:
    """One peer does not answer, another does not exist."""
    n4 = NodeId("n4")

    async def mute(wire: Wire) -> None:
        await wire.reader.read()

    async with nodes(N1, N3, absent=[N2, n4]) as (a, c), listener(mute) as address:
        a.peers[N2] = c.peers[N2] = address
        await until(lambda: a.count("sends", N3))
        for value in range(20):
            for node in (N2, N3, n4):
                a.send(node, number(value))
        await until(lambda: len(c.numbers()) == 20)
        assert a.count("dropped", N2) == a.count("dropped", n4) == 20


async def test_a_link_can_be_closed_at_any_moment() -> None:
    """It leaves no socket open: uvloop does not close one whose connecting is cancelled."""

    async def accept(wire: Wire) -> None:
        await welcome(wire)
        await wire.ended()

    async with listener(accept) as address:
        before = len(os.listdir("/dev/fd"))
        for turns in range(100):
            link = Link(N2, {N2: address}, hello(N1, to=N2), ORDERING_CODEC, QUICK, SECRET)
            link.start()
            await asyncio.sleep(turns * 5e-5)
            await link.close()
            assert not link.connected
        await until(lambda: len(os.listdir("/dev/fd")) == before)


async def test_a_port_connected_to_itself_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP does that when no process listens and the port is free to dial from."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    class FromThatPort(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.bind(("127.0.0.1", port))

    with monkeypatch.context() as patched:
        patched.setattr("kvstore.wire.link.socket.socket", FromThatPort)
        with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}"):
            await _reach("127.0.0.1", port)
    socket.create_server(("127.0.0.1", port)).close()


async def test_a_node_at_the_address_of_another_is_not_spoken_to() -> None:
    async with nodes(N1, N3, absent=[N2]) as (a, c):
        await until(lambda: a.count("sends", N3))
        a.peers[N2] = c.address
        await until(lambda: a.count("refused", N2) > 1)
        assert "the Hello is for 'n2'; this is 'n3'" in a.count("problem", N2)
        a.send(N2, number(1))
        a.send(N3, number(2))
        await until(lambda: c.numbers())
        assert c.numbers() == [2]  # and the link that was there is still there
        assert c.count("connections", N1) == 2


@pytest.mark.parametrize(
    "answer",
    [
        framed(b"\xff" * 20),
        framed(b""),
        framed(Answer(welcome=Welcome(proof=bytes(32))).SerializeToString()),
        framed(hello(N2).SerializeToString()),
        (HELLO_MAX + 1).to_bytes(4, "big"),
        framed(b"half an answer")[:-1],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
async def test_a_wrong_answer_to_hello_is_not_a_welcome(answer: bytes) -> None:
    attempts = 0

    async def wrong(wire: Wire) -> None:
        nonlocal attempts
        await wire.read()
        wire.write(answer)
        attempts += 1
        if len(answer) < 4 + int.from_bytes(answer[:4], "big") <= HELLO_MAX:
            wire.writer.write_eof()
        await wire.ended()

    async with nodes(N1, absent=[N2]) as (a,), listener(wrong) as address:
        a.peers[N2] = address
        await until(lambda: attempts >= 3)
        assert a.count("bad_frames", N2) + a.count("refused", N2) >= 2
        assert a.count("connections", N2) == 0


@pytest.mark.parametrize("ending", ["reset", "closed", "garbage"])
async def test_a_connection_that_fails_at_once_leaks_no_socket(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the loop has the socket, that is. Python must not take the socket for open afterwards."""
    server = socket.create_server(("127.0.0.1", 0))
    reached: list[socket.socket] = []
    others: list[socket.socket] = []

    async def reach(*address: object) -> socket.socket:
        reached.append(socket.create_connection(server.getsockname()))
        other, _ = server.accept()
        if ending == "garbage":
            other.sendall(b"\xff" * 10)
            others.append(other)
        elif ending == "reset":
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if ending != "garbage":
            other.close()
        reached[-1].settimeout(0)
        return reached[-1]

    monkeypatch.setattr("kvstore.wire.link._reach", reach)
    link = Link(N2, {N2: ("", 0)}, hello(N1, to=N2), ORDERING_CODEC, QUICK, SECRET)
    link.start()
    await until(lambda: len(reached) > 5)
    await link.close()
    assert [sock.fileno() for sock in reached] == [-1] * len(reached)
    assert "the peer closed the connection" in link.problem
    assert link.counts.bad_frames >= (5 if ending == "garbage" else 0)
    for sock in (server, *others):
        sock.close()


async def test_a_peer_that_only_reads_may_not_speak() -> None:
    async def talks(wire: Wire) -> None:
        await welcome(wire)
        wire.say(replica(N2), replica(N1), number(1))
        await wire.ended()

    async with nodes(N1, absent=[N2]) as (a,), listener(talks) as address:
        a.peers[N2] = address
        await until(lambda: a.count("bad_frames", N2) > 1)
        assert not a.frames
