"""Print a verdict as text, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from wbkv.checker.drawing import TEXT, in_text, shorten
from wbkv.checker.verdict import Anomaly, Verdict, meaning

SHOWN = 3
"""How many anomalies of one name are reported in full."""


def as_json(verdict: Verdict) -> str:
    """Return the verdict as one JSON object."""
    return json.dumps(
        {
            "holds": verdict.holds,
            "model": verdict.model,
            "history": verdict.history,
            "counts": verdict.counts,
            "names": verdict.names(),
            "anomalies": [asdict(anomaly) for anomaly in verdict.anomalies],
            "transactions": [asdict(description) for description in verdict.transactions.values()],
            "warnings": list(verdict.warnings),
        }
    )


def as_text(verdict: Verdict) -> Iterator[str]:
    """Yield lines: the verdict, a table of anomalies, then each anomaly with its cycle and the reasons."""
    many = {name: f"{count:,}" for name, count in verdict.counts.items()}
    yield (
        f"{verdict.history}: {many['transactions']} transactions ({many['ok']} ok, {many['fail']} failed, "
        f"{many['unknown']} unknown) of {many['operations']} operations, {many['processes']} processes, "
        f"{many['keys']} keys"
    )
    yield from (f"warning: {warning}" for warning in verdict.warnings)
    if verdict.holds:
        yield f"{verdict.model}: yes, no anomaly was found"
        return
    yield f"{verdict.model}: NO"
    names = verdict.names()
    width = max(map(len, names))
    for name, count in names.items():
        yield f"  {name:{width}}  {count:5,}  {meaning(name)}"
    counts: dict[str, int] = {}
    for anomaly in verdict.anomalies:
        counts[anomaly.name] = counts.get(anomaly.name, 0) + 1
        if counts[anomaly.name] <= SHOWN:
            yield ""
            yield from _anomaly(verdict, anomaly)
        elif counts[anomaly.name] == SHOWN + 1:
            yield f"\n{anomaly.name}: and {names[anomaly.name] - SHOWN:,} more; --json has them all"


def _anomaly(verdict: Verdict, anomaly: Anomaly) -> Iterator[str]:
    yield anomaly.name
    if not anomaly.cycle:
        yield f"  {anomaly.text}"
        for number in dict.fromkeys(anomaly.transactions):
            yield f"  {_transaction(verdict, number)}"
        return
    yield from (f"  {line}" for line in in_text(verdict, anomaly))
    yield from (f"  {step.text}" for step in anomaly.cycle)
    where = ", ".join(
        f"T{number} is line {verdict.transactions[number].line}" for number in anomaly.transactions
    )
    yield f"  ({shorten(where, TEXT)})"
    if anomaly.others:
        yield f"  {anomaly.others:,} more transactions begin such a cycle here"


def _transaction(verdict: Verdict, number: int) -> str:
    it = verdict.transactions[number]
    text = f"T{number} (line {it.line}, process {it.process}, {it.outcome}): {', '.join(it.operations)}"
    return shorten(text, 2 * TEXT)
