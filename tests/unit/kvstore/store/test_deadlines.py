"""Deadlines of calls, by a loop whose clock is an attribute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvstore.store.deadlines import GATHERED, TIMER_S, Deadlines, Waiter
from kvstore.store.errors import DeadlinePassed, OutcomeUnknown


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """As much of an event loop as deadlines use."""

    def __init__(self, futures: asyncio.AbstractEventLoop) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []
        self.create_future = futures.create_future

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(at, lambda: call(*arguments))
        self.timers.append(timer)
        return timer

    @property
    def set(self) -> list[float]:
        return [timer.at for timer in self.timers if not timer.cancelled]

    def pass_to(self, now: float, early_s: float = 0.0) -> None:
        """Let time pass, and call what is due; timers may fire early."""
        self.now = now
        for timer in [t for t in self.timers if not t.cancelled and t.at <= now + early_s]:
            timer.cancelled = True
            timer.call()


@pytest.fixture
def clock() -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    yield Clock(loop)
    loop.close()


def begin(deadlines: Deadlines, clock: Any, timeout_s: float, error: Any = DeadlinePassed) -> Any:
    waiter = Waiter(clock.create_future(), timeout_s, error)
    deadlines.add(waiter, clock)
    return waiter, waiter.future


def test_each_call_expires_in_its_time(clock: Any) -> None:
    deadlines = Deadlines()
    _, late = begin(deadlines, clock, 3.0, OutcomeUnknown)
    _, early = begin(deadlines, clock, 1.0)
    clock.pass_to(100.9)
    assert not early.done()
    clock.pass_to(101.0)
    assert str(early.exception()) == "no answer within 1 s"
    assert not late.done()
    clock.pass_to(103.0)
    assert isinstance(late.exception(), OutcomeUnknown)
    assert not deadlines
    assert not clock.set


def test_all_calls_share_a_timer(clock: Any) -> None:
    deadlines = Deadlines()
    for _ in range(10):
        begin(deadlines, clock, 5.0)
    assert len(clock.timers) == 1
    begin(deadlines, clock, 2.0)
    assert clock.set == [102.0]


def test_a_timer_that_fires_early_is_set_again(clock: Any) -> None:
    deadlines = Deadlines()
    _, future = begin(deadlines, clock, 1.0)
    clock.pass_to(100.9995, early_s=0.001)
    assert not future.done()
    assert clock.set == [pytest.approx(100.9995 + TIMER_S)]
    clock.pass_to(101.001)
    assert isinstance(future.exception(), DeadlinePassed)


def test_an_outcome_counts_once(clock: Any) -> None:
    deadlines = Deadlines()
    waiter, future = begin(deadlines, clock, 1.0)
    waiter("first")
    waiter(ValueError("second"))
    clock.pass_to(102.0)
    assert future.result() == "first"
    failed, future = begin(deadlines, clock, 1.0)
    failed(ValueError("first"))
    assert isinstance(future.exception(), ValueError)


def test_a_caller_that_gave_up_hears_nothing(clock: Any) -> None:
    deadlines = Deadlines()
    waiter, future = begin(deadlines, clock, 1.0)
    future.cancel()
    waiter("too late")
    _, other = begin(deadlines, clock, 1.0)
    other.cancel()
    clock.pass_to(102.0)
    assert future.cancelled()
    assert other.cancelled()


def test_what_was_answered_is_not_held(clock: Any) -> None:
    deadlines = Deadlines()
    waiter, _ = begin(deadlines, clock, 1.0)
    waiter("a large answer")
    assert waiter.future is None
    open_ = [begin(deadlines, clock, 50.0) for _ in range(10)]
    for _ in range(10 * GATHERED):
        begin(deadlines, clock, 10.0)[0]("done")
    assert len(deadlines) <= GATHERED
    clock.pass_to(150.0)
    assert all(isinstance(future.exception(), DeadlinePassed) for _, future in open_)


def test_many_open_calls_are_not_looked_at_by_each_other(clock: Any) -> None:
    # Dropping the answered ones looks at all: so it must become rarer the more are open.
    deadlines = Deadlines()
    looked = 0
    drop = deadlines._drop_answered

    def counted() -> None:
        nonlocal looked
        looked += len(deadlines)
        drop()

    deadlines._drop_answered = counted  # type: ignore[method-assign]  # to count
    count = 16 * GATHERED
    futures = [begin(deadlines, clock, 10.0)[1] for _ in range(count)]
    assert looked <= 2 * count
    assert len(deadlines) == count
    for future in futures:
        future.cancel()
