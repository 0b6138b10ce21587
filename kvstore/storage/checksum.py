"""Values with a checksum in front.

LMDB has none of its own, and a disk that flips a bit must not change a promise. The checksum of a row begins
with its *seed*, which stands for the row's table and key: so a row whose key has changed, or that is found in
the place of another, is as wrong as one whose value has changed. A value that is in no table has the seed 0.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from kvstore.storage.errors import DamagedRow
from kvstore.storage.keys import NUMBER, unpack
from multicast.types import Timestamp

LENGTH: Final = struct.Struct(">I")
"""The length of a sealed value in a stream, before it."""


SEAL_BYTES: Final = 4
"""Bytes that `seal` adds."""


def seed_of(database: bytes, key: bytes) -> int:
    """Return the seed of a row's checksum. That of a longer key is `crc32` of the rest, from this seed."""
    return zlib.crc32(key, zlib.crc32(database + b"\0"))


def seal(data: bytes, seed: int = 0) -> bytes:
    """Return the bytes with their checksum."""
    return zlib.crc32(data, seed).to_bytes(4, "big") + data


def unseal(value: bytes, where: str, seed: int = 0) -> bytes:
    """Return the bytes that were sealed. Raises `DamagedRow` for a wrong checksum."""
    data = value[4:]
    if len(value) < 4 or zlib.crc32(data, seed) != int.from_bytes(value[:4], "big"):
        raise DamagedRow(f"{where}: the checksum of {len(value)} bytes is wrong")
    return data


def is_sealed(value: bytes, seed: int) -> bool:
    """Return whether these are sealed bytes of this seed."""
    return len(value) >= 4 and zlib.crc32(value[4:], seed) == int.from_bytes(value[:4], "big")


def seal_number(number: int, seed: int) -> bytes:
    """Return the value of a number."""
    return seal(NUMBER.pack(number), seed)


def unseal_number(value: bytes, where: str, seed: int) -> int:
    """Return the number that was sealed."""
    number: int
    (number,) = unpack(NUMBER, unseal(value, where, seed), where)
    return number


def unseal_node(value: bytes, where: str, seed: int) -> bytes:
    """Return the key prefix of the node with the number that was sealed."""
    return NUMBER.pack(unseal_number(value, where, seed))


def seal_base(number: int, batch: bytes, seed: int) -> bytes:
    """Return the value of a base: records that amount to all rows up to a number."""
    return seal(NUMBER.pack(number) + batch, seed)


def unseal_base(value: bytes, where: str, seed: int) -> tuple[int, bytes]:
    """Return the number and the records that were sealed."""
    data = unseal(value, where, seed)
    number: int
    (number,) = unpack(NUMBER, data[: NUMBER.size], where)
    return number, data[NUMBER.size :]


_POSITION: Final = struct.Struct(">QQ")


def seal_position(position: Timestamp, count: int, seed: int) -> bytes:
    """Return the value of a group's position, and of the number of deliveries up to it."""
    return seal(_POSITION.pack(position, count), seed)


def unseal_position(value: bytes, where: str, seed: int) -> tuple[Timestamp, int]:
    """Return the position and the count that were sealed."""
    position, count = unpack(_POSITION, unseal(value, where, seed), where)
    return Timestamp(position), count
