"""A store of one partition in a few lines, which does to requests what a test says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from wbkv.core.calls import Calls
from wbkv.core.effects import TOPOLOGY, Ask, Failure, Open, failed
from wbkv.core.routing import Router
from wbkv.links.tasks import AsyncLink
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError


class Store:
    """A link."""

    def __init__(self, page: int = 2) -> None:
        self.rows: dict[bytes, kv.Entry] = {}
        self.revision = 1000
        self.page = page
        self.asked: list[Message] = []
        self.script: list[Failure | None] = []
        """What becomes of the next requests instead: None for nothing special."""
        self.lag = 0
        """How far what is complete is behind what reads show."""
        self._changed: dict[bytes, int] = {}

    def ask(self, ask: Ask) -> Message | Failure:
        if ask.method is TOPOLOGY:
            return failed(ApiError.UNAVAILABLE, "no map")
        request: Any = type(ask.request).FromString(ask.request.SerializeToString())
        self.asked.append(request)
        if self.script and (found := self.script.pop(0)) is not None:
            return found
        if isinstance(request, kv.GetRequest):
            return kv.GetResponse(header=self._header(0), entry=self.rows.get(request.key))
        if isinstance(request, kv.PutRequest):
            request = kv.TxnRequest(then=[kv.Operation(put=kv.Put(key=request.key, value=request.value))])
        return self._txn(request)

    def _header(self, own: int) -> kv.Header:
        return kv.Header(revision=self.revision - self.lag, transaction_revision=own)

    def _txn(self, request: kv.TxnRequest) -> kv.TxnResponse:
        unmet = [i for i, each in enumerate(request.conditions) if not self._holds(each)]
        operations = request.otherwise if unmet else request.then
        self.revision += 1
        results = [self._perform(operation) for operation in operations]
        return kv.TxnResponse(
            header=self._header(self.revision if request.conditions or request.id.client else 0),
            succeeded=not unmet,
            unmet=[kv.Unmet(condition=i) for i in unmet],
            results=results,
        )

    def _holds(self, condition: kv.Condition) -> bool:
        if condition.HasField("unchanged"):
            asked = condition.unchanged
            return not any(
                _within(key, asked.range) and mod > asked.since for key, mod in self._changed.items()
            )
        compare = condition.compare
        found = self.rows.get(compare.key, kv.Entry())
        subject = compare.WhichOneof("operand")
        assert subject is not None
        has = compare.key in self.rows if subject == "exists" else getattr(found, subject)
        return bool(has == getattr(compare, subject))

    def _perform(self, operation: kv.Operation) -> kv.OperationResult:
        kind = operation.WhichOneof("operation")
        asked: Any = getattr(operation, str(kind))
        if kind == "get":
            return kv.OperationResult(got=kv.Got(entry=self.rows.get(asked.key)))
        if kind == "put":
            self.put(asked.key, asked.value, self.revision)
            return kv.OperationResult(written=kv.Written())
        assert kind == "delete"
        self._changed[asked.key] = self.revision
        return kv.OperationResult(deleted=kv.Deleted(count=int(self.rows.pop(asked.key, None) is not None)))

    def put(self, key: bytes, value: bytes, revision: int = 0) -> None:
        """Somebody else writes."""
        if not revision:
            self.revision += 1
        now = revision or self.revision
        old = self.rows.get(key)
        created, version = (old.create_revision, old.version + 1) if old else (now, 1)
        self.rows[key] = kv.Entry(
            key=key, value=value, create_revision=created, mod_revision=now, version=version
        )
        self._changed[key] = now

    def open(self, open_: Open) -> _Pages:
        request = open_.request
        assert isinstance(request, kv.ScanRequest)
        keys = sorted((key for key in self.rows if _within(key, request.range)), reverse=request.reverse)
        rows = [self.rows[key] for key in keys][: request.limit or None]
        pages = [rows[i : i + self.page] for i in range(0, len(rows), self.page)] or [[]]
        header = self._header(0)
        return _Pages(iter([kv.ScanResponse(header=header, entries=page) for page in pages]))

    def next(self, stream: Any, timeout_s: float) -> Message | Failure | None:
        return next(stream.pages, None)

    async def in_loop(self) -> AsyncLink:
        raise NotImplementedError

    def close(self) -> None:
        pass


class _Pages:
    def __init__(self, pages: Iterator[kv.ScanResponse]) -> None:
        self.pages = pages

    def cancel(self) -> None:
        pass


def _within(key: bytes, asked: kv.Range) -> bool:
    if asked.HasField("prefix"):
        return key.startswith(asked.prefix)
    return asked.interval.start <= key and (not asked.interval.end or key < asked.interval.end)


def calls_of(timeout_s: float = 5.0) -> Calls:
    """Calls that know where the store is."""
    router = Router(("n1:1",))
    router.stale = False
    router._learned_at = time.monotonic()
    return Calls(router, timeout_s)
