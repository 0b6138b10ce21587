"""Call into an event loop that runs in a thread of its own, from any other thread.

A caller gets a `concurrent.futures.Future` at once. The loop is woken once for all calls that arrive before
it runs. A call whose future is cancelled, and a stream that is garbage-collected, ends in the loop too.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

from kvstore.api.methods import Encoded, Streaming, Unary
from kvstore.store.errors import DeadlinePassed

T = TypeVar("T")
Fail: TypeAlias = Callable[[BaseException, type[Message]], Exception]
"""Converts the exception that ended a request of some kind to the caller's error."""


class Closed(Exception):
    """The loop takes no more calls."""


class Forked(Closed):
    """The loop is in the process that this one was forked from."""


class LoopBridge:
    """Access to a loop from other threads. It is made in the loop."""

    def __init__(self, fail: Fail) -> None:
        """`fail` may be called in any thread with a `Closed`, and in the loop with all else."""
        self.fail = fail
        self.calls: set[asyncio.Task[Any]] = set()
        self.streams: set[asyncio.Task[Any]] = set()
        """Calls and streams in progress."""
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._guard = threading.RLock()  # garbage may be collected, and post its end, while we post
        self._posted: deque[Callable[[], object]] = deque()
        self._woken = False
        self._closed = False

    def post(self, call: Callable[[], object]) -> None:
        """Make a call in the loop, after all that were posted before. Raises `Closed`."""
        if os.getpid() != self._process:
            raise Forked
        with self._guard:
            if self._closed:
                raise Closed
            self._posted.append(call)
            if not self._woken:
                self._woken = True
                self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._woken = False  # what is posted from here on wakes the loop again, or is taken right now
        while self._posted:
            self._posted.popleft()()

    def close(self) -> None:
        """Take what was posted, and no more from then on. In the loop."""
        with self._guard:
            self._closed = True
        self._take()

    def start(
        self,
        work: Coroutine[Any, Any, T],
        among: set[asyncio.Task[Any]],
        kind: type[Message],
        done: Callable[[T | Exception], object],
    ) -> asyncio.Task[T]:
        """Begin a call or a stream, and report how it ends, even if it never runs. In the loop."""

        def ended(task: asyncio.Task[T]) -> None:
            among.discard(task)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            done(task.result() if error is None else self.fail(error, kind))

        task = self._loop.create_task(work)
        among.add(task)
        task.add_done_callback(ended)
        return task

    def call(self, method: Unary, request: Message, timeout_s: float) -> Future[Message]:
        """Call a method, from any thread."""
        future: Future[Message] = Future()
        try:
            self.post(partial(self._begin, method, request, time.monotonic() + timeout_s, future))
        except Closed as closed:
            resolve(future, self.fail(closed, method.kind))
        return future

    def _begin(self, method: Unary, request: Message, deadline: float, future: Future[Message]) -> None:
        work = _in_time(method, request, deadline)
        task = self.start(work, self.calls, method.kind, partial(resolve, future))
        future.add_done_callback(partial(self._end_with, task))

    def _end_with(self, task: asyncio.Task[Message], future: Future[Message]) -> None:
        """A future is done, in any thread. If its caller cancelled it, cancel its task."""
        if future.cancelled():
            with suppress(Closed):
                self.post(task.cancel)

    def stream(self, method: Streaming, request: Message, timeout_s: float | None) -> BridgedStream:
        """Begin a stream, from any thread."""
        feed = _StreamPump(self, method)
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with suppress(Closed):  # reported to the reader
            self.post(partial(feed.start, request, deadline))
        return BridgedStream(self, feed)


async def _in_time(method: Unary, request: Message, deadline: float) -> Message:
    return await method.call(request, _left(deadline))


def _left(deadline: float) -> float:
    """Return the seconds left. The loop's own clock may stand still while the loop is idle."""
    left_s = deadline - time.monotonic()
    if not left_s > 0:
        raise DeadlinePassed("the call's deadline had passed before it began")
    return left_s


def resolve(future: Future[Any], outcome: object) -> bool:
    """Resolve a future, unless it was cancelled. Returns whether it was resolved."""
    if not future.set_running_or_notify_cancel():
        return False
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return True


class BridgedStream:
    """The reader's side of a stream. A stream that is garbage-collected is cancelled."""

    def __init__(self, bridge: LoopBridge, feed: _StreamPump) -> None:
        self._bridge = bridge
        self._feed = feed

    def next(self) -> Future[Message | None]:
        """The next response; None at the end, and ever after."""
        future: Future[Message | None] = Future()
        try:
            self._bridge.post(partial(self._feed.ask, future))
        except Closed as closed:
            resolve(future, self._bridge.fail(closed, self._feed.method.kind))
        return future

    def cancel(self) -> None:
        """End the stream. A pending `next` is cancelled."""
        with suppress(Closed):
            self._bridge.post(self._feed.cancel)

    def __del__(self) -> None:
        self.cancel()


class _StreamPump:
    """The loop's side of a stream: at most one response ahead of its reader."""

    def __init__(self, bridge: LoopBridge, method: Streaming) -> None:
        self.method = method
        self._bridge = bridge
        self._askers: deque[Future[Message | None]] = deque()
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._over = False
        self._end: Exception | None = None

    def start(self, request: Message, deadline: float) -> None:
        """Begin, even before the first `ask`."""
        run = self._run(request, deadline)
        self._task = self._bridge.start(run, self._bridge.streams, self.method.kind, self._finish)

    def ask(self, future: Future[Message | None]) -> None:
        """Resolve this future with the next response."""
        while self._askers and self._askers[0].cancelled():
            self._askers.popleft()
        self._askers.append(future)
        self._asked.set()
        if self._over:
            self._finish(self._end)

    def cancel(self) -> None:
        """Cancel the stream's task."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, request: Message, deadline: float) -> None:
        timeout_s = None if deadline == math.inf else _left(deadline)
        responses = self.method.call(request, timeout_s)
        try:
            async with asyncio.timeout(timeout_s), aclosing(responses):
                async for response in responses:
                    await self._give(response.message() if isinstance(response, Encoded) else response)
        except TimeoutError:
            raise DeadlinePassed("the stream's deadline has passed") from None

    async def _give(self, response: Message) -> None:
        """Give a response to the next future that is not cancelled."""
        while True:
            while self._askers:
                if resolve(self._askers.popleft(), response):
                    return
            self._asked.clear()
            await self._asked.wait()

    def _finish(self, end: Exception | None) -> None:
        """End the stream for all pending and later futures."""
        self._over, self._end = True, end
        while self._askers:
            future = self._askers.popleft()
            if self._cancelled:
                future.cancel()
            else:
                resolve(future, end)
