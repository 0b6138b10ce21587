"""A node in an event loop, on its disk: the turns, timers and threads' callbacks around `Node`.

Everything that happens (a frame, a durable batch, a timer) is handed to the node at once, and a turn follows
in the same round of the event loop: so all that came together is handled together, in one batch and one frame
for each peer. The loop never waits for a disk: commits are made by the disk's own threads.

Whether there are others is not its business: `server` puts it on a network, `embedded` into a process that
has all there is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from kvstore import storage
from kvstore.api.facts import topology_of
from kvstore.api.ports import Facts
from kvstore.bare.application import BareMulticast
from kvstore.config.addresses import Address, NodeId, node_address
from kvstore.config.model import Config
from kvstore.machine.codec import TABLES
from kvstore.node.directory import Directory
from kvstore.node.loop import Node
from kvstore.node.ports import Application, Network
from kvstore.node.recorder import DeliveryRecorder
from kvstore.store.application import StoreApplication
from kvstore.store.service import Service
from kvstore.wire.frames import Envelope, FrameCodec
from multicast.errors import InvalidArgument
from multicast.membership import Membership
from multicast.types import TICKS_PER_S, ClientId, GroupId, ReplicaId, Timestamp

logger = logging.getLogger(__name__)

TIMER_S: Final = 0.001
"""What uvloop's timers count in. Rounded down, one would wake us just before it is time, again and again."""

EPOCH_S: Final = 1_767_225_600
"""When revisions begin: the first of January 2026, UTC."""


class Engine:
    """One node in its event loop."""

    def __init__(
        self,
        config: Config,
        me: NodeId,
        network: Callable[[Engine], Network],
        *,
        on_address: Callable[[NodeId, Address], None] = lambda *_: None,
        on_turned: Callable[[], None] = lambda: None,
        replace_lost: Callable[[str], None] | None = None,
    ) -> None:
        """`network` is made when it is known on which disk the node is. `on_address` learns where nodes are;
        `on_turned` is told that all that came is handled. `replace_lost` makes another disk in the place of
        one that is lost, and is told why; without it, that is an error.
        """
        self._config = config
        self.me = me
        self._on_address = on_address
        self._on_turned = on_turned
        self._loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        """Whoever runs the node should end: it was told to, or has failed."""
        self.failure: Exception | None = None
        self._turning = False
        self._closing = False
        """From here on there are no turns: soon the disk is closed, in another thread."""
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = float("inf")
        self.disk = self._open_disk(replace_lost)
        self.incarnation = self.disk.identity.incarnation
        self.directory = Directory(config.incarnations)
        self._wall_s = time.time() - EPOCH_S - self.now()
        self.store: StoreApplication | None = None
        self.service: Service | None = None
        self._recorder: DeliveryRecorder | None = None
        try:
            if config.trace_folder is not None:
                requests = config.application == "store"
                self._recorder = DeliveryRecorder(config.trace_folder, me, requests=requests)
                logger.info("deliveries are recorded in %s", self._recorder.path)
            application = self._application()
            self.codec = FrameCodec(application.messages)
            links = network(self)
            self.node = Node(
                me, config.topology, self._replicas(), config.protocol_type,
                node_of=self.directory.node_of, place=node_address(me, config.addresses[me]),
                clock=self, network=links, log=self.disk.log, application=application,
                wall_s=self._wall_s if config.clock == "hybrid" else None,
                rng=random.Random(secrets.randbits(128)), timing=config.timing, on_learned=self._learned,
                recorder=self._recorder,
            )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def _application(self) -> Application:
        """What the cluster is for."""
        config, state = self._config, self.disk.state
        if isinstance(state, storage.LmdbState):
            return BareMulticast(state)
        self.store = StoreApplication(
            state, config.topology, config.first_placement, me=ClientId(1 + secrets.randbelow(2**63 - 1)),
            limits=config.store.limits, now=self.now, ticks=self._ticks,
            rng=random.Random(secrets.randbits(128)),
        )  # fmt: skip
        self.service = Service(self.store.gateway, self.turn_soon)
        return self.store

    def _ticks(self) -> int:
        return int((self.now() + self._wall_s) * TICKS_PER_S)

    def _open_disk(
        self, replace_lost: Callable[[str], None] | None
    ) -> storage.Disk[storage.LmdbState] | storage.Disk[storage.StoreState]:
        """The node's disk; if it is lost, a new one."""
        if replace_lost is None:
            return self._open()
        path = self._config.data(self.me)
        if not path.is_dir() or not any(path.iterdir()):
            replace_lost(f"{path} has no disk")
        try:
            return self._open()
        except storage.LostDisk as error:
            replace_lost(str(error))
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
            memberships = self.disk.log.load(group).memberships
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
        for node, address in self.directory.learn(membership).items():
            self._on_address(node, address)

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
        self.turn_soon()

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
        if self.failure is not None:
            return
        try:
            call(*arguments)
        except Exception as error:
            logger.exception("this node's own state is wrong, or its disk has failed")
            self._failed(error)

    def receive(self, envelopes: list[Envelope], node: NodeId | None = None) -> None:
        """A frame has come, from a node or a client."""
        self._do(self.node.receive, envelopes, node)
        self.turn_soon()

    def _durable(self, number: int) -> None:
        self._do(self.node.durable, number)
        self._do(self.disk.state.log_durable, number)
        self.turn_soon()

    def _committed(self, positions: Mapping[GroupId, Timestamp]) -> None:
        self._do(self.node.committed, positions)
        self.turn_soon()

    def _failed(self, error: Exception) -> None:
        """A disk that fails is not trusted again: the node stops, and says why."""
        if self.failure is None:
            self.failure = error
            self.stopped.set()

    def _tick(self) -> None:
        self._wake_at = float("inf")
        self._do(self.node.tick)
        self.turn_soon()

    # Turns

    def turn_soon(self) -> None:
        """A turn follows, in this round of the loop or the next."""
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if not self._closing:
            self._do(self._turn_now)

    def _turn_now(self) -> None:
        self.node.turn()
        while self.disk.log.pump(may_wait=True):
            self.node.durable(self.disk.log.durable)
            self.disk.state.log_durable(self.disk.log.durable)
            self.node.turn()
        if self.disk.state.pump():
            self.turn_soon()
        self._on_turned()
        if self.node.wake_at < self._wake_at:
            self._wake_at = self.node.wake_at
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._wake_at + TIMER_S, self._tick)

    # Stopping, and looking

    def commit(self) -> None:
        """Before the end: commit what was delivered, so that the next start has less to do."""
        self._turn()
        self._do(self.node.commit)

    def rest(self) -> None:
        """Take no turn any more: what it talks to, and its disk, are about to be closed."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Close the disk, after `rest`. It takes a while."""
        self.disk.close()
        if self._recorder is not None:
            self._recorder.close()

    def facts(self, status: Callable[[], Mapping[str, Any]]) -> Facts:
        """What the API says of the store's cluster."""
        assert self.store is not None
        return Facts(partial(topology_of, self._config, self.store, self.directory.node_of), status)

    def status(self) -> dict[str, Any]:
        """The node, for people."""
        files = [self.disk.path / name / "data.mdb" for name in ("log", "state")]
        size = sum(file.stat().st_blocks * 512 for file in files)
        groups = {}
        for me, about in self.node.status().items():
            leader = about.pop("leader")
            name = self.directory.node_of(leader) if isinstance(leader, ReplicaId) else None
            groups[str(me.group)] = {**about, "leader": name, "store_bytes": size}
        return {
            "id": self.me,
            "incarnation": f"{self.incarnation:016x}",
            "pid": os.getpid(),
            "groups": groups,
            "statistics": asdict(self.node.statistics),
            "in_flight": 0 if self.service is None else self.service.in_flight,
        }
