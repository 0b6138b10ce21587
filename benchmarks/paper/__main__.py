"""The command: runs experiments, prints tables, draws plots."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.convoy_command import protocols_of
from benchmarks.page import fill
from benchmarks.paper import curves
from benchmarks.paper.convoy import convoy
from benchmarks.paper.points import RESULTS, Results
from benchmarks.paper.recovery import recovery
from benchmarks.paper.runner import Experiment, run
from benchmarks.record import ROOT

EXPERIMENTS: Final = ("lan", "wan", "together", "recovery", "convoy")
IMAGES: Final = ROOT / "docs" / "images"
PAGE: Final = ROOT / "docs" / "evaluation.md"


def experiments(names: Sequence[str], protocols: Sequence[str] | None, *, quick: bool) -> list[Experiment]:
    """Return these experiments, with all of their protocols or with the given ones."""
    usual = protocols or curves.PROTOCOLS
    made: dict[str, Experiment] = {
        "lan": curves.lan(usual, quick=quick),
        "wan": curves.wan(usual, quick=quick),
        "together": curves.together(usual, quick=quick),
        "recovery": recovery(usual, quick=quick),
        "convoy": convoy(protocols, quick=quick),
    }
    return [made[name] for name in names]


def folder_of(base: Path, protocols: Sequence[str] | None, *, quick: bool) -> Path:
    """The folder of results. Quick or partial results do not replace complete ones."""
    if quick:
        base = base / "quick"
    return base if protocols is None else base / f"only-{'-'.join(protocols)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run experiments, or print tables, or draw plots. The status is 1 if a point failed."""
    arguments = _parser().parse_args(argv)
    only = list(arguments.only) if arguments.only else None
    results = Results(folder_of(arguments.folder, only, quick=arguments.quick))
    if arguments.what == "tables":
        from benchmarks.paper.tables import everything

        tables = everything(results)
        print("\n\n".join(tables.values()) or f"there are no results in {results.folder}")
        if arguments.write:
            arguments.page.write_text(fill(arguments.page.read_text(), tables))
        return 0
    if arguments.what == "plots":
        from benchmarks.paper.plots import write  # needs Matplotlib

        for path in write(results, arguments.images):
            print(path)
        return 0
    names = EXPERIMENTS if arguments.what == "all" else (arguments.what,)
    chosen, report = experiments(names, only, quick=arguments.quick), partial(print, flush=True)
    try:
        failed = run(chosen, results, again=arguments.again, report=report)
    except KeyboardInterrupt:
        print("interrupted; the same command continues from here")
        return 130
    if failed:
        print(f"{failed} points failed, wholly or in part; --again failed measures them again")
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    add = parser.add_argument
    choices = ("all", *EXPERIMENTS, "tables", "plots")
    add("what", nargs="?", choices=choices, default="all", help="an experiment, or what to make of results")
    add("--quick", action="store_true", help="a few short points, in a folder of their own")
    again = "make points again that are there already: all, or those that failed"
    add("--again", nargs="?", choices=("failed", "all"), const="all", default="no", help=again)
    add("--only", type=protocols_of, metavar="PROTOCOL,...", help="only these, in a folder of their own")
    add("--folder", type=Path, default=RESULTS, help="where results are kept (build/figures)")
    add("--write", action="store_true", help="tables: also put them into the page")
    add("--page", type=Path, default=PAGE, help="which (docs/evaluation.md)")
    add("--images", type=Path, default=IMAGES, help="where plots go (docs/images)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
