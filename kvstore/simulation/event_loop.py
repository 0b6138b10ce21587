"""asyncio on the simulator's virtual clock: production's coroutines run under it as they are.

Every simulated process has a `SimEventLoop` of its own, on its own clock. Callbacks of a round run at one
virtual time, in the order in which they were scheduled, so a seed decides every interleaving. When the
process dies, so does its loop: nothing of it runs again, not even the `finally` blocks of its coroutines, as
after `kill -9`. `close` unwinds the remains at the end of the run, when that concerns no other process.

A loop reads no clock, opens no selector and starts no thread. Whatever would need one is not implemented, and
raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeVar

from multicast.sim.checkers import Violation
from multicast.sim.network import Loop

T = TypeVar("T")

ROUNDS_MAX: Final = 20_000
"""Rounds at one virtual time after which a process counts as livelocked."""

UNWIND_ROUNDS: Final = 20
"""How often the tasks of a process are cancelled, at most: some begin others when they are."""

LATE_S: Final = 1e-9
"""How late timers run: a clock that was rounded down must not seem to be before the timer's time."""


class SimEventLoop(asyncio.AbstractEventLoop):
    """The event loop of one process, in one of its lives."""

    def __init__(self, loop: Loop, name: str, rate: float = 1.0) -> None:
        """`rate` is the speed of the process's clock, in its seconds per virtual second."""
        self.name = name
        self.dead = False
        self.unhandled: list[str] = []
        """Errors that production would only have logged."""
        self._loop = loop
        self._rate = rate
        self._ready: deque[asyncio.Handle] = deque()
        self._scheduled = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """Tasks that are not done, in the order of their creation. The loop keeps them alive."""
        self._error: BaseException | None = None
        self._round_at = -1.0
        self._rounds = 0

    def __repr__(self) -> str:
        return f"<SimEventLoop of {self.name}>"

    # The clock

    def time(self) -> float:
        """The process's own clock."""
        return self._loop.now * self._rate

    # Callbacks

    def call_soon(  # type: ignore[override]  # the standard library types arguments one by one
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next round, at this virtual time."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not (self._scheduled or self.dead):
            self._scheduled = True
            self._loop.at(self._loop.now, self._run_round)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # the same
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next round: there are no other threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]  # the same
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback after so many seconds of this clock."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # the same
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback when this clock shows the time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            self._loop.at(max(when / self._rate, self._loop.now) + LATE_S, self._expire, timer)
        return timer

    def _expire(self, timer: asyncio.TimerHandle) -> None:
        if not self.dead and not timer.cancelled():
            self._ready.append(timer)
            if not self._scheduled:
                self._scheduled = True
                self._run_round()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A timer was cancelled: it stays in the queue of events, and does nothing."""

    def _run_round(self) -> None:
        self._scheduled = False
        if self.dead:
            return
        if self._loop.now > self._round_at:
            self._round_at, self._rounds = self._loop.now, 0
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise Violation("Livelock", f"{self.name} runs {self._ready[0]} and others without end")
        with self.running():
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 - what event loops do
                    if self.dead or self._error is not None:
                        break  # a callback has crashed this very process, or has failed
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._ready and not self._scheduled and not self.dead:
            self._scheduled = True
            self._loop.at(self._loop.now, self._run_round)

    @contextlib.contextmanager
    def running(self) -> Generator[None, None, None]:
        """Be the running event loop, as code of this process expects."""
        hooks = sys.get_asyncgen_hooks()
        _set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._finalize)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(None)

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an async generator that was dropped, as asyncio does."""
        if not self.dead:
            self.create_task(generator.aclose())

    # Futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Begin a task. In a dead process it never runs."""
        task = asyncio.Task(coro, loop=self, name=name or self.name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - `close` ends it
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    # The end

    def kill(self) -> None:
        """The process dies. Nothing of it runs any more."""
        self.dead = True

    def close(self) -> None:
        """Unwind what is left of a process, after the run: cancel its tasks until there are none."""
        self.kill()
        for _ in range(UNWIND_ROUNDS):
            if not self._tasks:
                break
            for task in list(self._tasks):
                task.cancel()
            with self.running():
                while self._ready:
                    self._ready.popleft()._run()  # noqa: SLF001 - what event loops do
        self._ready.clear()
        self._error = None
        self.unhandled.clear()

    # What asyncio asks of a loop

    def is_running(self) -> bool:
        """Whether its process is alive."""
        return not self.dead

    def is_closed(self) -> bool:
        """Whether it is closed: never, for its own coroutines."""
        return False

    def get_debug(self) -> bool:
        """Whether asyncio's debug mode is on."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the run by what a callback raised; remember what production would only log."""
        error = context.get("exception")
        if "handle" in context and error is not None:
            self._error = error
        elif not self.dead:
            self.unhandled.append(f"{self.name}: {context.get('message')}: {error!r}")
