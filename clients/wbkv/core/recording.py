"""Recorded calls: the same plans, whose invocations and results go into a history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.codecs import Codecs
from wbkv.core.calls import Calls
from wbkv.core.effects import Plan
from wbkv.core.requests import Requests, again
from wbkv.data import Consistency, Entry, Failed, Key, KeyRange, RequestId, TxnResult, V, W, key_bytes
from wbkv.errors import Error, InvalidRequest
from wbkv.operations import Condition, Operation, Put, Result, delete
from wbkv.record.history import History, OpenTransaction, Step, text_of


def requests_of(
    calls: Calls, codec: Codecs[V], consistency: Consistency, history: History | None
) -> Requests[V]:
    """Return the requests of a client, recorded if there is a history."""
    if history is None:
        return Requests(calls, codec, consistency)
    if not isinstance(history, History):
        raise TypeError(f"the history must be a wbkv.History, not {history!r}")
    return Recorded(calls, codec, consistency, history)


class Recorded(Requests[V]):
    """Requests that are recorded: `wbkv.record.history` says what is."""

    def __init__(self, calls: Calls, codec: Codecs[V], consistency: Consistency, history: History) -> None:
        super().__init__(calls, codec, consistency)
        self._history = history

    def using(self, codec: Codecs[W], consistency: Consistency | None = None) -> Recorded[W]:
        """Return these requests with another codec."""
        return Recorded(self.calls, codec, consistency or self.consistency, self._history)

    def closing(self) -> None:
        """Flush the trace and the history: the client is closed."""
        super().closing()
        self._history.flush()

    # Reads

    def entry(
        self, key: Key, revision: int, consistency: Consistency | None, timeout_s: float | None
    ) -> Plan[Entry[V] | None]:
        """Read a key with its revisions."""
        plan = super().entry(key, revision, consistency, timeout_s)
        if not self._is_strict(revision, consistency):
            return (yield from plan)
        begun = self._begin_reads([key])
        try:
            found = yield from plan
        except BaseException:
            self._history.end(begun, "fail")
            raise
        self._end_reads(begun, [found])
        return found

    def entries(
        self, keys: Iterable[Key], revision: int, consistency: Consistency | None, timeout_s: float | None
    ) -> Plan[list[Entry[V] | None]]:
        """Read several keys in one request."""
        keys = list(keys)
        plan = super().entries(keys, revision, consistency, timeout_s)
        if not keys or not self._is_strict(revision, consistency):
            return (yield from plan)
        begun = self._begin_reads(keys)
        try:
            found = yield from plan
        except BaseException:
            self._history.end(begun, "fail")
            raise
        self._end_reads(begun, found)
        return found

    def _is_strict(self, revision: int, consistency: Consistency | None) -> bool:
        return not revision and self._level(consistency, revision)[0] == kv.STRICT

    def _begin_reads(self, keys: Iterable[Key]) -> OpenTransaction:
        return self._history.begin([("r", text_of(key_bytes(key)), None) for key in keys])

    def _end_reads(self, begun: OpenTransaction, found: Iterable[Entry[V] | None]) -> None:
        steps = [self._read(step, entry) for step, entry in zip(begun.steps, found, strict=True)]
        self._history.executed(begun, steps, 0)

    def _read(self, step: Step, entry: Result[V]) -> Step:
        """Return a read with its result."""
        if step[0] != "r":
            return step
        raw = self.values.encode(entry.key, entry.value) if isinstance(entry, Entry) else None
        return (*step[:2], self._history.shown(raw))

    # Writes

    def put(self, key: Key, value: V, timeout_s: float | None) -> Plan[int]:
        """Write a key. The result is the revision."""
        raw = key_bytes(key)
        plan = super().put(key, value, timeout_s)
        begun = self._history.begin(self._steps((Put(raw, value),))[0])
        try:
            revision = yield from plan
        except BaseException as error:
            self._history.end(begun, _outcome(error))
            raise
        self._history.executed(begun, begun.steps, revision)
        return revision

    def delete(self, keys: Key | KeyRange, timeout_s: float | None) -> Plan[int]:
        """Reject a removal, which a history cannot contain."""
        raise self._history.refusal(delete(keys))

    def transact(
        self,
        conditions: Sequence[Condition],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
        timeout_s: float | None,
        request_id: RequestId | None = None,
        reservation: int = 0,
        *,
        allow_failures: bool = False,
    ) -> Plan[TxnResult[V]]:
        """Execute a transaction. Both branches are invoked in the history, and one of them fails."""
        branches = self._steps(then), self._steps(otherwise) if conditions else []
        plan = super().transact(
            conditions, then, otherwise, timeout_s, request_id, reservation, allow_failures=allow_failures
        )
        taken, other = (self._begin_branch(branch) for branch in branches)
        try:
            result = yield from plan
        except BaseException as error:
            self._history.end(taken, _outcome(error))
            self._history.end(other, _outcome(error))
            raise
        steps = branches[0]
        if not result.succeeded:
            taken, other, steps = other, taken, branches[1]
        self._history.end(other, "fail")
        if taken is not None and any(isinstance(each, Failed) for each in result.results):
            self._history.end(taken, "unknown")  # some operations failed
        elif taken is not None:
            done = [
                self._read(step, found)
                for found, part in zip(result.results, steps, strict=True)
                for step in part
            ]
            self._history.executed(taken, done, result.revision)
        return result

    def commit(
        self,
        reads: Mapping[bytes, Entry[bytes] | None],
        conditions: Sequence[Condition],
        writes: Sequence[Operation],
        timeout_s: float | None,
        reservation: int = 0,
    ) -> Plan[TxnResult[V]]:
        """Commit an interactive transaction. Its reads hold if it commits."""
        history = self._history
        steps: list[Step] = [("r", text_of(key), None) for key in reads]
        done: list[Step] = [
            ("r", text_of(key), history.shown(None if entry is None else entry.value))
            for key, entry in reads.items()
        ]
        for write in writes:
            written = history.written(write, reads)
            steps += written
            done += written
        begun = history.begin(steps) if steps else None
        try:
            result = yield from super().transact(
                conditions, writes, again(reads), timeout_s, None, reservation
            )
        except BaseException as error:
            history.end(begun, _outcome(error))
            raise
        if begun is not None and result.succeeded:
            history.executed(begun, done, result.revision)
        else:
            history.end(begun, "fail")
        return result

    def _steps(self, operations: Sequence[Operation]) -> list[list[Step]]:
        """Return the operations' steps in a history. Raises `InvalidRequest` for those that have none."""
        encode = self.values.encode
        return [
            self._history.steps_of(
                operation, encode(operation.key, operation.value) if isinstance(operation, Put) else b""
            )
            for operation in operations
        ]

    def _begin_branch(self, branch: Sequence[Sequence[Step]]) -> OpenTransaction | None:
        steps = [step for part in branch for step in part]
        return self._history.begin(steps) if steps else None


def _outcome(error: BaseException) -> str:
    """Return the outcome of a write that ended with this error."""
    known = isinstance(error, InvalidRequest) or (isinstance(error, Error) and error.retry_safe)
    return "fail" if known else "unknown"
