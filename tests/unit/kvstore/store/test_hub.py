"""One hub for many watchers: each gets exactly what is in its ranges and above its position, in order."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from kvstore.machine.request import Range
from kvstore.store import feeds, hub
from kvstore.store.feeds import FeedPosition, Piece
from kvstore.store.hub import Audience, Cursor, Hub
from kvstore.store.questions import Changes, Event
from multicast.types import GroupId
from tests.campaigns import CAMPAIGN

A, B = GroupId(0), GroupId(1)
GROUPS = (A, B)
ALL = (Range(b"", None),)


def event(key: bytes) -> Event:
    return Event(key, b"v", 1, 1)


class History:
    """What two groups have executed, and how far a feed has read it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows: dict[GroupId, dict[int, list[Event]]] = {group: {} for group in GROUPS}
        self.revision = 10
        self.position = dict.fromkeys(GROUPS, FeedPosition(10))

    def write(self) -> None:
        self.revision += self.rng.choice((1, 1, 3))
        for group in self.rng.choice(((A,), (B,), GROUPS)):
            keys = sorted({b"%d%d" % (self.rng.randrange(3), self.rng.randrange(9)) for _ in range(6)})
            mine = [b"a" + key if group == A else b"b" + key for key in keys]
            self.rows[group][self.revision] = [event(key) for key in mine]

    def changes(self, group: GroupId) -> Changes:
        """The next answer to the feed of a group: a few events."""
        after, skip = position = self.position[group]
        left = self.rng.randrange(1, 8)
        found: list[tuple[int, tuple[Event, ...]]] = []
        upto, at = self.revision, 0
        for revision, events in sorted(self.rows[group].items()):
            if revision <= after:
                continue
            begin = skip if revision == after + 1 else 0
            mine = events[begin : begin + left]
            left -= len(mine)
            if mine:
                found.append((revision, tuple(mine)))
            if begin + len(mine) < len(events):
                upto, at = revision - 1, begin + len(mine)
                break
        self.position[group] = FeedPosition(upto, at)
        return Changes(upto, tuple(found), at, *position)

    def expected(self, ranges: tuple[Range, ...], after: int, upto: int) -> list[tuple[int, list[bytes]]]:
        found: dict[int, list[bytes]] = {}
        for rows in self.rows.values():
            for revision, events in rows.items():
                keys = [e.key for e in events if any(each.covers(e.key) for each in ranges)]
                if keys and after < revision <= upto:
                    found.setdefault(revision, []).extend(keys)
        return [(revision, sorted(keys)) for revision, keys in sorted(found.items())]


class Watcher:
    """What a client has got, and where it is."""

    def __init__(self, shared: Hub, history: History, ranges: tuple[Range, ...], after: int) -> None:
        self.ranges = ranges
        self.after = self.at = after
        self.history = history
        self.audience: Audience = shared.join(ranges)
        self.cursor: Cursor | None = None
        self.got: list[tuple[int, list[bytes]]] = []
        self.begun: list[bytes] = []
        self.behind = 0

    def take(self, limit_bytes: int) -> None:
        if self.cursor is not None and self.cursor.behind:
            self.cursor = None
            self.behind += 1
        if self.cursor is None:
            self.cursor = self.audience.hub.cursor(self.audience, self.at)
        if self.cursor is None:
            upto = max(self.audience.since, self.at)  # history is read up to where the hub goes on
            self.got += self.history.expected(self.ranges, self.at, upto)
            self.at, self.begun = upto, []
            return
        batch = self.cursor.take(limit_bytes)
        for piece in batch.transactions:
            assert piece.revision > self.at
            self.begun = [*([] if piece.first else self.begun), *(e.key for e in piece.events)]
            if piece.last:
                self.got.append((piece.revision, sorted(self.begun)))
                self.at = piece.revision
        assert batch.revision >= self.at
        self.at = batch.revision


class Run(NamedTuple):
    seed: int
    buffer_bytes: int
    few: int


RUNS = [
    Run(seed, *sizes)
    for seed in range(200 if CAMPAIGN else 5)
    for sizes in ((1 << 20, 0), (1 << 20, 99), (4000, 0), (4000, 99))
]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_every_watcher_gets_everything_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "FEW", run.few)
    monkeypatch.setattr(feeds, "PIECE_BYTES", 600)
    rng = random.Random(run.seed)
    history = History(rng)
    for _ in range(8):
        history.write()
    for _ in range(rng.randrange(10)):  # feeds may be in the middle of a transaction when the hub begins
        history.changes(rng.choice(GROUPS))
    shared = Hub(history.position, buffer_bytes=run.buffer_bytes)
    watchers: list[Watcher] = []
    for _ in range(600):
        what = rng.random()
        if what < 0.3:
            history.write()
        elif what < 0.6:
            group = rng.choice(GROUPS)
            shared.take(group, history.changes(group))
        elif what < 0.63 and len(watchers) < 12:
            prefix = rng.choice((b"", b"a", b"a1", b"a12", b"b2", b"b"))
            ranges = (Range.of_prefix(prefix), *rng.choice(((), (Range(b"a11", b"a22"),))))
            watchers.append(Watcher(shared, history, ranges, rng.randrange(10, history.revision + 1)))
        elif what < 0.64 and len(watchers) > 2:
            gone = watchers.pop(rng.randrange(len(watchers)))
            assert gone.got == history.expected(gone.ranges, gone.after, gone.at)
            shared.leave(gone.audience)
        elif what < 0.643:
            # A feed begins again, above what it has read: what is between is in history only.
            history.position = dict.fromkeys(GROUPS, FeedPosition(history.revision))
            shared.start_over(history.position)
        elif watchers:
            rng.choice(watchers).take(rng.choice((1, 1000, 1 << 20)))
        assert shared._size <= run.buffer_bytes
        assert shared.size <= 2 * run.buffer_bytes + 6000
    while any(position != (history.revision, 0) for position in history.position.values()):
        for group in GROUPS:
            shared.take(group, history.changes(group))
    for watcher in watchers:
        while watcher.at < history.revision:
            watcher.take(1 << 20)
        assert watcher.got == history.expected(watcher.ranges, watcher.after, history.revision)
    if run.buffer_bytes < 1 << 20:
        assert any(watcher.behind for watcher in watchers)


def put(shared: Hub, revision: int, *keys: bytes) -> None:
    """A transaction of one group, which the other passes too."""
    for group in GROUPS:
        after = shared.passed(group)
        events = ((revision, tuple(map(event, keys))),) if group == A else ()
        shared.take(group, Changes(revision, events, after=after))


def test_a_watcher_ahead_of_the_hub_gets_nothing_that_it_has() -> None:
    shared = Hub(dict.fromkeys(GROUPS, FeedPosition(10)))
    audience = shared.join(ALL)
    cursor = shared.cursor(audience, 20)
    assert cursor is not None
    for revision in (15, 20, 25):
        put(shared, revision, b"k")
    assert [piece.revision for piece in cursor.take(1 << 20).transactions] == [25]


def test_watchers_at_one_position_share_a_batch() -> None:
    shared = Hub(dict.fromkeys(GROUPS, FeedPosition(10)))
    audiences = [shared.join(ALL) for _ in range(3)]
    assert len(set(audiences)) == 1
    cursors = [shared.cursor(audience, 10) for audience in audiences]
    put(shared, 15, b"k")
    batches = {id(cursor.take(1 << 20)) for cursor in cursors if cursor is not None}
    assert len(batches) == 1


def test_an_event_is_looked_up_and_not_compared_with_all_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Hub(dict.fromkeys(GROUPS, FeedPosition(10)))
    audiences = [shared.join((Range.of_prefix(b"%04d/" % number),)) for number in range(1000)]
    put(shared, 12, b"first")  # builds the index
    compared = 0
    covers = Range.covers

    def counted(self: Range, key: bytes) -> bool:
        nonlocal compared
        compared += 1
        return covers(self, key)

    monkeypatch.setattr(Range, "covers", counted)
    put(shared, 15, b"0007/k")
    assert compared == 0
    assert [len(audience.pieces) for audience in audiences] == [int(number == 7) for number in range(1000)]
    assert list(shared.dirty) == [audiences[7]]


def test_audiences_that_left_are_forgotten() -> None:
    shared = Hub(dict.fromkeys(GROUPS, FeedPosition(10)))
    for number in range(500):
        audience = shared.join((Range.of_prefix(b"%04d/" % number),))
        put(shared, 20 + number, b"%04d/k" % number)
        shared.leave(audience)
    assert shared.size == 0
    assert len(shared._order) <= 100
    assert len(shared._index) == 0


def test_a_lost_piece_means_that_the_transaction_is_read_again() -> None:
    shared = Hub(dict.fromkeys(GROUPS, FeedPosition(10)))
    audience = shared.join(ALL)
    cursor = shared.cursor(audience, 10)
    assert cursor is not None
    shared.take(B, Changes(30, (), after=10))
    shared.take(A, Changes(19, ((20, (event(b"a"),)),), 1, after=10))
    batch = cursor.take(1 << 20)
    assert batch.transactions == (Piece(20, (event(b"a"),), first=True, last=False),)
    assert batch.revision == 19
    audience.drop_first()
    assert shared.cursor(audience, cursor.at) is None
    assert (cursor.next, audience.first) == (1, 1)  # it has the piece
    shared.take(A, Changes(19, ((20, (event(b"b"),)),), 2, after=19, after_skip=1))
    audience.drop_first()
    assert cursor.behind
    assert shared.cursor(audience, cursor.at) is None
