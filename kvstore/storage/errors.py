"""Errors of a node's disk."""

from __future__ import annotations


class StorageError(Exception):
    """The disk has failed, or its contents are not valid. The node can promise nothing on it."""


class DamagedRow(StorageError):
    """A row is not what was written there: its bytes have changed, or it is the row of another key."""


class DamagedState(StorageError):
    """The state cannot be used, though the log is sound: it must be restored from other members."""


class BadSnapshot(StorageError):
    """The pieces are not a valid snapshot. Nothing has changed."""


class LostDisk(StorageError):
    """The disk may lack promises of its node, which must return with a new disk and incarnation."""
