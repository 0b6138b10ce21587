"""Reservations: keys that starving interactive transactions have asked others not to write for a moment.

An interactive transaction commits if nothing that it read has changed. A slow one, beside fast writers of the
same keys, may never find such a moment. So after some conflicts its client reserves what it reads, at every
node: each node's service then holds back writes of these keys before they are ordered, until the transaction
has committed or the reservation ends.

A reservation delays requests, and does nothing else: it is volatile, known to one node, and not ordered. No
answer depends on it, so it can be lost, expire or be ignored at any time; the transaction still commits by
its conditions only. A request is delayed once, for at most `RESERVE_S`. Of two transactions that are in each
other's way, the one with the lower name goes first.

Any client can reserve everything. A node therefore delays requests for a share of the time only, `SHARE`,
after the first `BURST_S` seconds; for the rest of the time it ignores reservations. So a client that calls
again and again is delayed in few of its calls, whatever others reserve.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kvstore.machine.request import RANGE_OPERATIONS, Range, Transaction
from kvstore.store.errors import LimitExceeded, Overloaded

RESERVE_S: Final = 2.0
"""The longest time of a reservation, and the longest delay of a request."""

SHARE: Final = 0.25
"""The part of the time in which requests may be delayed, in the long run."""

BURST_S: Final = 8.0
"""Time in which requests may be delayed without a pause, after a long one."""

RESERVATIONS: Final = 32
"""Reservations that a node keeps at once."""

RESERVED: Final = 1024
"""Keys and ranges of one reservation."""

WAITING: Final = 1024
"""Requests that a node delays at once; further ones are not delayed."""


ALWAYS_FIRST: Final = 1
"""The name that goes before all others: that of a request that was delayed already."""


class _Keys:
    """A set of keys and ranges. Whether something is in it takes a few steps, however many there are."""

    __slots__ = ("_ends", "_keys", "_sorted", "_starts", "size")

    def __init__(self, keys: Iterable[bytes], ranges: Iterable[Range]) -> None:
        self._keys = frozenset(keys)
        self._sorted = sorted(self._keys)
        given = list(ranges)
        self.size = len(self._keys) + len(given)
        self._starts: list[bytes] = []
        self._ends: list[bytes | None] = []
        for start, end in sorted(given, key=lambda each: each.start):
            last = self._ends[-1] if self._ends else b""
            if self._ends and (last is None or start <= last):  # the ranges are kept disjoint
                if last is not None and (end is None or end > last):
                    self._ends[-1] = end
            else:
                self._starts.append(start)
                self._ends.append(end)

    def has(self, key: bytes) -> bool:
        if key in self._keys:
            return True
        at = bisect_right(self._starts, key) - 1
        return at >= 0 and ((end := self._ends[at]) is None or key < end)

    def meets(self, asked: Range) -> bool:
        """Whether a range has any of this in it."""
        start, end = asked
        at = bisect_left(self._sorted, start)
        if at < len(self._sorted) and (end is None or self._sorted[at] < end):
            return True
        at = (len(self._starts) if end is None else bisect_left(self._starts, end)) - 1
        return at >= 0 and ((last := self._ends[at]) is None or start < last)


@dataclass(slots=True)
class _Reservation:
    reserved: _Keys
    until: float
    waiting: dict[int, Callable[[], None]] = field(default_factory=dict)


class Reservations:
    """The reservations at one node, by name, and the requests that they delay.

    `now` is a monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._by_name: dict[int, _Reservation] = {}
        self._waiting = 0
        self._tokens = 0
        self._left_s = BURST_S
        """For how long requests may still be delayed, as of a time."""
        self._as_of: float | None = None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._by_name)

    def reserve(self, name: int, keys: Iterable[bytes], ranges: Iterable[Range], until: float) -> None:
        """Reserve keys and ranges until a time, in place of what the name had reserved before."""
        reserved = _Reservation(_Keys(keys, ranges), until)
        count = reserved.reserved.size
        if count > RESERVED:
            raise LimitExceeded(
                f"{count} keys and ranges exceed the limit of {RESERVED} of one reservation",
                *("reserved", RESERVED),
            )
        before = self._by_name.get(name)
        if before is not None:
            reserved.waiting = before.waiting
        elif len(self._by_name) >= RESERVATIONS:
            raise Overloaded(f"this node has {RESERVATIONS} reservations already; retry later")
        self._by_name[name] = reserved

    def release(self, name: int) -> None:
        """End a reservation: the requests that it delays go on."""
        reserved = self._by_name.pop(name, None)
        if reserved is not None:
            for go_on in tuple(reserved.waiting.values()):
                go_on()

    def expire(self, now: float) -> None:
        """End the reservations whose time has passed."""
        for name in [name for name, reserved in self._by_name.items() if reserved.until <= now]:
            self.release(name)

    def in_the_way(self, transaction: Transaction, name: int) -> int:
        """Return the name of a reservation that delays this transaction; 0 if there is none.

        `name` is the reservation of the transaction's own client, or 0.
        """
        if self._waiting >= WAITING or self._may_delay_s() <= 0:
            return 0
        for other, reserved in self._by_name.items():
            if (not name or other < name) and _writes(transaction, reserved.reserved):
                return other
        return 0

    def delay(self, name: int, go_on: Callable[[], None]) -> Callable[[], None]:
        """Call `go_on` once, when the reservation ends; or when the returned function is called."""
        self._tokens += 1
        token = self._tokens
        waiting = self._by_name[name].waiting
        self._may_delay_s()
        self._waiting += 1

        def end() -> None:
            if waiting.pop(token, None) is not None:
                self._may_delay_s()
                self._waiting -= 1
                go_on()

        waiting[token] = end
        return end

    def _may_delay_s(self) -> float:
        """Return for how long requests may still be delayed: less while any waits, more while none does."""
        now = self._now()
        passed_s = 0.0 if self._as_of is None else now - self._as_of
        self._as_of = now
        self._left_s = min(self._left_s + passed_s * (SHARE - (self._waiting > 0)), BURST_S)
        return self._left_s


def _writes(transaction: Transaction, reserved: _Keys) -> bool:
    """Whether a branch of the transaction writes anything that is reserved."""
    for operation in (*transaction.then, *transaction.otherwise):
        if operation.writes:
            if isinstance(operation, RANGE_OPERATIONS):
                if reserved.meets(operation.range):
                    return True
            elif reserved.has(operation.key):
                return True
    return False
