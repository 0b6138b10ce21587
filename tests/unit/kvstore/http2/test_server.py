"""The port: real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest
import uvloop

from kvstore.http2 import frames, server
from kvstore.http2.call import Call, Method
from kvstore.http2.errors import ErrorCode
from kvstore.http2.frames import PREFACE, frame
from kvstore.http2.server import Bounds, Server
from kvstore.http2.status import Status
from tests.unit.kvstore.http2.bytes import HELLO, Frame, call, head, parsed, setting

BOUNDS = Bounds(message_bytes=4 << 20, connection_streams=100, calls=1000, connections=50)

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


class Served:
    """A server with methods `Echo`, `Late` and `Chat`."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.calls: list[Call] = []
        self.works: list[asyncio.Future[None]] = []
        methods = {
            "/s/Echo": Method(lambda call, raw: call.reply(raw), lambda call, _: call.accept(None)),
            "/s/Late": Method(self._late, lambda call, _: call.accept(None)),
            "/s/Chat": Method(self._chat, lambda call, _: call.accept(None), streams_requests=True),
        }
        self.server = Server(methods, bounds)
        self.port = 0

    def _late(self, call: Call, raw: bytes) -> asyncio.Future[None]:
        self.calls.append(call)
        self.works.append(asyncio.get_running_loop().create_future())
        return self.works[-1]

    def _chat(self, call: Call, raw: bytes) -> asyncio.Task[None]:
        self.calls.append(call)
        return asyncio.get_running_loop().create_task(self._talk(call))

    async def _talk(self, call: Call) -> None:
        while (arrived := await call.read()) is not None:
            await call.write(arrived.message)
        call.finish(Status.OK)

    async def connect(self, said: bytes = HELLO) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(said)
        return reader, writer


class Start(Protocol):
    """Starts a server, which is stopped after the test."""

    async def __call__(
        self, listen: str = "127.0.0.1:0", tls: ssl.SSLContext | None = None, *, bounds: Bounds = BOUNDS
    ) -> Served: ...


Run = Callable[[Callable[[Start], Awaitable[None]]], None]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test in an event loop."""

    def runs(test: Callable[[Start], Awaitable[None]]) -> None:
        started: list[Served] = []

        async def start(
            listen: str = "127.0.0.1:0", tls: ssl.SSLContext | None = None, *, bounds: Bounds = BOUNDS
        ) -> Served:
            started.append(Served(bounds))
            started[-1].port = await started[-1].server.start(listen, tls)
            return started[-1]

        async def main() -> None:
            try:
                async with asyncio.timeout(60):
                    await test(start)
            finally:
                for served in started:
                    await served.server.stop()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return runs


async def frames_of(reader: asyncio.StreamReader) -> list[Frame]:
    """All frames, until the server closes the connection."""
    return parsed(await reader.read())


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the server closes the connection."""
    with contextlib.suppress(ConnectionError):
        await reader.read()
    return True


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_clients_of_grpc_call_stream_and_chat(run: Run) -> None:
    async def test(start: Start) -> None:
        served = await start()
        channel: Any = grpc.aio.insecure_channel(
            f"127.0.0.1:{served.port}", [("grpc.max_receive_message_length", -1)]
        )
        async with channel:
            echo, chat = channel.unary_unary("/s/Echo"), channel.stream_stream("/s/Chat")
            for payload in (b"", b"x", b"x" * 70_000, b"x" * 3_000_000):
                assert await echo(payload, timeout=30) == payload
            assert await asyncio.gather(*(echo(b"%d" % i) for i in range(300))) == [
                b"%d" % i for i in range(300)
            ]
            stream = chat()
            for payload in (b"", b"x", b"x" * 2_000_000, b"y"):
                await stream.write(payload)
                assert await stream.read() == payload
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echo(b"x" * (5 << 20))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/s/Late")(b"", timeout=0.05)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: served.works[0].cancelled() and not served.server.calls)
        await served.server.stop()
        assert not served.server.connections

    run(test)


def test_a_compressing_client_is_told_that_there_is_no_compression(run: Run) -> None:
    async def test(start: Start) -> None:
        served = await start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel:
            made: Any = channel.unary_unary("/s/Echo")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await made(b"x" * 1000, compression=grpc.Compression.Gzip)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert await made(b"x" * 1000) == b"x" * 1000

    run(test)


def test_http_1_is_told_what_the_port_is_for(run: Run) -> None:
    async def test(start: Start) -> None:
        served = await start()
        reader, writer = await served.connect(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        answer = await reader.read()
        assert b"HTTP/1.1 505" in answer
        assert answer.endswith(b"This port is for gRPC: it speaks HTTP/2 and nothing else.\n")
        writer.close()

    run(test)


def test_a_client_that_breaks_the_rules_is_told_and_counted(run: Run) -> None:
    async def test(start: Start) -> None:
        served = await start()
        reader, writer = await served.connect(HELLO + call(2))
        *_, last = await frames_of(reader)
        assert (last.kind, last.payload[7]) == (frames.GOAWAY, ErrorCode.PROTOCOL_ERROR)
        writer.close()
        await until(lambda: served.server.faults == 1)
        assert served.server.statistics() == {"connections": 0, "calls": 0, "faults": 1}

    run(test)


def test_a_defect_of_ours_costs_its_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test(start: Start) -> None:
        served = await start()

        def broken(call: Call, raw: bytes) -> None:
            raise RuntimeError("broken")

        methods: Any = served.server.methods
        methods["/s/Echo"] = methods["/s/Echo"]._replace(begin=broken)
        reader, writer = await served.connect(HELLO + call(1))
        *_, last = await frames_of(reader)
        assert (last.kind, last.payload[7]) == (frames.GOAWAY, ErrorCode.INTERNAL_ERROR)
        writer.close()
        await served.server.stop()
        assert served.server.calls == 0

    run(test)
    assert [record.getMessage() for record in caplog.records] == ["a client's connection failed"]


# Stopping


def test_a_server_that_stops_lets_calls_end_and_takes_no_more(run: Run) -> None:
    async def test(start: Start) -> None:
        served = await start()
        reader, writer = await served.connect(HELLO + call(1, __path=b"/s/Late"))
        await until(lambda: len(served.works) == 1)
        stopping = asyncio.ensure_future(served.server.stop(30))
        found = await reader.readuntil(frame(frames.GOAWAY, 0, 0, b"\0\0\0\1\0\0\0\0"))
        writer.write(call(3))
        with pytest.raises(OSError, match="onnect"):
            await asyncio.open_connection("127.0.0.1", served.port)
        assert not stopping.done()
        served.calls[0].reply(b"done")
        served.works[0].set_result(None)
        await stopping
        found += await reader.read()
        assert [each.stream for each in parsed(found) if each.kind == frames.DATA] == [1]
        writer.close()

    run(test)


def test_a_server_that_stops_ends_what_is_not_done_in_time(run: Run) -> None:
    async def test(start: Start) -> None:
        served = await start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}") as channel:
            late: Any = channel.unary_unary("/s/Late")
            calls = [late(b"") for _ in range(3)]
            await until(lambda: len(served.works) == 3)
            await served.server.stop(0.05)
            for each in calls:
                with pytest.raises(grpc.aio.AioRpcError, match="this node is stopping") as caught:
                    await each
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert all(work.cancelled() for work in served.works)
        assert (served.server.calls, served.server.connections) == (0, {})

    run(test)


# Connections


def test_the_number_of_connections_is_bounded(run: Run) -> None:
    async def test(start: Start) -> None:
        served = await start(bounds=BOUNDS._replace(connections=2))
        clients = [await served.connect(HELLO + call(1)) for _ in range(2)]
        for reader, _ in clients:
            await reader.readexactly(50)
        reader, writer = await served.connect(HELLO + call(1))
        assert await closed(reader)
        writer.close()
        clients[0][1].close()
        await until(lambda: len(served.server.connections) == 1)
        reader, writer = await served.connect(HELLO + call(1))
        await reader.readexactly(50)
        for _, each in (*clients, (reader, writer)):
            each.close()

    run(test)


def test_strangers_are_bounded_and_the_oldest_goes_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STRANGERS", 2)

    async def test(start: Start) -> None:
        served = await start()
        first = await served.connect(PREFACE)
        await until(lambda: len(served.server.connections) == 1)
        others = [await served.connect(b"") for _ in range(2)]
        assert await closed(first[0])
        others[1][1].write(HELLO + call(1))
        await others[1][0].readexactly(50)
        for _, writer in (first, *others):
            writer.close()

    run(test)


def test_strangers_are_closed_in_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GREETING_S", 0.05)

    async def test(start: Start) -> None:
        served = await start()
        reader, writer = await served.connect(PREFACE + b"\0\0")
        assert await closed(reader)
        writer.close()

    run(test)


def test_silent_clients_are_asked_and_closed_if_they_do_not_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SILENT_S", 0.1)
    monkeypatch.setattr(server, "ANSWER_S", 0.3)
    ping = frame(frames.PING, 0, 0, b"wbkvping")

    async def test(start: Start) -> None:
        served = await start()
        reader, writer = await served.connect(HELLO + call(1, __path=b"/s/Late"))
        for _ in range(2):
            await reader.readuntil(ping)
            writer.write(frame(frames.PING, frames.ACK, 0, b"wbkvping"))
        assert await closed(reader)
        await until(lambda: served.works[0].cancelled() and not served.server.connections)
        writer.close()

    run(test)


def test_nothing_is_read_of_a_client_that_does_not_read(run: Run) -> None:
    async def test(start: Start) -> None:
        served = await start()
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
        wide = struct.pack(">L", 1 << 30)
        writer.write(HELLO + setting(frames.INITIAL_WINDOW_SIZE, 1 << 30))
        writer.write(frame(frames.WINDOW_UPDATE, 0, 0, wide))
        stream = 1
        while not any(connection._deaf for connection in served.server.connections):
            if not writer.transport.get_write_buffer_size():
                writer.write(b"".join(call(stream + 2 * i, b"x" * 4000) for i in range(50)))
                stream += 100
            await asyncio.sleep(0)
        (connection,) = served.server.connections
        assert connection._transport is not None
        assert not connection._transport.is_reading()
        assert connection._transport.get_write_buffer_size() < 2 << 20
        writer.transport.abort()

    run(test)


def test_two_servers_do_not_share_a_port(run: Run) -> None:
    async def test(start: Start) -> None:
        first = await start()
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{first.port}"):
            await start(f"127.0.0.1:{first.port}")
        await first.server.stop()
        await start(f"127.0.0.1:{first.port}")

    run(test)


@pytest.mark.parametrize("listen", ["[::1]:0", "[::]:0", "localhost:0", "0.0.0.0:0"])
def test_it_listens_where_it_is_told(run: Run, listen: str) -> None:
    host = {"[::1]": "[::1]", "localhost": "localhost"}.get(listen[:-2], "127.0.0.1")
    if "::" in listen and not socket.has_ipv6:
        pytest.skip("there is no IPv6")

    async def test(start: Start) -> None:
        served = await start(listen)
        async with grpc.aio.insecure_channel(f"{host}:{served.port}") as channel:
            echo: Any = channel.unary_unary("/s/Echo")
            assert await echo(b"x") == b"x"

    run(test)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key, and a certificate that it has signed itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    key, found = folder / "key.pem", folder / "cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-keyout", str(key), "-out", str(found), "-days", "2", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=DNS:localhost"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - ours
    return key, found


def test_with_tls(run: Run, certificate: tuple[Path, Path]) -> None:
    key, found = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(found, key)

    async def test(start: Start) -> None:
        served = await start(tls=context)
        credentials = grpc.ssl_channel_credentials(found.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{served.port}", credentials) as channel:
            echo: Any = channel.unary_unary("/s/Echo")
            for payload in (b"x", b"x" * 1_000_000):
                assert await echo(payload) == payload
        client = ssl.create_default_context(cafile=str(found))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", served.port, ssl=client, server_hostname="localhost"
        )
        writer.write(HELLO + head())
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # it has not agreed to HTTP/2
            await reader.readexactly(50)
        writer.close()

    run(test)
