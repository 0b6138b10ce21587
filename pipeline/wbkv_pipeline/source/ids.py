"""Names of transactions that every attempt of a task arrives at by itself.

A request's id is what makes it happen once. It is a hash of what the transaction is: of which job, and its
`txn_id`; or which task's, which partition's, and the how many-th. 63 bits go into the client's number, and 12
into the sequence where that does not count anything, so that two names that are not the same meet never; and
if they did, the store would refuse the second (`RequestMismatch`).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, TypeAlias

from wbkv import RequestId

WINDOW: Final = 4096
"""Sequence numbers of one client."""

NamePart: TypeAlias = str | bytes | int


def _hash(parts: tuple[NamePart, ...]) -> int:
    """A number of 80 bits. Parts of different types or borders are different names."""
    digest = blake2b(digest_size=10)
    for part in parts:
        if isinstance(part, int):
            kind, raw = b"i", str(part).encode()
        elif isinstance(part, str):
            kind, raw = b"s", part.encode()
        else:
            kind, raw = b"b", part
        digest.update(kind + len(raw).to_bytes(8, "big") + raw)
    return int.from_bytes(digest.digest(), "big")


def _client(number: int) -> int:
    return (number >> 16 & (1 << 63) - 1) or 1


def counted_id(deadline: int, number: int, *parts: NamePart) -> RequestId:
    """The id of the number-th transaction, from 0, of what the parts name."""
    turn, index = divmod(number, WINDOW)
    return RequestId(_client(_hash((*parts, turn))), index + 1, deadline)


def named_id(deadline: int, *parts: NamePart) -> RequestId:
    """The id of the transaction that the parts name."""
    found = _hash(parts)
    return RequestId(_client(found), 1 + (found & WINDOW - 1), deadline)
