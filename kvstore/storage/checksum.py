"""Values with a checksum in front.

LMDB has none of its own, and a disk that flips a bit must not change a promise.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from kvstore.storage.errors import StorageError
from kvstore.storage.keys import NUMBER, unpack
from multicast.types import Timestamp

LENGTH: Final = struct.Struct(">I")
"""The length of a sealed value in a stream, before it."""


SEAL_BYTES: Final = 4
"""Bytes that `seal` adds."""


def seal(data: bytes) -> bytes:
    """Return the bytes with their checksum."""
    return zlib.crc32(data).to_bytes(4, "big") + data


def unseal(value: bytes, where: str) -> bytes:
    """Return the bytes that were sealed. Raises `StorageError` for a wrong checksum."""
    data = value[4:]
    if len(value) < 4 or zlib.crc32(data) != int.from_bytes(value[:4], "big"):
        raise StorageError(f"{where}: the checksum of {len(value)} bytes is wrong")
    return data


def seal_number(number: int) -> bytes:
    """Return the value of a number."""
    return seal(NUMBER.pack(number))


def unseal_number(value: bytes, where: str) -> int:
    """Return the number that was sealed."""
    number: int
    (number,) = unpack(NUMBER, unseal(value, where), where)
    return number


def unseal_node(value: bytes, where: str) -> bytes:
    """Return the key prefix of the node with the number that was sealed."""
    return NUMBER.pack(unseal_number(value, where))


def seal_base(number: int, batch: bytes) -> bytes:
    """Return the value of a base: records that amount to all rows up to a number."""
    return seal(NUMBER.pack(number) + batch)


def unseal_base(value: bytes, where: str) -> tuple[int, bytes]:
    """Return the number and the records that were sealed."""
    data = unseal(value, where)
    number: int
    (number,) = unpack(NUMBER, data[: NUMBER.size], where)
    return number, data[NUMBER.size :]


_POSITION: Final = struct.Struct(">QQ")


def seal_position(position: Timestamp, count: int) -> bytes:
    """Return the value of a group's position, and of the number of deliveries up to it."""
    return seal(_POSITION.pack(position, count))


def unseal_position(value: bytes, where: str) -> tuple[Timestamp, int]:
    """Return the position and the count that were sealed."""
    position, count = unpack(_POSITION, unseal(value, where), where)
    return Timestamp(position), count
