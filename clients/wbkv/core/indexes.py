"""Entries of secondary indexes: keys without values, from which the keys of rows follow.

An entry is the index's prefix, a term, a zero byte and the row's name. So the entries of a term are a prefix,
and have the order of the rows' names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic

from wbkv.data import Key, V, key_bytes

END = b"\0"
"""Ends a term, so that the entries of "Rome" are not among those of "Romeo"."""


class Indexes(Generic[V]):
    """The indexes of a table."""

    def __init__(
        self, terms_of: Mapping[str, Callable[[V], Key | Iterable[Key] | None]], rows: bytes
    ) -> None:
        self._terms_of = {key_bytes(name): function for name, function in terms_of.items()}
        for name in self._terms_of:
            if name.startswith(rows) or rows.startswith(name):
                raise ValueError(f"entries of the index {name!r} would be among the rows {rows!r}")

    def entries(self, name: bytes, row: V | None) -> set[bytes]:
        """Return the entries of a row; none if there is no row."""
        if row is None:
            return set()
        return {
            self.term(index, term) + name
            for index, function in self._terms_of.items()
            for term in _terms(function(row))
        }

    def term(self, index: Key, term: Key) -> bytes:
        """Return the prefix of a term's entries. Raises `ValueError` if there is no such index."""
        known, raw = key_bytes(index), key_bytes(term)
        if known not in self._terms_of:
            names = ", ".join(map(repr, self._terms_of))
            raise ValueError(f"there is no index {known!r}, only {names or 'none at all'}")
        if END in raw:
            raise ValueError(f"the term {raw!r} of the index {known!r} has a zero byte")
        return known + raw + END


def _terms(found: Key | Iterable[Key] | None) -> Iterable[Key]:
    if found is None:
        return ()
    return (found,) if isinstance(found, str | bytes) else found
