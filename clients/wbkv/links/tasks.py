"""Run plans in an event loop. `threads` has the same for threads."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.effects import Ask, Effect, Emit, Failure, Next, Open, Plan, ReplyStream, Wait, failed

T = TypeVar("T")


class AsyncLink(Protocol):
    """Carries calls for tasks."""

    def ask(self, ask: Ask) -> Awaitable[Message | Failure]:
        """Send a request, and wait for its response."""

    def open(self, open_: Open) -> ReplyStream:
        """Open a stream."""

    async def next(self, stream: Any) -> Message | Failure | None:
        """Return the next message; None at the end. It may be cancelled and called again, without loss."""

    async def close(self) -> None:
        """Close the link."""


async def run(link: AsyncLink, plan: Plan[T]) -> T:
    """Run a plan, and return its result."""
    answer: Any = None
    try:
        while True:
            effect = plan.send(answer)
            if type(effect) is Ask:
                answer = await link.ask(effect)
            else:
                assert type(effect) is Wait
                await asyncio.sleep(effect.seconds)
                answer = None
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        plan.close()


class AsyncPuller(Generic[T]):
    """Runs a plan that emits items, one item at a time. A waiting task may be cancelled, and call again."""

    def __init__(self, link: AsyncLink, plan: Plan[None]) -> None:
        self._link = link
        self._plan = plan
        self._effect: Effect | None = None
        """The effect to perform before the plan continues."""
        self._until = 0.0
        """When that effect ends: a caller with less patience than that goes on with it in its next call."""
        self._asking: asyncio.Future[Message | Failure] | None = None
        """The request of that effect, which outlives a caller's patience."""
        self._closed = asyncio.Event()
        self._running = False

    async def pull(self, timeout_s: float | None = None) -> T:
        """Return the next item. Raises `StopAsyncIteration` at the end, `queue.Empty` if none is in time."""
        if self._running:
            raise RuntimeError("another task already waits for this iterator")
        self._running = True
        try:
            if timeout_s is None:
                return await self._pull()
            async with asyncio.timeout(timeout_s) as limit:
                return await self._pull()
        except TimeoutError:
            if timeout_s is None or not limit.expired():
                raise  # the plan itself has failed, by `DeadlineExceeded`
            raise queue.Empty from None
        finally:
            self._running = False
            if self._closed.is_set():
                self._plan.close()

    async def _pull(self) -> T:
        answer: Any = None
        while True:
            if self._effect is not None:
                answer = await self._perform(self._effect)
                self._effect = None
            if self._closed.is_set():
                raise StopAsyncIteration
            try:
                effect = self._plan.send(answer)
            except StopIteration:
                raise StopAsyncIteration from None
            answer = None
            if type(effect) is Emit:
                item: T = effect.item
                return item
            self._effect = effect
            if type(effect) is Next:
                self._until = asyncio.get_running_loop().time() + effect.timeout_s
            elif type(effect) is Wait:
                self._until = asyncio.get_running_loop().time() + effect.seconds

    async def _perform(self, effect: Effect) -> Any:
        if type(effect) is Next:
            try:
                async with asyncio.timeout_at(self._until):
                    return await self._link.next(effect.stream)
            except TimeoutError:
                return failed(ApiError.DEADLINE_PASSED, "no message arrived in time")
        if type(effect) is Open:
            return self._link.open(effect)
        if type(effect) is Ask:
            if self._asking is None:
                self._asking = asyncio.ensure_future(self._link.ask(effect))
            try:
                return await asyncio.shield(self._asking)
            finally:
                if self._asking.done():
                    self._asking = None
        assert type(effect) is Wait
        await asyncio.sleep(self._until - asyncio.get_running_loop().time())
        return None

    def close(self) -> None:
        """End the plan. Another task may be waiting for it."""
        self._closed.set()
        if self._asking is not None:
            self._asking.cancel()
        if isinstance(self._effect, Next):
            self._effect.stream.cancel()  # wakes the task that waits for it
        if not self._running:
            self._plan.close()


class AsyncRepeater:
    """Awaits a function at intervals, in a task of its own, until that returns False or `stop` is called."""

    def __init__(self, function: Callable[[], Awaitable[bool]], interval_s: float, name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(self._repeat(function, interval_s), name=name)

    async def _repeat(self, function: Callable[[], Awaitable[bool]], interval_s: float) -> None:
        await asyncio.sleep(interval_s)
        while await function():
            await asyncio.sleep(interval_s)

    def stop(self) -> None:
        """Stop calling the function."""
        self._task.cancel()
