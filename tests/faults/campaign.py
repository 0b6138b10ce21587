"""`make sequences`: all pairs and a sample of the triples of faults, on real processes, one after the other.

Each outcome is a line of JSON in RESULTS. A campaign that was interrupted goes on where it was, and one that
is repeated with another seed adds lines. The tables of docs/robustness.md are made of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.faults.sequences import OperatedCluster, Outcome
from tests.sim.sequences import ACTIONS, SEQUENCES, SERVES_S

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results" / "sequences.jsonl"
PAGE: Final = ROOT / "docs" / "robustness.md"
BEGIN, END = "<!-- sequences: by `make sequences` -->\n", "<!-- end of sequences -->\n"


def planned(triples: int, seed: int) -> list[tuple[str, ...]]:
    """Return all pairs, and so many triples."""
    pairs = [sequence for sequence in SEQUENCES if len(sequence) == 2]
    rest = [sequence for sequence in SEQUENCES if len(sequence) == 3]
    return [*pairs, *random.Random(seed).sample(rest, min(triples, len(rest)))]


def read(file: Path) -> list[dict[str, Any]]:
    """Return all outcomes of a file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def carry_out(sequence: tuple[str, ...], seed: int, keep: Path | None) -> Outcome:
    """Run one sequence; its problem, if there is one, is part of the outcome."""
    with tempfile.TemporaryDirectory(prefix="wbkv-sequences-") as scratch:
        folder = Path(scratch) if keep is None else keep / f"{'-'.join(sequence)}-{seed}".replace(" ", "_")
        cluster = OperatedCluster(folder / "cluster", sequence, seed)
        try:
            return cluster.check()
        except Exception as error:  # noqa: BLE001 - recorded, and the campaign goes on
            cluster.outcome.problem = repr(error)
            return cluster.outcome


def table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table: what was found, by the last action; times on a quiet machine only."""
    rows = list(rows)
    days = sorted({str(row["date"]) for row in rows})
    timed = sum(row["quiet"] for row in rows)
    kinds = len({tuple(row["sequence"]) for row in rows})
    when = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ""
    yield f"{len(rows)} runs of {kinds} sequences, {timed} of them timed, on a quiet machine; {when}"
    yield ""
    yield "| last action | runs | no quorum | failed | timed | median | longest | above 2 s | the longest |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for action in ACTIONS:
        own = [row for row in rows if row["sequence"][-1] == action]
        served = sorted([row for row in own if row["serves"] and row["quiet"]], key=_longest)
        failed = sum(bool(row["problem"]) for row in own)
        without = sum(not row["serves"] and not row["problem"] for row in own)
        late = sum(_longest(row) > SERVES_S for row in served)
        times = ["", "", "", ""]
        if served:
            last = served[-1]
            middle = _longest(served[len(served) // 2])
            times = [f"{middle:.2f} s", f"{_longest(last):.2f} s", str(late), ", ".join(last["sequence"])]
        yield f"| {action} | {len(own)} | {without} | {failed} | {len(served)} | {' | '.join(times)} |"


def _longest(row: dict[str, Any]) -> float:
    """The time until all was served; of a pause also that of the other nodes."""
    return max(float(row["all_s"]), float(row["paused_s"] or 0.0))


def on_page(text: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return the page with the table of these rows."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join(table(rows)) + "\n" + END + after


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing; return 1 if anything has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    add = parser.add_argument
    add("--triples", type=int, default=100, help="number of triples (100)")
    add("--seed", type=int, default=0, help="of the sample, and of each run (0)")
    add("--seconds", type=float, default=float("inf"), help="begin no further run after so long")
    add("--results", type=Path, default=RESULTS, help="the file of outcomes")
    add("--quiet", action="store_true", help="nothing else runs on this machine: the table has the times")
    add("--keep", type=Path, help="keep the clusters' folders, with the nodes' logs, here")
    add("--only", help="run this sequence only, e.g. 'cut, pause'")
    add("--shuffled", action="store_true", help="in random order")
    add("--page", action="store_true", help="run nothing: write the table into docs/robustness.md")
    arguments = parser.parse_args(argv)
    if arguments.page:
        PAGE.write_text(on_page(PAGE.read_text(), read(arguments.results)))
        return 0
    wanted = planned(arguments.triples, arguments.seed)
    if arguments.only:
        wanted = [tuple(action.strip() for action in arguments.only.split(","))]
    if arguments.shuffled:
        random.Random(arguments.seed).shuffle(wanted)
    done = {(tuple(row["sequence"]), row["seed"]) for row in read(arguments.results)}
    end, failed = time.monotonic() + arguments.seconds, 0
    for sequence in wanted:
        if (sequence, arguments.seed) in done:
            continue
        if time.monotonic() > end:
            break
        outcome = carry_out(sequence, arguments.seed, arguments.keep)
        row = dataclasses.asdict(outcome)
        row |= {"date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0], "quiet": arguments.quiet}
        row = {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
        with arguments.results.open("a") as out:
            out.write(json.dumps(row) + "\n")
        failed += bool(outcome.problem)
        print(line_of(row), flush=True)
    print("\n".join(table(read(arguments.results))))
    return int(failed > 0)


def line_of(row: dict[str, Any]) -> str:
    """Return an outcome in one line, for people who wait."""
    what = f"{', '.join(row['sequence'])} ({row['seed']})"
    if row["problem"]:
        return f"FAILED {what}: {row['said']} {row['problem']:.1500}"
    if not row["serves"]:
        return f"no quorum: {what}, healed {row['healed_s']} s"
    phases = f"up {row['up_s']}, led {row['led_s']}, first {row['first_s']}, healed {row['healed_s']}"
    late = "LATE " if _longest(row) > SERVES_S else ""
    partly = "" if row["whole"] else ", partly"
    return f"{late}{_longest(row):.2f} s: {what}, {phases}, paused {row['paused_s']}{partly} {row['said']}"


if __name__ == "__main__":
    sys.exit(main())
