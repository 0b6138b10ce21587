"""`wbkv pipeline diff`: compare two states of a store."""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from wbkv.cli.text import escape, to_json

from wbkv_pipeline import command
from wbkv_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

help = command.JOBS["diff"]  # noqa: A001 - the interface of jobs
BYTES: Final = (bytes, bytearray)  # a setting of Spark decides which
CLUSTER: Final = re.compile(r"([^/@]*)@(now|\d+)")
EPILOG: Final = """\
LEFT and RIGHT are each one of
  FOLDER               an export
  @now, @REVISION      the cluster of --endpoints, now or at a revision
  HOST:PORT,...@now    another cluster; or @REVISION

exit status:
  0    they are the same
  1    they differ
  2    bad usage or bad input
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("left", metavar="LEFT", help="the old state")
    add("right", metavar="RIGHT", help="the new state")
    command.add_store(parser)
    add("--prefix", default="", metavar="KEY", help="only keys that begin with this")
    add("--ignore-revisions", action="store_true", help="compare values only, as for a copy")
    add("--sample", type=int, default=10, metavar="N", help="show at most N keys that differ (10)")
    add("--output", metavar="FOLDER", help="write all differences there, as Parquet; new or empty")


def run(arguments: argparse.Namespace, spark: SparkSession) -> int:
    """Compare, and print the differences. Return the exit status."""
    from wbkv_pipeline import diffing
    from wbkv_pipeline.files import new_folder
    from wbkv_pipeline.progress import step

    output = None if arguments.output is None else new_folder(spark, arguments.output)
    with ExitStack() as held:
        sides = [_side(spark, text, arguments, held) for text in (arguments.left, arguments.right)]
        names = [name for name, _ in sides]
        different = diffing.differences(sides[0][1], sides[1][1], ignore_revisions=arguments.ignore_revisions)
        with step(spark, f"comparing {names[0]} with {names[1]}") as comparing:
            if output is None:
                held.callback(different.persist().unpersist)  # few rows, used twice
            else:
                different.write.mode("append").parquet(output.uri)
                different = spark.read.schema(different.schema).parquet(output.uri)
            counts = diffing.counts(different)
            comparing.result = ", ".join(f"{count:,} {change}" for change, count in counts.items())
        sample = [row.asDict() for row in different.orderBy("key").limit(arguments.sample).collect()]
    _print(arguments, names, counts, sample)
    return 1 if any(counts.values()) else 0


def _side(
    spark: SparkSession, text: str, arguments: argparse.Namespace, held: ExitStack
) -> tuple[str, DataFrame]:
    """Return the name of a side, and its rows."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from wbkv_pipeline import exporting, stores
    from wbkv_pipeline.files import Folder
    from wbkv_pipeline.manifest import NAME, decode

    live = CLUSTER.fullmatch(text)
    if live is not None:
        revision = 0 if live[2] == "now" else int(live[2])
        state = held.enter_context(stores.held(live[1] or arguments.endpoints, revision))
        return f"cluster {state.cluster} at {state.revision}", stores.read(spark, state, arguments.prefix)
    folder = Folder(spark, text)
    content = folder.read(NAME)
    if content is None:
        what = f"has no {NAME}" if folder.exists() else "does not exist"
        raise PipelineError(f"{folder} is not an export: it {what}")
    rows = exporting.read(spark, folder, decode(content, folder.child(NAME)))
    if arguments.prefix:
        rows = rows.where(F.col("key").startswith(F.lit(arguments.prefix.encode())))
    return folder.uri, rows


def _print(
    arguments: argparse.Namespace, names: list[str], counts: dict[str, int], sample: list[dict[str, Any]]
) -> None:
    if arguments.json:
        shown = [
            {name: to_json(bytes(it)) if isinstance(it, BYTES) else it for name, it in row.items()}
            for row in sample
        ]
        result = {"left": names[0], "right": names[1], **counts, "sample": shown}
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for row in sample:
        sys.stdout.write(f"{row['change']:8} {escape(bytes(row['key']))}\n")
    more = sum(counts.values()) - len(sample)
    if more > 0 and sample:
        sys.stdout.write(f"... and {more:,} more\n")
    total = ", ".join(f"{count:,} {change}" for change, count in counts.items())
    sys.stdout.write(f"{total}\n" if any(counts.values()) else "no differences\n")


if __name__ == "__main__":
    sys.exit(command.submit())
