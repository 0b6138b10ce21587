"""Skeen's protocol (Figure *skeen*): groups of one process, which never fails for good.

A group of one needs no messages to agree with itself: its consensus is a write to its own disk. So this is
fault-tolerant Skeen where every group has one member, and its messages are the figure's two, MULTICAST and
PROPOSE. The process may crash, and continues when it restarts.
"""

from __future__ import annotations

from multicast.errors import InvalidArgument
from multicast.skeen.ftskeen import FtSkeen
from multicast.topology import Topology


class Skeen(FtSkeen):
    """The only process of its group."""

    @classmethod
    def check_topology(cls, topology: Topology) -> None:
        """Raise `InvalidArgument` if a group has more than one member."""
        for group in topology.groups:
            size = len(topology.members(group))
            if size > 1:
                raise InvalidArgument(
                    f"Skeen's protocol needs groups of one process, but group {group} has {size}; "
                    "fault-tolerant Skeen (ftskeen) is for larger groups"
                )
