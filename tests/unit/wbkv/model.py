"""A store that is a few lines long, and a link to it that fails when and how a test says: no network, no
threads, and a clock that only moves when a caller waits.
"""

from __future__ import annotations

import copy
import itertools
import operator
import queue
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import wbkv
from google.protobuf.message import Message
from wbkv.core.calls import Calls
from wbkv.core.effects import Ask, Emit, Failure, Method, Next, Open, Plan, Wait, failed
from wbkv.core.environment import Environment
from wbkv.core.routing import Router
from wbkv.links.tasks import AsyncLink
from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1 import error_pb2 as kv_error
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

ADDRESSES = ("h1:1", "h2:2", "h3:3")
KEY_BYTES = 16
MESSAGE_BYTES = 10_000

Version = tuple[int, bytes | None, int, int]
"""Revision, value, create revision, version."""


class Clock:
    """A client's clock. It stands for the module `time` in the link for threads."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.environment = Environment(self.monotonic, random.Random(7))

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def columns_of(page: list[kv.Entry]) -> kv.Columns:
    """Entries as the server's columns."""
    keys, values = [entry.key for entry in page], [entry.value for entry in page]
    ends = [struct.pack(f"<{len(page)}I", *itertools.accumulate(map(len, each))) for each in (keys, values)]
    numbers = [
        struct.pack(f"<{len(page)}Q", *(getattr(entry, name) for entry in page))
        for name in ("create_revision", "mod_revision", "version")
    ]
    return kv.Columns(
        keys=b"".join(keys), key_ends=ends[0], values=b"".join(values), value_ends=ends[1],
        create_revisions=numbers[0], mod_revisions=numbers[1], versions=numbers[2],
    )  # fmt: skip


class ModelStore:
    """Keys with their histories."""

    def __init__(self) -> None:
        self.revision = 100
        self.history: dict[bytes, list[Version]] = {}
        self.log: list[tuple[int, list[kv.Event]]] = []
        self.results: dict[tuple[int, int], Message] = {}
        self.delete_keys = 100
        """Keys of a range that a delete with a limit removes."""

    def at(self, key: bytes, revision: int = 0) -> Version:
        """A key as of a revision; (0, None, 0, 0) if it is not there."""
        for version in reversed(self.history.get(key, ())):
            if not revision or version[0] <= revision:
                return version if version[1] is not None else (version[0], None, 0, 0)
        return (0, None, 0, 0)

    def entry(self, key: bytes, revision: int = 0) -> kv.Entry | None:
        changed, value, created, version = self.at(key, revision)
        if value is None:
            return None
        return kv.Entry(key=key, value=value, create_revision=created, mod_revision=changed, version=version)

    def found(self, keys: kv.Range, revision: int = 0, *, reverse: bool = False) -> list[kv.Entry]:
        within = range_of(keys)
        entries = (
            self.entry(key, revision) for key in sorted(self.history, reverse=reverse) if key in within
        )
        return [entry for entry in entries if entry is not None]

    def put(self, key: bytes, value: bytes | None) -> None:
        """One write, by another client."""
        self._commit({key: value})

    def _commit(self, writes: dict[bytes, bytes | None], removed: frozenset[bytes] = frozenset()) -> int:
        self.revision += 10
        events = []
        for key, value in sorted(writes.items()):
            _, old, created, version = self.at(key)
            is_new = old is None or key in removed
            created, version = (self.revision, 1) if is_new else (created, version + 1)
            self.history.setdefault(key, []).append((self.revision, value, created, version))
            there = value is not None
            events.append(
                kv.Event(key=key, value=value, create_revision=created * there, version=version * there)
            )
        self.log.append((self.revision, events))
        return self.revision

    def call(self, method: Method, request: Any) -> Any:
        """What a node would answer."""
        has_id = "id" in request.DESCRIPTOR.fields_by_name and request.HasField("id")
        known = (request.id.client, request.id.sequence) if has_id else None
        if known in self.results:
            return self.results[known]
        answer: Any = getattr(self, f"_{method.name.lower()}")(request)
        if known is not None:
            self.results[known] = answer
        return answer

    def _reserve(self, _: kv.ReserveRequest) -> kv.ReserveResponse:
        return kv.ReserveResponse(header=self._header())

    def _header(self, own: int = 0) -> kv.Header:
        return kv.Header(revision=self.revision, transaction_revision=own, cluster="c", node="n1")

    def _get(self, request: kv.GetRequest) -> kv.GetResponse:
        return kv.GetResponse(header=self._header(), entry=self.entry(request.key, request.revision))

    def _put(self, request: kv.PutRequest) -> kv.PutResponse:
        return kv.PutResponse(header=self._header(self._commit({request.key: request.value})))

    def _delete(self, request: kv.DeleteRequest) -> kv.DeleteResponse:
        if request.HasField("range"):
            keys = [entry.key for entry in self.found(request.range)]
        else:
            keys = [request.key] if self.entry(request.key) is not None else []
        rest = b""
        if request.limit and len(keys) > self.delete_keys:
            rest = keys[self.delete_keys]
            keys = keys[: self.delete_keys]
        revision = self._commit(dict.fromkeys(keys))
        return kv.DeleteResponse(header=self._header(revision), count=len(keys), resume=rest)

    def _txn(self, request: kv.TxnRequest) -> kv.TxnResponse | Failure:
        unmet = [i for i, condition in enumerate(request.conditions) if not self._holds(condition)]
        writes: dict[bytes, bytes | None] = {}
        branch = request.otherwise if unmet else request.then
        results = [self._perform(each, writes) for each in branch]
        failures = [
            kv_error.Failure(operation=at, fault=result.failed.fault, otherwise=bool(unmet))
            for at, result in enumerate(results)
            if result.HasField("failed")
        ]
        if failures and not request.allow_failures:
            error = ApiError(kind=ApiError.OPERATION_FAILED, message="nothing was written", failures=failures)
            return Failure(error, begun=True, heard=True)
        removed = frozenset(o.delete.key for o in branch if o.HasField("delete"))
        own = self._commit(writes, removed) if request.HasField("id") else 0
        return kv.TxnResponse(
            header=self._header(own), succeeded=not unmet, unmet=[kv.Unmet(condition=i) for i in unmet],
            results=results,
        )  # fmt: skip

    def _holds(self, condition: kv.Condition) -> bool:
        if condition.HasField("unchanged"):
            keys = range_of(condition.unchanged.range)
            since = condition.unchanged.since
            return not any(h[-1][0] > since for key, h in self.history.items() if key in keys)
        if condition.HasField("any"):
            return any(map(self._holds, condition.any.conditions))
        if condition.HasField("all"):
            return all(map(self._holds, condition.all.conditions))
        compare = condition.compare
        changed, value, created, version = self.at(compare.key)
        kind = compare.WhichOneof("operand")
        mine: Any = {
            "value": value, "exists": value is not None, "version": version, "create_revision": created,
            "mod_revision": changed if value is not None else 0,
            "number": int(value) if value is not None and value.lstrip(b"-").isdigit() else None,
        }[kind or ""]  # fmt: skip
        if kind == "number" and mine is None:
            return False
        theirs = getattr(compare, kind or "")
        if compare.operator == kv.EQUAL:
            return bool(mine == theirs)
        if compare.operator == kv.NOT_EQUAL:
            return bool(mine != theirs)
        if compare.operator == kv.STARTS_WITH:
            return mine is not None and bool(mine.startswith(theirs))
        ordered: dict[int, Callable[[Any, Any], Any]] = {
            kv.LESS: operator.lt, kv.GREATER: operator.gt,
            kv.LESS_EQUAL: operator.le, kv.GREATER_EQUAL: operator.ge,
        }  # fmt: skip
        return mine is not None and bool(ordered[compare.operator](mine, theirs))

    def _perform(self, operation: kv.Operation, writes: dict[bytes, bytes | None]) -> kv.OperationResult:
        kind = operation.WhichOneof("operation") or ""
        asked = getattr(operation, kind)
        if kind == "get":
            return kv.OperationResult(got=kv.Got(entry=self.entry(asked.key)))
        if kind == "scan":
            entries = self.found(asked.range, reverse=asked.reverse)
            return kv.OperationResult(scanned=kv.Scanned(entries=entries, count=len(entries)))
        if kind == "put":
            writes[asked.key] = asked.value
            return kv.OperationResult(written=kv.Written())
        if kind == "delete_range":
            before = {entry.key: entry.value for entry in self.found(asked.range)}
            gone = [
                key
                for key, value in (before | writes).items()
                if key in range_of(asked.range) and value is not None
            ]
            writes.update(dict.fromkeys(gone))
            return kv.OperationResult(deleted=kv.Deleted(count=len(gone)))
        if kind == "swap":
            previous = self.entry(asked.key)
            writes[asked.key] = asked.value
            return kv.OperationResult(got=kv.Got(entry=previous))
        if kind == "delete":
            writes[asked.key] = None
            return kv.OperationResult(deleted=kv.Deleted(count=int(self.entry(asked.key) is not None)))
        old = writes.get(asked.key, self.at(asked.key)[1])
        if kind == "append":
            writes[asked.key] = longer = (old or b"") + asked.value
            return kv.OperationResult(number=kv.Number(value=len(longer)))
        assert kind == "add"
        if old is not None and not old.lstrip(b"-").isdigit():
            return kv.OperationResult(failed=kv.Failed(fault=kv.NOT_A_NUMBER))
        number = int(old or 0) + asked.operand
        if asked.HasField("floor") and number < asked.floor:
            return kv.OperationResult(failed=kv.Failed(fault=kv.BELOW_FLOOR))
        if asked.HasField("ceiling") and number > asked.ceiling:
            return kv.OperationResult(failed=kv.Failed(fault=kv.ABOVE_CEILING))
        writes[asked.key] = b"%d" % number
        return kv.OperationResult(number=kv.Number(value=number))

    def _topology(self, request: cluster.TopologyRequest) -> cluster.TopologyResponse:
        return topology()

    def _snapshot(self, request: kv.SnapshotRequest) -> kv.SnapshotResponse:
        return kv.SnapshotResponse(header=self._header(), name="s", revision=self.revision)

    def _releasesnapshot(self, request: kv.ReleaseSnapshotRequest) -> kv.ReleaseSnapshotResponse:
        return kv.ReleaseSnapshotResponse(header=self._header())

    def pages(self, request: kv.ScanRequest, size: int) -> Iterator[kv.ScanResponse]:
        """A scan, so many entries to a page; the last page has none."""
        bounds = request.range.interval
        assert len(bounds.start) <= KEY_BYTES
        assert len(bounds.end) <= KEY_BYTES
        assert not bounds.end or bounds.start < bounds.end
        revision = request.revision or self.revision
        entries = self.found(request.range, revision, reverse=request.reverse)
        entries = entries[: request.limit] if request.limit else entries
        header = kv.Header(revision=revision)
        if request.shape == kv.COUNT:
            for i in range(size, len(entries), size):
                resume = entries[i - 1].key if request.reverse else entries[i].key
                yield kv.ScanResponse(header=header, count=i, resume=resume)
        else:
            for i in range(0, len(entries), size):
                page = entries[i : i + size]
                if request.columns:
                    yield kv.ScanResponse(header=header, columns=columns_of(page))
                else:
                    yield kv.ScanResponse(header=header, entries=page)
        yield kv.ScanResponse(header=header, count=len(entries))

    def changes(self, request: kv.WatchRequest, size: int) -> Iterator[kv.WatchResponse]:
        """A watch, so many events to a message: as far as there is anything."""
        after = request.after or self.revision
        yield kv.WatchResponse(revision=after)
        for revision, all_events in self.log:
            if revision <= after or revision > (request.until or revision):
                continue
            events = [e for e in all_events if any(e.key in range_of(keys) for keys in request.ranges)]
            if len(events) > size:  # the node loses its position, and begins again
                void = kv.Change(revision=revision, events=events[:size], continued=True)
                yield kv.WatchResponse(revision=after, transactions=[void])
            continuation = False
            while len(events) > size:
                part, events = events[:size], events[size:]
                change = kv.Change(revision=revision, events=part, continued=True, continuation=continuation)
                continuation = True
                yield kv.WatchResponse(revision=after, transactions=[change])
            after = revision
            last = kv.Change(revision=revision, events=events, continuation=continuation)
            changes = [last] if events else []
            yield kv.WatchResponse(revision=after, transactions=changes)


def range_of(keys: kv.Range) -> wbkv.KeyRange:
    if keys.HasField("interval"):
        return wbkv.KeyRange(keys.interval.start, keys.interval.end or None)
    return wbkv.prefix(keys.prefix)


def topology(name: str = "c", leaders: tuple[str, ...] = ("n1", "n2")) -> cluster.TopologyResponse:
    """Three nodes and two partitions: keys below and above "m"."""
    return cluster.TopologyResponse(
        header=kv.Header(cluster=name),
        nodes=[cluster.Node(name=f"n{i}", address=a) for i, a in enumerate(ADDRESSES, 1)],
        partitions=[
            cluster.Partition(id=i, leader=leader, members=["n1", "n2", "n3"])
            for i, leader in enumerate(leaders)
        ],
        placement=cluster.Placement(
            version=1, scheme=cluster.Placement.ORDERED, starts=[b"", b"m"], owners=[0, 1]
        ),
        limits=cluster.Limits(key_bytes=KEY_BYTES, message_bytes=MESSAGE_BYTES),
    )


Rule = Callable[[Ask | Open], Failure | None]


@dataclass
class ModelStream:
    """Messages that come at once, and then a failure, or nothing any more."""

    messages: Iterator[Any]
    left: int
    """How many come before it breaks; -1: all."""
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class ModelLink:
    """A link to a model store, for plans, and for clients of both kinds."""

    clock: Clock
    store: ModelStore = field(default_factory=ModelStore)
    asked: list[Ask | Open] = field(default_factory=list)
    before: Rule = lambda asked: None
    """Fails a request that is not executed then."""
    after: Rule = lambda asked: None
    """Loses the answer of one that was."""
    cuts: list[int] = field(default_factory=list)
    """After how many messages the streams break, one after the other; the ones behind them do not."""
    page: int = 2
    opened: list[ModelStream] = field(default_factory=list)

    def ask(self, ask: Ask) -> Any:
        assert ask.timeout_s > 0
        self.asked.append(ask._replace(request=copy.copy(ask.request)))
        answer = self.before(ask)
        if answer is None:
            found = self.store.call(ask.method, ask.request)
            answer = self.after(ask)
            if answer is None:
                return found
        if answer.error.kind == ApiError.DEADLINE_PASSED and not answer.heard:
            self.clock.now += min(ask.timeout_s, ask.patience_s)
        return answer

    def open(self, open_: Open) -> ModelStream:
        request: Any = copy.copy(open_.request)
        self.asked.append(open_._replace(request=request))
        refusal = self.before(open_)
        if refusal is not None:
            stream = ModelStream(iter([refusal]), -1)
        else:
            source = self.store.pages if open_.method.name == "Scan" else self.store.changes
            stream = ModelStream(source(request, self.page), self.cuts.pop(0) if self.cuts else -1)
        self.opened.append(stream)
        return stream

    def next(self, stream: Any, timeout_s: float) -> Any:
        if stream.cancelled:
            return None
        if stream.left == 0:
            return failed(ApiError.UNAVAILABLE, "the connection broke")
        stream.left -= 1
        try:
            return next(stream.messages)
        except StopIteration:
            if stream.messages.__class__.__name__ == "generator" and stream.messages.__name__ == "pages":
                return None
            self.clock.now += timeout_s
            raise queue.Empty from None

    async def in_loop(self) -> AsyncLink:
        raise NotImplementedError

    def close(self) -> None:
        pass

    @property
    def addresses(self) -> list[str]:
        """Who was asked, for anything but the map."""
        return [ask.address for ask in self.asked if ask.method.name != "Topology"]

    def kinds(self, name: str) -> list[Ask | Open]:
        return [ask for ask in self.asked if ask.method.name == name]


class ModelTasks:
    """The same for event loops."""

    def __init__(self, link: ModelLink) -> None:
        self.link = link

    async def ask(self, ask: Ask) -> Any:
        return self.link.ask(ask)

    def open(self, open_: Open) -> ModelStream:
        return self.link.open(open_)

    async def next(self, stream: Any) -> Any:
        return self.link.next(stream, 0.0)

    async def close(self) -> None:
        pass


def drive(link: ModelLink, plan: Plan[Any]) -> Any:
    """Carry a plan out. What it returns; of one that emits things, a list of them."""
    items: list[Any] = []
    answer: Any = None
    while True:
        try:
            effect = plan.send(answer)
        except StopIteration as done:
            return done.value if done.value is not None or not items else items
        answer = None
        if isinstance(effect, Emit):
            items.append(effect.item)
        elif isinstance(effect, Ask):
            answer = link.ask(effect)
        elif isinstance(effect, Open):
            answer = link.open(effect)
        elif isinstance(effect, Next):
            try:
                answer = link.next(effect.stream, effect.timeout_s)
            except queue.Empty:
                answer = failed(ApiError.DEADLINE_PASSED, "nothing came in time")
        else:
            assert isinstance(effect, Wait)
            link.clock.sleep(effect.seconds)


def connected(link: ModelLink, timeout_s: float = 10.0) -> Calls:
    """The calls of a client that has just connected."""
    made = Calls(Router(ADDRESSES[:1], link.clock.environment), timeout_s)
    drive(link, made.connect(60.0))
    link.asked.clear()
    return made


def lost(kind: ApiError.Kind = ApiError.UNAVAILABLE, *, begun: bool = True) -> Failure:
    """Its outcome is unknown."""
    return failed(kind, "the connection broke", begun=begun)


def told(kind: ApiError.Kind, *, retryable: bool = False, same_id: bool = False, **fields: Any) -> Failure:
    """What a node says."""
    return Failure(
        ApiError(kind=kind, message="as the node says", retryable=retryable, same_id=same_id, **fields)
    )


def times(count: int, failure: Failure, *, method: str = "") -> Rule:
    """So many times, of this method, and never again."""
    left = [count]

    def rule(asked: Ask | Open) -> Failure | None:
        if left[0] == 0 or asked.method.name == "Topology" or method not in asked.method.name:
            return None
        left[0] -= 1
        return failure

    return rule


def script(*failures: Failure | None) -> Rule:
    """One after the other, for the next requests; None lets a request through."""
    coming = iter(failures)
    return lambda asked: None if asked.method.name == "Topology" else next(coming, None)
