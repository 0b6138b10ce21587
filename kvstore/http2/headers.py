"""HPACK: header blocks that clients send, and literals for those that we send.

A gRPC client sends the same few bytes for nearly every call, since all its headers are in the table that both
ends keep. So what a whole block means is remembered while that table does not change. Our own blocks have
neither references nor compression: they are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import hpack

from kvstore.http2.errors import ConnectionFault, ErrorCode

LIST_BYTES: Final = 16 << 10
"""Of all names and values of a block, with 32 bytes for each pair, as HPACK counts."""
REMEMBERED: Final = 16
"""Blocks of a connection that are remembered, if they are short and mean little."""
SHORT: Final = 256
FEW: Final = 16
"""Fields of a block that is remembered."""
SMALL: Final = 1 << 10
"""Bytes of their names and values."""

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")


class HeaderReader(Generic[T]):
    """Reads the header blocks of one connection, in order, and lets a function say what they mean."""

    def __init__(self, meaning: Callable[[Fields], T]) -> None:
        self._meaning = meaning
        self._decoder = hpack.Decoder(max_header_list_size=LIST_BYTES)
        self._remembered: dict[bytes, T] = {}

    def read(self, block: bytes) -> T:
        """Return what a block means. Raises `ConnectionFault` if it cannot be read: no later one could."""
        found = self._remembered.get(block)
        if found is not None:
            return found
        table = self._decoder.header_table
        before = self._table()
        try:
            fields: Fields = self._decoder.decode(block, raw=True)  # type: ignore[assignment]  # bytes if raw
        except hpack.OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many headers") from error
        except (hpack.HPACKError, IndexError, ValueError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "malformed header block") from error
        found = self._meaning(fields)
        if before != self._table() or (before[2] is not None and before[2] is not table.dynamic_entries[0]):
            self._remembered.clear()
        elif len(block) <= SHORT and len(self._remembered) < REMEMBERED and _is_small(fields):
            self._remembered[block] = found
        return found

    def _table(self) -> tuple[int, int, tuple[bytes, bytes] | None]:
        """Return what differs after every change of the table; the newest entry, as an object."""
        entries = self._decoder.header_table.dynamic_entries
        return self._decoder.header_table_size, len(entries), entries[0] if entries else None


def _is_small(fields: Fields) -> bool:
    return len(fields) <= FEW and sum(len(name) + len(value) for name, value in fields) <= SMALL


def literal(name: str, value: bytes) -> bytes:
    """Return a header that enters no table."""
    return b"".join((b"\0", _length(len(name)), name.encode(), _length(len(value)), value))


def _length(length: int) -> bytes:
    """Write an integer with a prefix of seven bits."""
    if length < 127:
        return bytes((length,))
    found = bytearray((127,))
    length -= 127
    while length > 127:
        found.append(length & 127 | 128)
        length >>= 7
    found.append(length)
    return bytes(found)
