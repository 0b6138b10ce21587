"""Scans and watches: streams that go on elsewhere, where they were, when a node fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.calls import PATIENCE_S, Calls, backoff, out_of_time
from wbkv.core.effects import SCAN, WATCH, Emit, Failure, Next, Open, Plan, ReplyStream, Wait, failed
from wbkv.data import KeyRange
from wbkv.errors import error_of

PROGRESS_S: Final = 2.0
"""How often a watch must hear something, changes or none."""

SILENCE_S: Final = 4 * PROGRESS_S
"""How long a watch may hear nothing before another node is asked."""


class _Attempts:
    """Streams of one scan or watch, one after the other: each at another node than the last, if that
    failed.
    """

    def __init__(self, calls: Calls, key: bytes | None, timeout_s: float) -> None:
        self._calls = calls
        self._key = key
        self._timeout_s = timeout_s
        self._tried: list[str] = []
        self._address = ""
        self._give_up: float | None = None
        """When, if something is being waited for."""

    def address(self) -> str:
        """Whom to ask."""
        self._address = self._calls.router.address_for(self._key, len(self._tried), self._tried)
        return self._address

    def wait_s(self) -> float:
        """How long a node may take for something that it has at once, if all is well."""
        patience_s = PATIENCE_S * (1 << min(len(self._tried), 8))
        return min(max(self._left_s(), 0.001), patience_s)

    def _left_s(self) -> float:
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + self._timeout_s
        return self._give_up - now

    def went_on(self) -> None:
        """It has come."""
        self._tried.clear()
        self._give_up = None

    def failed(self, failure: Failure) -> Plan[None]:
        """Wait before the next attempt. Raises if there is to be none."""
        if not failure.error.retryable:
            raise error_of(failure.error)
        router = self._calls.router
        router.failed(self._address, failure.error, gone=not failure.heard)
        self._tried.append(self._address)
        left = self._left_s()
        if left <= 0:
            raise out_of_time(failure, self._timeout_s, self._tried)
        yield Wait(min(backoff(len(self._tried)), left))
        if router.due:
            yield from self._calls.refresh(max(self._left_s(), 0.001))


@dataclass(slots=True)
class Page:
    """Some of a scan."""

    revision: int
    entries: Sequence[kv.Entry]
    count: int
    """In the last page: how many keys were found."""
    columns: kv.Columns
    """Instead of entries, if that was asked for."""


def scan(calls: Calls, request: kv.ScanRequest, asked: KeyRange, timeout_s: float) -> Plan[None]:
    """Emits the pages of a scan, all of them as of one revision. The time-out is for each."""
    start, end, limit = asked.start, asked.end, request.limit
    seen = 0
    attempts = _Attempts(calls, asked.start or None, timeout_s)
    while True:
        request.range.CopyFrom(KeyRange(start, end).message())
        request.limit = limit - seen if limit else 0
        stream: ReplyStream = yield Open(attempts.address(), SCAN, request)
        try:
            while True:
                page: Any = yield Next(stream, attempts.wait_s())
                if page is None:
                    return
                if type(page) is Failure:
                    break
                found, last = _size_of(page)
                if not request.revision:
                    request.revision = page.header.revision
                    calls.saw(request.revision)
                attempts.went_on()
                yield Emit(Page(request.revision, page.entries, page.count, page.columns))
                if not found:
                    continue
                seen += found
                above = start if request.reverse else calls.router.after(last)
                if above is None or (limit and seen >= limit):
                    return
                start, end = above, last if request.reverse else end
                if end is not None and start >= end:
                    return
        finally:
            stream.cancel()
        yield from attempts.failed(page)


def _size_of(page: kv.ScanResponse) -> tuple[int, bytes]:
    """How many entries a page has, and the last one's key."""
    if page.entries:
        return len(page.entries), page.entries[-1].key
    columns = page.columns
    count = len(columns.key_ends) // 4
    start = int.from_bytes(columns.key_ends[-8:-4], "little") if count > 1 else 0
    return count, columns.keys[start:]


class Progress(NamedTuple):
    """A watch has come to a revision."""

    revision: int
    changes: Sequence[tuple[int, Sequence[kv.Event]]]
    """Whole transactions since the last one, in the order of revisions."""


def watch(calls: Calls, request: kv.WatchRequest, timeout_s: float) -> Plan[None]:
    """Emits how far the watch is, first of all where it begins; without end, or until it is there.

    The time-out is for finding a node that serves it; one that falls silent is given up.
    """
    request.progress_ms = int(PROGRESS_S * 1000)
    attempts = _Attempts(calls, None, timeout_s)
    while True:
        begun: list[kv.Event] = []
        """Of a transaction that did not fit into one message."""
        stream: ReplyStream = yield Open(attempts.address(), WATCH, request)
        wait_s = attempts.wait_s()
        try:
            while True:
                reply: Any = yield Next(stream, wait_s)
                if reply is None:
                    reply = failed(ApiError.UNAVAILABLE, "the node ended the watch")
                if type(reply) is Failure:
                    break
                changes: list[tuple[int, Sequence[kv.Event]]] = []
                for change in reply.transactions:
                    begun += change.events
                    if not change.continued:
                        changes.append((change.revision, begun))
                        begun = []
                request.after = max(request.after, reply.revision)
                calls.saw(request.after)
                attempts.went_on()
                wait_s = SILENCE_S
                yield Emit(Progress(request.after, changes))
                if 0 < request.until <= request.after:
                    return
        finally:
            stream.cancel()
        yield from attempts.failed(reply)
