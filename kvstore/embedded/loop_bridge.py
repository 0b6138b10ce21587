"""Calls into an event loop that runs in a thread of its own, from any other thread.

Whoever calls gets a `concurrent.futures.Future` at once. The loop is woken once for all that was called
before it gets to it. What a caller does not want any more (its future is cancelled, its stream forgotten)
ends in the loop too.
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

from kvstore.api.methods import Streaming, Unary
from kvstore.store.errors import DeadlinePassed

T = TypeVar("T")
Fail: TypeAlias = Callable[[BaseException, type[Message]], Exception]
"""What a caller gets for what has ended its request of some kind."""


class Closed(Exception):
    """Nothing is taken any more."""


class Forked(Closed):
    """The loop is in the process that this one was forked from."""


class LoopBridge:
    """A loop, as other threads reach it. Made in the loop."""

    def __init__(self, fail: Fail) -> None:
        """`fail` may be called in any thread with a `Closed`, and in the loop with all else."""
        self.fail = fail
        self.calls: set[asyncio.Task[Any]] = set()
        self.streams: set[asyncio.Task[Any]] = set()
        """What has begun, and not ended."""
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
        """Begin a call or a stream, and say how it ends, even if it never runs. In the loop."""

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
        """A future is done, in whichever thread. If its caller cancelled it, nobody waits for its task."""
        if future.cancelled():
            with suppress(Closed):
                self.post(task.cancel)

    def stream(self, method: Streaming, request: Message, timeout_s: float | None) -> BridgedStream:
        """Begin a stream, from any thread."""
        feed = _StreamPump(self, method)
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with suppress(Closed):  # whoever reads is told
            self.post(partial(feed.start, request, deadline))
        return BridgedStream(self, feed)


async def _in_time(method: Unary, request: Message, deadline: float) -> Message:
    return await method.call(request, _left(deadline))


def _left(deadline: float) -> float:
    """The seconds until then. The loop's own clock may stand still while it has nothing to do."""
    left_s = deadline - time.monotonic()
    if not left_s > 0:
        raise DeadlinePassed("the call's deadline had passed before it began")
    return left_s


def resolve(future: Future[Any], outcome: object) -> bool:
    """Give a future its result or error, unless it was cancelled. Whether it took it."""
    if not future.set_running_or_notify_cancel():
        return False
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return True


class BridgedStream:
    """A stream as its reader has it. One that is forgotten is cancelled."""

    def __init__(self, crossing: LoopBridge, feed: _StreamPump) -> None:
        self._crossing = crossing
        self._feed = feed

    def next(self) -> Future[Message | None]:
        """The next response; None at the end, and ever after."""
        future: Future[Message | None] = Future()
        try:
            self._crossing.post(partial(self._feed.ask, future))
        except Closed as closed:
            resolve(future, self._crossing.fail(closed, self._feed.method.kind))
        return future

    def cancel(self) -> None:
        """Nobody wants more. Who waits for the next response finds that cancelled."""
        with suppress(Closed):
            self._crossing.post(self._feed.cancel)

    def __del__(self) -> None:
        self.cancel()


class _StreamPump:
    """A stream in the loop: one response ahead of its reader, and no more."""

    def __init__(self, crossing: LoopBridge, method: Streaming) -> None:
        self.method = method
        self._crossing = crossing
        self._askers: deque[Future[Message | None]] = deque()
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._over = False
        self._end: Exception | None = None

    def start(self, request: Message, deadline: float) -> None:
        """Begin, even if nobody asks yet."""
        run = self._run(request, deadline)
        self._task = self._crossing.start(run, self._crossing.streams, self.method.kind, self._finish)

    def ask(self, future: Future[Message | None]) -> None:
        """The next response is for this one."""
        while self._askers and self._askers[0].cancelled():
            self._askers.popleft()
        self._askers.append(future)
        self._asked.set()
        if self._over:
            self._finish(self._end)

    def cancel(self) -> None:
        """Nobody wants more."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, request: Message, deadline: float) -> None:
        timeout_s = None if deadline == math.inf else _left(deadline)
        responses = self.method.call(request, timeout_s)
        try:
            async with asyncio.timeout(timeout_s), aclosing(responses):
                async for response in responses:
                    await self._give(response)
        except TimeoutError:
            raise DeadlinePassed("the stream's deadline has passed") from None

    async def _give(self, response: Message) -> None:
        """To the next who asks, and has not thought better of it."""
        while True:
            while self._askers:
                if resolve(self._askers.popleft(), response):
                    return
            self._asked.clear()
            await self._asked.wait()

    def _finish(self, end: Exception | None) -> None:
        """Nothing comes any more, whoever asks."""
        self._over, self._end = True, end
        while self._askers:
            future = self._askers.popleft()
            if self._cancelled:
                future.cancel()
            else:
                resolve(future, end)
