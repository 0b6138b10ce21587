"""Sequences of faults and of operators' actions on real processes, and how soon clusters serve afterwards.

The same actions as in `tests.sim.sequences`. One follows the other after a random time, often before the one
before has been dealt with. An innocent client writes and reads meanwhile, and records what it sees.

Afterwards, every partition whose members have a connected quorum, with their disks, must serve: through each
node that is connected with such a quorum, writes and strict reads succeed. A sequence may leave no quorum;
then nothing need be served. In the end all faults but lost disks are undone, and whatever had a quorum of
disks must serve again. The innocent client's history must hold in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import wbkv
from wbkv import checker
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc

from kvstore.bare.client import MulticastClient
from kvstore.config.addresses import NodeId
from kvstore.local.status import ask
from kvstore.simulation.availability import _reaches
from multicast.membership import Membership
from multicast.types import GroupId, disk_of
from tests.faults.clients import may_repeat
from tests.faults.harness import PATIENCE_S, FaultyCluster, until
from tests.sim.sequences import PAUSE_S

PARTITIONS: Final = 3
DISTANCES_S: Final = (0.0, 0.05, 0.2, 0.6, 1.5, 3.0)
"""Between two actions."""

POLL_S: Final = 0.05
LOOK_S: Final = 1.0
"""How long a strict read without a quorum is waited for: it must not have a wrong answer meanwhile."""

PACE_S: Final = 0.03
"""Between two calls of the innocent client."""

KEYS: Final = tuple(f"innocent {number}" for number in range(6))

Served = dict[NodeId, list[GroupId]]
"""Nodes, and the groups that must serve through them."""


@dataclass
class Outcome:
    """What came of a sequence. Times are from the end of the last fault."""

    sequence: tuple[str, ...]
    seed: int
    said: list[str] = field(default_factory=list)
    """The actions, each with its node and time."""
    serves: bool = False
    """Whether any group had to serve."""
    whole: bool = False
    """Whether all groups had to, through all nodes."""
    up_s: float = 0.0
    """Until all nodes answered an operator."""
    led_s: float = 0.0
    """Until all groups that had to serve had leaders."""
    first_s: float = 0.0
    """Until the first of them had answered a write and a read through some node."""
    all_s: float = 0.0
    """Until all of them had, through all nodes."""
    paused_s: float | None = None
    """If the last action is a pause: the same for the other nodes, from its beginning."""
    healed_s: float | None = None
    """The same, after everything is undone; None if some group had lost its quorum for ever."""
    slowest: str = ""
    problem: str = ""


class InnocentClient:
    """A thread that writes and reads lists until it is told to stop, and records what it sees."""

    def __init__(self, addresses: list[str], file: Path, seed: int) -> None:
        self.done = 0
        self.failed = 0
        self._history = wbkv.History(file, model="list-append")
        self._client = wbkv.connect(addresses, timeout=5.0, wait=PATIENCE_S, history=self._history)
        self._rng = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        for number in itertools.count():
            key = self._rng.choice(KEYS)
            try:
                if number % 2:
                    self._client.get(key)
                else:
                    self._client.append(key, b"%d," % number)
                self.done += 1
            except wbkv.Error:
                self.failed += 1
            if self._stopped.wait(PACE_S):
                return

    def stop(self) -> None:
        """Make no more calls."""
        self._stopped.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "a call with a time limit has not ended"

    def look(self, address: str, timeout_s: float) -> None:
        """Read all keys through a node, for the record. Without a quorum there may be no answers."""
        with (
            contextlib.suppress(wbkv.Error),
            wbkv.connect([address], timeout=timeout_s, history=self._history) as client,
        ):
            for key in KEYS:
                client.get(key)

    def close(self) -> None:
        self._stopped.set()
        self._client.close()
        self._history.close()


class OperatedCluster(FaultyCluster):
    """Three nodes that are killed, replaced and so on."""

    def __init__(self, folder: Path, sequence: tuple[str, ...], seed: int = 0) -> None:
        super().__init__(folder, 3, PARTITIONS, durability="os")
        self.choice = random.Random(f"{sequence} {seed}")
        self.outcome = Outcome(sequence, seed)
        self.up = dict.fromkeys(self.config.nodes)
        """The nodes that run."""
        self.members = list(self.config.nodes)
        self.began = self.ended = time.monotonic()
        """When the actions began, and when the last one had ended."""
        self._cuts: dict[tuple[NodeId, NodeId], NodeId] = {}
        """Links that are cut, and the node whose process drops their frames."""
        self._paused: dict[NodeId, float] = {}
        """Nodes that stand still, and until when."""
        self._operators: list[threading.Thread] = []
        self._closing = threading.Event()

    # Actions

    def do(self, action: str) -> None:
        """Do something to a node that is up, or to a link between two; "kill of n1" names the node."""
        action, _, named = action.partition(" of ")
        awake = [node for node in self.up if node not in self._paused]
        if not awake:
            self.outcome.said.append(f"{action}: no node is up")
            return
        # Half of the time to one that leads: it matters most.
        first = [node for node in awake if leads(self, node)]
        node = self.choice.choice(first if first and self.choice.random() < 0.5 else awake)
        node = NodeId(named) if named else node
        self.outcome.said.append(f"{time.monotonic() - self.began:.2f} {action} {node}")
        getattr(self, f"_{action.replace(' ', '_')}")(node)
        self.ended = time.monotonic()

    def _kill(self, node: NodeId) -> None:
        self._ends(node)
        self.hurt("kill", node)

    def _stop(self, node: NodeId) -> None:
        self._ends(node)
        self.hurt("stop", node)

    def _ends(self, node: NodeId) -> None:
        del self.up[node]
        self._paused.pop(node, None)
        self._cuts = {link: dropper for link, dropper in self._cuts.items() if dropper != node}

    def _wipe(self, node: NodeId) -> None:
        self._ends(node)
        self.hurt("wipe", node)
        self.hurt("start", node)
        self.up[node] = None

    def _replace(self, node: NodeId) -> None:
        """Let a new node replace another, which stays up, if it can."""
        if node not in self.members:
            node = self.choice.choice(self.members)
        new = self.add()
        self.hurt("start", new)
        self.up[new] = None
        self.members = [new if old == node else old for old in self.members]
        operator = threading.Thread(target=self._order_replacement, args=(node, new), daemon=True)
        self._operators.append(operator)
        operator.start()

    def _order_replacement(self, old: NodeId, new: NodeId) -> None:
        """As `wbkv member replace` does: tell the new node which members to replace, once it is there."""
        config = self.config
        first = {node: disk_of(incarnation) for node, incarnation in config.incarnations.items()}
        while not self._closing.wait(POLL_S):
            found = asyncio.run(memberships(self, 1.0))
            disks = {node: disk for node in self.nodes if (disk := disk_on(self, node)) is not None}
            disk = disks.get(old, first.get(old))
            rows = [
                [member.group, member.number, f"{member.incarnation:x}"]
                for membership in found.values()
                for member in membership.current.members
                if disk_of(member.incarnation) == disk
            ]
            answer = ask(config.status_socket(new), request={"replace": rows}) if rows else None
            if answer is not None:
                return

    def _restart_all(self, _: NodeId) -> None:
        nodes = list(self.config.nodes)
        for node in list(self.up):
            self._ends(node)
        self.hurt("kill", *nodes)
        self.hurt("start", *nodes)
        self.up = dict.fromkeys(nodes)

    def _cut(self, node: NodeId) -> None:
        others = [other for other in self.up if other != node and other not in self._paused]
        if others:
            other = self.choice.choice(others)
            both = self.choice.random() < 0.5
            self.outcome.said[-1] += f" {'<' if both else '-'}-> {other}"
            self.hurt("to", node, other)
            self._cuts[node, other] = node
            if both:
                self.hurt("from", node, other)
                self._cuts[other, node] = node

    def _pause(self, node: NodeId) -> None:
        self.hurt("pause", node)
        self._paused[node] = time.monotonic() + PAUSE_S

    # Time

    def wait(self, seconds: float) -> None:
        """Let time pass; paused nodes go on when it is time."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            for node, until_s in list(self._paused.items()):
                if now >= until_s:
                    self._go_on(node)
            time.sleep(0.02)

    def _go_on(self, node: NodeId) -> None:
        self.hurt("continue", node)
        del self._paused[node]
        self.ended = time.monotonic()

    # What must be served

    def awake(self) -> list[NodeId]:
        return [node for node in self.up if node not in self._paused]

    def connected_with(self, node: NodeId, others: Collection[NodeId]) -> bool:
        """Whether frames pass between the node and each of these, directly or relayed, in both directions."""
        numbers = {name: number for number, name in enumerate(self.config.nodes)}
        cuts = [(numbers[one], numbers[other]) for one, other in self._cuts]
        awake = [numbers[name] for name in self.awake()]
        return all(
            _reaches(cuts, awake, numbers[one], numbers[two])
            for one, two in itertools.permutations({node, *others}, 2)
        )

    async def homes(self) -> dict[int, NodeId]:
        """Wait until all nodes that are awake answer; return their disks, and which is whose."""
        awake, disks = self.awake(), dict[int, NodeId]()
        deadline = time.monotonic() + PATIENCE_S
        while len(disks) < len(awake):
            assert time.monotonic() < deadline, f"nodes do not start: {disks}"
            found = await asyncio.gather(*(asyncio.to_thread(disk_on, self, node) for node in awake))
            disks = {disk: node for disk, node in zip(found, awake, strict=True) if disk is not None}
            await asyncio.sleep(0 if len(disks) == len(awake) else POLL_S)
        return disks

    async def must_serve(self, disks: dict[int, NodeId]) -> Served:
        """Return the groups with a connected quorum of disks, for each node that is connected with one."""
        awake = list(disks.values())
        served = Served()
        for group, membership in (await memberships(self, 5.0)).items():
            alive = [m for m in membership.everyone if disk_of(m.incarnation) in disks]
            for size in range(1, len(alive) + 1):
                for quorum in itertools.combinations(alive, size):
                    if membership.agrees(quorum):
                        homes = {disks[disk_of(m.incarnation)] for m in quorum}
                        for node in awake:
                            if group not in served.get(node, ()) and self.connected_with(node, homes):
                                served.setdefault(node, []).append(group)
        return served

    # The run

    def check(self) -> Outcome:
        """Carry out the sequence; raise unless all is served that must be, and the history holds."""
        outcome, file = self.outcome, self.data / "history.jsonl"
        with self:
            innocent = InnocentClient(self.addresses, file, outcome.seed)
            try:
                until(lambda: innocent.done >= 10)
                self.began = time.monotonic()
                for action in outcome.sequence:
                    self.wait(self.choice.choice(DISTANCES_S))
                    self.do(action)
                self._measure()
                innocent.stop()
                for node in self.awake():
                    timeout_s = PATIENCE_S if outcome.whole else LOOK_S
                    innocent.look(str(self.config.nodes[node].api), timeout_s)
                self._undo()
                healed = asyncio.run(self._probe())
                if healed.served:
                    outcome.healed_s = healed.all_s
                    for node in healed.served:
                        innocent.look(str(self.config.nodes[node].api), PATIENCE_S)
            finally:
                self._closing.set()
                innocent.close()
                for operator in self._operators:
                    operator.join(PATIENCE_S)
        with file.open("rb") as history:
            verdict = checker.check(checker.read(history))
        assert verdict.holds, verdict.anomalies
        return outcome

    def _measure(self) -> None:
        """Measure until all is served that must be; while a node is paused, by the others."""
        outcome = self.outcome
        if self._paused and outcome.sequence[-1].startswith("pause"):
            paused = asyncio.run(self._probe())
            outcome.paused_s = paused.all_s if paused.served else None
        while self._paused:
            self.wait(0.02)
        probe = asyncio.run(self._probe())
        outcome.serves = bool(probe.served)
        outcome.whole = all(len(probe.served.get(node, ())) == PARTITIONS for node in self.up)
        outcome.up_s, outcome.led_s = probe.up_s, probe.led_s
        outcome.first_s, outcome.all_s = probe.first_s, probe.all_s
        outcome.slowest = probe.slowest

    async def _probe(self) -> Probe:
        probe = Probe(self)
        await probe.run()
        return probe

    def _undo(self) -> None:
        """Mend all links, and start all nodes that are down."""
        for node in self.awake():
            self.hurt("heal", node)
        self._cuts = {}
        down = [node for node in self.config.nodes if node not in self.up]
        if down:
            self.hurt("start", *down)
        self.up = dict.fromkeys(self.config.nodes)
        self.ended = time.monotonic()


class Probe:
    """Writes and strict reads of each group through each node, until those that must succeed have."""

    def __init__(self, cluster: OperatedCluster) -> None:
        self.served = Served()
        self.up_s = self.led_s = self.first_s = self.all_s = 0.0
        self.slowest = ""
        self._cluster = cluster
        self._answered: dict[tuple[NodeId, GroupId], float] = {}
        self._last: dict[tuple[NodeId, GroupId], str] = {}
        self._led: dict[GroupId, float] = {}
        self._numbers = itertools.count(random.getrandbits(40))

    async def run(self) -> None:
        """Ask, while it is found out what must be served."""
        cluster = self._cluster
        placement = cluster.config.first_placement
        keys = {placement.group_of(key): key for key in (f"key {n}".encode() for n in range(100))}
        tasks = [asyncio.create_task(self._ask(node, keys)) for node in cluster.awake()]
        tasks.append(asyncio.create_task(self._watch_leaders()))
        try:
            disks = await cluster.homes()
            self.up_s = time.monotonic() - cluster.ended
            self.served = await cluster.must_serve(disks)
            wanted = {(node, group) for node, groups in self.served.items() for group in groups}
            deadline = time.monotonic() + PATIENCE_S
            while not wanted <= self._answered.keys():
                assert time.monotonic() < deadline, self._complaint(wanted)
                await asyncio.sleep(0.01)
                for task in tasks:
                    if task.done():
                        task.result()
            if wanted:
                times = {self._answered[each]: each for each in wanted}
                self.first_s, self.all_s = min(times), max(times)
                node, group = times[self.all_s]
                self.slowest = f"group {group} through {node}"
                groups = {group for _, group in wanted}
                self.led_s = max(self._led.get(group, 0.0) for group in groups)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _complaint(self, wanted: set[tuple[NodeId, GroupId]]) -> str:
        missing = {each: self._last.get(each, "no answer") for each in sorted(wanted - self._answered.keys())}
        status = {node: ask(self._cluster.config.status_socket(node)) for node in self._cluster.awake()}
        return f"{self._cluster.outcome.said}: not served: {missing}; the nodes say {status}"

    async def _ask(self, node: NodeId, keys: dict[GroupId, bytes]) -> None:
        host, port = self._cluster.config.api_addresses[node]
        while not await asyncio.to_thread(_accepts, host, port):
            await asyncio.sleep(0.02)
        async with grpc.aio.insecure_channel(
            f"{host}:{port}", options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            stub: Any = kv_pb2_grpc.KVStub
            await asyncio.gather(
                *(self._ask_group(stub(channel), node, group, key) for group, key in keys.items())
            )

    async def _ask_group(self, stub: Any, node: NodeId, group: GroupId, key: bytes) -> None:
        number = next(self._numbers)
        value = f"{node} {number}".encode()
        name = kv.RequestId(client=number + 1, sequence=1, ack_below=1)
        put = kv.PutRequest(key=key, value=value, id=name)
        await self._repeat((node, group), lambda: stub.Put(put, timeout=PATIENCE_S))
        await self._repeat((node, group), lambda: stub.Get(kv.GetRequest(key=key), timeout=PATIENCE_S))
        self._answered[node, group] = time.monotonic() - self._cluster.ended

    async def _repeat(self, what: tuple[NodeId, GroupId], call: Callable[[], Any]) -> Any:
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                self._last[what] = f"{error.code()} {error.details()}"
                if not may_repeat(error):
                    raise
            await asyncio.sleep(POLL_S)

    async def _watch_leaders(self) -> None:
        while True:
            for node in self._cluster.awake():
                found = await asyncio.to_thread(ask, self._cluster.config.status_socket(node))
                for group, replica in (found or {}).get("groups", {}).items():
                    if replica["status"] == "leader":
                        self._led.setdefault(GroupId(int(group)), time.monotonic() - self._cluster.ended)
            await asyncio.sleep(POLL_S)


def _accepts(host: str, port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((host, port)) == 0


def disk_on(cluster: FaultyCluster, node: NodeId) -> int | None:
    """Return the disk of a node, as incarnations name it (`disk_of`); None if the node does not answer."""
    found: Any = ask(cluster.config.status_socket(node))
    return None if found is None else disk_of(int(found["incarnation"], 16))


def leads(cluster: FaultyCluster, node: NodeId) -> bool:
    """Return whether a node leads any group, as it says."""
    found: Any = ask(cluster.config.status_socket(node))
    return found is not None and any(group["status"] == "leader" for group in found["groups"].values())


async def memberships(cluster: FaultyCluster, timeout_s: float) -> dict[GroupId, Membership]:
    """Return what the members of the groups say of their membership; nothing if none of some group does."""
    try:
        async with MulticastClient.of(cluster.config) as client:
            return dict(await client.memberships(timeout_s))
    except (TimeoutError, ConnectionError):  # the latter if no node is awake
        return {}
