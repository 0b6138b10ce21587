"""`wbkv pipeline verify`: checks from traces that everything was delivered, and read, in one order."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from wbkv_pipeline import command
from wbkv_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wbkv_pipeline.verifying import Verdict

help = command.JOBS["verify"]  # noqa: A001 - the interface of jobs
EPILOG: Final = """\
TRACES are folders or files: deliveries-* of nodes (wbkv up --trace) and requests-* of clients (wbkv.Trace),
as JSON lines (.jsonl, .jsonl.gz) or Parquet. With only one of the two kinds, some checks are left out.

exit status:
  0    all checks passed
  1    violations were found
  2    bad usage or bad input
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("traces", metavar="TRACES", nargs="+", help="folders and files")
    add(
        "--untraced-clients",
        choices=("refuse", "allow"),
        default="refuse",
        help="whether some clients wrote no trace, or were killed before they wrote all of it (refuse)",
    )
    add(
        "--clock-skew",
        type=_seconds,
        default=0.1,
        metavar="SECONDS",
        help="largest difference between the clocks of client processes (0.1)",
    )
    add("--sample", type=int, default=10, metavar="N", help="show at most N violations of each check (10)")
    add("--output", metavar="FOLDER", help="write all violations there, as Parquet; new or empty")
    add("--json", action="store_true", help="print one JSON object")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to less than a day")
    return value


def run(arguments: argparse.Namespace, spark: SparkSession) -> int:
    """Check, and print the verdict. Return the exit status."""
    from pyspark.sql.observation import Observation

    from wbkv_pipeline import traces, verifying
    from wbkv_pipeline.files import new_folder
    from wbkv_pipeline.progress import say, step

    output = None if arguments.output is None else new_folder(spark, arguments.output)
    files = traces.find(spark, arguments.traces)
    given = {kind: files[kind] for kind in ("deliveries", "requests") if files[kind]}
    if not given:
        raise PipelineError("nothing to check: these traces have no files deliveries-* or requests-*")
    unreadable = {kind: Observation() for kind in given}
    rows = {kind: traces.read(spark, given[kind], kind, unreadable[kind]) for kind in given}
    rules = verifying.Rules(
        untraced_clients=arguments.untraced_clients == "allow",
        clock_skew_us=round(arguments.clock_skew * 1_000_000),
    )
    count = sum(len(found.lines) + len(found.parquet) for found in given.values())
    with step(spark, f"checking {count:,} files") as checking:
        with verifying.verified(rows.get("deliveries"), rows.get("requests"), rules) as verdict:
            for kind, found in given.items():
                if found.lines and unreadable[kind].get["lines"]:
                    torn = traces.torn_lines(spark, found, kind)
                    say(f"{torn:,} files of {kind} end in the middle of a line: their process was killed")
            if verdict.counts.stopped:
                say(f"{verdict.counts.stopped:,} runs could not record all that they delivered")
            sample = _sample(verdict, arguments.sample)
            if output is not None:
                verdict.findings.write.mode("append").parquet(output.uri)
        checking.rows = verdict.counts.lines + verdict.counts.requests
    (_print_json if arguments.json else _print)(verdict, sample)
    return 0 if verdict.fine else 1


def _sample(verdict: Verdict, count: int) -> list[dict[str, Any]]:
    """Return the first findings of each check."""
    from pyspark.sql import functions as sql

    found: list[dict[str, Any]] = []
    for check, violations in verdict.violations.items():
        if violations and count > 0:
            rows = (
                verdict.findings.where(sql.col("check") == check).orderBy("gts", "group", "run").limit(count)
            )
            found += [{**row.asDict(), "details": json.loads(row["details"])} for row in rows.collect()]
    return found


def _print_json(verdict: Verdict, sample: list[dict[str, Any]]) -> None:
    from wbkv_pipeline.verifying import CHECKS

    checks = [
        {
            "check": check.name,
            "checked": getattr(verdict.counts, check.of),
            "violations": verdict.violations.get(check.name),
            "needs": list(verdict.left_out.get(check.name, ())),
        }
        for check in CHECKS
    ]
    result = {"fine": verdict.fine, **verdict.counts._asdict(), "checks": checks, "sample": sample}
    sys.stdout.write(json.dumps(result) + "\n")


def _print(verdict: Verdict, sample: list[dict[str, Any]]) -> None:
    from wbkv_pipeline.verifying import CHECKS

    out = sys.stdout
    out.write(f"{'check':14}{'checked':>14}{'violations':>12}  what it says\n")
    for check in CHECKS:
        if check.name in verdict.violations:
            checked = f"{getattr(verdict.counts, check.of):,}"
            out.write(f"{check.name:14}{checked:>14}{verdict.violations[check.name]:>12,}  {check.says}\n")
        else:
            out.write(f"{check.name:14}{'-':>14}{'-':>12}  not checked: needs {' and '.join(check.needs)}\n")
    for row in sample:
        out.write(f"\n{row['check']}: {row['what']}\n")
        where = {name: row[name] for name in ("node", "run", "group", "gts", "message")}
        for name, value in {**where, **row["details"]}.items():
            if value is not None:
                out.write(f"    {name:18} {value}\n")
    total = sum(verdict.violations.values())
    if total > len(sample) and sample:
        out.write(f"\n... and {total - len(sample):,} more: --output writes all\n")
    out.write("\nall checks passed\n" if verdict.fine else f"\n{total:,} violations\n")


if __name__ == "__main__":
    sys.exit(command.submit())
