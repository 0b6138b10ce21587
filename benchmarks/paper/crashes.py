"""Figures of the recovery experiment from its files."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.paper import claims
from benchmarks.paper.analysis import Origin
from benchmarks.paper.points import Found, Results


@dataclass(slots=True)
class Crashes(Origin):
    """All crashes that were measured."""

    found: list[Found] = field(default_factory=list)

    @classmethod
    def read(cls, results: Results) -> Crashes:
        """Read the crashes from their files."""
        crashes = cls()
        crashes.found += [found for found in crashes.files(results, "recovery") if "figures" in found]
        return crashes

    @property
    def areas(self) -> list[str]:
        """Areas with crashes, with the protocol if it is not the white-box protocol."""
        return list(dict.fromkeys(map(_area, self.found)))

    def of(self, area: str) -> list[Found]:
        """The crashes of an area."""
        return [found for found in self.found if _area(found) == area]

    def spread(self, area: str, what: str, series: str = "clients") -> list[float | None]:
        """One figure of each crash of an area: "leader_s", or one of a series."""
        return [
            found["leader_s"] if what == "leader_s" else found["figures"][series][what]
            for found in self.of(area)
        ]

    def median_crash(self, area: str) -> Found:
        """The crash to be drawn: that with the median recovery of clients."""
        ordered = sorted(
            self.of(area), key=lambda found: _or_never(found["figures"]["clients"]["recovered_s"])
        )
        return ordered[(len(ordered) - 1) // 2]

    def table(self) -> str:
        """The table: seconds after the crash, median and worst."""
        if not self.found:
            return ""
        lines = [
            "**Recovery: seconds after the crash of one leader, median (worst)**",
            "",
            "| | crashes | new leader | affected group at 90% | other messages | clients | longest latency |",
            "|---|---|---|---|---|---|---|",
        ]
        for area in self.areas:
            recovered = [self.spread(area, "recovered_s", each) for each in ("affected", "others", "clients")]
            longest = [None if ms is None else ms / 1000 for ms in self.spread(area, "worst_ms")]
            cells = map(_spread, (self.spread(area, "leader_s"), *recovered, longest))
            lines.append(f"| {area} | {len(self.of(area))} | {' | '.join(cells)} |")
        whole_s = claims.PAPER_LEADER_S + claims.PAPER_CLEARING_S
        lines.append(f"| the paper, WAN | 1 | {claims.PAPER_LEADER_S} | {whole_s:g} | | | |")
        return "\n".join(lines)


def _area(found: Found) -> str:
    plan: dict[str, Any] = found["plan"]
    name = str(plan["area"]).upper()
    protocol = plan["load"]["protocol"]
    return name if protocol == "whitebox" else f"{name}, {protocol}"


def _or_never(value: float | None) -> float:
    return float("inf") if value is None else value


def _spread(values: Sequence[float | None]) -> str:
    known = sorted(map(_or_never, values))
    return f"{_shown(statistics.median_low(known))} ({_shown(known[-1])})"


def _shown(value: float) -> str:
    return "never" if value == float("inf") else f"{value:.2f}"
