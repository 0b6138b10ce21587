"""What the client for event loops returns to iterate over: scans and watches, fetched as they are consumed.

`wbkv.iterators`, for threads, is generated from this module.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Generic, Self, TypeVar

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.aio.forgotten import AsyncForOnly, AsyncWithOnly
from wbkv.core.effects import Plan
from wbkv.core.requests import Requests
from wbkv.core.streams import Page, Progress
from wbkv.data import Change, Entry, V
from wbkv.links.tasks import AsyncLink, AsyncPuller

T = TypeVar("T")


class Closes(AsyncWithOnly):
    """A resource that the end of an `async with` block closes."""

    async def close(self) -> None:
        """Release the resource."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Scan(Closes, AsyncForOnly, AsyncIterator[T]):
    """An iterator over the results of a scan, fetched as they are consumed."""

    def __init__(self, link: AsyncLink, plan: Plan[None], convert: Callable[[Page], list[T]]) -> None:
        self._puller: AsyncPuller[Page] = AsyncPuller(link, plan)
        self._convert = convert
        self._page: Iterator[T] = iter(())
        self.revision = 0
        """The revision of all results; 0 until the first page has arrived."""

    def __repr__(self) -> str:
        return f"<wbkv.aio.Scan{f' at revision {self.revision}' if self.revision else ', not begun'}>"

    async def _turn(self) -> None:
        page = await self._puller.pull()
        self.revision = page.revision
        self._page = iter(self._convert(page))

    async def __aiter__(self) -> AsyncIterator[T]:
        # A generator is faster than `self`. The scan does not keep it, so an abandoned scan ends.
        while True:
            for item in self._page:
                yield item
            try:
                await self._turn()
            except StopAsyncIteration:
                return

    async def __anext__(self) -> T:
        while True:
            for item in self._page:
                return item
            await self._turn()

    async def close(self) -> None:
        """End the scan."""
        self._page = iter(())
        self._puller.close()


class Watch(Closes, AsyncForOnly, Generic[V]):
    """An iterator over changes, as they happen. `client.watch` returns one."""

    def __init__(self, link: AsyncLink, requests: Requests[V], plan: Plan[None], *, marks: bool) -> None:
        self._requests = requests
        self._puller: AsyncPuller[Progress] = AsyncPuller(link, plan)
        self._marks = marks
        self._ready: deque[tuple[int, Sequence[kv.Event]]] = deque()
        self._position = 0
        self.revision = 0
        """All changes up to this revision were returned to the caller: `after` for a later watch."""

    def __repr__(self) -> str:
        return f"<wbkv.aio.Watch{f' after revision {self.revision}' if self.revision else ', not begun'}>"

    async def __aenter__(self) -> Self:
        if not self._position:
            await self._pull(None)
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[V]:
        found = await self.next()
        assert found is not None
        return found

    async def next(self, timeout: float | None = None) -> Change[V] | None:
        """Return the next change, or None if none arrives in time. Raises `StopAsyncIteration` if closed."""
        now = self._requests.calls.environment.now
        until = None if timeout is None else now() + timeout
        while not self._ready:
            try:
                await self._pull(None if until is None else max(until - now(), 0.0))
            except queue.Empty:
                return None
        self.revision, events = self._ready.popleft()
        return self._requests.change(self.revision, events)

    async def _pull(self, timeout_s: float | None) -> None:
        self.revision = self._position  # the caller has taken everything up to there
        progress = await self._puller.pull(timeout_s)
        self._ready += progress.changes
        if self._marks:
            self._ready.append((progress.revision, ()))
        self._position = progress.revision
        if not progress.changes:  # a mark of progress is none
            self.revision = self._position

    async def close(self) -> None:
        """End the watch. Another task may call it, which ends the iteration."""
        self._puller.close()


async def all_of(puller: AsyncPuller[T]) -> AsyncGenerator[T, None]:
    """Yield everything that a plan emits, and close it at the end."""
    try:
        while True:
            try:
                item = await puller.pull()
            except StopAsyncIteration:
                return
            yield item
    finally:
        puller.close()


async def first_of(puller: AsyncPuller[list[Entry[V]]], limit: int) -> AsyncIterator[Entry[V]]:
    """Yield the entries of pages, so many at most; 0: all."""
    given = 0
    async with aclosing(all_of(puller)) as pages:
        async for page in pages:
            for entry in page:
                yield entry
                given += 1
                if given == limit:
                    return
