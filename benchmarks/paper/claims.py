"""The paper's figures, and our goals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Ratios:
    """How many times better the white-box protocol was than FastCast, over the numbers of destinations."""

    clients: int
    least: float
    most: float
    mean: float

    def __str__(self) -> str:
        return f"{self.least:g} - {self.most:g}, mean {self.mean:g}, at {self.clients:,} clients"


PAPER_LAN: Final = Ratios(1000, 1.2, 3.5, 2.15)
PAPER_WAN: Final = Ratios(8000, 1.1, 3.1, 2.0)
PAPER_LEADER_S: Final = 2.5
"""From the crash until the new leader was established."""
PAPER_CLEARING_S: Final = 3.5
"""From there until the affected group had cleared out what the crash had interrupted."""
PAPER_DELAYS: Final = {"whitebox": (3, 5), "fastcast": (4, 8), "ftskeen": (6, 12), "skeen": (2, 4)}
"""Collision-free and failure-free latency at leaders, in δ."""

GOAL_WAN_FTSKEEN: Final = 2.0
"""Goals: other protocols' latencies divided by the white-box protocol's, at moderate load, at least."""
GOAL_WAN_FASTCAST: Final = 1.3
GOAL_LAN_FASTCAST: Final = 1.5
"""Goal: the white-box protocol's peak throughput in the local area divided by FastCast's, at least."""
GOAL_LEADER_S: Final = 1.0
GOAL_RECOVERED_S: Final = 2.0
