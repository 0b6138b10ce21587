"""From what processes have counted to the CPU time of a call, by process and layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.profiling.layers import IDLE, KERNEL, LAYERS, LOOP, thread_layer

Counts = Mapping[str, Any]
"""What `sampler.Sampler.found` returns."""

SHOWN_US: Final = 0.5
"""Layers with less than this in all processes are left out of a table."""


def spent_us(before: Counts, after: Counts, wall_s: float, calls: int) -> dict[str, float]:
    """Return the time of a call in one process, by layer, in microseconds.

    User time of the main thread is divided as its samples are; what came after the last one, and is in none,
    is divided likewise. Idle is when the main thread did not run: it waited for work, or for a core.
    """
    sampled = _difference(after["user_s"], before["user_s"])
    user_s, system_s = (now - then for now, then in zip(after["main"], before["main"], strict=True))
    total_s = sum(sampled.values())
    found: defaultdict[str, float] = defaultdict(float)
    if total_s > 0:
        found.update({layer: user_s * each / total_s for layer, each in sampled.items()})
    else:
        found[LOOP] += user_s
    found[KERNEL] += system_s
    for number, (name, own_user_s, own_system_s) in after["threads"].items():
        _, then_user_s, then_system_s = before["threads"].get(number, (name, 0.0, 0.0))
        found[thread_layer(name)] += own_user_s - then_user_s
        found[KERNEL] += own_system_s - then_system_s
    found[IDLE] = max(0.0, wall_s - user_s - system_s)
    return {layer: 1e6 * found[layer] / calls for layer in LAYERS if layer in found}


def functions_us(before: Counts, after: Counts, calls: int) -> dict[str, float]:
    """Return the user time of a call in one process, by function, in microseconds."""
    found = _difference(after["functions"], before["functions"])
    return {name: 1e6 * each / calls for name, each in found.items() if each > 0}


def _difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: each - before.get(name, 0.0) for name, each in after.items()}


def summed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of several processes, by layer."""
    names = {name for part in parts for name in part}
    return {layer: sum(part.get(layer, 0.0) for part in parts) for layer in LAYERS if layer in names}


def cpu_us(part: Mapping[str, float]) -> float:
    """Return the CPU time: of all layers but idle."""
    return sum(each for layer, each in part.items() if layer != IDLE)


def rows(parts: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Return the table of one load: a line for each layer, a column for each process, and their sum."""
    everything = summed(list(parts.values()))
    table = [["µs for each call", *parts, "all"]]
    columns = (*parts.values(), everything)
    shown = [layer for layer in LAYERS if layer != IDLE and everything.get(layer, 0.0) >= SHOWN_US]
    table += [[layer, *(f"{part.get(layer, 0.0):,.0f}" for part in columns)] for layer in shown]
    table.append(["CPU", *(f"{cpu_us(part):,.0f}" for part in columns)])
    table.append([IDLE, *(f"{part.get(IDLE, 0.0):,.0f}" for part in parts.values()), ""])
    return table
