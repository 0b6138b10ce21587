"""Values by revision. A revision is the global timestamp of the transaction that wrote.

`latest` has every key's last version, removed keys included until compaction. `history` has one row per
transaction: what it changed, and for each key the revision it had before. That is the change feed and, key by
key, the chain to older versions.

History is kept until a client compacts it: there is no time limit (`kvstore.store.retention`).
Compaction to a floor drops what no read at the floor or above needs. A version that is still the latest then
leaves the history; the transaction that overwrites it later takes it along in its own row, as the `base`.
Which floor that is depends on the order of messages only, not on when the rows are dropped, so that replicas
that execute in different orders end with the same rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from itertools import islice
from operator import attrgetter
from typing import Final, TypeAlias

from kvstore.machine.data import Data
from kvstore.machine.ordered import Marks, OrderedMap
from kvstore.machine.request import Range
from kvstore.machine.results import KeyValue
from multicast.errors import InvariantBroken

_SLICE: Final = 64
_REMEMBERED: Final = 10_000
_key_of: Final = attrgetter("key")


class Compacted(Exception):
    """A read below the compaction floor."""

    def __init__(self, revision: int, floor: int) -> None:
        super().__init__(f"revision {revision} is compacted; the oldest one is {floor}")
        self.floor = floor


class NotYet(Exception):
    """A read above what is known to be complete here."""

    def __init__(self, revision: int, watermark: int) -> None:
        super().__init__(f"revision {revision} is not executed yet; the newest one is {watermark}")
        self.watermark = watermark


class Version(Data, frozen=True):
    """What a key was from one transaction to the next. Without a value it was removed."""

    value: bytes | None
    create_revision: int
    mod_revision: int
    version: int


class KeyChange(Data, frozen=True):
    """What a transaction made of a key."""

    key: bytes
    value: bytes | None
    create_revision: int
    version: int
    previous: int
    """The key's revision before, removals included; 0 if there was none since the floor."""
    base: Version | None = None
    """The version before, if it was at or below the floor."""


Row: TypeAlias = tuple[KeyChange, ...]
"""A transaction's changes, in the order of their keys."""


def entry_of(key: bytes, value: bytes, found: Version) -> KeyValue:
    """The key with a version of it, whose value this is."""
    return KeyValue(key, value, found.create_revision, found.mod_revision, found.version)


class Versions:
    """One group's keys, now and at every revision from the floor on."""

    __slots__ = ("_history", "_latest", "floor", "watermark")

    def __init__(self, latest: OrderedMap[bytes, Version], history: OrderedMap[int, Row]) -> None:
        self._latest = latest
        self._history = history
        self.floor = 0
        """Revisions below are not served."""
        self.watermark = 0
        """Revisions above are not served: a slower, earlier transaction may still write."""

    def get(self, key: bytes) -> Version | None:
        """The key as of now, if it is there."""
        found = self._latest.get(key)
        return None if found is None or found.value is None else found

    def scan(self, asked: Range, *, reverse: bool = False) -> Iterator[KeyValue]:
        """The range as of now."""
        for key, found in self._latest.items(*asked, reverse=reverse):
            if found.value is not None:
                yield entry_of(key, found.value, found)

    def changed_since(self, asked: Range, revision: int) -> bool:
        """Whether a key of the range was written or removed after a revision, at or above the floor."""
        return any(found.mod_revision > revision for _, found in self._latest.items(*asked))

    def get_at(self, key: bytes, revision: int) -> Version | None:
        """The key as of a revision."""
        self._check(revision)
        found = self._latest.get(key)
        return None if found is None else self._as_of(key, found, revision)

    def scan_at(self, asked: Range, revision: int, *, reverse: bool = False) -> Iterator[KeyValue]:
        """The range as of a revision."""
        self._check(revision)
        for key, found in self._latest.items(*asked, reverse=reverse):
            old = found if found.mod_revision <= revision else self._as_of(key, found, revision)
            if old is not None and (value := old.value) is not None:
                yield KeyValue(key, value, old.create_revision, old.mod_revision, old.version)

    def marks(self, asked: Range, every: int, most: int) -> Marks[bytes]:
        """Roughly where the keys of a range are, removed ones included."""
        return self._latest.marks(*asked, every, most)

    def changes(self, after: int) -> Iterator[tuple[int, Row]]:
        """The change feed: all transactions above a revision, up to the watermark, in order."""
        self._check(after)
        return self._history.items(after + 1, self.watermark + 1)

    def _check(self, revision: int) -> None:
        if revision < self.floor:
            raise Compacted(revision, self.floor)
        if revision > self.watermark:
            raise NotYet(revision, self.watermark)

    def _as_of(self, key: bytes, latest: Version, revision: int) -> Version | None:
        found = latest
        while found.mod_revision > revision:
            change = self._change(found.mod_revision, key)
            if change.base is not None:
                found = change.base
            elif change.previous:
                older = self._change(change.previous, key)
                found = Version(older.value, older.create_revision, change.previous, older.version)
            else:
                return None
        return None if found.value is None else found

    def _change(self, revision: int, key: bytes) -> KeyChange:
        row = self._history.get(revision) or ()
        at = bisect_left(row, key, key=_key_of)
        if at == len(row) or row[at].key != key:
            raise InvariantBroken(f"history has no change of {key!r} at {revision}")
        return row[at]

    def compaction(self, floor: int) -> Iterator[None]:
        """Drop what no read at the floor or above needs, a step at a time. Others may write in between.

        Everything is executed that was delivered before the floor was this.
        """
        needed: dict[bytes, int] = {}
        start = 0
        while rows := list(islice(self._history.items(start, floor + 1), _SLICE)):
            for revision, row in rows:
                yield from self._compact(revision, row, floor, needed)
            start = rows[-1][0] + 1

    def _compact(self, revision: int, row: Row, floor: int, needed: dict[bytes, int]) -> Iterator[None]:
        kept = []
        for change in row:
            key = change.key
            if key not in needed:
                if len(needed) == _REMEMBERED:
                    needed.clear()
                needed[key] = yield from self._needed(key, floor)
            if needed[key] == revision:
                kept.append(change)
            elif change.value is None:
                latest = self._latest.get(key)
                if latest is not None and latest.mod_revision == revision:
                    self._latest.delete(key)
            yield
        if not kept:
            self._history.delete(revision)
        elif len(kept) < len(row):
            self._history.put(revision, tuple(kept))

    def _needed(self, key: bytes, floor: int) -> Generator[None, None, int]:
        """The revision whose row has the key as of the floor; 0 if that is nowhere else needed."""
        latest = self._latest.get(key)
        revision = 0 if latest is None else latest.mod_revision
        if revision <= floor:
            return 0
        while revision > floor:
            change = self._change(revision, key)
            if change.base is not None:
                return 0
            revision = change.previous
            yield
        return revision


class Writer:
    """One transaction's writes. They are visible at once; `finish` writes them into the history."""

    __slots__ = ("_before", "_floor", "_history", "_latest", "_now", "_revision")

    def __init__(self, versions: Versions, revision: int, floor: int) -> None:
        self._latest = versions._latest  # noqa: SLF001  # the other half of the same idea
        self._history = versions._history  # noqa: SLF001  # the same
        self._revision = revision
        self._floor = floor
        """The floor as of this transaction's position in the order."""
        self._before: dict[bytes, Version | None] = {}
        self._now: dict[bytes, Version] = {}

    def put(self, key: bytes, value: bytes) -> None:
        """Give a key a value."""
        found = self._latest.get(key)
        revision = self._revision
        if key not in self._before:
            self._before[key] = found
        if found is None or found.value is None:
            now = Version(value, revision, revision, 1)
        else:
            version = found.version + (found.mod_revision != revision)
            now = Version(value, found.create_revision, revision, version)
        self._now[key] = now
        self._latest.put(key, now)

    def delete(self, key: bytes) -> bool:
        """Remove a key. False if it is not there."""
        found = self._latest.get(key)
        if found is None or found.value is None:
            return False
        self._before.setdefault(key, found)
        now = self._now[key] = Version(None, 0, self._revision, 0)
        self._latest.put(key, now)
        return True

    def finish(self) -> Row:
        """The transaction's row. A key that it both made and removed has not changed."""
        changes = []
        for key, before in sorted(self._before.items()) if len(self._before) > 1 else self._before.items():
            now = self._now[key]
            if now.value is None and (before is None or before.value is None):
                if before is None:
                    self._latest.delete(key)
                else:
                    self._latest.put(key, before)
                continue
            previous, base = 0, None
            if before is not None:
                if before.mod_revision > self._floor:
                    previous = before.mod_revision
                elif before.value is not None:
                    base, previous = before, before.mod_revision
            changes.append(KeyChange(key, now.value, now.create_revision, now.version, previous, base))
        row = tuple(changes)
        if row:
            self._history.put(self._revision, row)
        return row
