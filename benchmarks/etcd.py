"""Three nodes of etcd 3.4 beside three of ours, on the same machine and under the same load.

The client processes are the same for both (grpc.aio on uvloop, at least one call in flight each), as are the
size of values (20 bytes), the number of keys, and fsync before an answer. The stores run in turns, never
together: in each round first etcd, then ours, each with an empty disk. Unary calls go to the node that leads.
etcd has unary calls only: rows of our SDK's session, which carries many calls on one stream, are compared
with etcd's unary calls, and say so. Two puts are one transaction in both; etcd has no partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from benchmarks.comparison.measuring import Round, clients
from benchmarks.comparison.rows import ETCD_ROWS, FIGURES, ROWS, name_of
from benchmarks.comparison.systems import SYSTEMS, etcd_command
from benchmarks.comparison.table import cells, text
from benchmarks.load import LoadError
from benchmarks.record import Benchmark, Figure
from kvstore.local.supervise import ClusterError


def plan(sizes: Any) -> tuple[list[str], list[int]]:
    """Return the rows and levels that are asked for. Raises `SystemExit` if one is unknown."""
    rows = [row for row in ROWS if row in sizes.rows.split(",")] if sizes.rows else list(ROWS)
    unknown = set(filter(None, sizes.rows.split(","))) - ROWS.keys()
    if unknown:
        raise SystemExit(f"--rows: unknown {', '.join(sorted(unknown))}; choose from {', '.join(ROWS)}")
    try:
        levels = sorted({int(level) for level in sizes.in_flight.split(",")})
    except ValueError:
        levels = [0]
    if levels[0] < 1:
        raise SystemExit(f"--in-flight: {sizes.in_flight!r} is not a list of positive numbers, as in 1,100")
    return rows, levels


def measure(sizes: Any) -> Iterator[Figure]:
    """Measure both stores in turns, and print the table after all figures."""
    rows, levels = plan(sizes)
    etcd_command()
    wanted = {"etcd": list(dict.fromkeys(ETCD_ROWS[row] for row in rows)), "wbkv": rows}
    found: defaultdict[tuple[str, str, int], list[Round]] = defaultdict(list)
    try:
        for turn in range(sizes.rounds):
            for system, its_rows in wanted.items():
                print(f"round {turn + 1} of {sizes.rounds}: {system}", flush=True)
                with SYSTEMS[system]() as running, clients(running, sizes.processes) as load:
                    for row in its_rows:
                        for level in levels:
                            done = load.measure(row, level, sizes.warm_up, sizes.seconds)
                            found[system, row, level].append(done)
    except (ClusterError, LoadError) as error:
        raise SystemExit(str(error)) from error
    figures = [
        Figure.of(name_of(*key, what), unit, [getattr(each, field) for each in rounds])
        for key, rounds in found.items()
        for what, (unit, field) in FIGURES.items()
    ]
    yield from figures
    print("\n" + text(list(cells(figures))))


BENCHMARK = Benchmark(
    "etcd", "etcd", __doc__, measure,
    {
        "rows": ("", ""), "in_flight": ("1,10,100,400", "1,100"), "seconds": (2.0, 0.5),
        "warm_up": (0.5, 0.2), "rounds": (5, 1), "processes": (2, 2),
    },
    prints=False,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
