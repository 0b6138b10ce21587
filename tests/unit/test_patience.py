"""How long to wait before asking again: what answers took, within bounds, and not all at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multicast.patience import ASKED_AGAIN_MIN, ASKED_AGAIN_SHARE, LONGEST, Patience, Unanswered


@dataclass(eq=False, slots=True)
class Thing:
    name: int
    asked_at: float = 0.0
    retries: int = 0
    answered: bool = False


def waiting(shortest_s: float = 1.0) -> Unanswered[Thing]:
    return Unanswered(shortest_s, lambda thing: not thing.answered)


def ask_again(unanswered: Unanswered[Thing], now: float) -> list[int]:
    found = unanswered.overdue(now)
    for thing in found:
        thing.retries += 1
        unanswered.asked(thing, now)
    return [thing.name for thing in found]


def asked(unanswered: Unanswered[Thing], count: int, now: float = 0.0) -> list[Thing]:
    things = [Thing(name) for name in range(count)]
    for thing in things:
        unanswered.asked(thing, now)
    return things


# How long


def test_who_knows_nothing_or_is_answered_fast_waits_for_the_shortest_time() -> None:
    patience = Patience(0.25)
    assert patience.seconds == 0.25
    for _ in range(100):
        patience.answered(0.01)
    assert patience.seconds == 0.25


def test_slow_answers_are_waited_for() -> None:
    patience = Patience(0.25)
    rng = random.Random(1)
    late = 0
    for number in range(2000):
        took = rng.uniform(0.4, 0.8)
        late += number > 20 and took > patience.seconds
        patience.answered(took)
    assert late == 0
    assert 0.8 < patience.seconds < LONGEST * 0.25


def test_the_time_falls_again_with_faster_answers() -> None:
    patience = Patience(0.25)
    for _ in range(50):
        patience.answered(1.5)
    assert patience.seconds > 1.0
    for _ in range(50):
        patience.answered(0.02)
    assert patience.seconds == 0.25


@given(st.lists(st.floats(0, 1000) | st.none(), max_size=50))
def test_the_time_is_bounded_whatever_happens(events: list[float | None]) -> None:
    patience = Patience(0.25)
    now = 0.0
    for took in events:
        now += 10
        if took is None:
            patience.in_vain(now)
        else:
            patience.answered(took)
        for times in range(20):
            assert 0.25 <= patience.after(times) <= LONGEST * 0.25


def test_who_asks_in_vain_waits_twice_as_long_once_in_that_time() -> None:
    patience = Patience(1.0)
    for now, seconds in ((1.0, 2.0), (1.5, 2.0), (2.9, 2.0), (3.0, 4.0), (6.9, 4.0), (7.0, 8.0), (99.0, 8.0)):
        patience.in_vain(now)
        assert patience.seconds == seconds
    assert patience.after(1) == 1.0, "what was asked again already goes by what answers take"
    patience.answered(0.1)
    assert patience.seconds == 1.0, "an answer tells better"


# Which


def test_what_is_due_is_asked_again_and_nothing_else() -> None:
    unanswered = waiting()
    first, second = asked(unanswered, 2)
    late = Thing(2)
    unanswered.asked(late, 0.5)
    first.answered = True
    assert ask_again(unanswered, 0.99) == []
    assert ask_again(unanswered, 1.0) == [second.name]
    second.answered = True
    assert unanswered.wake_at() == 2.5, "asking in vain has doubled it"
    assert ask_again(unanswered, 2.5) == [late.name]
    late.answered = True
    assert unanswered.wake_at() is None


def test_what_was_asked_again_elsewhere_waits_anew() -> None:
    unanswered = waiting()
    one, two = asked(unanswered, 2)
    unanswered.asked(one, 0.7)
    assert ask_again(unanswered, 1.0) == [two.name]
    assert ask_again(unanswered, 1.5) == []


def test_what_is_not_to_be_asked_again_is_not() -> None:
    unanswered = waiting()
    (one,) = asked(unanswered, 1)
    one.asked_at = float("inf")
    assert ask_again(unanswered, 99.0) == []
    assert unanswered.wake_at() is None


def test_of_many_the_oldest_are_asked_again_and_all_of_them_in_time() -> None:
    unanswered = waiting()
    asked(unanswered, 3 * ASKED_AGAIN_MIN)
    rounds = [ask_again(unanswered, 1.0 + turn / 10) for turn in range(4)]
    names = list(range(3 * ASKED_AGAIN_MIN))
    assert rounds == [
        names[:ASKED_AGAIN_MIN],
        names[ASKED_AGAIN_MIN:-ASKED_AGAIN_MIN],
        names[-ASKED_AGAIN_MIN:],
        [],
    ]


def test_where_much_is_answered_more_is_asked_again() -> None:
    unanswered = waiting()
    things = asked(unanswered, 4000)
    for thing in things[:2000]:
        thing.answered = True
    assert len(ask_again(unanswered, 1.0)) == 2000 // ASKED_AGAIN_SHARE
    assert len(ask_again(unanswered, 1.1)) == ASKED_AGAIN_MIN


def test_a_crowd_that_waits_is_not_looked_at() -> None:
    looked = 0

    def is_open(_: Thing) -> bool:
        nonlocal looked
        looked += 1
        return True

    unanswered: Unanswered[Thing] = Unanswered(1.0, is_open)
    asked(unanswered, 10_000, now=5.0)
    for turn in range(10):
        assert unanswered.overdue(5.0 + turn / 20) == []
    assert looked <= 20
    unanswered.overdue(6.0)
    assert looked <= 30 + 2 * ASKED_AGAIN_MIN


@pytest.mark.parametrize("latency_s", [0.1, 0.4, 0.9, 1.6])
def test_a_constant_load_that_takes_long_is_soon_not_repeated(latency_s: float) -> None:
    """From the first message on, everything takes so long: who never hears of a first try must learn too."""
    unanswered = waiting(0.25)
    under_way: list[Thing] = []
    again = [0, 0]
    for turn in range(200):
        now = turn / 10
        while under_way and under_way[0].name / 100 + latency_s <= now:
            thing = under_way.pop(0)
            thing.answered = True
            if not thing.retries:
                unanswered.patience.answered(now - thing.asked_at)
        again[turn >= 100] += len(ask_again(unanswered, now))
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
            ask_again(unanswered, now)
    before = {name: thing.retries for name, thing in things.items()}
    ask_again(unanswered, now + LONGEST)
    for name, thing in things.items():
        assert thing.retries == before[name] + (not thing.answered)
