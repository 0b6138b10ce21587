"""What nodes send each other for snapshots, beside the ordering protocol's own messages."""

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
