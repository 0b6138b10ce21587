"""A node as a process: the loop, the disk, the network and the signals around `Node`.

Everything that happens (a frame, a durable batch, a timer) is handed to the node at once, and a turn follows
in the same round of the event loop: so all that came together is handled together, in one batch and one frame
for each peer. The loop never waits for a disk: commits are made by the disk's own threads.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from kvstore import storage
from kvstore.api.calls import Options
from kvstore.api.facts import topology_of
from kvstore.api.ports import Facts
from kvstore.api.server import Api
from kvstore.config import INCARNATION_MAX, Config
from kvstore.layout import Identity, Keeps
from kvstore.machine.codec import TABLES
from kvstore.node import Node
from kvstore.places import Directory, place_of
from kvstore.ports import Application, NodeId
from kvstore.sequencing import Sequencing
from kvstore.status import serve_status
from kvstore.store.application import StoreApplication
from kvstore.store.service import Service
from kvstore.transport import Transport
from kvstore.wire import Envelope, WireError
from multicast.errors import InvalidArgument
from multicast.membership import Membership
from multicast.messages import Multicast
from multicast.types import TICKS_PER_S, ClientId, GroupId, Process, ReplicaId, Timestamp

logger = logging.getLogger(__name__)

UNHANDLED_MAX: Final = 64 << 20
"""Bytes of frames that may have come in one round of the loop before no more are read."""

TIMER_S: Final = 0.001
"""What uvloop's timers count in. Rounded down, one would wake us just before it is time, again and again."""

TEST_HOOKS: Final = "WBKV_TEST_HOOKS"
"""An environment variable: if it is set, the node lets tests cut its links, through a socket on its disk."""

CONTROL: Final = "control.sock"

EPOCH_S: Final = 1_767_225_600
"""When revisions begin: the first of January 2026, UTC."""

HAND_OVER_S: Final = 2.0
"""How long a node that stops waits for others to lead its groups."""

GRACE_S: Final = 1.0
"""How long it then waits for clients' calls to end."""


def create_disk(config: Config, me: NodeId, incarnation: int | None = None) -> None:
    """Make a disk for a node: its first one, with the incarnation of the configuration, or another.

    Nobody else may ever have had that incarnation: whoever has lost a disk comes back with a new one.
    """
    if incarnation is None:
        incarnation = config.incarnations.get(me) or _new_incarnation()
    keeps: Keeps = "store" if config.application == "store" else "deliveries"
    storage.create(config.data(me), Identity(config.id, me, incarnation, config.durability, keeps))


def replace_lost_disk(config: Config, me: NodeId, why: str) -> None:
    """Make a new disk, with a new incarnation. What was there is kept beside it."""
    path = config.data(me)
    if path.exists() and any(path.iterdir()):
        kept = path.with_name(f"{path.name}.lost-{_new_incarnation():x}")
        path.rename(kept)
        why += f" (kept as {kept.name})"
    if me in config.incarnations:
        logger.warning(
            "%s; %s starts with a new disk, and asks the others to let it take its own place"
            " (a cluster that has never run is started with --create)", why, me,
        )  # fmt: skip
    else:
        logger.info("%s; %s starts with its first, in no group yet", why, me)
    create_disk(config, me, _new_incarnation())


def _new_incarnation() -> int:
    return 1 + secrets.randbelow(INCARNATION_MAX)


class Server:
    """One node in its event loop."""

    def __init__(self, config: Config, me: NodeId) -> None:
        self._config = config
        self.me = me
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._failure: Exception | None = None
        self._turning = False
        self._closing = False
        """From here on there are no turns: the disk is being closed in another thread."""
        self._unhandled = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = float("inf")
        self._disk = self._open_disk()
        self.incarnation = self._disk.identity.incarnation
        self._directory = Directory(config.incarnations)
        self._wall_s = time.time() - EPOCH_S - self.now()
        self.store: StoreApplication | None = None
        self.service: Service | None = None
        try:
            self.transport = Transport(
                me, config.id, config.hash, config.addresses,
                on_frame=self._frame, on_client=self._client, on_peer=self._directory.note,
                lives_on=lambda node, process: _lives_on(self._directory, node, process),
                listen=config.addresses[me], delays=config.delays_s, incarnation=self.incarnation,
            )  # fmt: skip
            self.node = Node(
                me, config.topology, self._replicas(), config.protocol_type,
                node_of=self._directory.node_of, place=place_of(me, config.addresses[me]),
                clock=self, network=self.transport, log=self._disk.log, application=self._application(),
                wall_s=self._wall_s,
                rng=random.Random(secrets.randbits(128)), timing=config.timing, on_learned=self._learned,
            )  # fmt: skip
        except BaseException:
            self._disk.close()
            raise

    def _application(self) -> Application:
        """What the cluster is for."""
        config, state = self._config, self._disk.state
        if isinstance(state, storage.LmdbState):
            return Sequencing(state)
        self.store = StoreApplication(
            state, config.topology, config.first_placement, me=ClientId(1 + secrets.randbelow(2**63 - 1)),
            limits=config.store.limits, now=self.now, ticks=self._ticks,
            rng=random.Random(secrets.randbits(128)),
        )  # fmt: skip
        self.service = Service(self.store.gateway, self._turn_soon)
        return self.store

    def _ticks(self) -> int:
        return int((self.now() + self._wall_s) * TICKS_PER_S)

    def _open_disk(self) -> storage.Disk[storage.LmdbState] | storage.Disk[storage.StoreState]:
        """The node's disk; if it is lost, a new one."""
        config, me = self._config, self.me
        path = config.data(me)
        if not path.is_dir() or not any(path.iterdir()):
            replace_lost_disk(config, me, f"{path} has no disk")
        try:
            return self._open()
        except storage.LostDisk as error:
            replace_lost_disk(config, me, str(error))
            return self._open()

    def _open(self) -> storage.Disk[storage.LmdbState] | storage.Disk[storage.StoreState]:
        where = self._config.data(self.me), self._config.id, self.me
        calls: Any = {
            "on_durable": self._from_thread(self._durable),
            "on_committed": self._from_thread(self._committed),
            "on_failure": self._from_thread(self._failed),
        }
        if self._config.application == "multicast":
            return storage.open(*where, **calls)
        return storage.open(*where, tables=TABLES, **calls)

    def _replicas(self) -> list[ReplicaId]:
        """Who is on this disk: members of groups, or those who are to become that.

        A group's number is known from the log, if the replica ever was a member; else from the configuration.
        """
        found = []
        for group, nodes in self._config.groups.items():
            memberships = self._disk.log.load(group).memberships
            for membership in memberships.values():
                self._learned(membership)
            members = memberships[group].everyone if group in memberships else ()
            numbers = [member.number for member in members if member.incarnation == self.incarnation]
            numbers += [nodes.index(self.me)] if self.me in nodes else []
            if numbers:
                found.append(ReplicaId(group, numbers[0], self.incarnation))
        return found

    def _learned(self, membership: Membership) -> None:
        """There may be replicas on nodes that we do not know."""
        for node, address in self._directory.learn(membership).items():
            self.transport.add_peer(node, address)

    def replace(self, members: Iterable[ReplicaId]) -> None:
        """Take the places of these members, even if they are well."""
        wanted = list(members)
        hosted = {replica.group for replica in self.node.replicas}
        for old in wanted:
            if old.group in hosted:
                raise InvalidArgument(f"{self.me} has a replica of group {old.group} already")
            hosted.add(old.group)
        for old in wanted:
            self.node.host(old._replace(incarnation=self.incarnation), evicts=old)
        self._turn_soon()

    def now(self) -> float:
        """`ports.Clock`."""
        return self._loop.time()

    def _from_thread(self, call: Any) -> Any:
        """The call, made in the loop, from wherever it is asked for; never, once the loop has gone."""

        def pass_on(*arguments: object) -> None:
            try:
                self._loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:
                logger.debug("too late for %s", call)

        return pass_on

    # What happens

    def _do(self, call: Callable[..., None], *arguments: object) -> None:
        """Call the node, whoever has woken us. One that is wrong about itself must stop, and say so."""
        if self._failure is not None:
            return
        try:
            call(*arguments)
        except Exception as error:
            logger.exception("this node's own state is wrong, or its disk has failed")
            self._failed(error)

    def _frame(self, node: NodeId, envelopes: list[Envelope], size: int) -> None:
        self._do(self.node.receive, envelopes, node)
        self._handled(size)

    def _client(self, client: ClientId, envelopes: list[Envelope], size: int) -> None:
        """A process that multicasts by itself, or an operator who asks for members. The store's clients come
        by its gateway, which sees to it that what is ordered can be executed.
        """
        if self.store is not None and any(type(m) is Multicast for _, _, ms in envelopes for m in ms):
            raise WireError("this cluster orders transactions, which come by its API")
        self._do(self.node.receive, envelopes)
        self._handled(size)

    def _handled(self, size: int) -> None:
        self._unhandled += size
        if self._unhandled > UNHANDLED_MAX:
            self.transport.pause(paused=True)
        self._turn_soon()

    def _durable(self, number: int) -> None:
        self._do(self.node.durable, number)
        self._do(self._disk.state.log_durable, number)
        self._turn_soon()

    def _committed(self, positions: Mapping[GroupId, Timestamp]) -> None:
        self._do(self.node.committed, positions)
        self._turn_soon()

    def _failed(self, error: Exception) -> None:
        """A disk that fails is not trusted again: the node stops, and says why."""
        if self._failure is None:
            self._failure = error
            self._stopped.set()

    def _tick(self) -> None:
        self._wake_at = float("inf")
        self._do(self.node.tick)
        self._turn_soon()

    # Turns

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if not self._closing:
            self._do(self._turn_now)

    def _turn_now(self) -> None:
        self.node.turn()
        self._disk.log.pump()
        if self._disk.state.pump():
            self._turn_soon()
        if self._unhandled > UNHANDLED_MAX:
            self.transport.pause(paused=False)
        self._unhandled = 0
        if self.node.wake_at < self._wake_at:
            self._wake_at = self.node.wake_at
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._wake_at + TIMER_S, self._tick)

    # Life

    async def run(self) -> int:
        """Serve until told to stop, or until the disk fails."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        status = control = api = None
        try:
            host, port = await self.transport.start()
            status = await serve_status(self._config.status_socket(self.me), self.status, self._act)
            if os.environ.get(TEST_HOOKS):
                control = await asyncio.start_unix_server(self._control, self._config.data(self.me) / CONTROL)
            api = await self._serve_clients()
            logger.info("%s serves %d groups on %s:%d", self.me, len(self.node.replicas), host, port)
            self._turn_soon()
            await self._stopped.wait()
            if self._failure is None:
                if api is not None:
                    api.take_no_more()
                await self._hand_over()
                if api is not None:
                    await api.stop(GRACE_S)
                self._turn()
                self.node.commit()
        finally:
            self._closing = True
            if status is not None:
                status.close()
                self._config.status_socket(self.me).unlink(missing_ok=True)
            if control is not None:
                control.close()
            if api is not None:
                await api.stop()
            if self._timer is not None:
                self._timer.cancel()
            await self.transport.close()
            await asyncio.to_thread(self._disk.close)
        if self._failure is not None:
            logger.critical("stopped: %s", self._failure)
            return 1
        logger.info("%s has stopped", self.me)
        return 0

    async def _serve_clients(self) -> Api | None:
        """Listen for clients of the store, if there are to be any."""
        listen = self._config.nodes[self.me].api
        if self.store is None or self.service is None or listen is None:
            return None
        topology = partial(topology_of, self._config, self.store, self._directory.node_of)
        api = Api(self.service, Facts(topology, self.status), Options(self._config.id, self.me))
        await api.start(listen)
        logger.info("%s serves clients on %s", self.me, listen)
        return api

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Faults on request, for tests: `to NODE` and `from NODE` cut a direction, `heal` ends all cuts."""
        words = (await reader.readline()).decode().split()
        if words == ["heal"]:
            self.transport.heal()
        elif len(words) == 2 and words[0] in ("to", "from"):
            self.transport.cut(NodeId(words[1]), incoming=words[0] == "from")
        writer.write(b"done\n")
        await writer.drain()
        writer.close()

    async def _hand_over(self) -> None:
        """Let others lead first, so that nobody waits for a time-out."""
        deadline = self.now() + HAND_OVER_S
        asked = self.node.hand_over()
        while asked and self.node.leads() and self.now() < deadline and self._failure is None:
            self._turn_soon()
            await asyncio.sleep(0.01)

    def _size(self) -> int:
        """Bytes that the disk takes."""
        files = [self._disk.path / name / "data.mdb" for name in ("log", "state")]
        return sum(file.stat().st_blocks * 512 for file in files)

    def _act(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """What operators may want: see `commands.member`."""
        match request:
            case {"replace": [*members]}:
                self.replace([_member(row) for row in members])
                return {"incarnation": f"{self.incarnation:016x}"}
        raise ValueError(f"{self.me} does not know how to {', '.join(map(str, request)):.80}")

    def status(self) -> dict[str, Any]:
        """What `wbkv status` shows."""
        host, port = self._config.addresses[self.me]
        size = self._size()
        groups = {}
        for me, about in self.node.status().items():
            leader = about.pop("leader")
            name = self._directory.node_of(leader) if isinstance(leader, ReplicaId) else None
            groups[str(me.group)] = {**about, "leader": name, "store_bytes": size}
        return {
            "id": self.me,
            "incarnation": f"{self.incarnation:016x}",
            "pid": os.getpid(),
            "address": f"{host}:{port}",
            "groups": groups,
            "statistics": asdict(self.node.statistics),
            "transport": self.transport.statistics(),
            "in_flight": 0 if self.service is None else self.service.in_flight,
        }


def _member(row: object) -> ReplicaId:
    match row:
        case [int(group), int(number), str(incarnation)]:
            return ReplicaId(GroupId(group), number, int(incarnation, 16))
    raise ValueError(f"{row!r:.80} is no member")


def _lives_on(directory: Directory, node: NodeId, process: Process) -> bool:
    """Its replicas; and its gateway, which nobody has heard of before."""
    return not isinstance(process, ReplicaId) or directory.node_of(process) == node


async def serve(config: Config, me: NodeId) -> int:
    """Run a node until it is told to stop. The exit status."""
    server = Server(config, me)
    _collect_seldom()
    return await server.run()


def _collect_seldom() -> None:
    """A turn makes thousands of objects that live until the next, and nearly never a cycle. Looking through
    them after every 700, as is usual, costs a sixth of a node's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
