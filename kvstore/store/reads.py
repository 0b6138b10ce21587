"""Reads of one replica's keys: as of now, as of a revision, in pages, and the change feed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from kvstore.machine import Compacted
from kvstore.machine.operations import Room, scan
from kvstore.machine.request import Get, Range, ReadOperation, Scan
from kvstore.machine.results import OperationResult
from kvstore.machine.versions import Row, Versions
from kvstore.store.questions import Changes, CompactedReply, Entries, Event, Feed
from multicast.types import ClientId

FEED_ROWS: Final = 4096
"""Transactions that are examined for one answer to a watch."""


def perform_reads(
    versions: Versions, operations: Sequence[ReadOperation], revision: int | None = None
) -> Iterator[OperationResult]:
    """Perform operations as of a revision, or as of now."""
    room = Room()
    for operation in operations:
        if isinstance(operation, Get):
            key = operation.key
            yield room.get(key, versions.get(key) if revision is None else versions.get_at(key, revision))
        elif isinstance(operation, Scan):
            keys, reverse = operation.range, operation.reverse
            if revision is None:
                yield room.scan(operation, versions.scan(keys, reverse=reverse))
            else:
                yield room.scan(operation, versions.scan_at(keys, revision, reverse=reverse))
        else:
            assert_never(operation)


def page_at(versions: Versions, asked: Scan, revision: int) -> Entries:
    """Return the first page of a scan at a revision."""
    found = scan(asked, versions.scan_at(asked.range, revision, reverse=asked.reverse))
    return Entries(revision, found.entries, found.more)


@dataclass(slots=True)
class _Watch:
    client: ClientId
    number: int
    question: Feed
    until: float


class FeedQueue:
    """Watches that wait for changes. Each is answered once: clients ask again for what follows."""

    __slots__ = ("_examined", "_versions", "_watches")

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._watches: list[_Watch] = []
        self._examined = 0
        """The watermark when the watches were last examined."""

    def add(self, client: ClientId, number: int, question: Feed, now: float) -> None:
        """Add a watch, to be answered when there are changes or its time is over."""
        self._watches.append(_Watch(client, number, question, now + question.wait_s))
        self._examined = 0

    def due(self, now: float) -> Iterator[tuple[ClientId, int, Changes | CompactedReply]]:
        """Remove and answer the watches that have changes, or have waited long enough."""
        watermark = self._versions.watermark
        if not self._watches or (watermark == self._examined and now < min(w.until for w in self._watches)):
            return
        self._examined = watermark
        watches, self._watches = self._watches, []
        for watch in watches:
            if watermark <= watch.question.after and now < watch.until:
                self._watches.append(watch)
            else:
                yield watch.client, watch.number, self._changes(watch.question)

    def _changes(self, question: Feed) -> Changes | CompactedReply:
        after, watermark = question.after, self._versions.watermark
        if after >= watermark:
            return Changes(after, ())
        size = question.limit_bytes
        upto, last = watermark, after
        found: list[tuple[int, tuple[Event, ...]]] = []
        try:
            for count, (revision, row) in enumerate(self._versions.changes(after)):
                if size <= 0 or count == FEED_ROWS:
                    upto = last
                    break
                last = revision
                events = tuple(_events(row, question.ranges))
                if events:
                    found.append((revision, events))
                    size -= sum(len(event.key) + len(event.value or b"") for event in events)
        except Compacted as error:
            return CompactedReply(error.floor)
        return Changes(upto, tuple(found))


def _events(row: Row, ranges: Sequence[Range]) -> Iterator[Event]:
    for change in row:
        if any(asked.covers(change.key) for asked in ranges):
            yield Event(change.key, change.value, change.create_revision, change.version)
