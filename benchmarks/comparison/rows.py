"""The rows of the comparison, and the names of their figures."""

from __future__ import annotations

from typing import Final

ROWS: Final = {
    "put": "put, unary",
    "get": "strict get, unary",
    "two": "two puts in two partitions, unary",
    "two-session": "two puts in two partitions, session",
    "one-session": "two puts in one partition, session",
    "get-session": "strict gets, session",
}
"""What is measured of our store: names on the command line, and in tables."""

ETCD_ROWS: Final = {
    "put": "put",
    "get": "get",
    "two": "two",
    "two-session": "two",
    "one-session": "two",
    "get-session": "get",
}
"""By our row: what etcd's clients do, always by unary calls. Two puts are one transaction of etcd."""

FIGURES: Final = {
    "calls": ("/s", "per_second"),
    "p50": ("ms", "p50_ms"),
    "p99": ("ms", "p99_ms"),
    "CPU of all nodes": ("µs", "nodes_us"),
    "CPU of all clients": ("µs", "clients_us"),
}
"""Figures of a load: their units, and the fields of `measuring.Round`."""


def name_of(system: str, row: str, level: int, figure: str) -> str:
    """Return the name of a figure in the results."""
    return f"{system}, {row}, {level} in flight: {figure}"


def level_of(name: str) -> int:
    """Return the level that a figure's name has."""
    return int(name.split(", ")[2].split()[0])
