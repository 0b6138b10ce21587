"""Figures of the convoy study from its files: curves in δ, on real nodes and in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.paper import claims
from benchmarks.paper.analysis import Origin
from benchmarks.paper.points import Results

BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "whitebox": claims.PAPER_DELAYS["whitebox"],
    "whitebox-hybrid": (3, 4),
    "whitebox-everywhere": (3, 5),
    **{name: claims.PAPER_DELAYS[name] for name in ("fastcast", "ftskeen", "skeen")},
}
"""Latency alone and at worst, at leaders: the paper's, and 4δ plus skew with hybrid clocks."""


@dataclass(slots=True)
class Conflicts(Origin):
    """Curves by variant: rows of a rate in messages per δ, and latencies at leaders and followers."""

    real: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    virtual: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def read(cls, results: Results) -> Conflicts:
        """Read the study from its files."""
        conflicts = cls()
        for found in conflicts.files(results, "convoy"):
            plan = found["plan"]
            if "leader" in found:
                row = {"rate": plan["rate"], "leader": found["leader"], "follower": found["follower"]}
                conflicts.real.setdefault(plan["variant"], []).append(row)
            elif "curve" in found:
                conflicts.virtual[plan["variant"]] = found["curve"]["points"]
        for rows in conflicts.real.values():
            rows.sort(key=lambda row: row["rate"])
        return conflicts

    @property
    def variants(self) -> list[str]:
        """Variants, the paper's protocols first."""
        known = [name for name in BOUNDS if name in self.real or name in self.virtual]
        return [*known, *sorted({*self.real, *self.virtual} - {*known})]

    def table(self) -> str:
        """Latency in δ at each rate: mean at leaders, and the longest; the same at followers."""
        if not (self.real or self.virtual):
            return ""
        lines = [
            "**Convoy: delivery latency in δ against conflicting messages per δ, mean (p99)**",
            "",
            "| | per δ | leaders, real | leaders, virtual time | followers, real | followers, virtual |",
            "|---|---|---|---|---|---|",
        ]
        for variant in self.variants:
            low, high = BOUNDS.get(variant, (None, None))
            name = variant if low is None else f"{variant} ({low:g}δ, at worst {high:g}δ)"
            virtual, real = (
                {row["rate"]: row for row in curves.get(variant, ())} for curves in (self.virtual, self.real)
            )
            for rate in sorted(real) or sorted(virtual):
                both = (real.get(rate), virtual.get(rate))
                cells = [_cell(row, where) for where in ("leader", "follower") for row in both]
                lines.append(f"| {name} | {rate:g} | {' | '.join(cells)} |")
        return "\n".join(lines)


def _cell(row: Mapping[str, Any] | None, where: str) -> str:
    found = None if row is None else row[where]
    return "-" if found is None else f"{found['mean']:.2f} ({found['p99']:.2f})"
