"""Reads of one replica's keys: as of now, as of a revision, in pages, and the change feed."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeGuard, assert_never

from kvstore.machine import Compacted
from kvstore.machine.operations import Gathering, Room
from kvstore.machine.request import Get, Range, ReadOperation, Scan
from kvstore.machine.results import OperationResult
from kvstore.machine.slices import Meter, unmetered
from kvstore.machine.versions import OutOfRows, Row, Versions, cost_of_version
from kvstore.store.questions import (
    Changes,
    CompactedReply,
    Entries,
    Event,
    Feed,
    Page,
    ReadAt,
    Sample,
    Sampled,
)
from multicast.types import ClientId

SHORT: Final = 64
"""Keys that are read at a revision in one step."""
QUEUED: Final = 10_000
"""Reads at a revision that may wait at a replica."""
STALE_S: Final = 1.0
"""How long they wait: a gateway asks another replica after half of that."""
SAMPLED: Final = 1 << 13
"""Keys that are examined for one answer to a `Sample`."""
SAMPLED_ROWS: Final = 16
"""Keys of a sample that count as a row."""

FEED_CHANGES: Final = 1024
"""Changes of keys that are examined for one answer, at most."""
FEED_AT_ONCE: Final = 256
"""Changes that are examined for an asker that has waited for them, and has the rest to ask for."""
FEED_ROWS: Final = 2
"""Changes that count as a row."""

EVENT_BYTES: Final = 32
"""What an event counts beside its key and its value."""

LARGE_S: Final = 5.0
"""How long a large transaction is kept decoded for the next question."""


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
    if meter.left <= 0:
        raise OutOfRows(b"")
    if isinstance(operation, Get):
        key = operation.key
        if revision is not None:
            return room.get(key, versions.get_at(key, revision, meter))
        found = versions.get(key)
        meter.left -= 1 if found is None else cost_of_version(found)
        return room.get(key, found)
    if isinstance(operation, Scan):
        keys, reverse = operation.range, operation.reverse
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


Asked: TypeAlias = ReadAt | Page | Sample


def sample(versions: Versions, asked: Sample, meter: Meter) -> Sampled:
    """Return where the keys of a range are. Only keys are looked at, which costs little."""
    most = min(asked.most, SAMPLED)
    meter.left -= most // SAMPLED_ROWS
    return Sampled(*versions.marks(asked.range, max(asked.every, 1), most))


class _Waiting(NamedTuple):
    client: ClientId
    number: int
    question: Asked
    until: float


def _is_short(question: Asked) -> TypeGuard[ReadAt]:
    """Whether it reads some keys only."""
    return (
        isinstance(question, ReadAt)
        and len(question.operations) <= SHORT
        and all(isinstance(each, Get) for each in question.operations)
    )


class ReadQueue:
    """Reads that are not strict: a step performs as many as its meter allows.

    Short ones, of some keys, do not wait for long ones, whose cost is not known. For the long ones gateways
    take turns. A question that waits here for long was asked of another replica in the meantime, and is
    dropped: so the work for callers that have gone ends, and callers that ask again do not multiply it.
    """

    __slots__ = ("_long", "_numbers", "_short", "long")

    def __init__(self) -> None:
        self._short: deque[_Waiting] = deque()
        self._long: OrderedDict[ClientId, deque[_Waiting]] = OrderedDict()
        """By gateway, the one whose turn is next first."""
        self._numbers: set[tuple[ClientId, int]] = set()
        self.long = 0
        """Long reads that wait."""

    @property
    def short(self) -> int:
        """Short reads that wait."""
        return len(self._short)

    def add(self, client: ClientId, number: int, question: Asked, now: float) -> bool:
        """Add a question, unless it waits already. False if too many wait."""
        if (client, number) in self._numbers:
            return True
        if len(self._numbers) >= QUEUED:
            return False
        self._numbers.add((client, number))
        waiting = _Waiting(client, number, question, now + STALE_S)
        if _is_short(question):
            self._short.append(waiting)
        else:
            self._long.setdefault(client, deque()).append(waiting)
            self.long += 1
        return True

    def take(self, meter: Meter, now: float) -> Iterator[tuple[ClientId, int, ReadAt]]:
        """Remove and return short questions while the meter has rows."""
        while self._short and meter.left > 0:
            client, number, question, until = self._short.popleft()
            self._numbers.discard((client, number))
            if now < until:
                yield client, number, question  # type: ignore[misc]  # `add` has looked

    def take_long(self, meter: Meter, now: float) -> Iterator[tuple[ClientId, int, Asked]]:
        """Remove and return long questions while the meter has rows."""
        while self._long and meter.left > 0:
            asker, queue = next(iter(self._long.items()))
            client, number, question, until = queue.popleft()
            self._numbers.discard((client, number))
            self.long -= 1
            if queue:
                self._long.move_to_end(asker)
            else:
                del self._long[asker]
            if now < until:
                yield client, number, question


@dataclass(slots=True)
class _WaitingFeed:
    client: ClientId
    number: int
    question: Feed
    until: float


class FeedQueue:
    """Questions for changes. Each is answered once: gateways ask again for what follows.

    A question waits until there are changes, and is answered with the first of them. Those of gateways that
    are behind are long work, for which gateways take turns. They are dropped when they have waited for long,
    as other reads are.
    """

    __slots__ = (
        "_behind",
        "_examined",
        "_large",
        "_large_until",
        "_numbers",
        "_versions",
        "_waiting",
        "behind",
    )

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._waiting: list[_WaitingFeed] = []
        self._examined = 0
        """The watermark when the questions were last examined."""
        self._large: tuple[int, Row] | None = None
        """The transaction that is being sent in parts: it is not decoded again for each of them."""
        self._large_until = 0.0
        self._behind: OrderedDict[ClientId, deque[_WaitingFeed]] = OrderedDict()
        """Questions for changes that are there, by gateway, the one whose turn is next first."""
        self._numbers: set[tuple[ClientId, int]] = set()
        """Of these questions."""
        self.behind = 0
        """How many they are."""

    def add(self, client: ClientId, number: int, question: Feed, now: float) -> None:
        """Add a question, to be answered when there are changes or its time is over."""
        if question.after >= self._versions.watermark:
            self._waiting.append(_WaitingFeed(client, number, question, now + question.wait_s))
            self._examined = 0
        elif (client, number) not in self._numbers and self.behind < QUEUED:
            self._numbers.add((client, number))
            self.behind += 1
            waiting = _WaitingFeed(client, number, question, now + STALE_S)
            queue = self._behind.setdefault(client, deque())
            if question.wait_s:  # for all watchers of the present: those of history come after them
                queue.appendleft(waiting)
            else:
                queue.append(waiting)

    def take_behind(
        self, meter: Meter, now: float
    ) -> Iterator[tuple[ClientId, int, Changes | CompactedReply]]:
        """Remove and answer questions for changes that are there, while the meter has rows."""
        while self._behind and meter.left > 0:
            client, queue = next(iter(self._behind.items()))
            each = queue.popleft()
            self.behind -= 1
            self._numbers.discard((client, each.number))
            if queue:
                self._behind.move_to_end(client)
            else:
                del self._behind[client]
            if now < each.until:
                most = max(1, min(meter.left * FEED_ROWS, FEED_CHANGES))
                yield client, each.number, self._changes(each.question, now, most, meter)

    def __bool__(self) -> bool:
        """Whether `due` has anything to do, now or later."""
        return bool(self._waiting or self._large is not None)

    def due(self, now: float) -> Iterator[tuple[ClientId, int, Changes | CompactedReply]]:
        """Remove and answer the questions that have changes, or have waited long enough."""
        watermark = self._versions.watermark
        if self._large is not None and now >= self._large_until:
            self._large = None
        if not self._waiting or (watermark == self._examined and now < min(w.until for w in self._waiting)):
            return
        self._examined = watermark
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if watermark <= each.question.after and now < each.until:
                self._waiting.append(each)
            else:
                yield each.client, each.number, self._changes(each.question, now, FEED_AT_ONCE, unmetered())

    def _changes(self, question: Feed, now: float, most: int, meter: Meter) -> Changes | CompactedReply:
        """Return what follows, examining at most so many changes, which the meter counts."""
        position = after, skip = question.after, question.skip
        if after >= self._versions.watermark:
            return Changes(after, (), skip, *position)
        size, left = max(question.limit_bytes, 1), most
        upto, last, begin = self._versions.watermark, after, skip
        found: list[tuple[int, tuple[Event, ...]]] = []
        skip = 0
        try:
            for revision, row in self._rows(after, begin):
                if revision != after + 1:
                    begin = 0
                events, end, size = _events(row, begin, begin + left, question.ranges, size)
                if events:
                    found.append((revision, events))
                if end < len(row):
                    left -= end - begin
                    if end:
                        upto, skip = revision - 1, end
                        self._large, self._large_until = (revision, row), now + LARGE_S
                    else:
                        upto = last
                    break
                last = revision
                left -= max(end - begin, 1)
                begin = 0
        except Compacted as error:
            return CompactedReply(error.floor)
        meter.left -= 1 + (most - left) // FEED_ROWS
        return Changes(upto, tuple(found), skip, *position)

    def _rows(self, after: int, skip: int) -> Iterator[tuple[int, Row]]:
        changes = self._versions.changes(after)  # raises, if they are compacted
        if skip and self._large is not None and self._large[0] == after + 1:
            yield self._large
            if after + 1 < self._versions.watermark:
                yield from self._versions.changes(after + 1)
            return
        yield from changes


def _events(
    row: Row, begin: int, end: int, ranges: Sequence[Range], size: int
) -> tuple[tuple[Event, ...], int, int]:
    """Return a transaction's events from the change `begin` up to `end`, or until their size is reached; the
    index at which that ended; and how much of the size is left.
    """
    found: list[Event] = []
    at = begin
    for at in range(begin, min(end, len(row))):
        if size <= 0:
            return tuple(found), at, size
        change = row[at]
        key = change.key
        for start, stop in ranges:
            if start <= key and (stop is None or key < stop):
                value = change.value
                found.append(Event(key, value, change.create_revision, change.version))
                size -= len(key) + EVENT_BYTES + (len(value) if value is not None else 0)
                break
    return tuple(found), min(end, len(row)), size
