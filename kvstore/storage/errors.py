"""Errors of a node's disk."""

from __future__ import annotations

from collections.abc import Mapping

from multicast.types import GroupId


class StorageError(Exception):
    """The disk has failed, or its contents are not valid. The node can promise nothing on it."""


class NotChecked(StorageError):
    """A check could not be made: its process was killed, or had no memory. Nothing is known of the disk."""


class DamagedRow(StorageError):
    """A row is not what was written there: its bytes have changed, or it is the row of another key."""


class DamagedState(StorageError):
    """The state cannot be used, though the log is sound: it must be restored from other members."""


class DamagedLog(StorageError):
    """Records of some groups are damaged or missing: their replicas may lack promises."""

    def __init__(self, message: str, groups: Mapping[GroupId, str] | None = None) -> None:
        super().__init__(message)
        self.groups = groups
        """What is wrong with each group's records; None if no group's can be read."""


class BadSnapshot(StorageError):
    """The pieces are not a valid snapshot. Nothing has changed."""


class LostDisk(StorageError):
    """The disk may lack promises of its node, which must return with a new disk and incarnation."""
