"""Deliveries on the disk: runs of them, each a row of columns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from kvstore.storage import keys, run_format
from kvstore.storage.environment import Environment, Transaction
from kvstore.storage.keys import STATE_DELIVERIES
from kvstore.storage.run_format import Row
from multicast.errors import InvariantBroken
from multicast.messages import Delivery
from multicast.types import GroupId, Timestamp

RUN: Final = 200
"""Deliveries of a run, at most."""

RUN_BYTES: Final = 64 << 10
"""Payload bytes of a run, except for a run of one delivery."""


def check_chain(group: GroupId, position: Timestamp, deliveries: Iterable[Delivery]) -> Timestamp:
    """Return the position of a group after deliveries, which must follow each other."""
    for delivery in deliveries:
        if delivery.previous_ts != position:
            raise InvariantBroken(
                f"{delivery.mid} follows {delivery.previous_ts}, but group {group} is at {position}"
            )
        position = delivery.global_ts
    return position


def cut(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
    """Yield runs of bounded length and, except for single deliveries, of bounded size."""
    start = 0
    while start < len(deliveries):
        run = deliveries[start : start + RUN]
        ends = accumulate([len(delivery.payload) for delivery in run])
        length = max(1, bisect_right(list(ends), RUN_BYTES))
        yield run[:length]
        start += length


def row_of(group: GroupId, run: Sequence[Delivery]) -> Row:
    """Return a group's run as stored."""
    return run[-1].global_ts, run_format.seal_run(group, run)


def rows_from(
    env: Environment, transaction: Transaction, database: bytes, start: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows from a key on, of the group in the key's prefix."""
    cursor = transaction.cursor(env[database])
    if cursor.set_range(start):
        for key, value in cursor:
            if key[:2] != start[:2]:
                return
            yield key, value


class Runs:
    """The runs of one group in an environment."""

    __slots__ = ("_env", "_group", "_where")

    def __init__(self, env: Environment, group: GroupId) -> None:
        self._env = env
        self._group = group
        self._where = f"{env.path}, group {group}, deliveries"

    def rows(self, after: Timestamp, upto: Timestamp) -> Iterator[Row]:
        """Yield the runs on the disk after one position and up to another.

        Runs are read one at a time; a snapshot installed meanwhile may have other boundaries of runs.
        """
        while after < upto:
            start = keys.run_key(self._group, Timestamp(after + 1))
            key, value = next(rows_from(self._env, self._env.read(), STATE_DELIVERIES, start), (None, b""))
            if key is None:
                return
            last = Timestamp(keys.number_of_key(key, self._where))
            where = f"{self._where} up to {last}"
            if last > upto or run_format.run_follows(value, self._group, last, where) < after:
                run = run_format.unseal_run(value, self._group, last, where)
                wanted = [delivery for delivery in run if after < delivery.global_ts <= upto]
                last, value = row_of(self._group, wanted)
            yield last, value
            after = last

    def select(
        self, after: Timestamp, upto: Timestamp, later: Sequence[Delivery], count: int, size: float
    ) -> list[Delivery]:
        """Return deliveries after a position: those on the disk, up to another, then these later ones; at
        most `count`, and at most `size` bytes (but at least one).
        """
        found: list[Delivery] = []
        for delivery in self._all(after, upto, later):
            if delivery.global_ts <= after:
                continue
            size -= len(delivery.payload)
            if len(found) == count or (found and size < 0):
                break
            found.append(delivery)
        return found

    def _all(self, after: Timestamp, upto: Timestamp, later: Sequence[Delivery]) -> Iterator[Delivery]:
        for last, value in self.rows(after, upto):
            yield from run_format.unseal_run(value, self._group, last, f"{self._where} up to {last}")
        yield from later


def pieces(parts: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes, in pieces of this size."""
    piece = bytearray()
    for part in parts:
        piece += part
        while len(piece) >= size:
            yield bytes(piece[:size])
            del piece[:size]
    if piece:
        yield bytes(piece)
