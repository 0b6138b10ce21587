"""Request ids of transactions, which every attempt of a task computes alike.

The store executes a request id once. The id is a hash of the job and the `txn_id`; or of the job, the task,
the partition and the transaction's number. 63 bits of the hash are the client's number, and 12 are the
sequence number where that does not count transactions. So different transactions have different ids with
overwhelming probability; if two collided, the store would reject the second (`RequestMismatch`).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, TypeAlias

from wbkv import RequestId

WINDOW: Final = 4096
"""How many sequence numbers a client id has."""

NamePart: TypeAlias = str | bytes | int


def _hash(parts: tuple[NamePart, ...]) -> int:
    """Return 80 bits. Parts of different types or boundaries have different hashes."""
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
    """Return the id of a transaction by its number, from 0, among those that the parts name."""
    turn, index = divmod(number, WINDOW)
    return RequestId(_client(_hash((*parts, turn))), index + 1, deadline)


def named_id(deadline: int, *parts: NamePart) -> RequestId:
    """Return the id of the transaction that the parts name."""
    found = _hash(parts)
    return RequestId(_client(found), 1 + (found & WINDOW - 1), deadline)
