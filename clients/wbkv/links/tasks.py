"""How plans are run in an event loop."""

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
    """What carries calls, and lets tasks wait for them."""

    def ask(self, ask: Ask) -> Awaitable[Message | Failure]:
        """One request, one response."""

    def open(self, open_: Open) -> ReplyStream:
        """Begin a stream."""

    async def next(self, stream: Any) -> Message | Failure | None:
        """Its next message; None at its end. May be cancelled and asked again, without loss."""

    async def close(self) -> None:
        """No more calls."""


async def run(link: AsyncLink, plan: Plan[T]) -> T:
    """Carry a plan out."""
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
    """Carries out a plan that emits things, as far as they are wanted. Who waits may be cancelled, and ask
    again.
    """

    def __init__(self, link: AsyncLink, plan: Plan[None]) -> None:
        self._link = link
        self._plan = plan
        self._effect: Effect | None = None
        """What is to be done before the plan goes on."""
        self._until = 0.0
        self._closed = asyncio.Event()
        self._running = False

    async def pull(self, timeout_s: float | None = None) -> T:
        """The next thing. Raises `StopAsyncIteration` at the end, `queue.Empty` if there is none in time."""
        if self._running:
            raise RuntimeError("two tasks wait for the same iterator")
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

    async def _perform(self, effect: Effect) -> Any:
        if type(effect) is Next:
            try:
                async with asyncio.timeout_at(self._until):
                    return await self._link.next(effect.stream)
            except TimeoutError:
                return failed(ApiError.DEADLINE_PASSED, "nothing came in time")
        if type(effect) is Open:
            return self._link.open(effect)
        if type(effect) is Ask:
            return await self._link.ask(effect)
        assert type(effect) is Wait
        await asyncio.sleep(effect.seconds)
        return None

    def close(self) -> None:
        """No more is wanted: also while another task waits."""
        self._closed.set()
        if isinstance(self._effect, Next):
            self._effect.stream.cancel()  # wakes whoever waits for it
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
        """Do not call it again."""
        self._task.cancel()
