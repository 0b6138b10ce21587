"""How plans are run by threads: every step waits."""

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
    """What carries calls, and lets threads wait for them."""

    def ask(self, ask: Ask) -> Message | Failure:
        """One request, one response."""

    def open(self, open_: Open) -> ReplyStream:
        """Begin a stream."""

    def next(self, stream: Any, timeout_s: float) -> Message | Failure | None:
        """Its next message; None at its end. Raises `queue.Empty` if none has come in time."""

    async def in_loop(self) -> AsyncLink:
        """The same nodes, for the running event loop."""

    def close(self) -> None:
        """No more calls."""


def run(link: Link, plan: Plan[T]) -> T:
    """Carry a plan out."""
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
    """Carries out a plan that emits things, as far as they are wanted."""

    def __init__(self, link: Link, plan: Plan[None]) -> None:
        self._link = link
        self._plan = plan
        self._lock = threading.Lock()
        """Held while the plan is carried on."""
        self._effect: Effect | None = None
        """What is to be done before the plan goes on: whoever wanted it may not have waited so long."""
        self._deadline = 0.0
        """Of what is to come next."""
        self._closed = False

    def pull(self, timeout_s: float | None = None) -> T:
        """The next thing. Raises `StopIteration` at the end, `queue.Empty` if there is none in time."""
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
            return failed(ApiError.DEADLINE_PASSED, "nothing came in time")

    def close(self) -> None:
        """No more is wanted: also from another thread than the one that waits."""
        self._closed = True
        effect = self._effect
        if type(effect) is Next:
            effect.stream.cancel()  # wakes whoever waits for it
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
        """Do not call it again."""
        self._stopped.set()
