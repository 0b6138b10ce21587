"""Clients of a store that never give up: what they ask for, how they repeat it, and what they note down."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import kv_pb2_grpc
from wbkv_proto.v1.error_pb2 import Error

from kvstore.api.errors import METADATA
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from kvstore.local.status import ask
from kvstore.node.wall_clock import EPOCH_S
from multicast.protocol import Timing
from multicast.types import TICKS_PER_S, GroupId, timestamp
from tests.faults.harness import PATIENCE_S, FaultyCluster, wait_at_rest
from tests.faults.history import Action, Change, History, Wrong, check

ATTEMPT_S = 1.0
"""How long a node may take before another is asked."""
DEADLINE_S = 600.0
"""How long a request may be repeated."""
PROGRESS_S = 30.0
"""How long it may take until all clients have got some answers, whatever was done to the nodes."""
SILENCE_S = 2.0
"""A watch that says nothing for so long is broken."""

ACCOUNTS = [b"account/%02d" % number for number in range(12)]
COUNTERS = [b"counter/%d" % number for number in range(4)]
LISTS = [b"list/%d" % number for number in range(4)]
BALANCE = 100
EVERYTHING = kv.Range(prefix=b"")

T = TypeVar("T")

_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)


def kind_of(error: grpc.aio.AioRpcError) -> int:
    """What a program reads of an error; 0 if it is not the server's."""
    raw = dict(error.trailing_metadata() or ()).get(METADATA)
    return Error.FromString(raw).kind if raw is not None else 0


def may_repeat(error: grpc.aio.AioRpcError) -> bool:
    """Whether the same request may be sent again. All other errors are definite."""
    lost = error.code() is grpc.StatusCode.UNKNOWN and "Stream removed" in (error.details() or "")
    return lost or error.code() in _AGAIN or kind_of(error) in (Error.OUTCOME_UNKNOWN, Error.OVERLOADED)


class Nodes:
    """Connections to all nodes of a cluster. They belong to one event loop."""

    def __init__(self, cluster: LocalCluster, rng: random.Random) -> None:
        addresses = cluster.config.api_addresses
        self._channels = {
            node: grpc.aio.insecure_channel(f"{host}:{port}", options=_OPTIONS)
            for node, (host, port) in addresses.items()
        }
        stub: Any = kv_pb2_grpc.KVStub
        self._stubs = {node: stub(channel) for node, channel in self._channels.items()}
        self._rng = rng
        self._failed: dict[NodeId, float] = {}
        self.names = list(addresses)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    def stub(self, node: NodeId) -> Any:
        """Of the service `KV`. The generator writes no types into stubs."""
        return self._stubs[node]

    def order(self) -> list[NodeId]:
        """All nodes, in the order in which a client asks them: failed nodes come last, but not always."""
        order = self._rng.sample(self.names, len(self.names))
        if self._rng.random() < 0.8:
            order.sort(key=lambda node: self._failed.get(node, 0.0) > time.monotonic() - ATTEMPT_S)
        return order

    async def ask(self, method: str, request: Any, *nodes: NodeId) -> Any:
        """The answer of these nodes, or of any: they are asked in turn until one has a definite answer."""

        async def attempt(node: NodeId) -> Any:
            return await getattr(self._stubs[node], method)(request, timeout=ATTEMPT_S)

        return await self._repeat(attempt, nodes, request)

    async def scan(self, request: kv.ScanRequest, *nodes: NodeId) -> tuple[int, list[kv.Entry]]:
        """All of a scan, of one of these nodes, and its revision. One that breaks is begun again."""

        async def attempt(node: NodeId) -> tuple[int, list[kv.Entry]]:
            pages = [page async for page in self._stubs[node].Scan(request, timeout=2 * ATTEMPT_S)]
            return pages[-1].header.revision if pages else 0, [
                entry for page in pages for entry in page.entries
            ]

        return await self._repeat(attempt, nodes, request)

    async def _repeat(
        self, attempt: Callable[[NodeId], Awaitable[T]], nodes: Sequence[NodeId], request: Any
    ) -> T:
        until, last = time.monotonic() + PATIENCE_S, "none"
        for node in itertools.cycle(nodes or self.order()):
            try:
                return await attempt(node)
            except grpc.aio.AioRpcError as error:
                if not may_repeat(error):
                    raise
                last = f"{node}: {error.code()} {error.details()}"
                self._failed[node] = time.monotonic()
            check(time.monotonic() < until, f"no answer within {PATIENCE_S} s, the last: {last}; {request}")
            await asyncio.sleep(0.02)
        raise AssertionError

    async def healthy(self, node: NodeId) -> bool:
        """Whether the node serves, as load balancers ask it."""
        stub: Any = health_pb2_grpc.HealthStub
        try:
            answer = await stub(self._channels[node]).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class Client:
    """Whose requests are numbered, and repeated under their numbers."""

    def __init__(self, name: str, nodes: Nodes, history: History, rng: random.Random) -> None:
        self.name = name
        self.nodes = nodes
        self.history = history
        self.rng = rng
        self.done = 0
        """Requests that were answered."""
        self._id = rng.getrandbits(62) + 1
        self._sequence = 0

    async def transact(
        self,
        what: str,
        then: Iterable[kv.Operation],
        *,
        conditions: Iterable[kv.Condition] = (),
        otherwise: Iterable[kv.Operation] = (),
        holds: dict[bytes, int] | None = None,
        writes: Callable[[kv.TxnResponse], dict[bytes, bytes | None]],
    ) -> kv.TxnResponse:
        """Execute it once, wherever that can be done. Some are sent twice at once, or again when answered.

        `holds` are the versions that the conditions ask for.
        """
        self._sequence += 1
        ticks = int((time.time() - EPOCH_S + DEADLINE_S) * TICKS_PER_S)
        request = kv.TxnRequest(
            then=then, conditions=conditions, otherwise=otherwise,
            id=kv.RequestId(
                client=self._id, sequence=self._sequence, ack_below=self._sequence,
                deadline=timestamp(ticks, GroupId(0)),
            ),
        )  # fmt: skip
        begun, luck = time.monotonic(), self.rng.random()
        if luck < 0.1:
            answers = await asyncio.gather(*(self.nodes.ask("Txn", request) for _ in range(2)))
        else:
            answers = [await self.nodes.ask("Txn", request)]
        ended = time.monotonic()
        if luck > 0.9:
            answers.append(await self.nodes.ask("Txn", request))
        answer: kv.TxnResponse = answers[0]
        for other in answers[1:]:
            check(
                _outcome(other) == _outcome(answer),
                f"answered {answer}, and when repeated {other}: {request}",
            )
        action = Action(self.name, f"{what} {self._sequence}", begun, ended)
        action.reads = _seen(answer)
        if answer.succeeded:
            action.revision = answer.header.transaction_revision
            action.writes = writes(answer)
            action.reads.update(holds or {})
        self._note(action)
        return answer

    async def read(self, what: str, keys: Iterable[bytes]) -> dict[bytes, kv.Entry]:
        """As of now, all at once."""
        begun = time.monotonic()
        wanted = list(keys)
        answer = await self.nodes.ask("Txn", kv.TxnRequest(then=[get(key) for key in wanted]))
        found = {key: result.got.entry for key, result in zip(wanted, answer.results, strict=True)}
        reads = {key: entry.mod_revision for key, entry in found.items()}
        self._note(Action(self.name, what, begun, time.monotonic(), reads=reads))
        return found

    def _note(self, action: Action) -> None:
        self.history.actions.append(action)
        self.done += 1


def get(key: bytes) -> kv.Operation:
    return kv.Operation(get=kv.Get(key=key))


def put(key: bytes, value: bytes) -> kv.Operation:
    return kv.Operation(put=kv.Put(key=key, value=value))


def add(key: bytes, number: int) -> kv.Operation:
    return kv.Operation(add=kv.Calculate(key=key, operand=number))


def append(key: bytes, value: bytes) -> kv.Operation:
    return kv.Operation(append=kv.Append(key=key, value=value))


def unchanged(key: bytes, revision: int) -> kv.Condition:
    return kv.Condition(compare=kv.Compare(key=key, operator=kv.EQUAL, mod_revision=revision))


def _outcome(answer: kv.TxnResponse) -> tuple[Any, ...]:
    """What must be the same in all repetitions."""
    return answer.header.transaction_revision, answer.succeeded, list(answer.unmet), list(answer.results)


def _seen(answer: kv.TxnResponse) -> dict[bytes, int]:
    entries = [result.got.entry for result in answer.results if result.HasField("got")]
    return {entry.key: entry.mod_revision for entry in entries if entry.key}


def _numbers(answer: kv.TxnResponse) -> list[bytes]:
    return [b"%d" % result.number.value for result in answer.results if result.HasField("number")]


# What they do


class Teller(Client):
    """Moves money between accounts: with conditions in both partitions, in one, in none."""

    async def work(self) -> None:
        source, target = self.rng.sample(ACCOUNTS, 2)
        amount = self.rng.randint(1, 9)
        way = self.rng.choice(["both", "both", "one", "none"])
        if way == "both":
            found = await self.read("balances", (source, target))
            left, there = int(found[source].value) - amount, int(found[target].value) + amount
            holds = {key: entry.mod_revision for key, entry in found.items()}
            values = {source: b"%d" % left, target: b"%d" % there}
            then = [put(key, value) for key, value in values.items()]
            await self._transfer(then, holds, lambda _: dict(values))
            return
        holds = {}
        if way == "one":
            old = await self.nodes.ask("Get", kv.GetRequest(key=source, consistency=kv.SERIALIZABLE))
            holds = {source: old.entry.mod_revision}
        await self._transfer(
            [add(source, -amount), add(target, amount)],
            holds,
            lambda answer: dict(zip((source, target), _numbers(answer), strict=True)),
        )

    async def _transfer(
        self,
        then: list[kv.Operation],
        holds: dict[bytes, int],
        writes: Callable[[kv.TxnResponse], dict[bytes, bytes | None]],
    ) -> None:
        conditions = [unchanged(key, revision) for key, revision in holds.items()]
        otherwise = [get(key) for key in holds]
        await self.transact(
            "transfer", then, conditions=conditions, otherwise=otherwise, holds=holds, writes=writes
        )


class Counting(Client):
    """Counts, in one partition or in two."""

    async def work(self) -> None:
        keys = self.rng.sample(COUNTERS, self.rng.randint(1, 2))
        await self.transact(
            "count",
            [add(key, 1) for key in keys],
            writes=lambda answer: dict(zip(keys, _numbers(answer), strict=True)),
        )


class Listing(Client):
    """Appends what only it can have written, to one list or to two."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tokens: list[tuple[bytes, list[bytes]]] = []

    async def work(self) -> None:
        keys = self.rng.sample(LISTS, self.rng.randint(1, 2))
        token = b"%s.%d " % (self.name.encode(), self.done)
        await self.transact(
            "append", [append(key, token) for key in keys], writes=lambda _: dict.fromkeys(keys)
        )
        self.tokens.append((token, keys))


class Reader(Client):
    """Reads in all ways."""

    async def work(self) -> None:
        key = self.rng.choice(ACCOUNTS + COUNTERS + LISTS)
        way = self.rng.choice(["one", "one", "some", "bank", "scan", "old", "at", "at"])
        if way == "one":
            await self.read("get", [key])
        elif way == "some":
            await self.read("read", self.rng.sample(COUNTERS + LISTS, 3))
        elif way == "bank":
            found = await self.read("bank", ACCOUNTS)
            check_total({key: entry.value for key, entry in found.items()}, "a strict read")
        elif way == "scan":
            begun = time.monotonic()
            revision, entries = await self.nodes.scan(kv.ScanRequest(range=kv.Range(prefix=b"account/")))
            reads = {entry.key: entry.mod_revision for entry in entries}
            self._note(Action(self.name, "scan", begun, time.monotonic(), reads=reads, at=revision))
        elif way == "old":
            await self._read_old(key)
        else:
            await self._read_at()

    async def _read_old(self, key: bytes) -> None:
        begun, seen = time.monotonic(), 0
        if self.history.changes:
            seen = self.history.changes[-1].revision
        asked = kv.GetRequest(key=key, consistency=kv.SERIALIZABLE, min_revision=seen)
        answer = await self.nodes.ask("Get", asked)
        at = answer.header.revision
        check(at >= seen, f"a read of revision {at} was to be of {seen} at least")
        reads = {key: answer.entry.mod_revision}
        self._note(Action(self.name, "old get", begun, time.monotonic(), reads=reads, at=at, strict=False))

    async def _read_at(self) -> None:
        """As of what was written last: not all replicas have executed that already."""
        begun = time.monotonic()
        last = next(action for action in reversed(self.history.actions) if action.writes)
        key, revision = self.rng.choice(list(last.writes)), last.revision
        try:
            answer = await self.nodes.ask("Get", kv.GetRequest(key=key, revision=revision))
        except grpc.aio.AioRpcError as error:
            if kind_of(error) != Error.COMPACTED:
                raise
            return
        reads = {key: answer.entry.mod_revision}
        self._note(
            Action(self.name, "get at", begun, time.monotonic(), reads=reads, at=revision, strict=False)
        )


class Photographer(Client):
    """Takes snapshots, reads them later, and compacts what it has seen of the changes."""

    async def work(self) -> None:
        begun = time.monotonic()
        taken = await self.nodes.ask("Snapshot", kv.SnapshotRequest(ttl_ms=int(4 * PATIENCE_S * 1000)))
        ended = time.monotonic()
        await asyncio.sleep(self.rng.random())
        await self._compact()
        asked = kv.ScanRequest(range=EVERYTHING, revision=taken.revision)
        revision, entries = await self.nodes.scan(asked)
        check(revision == taken.revision, f"a scan at {taken.revision} has revision {revision}")
        check_total({entry.key: entry.value for entry in entries}, f"snapshot {taken.revision}")
        reads = {entry.key: entry.mod_revision for entry in entries}
        self._note(Action(self.name, "snapshot", begun, ended, reads=reads, at=revision))
        await self.nodes.ask("ReleaseSnapshot", kv.ReleaseSnapshotRequest(name=taken.name))

    async def _compact(self) -> None:
        """No further than the watch has come: else it would be refused, rightly."""
        if not self.history.changes:
            return
        try:
            await self.nodes.ask("Compact", kv.CompactRequest(revision=self.history.changes[-1].revision))
        except grpc.aio.AioRpcError as error:
            if kind_of(error) not in (Error.COMPACTED, Error.PINNED):
                raise


def check_total(values: dict[bytes, bytes], where: str) -> None:
    """Money is neither made nor lost."""
    found = {key: int(values.get(key, b"0")) for key in ACCOUNTS}
    total = sum(found.values())
    check(total == BALANCE * len(ACCOUNTS), f"{where} has {total} in all accounts: {found}")


class Watcher:
    """Follows all changes, from node to node."""

    def __init__(self, nodes: Nodes, history: History, after: int) -> None:
        self._nodes = nodes
        self._history = history
        self._bank: dict[bytes, bytes] = {}
        self.revision = after
        self.broken = 0

    async def run(self) -> None:
        while True:
            for node in self._nodes.order():
                try:
                    await self._follow(node)
                except (grpc.aio.AioRpcError, TimeoutError) as error:
                    if isinstance(error, grpc.aio.AioRpcError) and not may_repeat(error):
                        raise
                    self.broken += 1
                    await asyncio.sleep(0.02)

    async def _follow(self, node: NodeId) -> None:
        asked = kv.WatchRequest(ranges=[EVERYTHING], after=self.revision, progress_ms=200)
        stream = self._nodes.stub(node).Watch(asked)
        try:
            while True:
                response = await asyncio.wait_for(stream.read(), SILENCE_S)
                check(response is not grpc.aio.EOF, "a watch has ended by itself")
                check(response.revision >= self.revision, f"a watch went back from {self.revision}")
                for change in response.transactions:
                    self._take(change)
                self.revision = response.revision
        finally:
            stream.cancel()

    def _take(self, change: kv.Change) -> None:
        check(
            change.revision > self.revision, f"a watch after {self.revision} showed {change.revision} again"
        )
        values = {event.key: event.value for event in change.events}
        versions = {event.key: (event.create_revision, event.version) for event in change.events}
        self._history.changes.append(Change(change.revision, values, versions))
        self._bank.update((key, value) for key, value in values.items() if key.startswith(b"account/"))
        check_total(self._bank, f"after {change.revision}, a watch")


WORKERS: tuple[tuple[type[Any], int], ...] = (
    (Teller, 3), (Counting, 2), (Listing, 2), (Reader, 2), (Photographer, 1),
)  # fmt: skip


class StoreLoad:
    """All of them, in an event loop of their own, until told to stop."""

    def __init__(self, cluster: LocalCluster, seed: int = 0) -> None:
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self.history = History()
        self.clients: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.nodes = self.run(self._connect())
        self._working = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(2 * PATIENCE_S)

    def __enter__(self) -> StoreLoad:
        return self

    def __exit__(self, *_: object) -> None:
        self._working.cancel()
        self.run(self.nodes.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _connect(self) -> Nodes:
        return Nodes(self._cluster, self._rng)

    async def _run(self) -> None:
        nodes = self.nodes
        watcher = Watcher(nodes, self.history, await self._begin(nodes))
        self.clients = [
            kind(f"{kind.__name__}{number}", nodes, self.history, random.Random(self._rng.random()))
            for kind, count in WORKERS
            for number in range(count)
        ]
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watcher.run())
            await asyncio.wait([group.create_task(self._work(client)) for client in self.clients])
            last = await nodes.ask("Snapshot", kv.SnapshotRequest())
            async with asyncio.timeout(PATIENCE_S):
                while watcher.revision < last.revision:
                    await asyncio.sleep(0.02)
            watching.cancel()

    async def _begin(self, nodes: Nodes) -> int:
        """Open the accounts. The revision before that."""
        before = await nodes.ask("Snapshot", kv.SnapshotRequest())
        bank = Client("bank", nodes, self.history, self._rng)
        values: dict[bytes, bytes | None] = dict.fromkeys(ACCOUNTS, b"%d" % BALANCE)
        then = [put(key, b"%d" % BALANCE) for key in ACCOUNTS]
        await bank.transact("open", then, writes=lambda _: values)
        return int(before.revision)

    async def _work(self, client: Any) -> None:
        while not self._stop.is_set():
            await client.work()

    def wait_for(self, more: int) -> None:
        """Until every client has so many more answers, and the watch has moved: all make progress."""
        self._wait(lambda: bool(self.clients))
        wanted = [(client, client.done + (more if client.name[0] != "P" else 1)) for client in self.clients]
        changes = len(self.history.changes) + more
        self._wait(
            lambda: (
                all(client.done >= count for client, count in wanted) and len(self.history.changes) >= changes
            )
        )

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PROGRESS_S
        while not done():
            if self._working.done():
                self.finish()
                raise AssertionError
            if time.monotonic() > deadline:
                answered = {client.name: client.done for client in self.clients}
                known = {node: ask(self._cluster.config.status_socket(node)) for node in self.nodes.names}
                raise Wrong(f"no progress within {PROGRESS_S} s: {answered}; the nodes say {known}")
            time.sleep(0.02)

    def finish(self) -> None:
        """No more requests; those under way must be answered, and the watch must see all of them."""
        self._stop.set()
        try:
            self._working.result(3 * PATIENCE_S)
        except BaseExceptionGroup as several:
            failure: BaseException = several
            while isinstance(failure, BaseExceptionGroup):
                failure = failure.exceptions[0]
            raise Wrong(f"the load has ended: {failure!r}") from failure

    def check(self) -> None:
        """All that was answered, against each other and against the changes."""
        self.history.check()
        self._check_counters()
        self._check_lists()

    def values(self) -> dict[bytes, bytes]:
        """What must be in the store at the end."""
        found: dict[bytes, bytes] = {}
        for change in self.history.changes:
            found.update(change.values)
        return found

    def _check_counters(self) -> None:
        counted = Counter(key for action in self.history.actions for key in action.writes)
        values = self.values()
        for key in COUNTERS:
            found = int(values.get(key, b"0"))
            check(found == counted[key], f"{key!r} is {found} after {counted[key]} requests")

    def _check_lists(self) -> None:
        values = self.values()
        found = {key: values.get(key, b"").split(b" ")[:-1] for key in LISTS}
        wanted: dict[bytes, list[bytes]] = {key: [] for key in LISTS}
        for client in self.clients:
            for token, keys in client.tokens if isinstance(client, Listing) else ():
                for key in keys:
                    wanted[key].append(token.rstrip())
        for key, tokens in wanted.items():
            check(sorted(found[key]) == sorted(tokens), f"{key!r} has {found[key]}, not {tokens}")
        seen: dict[bytes, bytes] = {}
        for change in self.history.changes:
            for key in change.values.keys() & set(LISTS):
                check(change.values[key].startswith(seen.get(key, b"")), f"{key!r} was rewritten")
                seen[key] = change.values[key]


@contextmanager
def stored(folder: Path, seed: int = 0, timing: Timing | None = None) -> Iterator[FaultyCluster]:
    """A store and its load. At the end all must be at rest, agree, and have kept what was promised."""
    cluster = FaultyCluster(folder / "cluster", 3, 3, durability="fsync", timing=timing)
    with cluster, StoreLoad(cluster, seed) as load:
        cluster.load, cluster.step = load, 5
        load.history.faults = cluster.faults
        try:
            load.wait_for(10)
            yield cluster
            load.wait_for(10)
            load.finish()
            wait_at_rest(cluster)
            check_nodes(cluster, load)
            cluster.hurt("stop", *cluster.nodes)
            cluster.hurt("start", *cluster.nodes)
            cluster.wait_ready()
            check_nodes(cluster, load)
            load.check()
        finally:
            load.history.write(folder / "history.jsonl")
    check_logs(cluster)


def check_nodes(cluster: LocalCluster, load: StoreLoad) -> None:
    """All nodes serve, and each has what the watch has seen, by itself."""

    async def look(nodes: Nodes) -> None:
        for node in nodes.names:
            while not await nodes.healthy(node):
                await asyncio.sleep(0.05)
        taken = await nodes.ask("Snapshot", kv.SnapshotRequest())
        asked = kv.ScanRequest(range=EVERYTHING, revision=taken.revision, consistency=kv.SERIALIZABLE)
        scans = {node: await nodes.scan(asked, node) for node in nodes.names}
        wanted = load.values()
        for node, (_, entries) in scans.items():
            check(entries == scans[NodeId("n1")][1], f"{node} and n1 differ: {scans}")
            found = {entry.key: entry.value for entry in entries}
            check(found == wanted, f"{node} has {found}, not {wanted}")

    load.run(look(load.nodes))
    for group in cluster.status()["groups"]:
        found = {str(replica["status"]) for replica in group["replicas"]}
        check(group["leader"] is not None and found == {"leader", "follower"}, f"not all serve: {group}")


def check_logs(cluster: LocalCluster) -> None:
    for node in cluster.config.nodes:
        log = cluster.log(node).read_text()
        for bad in ("Traceback", "own state is wrong", "ERROR", "CRITICAL"):
            check(bad not in log, f"{node} says:\n{log[-5000:]}")
