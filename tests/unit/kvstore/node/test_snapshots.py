"""Transfers of snapshots from several members at once."""

from __future__ import annotations

from kvstore.node.snapshots import REPEAT_S, TRANSFER_S, SnapshotTransfers
from kvstore.wire.messages import SnapshotAck, SnapshotPiece
from multicast.durable import Checkpoint
from multicast.types import GroupId, ReplicaId

ME, ONE, OTHER = (ReplicaId(GroupId(0), slot, 7) for slot in range(3))


def piece(transfer: int, index: int, *, last: bool = False) -> SnapshotPiece:
    return SnapshotPiece(transfer, index, ordering=False, last=last, data=b"x")


def test_a_transfer_that_goes_on_is_not_replaced_by_that_of_another_member() -> None:
    transfers = SnapshotTransfers()
    now, step = 0.0, TRANSFER_S * 0.9
    for index in range(10):
        assert transfers.receive(ME, ONE, piece(1, index), now) is None
        assert transfers.receive(ME, OTHER, piece(2 + index, 0), now + step / 2) is None
        now += step
    found = transfers.receive(ME, ONE, piece(1, 10, last=True), now)
    assert found is not None
    assert (found.source, len(found.state)) == (ONE, 11)
    assert transfers.take_pieces() == [(ME, ONE, SnapshotAck(1, index)) for index in range(11)]


def test_a_transfer_that_has_stopped_is_replaced() -> None:
    transfers = SnapshotTransfers()
    transfers.receive(ME, ONE, piece(1, 0), 0.0)
    transfers.receive(ME, ONE, piece(1, 1), 1.0)
    assert transfers.receive(ME, OTHER, piece(2, 0), 0.9 + TRANSFER_S) is None
    assert transfers.receive(ME, OTHER, piece(3, 0), 1.0 + TRANSFER_S) is None
    assert transfers.receive(ME, OTHER, piece(3, 1, last=True), 2.0 + TRANSFER_S) is not None


def test_a_member_may_start_its_own_transfer_anew() -> None:
    transfers = SnapshotTransfers()
    transfers.receive(ME, ONE, piece(1, 0), 0.0)
    transfers.receive(ME, ONE, piece(2, 0), 0.1)
    assert transfers.receive(ME, ONE, piece(2, 1, last=True), 0.2) is not None


def test_the_next_transfer_may_begin_when_one_is_complete() -> None:
    transfers = SnapshotTransfers()
    assert transfers.receive(ME, ONE, piece(1, 0, last=True), 0.0) is not None
    assert transfers.receive(ME, OTHER, piece(2, 0, last=True), 0.1) is not None


def sending(number: int, now: float) -> SnapshotTransfers:
    """Transfers of a node that has just sent the first piece of a snapshot."""
    transfers = SnapshotTransfers()
    transfers.send(ME, ONE, number, Checkpoint(), iter([b"one", b"two"]), now)
    assert [sent.index for _, _, sent in transfers.take_pieces() if isinstance(sent, SnapshotPiece)] == [0]
    return transfers


def test_a_piece_that_was_lost_is_sent_again_when_the_receiver_asks_again() -> None:
    transfers = sending(1, 0.0)
    asks = [0.2 * step for step in range(1, 20)]
    sent_at = []
    for now in asks:
        assert transfers.is_sending(ME, ONE, 1, now)
        sent_at += [now for _ in transfers.take_pieces()]
    first, second, third = sent_at
    assert REPEAT_S <= first < 2 * REPEAT_S
    assert third - second > second - first > REPEAT_S, "ever more rarely"
    transfers.acknowledge(ME, ONE, SnapshotAck(1, 0), 4.0)
    [(_, _, following)] = transfers.take_pieces()
    assert following.index == 1
    assert transfers.is_sending(ME, ONE, 1, 4.0 + REPEAT_S)
    assert transfers.take_pieces() == [(ME, ONE, following)]
    assert not transfers.is_sending(ME, ONE, 1, 4.0 + TRANSFER_S), "it may start anew"


def test_a_receiver_that_has_begun_anew_does_not_wait_for_the_end_of_its_last_transfer() -> None:
    transfers = sending(1, 0.0)
    assert not transfers.is_sending(ME, ONE, 2, 0.1)


def test_a_piece_that_arrives_again_is_acknowledged_again_and_kept_once() -> None:
    transfers = SnapshotTransfers()
    for index in (0, 0, 1, 1):
        assert transfers.receive(ME, ONE, piece(1, index), 0.0) is None
        assert transfers.take_pieces() == [(ME, ONE, SnapshotAck(1, index))]
    found = transfers.receive(ME, ONE, piece(1, 2, last=True), 0.0)
    assert found is not None
    assert len(found.state) == 3
