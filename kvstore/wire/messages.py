"""Messages between nodes that carry snapshots, beside those of the ordering protocols."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SnapshotPiece:
    """One piece of a snapshot."""

    transfer: int
    index: int
    ordering: bool
    """Whether the piece belongs to the checkpoint, or to the application's state."""
    last: bool
    data: bytes


@dataclass(slots=True)
class SnapshotAck:
    """Acknowledges a piece, and asks for the next."""

    transfer: int
    index: int
