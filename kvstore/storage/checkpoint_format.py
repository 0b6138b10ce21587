"""The format of a store's group: its checkpoint as one value, and the whole group as a stream of frames.

A frame is its length, a checksum and MessagePack. The first frame of a stream is the checkpoint (all that is
in no table); then follow the rows of the tables, in order, and last their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, TypeAlias

import msgspec

from kvstore.storage import checksum
from kvstore.storage.checksum import LENGTH
from kvstore.storage.errors import BadSnapshot, DamagedRow, StorageError
from kvstore.storage.ports import GroupCheckpoint
from kvstore.storage.rows import CHUNK_BYTES, Pair
from multicast.delivered import DeliveredIds
from multicast.durable import Checkpoint
from multicast.types import ClientId, MessageId, Timestamp

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Wide: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""Of 64 bits: MessagePack has no larger numbers."""


class _StoredCheckpoint(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    position: _Number
    executed: _Number
    count: _Number
    clients: list[tuple[_Wide, _Number, list[tuple[_Number, list[_Wide]]]]]
    machine_state: bytes


class _Rows(msgspec.Struct, array_like=True, tag=0, forbid_unknown_fields=True):
    table: str
    keys: list[bytes]
    values: list[bytes]


class _End(msgspec.Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    rows: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_checkpoint: Final = msgspec.msgpack.Decoder(_StoredCheckpoint).decode
_decode_rows: Final = msgspec.msgpack.Decoder(_Rows | _End).decode


def seal_checkpoint(stored: GroupCheckpoint, count: int, seed: int = 0) -> bytes:
    """Return the value of a checkpoint, and of the number of deliveries that led to it. A row has a seed."""
    checkpoint = stored.checkpoint
    clients = list(checkpoint.delivered.rows())
    found = checkpoint.position, checkpoint.executed, count, clients, stored.machine_state
    return checksum.seal(_encode(found), seed)


def unseal_checkpoint(value: bytes, where: str, seed: int = 0) -> tuple[GroupCheckpoint, int]:
    """Return the checkpoint and the count that were sealed."""
    try:
        found = _decode_checkpoint(checksum.unseal(value, where, seed))
    except msgspec.MsgspecError as error:
        raise DamagedRow(f"{where}: not a checkpoint: {error}") from None
    delivered = DeliveredIds()
    for client, low, above in found.clients:
        for sequence, digests in above:
            for digest in digests:
                delivered.add(MessageId(ClientId(client), sequence, digest), 0)
        delivered.pass_below(ClientId(client), low)
    checkpoint = Checkpoint(Timestamp(found.position), delivered, executed=Timestamp(found.executed))
    return GroupCheckpoint(checkpoint, found.machine_state), found.count


def frame(sealed: bytes) -> bytes:
    """Return a sealed value as a frame of a stream."""
    return LENGTH.pack(len(sealed)) + sealed


def row_frames(table: str, rows: Iterable[Pair]) -> Iterator[bytes]:
    """Return rows as frames of bounded size."""
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for key, value in rows:
        keys.append(key)
        values.append(value)
        size += len(key) + len(value)
        if size >= CHUNK_BYTES:
            yield frame(checksum.seal(_encode(_Rows(table, keys, values))))
            keys, values, size = [], [], 0
    if keys:
        yield frame(checksum.seal(_encode(_Rows(table, keys, values))))


def end_frame(rows: int) -> bytes:
    """Return the last frame of a stream."""
    return frame(checksum.seal(_encode(_End(rows))))


Tables: TypeAlias = dict[str, tuple[list[bytes], list[bytes]]]
"""Of each table the keys, in order, and the values as stored."""


def read_stream(
    pieces: Iterable[bytes], names: Iterable[str], where: str
) -> tuple[GroupCheckpoint, int, Tables]:
    """Return the checkpoint, the count and the tables of a whole stream. Raises `BadSnapshot`."""
    try:
        return _read(_frames(pieces), {name: ([], []) for name in names})
    except (StorageError, msgspec.MsgspecError) as error:
        raise BadSnapshot(f"{where}: {error}") from None


def _read(frames: Iterator[bytes], tables: Tables) -> tuple[GroupCheckpoint, int, Tables]:
    stored, count = unseal_checkpoint(next(frames, b""), "its checkpoint")
    for each in frames:
        part = _decode_rows(checksum.unseal(each, "a frame"))
        if isinstance(part, _Rows):
            _add(tables, part)
            continue
        found = sum(len(keys) for keys, _ in tables.values())
        if part.rows != found:
            raise StorageError(f"it has {found} rows, not {part.rows}")
        if next(frames, None) is not None:
            raise StorageError("it goes on after its end")
        return stored, count, tables
    raise StorageError("it has no end")


def _add(tables: Tables, part: _Rows) -> None:
    if part.table not in tables:
        raise StorageError(f"there is no table {part.table!r}")
    if len(part.keys) != len(part.values):
        raise StorageError(f"{part.table} has {len(part.keys)} keys for {len(part.values)} values")
    keys, values = tables[part.table]
    last = keys[-1] if keys else None
    for key in part.keys:
        if last is not None and key <= last:
            raise StorageError(f"{part.table} has {key.hex()} after {last.hex()}")
        last = key
    keys += part.keys
    values += part.values


def _frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = bytearray()
    for piece in pieces:
        rest += piece
        while len(rest) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(rest)
            end = LENGTH.size + length
            if len(rest) < end:
                break
            yield bytes(rest[LENGTH.size : end])
            del rest[:end]
    if rest:
        raise StorageError("it ends in a frame")
