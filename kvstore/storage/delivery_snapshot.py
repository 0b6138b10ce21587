"""A snapshot of bare multicast's state: a stream of bytes, cut into pieces anywhere.

Its head, with its length before it; then deliveries in runs, as they are stored, each with its last global
timestamp and its length before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError
from wbkv_proto.log_pb2 import SnapshotHead

from kvstore.storage.checksum import LENGTH, seal, unseal
from kvstore.storage.errors import BadSnapshot, StorageError
from kvstore.storage.run_format import unseal_run
from multicast.messages import Delivery
from multicast.types import NO_TIMESTAMP, ClientId, GroupId, Timestamp

PIECE_BYTES: Final = 1 << 20
"""The largest piece."""

Ids: TypeAlias = list[tuple[ClientId, int, list[tuple[int, int, Timestamp]]]]
"""Delivered ids: client, low watermark, and sequence, digest and position of each id at or above it."""

_ROW: Final = struct.Struct(">QI")


def snapshot_head(position: Timestamp, ids: Ids) -> bytes:
    """Return the head of a snapshot."""
    clients: list[int] = []
    positions: list[int] = []
    digests: list[int] = []
    for client, low, above in ids:
        clients += client, low, len(above)
        for sequence, digest, global_ts in above:
            positions += sequence, global_ts
            digests.append(digest)
    head = seal(
        SnapshotHead(
            position=position, clients=clients, places=positions, digests=digests
        ).SerializeToString()
    )
    return LENGTH.pack(len(head)) + head


def snapshot_row(last: Timestamp, value: bytes) -> bytes:
    """Return a run of deliveries as a row of a snapshot."""
    return _ROW.pack(last, len(value)) + value


def read_snapshot(
    pieces: Iterable[bytes], group: GroupId, where: str
) -> tuple[Timestamp, Ids, list[Delivery]]:
    """Return the contents of a group's snapshot, in which every delivery names the one before it. Raises
    `BadSnapshot`.
    """
    data = memoryview(b"".join(pieces))
    if len(data) < LENGTH.size:
        raise BadSnapshot(f"{where}: {len(data)} bytes are not a snapshot")
    (length,) = LENGTH.unpack_from(data)
    at = LENGTH.size + length
    if at > len(data):
        raise BadSnapshot(f"{where} ends in its head")
    try:
        head = SnapshotHead.FromString(unseal(bytes(data[LENGTH.size : at]), where))
    except (DecodeError, StorageError) as error:
        raise BadSnapshot(f"{where} has no head: {error}") from None
    ids = _read_ids(head, where)
    deliveries: list[Delivery] = []
    last = NO_TIMESTAMP
    while at < len(data):
        row = bytes(data[at : at + _ROW.size])
        end, length = _ROW.unpack(row) if len(row) == _ROW.size else (0, len(data))
        at += _ROW.size + length
        if at > len(data):
            raise BadSnapshot(f"{where} ends in the deliveries after {last}")
        try:
            run = unseal_run(bytes(data[at - length : at]), group, end, f"{where}, deliveries up to {end}")
        except StorageError as error:
            raise BadSnapshot(str(error)) from None
        if run[0].previous_ts != last:
            raise BadSnapshot(f"{where}: a run comes after {last}, not after {run[0].previous_ts}")
        last = end
        deliveries += run
    if last != head.position:
        raise BadSnapshot(f"{where} ends at {last}, before its position {head.position}")
    return last, ids, deliveries


def _read_ids(head: SnapshotHead, where: str) -> Ids:
    clients, numbers, digests = head.clients[:], head.places[:], head.digests[:]
    positions: list[Any] = list(zip(numbers[0::2], digests, numbers[1::2], strict=False))
    if len(clients) % 3 or len(numbers) != 2 * len(digests) or sum(clients[2::3]) != len(positions):
        raise BadSnapshot(f"{where}: its {len(positions)} positions do not fit its clients")
    rest = iter(positions)
    rows: Iterator[Any] = zip(*[iter(clients)] * 3, strict=True)
    return [(client, low, list(islice(rest, length))) for client, low, length in rows]
