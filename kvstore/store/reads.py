"""Reads of one replica's keys: as of now, as of a revision, in pages, and the change feed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, assert_never

from kvstore.machine import Compacted
from kvstore.machine.operations import Gathering, Room
from kvstore.machine.request import Get, Range, ReadOperation, Scan
from kvstore.machine.results import OperationResult
from kvstore.machine.slices import Meter, unmetered
from kvstore.machine.versions import OutOfRows, Row, Versions
from kvstore.store.questions import Changes, CompactedReply, Entries, Event, Feed, Page, ReadAt
from multicast.types import ClientId

QUEUED: Final = 10_000
"""Reads at a revision that may wait at a replica."""
STALE_S: Final = 1.0
"""How long they wait: a gateway asks another replica after half of that."""

FEED_ROWS: Final = 4096
"""Transactions that are examined for one answer to a watch."""


def perform_reads(
    versions: Versions,
    operations: Sequence[ReadOperation],
    revision: int | None = None,
    meter: Meter | None = None,
) -> tuple[OperationResult, ...]:
    """Perform operations as of a revision, or as of now: the first ones, if the meter ends the step."""
    room, results = Room(), []
    meter = meter or unmetered()
    for operation in operations:
        try:
            results.append(_perform_read(versions, operation, revision, room, meter))
        except OutOfRows:
            break
    return tuple(results)


def _perform_read(
    versions: Versions, operation: ReadOperation, revision: int | None, room: Room, meter: Meter
) -> OperationResult:
    if isinstance(operation, Get):
        key = operation.key
        if revision is not None:
            return room.get(key, versions.get_at(key, revision, meter))
        meter.left -= 1
        return room.get(key, versions.get(key))
    if isinstance(operation, Scan):
        keys, reverse = operation.range, operation.reverse
        if meter.left <= 0:
            raise OutOfRows(keys.start)
        if revision is None:
            return room.scan(operation, versions.scan(keys, reverse=reverse, meter=meter))
        return room.scan(operation, versions.scan_at(keys, revision, reverse=reverse, meter=meter))
    assert_never(operation)


def page_at(versions: Versions, asked: Page, revision: int, meter: Meter) -> Entries:
    """Return the first page of a scan at a revision. It ends with its limits, or with the step."""
    scan = asked.scan
    found = Gathering(scan)
    resume, via = None, 0
    try:
        for entry in versions.scan_at(scan.range, revision, reverse=scan.reverse, via=asked.via, meter=meter):
            if not found.add(entry):
                resume = entry.key + b"\0" if scan.reverse else entry.key
                break
    except OutOfRows as paused:
        resume, via = paused.resume, paused.via
    return Entries(revision, tuple(found.entries), resume, via, found.count)


class _Waiting(NamedTuple):
    client: ClientId
    number: int
    question: ReadAt | Page
    until: float


class ReadQueue:
    """Reads at a revision, in the order of their arrival: a step performs as many as its meter allows.

    A question that waits here for long was asked of another replica in the meantime, and is dropped: so the
    work for callers that have gone ends, and callers that ask again do not multiply it.
    """

    __slots__ = ("_numbers", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._numbers: set[tuple[ClientId, int]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, client: ClientId, number: int, question: ReadAt | Page, now: float) -> bool:
        """Add a question, unless it waits already. False if too many wait."""
        if (client, number) in self._numbers:
            return True
        if len(self._waiting) >= QUEUED:
            return False
        self._numbers.add((client, number))
        self._waiting.append(_Waiting(client, number, question, now + STALE_S))
        return True

    def take(self, meter: Meter, now: float) -> Iterator[tuple[ClientId, int, ReadAt | Page]]:
        """Remove and return questions while the meter has rows."""
        while self._waiting and meter.left > 0:
            client, number, question, until = self._waiting.popleft()
            self._numbers.discard((client, number))
            if now < until:
                yield client, number, question


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
