"""Errors of a node's disk."""

from __future__ import annotations


class StorageError(Exception):
    """The disk has failed, or its contents are not valid. The node can promise nothing on it."""


class BadSnapshot(StorageError):
    """The pieces are not a valid snapshot. Nothing has changed."""


class LostDisk(StorageError):
    """The disk may lack promises of its node, which must return with a new disk and incarnation."""
