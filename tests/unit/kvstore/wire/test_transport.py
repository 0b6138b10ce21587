"""Connections between nodes, and from clients, over real sockets on this machine's loopback.

Nothing here waits for a time to pass, except where passing time is what is tested; and then it waits for
what must happen, as long as it takes. Every test runs on asyncio's loop and on uvloop's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import random
import socket
import struct
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import pytest
import uvloop
from wbkv_proto.link_pb2 import Answer, Hello, Reason, Welcome

from kvstore.bare.client import MulticastClient
from kvstore.config.addresses import Address, NodeId
from kvstore.local.cluster import free_ports
from kvstore.node.ports import Network
from kvstore.wire.connection import HELLO_MAX, SWEEPS, LinkLimits
from kvstore.wire.frames import ORDERING_CODEC, PROTOCOL_VERSION, Envelope
from kvstore.wire.link import Link, _reach
from kvstore.wire.transport import Transport
from multicast.client import Reply
from multicast.errors import InvalidArgument
from multicast.messages import CatchUp, Deliver, Hint, Message, Multicast
from multicast.topology import Topology
from multicast.types import NO_BALLOT, Ballot, ClientId, GroupId, MessageId, Process, ReplicaId, Timestamp

Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]

encode = ORDERING_CODEC.encode
CLUSTER, HASH = "the cluster", b"the topology"
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
G0, G1 = GroupId(0), GroupId(1)
CLIENT = ClientId(2**64 - 7)
QUICK = LinkLimits(handshake_s=20.0, idle_s=60.0, backoff_min_s=0.002, backoff_max_s=0.02)
SMALL = LinkLimits(
    frame=64 << 10, buffer=1 << 20, handshake_s=20.0, idle_s=60.0, backoff_min_s=0.002, backoff_max_s=0.02
)
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a test's coroutine, not for ever, and fails if anything went wrong behind its back."""
    problems: list[dict[str, Any]] = []

    async def bounded(main: Coroutine[Any, Any, None]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with asyncio.timeout(60):
            await main

    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(bounded(main))

    yield run
    assert not problems


async def until(condition: Callable[[], object]) -> None:
    """Wait for what must happen; the test's own time-out ends it if it does not."""
    while not condition():
        await asyncio.sleep(0.001)


# Nodes that record what comes. The replica of node nX has number X.


def replica(node: NodeId, group: GroupId = G0) -> ReplicaId:
    return ReplicaId(group, int(node[1:]), 0)


def lives_on(node: NodeId, process: Process) -> bool:
    return isinstance(process, ReplicaId) and process.number == int(node[1:])


class Node:
    """A transport, and all that it has handed over."""

    def __init__(
        self,
        me: NodeId,
        peers: dict[NodeId, Address],
        limits: LinkLimits = QUICK,
        *,
        cluster: str = CLUSTER,
        topology: bytes = HASH,
        port: int = 0,
        delays: dict[tuple[NodeId, NodeId], float] | None = None,
        incarnation: int = 0,
    ) -> None:
        self.me = me
        self.peers = peers
        self.disks: list[tuple[NodeId, int]] = []
        self.frames: list[tuple[NodeId, list[Envelope]]] = []
        self.sizes: list[int] = []
        self.requests: list[tuple[ClientId, list[Envelope]]] = []
        self.heard: Callable[[], None] = lambda: None
        self.transport = Transport(
            me, cluster, topology, peers,
            codec=ORDERING_CODEC, on_frame=self.on_frame, on_client=self.on_client, lives_on=lives_on,
            on_peer=lambda node, incarnation: self.disks.append((node, incarnation)),
            listen=("127.0.0.1", port), limits=limits, delays=delays, incarnation=incarnation,
        )  # fmt: skip
        network: Network = self.transport  # to the type checker
        self.network = network
        self.address: Address = ("", 0)

    def on_frame(self, node: NodeId, envelopes: list[Envelope], size: int) -> None:
        self.frames.append((node, envelopes))
        self.sizes.append(size)
        self.heard()

    def on_client(self, client: ClientId, envelopes: list[Envelope], size: int) -> None:
        self.requests.append((client, envelopes))
        self.sizes.append(size)
        self.heard()

    async def start(self) -> None:
        self.address = self.peers[self.me] = await self.transport.start()

    def send(self, node: NodeId, *messages: Message) -> None:
        self.transport.send(node, [(replica(self.me), replica(node), messages)])

    def numbers(self, node: NodeId | None = None) -> list[int]:
        """What `CatchUp`s have come, from one node or all."""
        return [
            message.after
            for sender, envelopes in self.frames
            if node in (None, sender)
            for _, _, messages in envelopes
            for message in messages
            if isinstance(message, CatchUp)
        ]

    def count(self, name: str, node: NodeId | None = None) -> Any:
        statistics = self.transport.statistics()
        return statistics["peers"][node][name] if node is not None else statistics["strangers"][name]

    def linked(self) -> bool:
        return all(
            peer["sends"] and peer["receives"] for peer in self.transport.statistics()["peers"].values()
        )


def number(value: int) -> CatchUp:
    """A message that can be told from others."""
    return CatchUp(Timestamp(value))


def large(value: int, size: int, client: ClientId = CLIENT) -> Multicast:
    payload = random.Random(value).randbytes(size)
    return Multicast(MessageId(client, value, value), (G0,), payload, 1)


@asynccontextmanager
async def nodes(
    *names: NodeId, limits: LinkLimits = QUICK, absent: Sequence[NodeId] = (), **options: Any
) -> Any:
    """Nodes that are connected to each other; those that are absent are known, but nowhere."""
    peers: dict[NodeId, Address] = dict.fromkeys((*names, *absent), ("127.0.0.1", 9))
    made = [Node(name, peers, limits, **options) for name in names]
    try:
        for node in made:
            await node.start()
        if not absent:
            await until(lambda: all(node.linked() for node in made))
        yield made
    finally:
        for node in made:
            await node.transport.close()


# The other side, by hand.


def hello(node: NodeId | None = None, client: ClientId | None = None, **changes: Any) -> Hello:
    said: dict[str, Any] = {
        "version": PROTOCOL_VERSION,
        "cluster": CLUSTER,
        "topology_hash": HASH,
        "connection": 5,
        "to": N1,
    }
    who: dict[str, Any] = {"client": client} if node is None else {"node": node}
    return Hello(**(said | who | changes))


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class Wire:
    """One end of a connection, without any rules."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, address: Address, *greeting: Hello) -> Wire:
        """Connect, and expect to be welcomed."""
        wire = cls(*await asyncio.open_connection(*address))
        for each in greeting:
            wire.write(framed(each.SerializeToString()))
            answer = await wire.answer()
            assert answer.HasField("welcome"), answer
        return wire

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def say(self, sender: Process, receiver: Process, *messages: Message | Reply) -> None:
        self.write(framed(encode([(sender, receiver, messages)])))

    async def read(self) -> bytes:
        return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))

    async def answer(self) -> Answer:
        return Answer.FromString(await self.read())

    async def ended(self) -> None:
        """The other side hangs up."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def listener(visit: Callable[[Wire], Awaitable[None]], port: int = 0) -> Any:
    """Somebody else's idea of a node."""
    tasks: list[asyncio.Task[None]] = []
    wires: list[Wire] = []

    async def visited(wire: Wire) -> None:
        try:
            await visit(wire)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            wire.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wires.append(Wire(reader, writer))
        tasks.append(asyncio.get_running_loop().create_task(visited(wires[-1])))

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for wire in wires:
            wire.abort()


async def welcome(wire: Wire) -> None:
    said = Hello.FromString(await wire.read())
    answer = Answer(welcome=Welcome(connection=said.connection))
    wire.write(framed(answer.SerializeToString()))


# Frames


def test_frames_arrive_whole_and_in_order(run: Run) -> None:
    async def main() -> None:
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

    run(main())


def test_a_turns_messages_to_a_node_are_one_frame(run: Run) -> None:
    async def main() -> None:
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

    run(main())


def test_large_frames_go_through_and_larger_ones_are_split(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N2, limits=LinkLimits(frame=4 << 20, buffer=64 << 20)) as (a, b):
            one = large(1, (4 << 20) - 200)
            a.send(N2, one)
            many = [large(n, 600_000) for n in range(30)]
            a.transport.send(
                N2, [(replica(N1), replica(N2), many[:25]), (replica(N1), replica(N2), many[25:])]
            )
            await until(lambda: sum(len(e[2]) for _, envelopes in b.frames for e in envelopes) == 31)
            assert b.frames[0] == (N1, [(replica(N1), replica(N2), [one])])
            rest = [message for _, envelopes in b.frames[1:] for e in envelopes for message in e[2]]
            assert rest == many
            assert max(b.sizes) <= 4 << 20
            assert b.count("bad_frames", N1) == 0

    run(main())


def test_a_message_that_fits_no_frame_ends_the_connection_it_is_missing_from(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N2, limits=SMALL) as (a, b):
            before = b.transport._acceptor.peers[N1]
            a.send(N2, number(1), large(1, 100_000), number(2))
            a.send(N2, number(3))
            await until(lambda: before.over and a.linked() and b.linked())
            a.send(N2, number(4))
            await until(lambda: 4 in b.numbers())
            assert b.numbers() in ([4], [1, 4])  # a connection that is reset may lose what went before
            assert a.count("resets", N2) == 1
            assert a.count("dropped", N2) == 3

    run(main())


def test_frames_may_come_in_any_pieces(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, absent=[N2]) as (a,):
            wire = await Wire.dial(a.address)
            stream = framed(hello(N2).SerializeToString())
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

    run(main())


def test_what_was_sent_leaves_before_a_node_closes(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N2) as (a, b):
            for value in range(100):
                a.send(N2, number(value), large(value, 200_000))
            await a.transport.close()
            await until(lambda: len(b.frames) == 100)
            assert b.numbers() == list(range(100))

    run(main())


def test_only_peers_can_be_sent_to(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N2) as (a, _):
            for nobody in (N1, N3):
                with pytest.raises(InvalidArgument, match=repr(nobody)):
                    a.send(nobody, number(1))
                with pytest.raises(InvalidArgument, match=repr(nobody)):
                    a.transport.cut(nobody, incoming=True)

    run(main())


def test_statistics_are_plain(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N2) as (a, _):
            statistics = a.transport.statistics()
            assert json.loads(json.dumps(statistics)) == statistics
            assert set(statistics) == {"peers", "clients", "strangers"}

    run(main())


@pytest.mark.parametrize(
    "wrong", [{"frame": 0}, {"idle_s": float("nan")}, {"frame": 1 << 32, "buffer": 1 << 40}, {"buffer": 1000}]
)
def test_limits_must_make_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        LinkLimits(**wrong)


# Losing connections


def test_a_node_that_comes_back_is_connected_again(run: Run) -> None:
    async def main() -> None:
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

    run(main())


def test_a_node_that_connects_is_dialled_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the back-off has become meanwhile."""

    async def main() -> None:
        async with nodes(N1, absent=[N2]) as (a,):
            await until(lambda: "cannot connect" in a.count("problem", N2))
            monkeypatch.setattr("kvstore.wire.link.random.uniform", lambda *_: 1e9)
            await asyncio.sleep(0.05)  # let it wait for what is longer than this test
            b = Node(N2, a.peers)
            await b.start()
            await until(lambda: a.linked() and b.linked())
            await b.transport.close()

    run(main())


def test_back_off_grows_to_its_limit_and_is_jittered(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pauses: list[float] = []
        timeout = asyncio.timeout

        def noting(delay: float) -> asyncio.Timeout:
            pauses.append(delay)
            return timeout(0)

        limits = LinkLimits(backoff_min_s=0.001, backoff_max_s=8.0)
        link = Link(N2, {N2: ("127.0.0.1", 9)}, hello(N1), ORDERING_CODEC, limits)

        async def refused() -> None:
            pass

        monkeypatch.setattr(link, "_connect", refused)
        monkeypatch.setattr("kvstore.wire.link.asyncio.timeout", noting)
        link.start()
        await until(lambda: len(pauses) > 40)
        await link.close()
        assert all(0.5 <= (p + 0.001) / min(8.0, 0.001 * 2**n) <= 1 for n, p in enumerate(pauses, 1))
        assert len({round(p, 9) for p in pauses[20:40]}) > 10

    run(main())


def test_a_new_connection_takes_the_place_of_the_old(run: Run) -> None:
    async def main() -> None:
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

    run(main())


def test_what_is_left_of_a_superseded_connection_is_not_read(run: Run) -> None:
    """Also what had come already, when it is superseded while the node has paused."""

    async def main() -> None:
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

    run(main())


def test_a_slow_reader_is_reset_and_hurts_nobody(run: Run) -> None:
    async def main() -> None:
        visits = 0
        go = asyncio.Event()

        async def never_reads(wire: Wire) -> None:
            nonlocal visits
            await welcome(wire)
            visits += 1
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it wrong
            await go.wait()

        limits = SMALL
        async with nodes(N1, N3, absent=[N2], limits=limits) as (a, c), listener(never_reads) as address:
            a.peers[N2] = address
            await until(lambda: a.count("sends", N2) and a.count("sends", N3))
            payload = large(1, 50_000)
            a.send(N2, payload)  # so that nothing is measured that happens once only
            tracemalloc.start()
            sent, most = 0, 0
            link = a.transport._links[N2]
            connection = link._connection
            assert connection is not None
            while not a.count("resets", N2):
                a.send(N2, payload)
                if not connection.over:
                    most = max(most, connection.transport.get_write_buffer_size())
                a.send(N3, number(sent))
                sent += 1
                await asyncio.sleep(0)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            await until(lambda: len(c.numbers()) == sent)
            assert c.numbers() == list(range(sent))
            assert 50_000 < most <= limits.buffer
            assert peak < 3 * limits.buffer
            assert a.count("resets", N3) == c.count("resets", N1) == 0
            await until(lambda: visits == 2)
            await until(lambda: a.count("sends", N2))
            go.set()

    run(main())


def test_who_does_not_connect_delays_nobody(run: Run) -> None:
    """One peer does not answer, another does not exist."""

    async def main() -> None:
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

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is Linux's")
def test_a_reader_that_stays_away_is_given_up_before_the_buffer_is_full(run: Run) -> None:
    async def main() -> None:
        stay = asyncio.Event()
        visits = 0

        async def never_reads(wire: Wire) -> None:
            nonlocal visits
            await welcome(wire)
            visits += 1
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it wrong
            await stay.wait()

        limits = LinkLimits(idle_s=0.4, backoff_min_s=0.002, backoff_max_s=0.02)
        async with nodes(N1, absent=[N2], limits=limits) as (a,), listener(never_reads) as address:
            a.peers[N2] = address
            await until(lambda: a.count("sends", N2))
            a.send(N2, large(1, 12 << 20))
            await until(lambda: visits == 2)
            assert a.count("resets", N2) == 0
            stay.set()

    run(main())


def test_a_link_can_be_closed_at_any_moment(run: Run) -> None:
    """And leaves nothing open: uvloop does not close what is cancelled while it connects."""

    async def main() -> None:
        async def visited(wire: Wire) -> None:
            await welcome(wire)
            await wire.ended()

        async with listener(visited) as address:
            before = len(os.listdir("/dev/fd"))
            for turns in range(100):
                link = Link(N2, {N2: address}, hello(N1), ORDERING_CODEC, QUICK)
                link.start()
                await asyncio.sleep(turns * 5e-5)
                await link.close()
                assert not link.connected
            await until(lambda: len(os.listdir("/dev/fd")) == before)

    run(main())


def test_a_port_connected_to_itself_is_given_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP does that when nobody listens and the port is free to dial from."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    class FromThatPort(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.bind(("127.0.0.1", port))

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr("kvstore.wire.link.socket.socket", FromThatPort)
            with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}"):
                await _reach("127.0.0.1", port)
        socket.create_server(("127.0.0.1", port)).close()

    run(main())


# Silence


def test_a_silent_peer_is_closed(run: Run) -> None:
    async def main() -> None:
        limits = LinkLimits(idle_s=0.1)
        async with nodes(N1, absent=[N2], limits=limits) as (a,):
            for who in (hello(N2), hello(client=CLIENT)):
                wire = await Wire.dial(a.address, who)
                await wire.ended()
            assert a.count("timeouts", N2) == a.transport.statistics()["clients"]["timeouts"] == 1

    run(main())


def test_whoever_speaks_is_not_closed_and_links_always_do(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N2) as (a, b):
            wire = await Wire.dial(a.address, hello(client=CLIENT))
            visitor = b.transport._acceptor.peers[N1]
            guest = a.transport._acceptor.clients[CLIENT]
            for _ in range(3 * SWEEPS):
                a.transport._sweep()
                b.transport._sweep()
                wire.write(bytes(4))
                await until(lambda: visitor.silent == 0 and guest.silent == 0)
            assert a.linked()
            assert b.linked()
            assert a.count("frames_in", N2) == b.count("frames_in", N1) == 0
            for _ in range(SWEEPS):
                a.transport._acceptor.sweep()
            assert not guest.over
            a.transport._acceptor.sweep()
            await wire.ended()

    run(main())


def test_who_is_not_read_from_is_not_silent(run: Run) -> None:
    async def main() -> None:
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

    run(main())


# Back-pressure


def test_a_paused_node_gets_nothing_and_then_everything_in_order(run: Run) -> None:
    async def main() -> None:
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
            places = [e[2][0].mid.sequence for client, [e] in a.requests if client == CLIENT]
            assert places == list(range(100))
            wire.abort()

    run(main())


def test_a_paused_node_does_not_read_on(run: Run) -> None:
    """The sender notices; what has come and waits here is one read of the loop at most."""

    async def main() -> None:
        async with nodes(N1, N2) as (a, b):
            a.transport.pause(paused=True)
            for value in range(20):
                b.send(N1, large(value, 1_000_000))
            visitor = a.transport._acceptor.peers[N2]
            await asyncio.sleep(0.05)
            assert len(visitor._rest) < 1 << 20
            link = b.transport._links[N1]._connection
            assert link is not None
            assert link.transport.get_write_buffer_size() > 1_000_000
            a.transport.pause(paused=False)
            await until(lambda: len(a.frames) == 20)

    run(main())


# Hand-shakes

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


def test_a_node_that_nobody_knows_says_where_it_is_and_is_dialled(run: Run) -> None:
    async def main() -> None:
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

    run(main())


def test_the_number_of_nodes_is_limited(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, absent=[N2], limits=dataclasses.replace(QUICK, peers=2)) as (a,):
            for number, name in enumerate(("n3", "n4")):
                wire = await Wire.dial(a.address)
                said = hello(NodeId(name), address=f"127.0.0.1:{number + 1}")
                wire.write(framed(said.SerializeToString()))
                answer = await wire.answer()
                assert answer.HasField("welcome") == (name == "n3")
                wire.abort()
            assert answer.refusal.reason == Reason.TOO_MANY_CONNECTIONS

    run(main())


def test_a_peer_is_added_once(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N2) as (a, b):
            for _ in range(2):
                a.transport.add_peer(N1, ("127.0.0.1", 9))
                a.transport.add_peer(N2, ("127.0.0.1", 9))
            a.send(N2, number(7))
            await until(lambda: b.numbers() == [7])
            assert list(a.transport.statistics()["peers"]) == [N2]

    run(main())


@pytest.mark.parametrize("case", REFUSALS)
def test_who_does_not_belong_is_told_why_and_logged_once(
    run: Run, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    said, reason, text = REFUSALS[case]

    async def main() -> None:
        async with nodes(N1, absent=[N2]) as (a,):
            caplog.clear()
            for _ in range(3):
                wire = await Wire.dial(a.address)
                wire.write(framed(said.SerializeToString()) + framed(b"more"))
                answer = await wire.answer()
                assert answer.refusal.reason == reason
                assert text in answer.refusal.text
                await wire.ended()
            statistics = a.transport.statistics()
            everybody = [*statistics["peers"].values(), statistics["clients"], statistics["strangers"]]
            assert sum(counts["refusals"] for counts in everybody) == 3
            assert not any(counts["connections"] or counts["bad_frames"] for counts in everybody)
            assert sum(text in record.getMessage() for record in caplog.records) == 1

    run(main())


def test_nodes_of_two_clusters_leave_each_other_alone(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
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
            if r.levelno >= logging.WARNING and "refused" in r.msg % r.args
        ]
        assert len(warnings) == 4  # each of the two refuses, and is refused
        for node in (a, b):
            await node.transport.close()

    run(main())


def test_a_node_at_the_address_of_another_is_not_spoken_to(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N3, absent=[N2]) as (a, c):
            await until(lambda: a.count("sends", N3))
            a.peers[N2] = c.address
            await until(lambda: a.count("refused", N2) > 1)
            assert "you mean 'n2'; I am 'n3'" in a.count("problem", N2)
            a.send(N2, number(1))
            a.send(N3, number(2))
            await until(lambda: c.numbers())
            assert c.numbers() == [2]  # and the link that was there is still there
            assert c.count("connections", N1) == 2

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        framed(b"\xff" * 20),
        framed(b""),
        framed(Answer(welcome=Welcome(connection=1)).SerializeToString()),
        framed(hello(N2).SerializeToString()),
        (HELLO_MAX + 1).to_bytes(4, "big"),
        framed(b"half an answer")[:-1],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_a_wrong_answer_to_hello_is_no_welcome(run: Run, answer: bytes) -> None:
    async def main() -> None:
        visits = 0

        async def wrong(wire: Wire) -> None:
            nonlocal visits
            await wire.read()
            wire.write(answer)
            visits += 1
            if len(answer) < 4 + int.from_bytes(answer[:4], "big") <= HELLO_MAX:
                wire.writer.write_eof()
            await wire.ended()

        async with nodes(N1, absent=[N2]) as (a,), listener(wrong) as address:
            a.peers[N2] = address
            await until(lambda: visits >= 3)
            assert a.count("bad_frames", N2) + a.count("refused", N2) >= 2
            assert a.count("connections", N2) == 0

    run(main())


@pytest.mark.parametrize("ending", ["reset", "closed", "garbage"])
def test_a_connection_that_fails_at_once_is_no_trouble(
    run: Run, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the loop has the socket, that is. Python must not take the socket for open afterwards."""

    async def main() -> None:
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
        link = Link(N2, {N2: ("", 0)}, hello(N1), ORDERING_CODEC, QUICK)
        link.start()
        await until(lambda: len(reached) > 5)
        await link.close()
        assert [sock.fileno() for sock in reached] == [-1] * len(reached)
        assert "hung up" in link.problem
        assert link.counts.bad_frames >= (5 if ending == "garbage" else 0)
        for sock in (server, *others):
            sock.close()

    run(main())


def test_a_peer_that_only_reads_may_not_speak(run: Run) -> None:
    async def main() -> None:
        async def talks(wire: Wire) -> None:
            await welcome(wire)
            wire.say(replica(N2), replica(N1), number(1))
            await wire.ended()

        async with nodes(N1, absent=[N2]) as (a,), listener(talks) as address:
            a.peers[N2] = address
            await until(lambda: a.count("bad_frames", N2) > 1)
            assert not a.frames

    run(main())


def test_who_says_nothing_is_closed(run: Run) -> None:
    async def main() -> None:
        async def mute(wire: Wire) -> None:
            await wire.reader.read()

        limits = LinkLimits(handshake_s=0.05, backoff_min_s=0.002, backoff_max_s=0.02)
        async with nodes(N1, absent=[N2], limits=limits) as (a,), listener(mute) as address:
            for start in (b"", b"\0", framed(hello(N2).SerializeToString())[:-1]):
                wire = await Wire.dial(a.address)
                wire.write(start)
                await wire.ended()
            assert a.count("timeouts") == 3
            a.peers[N2] = address
            await until(lambda: "no answer" in a.count("problem", N2))

    run(main())


def test_the_number_of_connections_is_limited(run: Run) -> None:
    async def main() -> None:
        limits = LinkLimits(strangers=3, clients=2, handshake_s=60.0, backoff_min_s=0.002, backoff_max_s=0.02)
        async with nodes(N1, absent=[N2], limits=limits) as (a,):
            strangers = [await Wire.dial(a.address) for _ in range(3)]
            await until(lambda: a.count("connected") == 3)
            refused = await Wire.dial(a.address)
            assert (await refused.answer()).refusal.reason == Reason.TOO_MANY_CONNECTIONS
            await refused.ended()
            strangers.pop().abort()
            await until(lambda: a.count("connected") == 2)
            clients = [await Wire.dial(a.address, hello(client=ClientId(n))) for n in (1, 2)]
            one_more = await Wire.dial(a.address)
            one_more.write(framed(hello(client=CLIENT).SerializeToString()))
            assert (await one_more.answer()).refusal.reason == Reason.TOO_MANY_CONNECTIONS
            await one_more.ended()
            peer = await Wire.dial(a.address, hello(N2))  # nodes are not kept out by clients
            clients.pop().abort()
            await until(lambda: a.transport.statistics()["clients"]["connected"] == 1)
            clients.append(await Wire.dial(a.address, hello(client=CLIENT)))
            for wire in (*strangers, *clients, peer):
                wire.abort()

    run(main())


def test_who_does_not_say_who_it_is_is_not_welcome(run: Run) -> None:
    async def main() -> None:
        nobody = hello(N2)
        nobody.ClearField("node")
        async with nodes(N1, absent=[N2]) as (a,):
            wire = await Wire.dial(a.address)
            wire.write(framed(nobody.SerializeToString()))
            await wire.ended()
            assert a.count("bad_frames") == 1

    run(main())


# Bytes that no correct node sends

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
def test_a_wrong_frame_closes_its_connection_only(run: Run, case: str) -> None:
    async def main() -> None:
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

    run(main())


@pytest.mark.parametrize("cut", [1, 3, 4, 5, -1])
def test_a_truncated_frame_is_counted(run: Run, cut: int) -> None:
    async def main() -> None:
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

    run(main())


def test_an_announced_length_takes_no_memory(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, absent=[N2]) as (a,):
            wires = [await Wire.dial(a.address, hello(client=ClientId(n))) for n in range(1, 21)]
            tracemalloc.start()
            for wire in wires:
                wire.write(QUICK.frame.to_bytes(4, "big") + bytes(10))
            visitors = list(a.transport._acceptor.client_connections)
            await until(lambda: all(len(visitor._rest) == 14 for visitor in visitors))
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 8 << 20
            for wire in wires:
                wire.abort()

    run(main())


def test_garbage_never_hurts_the_node(run: Run) -> None:
    rng = random.Random(5)
    start = framed(hello(N2).SerializeToString())

    def garbage() -> bytes:
        choice = rng.randrange(4)
        if choice == 0:
            return rng.randbytes(rng.randrange(1, 200))
        if choice == 1:
            return start + rng.randbytes(rng.randrange(1, 200))
        stream = bytearray(start + framed(GOOD) * 3)
        if choice == 2:
            for _ in range(rng.randrange(1, 6)):
                stream[rng.randrange(len(stream))] = rng.randrange(256)
        else:
            del stream[rng.randrange(len(stream)) :]
            stream += rng.randbytes(20)
        return bytes(stream)

    async def main() -> None:
        async with nodes(N1, N3, absent=[N2]) as (a, c):
            await until(lambda: c.count("sends", N1))
            for value in range(300):
                wire = await Wire.dial(a.address)
                wire.write(garbage())
                wire.writer.write_eof()
                await wire.ended()
                c.send(N1, number(value))
            await until(lambda: len(a.numbers(N3)) == 300)
            assert a.numbers(N3) == list(range(300))
            assert a.count("bad_frames") > 20
            assert a.count("bad_frames", N2) > 20
            await until(lambda: a.count("connected") == 0)

    run(main())


# Clients


def test_clients_multicast_and_are_answered_where_they_last_spoke(run: Run) -> None:
    async def main() -> None:
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
            await until(lambda: a.transport.statistics()["clients"]["connected"] == 1)
            a.transport.answer(answers)
            nobody: Envelope = (replica(N1), ClientId(5), [reply])
            a.transport.answer(iter([nobody]))
            assert a.transport.statistics()["clients"]["dropped"] == 3
            second.say(CLIENT, replica(N1), large(4, 10))
            await until(lambda: len(a.requests) == 3)
            a.transport.answer(answers)
            assert await second.read() == encode(answers)
            assert a.transport.statistics()["clients"]["frames_out"] == 4
            third = await Wire.dial(a.address, hello(client=CLIENT))
            second.abort()
            await until(lambda: a.transport.statistics()["clients"]["connected"] == 1)
            a.transport.answer(answers)
            assert await third.read() == encode(answers)
            third.abort()

    run(main())


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
def test_clients_may_only_multicast_in_their_own_name(run: Run, case: str) -> None:
    async def main() -> None:
        async with nodes(N1, absent=[N2]) as (a,):
            wire = await Wire.dial(a.address, hello(client=CLIENT))
            wire.say(CLIENT, replica(N1), large(1, 10))
            wire.write(framed(FORBIDDEN[case]))
            wire.say(CLIENT, replica(N1), large(2, 10))
            await wire.ended()
            await until(lambda: not a.transport.statistics()["clients"]["connected"])
            assert a.requests == [(CLIENT, [(CLIENT, replica(N1), [large(1, 10)])])]
            assert a.transport.statistics()["clients"]["bad_frames"] == 1

    run(main())


def test_a_client_that_does_not_read_its_answers_is_reset(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, absent=[N2], limits=SMALL) as (a,):
            wire = await Wire.dial(a.address, hello(client=CLIENT))
            wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed has it wrong
            answers = [Reply((large(n, 1).mid,), G0, (Timestamp(1),)) for n in range(2000)]
            while not a.transport.statistics()["clients"]["resets"]:
                a.transport.answer([(replica(N1), CLIENT, answers)])
                await asyncio.sleep(0)
            await until(lambda: not a.transport.statistics()["clients"]["connected"])
            wire.abort()

    run(main())


# Emulation and faults


def test_delays_keep_the_order(run: Run) -> None:
    async def main() -> None:
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

    run(main())


def test_what_is_delayed_counts_as_unsent_and_is_lost_with_its_connection(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N2, limits=SMALL, delays={(N1, N2): 3600.0}) as (a, b):
            for value in range(30):
                a.send(N2, large(value, 50_000))
                assert a.count("resets", N2) == (value >= 20)
            await until(lambda: not a.count("sends", N2))
            assert not b.frames

    run(main())


def test_cuts_drop_frames_one_way_and_end(run: Run) -> None:
    async def main() -> None:
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
                lambda: all(visitor.over for visitor in before) and a.linked() and b.linked() and c.linked()
            )
            a.send(N2, number(7))
            a.send(N3, number(8))
            await until(lambda: b.frames and c.frames)
            assert b.numbers() == [7]
            assert c.numbers() == [8]

    run(main())


def test_a_cut_that_lost_nothing_leaves_the_connections(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, N2) as (a, b):
            a.transport.cut(N2, incoming=False)
            a.transport.cut(N2, incoming=True)
            a.transport.heal()
            a.send(N2, number(1))
            b.send(N1, number(2))
            await until(lambda: a.numbers() and b.numbers())
            assert a.count("connections", N2) == 2

    run(main())


# Listening


def test_a_taken_port_is_named(run: Run) -> None:
    async def main() -> None:
        async with nodes(N1, absent=[N2]) as (a,):
            host, port = a.address
            assert host == "127.0.0.1"
            assert port
            twin = Node(N1, a.peers, port=port)
            with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
                await twin.start()
            await twin.transport.close()

    run(main())


# The client of bare multicast

TOPOLOGY = Topology({g: [ReplicaId(g, n, 0) for n in (1, 2, 3)] for g in (G0, G1)})
LEADER = {G0: N1, G1: N2}


class Groups:
    """Three nodes that answer at once: a stand-in for ordering. Each group has a leader, if any."""

    def __init__(self, members: list[Node]) -> None:
        self.nodes = {node.me: node for node in members}
        self.leader: dict[GroupId, NodeId | None] = dict(LEADER)
        self.hints: dict[GroupId, Ballot] = {}
        """What others than the leader say."""
        self.places: dict[tuple[GroupId, MessageId], Timestamp] = {}
        for node in members:
            node.heard = lambda node=node: self.answer(node)  # type: ignore[misc]  # bound early

    def answer(self, node: Node) -> None:
        _, envelopes = node.requests[-1]
        answers: list[Envelope] = []
        for client, receiver, messages in envelopes:
            assert isinstance(receiver, ReplicaId)
            group = receiver.group
            for message in messages:
                assert isinstance(message, Multicast)
                if self.leader[group] == node.me:
                    place = self.places.setdefault((group, message.mid), Timestamp(len(self.places) + 1))
                    answers.append((receiver, client, [Reply((message.mid,), group, (place,))]))
                elif group in self.hints:
                    answers.append((receiver, client, [Hint(group, self.hints[group])]))
        node.transport.answer(answers)

    def directory(self) -> dict[ReplicaId, tuple[NodeId, Address]]:
        return {
            replica(name, group): (name, node.address)
            for name, node in self.nodes.items()
            for group in (G0, G1)
        }

    def client(self, **options: Any) -> MulticastClient:
        usual: dict[str, Any] = {"limits": QUICK, "retry_s": 0.02, "client": CLIENT}
        return MulticastClient(CLUSTER, HASH, TOPOLOGY, self.directory(), **(usual | options))


@asynccontextmanager
async def groups(limits: LinkLimits = QUICK) -> Any:
    async with nodes(N1, N2, N3, limits=limits) as members:
        yield Groups(members)


def test_a_client_gets_the_place_in_each_group(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client() as client:
            one = await client.multicast([G0], b"one")
            call = client.multicast([G1, G0], b"both", timeout_s=3600.0)
            timer = next(iter(client._deadlines.values()))
            both = await call
            assert timer.cancelled()
            assert set(one) == {G0}
            assert set(both) == {G0, G1}
            places = {(G0, 1): one[G0]} | {(g, 2): ts for g, ts in both.items()}
            assert places == {(g, mid.sequence): ts for (g, mid), ts in service.places.items()}
            assert client.in_flight == 0

    run(main())


def test_a_clients_turn_is_one_frame_for_each_node(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client(retry_s=60.0) as client:
            for _ in range(3):
                calls = [client.multicast([G0, G1] if n % 2 else [G0], b"%d" % n) for n in range(500)]
                assert len(await asyncio.gather(*calls)) == 500
            assert [len(service.nodes[n].requests) for n in (N1, N2, N3)] == [3, 3, 0]
            messages = [m.mid.sequence for _, [e] in service.nodes[N1].requests for m in e[2]]
            assert messages == list(range(1, 1501))

    run(main())


def test_a_client_can_be_far_from_a_node_both_ways(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client(retry_s=60.0, delays_s={N1: 0.05}) as client:
            loop = asyncio.get_running_loop()
            far, heard, ended = service.nodes[N1], list[float](), list[int]()
            answer = far.heard

            def hear() -> None:
                heard.append(loop.time())
                answer()

            far.heard = hear
            started, calls = loop.time(), []
            for value in range(20):
                calls.append(client.multicast([G0], b"far %d" % value))
                calls[-1].add_done_callback(lambda _, value=value: ended.append(value))
                await asyncio.sleep(0)
            await client.multicast([G1], b"near")
            if loop.time() - started < 0.09:  # else this machine was busy, and they may have come
                assert not ended
            await asyncio.gather(*calls)
            assert heard[0] - started >= 0.045
            assert loop.time() - heard[-1] >= 0.045
            assert ended == list(range(20))
            sent = [message.mid.sequence for _, [e] in far.requests for message in e[2]]
            assert sent == list(range(1, 21))

    run(main())


def test_what_comes_from_far_away_is_lost_with_its_connection(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client(retry_s=0.5, delays_s={N1: 0.05}) as client:
            call = client.multicast([G0], b"x")
            await until(lambda: service.nodes[N1].requests)
            connection = client._links[N1]._connection
            assert connection is not None
            await until(lambda: connection._coming.bytes)
            connection.abort()
            await connection.lost
            assert not connection._coming.bytes
            assert not call.done()
            await call  # it is sent again, in time

    run(main())


@pytest.mark.parametrize("delay_s", [-0.1, float("inf"), float("nan")])
def test_a_clients_delays_are_checked(delay_s: float) -> None:
    directory = {replica(n, g): (n, ("127.0.0.1", 9)) for n in (N1, N2, N3) for g in (G0, G1)}
    with pytest.raises(InvalidArgument, match=r"delays_s: .* to n2 is not a time"):
        MulticastClient(CLUSTER, HASH, TOPOLOGY, directory, delays_s={N2: delay_s})


def test_a_client_follows_hints(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client(retry_s=60.0) as client:
            service.leader[G0] = N3
            service.hints[G0] = Ballot(4, replica(N3), 0)
            await client.multicast([G0, G1], b"hinted")
            await client.multicast([G0], b"at once")
            assert len(service.nodes[N1].requests) == 1
            assert len(service.nodes[N3].requests) == 2

    run(main())


def test_a_client_asks_again_and_everybody_when_its_leader_is_gone(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client() as client:
            await client.multicast([G0], b"before")
            await service.nodes[N1].transport.close()
            service.leader[G0] = N2
            assert set(await client.multicast([G0, G1], b"after")) == {G0, G1}

    run(main())


def test_a_client_finds_the_next_leader_of_a_node_that_is_gone(run: Run) -> None:
    """It need not wait until each of its messages would be repeated."""

    async def main() -> None:
        async with groups() as service, service.client() as client:
            await service.nodes[N1].transport.close()
            await until(lambda: not client.statistics()[N1]["connected"])
            calls = [client.multicast([G0], payload) for payload in (b"one", b"two")]
            for pending in client._sender.pending.values():
                pending.asked_at = float("inf")
            await until(lambda: service.nodes[N2].requests and service.nodes[N3].requests)
            service.leader[G0] = N2
            service.hints[G0] = Ballot(2, replica(N2), 0)
            assert [set(each) for each in await asyncio.gather(*calls)] == [{G0}, {G0}]

    run(main())


def test_a_client_sends_to_a_leader_that_has_come_back_at_once(run: Run) -> None:
    """It need not wait until each of its messages would be repeated."""

    async def main() -> None:
        async with groups() as service, service.client() as client:
            old = service.nodes[N1]
            await old.transport.close()
            await until(lambda: not client.statistics()[N1]["connected"])
            calls = [client.multicast([G0], payload) for payload in (b"one", b"two")]
            for pending in client._sender.pending.values():
                pending.asked_at = float("inf")
            again = Node(N1, old.peers, port=old.address[1])
            again.heard = lambda: service.answer(again)
            await again.start()
            assert [set(each) for each in await asyncio.gather(*calls)] == [{G0}, {G0}]
            await again.transport.close()

    run(main())


def test_a_client_connects_again(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client() as client:
            old = service.nodes[N1]
            await old.transport.close()
            call = client.multicast([G0], b"waits")
            await until(lambda: client.statistics()[N1]["dropped"])
            again = Node(N1, old.peers, port=old.address[1])
            again.heard = lambda: service.answer(again)
            await again.start()
            assert set(await call) == {G0}
            await again.transport.close()

    run(main())


def test_a_deadline_says_who_has_not_answered(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client() as client:
            service.leader[G1] = None
            with pytest.raises(TimeoutError, match=r"message 1 was not answered by group 1 within 0\.2 s"):
                await client.multicast([G0, G1], b"half", timeout_s=0.2)
            service.leader[G0] = None
            with pytest.raises(TimeoutError, match="groups 0, 1 within"):
                await client.multicast([G0, G1], b"none", timeout_s=0.01)
            assert client.in_flight == 2
            # It goes on, for the groups' sake, and the client's: they could not forget anything any more.
            service.leader = dict(LEADER)
            await until(lambda: client.in_flight == 0)
            assert client.late == 2
            assert await client.multicast([G0, G1], b"third", timeout_s=60)
            assert service.nodes[N1].requests[-1][1][0][2][0].ack_below == 3

    run(main())


def test_giving_up_waiting_is_harmless(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client() as client:
            service.leader[G0] = None
            call = client.multicast([G0], b"cancelled", timeout_s=0.01)
            call.cancel()
            await until(lambda: client.statistics()[N1]["frames_out"] > 2)
            service.leader[G0] = N1
            await until(lambda: client.in_flight == 0)

    run(main())


def test_closing_a_client_ends_what_waits(run: Run) -> None:
    async def main() -> None:
        async with groups() as service:
            service.leader[G1] = None
            client = service.client()
            with pytest.raises(ConnectionError, match="never started"):
                client.multicast([G0], b"early")
            await client.start()
            call = client.multicast([G0, G1], b"waits", timeout_s=100.0)
            await until(lambda: service.places)
            await client.close()
            with pytest.raises(ConnectionError, match="group"):
                await call
            with pytest.raises(ConnectionError, match="closed"):
                client.multicast([G0], b"late")

    run(main())


def test_a_client_that_no_node_wants_is_told(run: Run) -> None:
    async def main() -> None:
        async with groups() as service:
            wrong = MulticastClient("another", HASH, TOPOLOGY, service.directory(), limits=QUICK)
            with pytest.raises(ConnectionError, match=r"n1: rejected by the peer: .*'another'"):
                await wrong.start()
        with pytest.raises(ConnectionError, match="cannot connect"):
            await service.client().start()

    run(main())


def test_a_client_can_do_with_some_of_the_nodes(run: Run) -> None:
    async def main() -> None:
        async with groups() as service:
            await service.nodes[N3].transport.close()
            async with service.client() as client:
                assert await client.multicast([G0, G1], b"two are enough")
                assert not client.statistics()[N3]["connected"]

    run(main())


STRANGE: dict[str, list[Envelope]] = {
    "not for us": [(replica(N1), ClientId(1), [Hint(G0, NO_BALLOT)])],
    "not for clients": [(replica(N1), CLIENT, [Deliver(NO_BALLOT, Timestamp(0), ())])],
    "an unknown group": [(replica(N1), CLIENT, [Hint(GroupId(9), Ballot(1, replica(N1, GroupId(9)), 0))])],
    "a ballot of nobody": [(replica(N1), CLIENT, [Hint(G0, Ballot(1, ReplicaId(G0, 9, 0), 0))])],
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_client_hangs_up_on_nodes_that_talk_nonsense(run: Run, case: str) -> None:
    async def main() -> None:
        async with groups() as service, service.client() as client:
            service.leader[G0] = None
            call = client.multicast([G0], b"asked")
            node = service.nodes[N1]
            await until(lambda: node.requests)
            node.transport._acceptor.clients[CLIENT].send(STRANGE[case])
            await until(lambda: client.statistics()[N1]["bad_frames"] == 1)
            service.leader[G0] = N1
            assert await call

    run(main())


def test_clients_are_checked_before_anything_is_sent(run: Run) -> None:
    async def main() -> None:
        async with groups() as service, service.client() as client:
            with pytest.raises(InvalidArgument, match="group 7"):
                client.multicast([GroupId(7)], b"")
            with pytest.raises(InvalidArgument, match="does not fit a frame"):
                client.multicast([G0], bytes(QUICK.frame))
            directory = service.directory()
            del directory[replica(N2, G1)]
            with pytest.raises(InvalidArgument, match="g1r2"):
                MulticastClient(CLUSTER, HASH, TOPOLOGY, directory)

    run(main())


def test_clients_have_ids_of_their_own() -> None:
    directory = {replica(n, g): (n, ("127.0.0.1", 9)) for n in (N1, N2, N3) for g in (G0, G1)}
    clients = [MulticastClient(CLUSTER, HASH, TOPOLOGY, directory) for _ in range(2)]
    assert clients[0].client != clients[1].client
