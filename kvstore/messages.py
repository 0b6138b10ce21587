"""What nodes say to each other beyond the protocol's own messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SnapshotPiece:
    """One piece of a snapshot."""

    transfer: int
    index: int
    ordering: bool
    """Whether it is of the checkpoint, or of the application's state."""
    last: bool
    data: bytes


@dataclass(slots=True)
class SnapshotAck:
    """The piece has come: send the next."""

    transfer: int
    index: int


STORE_MESSAGES: frozenset[type] = frozenset()
"""What is the store's, and not the ordering protocol's or the node's own."""
