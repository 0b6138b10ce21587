"""Interactive transactions: what they see, what they protect, and what they leave."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
import wbkv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wbkv import aio
from wbkv.core.requests import Requests
from wbkv_proto.v1 import kv_pb2 as kv

from tests.unit.wbkv.model import KEY_BYTES, Clock, ModelLink, ModelTasks, lost, range_of, times


def commit_of(link: ModelLink) -> kv.TxnRequest:
    """The last one."""
    found = link.kinds("Txn")[-1].request
    assert isinstance(found, kv.TxnRequest)
    return found


def protected(link: ModelLink) -> list[wbkv.KeyRange]:
    return [range_of(c.unchanged.range) for c in commit_of(link).conditions if c.HasField("unchanged")]


def fill(link: ModelLink, *names: str) -> None:
    for name in names:
        link.store.put(name.encode(), b"v" + name.encode())


# What it sees


def test_it_sees_what_it_wrote(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link, "a", "b")
    with client.transaction() as tx:
        tx.put("a", b"mine")
        tx.delete("b")
        tx.put("c", b"new")
        assert tx.get_many(["a", "b", "c", "d"]) == [b"mine", None, b"new", None]
        entry = tx.entry("a")
        assert entry == wbkv.Entry(b"a", b"mine", 0, 0, 0)
        assert len(link.kinds("Get")) == 1  # only d was asked for
    assert tx.revision == link.store.revision
    assert client.get_many(["a", "b", "c"]) == [b"mine", None, b"new"]


KEY = st.sampled_from([b"b%d" % i for i in range(6)])
BOUND = st.integers(0, 6).map(lambda i: b"b%d" % i)
STEP = st.one_of(
    st.tuples(st.just("put"), KEY),
    st.tuples(st.just("delete"), KEY),
    st.tuples(BOUND, BOUND).filter(lambda bounds: bounds[0] < bounds[1]),
)
"""A write of a transaction; two keys bound a range to be removed."""

Step = tuple[str, bytes] | tuple[bytes, bytes]


def apply(tx: wbkv.Transaction[bytes] | aio.Transaction[bytes], steps: list[Step]) -> None:
    for first, key in steps:
        if first == "put":
            tx.put(key, b"mine")
        else:
            tx.delete(key if isinstance(first, str) else wbkv.between(first, key))


def applied(store: dict[bytes, bytes], steps: list[Step]) -> dict[bytes, bytes]:
    """What the steps make of a store: the obvious way."""
    found = dict(store)
    for first, last in steps:
        if first == "put":
            found[last] = b"mine"
        elif isinstance(first, str):
            found.pop(last, None)
        else:
            found = {key: value for key, value in found.items() if not first <= key < last}
    return found


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stored=st.sets(KEY), written=st.lists(STEP, max_size=5), meanwhile=st.lists(STEP, max_size=3),
    after=st.one_of(st.none(), BOUND), limit=st.integers(0, 5), reverse=st.booleans(), page=st.integers(1, 3),
)  # fmt: skip
def test_a_scan_is_of_the_store_with_its_writes(
    clock: Clock,
    requests: Requests[bytes],
    stored: set[bytes],
    written: list[Step],
    meanwhile: list[Step],
    after: bytes | None,
    limit: int,
    reverse: bool,  # noqa: FBT001 - drawn
    page: int,
) -> None:
    """Those that it had made when the scan began, whatever it writes while it reads."""
    link = ModelLink(clock, page=page)
    for key in stored:
        link.store.put(key, b"old")
    old = dict.fromkeys(stored, b"old")
    expected = applied(old, written)
    there = sorted(expected.items(), reverse=reverse)
    if after is not None:
        there = [row for row in there if (row[0] < after if reverse else row[0] > after)]
    there = there[: limit or None]

    async def as_twin() -> list[tuple[bytes, bytes]]:
        other = aio.Client(ModelTasks(link), requests).transaction()
        apply(other, written)
        return [(e.key, e.value) async for e in other.scan("b", after=after, limit=limit, reverse=reverse)]

    assert asyncio.run(as_twin()) == there
    with wbkv.Client(link, requests).transaction() as tx:
        apply(tx, written)
        found: list[tuple[bytes, bytes]] = []
        for entry in tx.scan("b", after=after, limit=limit, reverse=reverse):
            if not found:
                apply(tx, meanwhile)
            found.append((entry.key, entry.value))
        assert found == there
        if not found:
            apply(tx, meanwhile)
        expected = applied(expected, meanwhile)
        assert tx.count("b") == len(expected)
        keys = [b"b%d" % i for i in range(6)]
        assert tx.get_many(keys, b"none") == [expected.get(key, b"none") for key in keys]
    assert {entry.key: entry.value for entry in wbkv.Client(link, requests).scan("b")} == expected


def test_the_twin_scans_alike(link: ModelLink, aclient: aio.Client[bytes]) -> None:
    fill(link, "k0", "k1", "k2", "k3")

    async def main() -> list[bytes]:
        async with aclient.transaction() as tx:
            tx.delete(wbkv.between("k1", "k2"))
            assert await tx.count("k") == 3
            return [entry.key async for entry in tx.scan("k", after="k3", reverse=True)]

    assert asyncio.run(main()) == [b"k2", b"k0"]


def test_a_range_is_removed_with_what_others_have_added(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link, "k1", "k2", "l")
    with client.transaction() as tx:
        tx.put("k2", b"mine")
        tx.delete(wbkv.prefix("k"))
        assert tx.get_many(["k1", "k2"]) == [None, None]
        assert tx.add("k5") == 1
        tx.put("k4", b"later")
        link.store.put(b"k3", b"of another")
    assert len(link.kinds("Get")) == 0  # what is removed need not be read
    assert [entry.key for entry in client.scan(wbkv.EVERYTHING)] == [b"k4", b"k5", b"l"]
    with pytest.raises(wbkv.Aborted, match="KeyRange"), client.transaction() as tx:  # noqa: PT012 - the block's end raises
        assert tx.count("k") == 2
        tx.delete(wbkv.prefix("k"))
        link.store.put(b"k6", b"phantom")
    assert client.count("k") == 3


def test_a_count_is_protected(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link, "k1", "k2")
    with pytest.raises(wbkv.Aborted, match="KeyRange"), client.transaction() as tx:  # noqa: PT012 - the block's end raises
        assert tx.count("k") == 2
        tx.put("w", b"")
        link.store.put(b"k3", b"phantom")
    assert protected(link) == [wbkv.prefix("k")]
    with client.transaction() as tx:
        assert [entry.key for entry in tx.scan("k", after="k3")] == []
        assert [entry.key for entry in tx.scan("k", after="k2")] == [b"k3"]
        tx.put("w", b"")
        link.store.put(b"k1", b"before what was read")
    assert protected(link)[-1].start == b"k2\0"


def test_several_types_in_one_transaction(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    link.store.put(b"n", b"3")
    with client.transaction() as tx:
        numbers, texts = tx.using(wbkv.codecs.INTEGER), tx.using(wbkv.codecs.TEXT)
        texts.put("t", f"n was {numbers.get('n')}")
        numbers.put("n", 4)
        assert (tx.get("n"), texts.get("n"), numbers.get("n")) == (b"4", "4", 4)
        assert [entry.value for entry in texts.scan(wbkv.EVERYTHING)] == ["4", "n was 3"]
    assert (numbers.revision, len(link.store.log)) == (link.store.revision, 2)
    with pytest.raises(wbkv.Error, match="was committed"):
        texts.put("t", "")


@pytest.mark.parametrize(
    ("stored", "amount", "expected"),
    [
        (None, 3, 3), (b"-4", 3, -1), (b"0", 0, 0), (b"9223372036854775807", 1, "overflow"),
        (b"-9223372036854775808", -1, "overflow"), (b"9223372036854775808", -1, "not a number"),
        (b"", 1, "not a number"), (b" 1", 1, "not a number"), (b"1_0", 1, "not a number"),
        (b"01", 1, "not a number"), (b"-0", 1, "not a number"), (b"x", 1, "not a number"),
    ],
)  # fmt: skip
def test_adding_is_as_the_store_adds(
    link: ModelLink, client: wbkv.Client[bytes], stored: bytes | None, amount: int, expected: int | str
) -> None:
    if stored is not None:
        link.store.put(b"n", stored)
    with client.transaction() as tx:
        if isinstance(expected, int):
            assert tx.add("n", amount) == expected
            assert tx.get("n") == b"%d" % expected
            assert tx.add("n", 1) == expected + 1
        else:
            with pytest.raises(wbkv.OperationFailed) as found:
                tx.add("n", amount)
            assert found.value.fault == expected


@pytest.mark.parametrize("wrong", [1.5, "1", None, 2**63])
def test_amounts_that_are_none(client: wbkv.Client[bytes], wrong: Any) -> None:
    with pytest.raises(ValueError, match="64-bit"), client.transaction() as tx:
        tx.add("n", wrong)


def test_appending(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link, "a")
    with client.transaction() as tx:
        assert tx.append("a", b"xy") == 4
        assert tx.append("b", b"xy") == 2
        tx.delete("a")
        assert tx.append("a", b"z") == 1
    assert client.get_many(["a", "b"]) == [b"z", b"xy"]


# What it protects


def test_conditions_are_on_what_was_read_from_the_store(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link, "a")
    changed = link.store.at(b"a")[0]
    with client.transaction() as tx:
        tx.get("a")
        tx.get("none")
        tx.put("w", b"")
        tx.get("w")
    conditions = [
        (c.compare.key, c.compare.WhichOneof("operand"), c.compare.mod_revision)
        for c in commit_of(link).conditions
    ]
    assert conditions == [(b"a", "mod_revision", changed), (b"none", "mod_revision", 0)]
    assert [operation.put.key for operation in commit_of(link).then] == [b"w"]


@pytest.mark.parametrize("what", ["changed", "removed", "appeared", "removed and made again"])
def test_a_change_of_what_was_read_aborts_it(link: ModelLink, client: wbkv.Client[bytes], what: str) -> None:
    fill(link, "a")
    with pytest.raises(wbkv.Aborted, match=r"changed b'(a|b)'"), client.transaction() as tx:  # noqa: PT012 - the block's end raises
        tx.get_many(["a", "b"])
        tx.put("w", b"1")
        if what == "appeared":
            link.store.put(b"b", b"x")
        if what.startswith("removed"):
            link.store.put(b"a", None)
        if what in ("changed", "removed and made again"):
            link.store.put(b"a", b"va")
    assert client.get("w") is None


@pytest.mark.parametrize(
    ("limit", "reverse", "taken", "expected"),
    [
        (0, False, 0, None),
        (0, False, 1, wbkv.between("k", "k1\0")),  # a page of two
        (0, False, 3, wbkv.between("k", "k3\0")),
        (0, False, 9, wbkv.prefix("k")),
        (0, True, 1, wbkv.between("k3", "l")),
        (0, True, 9, wbkv.prefix("k")),
        (1, False, 9, wbkv.between("k", "k0\0")),
        (3, False, 9, wbkv.between("k", "k2\0")),
        (3, True, 9, wbkv.between("k2", "l")),
        (9, False, 9, wbkv.prefix("k")),
    ],
)
def test_ranges_are_protected_as_far_as_they_were_read(
    link: ModelLink,
    client: wbkv.Client[bytes],
    limit: int,
    reverse: bool,  # noqa: FBT001 - a case
    taken: int,
    expected: wbkv.KeyRange | None,
) -> None:
    fill(link, "k0", "k1", "k2", "k3", "k4")
    with client.transaction() as tx:
        entries = tx.scan("k", limit=limit, reverse=reverse)
        for _, _entry in zip(range(taken), entries, strict=False):
            pass
        tx.put("w", b"")
    assert protected(link) == ([expected] if expected is not None else [])


def test_a_phantom_aborts_it(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link, "k1", "k3")
    with pytest.raises(wbkv.Aborted, match="KeyRange"), client.transaction() as tx:  # noqa: PT012 - the block's end raises
        assert len(list(tx.scan("k"))) == 2
        tx.put("w", b"")
        link.store.put(b"k2", b"phantom")
    with client.transaction() as tx:
        assert len(list(tx.scan("k", limit=2))) == 2
        tx.put("w", b"")
        link.store.put(b"k4", b"behind what was read")
    assert client.get("w") == b""


def test_a_range_that_ends_with_the_longest_key(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    longest = b"k" * KEY_BYTES
    link.store.put(longest, b"")
    with client.transaction() as tx:
        assert [entry.key for entry in tx.scan("k", limit=1)] == [longest]
        tx.put("w", b"")
    assert protected(link) == [wbkv.KeyRange(b"k", b"k" * (KEY_BYTES - 1) + b"l")]


# How it ends


def test_reading_once_needs_no_commit(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link, "a", "b", "c")
    for read in (
        lambda tx: tx.get("a"), lambda tx: tx.get_many(["a", "b", "c"]),
        lambda tx: list(tx.scan(wbkv.EVERYTHING)), lambda tx: [tx.get("a"), tx.get("a")],
    ):  # fmt: skip
        link.asked.clear()
        with client.transaction() as tx:
            read(tx)
        assert len(link.asked) == 1
        assert tx.revision == 0
    with client.transaction():
        link.asked.clear()
    assert not link.asked


def test_reading_twice_is_checked(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link, "a", "b")
    with client.transaction() as tx:
        tx.get("a")
        tx.get("b")
    assert not commit_of(link).then
    assert not commit_of(link).HasField("id")  # it changes nothing
    with pytest.raises(wbkv.Aborted), client.transaction() as tx:  # noqa: PT012 - the block's end raises
        tx.get("a")
        link.store.put(b"a", b"2")
        tx.get("b")


def test_whether_it_holds(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    fill(link, "a", "b")
    tx = client.transaction()
    assert tx.holds()
    tx.get("a")
    link.store.put(b"a", b"2")
    assert tx.holds()  # one read is of one moment
    tx.get("b")
    assert not tx.holds()


def test_an_exception_leaves_nothing(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    with pytest.raises(KeyError), client.transaction() as tx:  # noqa: PT012 - the block's end raises
        tx.put("a", b"")
        raise KeyError
    assert not link.asked
    for use in (
        lambda: tx.put("a", b""), lambda: tx.get("a"), lambda: tx.delete("a"), lambda: tx.add("a"),
        lambda: tx.append("a", b""), lambda: tx.scan("a"), tx.commit,
    ):  # fmt: skip
        with pytest.raises(wbkv.Error, match="rolled back"):
            use()


def test_commit_and_rollback_by_hand(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    with client.transaction() as tx:
        tx.put("a", b"1")
        tx.commit()
        with pytest.raises(wbkv.Error, match="committed"):
            tx.put("a", b"2")
    with client.transaction() as tx:
        tx.put("a", b"3")
        tx.rollback()
    assert client.get("a") == b"1"


def test_a_commit_without_an_answer(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    link.after = times(1, lost(), method="Txn")
    with client.transaction() as tx:
        tx.put("a", b"1")
    assert len(link.store.log) == 1
    link.before = lambda asked: lost()
    with pytest.raises(wbkv.OutcomeUnknown), client.transaction(timeout=1.0) as tx:
        tx.put("a", b"2")
    with pytest.raises(wbkv.Error, match="already tried to commit"):
        tx.commit()


def test_wrong_arguments_are_refused_at_once(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    with client.transaction() as tx:
        with pytest.raises(ValueError, match="limit"):
            tx.scan("a", limit=-1)
        tx.put("a", b"")
        with pytest.raises(ValueError, match="limit"):
            tx.scan("a", limit=-1)
        tx.rollback()
    with client.transaction() as tx:
        with pytest.raises(TypeError, match="key"):
            tx.scan(7)  # type: ignore[arg-type]  # that is the test
        with pytest.raises(TypeError, match="value of b'a'"):
            tx.put("a", "text")  # type: ignore[arg-type]  # that is the test
        with pytest.raises(TypeError, match="key"):
            tx.delete(["a"])  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ValueError, match="timeout"):
        client.transaction(timeout=0)
    assert not link.asked


def test_it_does_not_go_into_a_fork(client: wbkv.Client[bytes]) -> None:
    tx = client.transaction()
    tx.put("a", b"")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            tx.commit()
        except wbkv.Forked:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_the_twin(link: ModelLink, aclient: aio.Client[bytes]) -> None:
    fill(link, "a", "b")

    async def main() -> None:
        async with aclient.transaction() as tx:
            assert await tx.get_many(["a", "b"]) == [b"va", b"vb"]
            assert await tx.add("n", 5) == 5
            assert await tx.append("a", b"!") == 3
            tx.delete("b")
            assert [e.key async for e in tx.scan(wbkv.EVERYTHING)] == [b"a", b"n"]
        assert tx.revision == link.store.revision
        with pytest.raises(ValueError, match="limit"):
            aclient.transaction().scan("a", limit=-1)
        with pytest.raises(wbkv.Aborted):  # noqa: PT012 - the block's end raises
            async with aclient.transaction() as tx:
                await tx.get("a")
                tx.put("a", b"")
                link.store.put(b"a", b"other")

    asyncio.run(main())
