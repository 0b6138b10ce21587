# Generated from aio/iterators.py by clients/tools/sync_client.py (`make sync-client`): do not edit.
"""What the client for threads returns to iterate over: scans and watches, fetched as they are consumed."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from types import TracebackType
from typing import Generic, Self, TypeVar

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv.core.effects import Plan
from wbkv.core.requests import Requests
from wbkv.core.streams import Page, Progress
from wbkv.data import Change, Entry, V
from wbkv.links.threads import Link, Puller

T = TypeVar("T")


class Closes:
    """A resource that the end of a `with` block closes."""

    def close(self) -> None:
        """Release the resource."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Scan(Closes, Iterator[T]):
    """An iterator over the results of a scan, fetched as they are consumed."""

    def __init__(self, link: Link, plan: Plan[None], convert: Callable[[Page], list[T]]) -> None:
        self._puller: Puller[Page] = Puller(link, plan)
        self._convert = convert
        self._page: Iterator[T] = iter(())
        self.revision = 0
        """The revision of all results; 0 until the first page has arrived."""

    def __repr__(self) -> str:
        return f"<wbkv.Scan{f' at revision {self.revision}' if self.revision else ', not begun'}>"

    def _turn(self) -> None:
        page = self._puller.pull()
        self.revision = page.revision
        self._page = iter(self._convert(page))

    def __iter__(self) -> Iterator[T]:
        # A generator is faster than `self`. The scan does not keep it, so an abandoned scan ends.
        while True:
            yield from self._page
            try:
                self._turn()
            except StopIteration:
                return

    def __next__(self) -> T:
        while True:
            for item in self._page:
                return item
            self._turn()

    def close(self) -> None:
        """End the scan."""
        self._page = iter(())
        self._puller.close()


class Watch(Closes, Generic[V]):
    """An iterator over changes, as they happen. `client.watch` returns one."""

    def __init__(self, link: Link, requests: Requests[V], plan: Plan[None], *, marks: bool) -> None:
        self._requests = requests
        self._puller: Puller[Progress] = Puller(link, plan)
        self._marks = marks
        self._ready: deque[tuple[int, Sequence[kv.Event]]] = deque()
        self._position = 0
        self.revision = 0
        """All changes up to this revision were returned to the caller: `after` for a later watch."""

    def __repr__(self) -> str:
        return f"<wbkv.Watch{f' after revision {self.revision}' if self.revision else ', not begun'}>"

    def __enter__(self) -> Self:
        if not self._position:
            self._pull(None)
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change[V]:
        found = self.next()
        assert found is not None
        return found

    def next(self, timeout: float | None = None) -> Change[V] | None:
        """Return the next change, or None if none arrives in time. Raises `StopIteration` if closed."""
        now = self._requests.calls.environment.now
        until = None if timeout is None else now() + timeout
        while not self._ready:
            try:
                self._pull(None if until is None else max(until - now(), 0.0))
            except queue.Empty:
                return None
        self.revision, events = self._ready.popleft()
        return self._requests.change(self.revision, events)

    def _pull(self, timeout_s: float | None) -> None:
        self.revision = self._position  # the caller has taken everything up to there
        progress = self._puller.pull(timeout_s)
        self._ready += progress.changes
        if self._marks:
            self._ready.append((progress.revision, ()))
        self._position = progress.revision
        if not progress.changes:  # a mark of progress is none
            self.revision = self._position

    def close(self) -> None:
        """End the watch. Another thread may call it, which ends the iteration."""
        self._puller.close()


def all_of(puller: Puller[T]) -> Generator[T, None, None]:
    """Yield everything that a plan emits, and close it at the end."""
    try:
        while True:
            try:
                item = puller.pull()
            except StopIteration:
                return
            yield item
    finally:
        puller.close()


def first_of(puller: Puller[list[Entry[V]]], limit: int) -> Iterator[Entry[V]]:
    """Yield the entries of pages, so many at most; 0: all."""
    given = 0
    with closing(all_of(puller)) as pages:
        for page in pages:
            for entry in page:
                yield entry
                given += 1
                if given == limit:
                    return
