"""The tables of docs/evaluation.md, as Markdown, and whether our goals are reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from benchmarks.paper import claims, modelled, predicted
from benchmarks.paper.analysis import (
    Measured,
    Origin,
    Ratio,
    Value,
    cpu_us,
    mean_ms,
    mean_of,
    ratio_of_means,
    read_bytes,
    reads,
    throughput,
)
from benchmarks.paper.conflicts import Conflicts
from benchmarks.paper.crashes import Crashes
from benchmarks.paper.curves import LONE, MIDDLE, MODERATE
from benchmarks.paper.points import Results
from benchmarks.paper.predicted import Area
from multicast import PROTOCOLS, VARIANTS
from multicast.sim.delays import cost

OURS: Final = "whitebox"
NAMES: Final = {"whitebox": "white-box", "fastcast": "FastCast", "ftskeen": "FT-Skeen", "skeen": "Skeen"}
AREA: Final = Area.of_round_trips(60, 75, 130)
TOGETHER: Final = replace(AREA, together=MIDDLE)
GROUPS: Final = 10
NOTHING: Final = "-"


def everything(results: Results) -> dict[str, str]:
    """All tables that have results, by their names in the page."""
    lan, wan, together = (Measured.read(results, name) for name in ("lan", "wan", "together"))
    crashes, convoy = Crashes.read(results), Conflicts.read(results)
    if not any(part.loads for part in (lan, wan, together, crashes, convoy)):
        return {}
    found = {
        "goals": verdict(lan, wan, together, crashes),
        "lan-peaks": peaks(lan),
        "lan-most": at_most_clients(lan, "LAN", claims.PAPER_LAN),
        "lan-work": work(lan),
        "wan-moderate": moderate(wan, lan, "WAN"),
        "wan-modelled": conflicts_alone(wan, AREA, "WAN"),
        "together-moderate": moderate(together, lan, "WAN, leaders together"),
        "together-modelled": conflicts_alone(together, TOGETHER, "WAN, leaders together"),
        "wan-most": at_most_clients(wan, "WAN", claims.PAPER_WAN),
        "wan-lone": delays(wan),
        "recovery": crashes.table(),
        "convoy": convoy.table(),
        "made": made(lan, wan, together, crashes, convoy),
    }
    return {name: table for name, table in found.items() if table}


# Verdict


def verdict(lan: Measured, wan: Measured, together: Measured, crashes: Crashes) -> str:
    """Our goals, what was measured, and whether the goals are reached."""
    rows = []
    for where, measured in (("WAN", wan), ("WAN, leaders together", together)):
        for other, wanted in (("ftskeen", claims.GOAL_WAN_FTSKEEN), ("fastcast", claims.GOAL_WAN_FASTCAST)):
            what = f"{where}, moderate load: {_name(other)}'s latency by white-box's, mean over destinations"
            rows.append(_at_least(what, wanted, _mean_ratio(measured, other, OURS, MODERATE, mean_ms)))
    what = "LAN: white-box's peak throughput by FastCast's, mean over destinations"
    rows.append(_at_least(what, claims.GOAL_LAN_FASTCAST, _mean_peak_ratio(lan, "fastcast")))
    for area in crashes.areas:
        leader, recovered = crashes.spread(area, "leader_s"), crashes.spread(area, "recovered_s")
        rows += [
            _at_most(f"recovery, {area}: new leader", claims.GOAL_LEADER_S, leader),
            _at_most(f"recovery, {area}: clients back at 90%", claims.GOAL_RECOVERED_S, recovered),
        ]
    return _table("Goals", ["goal", "wanted", "found", "reached"], rows)


def _at_least(what: str, wanted: float, found: float | None) -> list[str]:
    reached = NOTHING if found is None else "yes" if found >= wanted else "no"
    return [what, f"at least {wanted:g}", _times(found), reached]


def _at_most(what: str, wanted: float, found: Sequence[float | None]) -> list[str]:
    """A row of a goal for the median. A run that never recovered counts as the worst."""
    if not found:
        return [what, f"at most {wanted:g} s", NOTHING, NOTHING]
    known = sorted(float("inf") if each is None else each for each in found)
    median, worst = statistics.median_low(known), known[-1]
    said = f"median {_seconds(median)}, worst of {len(known)} {_seconds(worst)}"
    reached = "yes" if worst <= wanted else "in the median" if median <= wanted else "no"
    return [what, f"at most {wanted:g} s", said, reached]


def _mean_peak_ratio(lan: Measured, other: str) -> float | None:
    return mean_of(_peak_ratio(lan, other, dest) for dest in lan.destinations)


def _peak_ratio(lan: Measured, other: str, dest: int) -> float | None:
    ours, theirs = _peak(lan, OURS, dest), _peak(lan, other, dest)
    return None if ours is None or theirs is None else ours / theirs


def _peak(lan: Measured, protocol: str, dest: int) -> float | None:
    best = lan.peak(protocol, dest)
    return None if best is None else best.throughput


# Curves


def peaks(lan: Measured) -> str:
    """Peak throughput of each protocol: the best median over numbers of clients."""
    if not lan.turns:
        return ""
    others = [protocol for protocol in lan.protocols if protocol != OURS]
    rows = []
    for dest in lan.destinations:
        cells = [str(dest)]
        for protocol in lan.protocols:
            best = lan.peak(protocol, dest)
            cells.append(NOTHING if best is None else f"{best.throughput:,.0f} ({best.clients:,})")
        rows.append([*cells, *(_times(_peak_ratio(lan, other, dest)) for other in others)])
    blank = [""] * len(lan.protocols)
    rows.append(
        ["mean of ratios", *blank, *(f"**{_times(_mean_peak_ratio(lan, each))}**" for each in others)]
    )
    bests = {each: [_peak(lan, each, dest) for dest in lan.destinations] for each in (OURS, *others)}
    of_means = [_times(ratio_of_means(bests[OURS], bests[each])) for each in others]
    rows.append(["ratio of means", *blank, *of_means])
    header = ["destinations", *map(_name, lan.protocols), *(f"white-box / {_name(each)}" for each in others)]
    return _table("LAN: peak throughput, messages/s (at so many clients)", header, rows)


def at_most_clients(measured: Measured, area: str, paper: claims.Ratios) -> str:
    """Throughput and latency against the others with the most clients: what the paper reports."""
    if not measured.turns:
        return ""
    clients = measured.clients[-1]
    others = [protocol for protocol in measured.protocols if protocol != OURS]
    header = ["destinations"]
    compared: list[tuple[str, str, Value]] = []
    for other in others:
        header += [f"throughput, by {_name(other)}'s", f"latency, {_name(other)}'s by ours"]
        compared += [(OURS, other, throughput), (other, OURS, mean_ms)]
    rows = []
    for dest in measured.destinations:
        ratios = [measured.ratio(above, below, dest, clients, value) for above, below, value in compared]
        rows.append([str(dest), *map(_spread, ratios)])
    for name, mean in (("mean of ratios", _mean_ratio), ("ratio of means", _ratio_of_means)):
        means = [mean(measured, above, below, clients, value) for above, below, value in compared]
        rows.append([name, *map(_times, means)])
    rows.append(["the paper"] + [str(paper) if "fastcast" in each else "" for each in compared])
    title = (
        f"{area}: white-box against the others at {clients:,} clients, in the same round (median, extremes)"
    )
    return _table(title, header, rows)


def _mean_ratio(measured: Measured, above: str, below: str, clients: int, value: Value) -> float | None:
    return mean_of(
        _median(measured.ratio(above, below, dest, clients, value)) for dest in measured.destinations
    )


def _ratio_of_means(measured: Measured, above: str, below: str, clients: int, value: Value) -> float | None:
    first = [measured.median(above, dest, clients, value) for dest in measured.destinations]
    second = [measured.median(below, dest, clients, value) for dest in measured.destinations]
    return ratio_of_means(first, second)


def work(lan: Measured) -> str:
    """The cost of a message at the peak of throughput: CPU, protocol messages, and what nodes read."""
    if not lan.turns:
        return ""
    header = ["destinations", "", "CPU", "protocol messages", "CPU by these", "bytes read", "reads"]
    rows = []
    for dest in lan.destinations:
        for protocol in lan.protocols:
            best = lan.peak(protocol, dest)
            if best is None:
                rows.append([str(dest), _name(protocol), *[NOTHING] * 5])
                continue
            found = [lan.median(protocol, dest, best.clients, value) for value in (cpu_us, read_bytes, reads)]
            spent, size, often = (math.nan if each is None else each for each in found)
            sent = len(cost((PROTOCOLS | VARIANTS)[protocol], dest))
            cells = f"{spent:,.0f} µs|{sent:,}|{spent / sent:.1f} µs|{size:,.0f}|{often:.2f}".split("|")
            rows.append([str(dest), _name(protocol), *("-" if "nan" in cell else cell for cell in cells)])
    return _table("LAN: what one multicast costs all processes together, at the peak", header, rows)


def moderate(wan: Measured, lan: Measured, where: str) -> str:
    """Latency at moderate load, and how far that is from saturation."""
    if MODERATE not in wan.clients:
        return ""
    others = [protocol for protocol in wan.protocols if protocol != OURS]
    header = ["destinations", *(f"{_name(each)}, ms" for each in wan.protocols)]
    header += [f"{_name(other)} / white-box" for other in others]
    header += [f"{_name(each)}'s share of its LAN peak" for each in wan.protocols]
    rows = []
    for dest in wan.destinations:
        latencies = [_ms(wan.median(protocol, dest, MODERATE, mean_ms)) for protocol in wan.protocols]
        ratios = [_spread(wan.ratio(other, OURS, dest, MODERATE, mean_ms)) for other in others]
        shares = [_share(wan, lan, protocol, dest) for protocol in wan.protocols]
        rows.append([str(dest), *latencies, *ratios, *shares])
    blank = end = [""] * len(wan.protocols)
    means = [f"**{_times(_mean_ratio(wan, other, OURS, MODERATE, mean_ms))}**" for other in others]
    of_means = [_times(_ratio_of_means(wan, other, OURS, MODERATE, mean_ms)) for other in others]
    rows += [["mean of ratios", *blank, *means, *end], ["ratio of means", *blank, *of_means, *end]]
    return _table(f"{where}: mean latency at moderate load, {MODERATE} clients", header, rows)


def conflicts_alone(wan: Measured, area: Area, where: str) -> str:
    """The same load where processes take no time: what delays and conflicts alone can give."""
    if MODERATE not in wan.clients:
        return ""
    known = [protocol for protocol in wan.protocols if protocol in predicted.PROTOCOLS]
    others = [protocol for protocol in known if protocol != OURS]
    header = ["destinations"]
    for protocol in known:
        header += [f"{_name(protocol)}: modelled, ms", "measured by modelled"]
    header += [f"modelled {_name(other)} / white-box" for other in others]
    rows = []
    ratios: dict[str, list[float]] = {other: [] for other in others}
    for dest in wan.destinations:
        cells = [str(dest)]
        expected = {each: modelled.mean_latency(each, area, GROUPS, dest, MODERATE) for each in known}
        for protocol in known:
            found = wan.median(protocol, dest, MODERATE, mean_ms)
            cells += [_ms(expected[protocol]), _times(None if found is None else found / expected[protocol])]
        for other in others if OURS in expected else ():
            ratios[other].append(expected[other] / expected[OURS])
            cells.append(_times(ratios[other][-1]))
        rows.append(cells)
    rows.append(
        ["mean of ratios", *[""] * (2 * len(known)), *(_times(mean_of(ratios[each])) for each in others)]
    )
    return _table(f"{where}: what delays and conflicts alone come to with {MODERATE} clients", header, rows)


def _share(wan: Measured, lan: Measured, protocol: str, dest: int) -> str:
    rate, best = wan.median(protocol, dest, MODERATE, throughput), _peak(lan, protocol, dest)
    return NOTHING if rate is None or best is None else f"{rate / best:.0%}"


def delays(wan: Measured) -> str:
    """Latency of a client that is nearly alone, beside the prediction from delays."""
    if LONE not in wan.clients:
        return ""
    known = [protocol for protocol in wan.protocols if protocol in predicted.PROTOCOLS]
    header = ["destinations"]
    for protocol in known:
        header += [f"{_name(protocol)}: predicted, ms", "measured, ms"]
    header += [f"predicted {_name(each)} / white-box" for each in known if each != OURS]
    rows = []
    for dest in wan.destinations:
        cells = [str(dest)]
        expected = {each: predicted.mean_latency(each, AREA, GROUPS, dest) for each in known}
        for protocol in known:
            cells += [f"{expected[protocol]:.0f}", _ms(wan.median(protocol, dest, LONE, mean_ms))]
        if OURS in expected:
            cells += [_times(expected[each] / expected[OURS]) for each in known if each != OURS]
        rows.append(cells)
    return _table(f"WAN: mean latency of {LONE} clients, one in each region", header, rows)


# Sources


def made(lan: Measured, wan: Measured, together: Measured, crashes: Crashes, convoy: Conflicts) -> str:
    """Commits, load averages before the points, and failures."""
    lines = []
    parts: dict[str, Origin] = {
        "lan": lan, "wan": wan, "together": together, "recovery": crashes, "convoy": convoy,
    }  # fmt: skip
    for name, part in parts.items():
        if part.loads:
            load = f"load average before a point {min(part.loads):g} - {max(part.loads):g}"
            lines.append(
                f"- {name}: {len(part.loads)} points, commit {', '.join(sorted(part.commits))}, {load}"
            )
    failed = [why for part in parts.values() for why in part.failed]
    lines += [f"- FAILED {' '.join(each.split())}" for each in failed]
    if lines and not failed:
        lines.append("- nothing failed")
    return "\n".join(["**What it was made of**", "", *lines]) if lines else ""


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"**{title}**", "", f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _name(protocol: str) -> str:
    return NAMES.get(protocol, protocol)


def _median(ratio: Ratio | None) -> float | None:
    return None if ratio is None else ratio.median


def _times(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _seconds(value: float) -> str:
    return "never" if value == float("inf") else f"{value:.2f} s"


def _spread(ratio: Ratio | None) -> str:
    return NOTHING if ratio is None else f"{ratio.median:.2f} ({ratio.least:.2f} - {ratio.most:.2f})"
