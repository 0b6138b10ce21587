"""Values by revision. A revision is the global timestamp of the transaction that wrote.

`latest` has every key's last version, removed keys included until compaction. `history` has one row per
transaction: what it changed, and for each key the revision it had before. That is the change feed and, key by
key, the chain to older versions.

History is kept until it is compacted, by a client or a leader (`kvstore.store.compactor`).
Compaction to a floor drops what no read at the floor or above needs. A version that is still the latest then
leaves the history; the transaction that overwrites it later takes it along in its own row, as the `base`.
Which floor that is depends on the order of messages only, not on when the rows are dropped, so that replicas
that execute in different orders end with the same rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from operator import attrgetter
from typing import Final, TypeAlias

from kvstore.machine.data import Data
from kvstore.machine.ordered import Marks, OrderedMap
from kvstore.machine.request import Range
from kvstore.machine.results import KeyValue
from kvstore.machine.slices import (
    CHANGES,
    REMOVED,
    ROW_BYTES,
    Meter,
    Overlay,
    rows_in_slices,
    unmetered,
)
from multicast.errors import InvariantBroken

_SLICE: Final = 64
_REMEMBERED: Final = 10_000
_DECODED: Final = 16
"""Rows of history that a scan keeps at hand."""
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


class OutOfRows(Exception):
    """A read has looked at as many rows as one step may. It goes on from here."""

    def __init__(self, resume: bytes, via: int = 0) -> None:
        super().__init__(f"the step ends before {resume!r}")
        self.resume = resume
        """The start of the rest of the range; in reverse, its end."""
        self.via = via
        """Of the next key, whose older versions were being looked at: the oldest revision reached, or 0."""


class Version(Data, frozen=True):
    """What a key was from one transaction to the next. Without a value it was removed."""

    value: bytes | None
    create_revision: int
    mod_revision: int
    version: int
    previous: int = 0
    """The key's revision before, removals included; 0 if there was none since the floor. A read of the past
    need not look into history for keys that did not exist.
    """


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


_ABSENT: Final = Version(None, 0, 0, 0)


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

    def put_all(self, puts: Iterable[tuple[bytes, bytes]], revision: int, floor: int) -> Row:
        """Perform a transaction that puts values of different keys and does nothing else; return its row of
        history. A `Writer` does the same, and more; most transactions are such.
        """
        latest = self._latest
        changes = []
        for key, value in puts:
            found = latest.get(key)
            base = None
            if found is None:
                create, version, previous = revision, 1, 0
            elif found.value is None:
                before = found.mod_revision
                create, version, previous = revision, 1, before if before > floor else 0
            else:
                create, version, previous = found.create_revision, found.version + 1, found.mod_revision
                if previous <= floor:
                    base = found
            latest.put(key, Version(value, create, revision, version, previous))
            changes.append(KeyChange(key, value, create, version, previous, base))
        if len(changes) > 1:
            changes.sort(key=_key_of)
        row = tuple(changes)
        if row:
            self._history.put(revision, row)
        return row

    def over(self, overlay: Overlay[bytes, Version]) -> Versions:
        """These keys as a transaction sees them that has written to the overlay."""
        return Versions(overlay, self._history)

    def overlay(self, as_of: int | None, meter: Meter) -> Overlay[bytes, Version]:
        """Return an overlay of the latest versions; or of those as of a revision, whatever is written later:
        a read by a meter that ends the step raises `OutOfRows`.
        """
        return Overlay(self._latest, None if as_of is None else AsOf(self, as_of, meter))

    def rows(
        self, asked: Range, meter: Meter, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Version] | None]:
        """The last versions in a range that is locked, removed ones included, and None where a step ends."""
        return rows_in_slices(self._latest, asked.start, asked.end, meter, cost_of_version, reverse=reverse)

    def scan(self, asked: Range, *, reverse: bool = False, meter: Meter | None = None) -> Iterator[KeyValue]:
        """The range as of now. Raises `OutOfRows` if the meter ends the step."""
        for row in self.rows(asked, meter or unmetered(), reverse=reverse):
            if row is None:
                raise OutOfRows(b"")  # not resumed: what follows may have changed
            key, found = row
            if found.value is not None:
                yield entry_of(key, found.value, found)

    def get_at(self, key: bytes, revision: int, meter: Meter | None = None) -> Version | None:
        """The key as of a revision. Raises `OutOfRows` if the meter ends the step."""
        self._check(revision)
        meter = meter or unmetered()
        found = self._latest.get(key)
        if found is None:
            return None
        meter.left -= cost_of_version(found)
        return self._as_of(key, found, revision, meter, {})

    def scan_at(
        self,
        asked: Range,
        revision: int,
        *,
        reverse: bool = False,
        via: int = 0,
        meter: Meter | None = None,
    ) -> Iterator[KeyValue]:
        """The range as of a revision. Raises `OutOfRows` if the meter ends the step; a scan that goes on from
        there passes its `via`.
        """
        self._check(revision)
        meter = meter or unmetered()
        decoded: dict[int, Row] = {}
        for key, found in self._latest.items(*asked, reverse=reverse):
            if meter.left <= 0:
                raise OutOfRows(key + b"\0" if reverse else key)
            value = found.value
            meter.left -= 1 if value is None else 1 + len(value) // ROW_BYTES
            old: Version | None = found
            if found.mod_revision > revision:
                resume = key + b"\0" if reverse else key
                begin = found
                if via and resume == (asked.end if reverse else asked.start):
                    begin = self._version(via, key, meter, decoded)
                try:
                    old = self._as_of(key, begin, revision, meter, decoded)
                except OutOfRows as paused:
                    raise OutOfRows(resume, paused.via) from None
            if old is not None and (value := old.value) is not None:
                yield KeyValue(key, value, old.create_revision, old.mod_revision, old.version)

    def marks(self, asked: Range, every: int, most: int) -> Marks[bytes]:
        """Roughly where the keys of a range are, removed ones included."""
        return self._latest.marks(*asked, every, most)

    def changes(self, after: int) -> Iterator[tuple[int, Row]]:
        """The change feed: all transactions above a revision, up to the watermark, in order."""
        self._check(after)
        return self._history.items(after + 1, self.watermark + 1)

    def has_changes(self, after: int, upto: int) -> bool:
        """Whether there are transactions above a revision, up to another."""
        return after < upto and next(self._history.items(after + 1, upto + 1), None) is not None

    def first_change(self, after: int) -> int:
        """The first transaction above a revision; 0 if there is none."""
        revision, _ = next(self._history.items(after + 1, None), (0, ()))
        return revision

    def _check(self, revision: int) -> None:
        if revision < self.floor:
            raise Compacted(revision, self.floor)
        if revision > self.watermark:
            raise NotYet(revision, self.watermark)

    def _as_of(
        self, key: bytes, latest: Version, revision: int, meter: Meter, decoded: dict[int, Row]
    ) -> Version | None:
        found = latest
        while found.mod_revision > revision:
            if not found.previous:
                return None
            if meter.left <= 0:
                raise OutOfRows(key, found.mod_revision)
            found = self._before(key, found, meter, decoded)
        return None if found.value is None else found

    def _before(self, key: bytes, found: Version, meter: Meter, decoded: dict[int, Row]) -> Version:
        """The version before one that has a `previous`."""
        change = self._metered(found.mod_revision, key, meter, decoded)
        return change.base or self._version(change.previous, key, meter, decoded)

    def _version(self, revision: int, key: bytes, meter: Meter, decoded: dict[int, Row]) -> Version:
        """What a transaction made of the key."""
        change = self._metered(revision, key, meter, decoded)
        return Version(change.value, change.create_revision, revision, change.version, change.previous)

    def _metered(self, revision: int, key: bytes, meter: Meter, decoded: dict[int, Row]) -> KeyChange:
        """Read a change. Rows that neighbours need too are decoded once."""
        row = decoded.get(revision)
        if row is None:
            row = self._history.get(revision) or ()
            meter.left -= 1 + len(row) // CHANGES
            if len(decoded) == _DECODED:
                decoded.clear()
            decoded[revision] = row
        return _find(row, revision, key)

    def compaction(self, floor: int) -> Iterator[int]:
        """Drop what no read at the floor or above needs, a step at a time; yield what each step has cost, in
        rows. Others may write in between.

        Everything is executed that was delivered before the floor was this.
        """
        needed: dict[bytes, int] = {}
        decoded: dict[int, Row] = {}
        start = 0
        while rows := self._oldest(start, floor):
            for revision, row in rows:
                yield _cost_of_row(row)
                yield from self._compact(revision, row, floor, needed, decoded)
            start = rows[-1][0] + 1

    def _oldest(self, start: int, upto: int) -> list[tuple[int, Row]]:
        """Return the next rows of history, as many as a step may decode."""
        rows, left = [], _SLICE
        for each in self._history.items(start, upto + 1):
            rows.append(each)
            left -= _cost_of_row(each[1])
            if left <= 0:
                break
        return rows

    def _compact(
        self, revision: int, row: Row, floor: int, needed: dict[bytes, int], decoded: dict[int, Row]
    ) -> Iterator[int]:
        kept = []
        for change in row:
            key = change.key
            if key not in needed:
                if len(needed) == _REMEMBERED:
                    needed.clear()
                needed[key] = yield from self._needed(key, floor, decoded)
            if needed[key] == revision:
                kept.append(change)
            elif change.value is None:
                latest = self._latest.get(key)
                if latest is not None and latest.mod_revision == revision:
                    self._latest.delete(key)
            yield 1
        if not kept:
            self._history.delete(revision)
        elif len(kept) < len(row):
            self._history.put(revision, tuple(kept))

    def _needed(self, key: bytes, floor: int, decoded: dict[int, Row]) -> Generator[int, None, int]:
        """The revision whose row has the key as of the floor; 0 if that is nowhere else needed."""
        latest = self._latest.get(key)
        revision = 0 if latest is None else latest.mod_revision
        if revision <= floor:
            return 0
        while revision > floor:
            row = decoded.get(revision)
            if row is None:
                row = self._history.get(revision) or ()
                if len(decoded) == _DECODED:
                    decoded.clear()
                decoded[revision] = row
                yield _cost_of_row(row)
            change = _find(row, revision, key)
            if change.base is not None:
                return 0
            revision = change.previous
            yield 1
        return revision


class AsOf:
    """The keys as of a revision, whatever is written while a transaction reads them in slices.

    The floor must stay what it was at that revision, or the chain of a key's versions may have been cut. Rows
    that did not exist are among the items, as removed at revision 0, so that a step can end there. The
    watermark does not matter: the caller knows that all writes up to the revision are executed.
    """

    __slots__ = ("_decoded", "_latest", "_meter", "_reached", "_revision", "_versions")

    def __init__(self, versions: Versions, revision: int, meter: Meter) -> None:
        self._versions = versions
        self._latest = versions._latest  # noqa: SLF001  # the other half of the same idea
        self._revision = revision
        self._meter = meter
        self._decoded: dict[int, Row] = {}
        self._reached: dict[bytes, Version] = {}
        """The oldest versions seen of keys at which a step ended. The caller begins the next step there: a
        chain longer than a step would never end if it were followed from the newest version again.
        """

    def get(self, key: bytes) -> Version | None:
        """The version of a key, removed ones included. Raises `OutOfRows` if the step ends; then a later call
        goes on from there.
        """
        found = self._latest.get(key)
        if found is None:
            return None
        if found.value is not None and len(found.value) >= ROW_BYTES:
            self._meter.left -= len(found.value) // ROW_BYTES
        return found if found.mod_revision <= self._revision else self._older(key, found)

    def _older(self, key: bytes, latest: Version) -> Version | None:
        found = self._reached.pop(key, latest)
        while found.mod_revision > self._revision and found.previous:
            if self._meter.left <= 0:
                self._reached[key] = found
                raise OutOfRows(key)
            found = self._versions._before(key, found, self._meter, self._decoded)  # noqa: SLF001  # the same
        if self._meter.left <= 0:
            self._reached[key] = found
        return None if found.mod_revision > self._revision else found

    def items(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Version]]:
        """The range. Where the meter has ended the step, a row is wrong: the caller must not use it, and
        begin again there.
        """
        revision = self._revision
        for key, found in self._latest.items(start, end, reverse=reverse):
            if found.mod_revision <= revision:
                yield key, found
                continue
            try:
                old = self._older(key, found)
            except OutOfRows:
                old = None
            yield key, old or _ABSENT


def _find(row: Row, revision: int, key: bytes) -> KeyChange:
    at = bisect_left(row, key, key=_key_of)
    if at == len(row) or row[at].key != key:
        raise InvariantBroken(f"history has no change of {key!r} at {revision}")
    return row[at]


def _cost_of_row(row: Row) -> int:
    """How many rows it counts for to decode a row of history, or to encode what is kept of it."""
    size = sum([len(change.value) for change in row if change.value is not None])
    return 1 + len(row) // CHANGES + size // ROW_BYTES


def cost_of_version(found: Version) -> int:
    """How many rows a row counts for."""
    return 1 if found.value is None else 1 + len(found.value) // ROW_BYTES


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
        before = self._before
        if key not in before:
            before[key] = found
        if found is None:
            now = Version(value, revision, revision, 1)
        else:
            previous = found.previous if found.mod_revision == revision else self._previous(found)
            if found.value is None:
                now = Version(value, revision, revision, 1, previous)
            else:
                version = found.version + (found.mod_revision != revision)
                now = Version(value, found.create_revision, revision, version, previous)
        self._now[key] = now
        self._latest.put(key, now)

    def delete(self, key: bytes) -> bool:
        """Remove a key. False if it is not there."""
        found = self._latest.get(key)
        if found is None or found.value is None:
            return False
        self.remove(key, found)
        return True

    def remove(self, key: bytes, found: Version) -> None:
        """Remove a key that has this version."""
        self._before.setdefault(key, found)
        previous = found.previous if found.mod_revision == self._revision else self._previous(found)
        now = self._now[key] = Version(None, 0, self._revision, 0, previous)
        self._latest.put(key, now)

    def _previous(self, before: Version) -> int:
        """What to remember as the revision before: a removal at or below the floor is forgotten."""
        return before.mod_revision if before.value is not None or before.mod_revision > self._floor else 0

    def undo(self) -> None:
        """Take back all writes, at once: the transaction is aborted."""
        for key, before in self._before.items():
            if before is None:
                self._latest.delete(key)
            else:
                self._latest.put(key, before)

    def finish(self) -> Row:
        """Write the transaction's row, and return it. A key that it both made and removed has not changed."""
        changes = [
            change for key, before in self._written() if (change := self._change_of(key, before)) is not None
        ]
        return self._write(changes)

    def finish_in_slices(self, meter: Meter) -> Generator[None, None, Row]:
        """The same, in slices. In the last step the row is written."""
        changes = []
        for number, (key, before) in enumerate(self._written()):
            if number % REMOVED == 0:
                meter.left -= 1
                if meter.left <= 0:
                    yield
            change = self._change_of(key, before)
            if change is not None:
                changes.append(change)
        return self._write(changes)

    def _written(self) -> Iterable[tuple[bytes, Version | None]]:
        """The written keys in order, and what they were before."""
        return sorted(self._before.items()) if len(self._before) > 1 else self._before.items()

    def _change_of(self, key: bytes, before: Version | None) -> KeyChange | None:
        """Return what has become of a key; None if it was both made and removed, which is undone."""
        now = self._now[key]
        if now.value is None and (before is None or before.value is None):
            # A removal that is compacted may have been dropped meanwhile, and must not come back.
            if before is None or before.mod_revision <= self._floor:
                self._latest.delete(key)
            else:
                self._latest.put(key, before)
            return None
        base = None
        if before is not None and before.value is not None and before.mod_revision <= self._floor:
            base = before
        return KeyChange(key, now.value, now.create_revision, now.version, now.previous, base)

    def _write(self, changes: list[KeyChange]) -> Row:
        """Write the transaction's row."""
        row = tuple(changes)
        if row:
            self._history.put(self._revision, row)
        return row
