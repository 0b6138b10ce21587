"""The store's maps, against plain dictionaries."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import storage
from kvstore.machine.ordered import MemoryMap, OrderedMap
from kvstore.storage import checksum, environment, lazy, maps, rows
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import Identity
from kvstore.storage.keys import STORE_NODES, table_name
from kvstore.storage.maps import StoredMap
from tests.unit.kvstore.storage.disks import CLUSTER, G0, G1, NODE, Gate, StoreRig, rows_of_open

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=80)

NAMES = st.text("ab", max_size=9).map(str.encode)
"""With heads of three bytes, some of them have four parts."""
BOUNDS = NAMES | st.none()
VALUES = st.sampled_from(["", "x", "yy"])

Step: TypeAlias = tuple[str, Any, Any]
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "insert", "insert", "delete", "delete"]), NAMES, VALUES)
    | st.tuples(st.sampled_from(["get"]), NAMES, st.none())
    | st.tuples(st.sampled_from(["items", "reverse"]), NAMES, BOUNDS)
    | st.tuples(st.sampled_from(["commit", "pump", "drain", "reopen", "freeze"]), st.none(), st.none()),
    max_size=60,
)


def check_items(one: OrderedMap[bytes, str], other: OrderedMap[bytes, str], start: bytes, end: Any) -> None:
    for reverse in (False, True):
        found = list(one.items(start, end, reverse=reverse))
        assert found == list(other.items(start, end, reverse=reverse))


@EXAMPLES
@given(STEPS, st.sampled_from([3, 3, 480]))
def test_a_map_is_a_plain_map(steps: list[Step], head: int) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "HEAD", head)
        patch.setattr(rows, "CHUNK_FIRST", 1)
        patch.setattr(rows, "CHUNK_MAX", 3)
        patch.setattr(lazy, "SLICE", 2)
        storage.create(Path(directory) / "disk", Identity.new(CLUSTER, NODE, "os", "store"))
        rig = StoreRig(Path(directory) / "disk")
        expected: MemoryMap[bytes, str] = MemoryMap()
        for step, key, value in steps:
            found = rig.map()
            if step == "insert" and expected.get(key) is None:
                found.insert(key, value)
                expected.insert(key, value)
            elif step in ("put", "insert"):
                found.put(key, value)
                expected.put(key, value)
            elif step == "delete":
                found.delete(key)
                expected.delete(key)
            elif step == "get":
                assert found.get(key) == expected.get(key)
            elif step in ("items", "reverse"):
                check_items(found, expected, key, value)
            elif step == "commit":
                rig.commit()
            elif step == "pump":
                rig.state.pump()
            elif step == "drain":
                rig.drain()
            elif step == "freeze":
                rig.state._group(G0).freeze()
            else:
                rig.commit()
                rig.disk.close()
                rig = StoreRig(rig.path)
        check_items(rig.map(), expected, b"", None)
        for length in range(3):
            for letters in itertools.product(b"ab", repeat=length):
                assert rig.map().get(bytes(letters)) == expected.get(bytes(letters))
        rig.flush()
        check_items(rig.map(), expected, b"", None)
        nodes = len(rows_of_open(rig.state, STORE_NODES))
        assert bool(nodes) == any(len(key) > head for key, _ in expected.items(b"", None)), "no node is left"
        rig.disk.close()


def long_keys() -> list[bytes]:
    shared = bytes(range(256)) * 2
    lengths = [shared[:n] for n in (0, 1, 479, 480, 481, 482, 511, 512)] + [
        b"k" * n for n in (960, 961, 4096)
    ]
    return lengths + [shared + b"%04d" % n + b"z" * (n * 37 % 3500) for n in range(200)]


def test_long_keys_are_in_order(store: StoreRig) -> None:
    found = store.map()
    keys = long_keys()
    for key in keys[::2]:
        found.put(key, f"{len(key)}")
    store.flush()
    for key in keys[1::2]:
        found.put(key, f"{len(key)}")
    expected = sorted(keys)
    assert [key for key, _ in found.items(b"", None)] == expected
    store.flush()
    for start, end in [(0, 50), (7, 8), (3, 205), (100, 208), (206, 211)]:
        last = expected[end] if end < len(expected) else None
        for reverse in (False, True):
            wanted = expected[start:end][:: -1 if reverse else 1]
            assert [key for key, _ in found.items(expected[start], last, reverse=reverse)] == wanted
    assert [found.get(key) for key in keys] == [f"{len(key)}" for key in keys]
    assert found.get(keys[-1] + b"x") is found.get(b"k" * 1000) is None
    for key in keys:
        found.delete(key)
    store.flush()
    assert rows_of_open(store.state, STORE_NODES) == []
    assert rows_of_open(store.state, table_name("names")) == []


def test_groups_and_tables_are_apart(store: StoreRig) -> None:
    store.map().put(b"k", "0")
    store.map("numbers").put(7, "seven")
    store.map(group=G1).put(b"k", "1")
    store.map(group=G1).put(b"x" * 1000, "long")
    store.flush(b"", G0, G1)
    assert list(store.map().items(b"", None)) == [(b"k", "0")]
    assert list(store.map("numbers").items(0, None)) == [(7, "seven")]
    assert list(store.map("numbers", G1).items(0, None)) == []
    assert list(store.map(group=G1).items(b"", None, reverse=True)) == [(b"x" * 1000, "long"), (b"k", "1")]


class Counting:
    """Counts what a table's codec does."""

    def __init__(self, patch: pytest.MonkeyPatch, found: Any) -> None:
        self.encoded: list[str] = []
        self.deleted: list[bytes] = []
        table = found._table
        patch.setattr(found, "_table", table._replace(encode=self.count(table.encode)))
        delete = rows.LmdbRows.delete

        def counted(of: rows.LmdbRows, transaction: environment.Transaction, key: bytes) -> None:
            self.deleted.append(key)
            delete(of, transaction, key)

        patch.setattr(rows.LmdbRows, "delete", counted)

    def count(self, encode: Callable[[str], bytes]) -> Callable[[str], bytes]:
        def counted(value: str) -> bytes:
            self.encoded.append(value)
            return encode(value)

        return counted


def test_what_is_gone_before_a_commit_never_reaches_the_disk(
    store: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = store.map()
    found.put(b"old", "old")
    store.flush()
    counting = Counting(monkeypatch, found)
    for key in (b"new", b"old"):
        assert found.get(key) == (None if key == b"new" else "old")
        found.put(key, "one")
        found.put(key, "two")
        found.delete(key)
    assert found.get(b"newer") is None
    found.put(b"newer", "five")
    found.put(b"kept", "three")
    store.state._group(G0).freeze()
    found.delete(b"newer")
    found.put(b"kept", "four")
    store.flush()
    assert counting.encoded == ["four"]
    assert counting.deleted == [b"old"]
    assert list(found.items(b"", None)) == [(b"kept", "four")]


def test_what_was_inserted_is_forgotten_when_it_is_deleted(
    store: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = store.map()
    for key in (b"frozen", b"old"):
        found.insert(key, "old")
    store.flush()
    counting = Counting(monkeypatch, found)
    found.delete(b"frozen")
    store.state._group(G0).freeze()
    found.delete(b"old")
    for key in (b"frozen", b"new", b"old"):
        found.insert(key, "one")
        assert found.get(key) == "one"
        found.delete(key)
        assert found.get(key) is None
    store.flush()
    assert counting.encoded == []
    assert counting.deleted == [b"frozen", b"old"]
    assert list(found.items(b"", None)) == []


def test_a_put_during_a_commit_is_for_the_next(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    found = store.map()
    gate = Gate(monkeypatch)
    found.put(b"k", "one")
    store.commit()
    store.pump()
    found.put(b"k", "two")
    found.put(b"l", "two")
    assert dict(found.items(b"", None)) == {b"k": "two", b"l": "two"}
    gate.tickets.release()
    store.drain()
    assert dict(found.items(b"", None)) == {b"k": "two", b"l": "two"}
    seed = checksum.seed_of(table_name("names"), b"\0\0k")
    assert rows_of_open(store.state, table_name("names")) == [(b"\0\0k", checksum.seal(b"one", seed))]
    assert not gate.waited_in_vain


def test_what_waits_for_the_log_is_seen_when_an_earlier_commit_is_done(store: StoreRig) -> None:
    found = store.map()
    found.put(b"k", "one")
    store.commit()
    found.put(b"l", "two")
    store.commit(after=1)
    store.drain()
    assert len(store.committed) == 1
    assert dict(found.items(b"", None)) == {b"k": "one", b"l": "two"}
    assert found.get(b"l") == "two"


def test_short_ranges_read_few_rows(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = store.map()
    for number in range(1000):
        found.put(b"%04d" % number, "")
    store.flush()
    read: list[int] = []
    chunk = rows.LmdbRows.chunk

    def counted(of: rows.LmdbRows, *arguments: Any, **named: Any) -> Any:
        answer = chunk(of, *arguments, **named)
        read.append(len(answer[0]))
        return answer

    monkeypatch.setattr(rows.LmdbRows, "chunk", counted)
    assert len(list(itertools.islice(found.items(b"", None), 10))) == 10
    assert read == [16]
    read.clear()
    assert len(list(found.items(b"", None))) == 1000
    assert read == [16, 64, *[128] * 7, 24]


def test_marks_are_of_the_groups_own_keys(store: StoreRig) -> None:
    found: Any = store.map()
    keys = sorted([b"%04d" % number for number in range(500)] + [b"0100" + b"x" * 600, b"0100" + b"x" * 900])
    for key in keys:
        found.put(key, "")
    assert found.marks(b"", None, 10, 100) == ((), 0, None)  # what is not on the disk does not count
    store.flush()
    marks, rest, last = found.marks(b"", None, 10, 1000)
    assert (len(marks), rest, last) == (50, 1, None)
    assert marks[:10] == tuple(keys[9:109:10])  # two long ones that begin alike are one
    marks, rest, last = found.marks(b"0200", b"0300", 7, 50)
    assert marks == tuple(b"%04d" % number for number in range(206, 250, 7))
    assert (rest, last) == (1, b"0249")
    assert found.marks(b"9", None, 1, 10) == ((), 0, None)


def test_large_rows_are_read_one_at_a_time(store: StoreRig) -> None:
    found: Any = store.map()
    for number in range(10):
        found.put(b"%d" % number, "x" * 300_000)
    store.flush()
    chunk, more = found.below.chunk(b"", None, 1000)
    assert (len(chunk), more) == (1, True)
    assert len(list(found.items(b"", None))) == 10


def test_damage_and_rows_of_another_program_are_named(
    store: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Any = store.map()
    found.put(b"k", "one")
    store.flush()
    patch = monkeypatch.setattr
    patch(found, "_table", found._table._replace(decode=lambda data: 1 // 0))
    for read in (lambda: found.get(b"k"), lambda: list(found.items(b"", None))):
        with pytest.raises(StorageError, match="state, group 0, names, 6b: integer division"):
            read()
    patch(found, "_table", found._table._replace(decode_key=lambda data: 1 // 0))
    with pytest.raises(StorageError, match="state, group 0, names, the key 6b: integer division"):
        list(found.items(b"", None))
    patch(found, "_below", rows.MemoryRows([b"k"], [b"xxxx" + b"one"]))
    with pytest.raises(StorageError, match="state, group 0, names, 6b: the checksum of 7 bytes is wrong"):
        found.get(b"k")


def test_what_is_known_to_be_absent_is_bounded(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "ABSENT_MAX", 10)
    found: Any = store.map()
    for number in range(30):
        assert found.get(b"%d" % number) is None
    assert len(found._top.absent) == 10


def test_few_rows_of_a_range_cost_few_decoded_rows(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of a walk begins anew, and its caller leaves the rest of what was read."""
    count = 0
    decode = StoredMap._rows_of

    def counted(found: Any, chunk: Any) -> Any:
        nonlocal count
        count += len(chunk)
        return decode(found, chunk)

    for number in range(2000):
        store.map().put(b"%04d" % number, "v")
    for number in range(20):
        store.map("numbers").put(number, "v" * maps.DECODED_BYTES)
    store.commit()
    store.drain()
    monkeypatch.setattr(StoredMap, "_rows_of", counted)
    assert len(list(itertools.islice(store.map().items(b"", None), 300))) == 300
    assert 300 <= count <= 450
    count = 0
    next(iter(store.map("numbers").items(0, None)))
    assert count <= 2, "large rows are decoded one by one"
