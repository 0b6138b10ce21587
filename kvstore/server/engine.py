"""A node in an event loop, on its disk: the turns, timers and threads' callbacks around `Node`.

The engine passes each event (a frame, a durable batch, a timer) to the node, and a turn follows in the same
round of the event loop, or a little later if much is under way: so events that arrive together are handled
together, in one batch and one frame for each peer. The loop never waits for a disk: the disk's own threads
commit.

The engine does not know whether there are other nodes: `server` puts it on a network, `embedded` runs it as
the only node of a store.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from kvstore.node.pace import COMPANY, LONG_S, MOST_S, QUIET_S, gather_s
from kvstore.node.ports import Application, Network
from kvstore.node.recorder import DeliveryRecorder
from kvstore.node.wall_clock import wall_clock
from kvstore.storage.lives import SETTLED_S
from kvstore.storage.space import LOOK_S, Level
from kvstore.store.application import StoreApplication
from kvstore.store.service import Service
from kvstore.wire.frames import Envelope, FrameCodec
from multicast.errors import InvalidArgument, PeerViolation
from multicast.membership import Membership
from multicast.types import ClientId, GroupId, ReplicaId, Timestamp, disk_of

logger = logging.getLogger(__name__)

TIMER_S: Final = 0.001
"""Resolution of uvloop's timers. A timer rounded down would fire too early, again and again."""


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
        """Open the disk, then make the `network`, which needs its incarnation. `on_address` gets addresses of
        nodes; `on_turned` is called when all arrived messages are handled. `replace_lost` replaces a lost
        disk, and gets the reason; without it, a lost disk is an error.
        """
        self._config = config
        self.me = me
        self._on_address = on_address
        self._on_turned = on_turned
        self._loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        """Set when the node is to stop: on request, or because it has failed."""
        self.failure: Exception | None = None
        self._turning = False
        self._gather_s = 0.0
        self._events = 0
        """What has happened so far: frames, calls, durable batches, timers."""
        self._closing = False
        """Whether turns have ended: another thread closes the disk soon."""
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = float("inf")
        self._space_at = 0.0
        self._settled_at = self.now() + SETTLED_S
        self.disk = self._open_disk(replace_lost)
        self.disk.state.on_part = self._from_thread(self.turn_soon)
        self.incarnation = self.disk.identity.incarnation
        self.directory = Directory(config.incarnations)
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
                node_of=self.directory.node_of, may_send=self.directory.may_send,
                address=node_address(me, config.addresses[me]),
                clock=self, network=links, codec=self.codec, log=self.disk.log, application=application,
                wall=wall_clock(me) if config.clock == "hybrid" else None,
                rng=random.Random(secrets.randbits(128)), timing=config.timing, on_learned=self._learned,
                recorder=self._recorder, begun=self.disk.identity.begun.keys(),
            )  # fmt: skip
            if isinstance(application, StoreApplication):
                application.gateway.stager = self.node.staging
        except BaseException:
            self.close()
            raise

    def _application(self) -> Application:
        """Return the application of the configuration: the store, or bare multicast."""
        config, state = self._config, self.disk.state
        if isinstance(state, storage.LmdbState):
            return BareMulticast(state)
        self.store = StoreApplication(
            state, config.topology, config.first_placement, me=ClientId(1 + secrets.randbelow(2**63 - 1)),
            limits=config.store.limits, now=self.now, work_clock=time.thread_time,
            rng=random.Random(secrets.randbits(128)), scrub_s=3600 * config.scrub_hours,
            keep=config.keep_history, used=lambda: state.usage().used,
        )  # fmt: skip
        self.service = Service(self.store.gateway, self.turn_soon, work_clock=time.thread_time)
        return self.store

    def _open_disk(
        self, replace_lost: Callable[[str], None] | None
    ) -> storage.Disk[storage.LmdbState] | storage.Disk[storage.StoreState]:
        """Open the node's disk, or a new one if it is lost. What is damaged of it is set aside."""
        if replace_lost is None:
            return self._open()
        path = self._config.data(self.me)
        if not path.is_dir() or not any(path.iterdir()):
            replace_lost(f"{path} has no disk")
        for _ in range(3):  # lost; or first the log is damaged, then the state
            try:
                return self._open()
            except storage.LostDisk as error:
                replace_lost(str(error))
            except storage.DamagedLog as error:
                self._set_log_aside(error)
            except storage.DamagedState as error:
                if self._alone():
                    raise  # no other member can restore it
                kept = storage.replace_state(path)
                logger.critical(
                    "%s; the old state is kept as %s, and a new one is restored from the groups' other "
                    "members", error, kept.name,
                )  # fmt: skip
        return self._open()

    def _alone(self) -> set[GroupId]:
        """Return the groups that have no other member."""
        return {group for group, nodes in self._config.groups.items() if list(nodes) == [self.me]}

    def _set_log_aside(self, error: storage.DamagedLog) -> None:
        """Let the replicas whose records are damaged begin anew, if their groups can admit them."""
        bad = set(self._config.groups if error.groups is None else error.groups)
        if bad & self._alone():
            raise error  # no other member knows what was promised
        kept = storage.renew(self._config.data(self.me), bad, readable=error.groups is not None)
        logger.critical(
            "%s; the old log is kept as %s. The replicas of partitions %s have lost promises: each begins "
            "anew, empty, when its partition has a quorum that is well without it, and admits it",
            error, kept.name, ", ".join(map(str, sorted(bad))),
        )  # fmt: skip

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
        """Return the replicas of this disk, which are members or are to become members.

        A replica's number is in the log if it ever was a member; otherwise in the configuration.
        """
        found = []
        newest: dict[GroupId, Membership] = {}
        for group in self._config.groups:  # each may know the others' members: one log may have begun anew
            for of, membership in self.disk.log.load(group).memberships.items():
                self._learned(membership)
                if of not in newest or membership.version > newest[of].version:
                    newest[of] = membership
        for group, nodes in self._config.groups.items():
            members = newest[group].everyone if group in newest else ()
            numbers = [m.number for m in members if disk_of(m.incarnation) == disk_of(self.incarnation)]
            numbers += [nodes.index(self.me)] if self.me in nodes else []
            if numbers:
                found.append(ReplicaId(group, numbers[0], self.disk.identity.incarnation_of(group)))
        return found

    def _learned(self, membership: Membership) -> None:
        """Note the addresses of members, which may be on unknown nodes."""
        for node, address in self.directory.learn(membership).items():
            self._on_address(node, address)
        if self.store is not None:
            self.store.gateway.learn(membership)

    def replace(self, members: Iterable[ReplicaId]) -> None:
        """Replace these members by replicas of this node, even if they are healthy."""
        wanted = list(members)
        hosted = {replica.group for replica in self.node.replicas}
        for old in wanted:
            if old.group in hosted:
                raise InvalidArgument(f"{self.me} already has a replica of group {old.group}")
            hosted.add(old.group)
        for old in wanted:
            incarnation = self.disk.identity.incarnation_of(old.group)
            self.node.host(old._replace(incarnation=incarnation), evicts=old)
        self.turn_soon()

    def accept_time(self) -> list[GroupId]:
        """Let groups that this node leads follow the time of day: an operator has confirmed it."""
        accepted = self.node.accept_time()
        self.turn_soon()
        return accepted

    def scrub(self) -> int:
        """Read all rows of the state now; return how many passes have ended when this one has."""
        if self.store is None:
            raise ValueError(f"{self.me} has no store, whose rows could be read")
        self.turn_soon()
        return self.store.scrubber.hurry(self.now())

    def now(self) -> float:
        """Return the time of the event loop: see `ports.Clock`."""
        return self._loop.time()

    def _from_thread(self, call: Any) -> Any:
        """Return a function for other threads that makes the call in the loop, unless that is closed."""

        def pass_on(*arguments: object) -> None:
            try:
                self._loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:
                logger.debug("dropped %s: the event loop is closed", call)

        return pass_on

    # Events

    def _do(self, call: Callable[..., None], *arguments: object) -> None:
        """Call the node. After an exception its state cannot be trusted: it stops, and logs the reason."""
        if self.failure is not None:
            return
        try:
            call(*arguments)
        except Exception as error:
            logger.exception("this node's own state is wrong, or its disk has failed")
            self._failed(error)

    def receive(self, envelopes: list[Envelope], node: NodeId | None = None) -> None:
        """Handle a frame from a node or a client. Raises `PeerViolation` if no correct one sends it.

        A turn follows: at once if a process may wait for what it does, else with other events.
        """
        violations: list[PeerViolation] = []
        self._do(self._receive, envelopes, node, violations)
        if self.node.is_due:
            self.turn_soon()
        else:
            self._events += 1
            self._set_timer()
        if violations:
            raise violations[0]

    def _receive(
        self, envelopes: list[Envelope], node: NodeId | None, violations: list[PeerViolation]
    ) -> None:
        try:
            self.node.receive(envelopes, node)
        except PeerViolation as error:  # the peer's state is wrong, not this node's
            violations.append(error)

    def _durable(self, number: int) -> None:
        self._do(self.node.durable, number)
        self._do(self.disk.state.log_durable, number)
        self.turn_soon()

    def _committed(self, positions: Mapping[GroupId, Timestamp]) -> None:
        self._do(self.node.committed, positions)
        self.turn_soon()

    def _failed(self, error: Exception) -> None:
        """Stop the node: a disk that has failed is not trusted again."""
        if self.failure is None:
            self.failure = error
            self.stopped.set()

    def _tick(self) -> None:
        self._wake_at = float("inf")
        if self.now() < self.node.wake_at:
            self._set_timer()  # what it was for has been done in another turn
            return
        self._do(self.node.tick)
        self.turn_soon()

    # Turns

    def turn_soon(self) -> None:
        """Schedule a turn: in this round of the loop or the next, or a little later if the node gathers."""
        self._events += 1
        if not self._turning:
            self._turning = True
            under_way = self.node.under_way(self.now())
            self._gather_s = gather_s(under_way)
            if self._gather_s:
                self._loop.call_later(self._gather_s, self._turn)
            elif under_way >= COMPANY:
                now = time.monotonic()  # the loop's own time has milliseconds only
                self._loop.call_soon(self._turn_when_quiet, self._events, now, now + MOST_S)
            else:
                self._loop.call_soon(self._turn)

    def _turn_when_quiet(self, events: int, since: float, until: float) -> None:
        """Take a turn when nothing has come for QUIET_S, or when the time is up."""
        now = time.monotonic()
        if self._events != events:
            since = now
        if now - since >= QUIET_S or now >= until:
            self._turn()
        else:
            self._loop.call_soon(self._turn_when_quiet, self._events, since, until)

    def _turn(self) -> None:
        self._turning = False
        if not self._closing:
            self._do(self._turn_now)

    def _look_at_space(self) -> None:
        """Follow the disk's free space: refuse writes before it is full, and hand over when it is."""
        disk = self.disk
        if self.now() >= self._settled_at:
            self._settled_at = float("inf")
            disk.settle()
        stalled = disk.log.stalled or disk.state.stalled
        disk.space.look(self.now(), stalled=stalled)
        full = disk.space.level is Level.FULL
        if self.store is not None:
            self.store.gateway.low_space = disk.space.refusal()
        self.node.muted = full
        if full:
            self.node.hand_over(sorted(self.node.leading()))

    def _turn_now(self) -> None:
        if self.now() >= self._space_at or self.disk.log.stalled:
            self._space_at = self.now() + LOOK_S
            self._look_at_space()
        self.node.turn()
        # With much under way, the loop has other work than to wait for the disk.
        while self.disk.log.pump(may_wait=self._gather_s < LONG_S):
            self.node.durable(self.disk.log.durable)
            self.disk.state.log_durable(self.disk.log.durable)
            self.node.turn()
        if self.disk.state.pump() or self.node.work():
            self.turn_soon()
        while self.disk.state.damaged:
            self.node.set_aside(*self.disk.state.damaged.popitem())
        self._on_turned()
        self._set_timer()

    def _set_timer(self) -> None:
        if self.node.wake_at < self._wake_at:
            self._wake_at = self.node.wake_at
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._wake_at + TIMER_S, self._tick)

    # Shutdown and status

    def commit(self) -> None:
        """Commit what was delivered, before the node stops, so that the next start has less to do."""
        self._turn()
        self._do(self.node.commit)

    def rest(self) -> None:
        """Stop taking turns: the network and the disk are about to be closed."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Close the disk, after `rest`. Blocks until its threads have ended."""
        self.disk.close()
        if self._recorder is not None:
            self._recorder.close()

    def facts(self, status: Callable[[], Mapping[str, Any]]) -> Facts:
        """Return the facts about the cluster that the API serves."""
        assert self.store is not None
        config = self._config
        addresses = {name: node.api or "" for name, node in config.nodes.items()}
        known = partial(topology_of, addresses, config.groups, self.store, self.directory.node_of)
        return Facts(known, status)

    def status(self) -> dict[str, Any]:
        """Return the node's part of the status output."""
        usage: dict[str, storage.Usage] = {}
        with contextlib.suppress(storage.StorageError):  # the disk has failed: the node is about to stop
            usage = {"state": self.disk.state.usage(), "log": self.disk.log.usage()}
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
            "disk": {
                "space": self.disk.space.level.value,
                "free_bytes": self.disk.space.free,
                "files": {name: {**each._asdict(), "file": each.file} for name, each in usage.items()},
                "scrub": None if self.store is None else self.store.scrubber.status(self.now()),
            },
            "groups": groups,
            "statistics": asdict(self.node.statistics),
            "relays": self.node.relays.status(),
            "in_flight": 0 if self.service is None else self.service.in_flight,
        }
