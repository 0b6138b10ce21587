"""A store's state: what a crash leaves is one commit; a snapshot is one moment."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import storage
from kvstore.storage import (
    GroupCheckpoint,
    checkpoint_format,
    checksum,
    environment,
    keys,
    lazy,
    rows,
    runs,
    views,
)
from kvstore.storage import store as stores
from kvstore.storage.errors import BadSnapshot, StorageError
from kvstore.storage.identity import Identity
from kvstore.storage.rows import LmdbRows
from multicast.durable import Checkpoint
from multicast.errors import InvariantBroken
from multicast.messages import Delivery
from multicast.types import NO_TIMESTAMP, GroupId, Timestamp
from tests.tree import ROOT
from tests.unit.kvstore.storage.disks import (
    CLUSTER,
    G0,
    G1,
    NODE,
    Gate,
    StoreRig,
    rows_of_open,
    slices,
    table,
    traffic,
)

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=80)
DELIVERED: Final = traffic(2000)[1]


def contents(rig: StoreRig, group: GroupId = G0) -> dict[str, dict[Any, str]]:
    return {
        "names": dict(rig.map("names", group).items(b"", None)),
        "numbers": dict(rig.map("numbers", group).items(0, None)),
    }


def deliver(rig: StoreRig, count: int, group: GroupId = G0) -> None:
    first = rig.state.count(group)
    rig.state.remember(group, DELIVERED[first : first + count])


# Commits


def test_a_new_store_has_nothing(store: StoreRig) -> None:
    image, maps = store.state.open(G0)
    assert image is None
    assert sorted(maps) == ["names", "numbers"]
    assert store.state.load(G0) == Checkpoint()
    assert store.state.count(G0) == 0
    assert store.state.oldest(G0) == NO_TIMESTAMP
    assert store.state.deliveries(G0, NO_TIMESTAMP, 9, 9) == []


def test_what_was_committed_comes_back(store: StoreRig) -> None:
    store.map().put(b"k", "v")
    deliver(store, 20)
    delivered = DELIVERED[:20]
    position = delivered[-1].global_ts
    checkpoint = Checkpoint(position, table(delivered), executed=delivered[11].global_ts)
    store.state.commit({G0: GroupCheckpoint(checkpoint, b"machine")}, 0)
    store.map().put(b"later", "v")
    deliver(store, 5)
    store.drain()
    assert store.committed == [{G0: delivered[11].global_ts}]
    store.disk.close()
    again = StoreRig(store.path)
    image, maps = again.state.open(G0)
    assert image == GroupCheckpoint(checkpoint, b"machine")
    assert list(maps["names"].items(b"", None)) == [(b"k", "v")]
    assert again.state.load(G0) == checkpoint
    assert again.state.count(G0) == 20
    assert again.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered
    assert again.state.deliveries(G0, delivered[7].global_ts, 3) == delivered[8:11]
    again.state.remember(G0, DELIVERED[20:30])
    assert again.state.deliveries(G0, delivered[17].global_ts, 100) == DELIVERED[18:30]
    again.disk.close()


def test_keys_that_are_missing_side_by_side_are_looked_for_once(
    store: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when many keys are loaded; until there is another commit."""
    checked: list[bytes] = []
    check = LmdbRows._check_beside

    def noting(rows: LmdbRows, transaction: Any, node: Any, row: bytes) -> tuple[bytes, bytes]:
        checked.append(row[-2:])
        return check(rows, transaction, node, row)

    monkeypatch.setattr(LmdbRows, "_check_beside", noting)

    def commit(*keys: bytes) -> None:
        for key in keys:
            store.map().put(key, "v")
        store.commit()
        store.drain()

    def missing(*keys: bytes) -> list[bytes]:
        checked.clear()
        for key in keys:
            assert store.map().get(key) is None
        return checked

    for group in (G0, GroupId(G0 + 1)):  # rows of others lie behind
        store.map(group=group).put(b"d0", "v")
    commit(b"h0")
    store.commit(b"", GroupId(G0 + 1))
    store.drain()
    assert missing(b"e0", b"e1", b"f0", b"d1") == [b"e0"]
    assert missing(b"a0", b"a1") == [b"a0"]
    assert missing(b"x0", b"x1", b"y0") == [b"x0"]
    assert missing(b"z0", b"e9", b"z1") == [b"e9", b"z1"], "only the last gap is known"
    commit(b"z3")
    assert store.map().get(b"z3") == "v"
    assert missing(b"z2") == [b"z2"]


def test_an_image_is_of_the_time_it_was_given(store: StoreRig) -> None:
    deliver(store, 1)
    ids = table(DELIVERED[:1])
    store.state.commit({G0: GroupCheckpoint(Checkpoint(DELIVERED[0].global_ts, ids), b"")}, 0)
    ids.add(DELIVERED[1].mid, 0)
    store.drain()
    assert store.state.load(G0).delivered == table(DELIVERED[:1])


def test_a_commit_waits_for_the_log(store: StoreRig) -> None:
    store.map().put(b"k", "v")
    store.commit(b"one", after=1)
    store.drain()
    assert store.committed == []
    store.log.write({})
    store.drain()
    assert store.committed == [{G0: NO_TIMESTAMP}]


def test_deliveries_follow_each_other_and_an_image_is_of_the_last(store: StoreRig) -> None:
    deliver(store, 2)
    with pytest.raises(InvariantBroken, match=r"follows 3072, but group 0 is at 2048"):
        store.state.remember(G0, [DELIVERED[3]])
    with pytest.raises(InvariantBroken, match="group 0 is to be committed at 1024, but is at 2048"):
        store.state.commit({G0: GroupCheckpoint(Checkpoint(DELIVERED[0].global_ts), b"")}, 0)


def test_the_loop_does_a_bounded_number_of_puts_at_a_time(
    store: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices(monkeypatch, 10)
    for number in range(95):
        store.map().put(b"%d" % number, "v")
    deliver(store, 25)
    store.commit()
    turns = 0
    while store.state.pump():
        turns += 1
    assert turns == 1 + 9 + 2, (
        "starting, slices of the map, the last of them with a run, a run; then the rest"
    )
    store.drain()
    assert len(contents(store)["names"]) == 95


def test_the_map_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAP_BYTES", 1 << 17)
    storage.create(tmp_path / "disk", Identity.new(CLUSTER, NODE, "os", "store"))
    rig = StoreRig(tmp_path / "disk")
    expected = {}
    for number in range(300):
        key = b"%d" % number * (1 + 300 * (number % 3))
        expected[key] = "v" * 5000
        rig.map().put(key, expected[key])
        assert rig.map().get(b"%d" % (number // 2)) in (None, "v" * 5000)
        if number % 50 == 0:
            rig.commit()
        rig.pump()
    deliver(rig, 100)
    rig.commit()
    rig.disk.close()
    again = StoreRig(rig.path)
    assert contents(again)["names"] == expected
    assert again.state.deliveries(G0, NO_TIMESTAMP, 1000) == DELIVERED[:100]
    again.disk.close()


def test_a_disk_says_what_it_keeps(store: StoreRig, path: Path) -> None:
    callbacks: dict[str, Any] = dict.fromkeys(("on_durable", "on_committed", "on_failure"), print)
    store.disk.close()
    with pytest.raises(StorageError, match="is a disk for 'store', not for 'deliveries'"):
        storage.open(store.path, CLUSTER, NODE, **callbacks)
    with pytest.raises(StorageError, match="is a disk for 'deliveries', not for 'store'"):
        StoreRig(path)


# The ring


def test_old_deliveries_go_and_it_is_known_which(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "RING_BYTES", 10_000)
    for _ in range(40):
        deliver(store, 10)
        store.flush()
    oldest = store.state.oldest(G0)
    at = 1 + [d.global_ts for d in DELIVERED].index(oldest)
    assert 200 < at < 395
    assert store.state.deliveries(G0, oldest, 1000) == DELIVERED[at:400]
    assert store.state.deliveries(G0, DELIVERED[at - 2].global_ts, 1000) == []
    assert store.state.count(G0) == 400
    size = sum(max(512, len(value)) for _, value in rows_of_open(store.state, keys.STATE_DELIVERIES))
    assert size <= 10_000
    assert store.state._group(G0).ring == (oldest, size)
    store.disk.close()
    again = StoreRig(store.path)
    assert again.state._group(G0).ring == (oldest, size)
    assert again.state.oldest(G0) == oldest
    assert again.state.deliveries(G0, oldest, 1000) == DELIVERED[at:400]
    assert again.state.deliveries(G0, DELIVERED[at - 2].global_ts, 1000) == []
    again.disk.close()


def test_a_ring_may_be_smaller_than_a_commit(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "RING_BYTES", 0)
    deliver(store, 300)
    assert store.state.deliveries(G0, NO_TIMESTAMP, 1000) == DELIVERED[:300]
    store.flush()
    assert store.state.oldest(G0) == DELIVERED[299].global_ts
    deliver(store, 3)
    assert store.state.deliveries(G0, DELIVERED[299].global_ts, 9) == DELIVERED[300:303]


def test_the_ring_begins_anew_behind_a_large_delivery(
    store: StoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(store, 10)
    store.flush()
    deliver(store, 10)
    size = 1 + max(len(each.payload) for each in DELIVERED[:30])
    large = DELIVERED[20]._replace(payload=bytes(size))
    store.state.remember(G0, [large])
    store.state.remember(G0, DELIVERED[21:30])
    assert store.state.deliveries(G0, DELIVERED[18].global_ts, 2) == [DELIVERED[19], large], "in memory"
    monkeypatch.setattr(stores, "RING_PAYLOAD", size)
    store.flush()
    assert store.state.oldest(G0) == large.global_ts
    assert store.state.deliveries(G0, DELIVERED[18].global_ts, 2) == []
    assert store.state.deliveries(G0, large.global_ts, 100) == DELIVERED[21:30]
    values = [value for _, value in rows_of_open(store.state, keys.STATE_DELIVERIES)]
    assert store.state._group(G0).ring.size == sum(max(512, len(value)) for value in values)
    store.disk.close()
    again = StoreRig(store.path)
    assert again.state.oldest(G0) == large.global_ts
    assert again.state.count(G0) == 30
    assert again.state.deliveries(G0, large.global_ts, 100) == DELIVERED[21:30]
    again.disk.close()


def test_rows_are_written_in_steps_of_bounded_size(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "STEP_BYTES", 1000)
    for number in range(30):
        store.map().put(b"%03d" % number, "x" * 600)
        store.map().put(b"small %03d" % number, "")
    deliver(store, 1)
    store.commit()
    steps = 0
    while store.state.pump():
        steps += 1
    assert steps >= 15
    store.drain()
    store.disk.close()
    again = StoreRig(store.path)
    assert len(list(again.map().items(b"", b"~"))) == 60
    again.disk.close()


def test_large_changes_are_committed_one_group_at_a_time_and_reported_at_once(
    store: StoreRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "ALONE_BYTES", 1)
    store.state.on_part = lambda: store.tell("durable", 0)
    for group in (G0, G1):
        store.map(group=group).put(b"key", f"value {group}")
    deliver(store, 2, G0)
    deliver(store, 1, G1)
    gate = Gate(monkeypatch)
    store.commit(b"", G0, G1)
    gate.tickets.release()
    store.pump()
    store.take()
    assert not store.committed, "half of it is durable"
    with monkeypatch.context() as ungated:
        ungated.setattr(environment, "_commit", lambda transaction: transaction.commit())
        half = store.crash(tmp_path / "half")
        found = {group: half.map(group=group).get(b"key") for group in (G0, G1)}
        assert found == {G0: None, G1: "value 1"}, "the smaller one is first"
        assert [half.state.count(group) for group in (G0, G1)] == [0, 1]
        half.disk.close()
    gate.tickets.release(100)
    store.drain()
    assert store.committed == [{G0: DELIVERED[1].global_ts, G1: DELIVERED[0].global_ts}]
    whole = store.crash(tmp_path / "whole")
    assert [whole.map(group=group).get(b"key") for group in (G0, G1)] == ["value 0", "value 1"]
    whole.disk.close()


# Any history: groups, tables, the ring and the checkpoint stay together


class Model:
    """A group as it should be."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, str]] = {"names": {}, "numbers": {}}
        self.count = 0

    def copy(self) -> Model:
        other = Model()
        other.tables = {name: dict(each) for name, each in self.tables.items()}
        other.count = self.count
        return other


def check(rig: StoreRig, group: GroupId, model: Model) -> None:
    assert contents(rig, group) == model.tables
    assert rig.state.count(group) == model.count
    oldest = rig.state.oldest(group)
    first = oldest // 1024
    assert DELIVERED[first - 1].global_ts == oldest or not first
    assert rig.state.deliveries(group, oldest, 10**6) == DELIVERED[first : model.count]


GROUPS = st.sampled_from([G0, G1])
PUTS = st.tuples(
    st.sampled_from(["put", "put", "put", "delete"]),
    GROUPS,
    st.sampled_from([("names", key) for key in (b"", b"a", b"abcd", b"abcdabcd", b"abce", b"b")])
    | st.sampled_from([("numbers", key) for key in range(6)]),
)
STEPS = st.lists(
    PUTS
    | st.tuples(
        st.sampled_from(["deliver", "commit", "pump", "drain", "crash", "snapshot", "piece", "install"]),
        GROUPS,
        st.none(),
    ),
    max_size=60,
)


@EXAMPLES
@given(STEPS)
def test_any_history_leaves_one_commit_and_snapshots_of_one_moment(
    steps: list[tuple[str, GroupId, Any]],
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        slices(patch, 2)
        for module, name, value in [
            (rows, "HEAD", 3), (rows, "CHUNK_FIRST", 1), (views, "CHUNK_MAX", 1), (stores, "PIECE_BYTES", 20),
            (stores, "RING_BYTES", 2000),
        ]:  # fmt: skip
            patch.setattr(module, name, value)
        storage.create(Path(directory) / "0", Identity.new(CLUSTER, NODE, "os", "store"))
        rig = StoreRig(Path(directory) / "0")
        now = {G0: Model(), G1: Model()}
        asked = [{group: model.copy() for group, model in now.items()}]
        taken: list[tuple[Iterator[bytes], list[bytes], Model, list[int]]] = []
        installs = dict.fromkeys(now, 0)
        for number, (step, group, what) in enumerate([*steps, ("commit", G0, None), ("drain", G0, None)], 1):
            model = now[group]
            if step == "put":
                model.tables[what[0]][what[1]] = f"{number}"
                rig.map(what[0], group).put(what[1], f"{number}")
            elif step == "delete":
                model.tables[what[0]].pop(what[1], None)
                rig.map(what[0], group).delete(what[1])
            elif step == "deliver":
                deliver(rig, 3, group)
                model.count += 3
            elif step == "commit":
                rig.commit(b"%d" % len(asked), G0, G1)
                asked.append({each: found.copy() for each, found in now.items()})
            elif step == "pump":
                rig.state.pump()
            elif step == "drain":
                rig.drain()
            elif step == "snapshot":
                pieces = rig.state.snapshot(group, rig.image(b"snapshot", group))
                taken.append((pieces, [], model.copy(), [group, installs[group]]))
            elif step == "piece":
                for pieces, found, _, _ in taken:
                    found += [piece for piece in [next(pieces, b"")] if piece]
            elif step == "install" and taken:
                pieces, found, old, (of, installed) = taken.pop(0)
                found += pieces
                group = GroupId(of)
                if installs[group] != installed:
                    try:
                        rig.state.install(group, found)
                    except BadSnapshot:
                        continue
                else:
                    assert rig.state.install(group, found).machine_state == b"snapshot"
                now[group] = old.copy()
                installs[group] += 1
            elif step == "crash" and (not rig.state._env.busy or rig.state._env._job.filling):  # type: ignore[union-attr]  # busy: there is a job
                again = rig.crash(Path(directory) / str(number))
                rig.disk.close()
                rig = again
                image, _ = rig.state.open(G0)
                commit = 0 if image is None else int(image.machine_state)
                now = {each: found.copy() for each, found in asked[commit].items()}
                asked = asked[: commit + 1]
                taken.clear()
            for each, found_model in now.items():
                check(rig, each, found_model)
        rig.disk.close()
        rig = StoreRig(rig.path)
        assert rig.state.open(G1)[0] == rig.image(b"%d" % (len(asked) - 1), G1)
        for each, found_model in now.items():
            check(rig, each, found_model)
        rig.disk.close()


# Snapshots


def other_store(tmp_path: Path) -> StoreRig:
    storage.create(tmp_path / "other", Identity.new(CLUSTER, NODE, "os", "store"))
    return StoreRig(tmp_path / "other")


def filled(store: StoreRig, count: int = 3000) -> dict[str, dict[Any, str]]:
    for number in range(count):
        store.map().put(b"%05d" % number, f"v{number}" * 10)
        store.map("numbers").put(number, f"n{number}")
    deliver(store, 10)
    store.flush()
    return contents(store)


def change(store: StoreRig, rng: random.Random) -> None:
    for _ in range(300):
        number = rng.randrange(3100)
        store.map().put(b"%05d" % number, "changed")
        store.map("numbers").delete(rng.randrange(3000))
        store.map("numbers").put(3000 + rng.randrange(1000), "new")


def test_a_snapshot_is_of_the_time_it_was_taken(
    store: StoreRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(views, "CHUNK_MAX", 100)
    rng = random.Random(1)
    filled(store)
    change(store, rng)
    before = contents(store)
    image = store.image(b"machine")
    first = store.state.snapshot(G0, image)
    found = []
    change(store, rng)
    middle = contents(store)
    second = store.state.snapshot(G0, image)
    for _ in range(20):
        found.append(next(first))
        change(store, rng)
        store.flush()
    assert max(map(len, found)) <= 10_000
    other = other_store(tmp_path)
    found += first
    position = image.checkpoint.position
    with pytest.raises(BadSnapshot, match=f"is of {position}, its checkpoint of {position + 1}"):
        other.state.install(G0, found, Timestamp(position + 1))
    assert contents(other) != before
    assert other.state.install(G0, found, position) == image
    assert contents(other) == before
    assert other.state.count(G0) == 10
    assert other.state.oldest(G0) == image.checkpoint.position
    pieces = list(second)
    with pytest.raises(BadSnapshot, match=r"the snapshot of group 1.*the checksum of"):
        other.state.install(G1, pieces)
    other.state.install(G0, pieces)
    assert contents(other) == middle
    other.disk.close()


def test_a_dropped_snapshot_holds_nothing(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 1000)
    filled(store)
    pieces = store.state.snapshot(G0, store.image())
    next(pieces)
    known = store.state._group(G0)
    gc.disable()
    try:
        assert len(known.views) == 1
        del pieces
        assert len(known.views) == 0
        started = store.state.snapshot(G0, store.image())
        del started
        assert len(known.views) == 0
    finally:
        gc.enable()


def test_a_snapshot_that_would_hold_too_much_is_given_up(
    store: StoreRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SAVED_BYTES", 100_000)
    monkeypatch.setattr(views, "CHUNK_MAX", 100)
    monkeypatch.setattr(stores, "PIECE_BYTES", 5_000)
    filled(store)
    pieces = store.state.snapshot(G0, store.image())
    found = [next(pieces)]
    [view] = store.state._group(G0).views
    saved = view._saved["names"]
    for number in range(3000):
        store.map().put(b"%05d" % number, "changed")
    store.flush()
    assert view.is_given_up()
    assert not saved, "nor does its iterator hold anything"
    other = other_store(tmp_path)
    other.map().put(b"k", "v")
    with pytest.raises(BadSnapshot, match="the snapshot of group 0: it"):
        other.state.install(G0, [*found, *pieces])
    assert contents(other)["names"] == {b"k": "v"}
    other.disk.close()


def test_only_what_was_not_passed_is_saved(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "CHUNK_MAX", 100)
    monkeypatch.setattr(stores, "PIECE_BYTES", 10_000)
    filled(store)
    pieces = store.state.snapshot(G0, store.image())
    for _ in range(4):
        next(pieces)
    [view] = store.state._group(G0).views
    passed = int(view._passed[:5])
    assert 100 < passed < 2000
    for number in range(3000):
        store.map().put(b"%05d" % number, "changed")
    store.flush()
    assert next(iter(view._saved["names"])) == b"%05d" % (passed + 1)
    assert len(view._saved["names"]) == 3000 - passed - 1
    assert not view._saved["numbers"]


def test_an_installed_snapshot_replaces_all_or_nothing(
    store: StoreRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices(monkeypatch, 7)
    store.map().put(b"only here", "v")
    store.map().put(b"x" * 1000, "long")
    store.map(group=G1).put(b"other", "v")
    deliver(store, 5)
    store.flush(b"old", G0, G1)
    old = contents(store)
    other = other_store(tmp_path)
    new = filled(other, 20)
    pieces = list(other.state.snapshot(G0, other.image(b"new")))
    other.disk.close()
    store.map().put(b"not yet committed", "v")
    maps = store.state.open(G0)[1]
    assert store.state.install(G0, pieces).machine_state == b"new"
    assert maps is store.state.open(G0)[1]
    assert contents(store) == new
    assert maps["names"].get(b"00007") == "v7" * 10
    assert maps["names"].get(b"only here") is None
    assert store.state.deliveries(G0, NO_TIMESTAMP, 9) == []
    maps["names"].put(b"more", "v")
    deliver(store, 3)
    assert store.state.deliveries(G0, DELIVERED[9].global_ts, 9) == DELIVERED[10:13]
    new = contents(store)
    store.commit(b"after", G0)
    gate = Gate(monkeypatch)
    crashes = 0
    while store.state.pump():
        crashes += 1
        assert contents(store) == new
        found = store.crash(tmp_path / f"crash{crashes}")
        assert contents(found) == old
        assert found.state.open(G0)[0] == GroupCheckpoint(
            Checkpoint(DELIVERED[4].global_ts, executed=DELIVERED[4].global_ts), b"old"
        )
        assert found.state.deliveries(G0, NO_TIMESTAMP, 9) == DELIVERED[:5]
        found.disk.close()
    assert crashes > 5
    gate.tickets.release(9)
    store.drain()
    found = store.crash(tmp_path / "after")
    for rig in (store, found):
        assert contents(rig) == new
        assert contents(rig, G1)["names"] == {b"other": "v"}
        assert rig.state.deliveries(G0, DELIVERED[9].global_ts, 9) == DELIVERED[10:13]
        assert rig.state.oldest(G0) == DELIVERED[9].global_ts
        assert rig.state.open(G0)[0] == rig.image(b"after")
        assert rows_of_open(rig.state, keys.STORE_NODES) == []
    found.disk.close()


def test_a_snapshot_of_what_is_installed_and_not_yet_committed(store: StoreRig, tmp_path: Path) -> None:
    other = other_store(tmp_path)
    expected = filled(other, 20)
    store.state.install(G0, other.state.snapshot(G0, other.image()))
    pieces = store.state.snapshot(G0, store.image())
    store.map().put(b"00007", "changed")
    store.map().delete(b"00008")
    store.flush()
    other.state.install(G0, pieces)
    assert contents(other) == expected
    other.disk.close()


def test_a_snapshot_replaces_what_was_asked_for_before_in_the_same_commit(
    store: StoreRig, tmp_path: Path
) -> None:
    other = other_store(tmp_path)
    expected = filled(other, 20)
    store.map().put(b"old", "v")
    store.commit(b"old", after=1)
    store.state.install(G0, other.state.snapshot(G0, other.image()))
    store.commit(b"new", after=1)
    store.state.log_durable(1)
    store.drain()
    assert len(store.committed) == 1
    store.disk.close()
    other.disk.close()
    again = StoreRig(store.path)
    assert contents(again) == expected
    assert again.state.open(G0)[0] == again.image(b"new")
    again.disk.close()


def test_what_was_put_before_a_snapshot_came_does_not_come_back(store: StoreRig, tmp_path: Path) -> None:
    other = other_store(tmp_path)
    expected = filled(other, 20)
    store.map().put(b"old", "v")
    store.state.snapshot(G0, store.image())  # after which it is frozen, but in no commit
    store.state.install(G0, other.state.snapshot(G0, other.image()))
    store.flush()
    other.disk.close()
    assert contents(store) == expected


def test_commits_after_a_snapshot_came_add_to_it(
    store: StoreRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_store(tmp_path)
    expected = filled(other, 20)
    store.state.install(G0, other.state.snapshot(G0, other.image()))
    other.disk.close()
    gate = Gate(monkeypatch)
    for key in (b"one", b"two"):
        store.map().put(key, "v")
        store.commit(key)
        store.pump()
    gate.tickets.release(2)
    store.drain()
    assert contents(store)["names"] == expected["names"] | {b"one": "v", b"two": "v"}


def test_a_snapshot_of_what_was_replaced_is_given_up(
    store: StoreRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 1000)
    monkeypatch.setattr(views, "CHUNK_MAX", 10)
    other = other_store(tmp_path)
    filled(other, 20)
    filled(store, 300)
    pieces = store.state.snapshot(G0, store.image())
    found = [next(pieces)]
    store.state.install(G0, other.state.snapshot(G0, other.image()))
    store.flush()
    with pytest.raises(BadSnapshot):
        other.state.install(G1, [*found, *pieces])
    other.disk.close()


def test_a_commit_under_way_does_not_mix_with_a_snapshot(
    store: StoreRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_store(tmp_path)
    new = filled(other, 20)
    pieces = list(other.state.snapshot(G0, other.image(b"new")))
    other.disk.close()
    store.map().put(b"old", "v")
    deliver(store, 4)
    gate = Gate(monkeypatch)
    store.commit(b"old")
    store.pump()
    store.map().put(b"older", "v")
    store.commit(b"older")
    store.state.install(G0, pieces)
    gate.tickets.release(9)
    store.drain()
    assert contents(store) == new
    assert store.state.oldest(G0) == DELIVERED[9].global_ts
    deliver(store, 4)
    store.flush(b"new")
    assert contents(store) == new
    store.disk.close()
    again = StoreRig(store.path)
    assert contents(again) == new
    assert again.state.deliveries(G0, DELIVERED[9].global_ts, 9) == DELIVERED[10:14]
    again.disk.close()


def frames_of(*frames: object) -> list[bytes]:
    return [checkpoint_format.frame(checksum.seal(msgspec.msgpack.encode(frame))) for frame in frames]


HEAD: Final[tuple[Any, ...]] = (0, 0, 0, [], b"machine")
ROW: Final = checksum.seal(b"value")
INVALID: Final = checksum.seal(b"\xff", checksum.seed_of(keys.table_name("names"), keys.group_key(G0) + b"a"))
"""A value of the key `a` that is not UTF-8."""


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([], "its checkpoint: the checksum of 0 bytes"),
        ([b"x"], "it ends in a frame"),
        ([b"\xff\xff\xff\xff"], "it ends in a frame"),
        (frames_of(HEAD), "it has no end"),
        (frames_of(HEAD, [1, 0], [1, 0]), "it goes on after its end"),
        (frames_of(HEAD, [1, 1]), "it has 0 rows, not 1"),
        (frames_of(HEAD, [0, "none", [b"a"], [ROW]], [1, 1]), "there is no table 'none'"),
        (frames_of(HEAD, [0, "names", [b"a"], []], [1, 1]), "names has 1 keys for 0 values"),
        (frames_of(HEAD, [0, "names", [b"b", b"a"], [ROW, ROW]], [1, 2]), "names has 61 after 62"),
        (frames_of(HEAD, *[[0, "names", [b"b"], [ROW]]] * 2, [1, 2]), "names has 62 after 62"),
        (frames_of(HEAD, [0, "names", [b"a"], [b"xxxxx"]], [1, 1]), "names, 61: the checksum of 5 bytes"),
        (frames_of(HEAD, [0, "names", [b"a"], [INVALID]], [1, 1]), "names, 61: 'utf-8' codec"),
        (frames_of(HEAD, [2]), "Invalid value"),
        (frames_of(HEAD, 7), "Expected `array`"),
        (frames_of((-1, 0, 0, [], b"")), "not a checkpoint: Expected `int` >= 0"),
        (frames_of((2**63, 0, 0, [], b"")), "not a checkpoint: Expected `int` <="),
        (frames_of((0, 0, 0, [[1, 2]], b"")), "not a checkpoint: Expected `array` of length 3"),
        ([checkpoint_format.frame(b"xxxx" + b"y")], "its checkpoint: the checksum of 5 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused_and_changes_nothing(
    store: StoreRig, pieces: list[bytes], message: str
) -> None:
    store.map().put(b"k", "v")
    deliver(store, 3)
    view = store.state.snapshot(G0, store.image())
    with pytest.raises(BadSnapshot, match=f"the snapshot of group 0: .*{message}"):
        store.state.install(G0, pieces)
    assert contents(store)["names"] == {b"k": "v"}
    assert store.state.deliveries(G0, NO_TIMESTAMP, 9) == DELIVERED[:3]
    assert len(store.state._group(G0).views) == 1
    assert b"".join(view)


def test_a_snapshot_may_be_cut_anywhere(store: StoreRig, tmp_path: Path) -> None:
    expected = filled(store, 30)
    whole = b"".join(store.state.snapshot(G0, store.image()))
    other = other_store(tmp_path)
    other.state.install(G0, [whole[at : at + 7] for at in range(0, len(whole), 7)])
    assert contents(other) == expected
    for end in range(0, len(whole), 11):
        with pytest.raises(BadSnapshot):
            other.state.install(G1, [whole[:end]])
    for at in range(0, len(whole), 13):
        with pytest.raises(BadSnapshot):
            other.state.install(G1, [whole[:at], bytes([whole[at] ^ 1]), whole[at + 1 :]])
    assert contents(other, G1) == {"names": {}, "numbers": {}}
    other.disk.close()


@pytest.mark.parametrize(
    ("database", "what"),
    [
        (keys.STORE_CHECKPOINTS, "checkpoint"),
        (keys.STORE_RINGS, "ring"),
        (keys.table_name("names"), "names, 6b"),
    ],
)
def test_damage_is_found_and_named(store: StoreRig, database: bytes, what: str) -> None:
    store.map().put(b"k", "v")
    store.flush()

    def damage(transaction: environment.Transaction) -> Iterator[int]:
        [(key, value)] = transaction.cursor(store.state._env[database])
        transaction.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=store.state._env[database])
        yield 1

    store.state._env.start(damage, lambda _: None)  # type: ignore[arg-type]  # it damages, and says no number
    store.state.pump()
    store.disk.close()
    again = StoreRig(store.path)
    try:
        with pytest.raises(StorageError, match=f"state, group 0, {what}: the checksum of"):
            again.state.open(G0)[1]["names"].get(b"k")
    finally:
        again.disk.close()


# Processes that die


def step(rig: StoreRig, number: int) -> None:
    """The n-th step of a child: everything that is found after it follows from its number."""
    rng = random.Random(number)
    for _ in range(20):
        key = b"%03d" % rng.randrange(200) * (1 + 200 * (number % 3))
        rig.map().put(key, f"{number}") if rng.random() < 0.7 else rig.map().delete(key)
        rig.map("numbers", G1).put(number, "")
        rig.map("numbers", G1).delete(max(0, number - 50))
    for group in (G0, G1):
        rig.state.remember(group, DELIVERED_BY[number])


DELIVERED_BY: Final[dict[int, list[Delivery]]] = {
    number: traffic(5, 1 + 5 * (number - 1))[1] for number in range(1, 500)
}


def child(path: Path) -> None:
    lazy.SLICE = runs.RUN = 5  # type: ignore[misc]  # final, but small for this test
    rig = StoreRig(path)
    for number in DELIVERED_BY:
        step(rig, number)
        rig.commit(b"%d" % number, G0, G1)
        while rig.state.pump():
            pass
        while not rig.events.empty():
            rig.take()
        print(rig.committed[-1][G0] if rig.committed else 0, flush=True)  # noqa: T201 - to the parent
    rig.disk.close()


@pytest.mark.parametrize("killed_at", [3, 60, 150])
def test_a_killed_process_leaves_one_commit(tmp_path: Path, killed_at: int) -> None:
    path = tmp_path / "disk"
    storage.create(path, Identity.new(CLUSTER, NODE, "os", "store"))
    environment_of = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment_of) as process:  # noqa: S603 - ourselves
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(killed_at)][-1]
        process.send_signal(signal.SIGKILL)
    rig = StoreRig(path)
    storage.create(tmp_path / "expected", Identity.new(CLUSTER, NODE, "os", "store"))
    expected = StoreRig(tmp_path / "expected")
    image, _ = rig.state.open(G0)
    last = 0 if image is None else int(image.machine_state)
    for number in range(1, last + 1):
        step(expected, number)
    for group in (G0, G1):
        assert contents(rig, group) == contents(expected, group)
        assert rig.state.count(group) == 5 * last
        found = rig.state.deliveries(group, NO_TIMESTAMP, 10**6)
        assert found == expected.state.deliveries(group, NO_TIMESTAMP, 10**6)
        if image is not None:
            assert rig.state.open(group)[0] == expected.image(image.machine_state, group)
    assert rig.state.load(G0).executed >= Timestamp(told)
    rig.disk.close()
    expected.disk.close()


if __name__ == "__main__":
    child(Path(sys.argv[1]))
