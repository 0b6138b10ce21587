"""Scans and watches go on where they were, whenever the connection breaks: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import gc
import itertools
import struct
import weakref
from typing import Any

import pytest
import wbkv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wbkv import aio
from wbkv.core.calls import PATIENCE_S
from wbkv.core.effects import Ask, Failure, Open
from wbkv.core.requests import Requests
from wbkv.core.streams import SILENCE_S
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

from tests.unit.wbkv.model import KEY_BYTES, Clock, ModelLink, drive, lost, times, told

LONG = [b"k" * KEY_BYTES, b"k" * (KEY_BYTES - 1) + b"\xff", b"\xff" * KEY_BYTES]
KEYS = sorted([*(b"k%02d" % i for i in range(7)), b"k", b"k\0", *LONG])
"""Some of them as long as keys can be: what follows them has no longer name."""


def fill(link: ModelLink) -> None:
    for key in KEYS:
        link.store.put(key, b"v" + key)


# Scans


@pytest.mark.parametrize("page", [1, 2, 5, 100])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 4, len(KEYS), 100])
@pytest.mark.parametrize("keys", [wbkv.EVERYTHING, wbkv.prefix("k0"), wbkv.between("k01", None)])
def test_a_scan_that_breaks_at_every_message(
    link: ModelLink,
    client: wbkv.Client[bytes],
    page: int,
    reverse: bool,  # noqa: FBT001 - a case
    limit: int,
    keys: wbkv.KeyRange,
) -> None:
    fill(link)
    link.page = page
    expected = sorted((key for key in KEYS if key in keys), reverse=reverse)[: limit or None]
    for cut in range(len(expected) + 3):
        for again in (1, 2):
            link.cuts = [cut] * again
            with client.scan(keys, limit=limit, reverse=reverse) as scan:
                begun_at = link.store.revision
                found = []
                for entry in scan:
                    found.append(entry.key)
                    link.store.put(entry.key, b"changed")  # others go on writing: this is not to be seen
                    link.store.put(b"k3%d" % len(found), b"new")
                assert found == expected
                assert scan.revision == begun_at
            link.cuts = []
            for key in list(link.store.history):
                if key not in KEYS:
                    link.store.put(key, None)
    assert all(stream.cancelled for stream in link.opened)


@pytest.mark.parametrize("page", [1, 2, 5])
def test_columns_that_break_at_every_message(link: ModelLink, client: wbkv.Client[bytes], page: int) -> None:
    fill(link)
    link.page = page
    at = link.store.revision
    for cut in range(len(KEYS) + 3):
        link.cuts = [cut]
        found: list[bytes] = []
        for columns in client.scan_columns():
            link.store.put(KEYS[0], b"changed")
            ends = [0, *struct.unpack(f"<{columns.count}I", columns.key_ends)]
            found += [columns.keys[a:b] for a, b in itertools.pairwise(ends)]
            assert len(columns.mod_revisions) == 8 * columns.count
        assert found == KEYS
        assert columns.revision >= at
    assert all(stream.cancelled for stream in link.opened)


def test_counting_and_keys_survive_breaks(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link)
    for cut in range(8):
        link.cuts = [cut, 0]
        assert client.count("k0") == 7
        link.cuts = [cut, 0]
        assert list(client.keys("k0")) == [key for key in KEYS if key.startswith(b"k0")]


def test_a_count_goes_on_where_it_was(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link)
    link.page = 2
    for cut in range(4):
        link.asked.clear()
        link.cuts = [cut]
        assert client.count("k0") == 7
        requests: list[Any] = [opened.request for opened in link.kinds("Scan")]
        starts = [request.range.interval.start for request in requests]
        assert starts == [b"k0", b"k0%d" % (2 * cut) if cut else b"k0"]


def test_a_large_range_is_removed_in_several_transactions(
    link: ModelLink, client: wbkv.Client[bytes]
) -> None:
    fill(link)
    link.store.delete_keys = 3
    assert client.delete(wbkv.prefix("k0")) == 7
    assert client.count("k0") == 0
    requests: list[Any] = [ask.request for ask in link.kinds("Delete")]
    assert [each.range.interval.start for each in requests] == [b"k0", b"k03", b"k06"]
    assert all(each.limit for each in requests)
    assert len({each.id.sequence for each in requests}) == 3


def test_a_scan_can_be_iterated_by_hand_and_in_parts(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link)
    scan = client.keys("k0")
    assert [next(scan), next(scan), next(scan)] == [b"k00", b"k01", b"k02"]
    for key in scan:
        assert key == b"k03"
        break
    assert [next(scan), *scan] == [b"k04", b"k05", b"k06"]
    assert list(scan) == []
    with pytest.raises(StopIteration):
        next(scan)


def test_a_scan_that_is_left_ends(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    """Without waiting for the garbage collector."""
    fill(link)
    gc.disable()
    try:
        for _ in client.scan(wbkv.EVERYTHING):
            break
        assert link.opened[-1].cancelled
        scan = client.scan(wbkv.EVERYTHING)
        next(scan)
        there = weakref.ref(scan)
        del scan
        assert there() is None
        assert link.opened[-1].cancelled
        with client.scan(wbkv.EVERYTHING) as scan:
            next(scan)
        assert link.opened[-1].cancelled
        assert list(scan) == []
    finally:
        gc.enable()


def test_a_node_that_says_nothing_is_left_for_another(link: ModelLink, requests: Requests[bytes]) -> None:
    fill(link)
    link.before = times(1, lost(ApiError.DEADLINE_PASSED), method="Scan")
    waits: list[float] = []
    plain = link.next

    def next_(stream: Any, timeout_s: float) -> Any:
        waits.append(timeout_s)
        return plain(stream, timeout_s)

    link.next = next_  # type: ignore[method-assign]  # to see how long it waits
    plan = requests.scan(
        "k0", limit=0, reverse=False, shape=kv.ENTRIES, revision=0, consistency=None, timeout_s=None
    )
    assert sum(len(page.entries) for page in drive(link, plan)) == 7
    assert waits[:2] == [PATIENCE_S, 2 * PATIENCE_S]
    assert len(set(link.addresses)) == 2


def test_a_slow_reader_does_not_use_up_the_time_for_finding_another_node(
    link: ModelLink, clock: Clock, client: wbkv.Client[bytes]
) -> None:
    fill(link)
    link.cuts = [1, 1]
    found = []
    for key in client.keys("k0", timeout=5.0):
        found.append(key)
        clock.now += 60.0
    assert len(found) == 7


def test_a_scan_ends_in_time(link: ModelLink, clock: Clock, client: wbkv.Client[bytes]) -> None:
    link.before = lambda asked: lost(begun=False)
    begun = clock.now
    with pytest.raises(wbkv.Unavailable):
        list(client.scan("k", timeout=3.0))
    assert 3.0 <= clock.now - begun < 3.1


def test_what_a_scan_cannot_have_is_said_at_once(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    link.before = lambda asked: told(ApiError.COMPACTED, revision=50)
    with pytest.raises(wbkv.Compacted) as found:
        list(client.scan("k", revision=10))
    assert found.value.revision == 50
    assert len(link.asked) == 1
    link.asked.clear()
    for wrong in ({"limit": -1}, {"limit": "1"}, {"revision": -1}, {"timeout": 0.0}, {"consistency": "x"}):
        with pytest.raises(ValueError, match="must be"):
            client.scan("k", **wrong)
    with pytest.raises(TypeError, match="key"):
        client.scan(5)  # type: ignore[arg-type]  # that is the test
    assert not link.asked


def test_a_value_that_the_codec_cannot_read(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    link.store.put(b"k", b"x")
    with pytest.raises(ValueError, match="value of b'k'"):
        list(client.using(wbkv.codecs.INTEGER).scan("k"))


# Watches


def write(link: ModelLink, rng: list[list[int]]) -> list[tuple[int, list[bytes]]]:
    """Transactions. What a watch of "k" has to tell of them."""
    expected = []
    for number, keys in enumerate(rng):
        names = [b"x%d" % key if key % 5 == 4 else b"k%d" % key for key in keys]
        revision = link.store._commit(dict.fromkeys(names, b"%d" % number))
        watched = sorted(b"k%d" % key for key in keys if key % 5 != 4)
        if watched:
            expected.append((revision, watched))
    return expected


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    written=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True), max_size=6),
    cuts=st.lists(st.integers(0, 9), max_size=8),
    size=st.integers(1, 4),
)
def test_a_watch_that_breaks_anywhere(
    clock: Clock, requests: Requests[bytes], written: list[list[int]], cuts: list[int], size: int
) -> None:
    """Also inside of a transaction that comes in several messages."""
    link = ModelLink(clock)
    client = wbkv.Client(link, requests)
    link.page = size
    begin = link.store.revision
    expected = write(link, written)
    link.cuts = [*cuts, *range(1, 12), 40]
    with client.watch("k", after=begin) as watch:
        assert watch.revision == begin
        found = []
        while (change := watch.next(timeout=0.1)) is not None:
            assert watch.revision == change.revision
            found.append((change.revision, [event.key for event in change.events]))
    assert found == expected
    assert watch.revision == link.store.revision


def test_a_watch_goes_on_from_its_revision(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    begin = link.store.revision
    expected = write(link, [[1, 2], [3], [4], [5, 6], [7]])
    for taken in range(len(expected) + 1):
        found = []
        with client.watch("k", after=begin) as watch:
            found += [next(watch).revision for _ in range(taken)]
            position = watch.revision
        with client.watch("k", after=position) as watch:
            while (change := watch.next(timeout=0.1)) is not None:
                found.append(change.revision)
        assert found == [revision for revision, _ in expected]


def test_a_watch_begins_when_it_is_entered(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    write(link, [[1]])
    with client.watch("k") as watch:
        assert watch.revision == link.store.revision
        link.cuts = [0, 0]
        link.opened[-1].left = 0  # it breaks at once, and nothing is lost
        expected = write(link, [[2], [3]])
        assert [next(watch).revision, next(watch).revision] == [revision for revision, _ in expected]


def test_marks_of_progress(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    begin = link.store.revision
    write(link, [[4], [1], [4]])  # k4 is not among them: x4 is
    with client.watch("k", after=begin, progress=True) as watch:
        found = []
        while (change := watch.next(timeout=0.1)) is not None:
            found.append((change.revision - begin, len(change.events)))
    assert found == [(0, 0), (10, 0), (20, 1), (20, 0), (30, 0)]


def test_a_watch_below_the_floor(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    link.before = lambda asked: told(ApiError.COMPACTED, revision=77)
    with pytest.raises(wbkv.Compacted) as found, client.watch("k", after=5):
        pass
    assert found.value.revision == 77


def test_a_slow_reader_of_a_watch_does_not_end_it(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    begin = link.store.revision
    expected = write(link, [[1], [2], [3]])
    link.cuts = [2, 2, 2]
    with client.watch("k", after=begin, timeout=1.0) as watch:
        for revision, _ in expected:
            assert next(watch).revision == revision
            link.clock.now += 100.0


def test_a_silent_watch_goes_elsewhere_whatever_its_timeout(
    link: ModelLink, clock: Clock, client: wbkv.Client[bytes]
) -> None:
    with client.watch("k", timeout=1.0) as watch:
        begun = clock.now
        assert watch.next(timeout=3 * SILENCE_S) is None
        assert clock.now - begun >= 3 * SILENCE_S - 1e-6
    assert 3 <= len(link.kinds("Watch")) <= 5  # it is given its time, once it has begun


def test_a_watch_that_finds_no_node_says_so(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    link.before = lambda asked: lost()
    with pytest.raises(wbkv.DeadlineExceeded):
        client.watch("k", timeout=1.0).next(timeout=60.0)


def test_a_change_that_the_codec_cannot_read_costs_no_other(
    link: ModelLink, client: wbkv.Client[bytes]
) -> None:
    begin = link.store.revision
    for value in (b"1", b"x", b"3"):
        link.store.put(b"k", value)
    with client.using(wbkv.codecs.INTEGER).watch("k", after=begin) as watch:
        first = next(watch)
        with pytest.raises(ValueError, match="value of b'k'"):
            watch.next()
        third = next(watch)
    assert [first.events[0].value, third.events[0].value] == [1, 3]


@pytest.mark.parametrize("cut", range(8))
def test_changes_end_where_they_are_told_to(link: ModelLink, client: wbkv.Client[bytes], cut: int) -> None:
    after = link.store.revision
    written = write(link, [[1, 2], [3], [5, 6], [7], [8]])
    link.cuts = [cut]
    found = [
        (change.revision, [event.key for event in change.events])
        for change in client.changes("k", after=after, until=written[3][0])
    ]
    assert found == written[:4]
    assert list(client.changes(after=after, until=after)) == []
    assert all(stream.cancelled for stream in link.opened)


def test_changes_that_are_none(client: wbkv.Client[bytes]) -> None:
    for after, until in ((0, 9), (9, 0), (9, 8)):
        with pytest.raises(ValueError, match=r"after|until"):
            client.changes(after=after, until=until)
    with pytest.raises(ValueError, match="partitions must not be empty"):
        client.changes(after=1, until=2, partitions=[])
    with pytest.raises(ValueError, match="partitions must not be empty"):
        client.scan_columns(partitions=[])


def test_watches_that_are_none(client: wbkv.Client[bytes]) -> None:
    with pytest.raises(ValueError, match="at least one range"):
        client.watch()
    for wrong in (0, -1, "1"):
        with pytest.raises(ValueError, match="after"):
            client.watch("k", after=wrong)  # type: ignore[arg-type]  # that is the test


def test_a_closed_watch_ends(client: wbkv.Client[bytes]) -> None:
    with client.watch("k") as watch:
        pass
    with pytest.raises(StopIteration):
        watch.next()


# The twin


def test_the_twin_scans_and_watches_likewise(link: ModelLink, aclient: aio.Client[bytes]) -> None:
    fill(link)

    async def main() -> None:
        for cut in range(6):
            link.cuts = [cut]
            assert [e.key async for e in aclient.scan("k0", reverse=True)] == sorted(
                (key for key in KEYS if key.startswith(b"k0")), reverse=True
            )
        scan = aclient.keys("k0")
        assert await anext(scan) == b"k00"
        async for key in scan:
            assert key == b"k01"
            break
        assert [key async for key in scan] == [b"k02", b"k03", b"k04", b"k05", b"k06"]
        link.cuts = [1]
        assert await aclient.count("k0") == 7

        begin = link.store.revision
        expected = write(link, [[1, 2, 3], [5], [6, 7]])
        link.cuts = [2, 1, 3]
        async with aclient.watch("k", after=begin) as watch:
            found = [await anext(watch) for _ in expected]
            assert [(c.revision, [e.key for e in c.events]) for c in found] == expected
        with pytest.raises(StopAsyncIteration):
            await anext(watch)

    asyncio.run(main())


def test_the_twins_watch_says_that_it_failed(link: ModelLink, aclient: aio.Client[bytes]) -> None:
    """`DeadlineExceeded` is a `TimeoutError`, but not that of `next`."""

    def silent(asked: Ask | Open) -> Failure:
        link.clock.now += 0.1
        return lost(ApiError.DEADLINE_PASSED)

    link.before = silent

    async def main() -> None:
        with pytest.raises(wbkv.DeadlineExceeded):
            await aclient.watch("k", timeout=0.05).next(timeout=30.0)

    asyncio.run(main())
