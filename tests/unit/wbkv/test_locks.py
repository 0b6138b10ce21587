"""Locks: one holder at a time, tokens that rise, and what a holder that was paused can still do: nothing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import wbkv
from wbkv.core.effects import Ask, Failure, Open, Plan
from wbkv.core.locks import Holding
from wbkv.core.requests import Requests

from tests.unit.wbkv.model import Clock, ModelLink, drive, lost, times

TTL_S = 9.0


def holding(requests: Requests[bytes]) -> Holding:
    return Holding(requests, "lock", TTL_S)


def acquire(link: ModelLink, lock: Holding, timeout_s: float | None = 0.0) -> bool:
    return bool(drive(link, lock.acquire(timeout_s)))


def held_by(link: ModelLink) -> int:
    """The token, by the store."""
    return link.store.at(b"lock")[2]


def test_one_holder_at_a_time(link: ModelLink, requests: Requests[bytes]) -> None:
    one, other = holding(requests), holding(requests)
    assert acquire(link, one)
    assert one.token == held_by(link)
    assert not acquire(link, other)
    assert other.token == 0
    assert drive(link, one.release())
    assert one.token == 0
    assert acquire(link, other)
    assert other.token == held_by(link)


def test_tokens_rise(link: ModelLink, clock: Clock, requests: Requests[bytes]) -> None:
    tokens = []
    for number in range(6):
        lock = holding(requests)
        assert acquire(link, lock, None)
        tokens.append(lock.token)
        if number % 2:
            drive(link, lock.release())  # or it is taken over
    assert tokens == sorted(set(tokens))


def test_a_dead_holder_is_waited_for_as_long_as_it_promised(
    link: ModelLink, clock: Clock, requests: Requests[bytes]
) -> None:
    dead, waiter = Holding(requests, "lock", 30.0), Holding(requests, "lock", 1.0)
    assert acquire(link, dead)
    assert not acquire(link, waiter, 29.0)
    begun = clock.now
    assert acquire(link, waiter, None)
    assert 30.0 <= clock.now - begun < 31.0
    assert waiter.token == held_by(link) > dead.token


def test_a_holder_that_renews_is_never_taken_over(link: ModelLink, requests: Requests[bytes]) -> None:
    lock, waiter = holding(requests), holding(requests)
    assert acquire(link, lock)
    wait = link.clock.sleep

    def sleep(seconds: float) -> None:
        before = link.clock.now
        wait(seconds)
        if int(before / (TTL_S / 3)) != int(link.clock.now / (TTL_S / 3)):
            assert drive(link, lock.renew())

    link.clock.sleep = sleep  # type: ignore[method-assign]  # the holder renews while the other waits
    assert not acquire(link, waiter, 60.0)
    assert not lock.lost
    assert lock.token == held_by(link)


def test_a_lost_lock_is_known_to_be_lost(link: ModelLink, clock: Clock, requests: Requests[bytes]) -> None:
    lock, other = holding(requests), holding(requests)
    assert acquire(link, lock)
    condition = lock.condition()
    clock.now += TTL_S - 0.01
    was_lost = lock.lost
    clock.now += 0.01
    assert (was_lost, lock.lost) == (False, True)
    assert acquire(link, other, None)
    result = drive(link, requests.transact((condition,), (wbkv.put("guarded", b""),), (), None))
    assert not result.succeeded
    assert not drive(link, lock.renew())
    assert not drive(link, lock.release())
    assert other.token == held_by(link)
    result = drive(link, requests.transact((other.condition(),), (wbkv.put("guarded", b""),), (), None))
    assert result.succeeded


def test_a_renewal_that_finds_another_holder_says_so_at_once(
    link: ModelLink, requests: Requests[bytes]
) -> None:
    lock = holding(requests)
    assert acquire(link, lock)
    link.store.put(b"lock", None)
    assert not drive(link, lock.renew())
    assert lock.lost


def test_a_renewal_that_cannot_be_made_loses_it_in_time(link: ModelLink, requests: Requests[bytes]) -> None:
    lock = holding(requests)
    assert acquire(link, lock)
    link.before = lambda asked: lost(begun=False)
    begun = link.clock.now
    assert not drive(link, lock.renew())
    assert link.clock.now - begun <= TTL_S + 0.1
    assert lock.lost


@pytest.mark.parametrize("taken_over", [False, True])
def test_an_acquisition_without_an_answer_is_found_again(
    link: ModelLink,
    clock: Clock,
    requests: Requests[bytes],
    taken_over: bool,  # noqa: FBT001 - a case
) -> None:
    """It was executed, but all answers were lost until its time was over."""
    if taken_over:
        assert acquire(link, holding(requests))
    before = held_by(link)
    deadline: list[float] = []

    def losing(asked: Ask | Open) -> Failure | None:
        if held_by(link) == before or (deadline and clock.now > deadline[0]):
            return None
        if not deadline:
            deadline.append(clock.now + requests.calls.timeout_s)
        return lost()

    link.after = losing
    lock = holding(requests)
    assert acquire(link, lock, None)
    assert lock.token == held_by(link)
    assert not lock.lost  # by a renewal: the age of the acquisition is unknown
    assert link.store.at(b"lock")[3] == 2


def test_no_answers_at_all(link: ModelLink, requests: Requests[bytes]) -> None:
    link.before = lambda asked: lost()
    lock = holding(requests)
    with pytest.raises(wbkv.OutcomeUnknown):
        acquire(link, lock, None)
    assert lock.token == 0
    link.before = lambda asked: lost(begun=False)
    with pytest.raises(wbkv.Unavailable):
        acquire(link, lock, None)


def test_what_is_no_lock_is_waited_for_like_one(link: ModelLink, requests: Requests[bytes]) -> None:
    for value in (b"", b"x", b'{"ttl": -1}', b'{"ttl": "x"}', b"[]", json.dumps({"ttl": 2.0}).encode()):
        link.store.put(b"lock", value)
        lock = holding(requests)
        assert acquire(link, lock, None)


def test_misuse(link: ModelLink, requests: Requests[bytes]) -> None:
    for ttl in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="ttl"):
            Holding(requests, "lock", ttl)
    lock = holding(requests)
    with pytest.raises(wbkv.LockLost):
        lock.condition()
    with pytest.raises(wbkv.LockLost, match="never acquired"):
        drive(link, lock.release())
    assert acquire(link, lock)
    with pytest.raises(ValueError, match="held already"):
        acquire(link, lock)


def test_a_release_without_an_answer(link: ModelLink, requests: Requests[bytes]) -> None:
    lock = holding(requests)
    assert acquire(link, lock)
    link.after = times(1, lost(), method="Txn")
    assert drive(link, lock.release())
    assert held_by(link) == 0


def at_once(asked: Ask | Open) -> None:
    """Answers take no time."""


def _answers_take(link: ModelLink, seconds: float) -> None:
    """The answer to the next write arrives that late, within the grace that links give to a node."""
    late = [seconds]

    def pause(asked: Ask | Open) -> None:
        if late:
            link.clock.now += late.pop()

    link.after = pause


def a_late_renewal(kind: type[Holding], link: ModelLink, requests: Requests[bytes]) -> None:
    """A user sees that the lock is lost. The answer to a renewal arrives after that: it stays lost."""
    lock, other = kind(requests, "lock", TTL_S), holding(requests)
    assert acquire(link, lock)
    link.clock.now += TTL_S / 2
    _answers_take(link, TTL_S / 2 + 0.1)
    assert not drive(link, lock.renew())
    assert lock.lost
    assert not acquire(link, other), "by the store it was renewed"


def a_late_acquisition(kind: type[Holding], link: ModelLink, requests: Requests[bytes]) -> None:
    """What is held when `acquire` returns is not lost, however long the answer has taken."""
    lock = kind(requests, "lock", TTL_S)
    _answers_take(link, TTL_S)
    assert acquire(link, lock, None)
    assert not lock.lost
    assert lock.token == held_by(link)


def the_time_of_a_request(kind: type[Holding], link: ModelLink, requests: Requests[bytes]) -> None:
    """A waiter that has seen the write at once takes over when its time to live has passed since."""
    lock, other = kind(requests, "lock", TTL_S), holding(requests)
    waiting: list[bool] = []

    def seen(asked: Ask | Open) -> None:
        link.after = at_once
        waiting.append(acquire(link, other))  # it looks, before the answer reaches the holder
        link.clock.now += TTL_S / 2

    link.after = seen
    assert acquire(link, lock)
    link.clock.now += TTL_S / 2
    assert not any(waiting)
    assert lock.lost


class HoldsWhatWasLost(Holding):
    """The answer to a renewal brings back a lock that counted as lost."""

    def renew(self) -> Plan[bool]:
        asked = self._now()
        held = yield from super().renew()
        self._safe_until = asked + self.ttl_s
        return held


class TakesWhatIsLost(Holding):
    """A lock is taken although the answer has taken longer than its time to live."""

    def _taken(self, token: int, asked: float) -> bool:
        self.token, self._safe_until = token, asked + self.ttl_s
        return True


class HoldsFromTheAnswer(Holding):
    """The time to live counts from the answer."""

    def _taken(self, token: int, asked: float) -> bool:
        return super()._taken(token, self._now())


@pytest.mark.parametrize(
    ("mutant", "schedule"),
    [
        (HoldsWhatWasLost, a_late_renewal),
        (TakesWhatIsLost, a_late_acquisition),
        (HoldsFromTheAnswer, the_time_of_a_request),
    ],
    ids=lambda value: value.__name__,
)
def test_late_answers(
    mutant: type[Holding],
    schedule: Callable[[type[Holding], ModelLink, Requests[bytes]], None],
    link: ModelLink,
    requests: Requests[bytes],
) -> None:
    """Locks come through the schedule, and a mutant does not."""
    schedule(Holding, link, requests)
    link.after = at_once
    link.store.put(b"lock", None)
    with pytest.raises(AssertionError):
        schedule(mutant, link, requests)
