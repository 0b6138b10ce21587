"""A group's changes in answers of a bounded size, merged again: nothing lost, twice, or mixed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.machine.ordered import MemoryMap
from kvstore.machine.request import Range
from kvstore.machine.slices import Meter
from kvstore.machine.versions import KeyChange, Row, Versions
from kvstore.store import feeds, reads
from kvstore.store.feeds import FeedPosition, MergedFeed, Piece
from kvstore.store.questions import Changes, CompactedReply, Event, Feed
from kvstore.store.reads import FeedQueue
from multicast.types import ClientId, GroupId

ALL = (Range(b"", None),)
CLIENT = ClientId(9)
SMALL = 300
"""Of an answer: a few events."""


def row(*keys: bytes) -> Row:
    return tuple(KeyChange(key, b"v", 1, 1, 0) for key in sorted(keys))


def versions(rows: dict[int, Row], watermark: int) -> Versions:
    found = Versions(MemoryMap(), MemoryMap(rows))
    found.watermark = watermark
    return found


def answer(queue: FeedQueue, question: Feed) -> Changes | CompactedReply:
    queue.add(CLIENT, 1, question, 0.0)
    ((_, _, found),) = [*queue.due(0.5), *queue.take_behind(Meter(reads.FEED_CHANGES), 0.5)]
    return found


def read_all(store: Versions, ranges: Sequence[Range] = ALL, size: int = SMALL) -> list[Changes]:
    """All answers to a gateway that asks for what follows."""
    found: list[Changes] = []
    upto = skip = 0
    queue = FeedQueue(store)
    while upto < store.watermark:
        changes = answer(queue, Feed(upto, tuple(ranges), size, 0.0, skip))
        assert isinstance(changes, Changes)
        assert (changes.after, changes.after_skip) == (upto, skip)
        assert (changes.upto, changes.skip) > (upto, skip)
        upto, skip = changes.upto, changes.skip
        found.append(changes)
    return found


def whole(pieces: Sequence[Piece]) -> list[tuple[int, list[bytes]]]:
    """The transactions of pieces, as a client puts them together."""
    found: list[tuple[int, list[bytes]]] = []
    begun: list[Event] = []
    open_ = 0
    for piece in pieces:
        assert piece.first == (open_ != piece.revision)
        assert not open_ or open_ == piece.revision, "another transaction in the middle of one"
        begun = [*begun, *piece.events]
        open_ = piece.revision
        if piece.last:
            found.append((piece.revision, sorted(event.key for event in begun)))
            begun, open_ = [], 0
    assert not open_
    return found


def test_a_large_transaction_comes_in_answers_of_a_bounded_size() -> None:
    keys = [b"k%05d" % i for i in range(10_000)]
    found = read_all(versions({5: row(b"a"), 7: row(*keys), 8: row(b"z")}, 9), size=4096)
    assert max(len(events) for changes in found for _, events in changes.transactions) < 200
    merged = MergedFeed({GroupId(0): FeedPosition(0)})
    pieces: list[Piece] = []
    for changes in found:
        merged.take(GroupId(0), changes)
        assert merged.size < 100_000
        pieces += merged.drain()
    assert whole(pieces) == [(5, [b"a"]), (7, keys), (8, [b"z"])]


def test_what_is_looked_at_for_an_answer_is_bounded_even_if_nothing_is_found() -> None:
    keys = [b"k%05d" % i for i in range(3 * reads.FEED_CHANGES)]
    found = read_all(versions({7: row(*keys), 8: row(b"z")}, 9), [Range(b"z", None)], size=1 << 20)
    assert [(changes.upto, changes.skip) for changes in found[:2]] == [
        (6, reads.FEED_CHANGES),
        (6, 2 * reads.FEED_CHANGES),
    ]


def test_a_large_transaction_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = versions({7: row(*(b"k%05d" % i for i in range(1000)))}, 9)
    fetched = 0
    items = MemoryMap.items

    def counted(*arguments: Any, **more: Any) -> Iterator[Any]:
        nonlocal fetched
        for item in items(*arguments, **more):
            fetched += 1
            yield item

    monkeypatch.setattr(MemoryMap, "items", counted)
    assert len(read_all(store)) > 100
    assert fetched == 1


def test_a_compacted_position_is_reported_in_the_middle_of_a_transaction() -> None:
    store = versions({7: row(*(b"k%05d" % i for i in range(100)))}, 9)
    queue = FeedQueue(store)
    first = answer(queue, Feed(0, ALL, SMALL, 0.0))
    assert isinstance(first, Changes)
    store.floor = 8
    assert answer(queue, Feed(first.upto, ALL, SMALL, 0.0, first.skip)) == CompactedReply(8)


def test_an_answer_to_another_question_is_dropped() -> None:
    merged = MergedFeed({GroupId(0): FeedPosition(5)})
    event = Event(b"k", b"v", 1, 1)
    merged.take(GroupId(0), Changes(9, ((4, (event,)), (7, (event,))), after=3))
    assert merged.drain() == ()
    merged.take(GroupId(0), Changes(9, ((7, (event,)),), after=5))
    assert [piece.revision for piece in merged.drain()] == [7]


TRANSACTIONS = st.lists(
    st.dictionaries(st.integers(0, 2), st.integers(1, 12), min_size=1, max_size=3), max_size=12
)


@pytest.mark.parametrize("piece_bytes", [500, 1 << 20])
@pytest.mark.parametrize("ranges", [ALL, (Range(b"0/", b"0/004"), Range(b"1/006", None))])
@settings(deadline=None)
@given(TRANSACTIONS, st.integers(0, 2**32), st.sampled_from([1, 100, SMALL, 1 << 20]))
def test_transactions_of_several_groups_are_whole_and_in_order(
    piece_bytes: int, ranges: tuple[Range, ...], transactions: list[dict[int, int]], seed: int, size: int
) -> None:
    rng = random.Random(seed)
    rows: dict[GroupId, dict[int, Row]] = {GroupId(group): {} for group in range(3)}
    expected = []
    revision = 0
    for transaction in transactions:
        revision += rng.choice((1, 1, 5))
        keys = []
        for group, count in transaction.items():
            mine = [b"%d/%03d" % (group, i) for i in range(count)]
            rows[GroupId(group)][revision] = row(*mine)
            keys += [key for key in mine if any(each.covers(key) for each in ranges)]
        if keys:
            expected.append((revision, sorted(keys)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "FEED_CHANGES", 5)
        answers = {g: read_all(versions(mine, revision + 1), ranges, size) for g, mine in rows.items()}
    merged = MergedFeed(dict.fromkeys(rows, FeedPosition(0)))
    pieces: list[Piece] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feeds, "PIECE_BYTES", piece_bytes)
        while left := [group for group, waiting in answers.items() if waiting]:
            group = rng.choice(left)
            merged.take(group, answers[group].pop(0))
            pieces += merged.drain()
            assert all(piece.revision <= merged.complete for piece in pieces if piece.last)
    assert whole(pieces) == expected
    assert merged.size == 0
