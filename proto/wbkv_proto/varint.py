"""Protobuf's varints, for the streams that the client and the server write piece by piece."""

from __future__ import annotations

from typing import Final


def varint(number: int) -> bytes:
    """Return a non-negative number as protobuf encodes it: 7 bits per byte, the lowest first."""
    if number < 128:
        return _SMALL[number]
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SMALL: Final = tuple(bytes((number,)) for number in range(128))
