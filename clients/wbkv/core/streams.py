"""Scans and watches: streams that resume at another node when one fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.calls import PATIENCE_S, Calls, backoff, out_of_time
from wbkv.core.effects import SCAN, WATCH, Emit, Failure, Next, Open, Plan, ReplyStream, Wait, failed
from wbkv.data import KeyRange
from wbkv.errors import error_of

PROGRESS_S: Final = 2.0
"""The interval in which nodes send progress to a watch."""

SILENCE_S: Final = 4 * PROGRESS_S
"""How long a node of a watch may be silent before another is asked."""


class _Attempts:
    """The streams of one scan or watch, one after the other. After a failure the next is at another node."""

    def __init__(self, calls: Calls, key: bytes | None, timeout_s: float) -> None:
        self._calls = calls
        self._key = key
        self._timeout_s = timeout_s
        self._tried: list[str] = []
        self._address = ""
        self._give_up: float | None = None
        """When to give up, while the stream waits for a message."""

    def address(self) -> str:
        """Return the node to ask."""
        self._address = self._calls.router.address_for(self._key, len(self._tried), self._tried)
        return self._address

    def wait_s(self) -> float:
        """Return how long a node may take for a message that a healthy node sends at once."""
        patience_s = PATIENCE_S * (1 << min(len(self._tried), 8))
        return min(max(self._left_s(), 0.001), patience_s)

    def _left_s(self) -> float:
        now = self._calls.environment.now()
        if self._give_up is None:
            self._give_up = now + self._timeout_s
        return self._give_up - now

    def went_on(self) -> None:
        """Record that a message has arrived."""
        self._tried.clear()
        self._give_up = None

    def failed(self, failure: Failure) -> Plan[None]:
        """Wait before the next attempt. Raises if the failure is permanent, or the time is over."""
        if not failure.error.retryable:
            raise error_of(failure.error)
        router = self._calls.router
        router.failed(self._address, failure.error, gone=not failure.heard)
        self._tried.append(self._address)
        left = self._left_s()
        if left <= 0:
            raise out_of_time(failure, self._timeout_s, self._tried)
        yield Wait(min(backoff(len(self._tried), self._calls.environment), left))
        if router.due:
            yield from self._calls.refresh(max(self._left_s(), 0.001))


@dataclass(slots=True)
class Page:
    """A page of a scan."""

    revision: int
    entries: Sequence[kv.Entry]
    count: int
    """Of a count: the number of keys found so far."""
    columns: kv.Columns
    """The entries as columns, if requested."""


def scan(calls: Calls, request: kv.ScanRequest, asked: KeyRange, timeout_s: float) -> Plan[None]:
    """Emit the pages of a scan, all as of one revision. The time limit is for each page.

    After a failure the scan goes on at another node, from the last key that it is known to have passed.
    """
    start, end, limit = asked.start, asked.end, request.limit
    counting = request.shape == kv.COUNT
    seen = before = 0
    """Keys found so far, and by all streams before this one."""
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
                count = before + page.count if counting else page.count
                yield Emit(Page(request.revision, page.entries, count, page.columns))
                seen = count if counting and page.resume else seen + found
                above: bytes | None
                if page.resume:
                    above, below = (start, page.resume) if request.reverse else (page.resume, end)
                elif found:
                    above, below = (start, last) if request.reverse else (calls.router.after(last), end)
                else:
                    continue
                if above is None or (limit and seen >= limit):
                    return
                start, end = above, below
                if end is not None and start >= end:
                    return
        finally:
            stream.cancel()
        yield from attempts.failed(page)
        before = seen


def _size_of(page: kv.ScanResponse) -> tuple[int, bytes]:
    """Return the number of entries in a page, and the last key."""
    if page.entries:
        return len(page.entries), page.entries[-1].key
    columns = page.columns
    count = len(columns.key_ends) // 4
    start = int.from_bytes(columns.key_ends[-8:-4], "little") if count > 1 else 0
    return count, columns.keys[start:]


class Progress(NamedTuple):
    """The progress of a watch to a revision."""

    revision: int
    changes: Sequence[tuple[int, Sequence[kv.Event]]]
    """Whole transactions since the previous progress, in the order of revisions."""


def watch(calls: Calls, request: kv.WatchRequest, timeout_s: float) -> Plan[None]:
    """Emit the progress of a watch, first its beginning; without end, or up to `request.until`.

    The time limit is for finding a node that serves the watch. A silent node is replaced.
    """
    request.progress_ms = int(PROGRESS_S * 1000)
    attempts = _Attempts(calls, None, timeout_s)
    while True:
        begun: list[kv.Event] = []
        """The first events of a transaction that comes in parts. They count for this stream only."""
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
                    if not change.continuation:
                        begun = []
                    begun += change.events
                    if not change.continued:
                        if change.continuation:
                            begun.sort(key=attrgetter("key"))  # parts of several partitions
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
