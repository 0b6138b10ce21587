"""Forks: the child has the parent's memory, but none of its other threads and no use for its connections.

A lock that another thread held at that moment would never be released, and a connection used by both would
be of no use to either. So whatever has one of them makes its own when the child begins.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Forkable(Protocol):
    """What must do something in the child of a fork."""

    def forked(self) -> None:
        """This is the child, and no other thread is there yet."""


_ALIVE: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


def at_fork(found: Forkable) -> None:
    """Let it know of forks, for as long as it is there."""
    _ALIVE.add(found)


def _in_child() -> None:
    for found in list(_ALIVE):
        found.forked()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_in_child)
