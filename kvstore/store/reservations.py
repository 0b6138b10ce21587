"""Reservations: keys that starving interactive transactions have asked others not to write for a moment.

An interactive transaction commits if nothing that it read has changed. A slow one, beside fast writers of the
same keys, may never find such a moment. So after some conflicts its client reserves what it reads, at every
node: each node's service then holds back writes of these keys before they are ordered, until the transaction
has committed or the reservation ends.

A reservation delays requests, and does nothing else: it is volatile, known to one node, and not ordered. No
answer depends on it, so it can be lost, expire or be ignored at any time; the transaction still commits by
its conditions only. A request is delayed once, for at most `RESERVE_S`. Of two transactions that are in each
other's way, the one with the lower name goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kvstore.machine.request import RANGE_OPERATIONS, Range, Transaction
from kvstore.store.errors import LimitExceeded, Overloaded

RESERVE_S: Final = 2.0
"""The longest time of a reservation, and the longest delay of a request."""

RESERVATIONS: Final = 64
"""Reservations that a node keeps at once."""

RESERVED: Final = 1024
"""Keys and ranges of one reservation."""

WAITING: Final = 1024
"""Requests that a node delays at once; further ones are not delayed."""


ALWAYS_FIRST: Final = 1
"""The name that goes before all others: that of a request that was delayed already."""


@dataclass(slots=True)
class _Reservation:
    keys: frozenset[bytes]
    ranges: tuple[Range, ...]
    until: float
    waiting: dict[int, Callable[[], None]] = field(default_factory=dict)


class Reservations:
    """The reservations at one node, by name, and the requests that they delay."""

    def __init__(self) -> None:
        self._by_name: dict[int, _Reservation] = {}
        self._waiting = 0
        self._tokens = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._by_name)

    def reserve(self, name: int, keys: Iterable[bytes], ranges: Iterable[Range], until: float) -> None:
        """Reserve keys and ranges until a time, in place of what the name had reserved before."""
        reserved = _Reservation(frozenset(keys), tuple(ranges), until)
        count = len(reserved.keys) + len(reserved.ranges)
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
        if self._waiting >= WAITING:
            return 0
        for other, reserved in self._by_name.items():
            if (not name or other < name) and _writes(transaction, reserved):
                return other
        return 0

    def delay(self, name: int, go_on: Callable[[], None]) -> Callable[[], None]:
        """Call `go_on` once, when the reservation ends; or when the returned function is called."""
        self._tokens += 1
        token = self._tokens
        waiting = self._by_name[name].waiting
        self._waiting += 1

        def end() -> None:
            if waiting.pop(token, None) is not None:
                self._waiting -= 1
                go_on()

        waiting[token] = end
        return end


def _writes(transaction: Transaction, reserved: _Reservation) -> bool:
    """Whether a branch of the transaction writes anything that is reserved."""
    for operation in (*transaction.then, *transaction.otherwise):
        if not operation.writes:
            continue
        if isinstance(operation, RANGE_OPERATIONS):
            start, end = operation.range
            if any(found.overlaps(start, end) for found in reserved.ranges):
                return True
            if any(operation.range.covers(key) for key in reserved.keys):
                return True
        elif operation.key in reserved.keys or any(found.covers(operation.key) for found in reserved.ranges):
            return True
    return False
