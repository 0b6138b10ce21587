"""Closed and open loops, in virtual time, against servers that answer, stall or fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from benchmarks.load.loops import PAUSE_S, ClosedLoop, Loop, OpenLoop
from benchmarks.load.tally import Tally

Answer: TypeAlias = "asyncio.Future[Any]"


class Virtual(asyncio.SelectorEventLoop):
    """An event loop in which time passes when there is nothing to do, and only then."""

    virtual_s = 0.0

    def time(self) -> float:
        return self.virtual_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]  # asyncio's own
            self.virtual_s = max(self.virtual_s, self._scheduled[0].when())  # type: ignore[attr-defined]  # private
        super()._run_once()  # type: ignore[misc]  # private, too


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of a coroutine, which must leave no exception behind."""

    def run() -> None:
        problems: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=Virtual) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
            runner.run(test())
        assert not problems

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


class Server:
    """Answers after a fixed time; a message that comes in a stall waits for its end first."""

    def __init__(self, latency_s: float, stall: tuple[float, float] = (-1.0, -1.0)) -> None:
        self.latency_s = latency_s
        self.stall = stall
        self.came: list[float] = []
        self.in_flight = self.most = 0

    def send(self, dest: tuple[int, ...]) -> Answer:
        events = asyncio.get_running_loop()
        self.came.append(now())
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        begins, ends = self.stall
        end = (ends if begins <= now() < ends else now()) + self.latency_s
        answer: Answer = events.create_future()
        events.call_at(end, self._answer, answer)
        return answer

    def _answer(self, answer: Answer) -> None:
        self.in_flight -= 1
        answer.set_result(None)


def here() -> tuple[int, ...]:
    return (0,)


def tally(rounds: int = 2, seconds: float = 1.0, *, by_start: bool = False) -> Tally:
    return Tally(0.0, seconds, rounds, by_start=by_start)


def open_loop(send: Callable[[tuple[int, ...]], Answer], into: Tally, **options: Any) -> OpenLoop:
    usual: dict[str, Any] = {"rate": 100.0, "rng": random.Random(1), "in_flight": None, "now": now}
    return OpenLoop(send, here, into, **(usual | options))


async def play(loop: Loop, seconds: float) -> None:
    loop.start()
    await asyncio.sleep(seconds)
    loop.stop()


# Closed loops


@in_virtual_time
async def test_a_closed_loop_keeps_as_many_in_flight_as_it_is_told() -> None:
    server, found = Server(0.1), tally()
    loop = ClosedLoop(server.send, here, found, in_flight=5, now=now)
    await play(loop, 2.05)
    assert server.most == server.in_flight == 5
    assert not loop.idle.is_set()
    await loop.idle.wait()
    assert server.in_flight == 0
    assert sum(found.answered) == 5 * 19  # those of the very end are of no round
    assert len(server.came) == 5 * 21


@in_virtual_time
async def test_the_first_messages_are_spread() -> None:
    server = Server(100.0)
    loop = ClosedLoop(server.send, here, tally(), in_flight=4, ramp_s=1.0, now=now)
    await play(loop, 2.0)
    assert server.came == [0.0, 0.25, 0.5, 0.75]


@in_virtual_time
async def test_errors_are_counted_by_kind_and_make_the_loop_pause() -> None:
    found, asked = tally(), list[float]()

    def send(dest: tuple[int, ...]) -> Answer:
        asked.append(now())
        if len(asked) % 3 == 0:
            raise ConnectionError("closed")
        answer: Answer = asyncio.get_running_loop().create_future()
        if len(asked) % 3 == 1:
            answer.set_exception(TimeoutError("too late"))
        else:
            answer.cancel()
        return answer

    loop = ClosedLoop(send, here, found, in_flight=1, now=now)
    await play(loop, 6.5 * PAUSE_S)
    await loop.idle.wait()
    assert found.errors == {"TimeoutError": 3, "cancelled": 2, "ConnectionError": 2}
    assert asked == pytest.approx([n * PAUSE_S for n in range(7)])
    assert found.answered == [0, 0]


@in_virtual_time
async def test_whoever_is_not_answered_is_given_up_and_replaced() -> None:
    found, answers = tally(10), list[Answer]()

    def send(dest: tuple[int, ...]) -> Answer:
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    loop = ClosedLoop(send, here, found, in_flight=2, patience_s=3.0, now=now)
    loop.start()
    for _ in range(4):
        await asyncio.sleep(0.99)
        loop.sweep()
    assert found.errors == {"unanswered": 2}
    await asyncio.sleep(PAUSE_S)
    assert len(answers) == 4
    answers[0].set_result(None)  # too late to count
    answers[1].set_exception(TimeoutError())  # after it was given up
    answers[2].set_result(None)
    await asyncio.sleep(PAUSE_S)
    assert sum(found.answered) == 1
    loop.stop()
    loop.give_up()
    assert loop.idle.is_set()
    assert found.errors == {"unanswered": 4}


# Open loops


@in_virtual_time
async def test_an_open_loop_sends_at_its_rate_whatever_the_server_does() -> None:
    times = []
    for server in (Server(0.001), Server(50.0)):
        began = now()
        loop = open_loop(server.send, tally(), rng=random.Random(7))
        await play(loop, 20.0)
        assert (loop.late, loop.unsent) == (0, 0)
        times.append([at - began for at in server.came])
    assert times[0] == pytest.approx(times[1], abs=0.002)
    assert len(times[0]) == pytest.approx(2000, rel=0.1)


@in_virtual_time
async def test_a_stall_shows_in_the_latencies_of_an_open_loop_and_not_of_a_closed_one() -> None:
    """A server stops for one of ten seconds: a tenth of the messages wait, half a second on average."""
    stall = (4.0, 5.0)
    hidden, shown = tally(1, 10.0), tally(1, 10.0, by_start=True)
    loop: Loop = ClosedLoop(Server(0.01, stall).send, here, hidden, in_flight=1, now=now)
    await play(loop, 10.0)
    await loop.idle.wait()
    began = now()
    later = Server(0.01, (began + stall[0], began + stall[1]))
    shown._first = began
    loop = open_loop(later.send, shown)
    await play(loop, 10.0)
    await loop.idle.wait()
    assert hidden.latencies[0].percentile_s(99) == pytest.approx(0.01, rel=0.01)
    assert hidden.latencies[0].mean_s < 0.02
    assert shown.latencies[0].percentile_s(50) < 0.015
    assert shown.latencies[0].percentile_s(95) > 0.3
    assert 0.03 < shown.latencies[0].mean_s < 0.1
    assert loop.late == 0


@in_virtual_time
async def test_without_room_messages_are_late_and_latency_counts_from_their_time() -> None:
    """Ten in flight for a second each is ten per second, and a hundred per second want to be sent."""
    server, found = Server(1.0), tally(1, 10.0, by_start=True)
    loop = open_loop(server.send, found, in_flight=10)
    await play(loop, 10.0)
    sent = len(server.came)
    await loop.idle.wait()
    assert server.most == 10
    assert len(server.came) == sent
    assert 90 <= sent <= 110
    assert sent + loop.unsent == pytest.approx(1000, rel=0.1)
    assert loop.late >= sent - 10
    # The hundredth was to be sent after one second, and was after nine or so.
    assert found.latencies[0].count == sent
    assert found.latencies[0].max_s > 8.0


@in_virtual_time
async def test_what_an_open_loop_sends_late_is_counted() -> None:
    began, server = now(), Server(0.001)
    loop = open_loop(server.send, tally(), rate=10.0)
    loop.start()
    events = asyncio.get_running_loop()
    assert isinstance(events, Virtual)
    events.virtual_s += 1.0  # the process had something else to do
    await asyncio.sleep(0.001)
    due = [at for at in server.came if at - began >= 1.0]
    assert len(due) >= 3
    assert loop.late == len(due)
    loop.stop()


@in_virtual_time
async def test_errors_of_an_open_loop_do_not_hold_it_up() -> None:
    found = tally(1, 5.0)

    def send(dest: tuple[int, ...]) -> Answer:
        raise ConnectionError("closed")

    loop = open_loop(send, found, in_flight=1)
    await play(loop, 5.0)
    await loop.idle.wait()
    assert found.errors["ConnectionError"] == pytest.approx(500, rel=0.15)
    assert loop.unsent == 0
