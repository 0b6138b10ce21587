"""What nodes read from their sockets for a multicast: bytes, and the number of reads.

The kernel counts what a process reads. Nodes read little else: their disks are mapped into memory. What
a node says to itself is not in it, nor what two of its replicas say to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstore.local.cluster import LocalCluster
from kvstore.local.status import ask


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of all nodes together, since they started."""

    delivered: int
    """Deliveries, counted once for every group."""
    read_bytes: int
    reads: int

    @classmethod
    def of(cls, cluster: LocalCluster) -> Counters:
        """Read the counters. Raises `RuntimeError` if a node does not answer."""
        totals = {"rchar": 0, "syscr": 0}
        delivered: dict[str, int] = {}
        for node in cluster.config.nodes:
            pid, said = cluster.pid(node), ask(cluster.config.status_socket(node))
            if pid is None or said is None:
                raise RuntimeError(f"{node} has ended, or does not answer")
            for line in Path(f"/proc/{pid}/io").read_text().splitlines():
                name, _, value = line.partition(": ")
                if name in totals:
                    totals[name] += int(value)
            for group, about in said["groups"].items():
                delivered[group] = max(delivered.get(group, 0), int(about["deliveries"]))
        return cls(sum(delivered.values()), totals["rchar"], totals["syscr"])

    def since(self, before: Counters, dest: int) -> dict[str, Any]:
        """Counts for each multicast to `dest` groups since `before`; empty if there was none."""
        count = (self.delivered - before.delivered) / dest
        if not count:
            return {}
        read_bytes, reads = self.read_bytes - before.read_bytes, self.reads - before.reads
        return {"read_bytes": read_bytes / count, "reads": reads / count}
