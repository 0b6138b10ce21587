"""Encode what a watch sends: a piece of a transaction once, for all watchers that share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.varint import varint

from kvstore.store.feeds import Piece
from kvstore.store.questions import Event

_TRANSACTIONS: Final = bytes((kv.WatchResponse.TRANSACTIONS_FIELD_NUMBER << 3 | 2,))
"""How a change begins inside its message, before its length."""
_OVERHEAD: Final = 32
"""Bytes of an event beside its key and its value, at most."""


def encoded_piece(piece: Piece, most: int) -> Sequence[bytes]:
    """Return a piece as parts of a `WatchResponse`, each of about `most` bytes, unless an event is larger."""
    if piece.encoded is None:
        first, found = piece.first, []
        for events, more in _parts(piece.events, most):
            change = kv.Change(
                revision=piece.revision,
                events=[
                    kv.Event(key=key, value=value, create_revision=create_revision, version=version)
                    for key, value, create_revision, version in events
                ],
                continued=more or not piece.last,
                continuation=not first,
            ).SerializeToString()
            first = False
            found.append(b"".join((_TRANSACTIONS, varint(len(change)), change)))
        piece.encoded = tuple(found)
    encoded: Sequence[bytes] = piece.encoded
    return encoded


def _parts(events: Sequence[Event], most: int) -> Iterator[tuple[Sequence[Event], bool]]:
    """Divide events, and tell of each part whether more follow."""
    begin = size = 0
    for i, (key, value, _, _) in enumerate(events):
        bytes_ = _OVERHEAD + len(key) + len(value or b"")
        if size and size + bytes_ > most:
            yield events[begin:i], True
            begin, size = i, 0
        size += bytes_
    yield events[begin:], False
