"""A group's tables as they were at one moment, for a snapshot, while the group goes on.

What was not yet on the disk at that moment is in frozen layers, which a view holds. What commits change on
the disk afterwards, ahead of where the view is, they first save for it. So a view holds as much as changes
while it is walked; one that would hold too much is given up, and its stream has no end, so that every
receiver rejects it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sortedcontainers import SortedDict

from kvstore.storage import checkpoint_format
from kvstore.storage.maps import StoredMap, combine
from kvstore.storage.rows import CHUNK_MAX, LmdbRows, Pair

SAVED_BYTES: Final = 256 << 20
"""What commits may save for one view."""

_OVERHEAD: Final = 200
"""Bytes that a saved row takes beside its key and value."""


class TablesView:
    """Tables as they were at one moment. Only the iterator of its frames holds the view."""

    __slots__ = ("__weakref__", "_at", "_given_up", "_head", "_passed", "_saved", "_size", "_tables")

    def __init__(self, head: bytes, maps: Mapping[str, StoredMap[Any, Any]]) -> None:
        self._head = head
        self._tables = {name: (each, each.layers[::-1], each.below) for name, each in maps.items()}
        self._saved: dict[str, SortedDict[bytes, bytes | None]] = {name: SortedDict() for name in maps}
        """Of the tables that are not walked yet, what the disk had."""
        self._size = 0
        self._at = ""
        """The table that is being walked."""
        self._passed = b""
        """Its keys below this are done."""
        self._given_up = False

    def save(self, name: str, key: bytes, rows: LmdbRows) -> None:
        """Save the row of a key that is about to change."""
        saved = self._saved.get(name)
        if saved is None or key in saved or (name == self._at and key < self._passed):
            return
        if self._tables[name][2] is rows:
            saved[key] = value = rows.get(key)
            self._size += len(key) + len(value or b"") + _OVERHEAD
            if self._size > SAVED_BYTES:
                self.give_up()

    def is_given_up(self) -> bool:
        """Whether it holds nothing any more."""
        return self._given_up

    def give_up(self) -> None:
        """Hold nothing any more."""
        self._given_up = True
        for saved in self._saved.values():
            saved.clear()  # the iterator may never be advanced again
        self._saved = {}
        self._tables = {}

    def frames(self) -> Iterator[bytes]:
        """Return the frames of the stream."""
        yield checkpoint_format.frame(self._head)
        count = 0
        for name in list(self._tables):
            for rows in self._walk(name):
                count += len(rows)
                yield from checkpoint_format.row_frames(name, rows)
            if self.is_given_up():
                return
        yield checkpoint_format.end_frame(count)

    def _walk(self, name: str) -> Iterator[list[Pair]]:
        """A table, chunk by chunk; each is as it was, whatever happens before the next is asked for."""
        if self.is_given_up():
            return
        each, layers, below = self._tables[name]
        saved = self._saved[name]
        over: SortedDict[bytes, bytes | None] = SortedDict()
        if layers:
            layer = combine(layers)
            puts, deletes = each.encode(layer, layer.rows)
            over.update(puts)
            over.update(dict.fromkeys(deletes))
        self._at, self._passed = name, b""
        more = True
        while more:
            start = self._passed
            found, more = below.chunk(start, None, CHUNK_MAX)
            each.check_sums(found)  # a damaged row must not travel
            end = found[-1][0] + b"\0" if more else None
            changed = list(saved.irange(start, end, (True, False)))
            covered = list(over.irange(start, end, (True, False)))
            if changed or covered:
                rows: dict[bytes, bytes | None] = dict(found)
                rows.update([(key, saved.pop(key)) for key in changed])
                rows.update([(key, over.pop(key)) for key in covered])
                found = [(key, value) for key, value in sorted(rows.items()) if value is not None]
            if end is None:
                del self._saved[name], self._tables[name]
            else:
                self._passed = end
            yield list(found)
            if self.is_given_up():
                return
