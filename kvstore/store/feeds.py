"""The change feeds of several groups, as one: in the order of revisions, no transaction split.

A group's feed is complete up to some revision. What all of them are complete up to may be passed on; what one
has beyond that waits for the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from kvstore.store.questions import Changes, Event
from multicast.types import GroupId

Transactions: TypeAlias = tuple[tuple[int, tuple[Event, ...]], ...]
"""Revisions, and what was changed there."""


class MergedFeed:
    """What groups have told, and what of it was passed on."""

    def __init__(self, groups: Iterable[GroupId], after: int) -> None:
        self.upto = dict.fromkeys(groups, after)
        """Up to where each group has told everything."""
        self._waiting: dict[GroupId, list[tuple[int, tuple[Event, ...]]]] = {group: [] for group in self.upto}
        """What is not passed on yet."""

    def take(self, group: GroupId, changes: Changes) -> None:
        """A group tells what follows."""
        self._waiting[group] += changes.transactions
        self.upto[group] = max(self.upto[group], changes.upto)

    def waiting(self, group: GroupId) -> int:
        """How much of a group waits for the others."""
        return len(self._waiting[group])

    @property
    def complete(self) -> int:
        """Up to where all groups have told everything."""
        return min(self.upto.values())

    @property
    def wanted(self) -> int:
        """The last that waits for groups to get there; 0 if nothing does."""
        return max((waiting[-1][0] for waiting in self._waiting.values() if waiting), default=0)

    def drain(self) -> Transactions:
        """Take what is complete. What one transaction did in several groups is put together."""
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
