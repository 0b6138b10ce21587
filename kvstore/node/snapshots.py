"""Snapshots, for a replica that is behind all that the others of its group retain.

A snapshot travels in pieces of bounded size, one at a time: the next leaves when the last has been
acknowledged, so that a transfer never fills a link, and the group goes on meanwhile. First comes the ordering
side (the `Checkpoint`), then the application's own pieces. Nothing is replaced before all of it is there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kvstore.wire.frames import ORDERING_CODEC, WireError
from kvstore.wire.messages import SnapshotPiece
from multicast.delivered import DeliveredIds
from multicast.durable import Checkpoint
from multicast.errors import InvalidArgument
from multicast.membership import Membership
from multicast.messages import NewState, StatePart
from multicast.types import NO_BALLOT, ClientId, GroupId, MessageId, ReplicaId, Timestamp

PIECE_BYTES: Final = 1 << 20
_HEAD: Final = struct.Struct("<QQQQ")
_CLIENT: Final = struct.Struct("<QQI")
_NUMBER: Final = struct.Struct("<QQ")
_NOBODY: Final = ReplicaId(GroupId(0), 0, 0)


@dataclass(slots=True)
class SnapshotSender:
    """A snapshot on its way to a replica."""

    transfer: int
    pieces: Iterator[SnapshotPiece]
    sent: SnapshotPiece
    deadline: float


@dataclass(slots=True)
class SnapshotReceiver:
    """A snapshot that is coming."""

    source: ReplicaId
    transfer: int
    ordering: list[bytes] = field(default_factory=list)
    state: list[bytes] = field(default_factory=list)
    count: int = 0

    def add(self, piece: SnapshotPiece) -> bool:
        """Take the next piece. False if it is not the next."""
        if piece.index != self.count:
            return False
        self.count += 1
        if piece.data:
            (self.ordering if piece.ordering else self.state).append(piece.data)
        return True


def pieces_of(transfer: int, checkpoint: Checkpoint, state: Iterator[bytes]) -> Iterator[SnapshotPiece]:
    """All pieces, in order; the application's are made as they are asked for."""
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
    """The checkpoint as bytes."""
    state = NewState(NO_BALLOT, 0, StatePart(0, 0, 1), checkpoint.entries)
    entries = ORDERING_CODEC.encode([(_NOBODY, _NOBODY, [state])])
    membership = b"" if checkpoint.membership is None else checkpoint.membership.encode()
    head = _HEAD.pack(checkpoint.position, checkpoint.executed, len(membership), len(entries))
    parts = [head, membership, entries]
    for client, low, above in checkpoint.delivered.rows():
        numbers = [(sequence, digest) for sequence, digests in above for digest in digests]
        parts.append(_CLIENT.pack(client, low, len(numbers)))
        parts += [_NUMBER.pack(sequence, digest) for sequence, digest in numbers]
    return b"".join(parts)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """What `encode_checkpoint` was given. Raises `WireError` for anything else."""
    try:
        position, executed, members, length = _HEAD.unpack_from(data)
        if executed > position:
            raise WireError(f"a checkpoint that has executed {executed}, but delivered only {position}")
        begin = _HEAD.size + members
        at = begin + length
        if at > len(data):
            raise WireError(f"a checkpoint of {len(data)} bytes announces {members} and {length} of them")
        membership = Membership.decode(data[_HEAD.size : begin]) if members else None
        envelopes = ORDERING_CODEC.decode(data[begin:at])
        if len(envelopes) != 1 or len(envelopes[0][2]) != 1 or not isinstance(envelopes[0][2][0], NewState):
            raise WireError("a checkpoint without entries")
        delivered = DeliveredIds()
        while at < len(data):
            client, low, count = _CLIENT.unpack_from(data, at)
            at += _CLIENT.size
            if count > (len(data) - at) // _NUMBER.size:
                raise WireError(f"a checkpoint announces {count} numbers of client {client}")
            for _ in range(count):
                sequence, digest = _NUMBER.unpack_from(data, at)
                at += _NUMBER.size
                delivered.add(MessageId(ClientId(client), sequence, digest), 0)
            delivered.pass_below(ClientId(client), low)
    except struct.error as error:
        raise WireError(f"a checkpoint that ends too early: {error}") from None
    except InvalidArgument as error:
        raise WireError(f"a checkpoint: {error}") from None
    return Checkpoint(
        Timestamp(position), delivered, envelopes[0][2][0].entries, membership, Timestamp(executed)
    )
