"""Calls that are traced: what a request and its answer say of the order. See `wbkv.trace`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.core.effects import DELETE, GET, PUT, TXN, Ask, Method, Plan
from wbkv.core.routing import Router
from wbkv.data import KeyRange, prefix
from wbkv.errors import Compacted, DeadlineExceeded, Error, InvalidRequest
from wbkv.history import text_of
from wbkv.trace import Trace

_json_of: Final = json.JSONEncoder().encode


def traced(trace: Trace, router: Router, plan: Plan[Any], method: Method, request: Any) -> Plan[Any]:
    """A call, which the trace is told of when it has ended, however it ends."""
    kind = _KINDS.get(method)
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
    """What is known of a call that has ended so. A read of which nobody has heard may have been executed;
    a write that may be is never only late.
    """
    if not sent or isinstance(error, InvalidRequest | Compacted):
        return "failed"
    late = isinstance(error, DeadlineExceeded) and not _has_id(request)
    return "failed" if isinstance(error, Error) and error.retry_safe and not late else "unknown"


def _has_id(request: Any) -> bool:
    return type(request) is not kv.GetRequest and request.HasField("id")


class _Facts:
    """What a request has read and written, operation by operation, and where that is."""

    __slots__ = ("exact", "reads", "removed", "revision", "writes")

    def __init__(self) -> None:
        self.revision = 0
        self.exact = True
        self.reads: list[tuple[bytes, int]] = []
        self.writes: dict[bytes, bool] = {}
        """Whether the key was removed."""
        self.removed: list[KeyRange] = []

    def read(self, key: bytes, revision: int) -> None:
        """What the request found there, unless it had written that itself."""
        if key not in self.writes and not any(key in keys for keys in self.removed):
            self.reads.append((key, revision))

    def remove(self, keys: KeyRange) -> None:
        """All keys of a range."""
        self.writes = {key: removed for key, removed in self.writes.items() if key not in keys}
        self.removed.append(keys)

    def written(self) -> Iterator[tuple[bytes | KeyRange, bool]]:
        """What became of what."""
        yield from self.writes.items()
        for keys in self.removed:
            yield keys, True


class _Call:
    """A request, and how its line ends."""

    def __init__(self, request: Any, router: Router) -> None:
        self._request = request
        self._router = router

    def told(self, outcome: str, answer: Any) -> str:
        """See `wbkv.trace.Asked`."""
        request, placement = self._request, self._router.placement
        text = ""
        if _has_id(request):
            text = f',"client":{request.id.client},"sequence":{request.id.sequence}'
        if placement is not None:
            found: set[int] = set()
            for target in self._targets():
                if isinstance(target, KeyRange):
                    found |= placement.partitions_of(target)
                else:
                    found.add(placement.partition_of(target))
            text += f',"partitions":{sorted(found)}'
        written: Iterable[tuple[bytes | KeyRange, bool]] = ()
        reads: list[tuple[bytes, int]] = []
        if outcome == "ok":
            facts = self._executed(answer)
            reads, written = facts.reads, facts.written()
            text += f',"revision":{facts.revision},"exact":{"true" if facts.exact else "false"}'
        elif outcome == "unknown":
            written = self._possible()
        shown = [f'{{"key":{_shown(key)},"revision":{revision}}}' for key, revision in reads]
        changed = [_write(target, removed=removed) for target, removed in written]
        return f'{text},"reads":[{",".join(shown)}],"writes":[{",".join(changed)}]'

    def _targets(self) -> Iterable[bytes | KeyRange]:
        """What it touches."""
        raise NotImplementedError

    def _executed(self, answer: Any) -> _Facts:
        """What it did."""
        raise NotImplementedError

    def _possible(self) -> Iterable[tuple[bytes | KeyRange, bool]]:
        """What it may have written, and whether it would be removed."""
        return ()


class _Get(_Call):
    def _targets(self) -> Iterable[bytes | KeyRange]:
        return (self._request.key,)

    def _executed(self, answer: kv.GetResponse) -> _Facts:
        facts = _facts_at(answer.header, self._request)
        facts.read(self._request.key, answer.entry.mod_revision if answer.HasField("entry") else 0)
        return facts


class _Put(_Call):
    def _targets(self) -> Iterable[bytes | KeyRange]:
        return (self._request.key,)

    def _executed(self, answer: kv.PutResponse) -> _Facts:
        facts = _Facts()
        facts.revision = answer.header.transaction_revision
        facts.writes[self._request.key] = False
        return facts

    def _possible(self) -> Iterable[tuple[bytes | KeyRange, bool]]:
        return ((self._request.key, False),)


class _Delete(_Call):
    def _targets(self) -> Iterable[bytes | KeyRange]:
        request = self._request
        return (_range(request.range) if request.HasField("range") else request.key,)

    def _executed(self, answer: kv.DeleteResponse) -> _Facts:
        facts = _Facts()
        facts.revision = answer.header.transaction_revision
        for target in self._targets():
            _deleted(facts, target, answer.count)
        return facts

    def _possible(self) -> Iterable[tuple[bytes | KeyRange, bool]]:
        return ((target, True) for target in self._targets())


class _Txn(_Call):
    def _targets(self) -> Iterator[bytes | KeyRange]:
        request = self._request
        for condition in request.conditions:
            if condition.HasField("compare"):
                yield condition.compare.key
            else:
                yield _range(condition.unchanged.range)
        for branch in (request.then, request.otherwise):
            for operation in branch:
                yield _target(operation)[1]

    def _executed(self, answer: kv.TxnResponse) -> _Facts:
        request = self._request
        facts = _facts_at(answer.header, request)
        if answer.succeeded:
            for condition in request.conditions:
                if condition.HasField("compare"):
                    _compared(facts, condition.compare)
        branch = request.then if answer.succeeded else request.otherwise
        for operation, result in zip(branch, answer.results, strict=True):
            kind, target = _target(operation)
            if result.HasField("failed"):
                continue
            if isinstance(target, KeyRange):
                if kind == "delete_range":
                    _deleted(facts, target, result.deleted.count)
                for entry in result.scanned.entries:
                    facts.read(entry.key, entry.mod_revision)
            elif kind == "get":
                got = result.got
                facts.read(target, got.entry.mod_revision if got.HasField("entry") else 0)
            elif kind == "delete":
                _deleted(facts, target, result.deleted.count)
            else:
                facts.writes[target] = False
        return facts

    def _possible(self) -> Iterator[tuple[bytes | KeyRange, bool]]:
        for branch in (self._request.then, self._request.otherwise):
            for operation in branch:
                kind, target = _target(operation)
                if kind not in ("get", "scan"):
                    yield target, kind in ("delete", "delete_range")


_KINDS: Final[Mapping[Method, type[_Call]]] = {GET: _Get, PUT: _Put, DELETE: _Delete, TXN: _Txn}


def _facts_at(header: kv.Header, request: kv.GetRequest | kv.TxnRequest) -> _Facts:
    """What was ordered has a revision of its own. Else it was read from a state of which we know that
    everything up to a revision is in it; and nothing above, if it was one of the past.
    """
    facts = _Facts()
    own = header.transaction_revision
    facts.revision = own or header.revision
    facts.exact = bool(own or request.revision or request.consistency == kv.SERIALIZABLE)
    return facts


def _compared(facts: _Facts, condition: kv.Compare) -> None:
    """A condition that held, if it tells which version there was."""
    if condition.operator == kv.EQUAL:
        kind = condition.WhichOneof("operand")
        if kind == "mod_revision":
            facts.read(condition.key, condition.mod_revision)
        elif kind == "exists" and not condition.exists:
            facts.read(condition.key, 0)


def _deleted(facts: _Facts, target: bytes | KeyRange, count: int) -> None:
    """So many keys were removed: if there was none, nothing was written."""
    if isinstance(target, KeyRange):
        if count:
            facts.remove(target)
    elif count:
        facts.writes[target] = True
    else:
        facts.read(target, 0)


def _target(operation: kv.Operation) -> tuple[str, bytes | KeyRange]:
    kind = operation.WhichOneof("operation")
    assert kind is not None
    found = getattr(operation, kind)
    return kind, _range(found.range) if kind in ("scan", "delete_range") else found.key


def _range(message: kv.Range) -> KeyRange:
    if message.HasField("prefix"):
        return prefix(message.prefix)
    return KeyRange(message.interval.start, message.interval.end or None)


def _write(target: bytes | KeyRange, *, removed: bool) -> str:
    gone = ',"removed":true' if removed else ',"removed":false'
    if isinstance(target, KeyRange):
        return f'{{"key":{_shown(target.start)},"end":{_shown(target.end or b"")}{gone}}}'
    return f'{{"key":{_shown(target)}{gone}}}'


def _shown(key: bytes) -> str:
    return _json_of(text_of(key))
