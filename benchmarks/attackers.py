"""Hostile clients, each a function that runs in a process of its own until it is killed (see `attacks`).

Those that do not read their answers stop themselves with SIGSTOP once they have asked: a process that is
stopped reads nothing, whatever its libraries would do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from typing import Final, NamedTuple

import grpc
import wbkv
import wbkv.aio
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc, session_pb2, session_pb2_grpc

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_BYTES: Final = 16 << 20
"""What a half frame claims to have."""


BURN_S: Final = 0.001
PIECE_BYTES: Final = 256 << 10
"""What is durable before more is written."""


class Target(NamedTuple):
    """What an attacker knows: where the nodes listen, a revision of the past, and how much to attack with."""

    clients: list[str]
    """Addresses for clients, of each node."""
    nodes: list[str]
    """Addresses for other nodes, of each node."""
    revision: int
    """A revision from before the store was filled."""
    size: int


Attack = Callable[[Target, Event], None]
"""It sets the event once the attack is on."""


def be_idle() -> None:
    """Run only while a core has nothing else to do, so that an attack costs others what it costs the nodes.

    Threads that this one starts inherit it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except PermissionError:
        os.nice(19)


def run(attack: Attack, target: Target, on: Event) -> None:
    """Attack, with idle priority; controls have the priority of nodes."""
    if attack not in CONTROLS:
        be_idle()
    attack(target, on)


def ignored(call: Callable[[], object]) -> None:
    """Make a call; the store may refuse it."""
    with contextlib.suppress(wbkv.Error, grpc.RpcError, OSError):
        call()


def together(work: Callable[[], object], count: int) -> None:
    """Do the same in several threads, for ever."""

    def repeat() -> None:
        while True:
            ignored(work)

    threads = [threading.Thread(target=repeat, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def channel_of(target: Target) -> grpc.Channel:
    """A connection of its own to the first node, without limits of the client's."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(target.clients[0], options)


def kv_stub(target: Target) -> kv_pb2_grpc.KVStub:
    """A stub on a connection of its own."""
    return kv_pb2_grpc.KVStub(channel_of(target))  # type: ignore[no-untyped-call]  # generated


def stop_reading(on: Event) -> None:
    """Say that the attack is on, and stop this process."""
    on.set()
    os.kill(os.getpid(), signal.SIGSTOP)


def repeat_request(target: Target, on: Event, request: kv.TxnRequest, also: Callable[[], object]) -> None:
    """Send a transaction again and again under new ids, and another call after each."""
    stub = kv_stub(target)
    numbers = itertools.count(1)
    on.set()

    def work() -> None:
        mine = kv.TxnRequest()
        mine.CopyFrom(request)
        mine.id.client, mine.id.sequence, mine.id.ack_below = os.getpid(), next(numbers), 1
        ignored(lambda: stub.Txn(mine, timeout=10.0))
        also()

    together(work, 2)


def large(target: Target, on: Event) -> None:
    """Two clients with transactions of 7 MiB over all partitions."""
    client = wbkv.connect(target.clients, timeout=10.0)
    puts = [wbkv.put(f"large/{number}", bytes(1 << 20)) for number in range(7)]
    on.set()
    together(lambda: client.txn().then(*puts).commit(), 2)


def counts(target: Target, on: Event) -> None:
    """25 counts of everything in a transaction, and a count of everything."""
    client = wbkv.connect(target.clients, timeout=10.0)
    request = kv.TxnRequest()
    for _ in range(25):
        request.then.add(scan={"range": {"prefix": b""}, "shape": kv.COUNT})
    repeat_request(target, on, request, lambda: client.count(wbkv.EVERYTHING))


def unchanged(target: Target, on: Event) -> None:
    """25 conditions that nothing has changed since now, and a write that makes the next ones false."""
    client = wbkv.connect(target.clients, timeout=10.0)
    request = kv.TxnRequest()
    since = client.put("changed", b"")
    for _ in range(25):
        request.conditions.add(unchanged={"range": {"prefix": b""}, "since": since})
    repeat_request(target, on, request, lambda: client.put("changed", b""))


def delete_everything(target: Target, on: Event) -> None:
    """Transactions that delete everything: more keys than one may delete, so that they change nothing."""
    stub = kv_stub(target)
    request = kv.TxnRequest()
    request.then.add(delete_range={"range": {"prefix": b""}})
    everything = kv.DeleteRequest(range={"prefix": b""})
    repeat_request(target, on, request, lambda: stub.Delete(everything, timeout=10.0))


def delete_others(target: Target, on: Event) -> None:
    """The same with all keys but those of the innocent client."""
    stub = kv_stub(target)
    request = kv.TxnRequest()
    request.then.add(delete_range={"range": {"prefix": b"key"}})
    others = kv.DeleteRequest(range={"prefix": b"key"})
    repeat_request(target, on, request, lambda: stub.Delete(others, timeout=10.0))


def past(target: Target, on: Event) -> None:
    """Scans at a revision before all keys were put."""
    client = wbkv.connect(target.clients, timeout=10.0)
    on.set()
    together(lambda: list(client.scan(wbkv.EVERYTHING, revision=target.revision)), 2)


def unread_calls(target: Target, on: Event) -> None:
    """400 calls with large answers that are never read."""
    wbkv.connect(target.clients, timeout=20.0).put("unread", bytes(1 << 19))
    request = kv.TxnRequest()
    for _ in range(30):
        request.then.add().get.key = b"unread"
    calls = []
    for _ in range(4):
        stub = kv_stub(target)
        calls += [stub.Txn.future(request) for _ in range(100)]
    time.sleep(0.5)
    stop_reading(on)


def unread_sessions(target: Target, on: Event) -> None:
    """100 sessions with large answers that are never read."""
    wbkv.connect(target.clients, timeout=20.0).put("unread", bytes(1 << 19))
    ask = session_pb2.SessionRequest()
    for number in range(100):
        ask.calls.add(number=number + 1).get.key = b"unread"
    streams = []
    forever = threading.Event()

    def requests() -> Iterator[session_pb2.SessionRequest]:
        yield ask
        forever.wait()

    for _ in range(20):
        stub = session_pb2_grpc.SessionStub(channel_of(target))  # type: ignore[no-untyped-call]  # generated
        streams += [stub.Open(requests()) for _ in range(5)]
    time.sleep(0.5)
    stop_reading(on)


def unread_watches(target: Target, on: Event) -> None:
    """100 watches of everything since the store was empty that are never read."""
    request = kv.WatchRequest(ranges=[{"prefix": b""}], after=target.revision)
    streams = []
    for _ in range(10):
        stub = kv_stub(target)
        streams += [stub.Watch(request) for _ in range(10)]
    time.sleep(0.5)
    stop_reading(on)


def watches(target: Target, on: Event) -> None:
    """Many watches of the keys that the innocent client writes."""

    async def follow() -> None:
        async with wbkv.aio.connect(target.clients, timeout=20.0) as client:

            async def one() -> None:
                with contextlib.suppress(wbkv.Error):
                    async with client.watch("innocent/") as watch:
                        async for _ in watch:
                            pass

            tasks = [asyncio.create_task(one()) for _ in range(target.size)]
            await asyncio.sleep(2.0)
            on.set()
            await asyncio.gather(*tasks)

    asyncio.run(follow())


def idle_streams(target: Target, on: Event) -> None:
    """Many sessions that ask nothing."""

    async def idle() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for number in range(target.size):
                if number % 500 == 0:
                    channel = await stack.enter_async_context(
                        grpc.aio.insecure_channel(target.clients[0], options)
                    )
                    stub = session_pb2_grpc.SessionStub(channel)  # type: ignore[no-untyped-call]  # generated
                streams.append(stub.Open())
            await asyncio.sleep(1.0)
            on.set()
            await asyncio.sleep(3600.0)

    asyncio.run(idle())


def deletes(target: Target, on: Event) -> None:
    """A watch of many keys that are deleted together, again and again."""
    client = wbkv.connect(target.clients, timeout=60.0)

    def follow() -> None:
        with client.watch(wbkv.prefix("doomed/")) as watch:
            for _ in watch:
                pass

    threading.Thread(target=follow, daemon=True).start()
    on.set()

    def load_and_delete() -> None:
        for first in range(0, target.size, 500):
            puts = [wbkv.put(b"doomed/%09d" % number, b"") for number in range(first, first + 500)]
            client.txn().then(*puts).commit()
        client.delete(wbkv.prefix("doomed/"))

    together(load_and_delete, 1)


def thrice(on: Event, work: Callable[[], object]) -> None:
    """Do the same in three processes, as many as there are nodes, until this one is killed."""
    parent = os.getpid()
    children = [os.fork() for _ in range(2) if os.getpid() == parent]
    first = all(children)  # fork returns 0 in a child
    if first:
        on.set()
    while first or os.getppid() == parent:
        work()
    os._exit(0)  # not by way of what the libraries of the first one have to end


def burn(_: Target, on: Event) -> None:
    """A third of the time of each of three processes, a millisecond at a time: as much as nodes spend on long
    work. They do nothing for the store.
    """

    def work() -> None:
        until = time.thread_time() + BURN_S
        while time.thread_time() < until:
            pass
        time.sleep(2 * BURN_S)

    thrice(on, work)


def write_files(_: Target, on: Event) -> None:
    """Three processes that write what nodes write for five transactions of 7 MiB a second: twice as much, in
    pieces, into a file of each. They do nothing for the store.
    """
    data = bytes(PIECE_BYTES)
    pause_s = PIECE_BYTES / (5 * 2 * (7 << 20))

    def work() -> None:
        with tempfile.TemporaryFile() as file:
            due = time.monotonic()
            for _ in range(256):
                os.pwrite(file.fileno(), data, 0)
                os.fdatasync(file.fileno())
                due += pause_s
                time.sleep(max(0.0, due - time.monotonic()))

    thrice(on, work)


CONTROLS: Final = (burn, write_files)
"""What costs an innocent client as much as an attack may cost the machine, without the store's part in it."""


def connected(address: str) -> socket.socket:
    """A TCP connection."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=5.0)


def half_frames(target: Target, on: Event) -> None:
    """256 connections to the first node's port for nodes that send the most of a large frame, and no more."""
    on.set()
    while True:
        held = []
        for _ in range(256):
            with contextlib.suppress(OSError):
                connection = connected(target.nodes[0])
                connection.settimeout(0.0)
                held.append(connection)
                with contextlib.suppress(BlockingIOError):
                    connection.send(struct.pack(">I", FRAME_BYTES) + bytes(1 << 20))
        time.sleep(1.0)
        for connection in held:
            connection.close()


def garbage(target: Target, on: Event) -> None:
    """Random bytes on both ports of the first node, also behind the first bytes of HTTP/2."""
    rng = random.Random(1)
    on.set()

    def work() -> None:
        for address, begin in (
            (target.nodes[0], b""), (target.nodes[0], struct.pack(">I", 4000)),
            (target.clients[0], b""), (target.clients[0], PREFACE),
        ):  # fmt: skip
            with connected(address) as connection:
                connection.sendall(begin + rng.randbytes(4000))
                connection.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    connection.recv(1000)

    together(work, 4)


def refused(target: Target, on: Event) -> None:
    """Connections to the first node's port for nodes that are refused, as fast as they can be made."""
    on.set()

    def work() -> None:
        with connected(target.nodes[0]) as connection:
            connection.sendall(struct.pack(">I", 8) + b"who is??")
            while connection.recv(1000):
                pass

    together(work, 8)
