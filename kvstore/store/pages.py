"""Long reads: the pages of a group, one after the other, and those of several groups in the order of keys.

A page ends after as many rows as one step of a replica may look at, also if it has found nothing, and says
where to go on. So no replica works for a caller that has gone, and what was read once is not read again when
the caller goes on elsewhere.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, assert_never

from kvstore.machine.operations import Gathering
from kvstore.machine.request import Get, Range, ReadOperation, Scan, Shape
from kvstore.machine.results import Got, KeyValue, OperationResult
from kvstore.store.questions import Entries, Page

_key_of: Final = attrgetter("key")

PAGE_BYTES: Final = 128 << 10
"""Bytes of a scan or a watch that a replica is asked for at a time: a few milliseconds of its loop."""


def next_page(page: Page, found: Entries) -> Page | None:
    """Return the page that follows one; None if that was the last."""
    if found.resume is None:
        return None
    scan = page.scan
    start, end = scan.range
    rest = Range(start, found.resume) if scan.reverse else Range(found.resume, end)
    return Page(Scan(rest, scan.limit, scan.limit_bytes, scan.reverse, scan.shape), page.revision, found.via)


async def read_in_pages(
    ask: Callable[[Page], Awaitable[Entries]], operation: ReadOperation, revision: int
) -> OperationResult:
    """Perform an operation that is too long for one step of a replica, page by page."""
    if isinstance(operation, Get):
        asked = Scan(Range(operation.key, operation.key + b"\0"))
    elif isinstance(operation, Scan):
        asked = operation
    else:
        assert_never(operation)
    # One more than the limit says whether there is more.
    part = Scan(asked.range, asked.limit and asked.limit + 1, PAGE_BYTES, asked.reverse, asked.shape)
    page: Page | None = Page(part, revision)
    gathered, count = Gathering(asked), 0
    while page is not None:
        found = await ask(page)
        count += found.count
        if not all(map(gathered.add, found.entries)):
            return gathered.result(more=True)
        page = next_page(page, found)
    if isinstance(operation, Get):
        return Got(gathered.entries[0] if gathered.entries else None)
    if asked.shape is Shape.COUNT:
        gathered.count = count
    return gathered.result(more=False)


class PageStream:
    """One group's part of a long scan: one page in memory, and the next being fetched."""

    def __init__(self, fetch: Callable[[Page], Coroutine[Any, Any, Entries]], first: Page) -> None:
        """`fetch` asks the group for a page."""
        self._ask = fetch
        self._page = first
        self.entries: Sequence[KeyValue] = ()
        self.at = 0
        self.known: bytes | None = b""
        """What is in memory goes up to this key; in reverse, down to it. None: to the end of the range."""
        self._next: asyncio.Task[Entries] | None = None
        self._fetch()

    def _fetch(self) -> None:
        self._next = asyncio.create_task(self._ask(self._page))

    async def fill(self) -> None:
        """Wait for the next page, if all entries in memory were taken. It may have no entries."""
        if self.at == len(self.entries) and self._next is not None:
            found = await self._next
            self._next = None
            self.entries, self.at, self.known = found.entries, 0, found.resume
            following = next_page(self._page, found)
            if following is not None:
                self._page = following
                self._fetch()

    def take(self, bound: bytes | None, *, reverse: bool) -> Sequence[KeyValue]:
        """Take the entries up to a key, not including it; in reverse, down to it."""
        entries, at = self.entries, self.at
        if bound is None:
            self.at = len(entries)
        elif reverse:
            self.at = bisect_left(entries, True, at, key=lambda entry: entry.key < bound)  # noqa: FBT003 - what is sought
        else:
            self.at = bisect_left(entries, bound, at, key=_key_of)
        return entries[at : self.at]

    def close(self) -> None:
        """Stop fetching: the caller wants no more."""
        if self._next is not None:
            self._next.cancel()


class Step(NamedTuple):
    """The next entries of a scan, perhaps none, and where the rest begins (in reverse: ends), if there is a
    rest.
    """

    entries: list[KeyValue]
    resume: bytes | None


async def merge_step(streams: Sequence[PageStream], *, reverse: bool) -> Step:
    """Return the next entries in the order of keys, as far as the pages in memory go."""
    for stream in streams:
        await stream.fill()
    bounds = [stream.known for stream in streams if stream.known is not None]
    bound = None
    if bounds:
        bound = max(bounds) if reverse else min(bounds)
    found: list[KeyValue] = []
    parts = [stream.take(bound, reverse=reverse) for stream in streams]
    for part in parts:
        found += part
    if sum(map(bool, parts)) > 1:
        found.sort(key=_key_of, reverse=reverse)  # runs that are in order: this merges them
    return Step(found, bound)
