"""The tables of docs/performance.md, made from benchmarks/results: `python -m benchmarks.page`.

The page marks where each table goes by comments. A test checks that the page is what the results make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from benchmarks import attacks
from benchmarks.comparison.table import cells
from benchmarks.profiling.names import cpu_table, lines_table
from benchmarks.record import PAGE, RESULTS, Result, read_all

BEFORE: Final = RESULTS / "before"
"""Results that were kept, to show what a change has done: see `cpu_table`."""

LAYERS: Final = (
    "cluster", "growth", "attacks", "etcd", "profile", "client", "store", "node", "ordering", "tools",
)  # fmt: skip

HEADLINES: Final = (
    ("transactions of a put in one partition, 300 in flight", "cluster", "one partition, os: transactions"),
    ("transactions over two partitions, 300 in flight", "cluster", "two partitions, os: transactions"),
    ("a lone transaction over two partitions", "cluster", "two partitions, os, one client: p50"),
    ("keys scanned by one client", "scan", "SDK, three nodes: keys"),
    ("`kill -9` of a leader: a new leader", "availability", "kill of a node: new leaders"),
    ("... the last interrupted message is answered", "availability", "kill of a node: last answer"),
    ("a killed node serves again", "availability", "restart of a node: serves"),
    ("CPU of an idle node", "availability", "idle: CPU of a node"),
)
"""What opens the page: what it is, and the benchmark and the figure that say it."""


def head(results: Mapping[str, Result]) -> Iterator[str]:
    """What a three-node cluster does, in a few rows."""
    yield from ("| | median | spread (rounds) |", "|---|---|---|")
    for what, benchmark, name in HEADLINES:
        (figure,) = (each for each in results[benchmark].figures if each.name == name)
        yield f"| {what} | **{figure.median}** | {figure.spread} |"
    sources = [results[name] for name in dict.fromkeys(benchmark for _, benchmark, _ in HEADLINES)]
    commands = ", ".join(f"`{source.command}` (commit {source.commit})" for source in sources)
    yield f"\nFrom {commands}; {sources[0].machine}."


def table(results: Mapping[str, Result], layer: str) -> Iterator[str]:
    """All figures of a layer; how they were measured stands beside the first of a benchmark."""
    yield "| | median | spread (rounds) | command | commit | machine |"
    yield "|---|---|---|---|---|---|"
    for result in results.values():
        if result.layer == layer:
            machine = f"{result.machine}; load average {result.load:g}; {result.date}"
            how = f"`{result.command}` | {result.commit} | {machine} |"
            for figure in result.figures:
                yield f"| {figure.name} | {figure.median} | {figure.spread} | {how}"
                how = "| | |"


def beside_etcd(results: Mapping[str, Result]) -> Iterator[str]:
    """Figures of etcd and of ours, side by side, and how they were measured."""
    yield from _rows(cells(results["etcd"].figures), results["etcd"])


def beside_attackers(results: Mapping[str, Result]) -> Iterator[str]:
    """What hostile clients cost an innocent one, an attack in each row."""
    yield from _rows(attacks.table(results["attacks"].figures), results["attacks"])


def _rows(table: Iterable[Sequence[str]], result: Result) -> Iterator[str]:
    heading, *rows = table
    yield f"| {' | '.join(heading)} |"
    yield "|---" * len(heading) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield (
        f"\nFrom `{result.command}` (commit {result.commit}); {result.machine}; "
        f"load average {result.load:g}; {result.date}."
    )


def fill(page: str, tables: Mapping[str, str]) -> str:
    """Return the page with these tables, each between its two comments."""
    for name, text in tables.items():
        begin, end = f"<!-- table {name} -->\n", "<!-- end of table -->"
        before, found, rest = page.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"the page has no comments for the table {name!r}")
        page = f"{before}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}"
    return page


def made(page: str, results: Mapping[str, Result]) -> str:
    """The page with the tables of these results."""
    tables = {"head": head(results)} | {layer: table(results, layer) for layer in LAYERS}
    tables["etcd"] = beside_etcd(results)
    if "attacks" in results:
        tables["attacks"] = beside_attackers(results)
    tables["profile"] = cpu_table(results["profile"], read_all(BEFORE).get("profile"))
    tables["time line"] = lines_table(results["profile"])
    return fill(page, {name: "\n".join(lines) for name, lines in tables.items()})


def write() -> None:
    """Write the tables into the page."""
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8"), read_all()), encoding="utf-8")


if __name__ == "__main__":
    write()
