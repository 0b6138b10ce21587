"""Traced calls: the trace's line of a request and its response. See `wbkv.record.trace`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.core.effects import DELETE, GET, PUT, TXN, Ask, Method, Plan
from wbkv.core.routing import Router
from wbkv.data import KeyRange, prefix
from wbkv.errors import Compacted, DeadlineExceeded, Error, InvalidRequest, RequestMismatch
from wbkv.record.history import text_of
from wbkv.record.trace import Trace

_json_of: Final = json.JSONEncoder().encode


def traced(trace: Trace, router: Router, plan: Plan[Any], method: Method, request: Any) -> Plan[Any]:
    """Make a call, and record it in the trace when it has ended, however it ends."""
    kind = _KINDS.get(method.name)
    if kind is None:
        return (yield from plan)
    begun = trace.begin(kind(request, router))
    sent = False
    try:
        effect = plan.send(None)
        while True:
            sent = sent or (type(effect) is Ask and effect.request is request)
            effect = plan.send((yield effect))
    except StopIteration as done:
        answer = done.value
    except BaseException as error:
        trace.end(begun, _outcome(error, request, sent=sent), type(error).__name__, None)
        raise
    finally:
        plan.close()
    trace.end(begun, "ok", None, answer)
    return answer


def _outcome(error: BaseException, request: Any, *, sent: bool) -> str:
    """Return the outcome of a call that ended with this error. A read that timed out may have been executed;
    a write that may have been never ends with `DeadlineExceeded`.
    """
    if not sent or isinstance(error, InvalidRequest | Compacted | RequestMismatch):
        return "failed"
    late = isinstance(error, DeadlineExceeded) and not _has_id(request)
    return "failed" if isinstance(error, Error) and error.retry_safe and not late else "unknown"


def _has_id(request: Any) -> bool:
    return type(request) is not kv.GetRequest and request.HasField("id")


class _Facts:
    """The reads and writes of a transaction, collected operation by operation."""

    __slots__ = ("reads", "removed", "writes")

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.writes: dict[bytes, bool] = {}
        """Whether the key was removed."""
        self.removed: list[KeyRange] = []

    def read(self, key: bytes, revision: int) -> None:
        """Record a read, unless the transaction has written the key before."""
        if key in self.writes or (self.removed and any(key in keys for keys in self.removed)):
            return
        self.reads.append(_read(key, revision))

    def deleted(self, target: bytes | KeyRange, count: int) -> None:
        """Record that `count` keys were removed: if none, nothing was written."""
        if isinstance(target, KeyRange):
            if count:
                self.writes = {key: gone for key, gone in self.writes.items() if key not in target}
                self.removed.append(target)
        elif count:
            self.writes[target] = True
        else:
            self.read(target, 0)

    def written(self) -> list[str]:
        """Return the writes of the trace's line."""
        found = [_write(key, removed=removed) for key, removed in self.writes.items()]
        return found + [_write(keys, removed=True) for keys in self.removed]


class _TracedRequest:
    """A request of the API, as `wbkv.record.trace.TracedRequest`."""

    __slots__ = ("_request", "_router")

    def __init__(self, request: Any, router: Router) -> None:
        self._request = request
        self._router = router

    def line_end(self, outcome: str, answer: Any) -> str:
        """Return the rest of the line, from the request's id on."""
        raise NotImplementedError

    def _line_end(
        self, targets: Iterable[bytes | KeyRange], position: str, reads: Iterable[str], writes: Iterable[str]
    ) -> str:
        """Return the id, partitions, position, reads and writes of the request."""
        request, placement = self._request, self._router.placement
        begin = ""
        if _has_id(request):
            found = request.id
            begin = f',"client":{found.client},"sequence":{found.sequence}'
        if placement is not None:
            partitions: set[int] = set()
            for target in targets:
                if type(target) is bytes:
                    partitions.add(placement.partition_of(target))
                else:
                    assert isinstance(target, KeyRange)
                    partitions |= placement.partitions_of(target)
            begin += f',"partitions":{sorted(partitions)}'
        return f'{begin}{position},"reads":[{",".join(reads)}],"writes":[{",".join(writes)}]'


class _Get(_TracedRequest):
    __slots__ = ()

    def line_end(self, outcome: str, answer: kv.GetResponse | None) -> str:
        request = self._request
        key = request.key
        if answer is None:
            return self._line_end((key,), "", (), ())
        position = _position(answer.header, request)
        return self._line_end((key,), position, (_read(key, answer.entry.mod_revision),), ())


class _Put(_TracedRequest):
    __slots__ = ()

    def line_end(self, outcome: str, answer: kv.PutResponse | None) -> str:
        key = self._request.key
        position = "" if answer is None else _own_position(answer.header)
        return self._line_end(
            (key,), position, (), () if outcome == "failed" else (_write(key, removed=False),)
        )


class _Delete(_TracedRequest):
    __slots__ = ()

    def line_end(self, outcome: str, answer: kv.DeleteResponse | None) -> str:
        request = self._request
        target = _range(request.range) if request.HasField("range") else request.key
        if answer is None:
            possible = () if outcome == "failed" else (_write(target, removed=True),)
            return self._line_end((target,), "", (), possible)
        facts = _Facts()
        facts.deleted(target, answer.count)
        return self._line_end((target,), _own_position(answer.header), facts.reads, facts.written())


class _Txn(_TracedRequest):
    __slots__ = ()

    def line_end(self, outcome: str, answer: kv.TxnResponse | None) -> str:
        request = self._request
        then, otherwise = _operations(request.then), _operations(request.otherwise)
        targets = {target for _, target in (*then, *otherwise)}
        compared = []
        for condition, certain in _conditions(request.conditions):
            if condition.HasField("compare"):
                targets.add(condition.compare.key)
                if certain:
                    compared.append(condition.compare)
            else:
                targets.add(_range(condition.unchanged.range))
        if answer is None:
            every = (*then, *otherwise) if outcome == "unknown" else ()
            writes = [
                _write(target, removed=kind in _REMOVES) for kind, target in every if kind not in _READS
            ]
            return self._line_end(targets, "", (), writes)
        facts = _Facts()
        if answer.succeeded:
            _hold(facts, compared)
        _perform(facts, then if answer.succeeded else otherwise, answer.results)
        return self._line_end(targets, _position(answer.header, request), facts.reads, facts.written())


_KINDS: Final[Mapping[str, type[_TracedRequest]]] = {
    GET.name: _Get, PUT.name: _Put, DELETE.name: _Delete, TXN.name: _Txn,
}  # fmt: skip
_READS: Final = frozenset(("get", "scan"))
_RANGES: Final = frozenset(("scan", "delete_range"))
_REMOVES: Final = frozenset(("delete", "delete_range"))


def _conditions(
    conditions: Iterable[kv.Condition], *, certain: bool = True
) -> Iterator[tuple[kv.Condition, bool]]:
    """The conditions, also those inside of others; and whether each holds if the transaction succeeded."""
    for condition in conditions:
        kind = condition.WhichOneof("condition")
        if kind == "any":
            yield from _conditions(condition.any.conditions, certain=False)
        elif kind == "all":
            yield from _conditions(condition.all.conditions, certain=certain)
        else:
            yield condition, certain


def _operations(branch: Sequence[kv.Operation]) -> list[tuple[str | None, bytes | KeyRange]]:
    """Return the kind and the target of each operation."""
    found: list[tuple[str | None, bytes | KeyRange]] = []
    if not branch:
        return found
    for operation in branch:
        kind = operation.WhichOneof("operation")
        what = getattr(operation, kind or "get")
        found.append((kind, _range(what.range) if kind in _RANGES else what.key))
    return found


def _hold(facts: _Facts, conditions: Iterable[kv.Compare]) -> None:
    """Record conditions that held as reads, if they determine the version."""
    for condition in conditions:
        if condition.operator == kv.EQUAL:
            kind = condition.WhichOneof("operand")
            if kind == "mod_revision":
                facts.read(condition.key, condition.mod_revision)
            elif kind == "exists" and not condition.exists:
                facts.read(condition.key, 0)


def _perform(
    facts: _Facts,
    operations: Iterable[tuple[str | None, bytes | KeyRange]],
    results: Sequence[kv.OperationResult],
) -> None:
    """Record what the operations did. One that failed did nothing."""
    for index, (kind, target) in enumerate(operations):
        if kind == "put" and type(target) is bytes:
            facts.writes[target] = False  # a put cannot fail
            continue
        result = results[index]
        if result.HasField("failed"):
            continue
        if kind in _REMOVES:
            facts.deleted(target, result.deleted.count)
        elif isinstance(target, KeyRange):
            for entry in result.scanned.entries:
                facts.read(entry.key, entry.mod_revision)
        elif kind == "get":
            facts.read(target, result.got.entry.mod_revision)
        else:
            if kind == "swap":
                facts.read(target, result.got.entry.mod_revision)
            facts.writes[target] = False


def _own_position(header: kv.Header) -> str:
    """Return the position of an ordered request."""
    return f',"revision":{header.transaction_revision},"exact":true'


def _position(header: kv.Header, request: kv.GetRequest | kv.TxnRequest) -> str:
    """Return the position of a request. One that was not ordered has read a state that contains everything up
    to a revision, and nothing above it if the state was a past one.
    """
    if header.transaction_revision:
        return _own_position(header)
    exact = "true" if request.revision or request.consistency == kv.SERIALIZABLE else "false"
    return f',"revision":{header.revision},"exact":{exact}'


def _range(message: kv.Range) -> KeyRange:
    if message.HasField("prefix"):
        return prefix(message.prefix)
    return KeyRange(message.interval.start, message.interval.end or None)


def _write(target: bytes | KeyRange, *, removed: bool) -> str:
    gone = ',"removed":true' if removed else ',"removed":false'
    if isinstance(target, KeyRange):
        return f'{{"key":{_shown(target.start)},"end":{_shown(target.end or b"")}{gone}}}'
    return f'{{"key":{_shown(target)}{gone}}}'


def _read(key: bytes, revision: int) -> str:
    """Return a read of the trace's line; an absent key has revision 0."""
    return f'{{"key":{_shown(key)},"revision":{revision}}}'


@functools.lru_cache(4096)
def _shown(key: bytes) -> str:
    return _json_of(text_of(key))
