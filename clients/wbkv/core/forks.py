"""Forks: the child has the parent's memory, but not its other threads, and cannot use its connections.

A lock that another thread held during the fork would never be released, and a connection used by both
processes would work for neither. So objects that have one of them make a new one when the child begins.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Final, Protocol


class Forkable(Protocol):
    """An object that must be reset in the child of a fork."""

    def forked(self) -> None:
        """Reset the object. The child has no other threads yet."""


IS_GRPC_SET: Final = "grpc" not in sys.modules or "GRPC_ENABLE_FORK_SUPPORT" in os.environ
"""Whether gRPC was not loaded yet, and so reads the variable set here; or its user has decided."""

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # wbkv.links.grpc_common says why

_ALIVE: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


def at_fork(found: Forkable) -> None:
    """Call the object's `forked` in the child of every fork, for as long as the object lives."""
    _ALIVE.add(found)


def _in_child() -> None:
    for found in list(_ALIVE):
        found.forked()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_in_child)
