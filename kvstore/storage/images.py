"""Everything of a store's group that is in no table, as bytes; and a whole group, as a stream of frames.

A frame is its length, a checksum and msgpack. The first of a stream is the image, then come the tables' rows,
in order, and last how many there were.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, Final, TypeAlias

import msgspec

from kvstore.storage import checksum
from kvstore.storage.errors import BadSnapshot, StorageError
from kvstore.storage.ports import GroupCheckpoint
from kvstore.storage.rows import CHUNK_BYTES, Pair
from multicast.delivered import DeliveredIds
from multicast.durable import Checkpoint
from multicast.types import ClientId, MessageId, Timestamp

_LENGTH: Final = struct.Struct(">I")

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Wide: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""Of 64 bits: msgpack has no more."""


class _StoredCheckpoint(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    position: _Number
    executed: _Number
    count: _Number
    clients: list[tuple[_Wide, _Number, list[tuple[_Number, list[_Wide]]]]]
    picture: bytes


class _Rows(msgspec.Struct, array_like=True, tag=0, forbid_unknown_fields=True):
    table: str
    keys: list[bytes]
    values: list[bytes]


class _End(msgspec.Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    rows: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_image: Final = msgspec.msgpack.Decoder(_StoredCheckpoint).decode
_decode_rows: Final = msgspec.msgpack.Decoder(_Rows | _End).decode


def seal_checkpoint(image: GroupCheckpoint, count: int) -> bytes:
    """The value that keeps an image, and how many deliveries made it."""
    checkpoint = image.checkpoint
    clients = list(checkpoint.delivered.rows())
    found = checkpoint.position, checkpoint.executed, count, clients, image.picture
    return checksum.seal(_encode(found))


def unseal_checkpoint(value: bytes, where: str) -> tuple[GroupCheckpoint, int]:
    """The image and the count that were sealed."""
    try:
        found = _decode_image(checksum.unseal(value, where))
    except msgspec.MsgspecError as error:
        raise StorageError(f"{where}: no image: {error}") from None
    delivered = DeliveredIds()
    for client, low, above in found.clients:
        for sequence, digests in above:
            for digest in digests:
                delivered.add(MessageId(ClientId(client), sequence, digest), 0)
        delivered.pass_below(ClientId(client), low)
    checkpoint = Checkpoint(Timestamp(found.position), delivered, executed=Timestamp(found.executed))
    return GroupCheckpoint(checkpoint, found.picture), found.count


def frame(sealed: bytes) -> bytes:
    """What was sealed, in a stream."""
    return _LENGTH.pack(len(sealed)) + sealed


def row_frames(table: str, rows: Iterable[Pair]) -> Iterator[bytes]:
    """Rows in a stream, in frames of bounded size."""
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
    """The end of a stream."""
    return frame(checksum.seal(_encode(_End(rows))))


Tables: TypeAlias = dict[str, tuple[list[bytes], list[bytes]]]
"""Of each table the keys, in order, and the values as they are stored."""


def read_stream(
    pieces: Iterable[bytes], names: Iterable[str], where: str
) -> tuple[GroupCheckpoint, int, Tables]:
    """What a stream has: the image, the count and the tables. All of it, or `BadSnapshot`."""
    try:
        return _read(_frames(pieces), {name: ([], []) for name in names})
    except (StorageError, msgspec.MsgspecError) as error:
        raise BadSnapshot(f"{where}: {error}") from None


def _read(frames: Iterator[bytes], tables: Tables) -> tuple[GroupCheckpoint, int, Tables]:
    image, count = unseal_checkpoint(next(frames, b""), "its image")
    for each in frames:
        said = _decode_rows(checksum.unseal(each, "a frame"))
        if isinstance(said, _Rows):
            _add(tables, said)
            continue
        found = sum(len(keys) for keys, _ in tables.values())
        if said.rows != found:
            raise StorageError(f"it has {found} rows, not {said.rows}")
        if next(frames, None) is not None:
            raise StorageError("it goes on after its end")
        return image, count, tables
    raise StorageError("it has no end")


def _add(tables: Tables, said: _Rows) -> None:
    if said.table not in tables:
        raise StorageError(f"there is no table {said.table!r}")
    if len(said.keys) != len(said.values):
        raise StorageError(f"{said.table} has {len(said.keys)} keys for {len(said.values)} values")
    keys, values = tables[said.table]
    last = keys[-1] if keys else None
    for key in said.keys:
        if last is not None and key <= last:
            raise StorageError(f"{said.table} has {key.hex()} after {last.hex()}")
        last = key
    keys += said.keys
    values += said.values


def _frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = bytearray()
    for piece in pieces:
        rest += piece
        while len(rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest)
            end = _LENGTH.size + length
            if len(rest) < end:
                break
            yield bytes(rest[_LENGTH.size : end])
            del rest[:end]
    if rest:
        raise StorageError("it ends in a frame")
