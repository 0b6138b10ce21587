"""A node as a process: the network, the sockets and the signals around its `Engine`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from kvstore.api.methods import Options
from kvstore.api.server import Api
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.local.disk import replace_lost_disk
from kvstore.local.status import serve_status
from kvstore.server.engine import Engine
from kvstore.storage.errors import LostDisk
from kvstore.wire.frames import Envelope, WireError
from kvstore.wire.transport import Transport
from multicast.errors import PeerViolation
from multicast.messages import Multicast
from multicast.types import ClientId, GroupId, ReplicaId

logger = logging.getLogger(__name__)

UNHANDLED_MAX: Final = 64 << 20
"""Bytes of frames in one round of the loop above which the node pauses reading."""

TEST_HOOKS: Final = "WBKV_TEST_HOOKS"
"""Environment variable: if set, tests can cut the node's links through a socket on its disk."""

CONTROL: Final = "control.sock"

HAND_OVER_S: Final = 2.0
"""How long a stopping node waits for other nodes to lead its groups."""

GRACE_S: Final = 1.0
"""How long a stopping node then waits for clients' calls to end."""


class Server:
    """One node on the network."""

    def __init__(self, config: Config, me: NodeId) -> None:
        self._config = config
        self.me = me
        self.signalled = False
        """Whether a signal has asked the process to stop."""
        self._unhandled = 0
        self._api: Api | None = None
        self.engine = Engine(
            config, me, self._connect,
            on_address=lambda node, address: self.transport.add_peer(node, address),
            on_turned=self._turned, replace_lost=lambda why: replace_lost_disk(config, me, why),
        )  # fmt: skip

    def _connect(self, engine: Engine) -> Transport:
        config, me, directory = self._config, self.me, engine.directory
        self.transport = Transport(
            me, config.id, config.hash, config.addresses,
            secret=config.secret, codec=engine.codec, on_frame=self._frame, on_client=self._client,
            on_peer=partial(self._connected, engine), admits=directory.admits, may_send=directory.may_send,
            listen=config.addresses[me], delays=config.delays_s, incarnation=engine.incarnation,
        )  # fmt: skip
        return self.transport

    # Incoming frames

    def _connected(self, engine: Engine, node: NodeId, incarnation: int) -> None:
        """Handle a node that has connected."""
        engine.directory.note(node, incarnation)
        engine.node.relays.connected(node)

    def _frame(self, node: NodeId, envelopes: list[Envelope], size: int) -> None:
        if envelopes:
            self._receive(envelopes, node, size)
        else:
            self.engine.node.relays.reach.heard(node)

    def _receive(self, envelopes: list[Envelope], node: NodeId | None, size: int) -> None:
        """Handle a frame; raise `WireError`, which closes its connection, if no correct process sends it."""
        try:
            self.engine.receive(envelopes, node)
        except PeerViolation as error:
            raise WireError(str(error)) from error
        finally:
            self._handled(size)

    def _client(self, client: ClientId, envelopes: list[Envelope], size: int) -> None:
        """Handle a frame of a bare client, or of an operator's query for members. The store's clients use its
        gateway, which ensures that every ordered message can be executed.
        """
        if self.engine.store is not None and any(type(m) is Multicast for _, _, ms in envelopes for m in ms):
            raise WireError("this cluster runs the store: send transactions through its API")
        self._receive(envelopes, None, size)

    def _handled(self, size: int) -> None:
        self._unhandled += size
        if self._unhandled > UNHANDLED_MAX:
            self.transport.pause(paused=True)
            self.engine.turn_soon()

    def _turned(self) -> None:
        if self._unhandled > UNHANDLED_MAX:
            self.transport.pause(paused=False)
        self._unhandled = 0

    # Lifetime

    async def run(self) -> int:
        """Serve until a signal arrives or the disk fails; return the exit status."""
        engine, loop = self.engine, asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        status = control = api = None
        try:
            host, port = await self.transport.start()
            status = await serve_status(self._config.status_socket(self.me), self.status, self._act)
            if os.environ.get(TEST_HOOKS):
                control = await asyncio.start_unix_server(self._control, self._config.data(self.me) / CONTROL)
            api = await self._serve_clients()
            logger.info("%s serves %d groups on %s:%d", self.me, len(engine.node.replicas), host, port)
            engine.turn_soon()
            await engine.stopped.wait()
            if engine.failure is None:
                if api is not None:
                    api.take_no_more()
                await self._hand_over()
                if api is not None:
                    await api.stop(GRACE_S)
                engine.commit()
        finally:
            engine.rest()
            if status is not None:
                status.close()
                self._config.status_socket(self.me).unlink(missing_ok=True)
            if control is not None:
                control.close()
            if api is not None:
                await api.stop()
            await self.transport.close()
            await asyncio.to_thread(engine.close)
        if engine.failure is not None:
            logger.critical("stopped: %s", engine.failure)
            return 1
        logger.info("%s has stopped", self.me)
        return 0

    def _stop(self) -> None:
        """Stop on a signal: also instead of going on with a new disk."""
        self.signalled = True
        self.engine.stopped.set()

    async def _serve_clients(self) -> Api | None:
        """Serve the store's API, if the node has an address for it."""
        listen = self._config.nodes[self.me].api
        if self.engine.service is None or listen is None:
            return None
        options = Options(self._config.id, self.me)
        self._api = api = Api(self.engine.service, self.engine.facts(self.status), options)
        await api.start(listen)
        logger.info("%s serves clients on %s", self.me, listen)
        return api

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Inject faults for tests: `to NODE` and `from NODE` cut a direction, `heal` ends all cuts, `space N`
        is the free space of the disk from now on.
        """
        words = (await reader.readline()).decode().split()
        if words == ["heal"]:
            self.transport.heal()
        elif len(words) == 2 and words[0] in ("to", "from"):
            self.transport.cut(NodeId(words[1]), incoming=words[0] == "from")
        elif len(words) == 2 and words[0] == "space":
            free = int(words[1])
            self.engine.disk.space.measure = lambda _: free
        writer.write(b"done\n")
        await writer.drain()
        writer.close()

    async def _hand_over(self) -> None:
        """Hand over leadership, to spare the groups a time-out. Each group is handed over once: a group
        that comes back is from a node that stops, too, and if all nodes stop, waiting is useless.
        """
        engine, node = self.engine, self.engine.node
        deadline = engine.now() + HAND_OVER_S
        led, waiting = set[ReplicaId](), set[ReplicaId]()
        while engine.now() < deadline and engine.failure is None:
            leading = node.leading()
            waiting = waiting & leading | node.hand_over(sorted(leading - led))
            led |= leading
            if not waiting:
                return
            engine.turn_soon()
            await asyncio.sleep(0.01)

    def _act(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Execute an operator's request: see `commands.member`, `commands.clock` and `commands.repair`."""
        match request:
            case {"replace": [*members]}:
                self.engine.replace([_member(row) for row in members])
                return {"incarnation": f"{self.engine.incarnation:016x}"}
            case {"accept_time": True}:
                return {"groups": self.engine.accept_time()}
            case {"scrub": True}:
                return {"pass": self.engine.scrub()}
        raise ValueError(f"{self.me} does not support the request {', '.join(map(str, request)):.80}")

    def status(self) -> dict[str, Any]:
        """Return what `wbkv status` shows."""
        host, port = self._config.addresses[self.me]
        found = {
            **self.engine.status(),
            "address": f"{host}:{port}",
            "transport": self.transport.statistics(),
        }
        return found if self._api is None else {**found, "clients": self._api.server.statistics()}


def _member(row: object) -> ReplicaId:
    match row:
        case [int(group), int(number), str(incarnation)]:
            return ReplicaId(GroupId(group), number, int(incarnation, 16))
    raise ValueError(f"{row!r:.80} is not a valid member")


async def serve(config: Config, me: NodeId) -> int:
    """Run a node until it stops; return the exit status. If its log turns out to have been rolled back, the
    node goes on with a new disk.
    """
    while True:
        server = Server(config, me)
        _collect_seldom()
        status = await server.run()
        if server.signalled or not _lost_disk(server.engine.failure):
            return status


def _lost_disk(error: BaseException | None) -> bool:
    """Return whether an error has the loss of the disk among its causes."""
    while error is not None and not isinstance(error, LostDisk):
        error = error.__cause__
    return error is not None


def _collect_seldom() -> None:
    """Collect garbage rarely, in steps of about a millisecond. A turn makes thousands of objects that live
    until the next, and hardly a cycle: a collection after every 700, the default, costs a sixth of a node's
    time. One after 20,000 would cost half as much as one after 2,000, which is two percent; but it holds up
    the loop for ten milliseconds if they live on, as what clients have yet to read does.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 5, 800)
