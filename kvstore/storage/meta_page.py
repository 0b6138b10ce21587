"""LMDB's meta pages: how long an environment's file must be.

LMDB maps its file without looking at the length: a page beyond the end is a SIGBUS, not an error. So the
length is compared with the newest meta page before the file is mapped, and again while it is in use.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from kvstore.storage.errors import StorageError

DATA: Final = "data.mdb"
MAGIC: Final = 0xBEEFC0DE
PAGE_MIN, PAGE_MAX = 256, 1 << 16

_PAGE: Final = struct.Struct("<QHHI")
"""The header of a page: number, padding, flags, bounds."""
_META: Final = struct.Struct("<IIQQ")
"""Magic, version, address, size of the map."""
_DATABASE: Final = struct.Struct("<IHHQQQQQ")
"""Of the list of free pages: its first field is the page size. Then follows that of the main database."""
_END: Final = struct.Struct("<QQ")
"""The last page, and the transaction that wrote this."""
_END_AT: Final = _PAGE.size + _META.size + 2 * _DATABASE.size
_META_PAGE: Final = 0x08


class MetaPage(NamedTuple):
    """The newest of a file's two meta pages."""

    page_bytes: int
    last_page: int
    transaction: int

    @property
    def file_bytes(self) -> int:
        """The length of the file that has all pages."""
        return (self.last_page + 1) * self.page_bytes


def read_meta(path: Path) -> MetaPage:
    """Return the newest meta page of the environment in this directory. Raises `StorageError`."""
    file = path / DATA
    try:
        with file.open("rb") as opened:
            first = opened.read(_END_AT + _END.size)
            found = [_parse(first)]
            size = found[0].page_bytes if found[0] is not None else os.sysconf("SC_PAGE_SIZE")
            opened.seek(size)
            found.append(_parse(opened.read(_END_AT + _END.size)))
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror}") from error
    sound = [page for page in found if page is not None]
    if not sound:
        raise StorageError(f"{file} has no valid meta page of LMDB: the file is damaged")
    return max(sound, key=lambda page: page.transaction)


def _parse(data: bytes) -> MetaPage | None:
    if len(data) < _END_AT + _END.size:
        return None
    _, _, flags, _ = _PAGE.unpack_from(data)
    magic, *_ = _META.unpack_from(data, _PAGE.size)
    page_bytes, *_ = _DATABASE.unpack_from(data, _PAGE.size + _META.size)
    last, transaction = _END.unpack_from(data, _END_AT)
    if magic != MAGIC or not flags & _META_PAGE or not PAGE_MIN <= page_bytes <= PAGE_MAX:
        return None
    return MetaPage(page_bytes, last, transaction)


def missing_bytes(path: Path) -> int:
    """Return by how many bytes the environment's file is too short.

    A few pages may be missing from a sound file: LMDB does not write pages at the end that it has allocated
    and freed in one transaction.
    """
    return max(0, read_meta(path).file_bytes - (path / DATA).stat().st_size)


def extend(path: Path) -> None:
    """Fill the file up with zeros, so that reading a missing page is an error of LMDB and not a signal."""
    os.truncate(path / DATA, read_meta(path).file_bytes)
