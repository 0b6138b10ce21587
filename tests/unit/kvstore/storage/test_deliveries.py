"""The state of bare multicast, on real LMDB."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import storage
from kvstore.storage import BadSnapshot, LmdbState, deliveries, delivery_snapshot, keys, run_format
from kvstore.storage.identity import Identity
from multicast.durable import Checkpoint, Durable, Record
from multicast.errors import InvariantBroken
from multicast.messages import Delivery
from multicast.types import (
    NO_TIMESTAMP,
    ClientId,
    MessageId,
    Timestamp,
)
from tests.unit.kvstore.storage.disks import (
    CLUSTER,
    G0,
    G1,
    NODE,
    Gate,
    Rig,
    fold,
    rows_of_open,
    same,
    slices,
    table,
    traffic,
)

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=40)


def test_what_was_applied_is_seen_at_once_and_kept_when_committed(rig: Rig) -> None:
    _, delivered = traffic(12)
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    assert rig.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered
    assert rig.state.position(G0, delivered[-1].mid) == delivered[-1].global_ts
    assert rig.state.load(G0) == Checkpoint(), "nothing is committed yet"
    rig.flush()
    assert rig.committed == [{G0: delivered[-1].global_ts}]
    assert rig.state.load(G0).position == delivered[-1].global_ts
    assert rig.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered
    assert rig.state.deliveries(G0, delivered[3].global_ts, 2) == delivered[4:6]
    assert rig.state.deliveries(G1, NO_TIMESTAMP, 100) == []
    more = traffic(3, 13)[1]
    rig.state.apply(G0, [more[0]])
    assert rig.state.deliveries(G0, delivered[10].global_ts, 100) == [delivered[11], more[0]]
    assert rig.state.deliveries(G0, delivered[10].global_ts, 1) == [delivered[11]]


def test_deliveries_are_told_in_bounded_runs_without_gaps(rig: Rig) -> None:
    _, delivered = traffic(12)
    rig.state.apply(G0, delivered[:8])
    rig.flush()
    rig.state.apply(G0, delivered[8:])
    size = max(len(delivery.payload) for delivery in delivered)
    for count, bytes_max in ((1, 10**6), (5, 10**6), (100, 1), (100, 3 * size)):
        told: list[Delivery] = []
        while run := rig.state.deliveries(G0, told[-1].global_ts if told else NO_TIMESTAMP, count, bytes_max):
            assert len(run) <= count
            assert len(run) == 1 or sum(len(d.payload) for d in run) <= bytes_max
            told += run
        assert told == delivered


def test_a_commit_waits_for_the_log(rig: Rig) -> None:
    _, delivered = traffic(3)
    for number, delivery in enumerate(delivered, 1):
        rig.state.apply(G0, [delivery])
        rig.commit(after=number)
    rig.drain()
    assert rig.committed == []
    rig.state.log_durable(2)
    rig.drain()
    assert rig.committed == [{G0: delivered[1].global_ts}], "two in one, but not the third"
    rig.state.log_durable(1)
    rig.drain()
    assert len(rig.committed) == 1
    rig.state.log_durable(3)
    rig.drain()
    assert rig.committed[1:] == [{G0: delivered[2].global_ts}]


def test_a_crash_between_the_log_and_the_state_loses_executions_only(rig: Rig, tmp_path: Path) -> None:
    accepted, delivered = traffic(4)
    records: list[Record] = [*accepted, *delivered]
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    number = rig.log.write({G0: records})
    rig.commit(after=number)
    assert rig.state.pump() is False
    before = rig.crash(tmp_path / "before")
    assert before.log.load(G0) == Durable()
    assert before.state.load(G0) == Checkpoint()
    before.disk.close()
    rig.log.pump()
    rig.take()
    between = rig.crash(tmp_path / "between")
    assert same(between.log.load(G0), fold(records))
    assert between.state.load(G0) == Checkpoint()
    for delivery in delivered:
        between.state.apply(G0, [delivery])
    between.disk.close()
    rig.drain()
    after = rig.crash(tmp_path / "after")
    assert after.state.load(G0).position == delivered[-1].global_ts
    after.disk.close()


def test_closing_does_the_commits_whose_records_are_in_the_log(rig: Rig) -> None:
    accepted, delivered = traffic(2)
    number = rig.log.write({G0: [*accepted]})
    rig.state.apply(G0, [delivered[0]])
    rig.commit(after=number)
    rig.state.apply(G0, [delivered[1]])
    rig.commit(after=number + 1)
    rig.disk.close()
    again = Rig(rig.path)
    assert again.state.load(G0).position == delivered[0].global_ts
    again.disk.close()


def test_the_loop_does_a_bounded_number_of_puts_at_a_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    slices(monkeypatch, 10)
    _, delivered = traffic(95)
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    rig.commit()
    turns = 0
    while rig.state.pump():
        turns += 1
        for _ in range(3):
            rig.state.apply(G0, traffic(1, 95 + rig.state._group(G0).position // 1024 - 94)[1])
    assert 95 // 10 < turns < 95 // 10 + 6
    assert not rig.state.pump(), "while the disk is at it there is nothing to do"
    gate.tickets.release(5)
    rig.drain()
    assert rig.committed == [{G0: delivered[-1].global_ts}], "what was applied meanwhile waits for the next"
    assert not gate.waited_in_vain, "the loop waited for the disk"


def test_a_commit_has_few_deliveries_left_to_find_positions_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "POSITIONS_SLICE", 10)
    _, delivered = traffic(95)
    heard: list[int] = []
    add = deliveries._Positions.add

    def count(positions: Any, deliveries: Sequence[Delivery]) -> None:
        heard.append(len(deliveries))
        add(positions, deliveries)

    monkeypatch.setattr(deliveries._Positions, "add", count)
    for start in range(0, 95, 4):
        rig.state.apply(G0, delivered[start : start + 4])
    assert sum(heard) >= 95 - 10
    rig.commit()
    assert sum(heard) == 95
    assert max(heard) < 10 + 4
    assert rig.state.position(G0, delivered[-1].mid) == delivered[-1].global_ts
    assert rig.state.position(G0, delivered[50].mid) == NO_TIMESTAMP


def test_a_commit_writes_only_what_has_changed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    previous = NO_TIMESTAMP

    def deliver(client: int, sequence: int, ack_below: int) -> None:
        nonlocal previous
        at = Timestamp(previous + 1024)
        mid = MessageId(ClientId(client), sequence, 7)
        rig.state.apply(G0, [Delivery(mid, (G0,), b"", ack_below, at, at, previous, mismatch=False)])
        previous = at

    for client in range(300):
        deliver(client, 1, 1)
    rig.flush()
    slices(monkeypatch, 1)
    deliver(5, 2, 2)
    for sequence in range(2, 50):
        deliver(6, sequence, sequence)
    rig.commit()
    puts = 0
    while rig.state.pump():
        puts += 1
    rig.drain()
    assert puts == 1 + 49 + 4 + 2 + 1, "starting, deliveries, positions put and deleted, watermarks, position"
    assert len(rows_of_open(rig.state, keys.STATE_ORDER)) == 300, "one for each client"
    assert rig.state.position(G0, MessageId(ClientId(6), 48, 7)) == NO_TIMESTAMP
    assert rig.state.position(G0, MessageId(ClientId(6), 49, 7)) == previous
    assert rig.state.position(G0, MessageId(ClientId(6), 49, 8)) == NO_TIMESTAMP


def test_deliveries_come_in_order(rig: Rig) -> None:
    _, delivered = traffic(3)
    rig.state.apply(G0, [delivered[0]])
    for wrong in (delivered[0], delivered[2]):
        with pytest.raises(InvariantBroken, match=r"follows .*, but group 0 is at 1024"):
            rig.state.apply(G0, [wrong])
    with pytest.raises(InvariantBroken, match="group 0 is to be committed at 2048, but is at 1024"):
        rig.state.commit({G0: delivered[1].global_ts}, 0)


# Any history of the state


@st.composite
def any_run(draw: st.DrawFn) -> list[Delivery]:
    """Of two clients that use numbers twice, acknowledge, and fall behind what they acknowledged."""
    delivered = []
    previous = NO_TIMESTAMP
    mids = st.builds(
        MessageId, st.sampled_from([ClientId(1), ClientId(2**64 - 1)]), st.integers(0, 6), st.integers(0, 1)
    )
    for mid in draw(st.lists(mids, max_size=20, unique=True)):
        at = Timestamp(previous + draw(st.integers(1, 3)))
        payload = draw(st.binary(max_size=30))
        delivered.append(
            Delivery(mid, (G0,), payload, draw(st.integers(0, 7)), at, at, previous, draw(st.booleans()))
        )
        previous = at
    return delivered  # fmt: skip


def check_state(state: LmdbState, delivered: Sequence[Delivery], committed: int) -> None:
    assert state.deliveries(G0, NO_TIMESTAMP, 10**6) == delivered
    remembered = {
        (c, s, d) for c, _, above in table(delivered).rows() for s, digests in above for d in digests
    }
    for delivery in delivered:
        position = delivery.global_ts if delivery.mid in remembered else NO_TIMESTAMP
        assert state.position(G0, delivery.mid) == position
    position = delivered[committed - 1].global_ts if committed else NO_TIMESTAMP
    assert state.load(G0) == Checkpoint(position, table(delivered[:committed]))


@EXAMPLES
@given(
    any_run(),
    st.lists(st.sampled_from(["apply", "commit", "pump", "drain", "crash", "snapshot"]), max_size=30),
)
def test_any_history_leaves_the_state_it_should(delivered: list[Delivery], steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        slices(patch, 2)
        patch.setattr(deliveries, "PIECE_BYTES", 50)
        storage.create(Path(directory) / "0", Identity.new(CLUSTER, NODE, "os"))
        rig = Rig(Path(directory) / "0")
        applied = asked = committed = 0
        for index, step in enumerate([*steps, "commit", "drain", "crash"], 1):
            if step == "apply":
                for delivery in delivered[applied : applied + 3]:
                    rig.state.apply(G0, [delivery])
                applied = min(len(delivered), applied + 3)
            elif step == "commit":
                rig.commit()
                asked = applied
            elif step == "pump":
                rig.state.pump()
            elif step == "drain":
                rig.drain()
                committed = asked
            elif step == "snapshot":
                pieces = list(rig.state.snapshot(G0))
                assert max(map(len, pieces)) <= 50
                position = delivered[applied - 1].global_ts if applied else NO_TIMESTAMP
                rig.state.install(G0, pieces, Checkpoint(position, table(delivered[:applied])))
            elif not rig.state._env.busy or rig.state._env._job.filling:  # type: ignore[union-attr]  # busy: there is a job
                found = rig.crash(Path(directory) / str(index))
                committed = len([d for d in delivered if d.global_ts <= found.state.load(G0).position])
                assert committed <= asked
                rig.disk.close()
                rig, applied, asked = found, committed, committed
            if not rig.state._env.busy:
                check_state(rig.state, delivered[:applied], len([
                    d for d in delivered if d.global_ts <= rig.state.load(G0).position
                ]))  # fmt: skip
        assert committed == applied
        rig.disk.close()


def test_commits_asked_for_while_others_run_do_not_mix(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    _, delivered = traffic(4)
    for count, delivery in enumerate(delivered[:3], 1):
        rig.state.apply(G0, [delivery])
        rig.commit()
        rig.pump()
        if count > 1:
            gate.tickets.release()
            rig.take()
            rig.pump()
        assert rig.state.deliveries(G0, NO_TIMESTAMP, 9) == delivered[:count]
    rig.state.apply(G0, [delivered[3]])
    gate.tickets.release()
    rig.drain()
    assert rig.committed == [{G0: d.global_ts} for d in delivered[:3]]
    check_state(rig.state, delivered, 3)


def test_the_order_of_two_messages_under_one_number_is_kept(rig: Rig) -> None:
    first, second = traffic(2)[1]
    second = second._replace(mid=first.mid._replace(digest=first.mid.digest - 1))
    for delivery in (first, second):
        rig.state.apply(G0, [delivery])
    rig.flush()
    rig.disk.close()
    again = Rig(rig.path)
    check_state(again.state, [first, second], 2)
    again.disk.close()


# Snapshots


def others(count: int) -> list[Delivery]:
    """Deliveries that have nothing in common with `traffic`."""
    found: list[Delivery] = []
    for delivery in traffic(count)[1]:
        mid = delivery.mid._replace(client=ClientId(delivery.mid.client % 1000))
        at = Timestamp(delivery.global_ts + 1)
        previous = found[-1].global_ts if found else NO_TIMESTAMP
        found.append(delivery._replace(mid=mid, global_ts=at, previous_ts=previous))
    return found


def snapshot_of(delivered: Sequence[Delivery]) -> tuple[list[bytes], Checkpoint]:
    positions = deliveries._Positions()
    positions.add(delivered)
    position = delivered[-1].global_ts
    rows = [delivery_snapshot.snapshot_row(d.global_ts, run_format.seal_run(G0, [d])) for d in delivered]
    return [delivery_snapshot.snapshot_head(position, positions.ids()), *rows], Checkpoint(
        position, table(delivered)
    )


def test_a_snapshot_is_of_the_time_it_was_taken(rig: Rig, tmp_path: Path) -> None:
    _, delivered = traffic(60, size=100_000)
    for delivery in delivered[:30]:
        rig.state.apply(G0, [delivery])
    rig.flush()
    for delivery in delivered[30:40]:
        rig.state.apply(G0, [delivery])
    pieces = rig.state.snapshot(G0)
    found = [next(pieces)]
    for delivery in delivered[40:]:
        rig.state.apply(G0, [delivery])
        found.append(next(pieces, b""))
        rig.flush()
        assert rig.state._env.read().id() == rig.state._env._env.info()["last_txnid"], "no old reader is kept"
    found += pieces
    assert max(map(len, found)) <= 1 << 20
    storage.create(tmp_path / "other", Identity.new(CLUSTER, NODE))
    other = Rig(tmp_path / "other")
    other.state.install(G0, found, Checkpoint(delivered[39].global_ts, table(delivered[:40])))
    assert other.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered[:40]
    assert other.state.position(G0, delivered[39].mid) == delivered[39].global_ts
    other.disk.close()


def test_a_snapshot_goes_on_while_a_commit_runs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "PIECE_BYTES", 1000)
    _, delivered = traffic(40, size=100)
    for delivery in delivered[:20]:
        rig.state.apply(G0, [delivery])
    rig.flush()
    for delivery in delivered[20:]:
        rig.state.apply(G0, [delivery])
    gate = Gate(monkeypatch)
    rig.commit()
    rig.pump()
    pieces = rig.state.snapshot(G0)
    found = [next(pieces)]
    gate.tickets.release()
    rig.take()
    found.append(next(pieces))
    rig.drain()
    found += pieces
    assert delivery_snapshot.read_snapshot(found, G0, "snapshot")[2] == delivered
    assert not gate.waited_in_vain


def test_a_snapshot_goes_on_while_another_one_is_installed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was installed has the same deliveries in other runs."""
    monkeypatch.setattr(deliveries, "PIECE_BYTES", 300)
    _, delivered = traffic(40)
    for start in range(0, 30, 10):
        rig.state.apply(G0, delivered[start : start + 10])
        rig.flush()
    pieces = rig.state.snapshot(G0)
    found = [next(pieces)]
    position = delivered[-1].global_ts
    positions = deliveries._Positions()
    positions.add(delivered)
    runs = [delivered[:4], *(delivered[start : start + 12] for start in range(4, 40, 12))]
    rows = [delivery_snapshot.snapshot_row(run[-1].global_ts, run_format.seal_run(G0, run)) for run in runs]
    slices(monkeypatch, 7)
    head = delivery_snapshot.snapshot_head(position, positions.ids())
    rig.state.install(G0, [head, *rows], Checkpoint(position, table(delivered)))
    rig.flush()
    found += pieces
    assert delivery_snapshot.read_snapshot(found, G0, "snapshot")[2] == delivered[:30]
    assert rig.state.deliveries(G0, delivered[17].global_ts, 100) == delivered[18:]


def test_a_delivery_larger_than_a_piece_is_cut(rig: Rig) -> None:
    _, delivered = traffic(3, size=(5 << 20) // 2)
    for delivery in delivered:
        rig.state.apply(G0, [delivery])
    found = list(rig.state.snapshot(G0))
    assert [len(piece) for piece in found[:-1]] == [1 << 20] * 7
    assert len(delivery_snapshot.read_snapshot(found, G0, "snapshot")[2]) == 3


def test_an_installed_snapshot_replaces_all_or_nothing(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices(monkeypatch, 3)
    old = traffic(10)[1]
    for delivery in old:
        rig.state.apply(G0, [delivery])
        rig.state.apply(G1, [delivery])
    rig.flush(G0, G1)
    new = others(25)
    rig.state.apply(G0, traffic(1, 11)[1])
    rig.state.install(G0, *snapshot_of(new))
    assert rig.state.deliveries(G0, NO_TIMESTAMP, 100) == new
    assert rig.state.position(G0, new[-1].mid) == new[-1].global_ts
    more = traffic(1, 26)[1][0]._replace(previous_ts=new[-1].global_ts)
    rig.state.apply(G0, [more])
    rig.commit()
    crashes = 0
    gate = Gate(monkeypatch)
    while rig.state.pump():
        crashes += 1
        found = rig.crash(tmp_path / f"crash{crashes}")
        assert found.state.deliveries(G0, NO_TIMESTAMP, 100) == old
        assert found.state.load(G0) == Checkpoint(old[-1].global_ts, table(old))
        found.disk.close()
    assert crashes > 10
    gate.tickets.release(9)
    rig.drain()
    found = rig.crash(tmp_path / "after")
    for state in (rig.state, found.state):
        assert state.deliveries(G0, NO_TIMESTAMP, 100) == [*new, more]
        assert state.load(G0) == Checkpoint(more.global_ts, table([*new, more]))
        assert state.deliveries(G1, NO_TIMESTAMP, 100) == old, "the other group is as it was"
        assert state.load(G1) == Checkpoint(old[-1].global_ts, table(old))
    found.disk.close()


def test_a_snapshot_replaces_what_was_not_yet_committed(rig: Rig) -> None:
    for delivery in traffic(12)[1]:
        rig.state.apply(G0, [delivery])
        rig.commit(after=1)
    new = others(9)
    rig.state.install(G0, *snapshot_of(new))
    rig.commit(after=2)
    rig.state.log_durable(2)
    rig.drain()
    assert rig.committed == [{G0: new[-1].global_ts}], "all in one"
    rig.disk.close()
    again = Rig(rig.path)
    check_state(again.state, new, 9)
    again.disk.close()


def test_a_commit_under_way_does_not_mix_with_a_snapshot(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _, delivered = traffic(20)
    for delivery in delivered[:10]:
        rig.state.apply(G0, [delivery])
    whole = Checkpoint(delivered[9].global_ts, table(delivered[:10]))
    pieces = list(rig.state.snapshot(G0))
    gate = Gate(monkeypatch)
    rig.commit()
    rig.pump()
    rig.state.install(G0, pieces, whole)
    gate.tickets.release(5)
    rig.drain()
    assert rig.state.deliveries(G0, NO_TIMESTAMP, 100) == delivered[:10]
    for delivery in delivered[10:]:
        rig.state.apply(G0, [delivery])
    rig.flush()
    rig.disk.close()
    again = Rig(rig.path)
    check_state(again.state, delivered, 20)
    again.disk.close()


def test_a_snapshot_that_does_not_fit_is_refused_and_changes_nothing(rig: Rig, tmp_path: Path) -> None:
    _, delivered = traffic(5)
    other = rig.crash(tmp_path / "other")
    for delivery in delivered:
        other.state.apply(G1, [delivery])
    pieces = list(other.state.snapshot(G1))
    other.disk.close()
    whole = Checkpoint(delivered[-1].global_ts, table(delivered))
    for wrong, checkpoint, message in [
        ([*pieces, b"x"], whole, "ends in the deliveries"),
        ([pieces[0][:-1]], whole, "ends in the deliveries"),
        (
            pieces,
            Checkpoint(delivered[3].global_ts, whole.delivered),
            "is of 5120, but its checkpoint of 4096",
        ),
        (pieces, Checkpoint(whole.position, table(delivered[:4])), "has other delivered ids"),
        ([], Checkpoint(), "0 bytes are not a snapshot"),
    ]:
        with pytest.raises(BadSnapshot, match=r"the snapshot of group 0.*the checksum of"):
            rig.state.install(G0, pieces, checkpoint)
        with pytest.raises(BadSnapshot, match=f"the snapshot of group 1.*{message}"):
            rig.state.install(G1, wrong, checkpoint)
        assert rig.state.deliveries(G1, NO_TIMESTAMP, 9) == []
    rig.state.install(G1, pieces, whole)
    assert rig.state.deliveries(G1, NO_TIMESTAMP, 9) == delivered


def test_global_timestamps_follow_each_other() -> None:
    _, delivered = traffic(5)
    assert all(a.global_ts == b.previous_ts for a, b in pairwise(delivered))
