"""Long scans: the pages of several groups, merged in the order of keys."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any, Final

from kvstore.machine.request import Range, Scan, Shape
from kvstore.machine.results import KeyValue
from kvstore.store.questions import Entries

_key_of: Final = attrgetter("key")


class PageStream:
    """One group's part of a long scan: one page in memory, and the next being fetched."""

    def __init__(self, fetch: Callable[[Scan], Coroutine[Any, Any, Entries]], scan: Scan) -> None:
        """`fetch` asks the group for the first page of a scan."""
        self._ask = fetch
        self._scan = scan
        self.entries: Sequence[KeyValue] = ()
        self.at = 0
        self.more = True
        self._next: asyncio.Task[Entries] | None = None
        self._fetch()

    def _fetch(self) -> None:
        self._next = asyncio.create_task(self._ask(self._scan))

    async def fill(self) -> None:
        """Wait until there are entries in memory, or the end is reached."""
        while self.at == len(self.entries) and self._next is not None:
            page = await self._next
            self._next = None
            self.entries, self.at = page.entries, 0
            if page.more:
                last = page.entries[-1].key
                start, end = self._scan.range
                rest = Range(start, last) if self._scan.reverse else Range(last + b"\0", end)
                self._scan = Scan(rest, *_limits(self._scan))
                self._fetch()

    def close(self) -> None:
        """Stop fetching: the caller wants no more."""
        if self._next is not None:
            self._next.cancel()


def _limits(scan: Scan) -> tuple[int, int, bool, Shape]:
    return scan.limit, scan.limit_bytes, scan.reverse, scan.shape


async def merge_step(streams: Sequence[PageStream], *, reverse: bool) -> list[KeyValue]:
    """Return the next entries in the order of keys, as far as the pages in memory go."""
    for stream in streams:
        await stream.fill()
    live = [stream for stream in streams if stream.at < len(stream.entries)]
    if not live:
        return []
    if reverse:
        bound = max(stream.entries[-1].key for stream in live)
    else:
        bound = min(stream.entries[-1].key for stream in live)
    found: list[KeyValue] = []
    for stream in live:
        entries, at = stream.entries, stream.at
        if entries[-1].key == bound:
            stream.at = len(entries)
        else:
            stream.at = _end(entries, bound, at, reverse=reverse)
        found += entries[at : stream.at]
    if len(live) > 1:
        found.sort(key=_key_of, reverse=reverse)  # runs that are in order: this merges them
    return found


def _end(entries: Sequence[KeyValue], bound: bytes, at: int, *, reverse: bool) -> int:
    """Return the index behind the last entry up to a key."""
    if reverse:
        return bisect_left(entries, True, at, key=lambda entry: entry.key < bound)  # noqa: FBT003 - what is sought
    return bisect_right(entries, bound, at, key=_key_of)
