"""Errors of a node's disk."""

from __future__ import annotations


class StorageError(Exception):
    """The disk is not what it should be, or does not do what it should. Nothing can be promised on it."""


class BadSnapshot(StorageError):
    """These pieces are no snapshot. Nothing has changed."""


class LostDisk(StorageError):
    """What was promised on this disk may be gone. Whoever used it must come back as somebody else."""
