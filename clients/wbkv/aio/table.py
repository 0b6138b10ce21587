"""Secondary indexes for event loops. `wbkv.table`, for threads, is generated from this module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from wbkv.aio.transaction import Transaction
from wbkv.codecs import BYTES, Codec
from wbkv.core.indexes import Indexes
from wbkv.data import Key, V, key_bytes

ROWS: Final = 100
"""How many rows one request reads."""

W = TypeVar("W")


class Table(Generic[V]):
    """Rows under a prefix of keys, with secondary indexes, each under a prefix of its own.

    `indexes` has for each index a function that returns a row's terms: one, several, or None. A row is
    written in one transaction with its index entries, so they always agree; write rows only through the
    table. A row's name is its key without the prefix. The methods take an open transaction of any codec.
    """

    def __init__(
        self,
        prefix: Key,
        codec: Codec[V],
        indexes: Mapping[str, Callable[[V], Key | Iterable[Key] | None]],
    ) -> None:
        self._prefix = key_bytes(prefix)
        self._codec = codec
        self._indexes: Indexes[V] = Indexes(indexes, self._prefix)

    def __repr__(self) -> str:
        return f"<wbkv.aio.Table of {self._prefix!r}>"

    async def get(self, tx: Transaction[W], name: Key) -> V | None:
        """Return a row, or None."""
        return await tx.using(self._codec).get(self._prefix + key_bytes(name))

    async def put(self, tx: Transaction[W], name: Key, row: V) -> None:
        """Write a row. All its index entries are written again, so this also adds a row to a new index."""
        entries = self._indexes.entries(key_bytes(name), row)
        await self._replace(tx, name, entries)
        tx.using(self._codec).put(self._prefix + key_bytes(name), row)

    async def delete(self, tx: Transaction[W], name: Key) -> None:
        """Remove a row, if there is one."""
        await self._replace(tx, name, set())
        tx.delete(self._prefix + key_bytes(name))

    async def _replace(self, tx: Transaction[W], name: Key, entries: set[bytes]) -> None:
        """Replace a row's index entries."""
        before = self._indexes.entries(key_bytes(name), await self.get(tx, name))
        plain = tx.using(BYTES)
        for entry in sorted(before - entries):
            plain.delete(entry)
        for entry in sorted(entries):
            plain.put(entry, b"")

    async def find(
        self, tx: Transaction[W], index: str, term: Key, *, after: Key | None = None, limit: int = 0
    ) -> AsyncIterator[tuple[bytes, V]]:
        """Iterate over the names and rows that an index has under a term, in the order of names. `after`
        continues behind a name. The commit fails if another transaction has changed one of these rows, or
        which ones there are.
        """
        start = self._indexes.term(index, term)
        behind = None if after is None else start + key_bytes(after)
        entries = tx.using(BYTES).scan(start, after=behind, limit=limit)
        names = [entry.key[len(start) :] async for entry in entries]
        for first in range(0, len(names), ROWS):
            part = names[first : first + ROWS]
            rows = await tx.using(self._codec).get_many([self._prefix + name for name in part])
            for name, row in zip(part, rows, strict=True):
                if row is not None:
                    yield name, row
