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


def sending(pieces: int) -> SnapshotTransfers:
    transfers = SnapshotTransfers()
    transfers.send(ONE, ME, 1, Checkpoint(), iter([b"x"] * pieces), 0.0)
    return transfers


def sent(transfers: SnapshotTransfers) -> list[int]:
    return [piece.index for _, _, piece in transfers.take_pieces()]


def test_a_piece_that_got_lost_is_sent_again() -> None:
    transfers = sending(2)
    assert sent(transfers) == [0]
    assert transfers.goes_on(ONE, ME, 1, REPEAT_S * 0.9)
    assert sent(transfers) == []
    assert transfers.goes_on(ONE, ME, 1, REPEAT_S)
    assert sent(transfers) == [0]
    transfers.acknowledge(ONE, ME, SnapshotAck(1, 0), REPEAT_S)
    transfers.acknowledge(ONE, ME, SnapshotAck(1, 0), REPEAT_S)  # of the repetition
    assert sent(transfers) == [1]


def test_pieces_that_take_long_are_repeated_seldom() -> None:
    transfers = sending(2)
    repeated = [
        now for now in range(1, 5) if transfers.goes_on(ONE, ME, 1, float(now)) and len(sent(transfers))
    ]
    assert repeated == [1, 3]
    transfers.acknowledge(ONE, ME, SnapshotAck(1, 0), 4.5)
    assert sent(transfers) == [1]
    assert transfers.goes_on(ONE, ME, 1, 9.0)
    assert sent(transfers) == []


def test_a_replica_that_asks_in_its_next_life_gets_the_snapshot_from_its_beginning() -> None:
    transfers = sending(2)
    assert not transfers.goes_on(ONE, ME, 2, 0.1)
    assert not transfers.goes_on(ONE, ME, 1, TRANSFER_S)


def test_a_piece_that_comes_again_is_acknowledged_again_and_counts_once() -> None:
    transfers = SnapshotTransfers()
    for index in (0, 1, 1, 0, 1):
        assert transfers.receive(ME, ONE, piece(1, index), 0.0) is None
    assert [ack.index for _, _, ack in transfers.take_pieces()] == [0, 1, 1, 0, 1]
    found = transfers.receive(ME, ONE, piece(1, 2, last=True), 0.1)
    assert found is not None
    assert len(found.state) == 3
