"""Merge the change feeds of several groups: in the order of revisions, no transaction split.

Each group's feed is complete up to some revision. Changes up to the lowest of these may be passed on; later
ones wait for the other groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeAlias

from kvstore.store.questions import Changes, Event
from multicast.types import GroupId

Transactions: TypeAlias = tuple[tuple[int, tuple[Event, ...]], ...]
"""Revisions, and the events of each."""
Ask: TypeAlias = Callable[[GroupId, int], Coroutine[Any, Any, Changes]]
Move: TypeAlias = Callable[[GroupId, int], Coroutine[Any, Any, None]]

WAITING_MAX: Final = 10_000
"""Transactions of one group that may wait for other groups before no more are requested."""


class MergedFeed:
    """The changes of several groups that are not passed on yet."""

    def __init__(self, groups: Iterable[GroupId], after: int) -> None:
        self.upto = dict.fromkeys(groups, after)
        """The revision up to which each group's changes are complete."""
        self._waiting: dict[GroupId, list[tuple[int, tuple[Event, ...]]]] = {group: [] for group in self.upto}
        """Changes that are not passed on yet."""

    def take(self, group: GroupId, changes: Changes) -> None:
        """Add the next changes of a group."""
        self._waiting[group] += changes.transactions
        self.upto[group] = max(self.upto[group], changes.upto)

    def waiting(self, group: GroupId) -> int:
        """Return how many transactions of a group wait for the others."""
        return len(self._waiting[group])

    @property
    def complete(self) -> int:
        """The revision up to which all groups' changes are complete."""
        return min(self.upto.values())

    @property
    def wanted(self) -> int:
        """The highest revision that waits for other groups; 0 if none does."""
        return max((waiting[-1][0] for waiting in self._waiting.values() if waiting), default=0)

    def drain(self) -> Transactions:
        """Return and forget what is complete. A transaction's events in several groups are merged."""
        complete = self.complete
        merged: dict[int, list[Event]] = {}
        for waiting in self._waiting.values():
            count = 0
            for revision, events in waiting:
                if revision > complete:
                    break
                merged.setdefault(revision, []).extend(events)
                count += 1
            del waiting[:count]
        return tuple((revision, tuple(sorted(events))) for revision, events in sorted(merged.items()))


class FeedReader:
    """Reads one group's change feed for a watch."""

    def __init__(self, group: GroupId, merged: MergedFeed, ask: Ask, move: Move) -> None:
        """`ask` returns what follows a revision; `move` makes the group pass a revision."""
        self._group = group
        self._merged = merged
        self._ask = ask
        self._move = move
        self.task: asyncio.Task[Changes] | None = None
        self._mover: asyncio.Task[None] | None = None

    @property
    def upto(self) -> int:
        """The revision up to which the group's changes are complete."""
        return self._merged.upto[self._group]

    def start(self) -> None:
        """Ask for more changes, unless too many wait for other groups."""
        if self.task is None and self._merged.waiting(self._group) < WAITING_MAX:
            self.task = asyncio.create_task(self._ask(self._group, self.upto))

    def take(self) -> None:
        """Take the changes that have arrived. Raises the error of a failed request."""
        if self.task is not None and self.task.done():
            changes, self.task = self.task.result(), None
            self._merged.take(self._group, changes)

    def move(self, revision: int) -> None:
        """Make a group that is behind the others, or idle, pass a revision."""
        if self._mover is None or self._mover.done():
            self._mover = asyncio.create_task(self._move(self._group, revision))

    def close(self) -> None:
        """Cancel all requests: the watch is over."""
        for task in (self.task, self._mover):
            if task is not None:
                task.cancel()
