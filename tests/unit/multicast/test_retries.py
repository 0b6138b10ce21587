"""How long to wait before asking again: what answers took, within bounds, and not all at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multicast.retries import LONGEST_FACTOR, RETRIES_MIN, RETRIES_SHARE, RetryQueue, RetryTimeout


@dataclass(eq=False, slots=True)
class Thing:
    name: int
    asked_at: float = 0.0
    retries: int = 0
    answered: bool = False


def waiting(shortest_s: float = 1.0) -> RetryQueue[Thing]:
    return RetryQueue(shortest_s, lambda thing: not thing.answered)


def retry(unanswered: RetryQueue[Thing], now: float) -> list[int]:
    found = unanswered.overdue(now)
    for thing in found:
        thing.retries += 1
        unanswered.asked(thing, now)
    return [thing.name for thing in found]


def asked(unanswered: RetryQueue[Thing], count: int, now: float = 0.0) -> list[Thing]:
    things = [Thing(name) for name in range(count)]
    for thing in things:
        unanswered.asked(thing, now)
    return things


# How long


def test_who_knows_nothing_or_is_answered_fast_waits_for_the_shortest_time() -> None:
    timeout = RetryTimeout(0.25)
    assert timeout.seconds == 0.25
    for _ in range(100):
        timeout.answered(0.01)
    assert timeout.seconds == 0.25


def test_slow_answers_are_waited_for() -> None:
    timeout = RetryTimeout(0.25)
    rng = random.Random(1)
    late = 0
    for number in range(2000):
        took = rng.uniform(0.4, 0.8)
        late += number > 20 and took > timeout.seconds
        timeout.answered(took)
    assert late == 0
    assert 0.8 < timeout.seconds < LONGEST_FACTOR * 0.25


def test_the_time_falls_again_with_faster_answers() -> None:
    timeout = RetryTimeout(0.25)
    for _ in range(50):
        timeout.answered(1.5)
    assert timeout.seconds > 1.0
    for _ in range(50):
        timeout.answered(0.02)
    assert timeout.seconds == 0.25


@given(st.lists(st.floats(0, 1000) | st.none(), max_size=50))
def test_the_time_is_bounded_whatever_happens(events: list[float | None]) -> None:
    timeout = RetryTimeout(0.25)
    now = 0.0
    for took in events:
        now += 10
        if took is None:
            timeout.timed_out(now)
        else:
            timeout.answered(took)
        for times in range(20):
            assert 0.25 <= timeout.after(times) <= LONGEST_FACTOR * 0.25


def test_who_asks_in_vain_waits_twice_as_long_once_in_that_time() -> None:
    timeout = RetryTimeout(1.0)
    for now, seconds in ((1.0, 2.0), (1.5, 2.0), (2.9, 2.0), (3.0, 4.0), (6.9, 4.0), (7.0, 8.0), (99.0, 8.0)):
        timeout.timed_out(now)
        assert timeout.seconds == seconds
    assert timeout.after(1) == 1.0, "what was asked again already goes by what answers take"
    timeout.answered(0.1)
    assert timeout.seconds == 1.0, "an answer tells better"


# Which


def test_what_is_due_is_asked_again_and_nothing_else() -> None:
    unanswered = waiting()
    first, second = asked(unanswered, 2)
    late = Thing(2)
    unanswered.asked(late, 0.5)
    first.answered = True
    assert retry(unanswered, 0.99) == []
    assert retry(unanswered, 1.0) == [second.name]
    second.answered = True
    assert unanswered.wake_at() == 2.5, "asking in vain has doubled it"
    assert retry(unanswered, 2.5) == [late.name]
    late.answered = True
    assert unanswered.wake_at() is None


def test_what_was_asked_again_elsewhere_waits_anew() -> None:
    unanswered = waiting()
    one, two = asked(unanswered, 2)
    unanswered.asked(one, 0.7)
    assert retry(unanswered, 1.0) == [two.name]
    assert retry(unanswered, 1.5) == []


def test_what_is_not_to_be_asked_again_is_not() -> None:
    unanswered = waiting()
    (one,) = asked(unanswered, 1)
    one.asked_at = float("inf")
    assert retry(unanswered, 99.0) == []
    assert unanswered.wake_at() is None


def test_of_many_the_oldest_are_asked_again_and_all_of_them_in_time() -> None:
    unanswered = waiting()
    asked(unanswered, 3 * RETRIES_MIN)
    rounds = [retry(unanswered, 1.0 + turn / 10) for turn in range(4)]
    names = list(range(3 * RETRIES_MIN))
    assert rounds == [names[:RETRIES_MIN], names[RETRIES_MIN:-RETRIES_MIN], names[-RETRIES_MIN:], []]


def test_where_much_is_answered_more_is_asked_again() -> None:
    unanswered = waiting()
    things = asked(unanswered, 4000)
    for thing in things[:2000]:
        thing.answered = True
    assert len(retry(unanswered, 1.0)) == 2000 // RETRIES_SHARE
    assert len(retry(unanswered, 1.1)) == RETRIES_MIN


def test_a_crowd_that_waits_is_not_looked_at() -> None:
    looked = 0

    def is_open(_: Thing) -> bool:
        nonlocal looked
        looked += 1
        return True

    unanswered: RetryQueue[Thing] = RetryQueue(1.0, is_open)
    asked(unanswered, 10_000, now=5.0)
    for turn in range(10):
        assert unanswered.overdue(5.0 + turn / 20) == []
    assert looked <= 20
    unanswered.overdue(6.0)
    assert looked <= 30 + 2 * RETRIES_MIN


@pytest.mark.parametrize("latency_s", [0.1, 0.4, 0.9, 1.6])
def test_a_constant_load_that_takes_long_is_soon_not_repeated(latency_s: float) -> None:
    """Every answer takes this long from the start: the time-out must grow without a measured answer."""
    unanswered = waiting(0.25)
    under_way: list[Thing] = []
    again = [0, 0]
    for turn in range(200):
        now = turn / 10
        while under_way and under_way[0].name / 100 + latency_s <= now:
            thing = under_way.pop(0)
            thing.answered = True
            if not thing.retries:
                unanswered.timeout.answered(now - thing.asked_at)
        again[turn >= 100] += len(retry(unanswered, now))
        for number in range(10):
            thing = Thing(turn * 10 + number)
            under_way.append(thing)
            unanswered.asked(thing, now)
    assert again[0] < 1000
    assert again[1] == 0


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["ask", "answer", "tick"])), max_size=60))
def test_everything_that_waits_is_asked_again_in_the_end(steps: list[tuple[int, str]]) -> None:
    unanswered = waiting()
    things: dict[int, Thing] = {}
    now = 0.0
    for name, what in steps:
        now += 0.3
        if what == "ask" and name not in things:
            things[name] = Thing(name)
            unanswered.asked(things[name], now)
        elif what == "answer" and name in things:
            things[name].answered = True
        else:
            retry(unanswered, now)
    before = {name: thing.retries for name, thing in things.items()}
    retry(unanswered, now + LONGEST_FACTOR)
    for name, thing in things.items():
        assert thing.retries == before[name] + (not thing.answered)
