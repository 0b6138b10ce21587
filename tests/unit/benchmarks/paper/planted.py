"""Made-up results, from which known tables must come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.paper.points import Point, Results

SPEED = {"whitebox": 4.0, "fastcast": 2.0, "ftskeen": 1.0}
"""Relative throughput."""


def turn(protocol: str, number: int, throughput: float, mean_ms: float) -> dict[str, Any]:
    latency = {"mean": mean_ms, "p50": mean_ms, "p90": mean_ms, "p99": 2 * mean_ms, "max": 3 * mean_ms}
    return {
        "protocol": protocol, "clock": "logical", "round": number, "throughput": throughput,
        "latency_ms": latency, "errors": 0, "cpu_us": {"n1": 10.0, "clients": 5.0, "all": 700.0},
        "received": {"read_bytes": 1234.0, "reads": 2.5},
    }  # fmt: skip


def point(results: Results, experiment: str, dest: int, clients: int, turns: list[dict[str, Any]]) -> None:
    plan = {"load": {"dest": dest, "clients": clients}, "protocols": sorted(SPEED)}
    found: dict[str, Any] = {"turns": turns, "commit": "abc1234", "load_before": 0.5}
    failed = [f"{each['protocol']}: {each['failed']}" for each in turns if "failed" in each]
    results.write(
        Point(experiment, f"dest{dest:02}-clients{clients:04}", plan, 1.0),
        found | ({"failed": failed} if failed else {}),
    )


def curves(
    results: Results, experiment: str, clients: tuple[int, ...], destinations: tuple[int, ...]
) -> None:
    """Throughput grows up to the middle number of clients, and falls by half after it."""
    for dest in destinations:
        for index, count in enumerate(clients):
            rate = 100.0 * (index + 1) / dest if index < len(clients) - 1 else 50.0 / dest
            turns = [
                turn(protocol, number, rate * speed * (1 + number / 10), 100.0 * dest / speed)
                for number in range(3)
                for protocol, speed in SPEED.items()
            ]
            point(results, experiment, dest, count, turns)


def crash(results: Results, area: str, number: int, leader_s: float, recovered_s: float | None) -> None:
    row: dict[str, float | None] = {"at_s": 0.0, "throughput": 100.0, "mean_ms": 40.0}
    rows = [row | {"at_s": at / 10} for at in range(-30, 60, 3)]
    rows[12] = rows[12] | {"throughput": 0.0, "mean_ms": None}
    figure = {"before": 100.0, "lowest": 0.0, "worst_ms": 900.0, "recovered_s": recovered_s}
    series = ("affected", "others", "clients")
    results.write(
        Point("recovery", f"{area}-whitebox-{number}", {"area": area, "load": {"protocol": "whitebox"}}, 1.0),
        {
            "leader_s": leader_s, "series": dict.fromkeys(series, rows),
            "figures": dict.fromkeys(series, figure), "commit": "abc1234", "load_before": 0.25,
        },
    )  # fmt: skip


def latencies(mean: float) -> Mapping[str, float]:
    return {"mean": mean, "min": 3.0, "p50": mean, "p99": mean + 0.5, "max": mean + 1}


def convoy(results: Results, variant: str, alone: float) -> None:
    rates = (0.1, 1.0)
    for rate in rates:
        plan = {"kind": "real", "variant": variant, "rate": rate}
        found = {"leader": latencies(alone + rate), "follower": latencies(alone + rate + 1)}
        results.write(Point("convoy", f"real-{variant}-{rate:g}", plan, 1.0), found)
    rows = [{"rate": rate, "leader": latencies(alone + rate / 2), "follower": None} for rate in rates]
    plan = {"kind": "virtual", "variant": variant}
    results.write(Point("convoy", f"virtual-{variant}", plan, 1.0), {"curve": {"points": rows}})


def everything(results: Results, moderate: int, lone: int) -> None:
    curves(results, "lan", (1, 10, 1000), (1, 2))
    curves(results, "wan", (lone, moderate, 600), (1, 2))
    curves(results, "together", (moderate, 600), (2,))
    for number, (leader_s, recovered_s) in enumerate([(0.5, 1.0), (0.6, 1.5), (0.9, None)], 1):
        crash(results, "wan", number, leader_s, recovered_s)
    convoy(results, "whitebox", 3.0)
    convoy(results, "fastcast", 4.0)
