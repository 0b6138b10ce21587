"""Run plans in threads: every step blocks. `tasks` has the same for event loops."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.effects import Ask, Effect, Emit, Failure, Next, Open, Plan, ReplyStream, Wait, failed
from wbkv.links.tasks import AsyncLink

T = TypeVar("T")


class Link(Protocol):
    """Carries calls for threads."""

    def ask(self, ask: Ask) -> Message | Failure:
        """Send a request, and wait for its response."""

    def open(self, open_: Open) -> ReplyStream:
        """Open a stream."""

    def next(self, stream: Any, timeout_s: float) -> Message | Failure | None:
        """Return the next message; None at the end. Raises `queue.Empty` if none arrives in time."""

    async def in_loop(self) -> AsyncLink:
        """Return a link to the same nodes for the running event loop."""

    def close(self) -> None:
        """Close the link."""


def run(link: Link, plan: Plan[T]) -> T:
    """Run a plan, and return its result."""
    answer: Any = None
    try:
        while True:
            effect = plan.send(answer)
            if type(effect) is Ask:
                answer = link.ask(effect)
            else:
                assert type(effect) is Wait
                time.sleep(effect.seconds)
                answer = None
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        plan.close()


class Puller(Generic[T]):
    """Runs a plan that emits items, one item at a time."""

    def __init__(self, link: Link, plan: Plan[None]) -> None:
        self._link = link
        self._plan = plan
        self._lock = threading.Lock()
        """Held while the plan runs."""
        self._effect: Effect | None = None
        """The effect to perform before the plan continues. A caller's time limit may have ended before it."""
        self._deadline = 0.0
        """When the next message must have arrived."""
        self._closed = False

    def pull(self, timeout_s: float | None = None) -> T:
        """Return the next item. Raises `StopIteration` at the end, `queue.Empty` if none arrives in time."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            answer: Any = None
            while True:
                if self._effect is not None and not self._closed:
                    answer = self._perform(self._effect, until)
                    self._effect = None
                if self._closed:
                    self._plan.close()
                    raise StopIteration
                effect = self._plan.send(answer)
                answer = None
                if type(effect) is Emit:
                    item: T = effect.item
                    return item
                if type(effect) is Next:
                    self._deadline = time.monotonic() + effect.timeout_s
                self._effect = effect

    def _perform(self, effect: Effect, until: float | None) -> Any:
        if type(effect) is Next:
            return self._next(effect, until)
        if type(effect) is Open:
            return self._link.open(effect)
        if type(effect) is Ask:
            return self._link.ask(effect)
        assert type(effect) is Wait
        time.sleep(effect.seconds)
        return None

    def _next(self, effect: Next, until: float | None) -> Message | Failure | None:
        now = time.monotonic()
        if until is not None and until < self._deadline:
            return self._link.next(effect.stream, max(until - now, 0.0))
        try:
            return self._link.next(effect.stream, max(self._deadline - now, 0.0))
        except queue.Empty:
            return failed(ApiError.DEADLINE_PASSED, "no message arrived in time")

    def close(self) -> None:
        """End the plan. Another thread than the one that waits may call it."""
        self._closed = True
        effect = self._effect
        if type(effect) is Next:
            effect.stream.cancel()  # wakes the thread that waits for it
        if self._lock.acquire(blocking=False):
            try:
                self._plan.close()
            finally:
                self._lock.release()


class Repeater:
    """Calls a function at intervals, in a thread of its own, until that returns False or `stop` is called."""

    def __init__(self, function: Callable[[], bool], interval_s: float, name: str) -> None:
        self._stopped = threading.Event()
        self._function = function
        self._interval_s = interval_s
        threading.Thread(target=self._repeat, name=name, daemon=True).start()

    def _repeat(self) -> None:
        while not self._stopped.wait(self._interval_s) and self._function():
            pass

    def stop(self) -> None:
        """Stop calling the function."""
        self._stopped.set()
