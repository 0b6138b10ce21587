"""Transfer snapshots to replicas that have missed more than the other members of their group retain.

A snapshot travels in pieces of bounded size, one at a time: the next leaves when the last has been
acknowledged, so that a transfer never fills a link, and the group goes on meanwhile. A receiver that gets no
more asks again, and gets the piece again whose acknowledgement is overdue: either may have been lost. First
comes the ordering state (the `Checkpoint`), then the application's pieces. No state is replaced before the
last piece arrived.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kvstore.wire.frames import ORDERING_CODEC, WireError
from kvstore.wire.messages import SnapshotAck, SnapshotPiece
from multicast.delivered import DeliveredIds
from multicast.durable import Checkpoint
from multicast.errors import InvalidArgument
from multicast.membership import Membership
from multicast.messages import NewState, StatePart
from multicast.types import NO_BALLOT, ClientId, GroupId, MessageId, ReplicaId, Timestamp

PIECE_BYTES: Final = 1 << 20
TRANSFER_S: Final = 5.0
"""How long a piece may stay without an acknowledgement before the transfer may start anew."""

REPEAT_S: Final = 0.5
"""How long a piece may stay so before it is sent again, if the receiver asks. It doubles each time."""

Piece: TypeAlias = tuple[ReplicaId, ReplicaId, SnapshotPiece | SnapshotAck]
"""A piece or an acknowledgement to send: its sender, its receiver, and the message."""

_HEAD: Final = struct.Struct("<QQQQ")
_CLIENT: Final = struct.Struct("<QQI")
_NUMBER: Final = struct.Struct("<QQ")
_NO_REPLICA: Final = ReplicaId(GroupId(0), 0, 0)


@dataclass(slots=True)
class SnapshotSender:
    """A snapshot that a replica of this node sends."""

    transfer: int
    pieces: Iterator[SnapshotPiece]
    sent: SnapshotPiece
    deadline: float
    repeat_at: float
    repeats: int = 0
    """How often the last piece was sent again."""


@dataclass(slots=True)
class SnapshotReceiver:
    """A snapshot that a replica of this node receives."""

    source: ReplicaId
    transfer: int
    ordering: list[bytes] = field(default_factory=list)
    state: list[bytes] = field(default_factory=list)
    count: int = 0
    deadline: float = 0.0
    """Until then, the transfer is not given up for that of another member."""

    def add(self, piece: SnapshotPiece) -> bool:
        """Add the next piece; return whether it is the next."""
        if piece.index != self.count:
            return False
        self.count += 1
        if piece.data:
            (self.ordering if piece.ordering else self.state).append(piece.data)
        return True


class SnapshotTransfers:
    """All snapshots that the replicas of a node send and receive."""

    def __init__(self) -> None:
        self._senders: dict[tuple[ReplicaId, ReplicaId], SnapshotSender] = {}
        self._receivers: dict[ReplicaId, SnapshotReceiver] = {}
        self._pieces: list[Piece] = []

    def is_sending(self, me: ReplicaId, target: ReplicaId, number: int, now: float) -> bool:
        """Return whether the transfer that the replica asks for is under way, and its last piece not overdue
        for long. Send that piece again if it is time.

        A replica that asks by another number has begun anew, and has nothing of the last transfer.
        """
        sender = self._senders.get((me, target))
        if sender is None or sender.transfer != number or now >= sender.deadline:
            return False
        if now >= sender.repeat_at:
            sender.repeats += 1
            sender.repeat_at = now + REPEAT_S * (1 << sender.repeats)
            self._pieces.append((me, target, sender.sent))
        return True

    def send(
        self,
        me: ReplicaId,
        target: ReplicaId,
        transfer: int,
        checkpoint: Checkpoint,
        state: Iterator[bytes],
        now: float,
    ) -> None:
        """Start to send a snapshot, which the target has asked for by this number."""
        pieces = pieces_of(transfer, checkpoint, state)
        sender = SnapshotSender(transfer, pieces, next(pieces), now + TRANSFER_S, now + REPEAT_S)
        self._senders[me, target] = sender
        self._pieces.append((me, target, sender.sent))

    def acknowledge(self, me: ReplicaId, target: ReplicaId, ack: SnapshotAck, now: float) -> None:
        """Send the next piece if the acknowledgement is for the last one; ignore a stale one."""
        sender = self._senders.get((me, target))
        if sender is None or (ack.transfer, ack.index) != (sender.transfer, sender.sent.index):
            return
        if sender.sent.last:
            del self._senders[me, target]
            return
        sender.sent, sender.deadline = next(sender.pieces), now + TRANSFER_S
        sender.repeat_at, sender.repeats = now + REPEAT_S, 0
        self._pieces.append((me, target, sender.sent))

    def receive(
        self, me: ReplicaId, source: ReplicaId, piece: SnapshotPiece, now: float
    ) -> SnapshotReceiver | None:
        """Add a piece and acknowledge it; return the snapshot if that was its last piece.

        The caller has checked that the first piece was asked for. A replica that restores its state asks one
        member after the other, and takes the snapshot of the first that answers, as long as pieces arrive.
        """
        receiver = self._receivers.get(me)
        if piece.index == 0 and (receiver is None or receiver.source == source or now >= receiver.deadline):
            receiver = self._receivers[me] = SnapshotReceiver(source, piece.transfer)
        if receiver is None or (receiver.source, receiver.transfer) != (source, piece.transfer):
            return None
        if not receiver.add(piece):
            if piece.index == receiver.count - 1:  # its acknowledgement was lost
                self._pieces.append((me, source, SnapshotAck(piece.transfer, piece.index)))
            return None
        receiver.deadline = now + TRANSFER_S
        self._pieces.append((me, source, SnapshotAck(piece.transfer, piece.index)))
        return self._receivers.pop(me) if piece.last else None

    def take_pieces(self) -> list[Piece]:
        """Return and remove what is to be sent with this turn."""
        pieces, self._pieces = self._pieces, []
        return pieces


def pieces_of(transfer: int, checkpoint: Checkpoint, state: Iterator[bytes]) -> Iterator[SnapshotPiece]:
    """Yield all pieces, in order; the application makes its pieces on demand."""
    encoded = encode_checkpoint(checkpoint)
    index = 0
    for start in range(0, len(encoded), PIECE_BYTES):
        data = encoded[start : start + PIECE_BYTES]
        yield SnapshotPiece(transfer, index, ordering=True, last=False, data=data)
        index += 1
    for data in state:
        yield SnapshotPiece(transfer, index, ordering=False, last=False, data=data)
        index += 1
    yield SnapshotPiece(transfer, index, ordering=False, last=True, data=b"")


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the checkpoint as bytes."""
    state = NewState(NO_BALLOT, 0, StatePart(0, 0, 1), checkpoint.entries)
    entries = ORDERING_CODEC.encode([(_NO_REPLICA, _NO_REPLICA, [state])])
    membership = b"" if checkpoint.membership is None else checkpoint.membership.encode()
    head = _HEAD.pack(checkpoint.position, checkpoint.executed, len(membership), len(entries))
    parts = [head, membership, entries]
    for client, low, above in checkpoint.delivered.rows():
        numbers = [(sequence, digest) for sequence, digests in above for digest in digests]
        parts.append(_CLIENT.pack(client, low, len(numbers)))
        parts += [_NUMBER.pack(sequence, digest) for sequence, digest in numbers]
    return b"".join(parts)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint that `encode_checkpoint` encoded. Raises `WireError` for other bytes."""
    try:
        position, executed, members, length = _HEAD.unpack_from(data)
        if executed > position:
            raise WireError(f"checkpoint has executed {executed}, above its position {position}")
        begin = _HEAD.size + members
        at = begin + length
        if at > len(data):
            raise WireError(f"checkpoint of {len(data)} bytes is shorter than {members} + {length} bytes")
        membership = Membership.decode(data[_HEAD.size : begin]) if members else None
        envelopes = ORDERING_CODEC.decode(data[begin:at])
        if len(envelopes) != 1 or len(envelopes[0][2]) != 1 or not isinstance(envelopes[0][2][0], NewState):
            raise WireError("checkpoint has no entries")
        delivered = DeliveredIds()
        while at < len(data):
            client, low, count = _CLIENT.unpack_from(data, at)
            at += _CLIENT.size
            if count > (len(data) - at) // _NUMBER.size:
                raise WireError(f"checkpoint is shorter than its {count} numbers of client {client}")
            for _ in range(count):
                sequence, digest = _NUMBER.unpack_from(data, at)
                at += _NUMBER.size
                delivered.add(MessageId(ClientId(client), sequence, digest), 0)
            delivered.pass_below(ClientId(client), low)
    except struct.error as error:
        raise WireError(f"checkpoint ends too early: {error}") from None
    except InvalidArgument as error:
        raise WireError(f"invalid checkpoint: {error}") from None
    return Checkpoint(
        Timestamp(position), delivered, envelopes[0][2][0].entries, membership, Timestamp(executed)
    )
