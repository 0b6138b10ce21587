"""`wbkv serve` for a measurement: the node also records when it delivers.

A file `times-NODE.jsonl` in the folder of the trace has a line for each run of deliveries: the time of day in
microseconds, the group, and the messages, as pairs of the client's id and its number.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kvstore.commands.serve import main
from kvstore.config.addresses import NodeId
from kvstore.node.recorder import DeliveryRecorder
from kvstore.server import engine
from multicast.messages import Delivery
from multicast.types import GroupId


class TimedRecorder(DeliveryRecorder):
    """Deliveries with their times."""

    def __init__(self, folder: Path, node: NodeId, *, requests: bool) -> None:
        super().__init__(folder, node, requests=requests)
        self._times = folder / f"times-{node}.jsonl"
        self._noted: list[tuple[int, GroupId, list[tuple[int, int]]]] = []

    def delivered(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Record a replica's next deliveries with the time."""
        now_us = time.time_ns() // 1000
        self._noted.append((now_us, group, [(each.mid.client, each.mid.sequence) for each in deliveries]))
        super().delivered(group, deliveries)

    def write(self) -> None:
        """Write what is not written yet, of the trace and of the times."""
        if self._noted:
            with self._times.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in self._noted)
            self._noted.clear()
        super().write()


if __name__ == "__main__":
    setattr(engine, "DeliveryRecorder", TimedRecorder)  # noqa: B010 - it is what nodes make, not what `engine` offers
    sys.exit(main())
