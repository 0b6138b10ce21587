"""`wbkv pipeline import`: writes files into a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from wbkv_pipeline import command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

help = command.JOBS["import"]  # noqa: A001 - the interface of jobs


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "Existing keys get the new value, other keys stay, and a null value removes its key. When all rows "
        "of a file are written, the store records it under wbkv.import/: the same import, run again, skips "
        "the file."
    )
    add = parser.add_argument
    add(
        "folder",
        metavar="FOLDER",
        help="an export; or files with columns key and value: a folder, or one file",
    )
    command.add_store(parser)
    add("--format", choices=("parquet", "csv", "json"), help="the format of the files (by their names)")
    add("--job", metavar="NAME", help="the name of its record in the store (a hash of the list of files)")
    add("--no-verify", action="store_true", help="do not check files and keys before the first write")
    add("--dry-run", action="store_true", help="only check, and print what would be done")


def run(arguments: argparse.Namespace, spark: SparkSession) -> int:
    """Import, and print what was written. Return the exit status."""
    import wbkv

    from wbkv_pipeline import importing, stores
    from wbkv_pipeline.files import Folder
    from wbkv_pipeline.progress import say, step

    source = importing.find(Folder(spark, arguments.folder), arguments.format, arguments.job)
    endpoints = stores.resolve(arguments.endpoints)
    rows: int | None = None
    with wbkv.connect(endpoints) as client:
        if not arguments.no_verify:
            with step(spark, f"checking {len(source.names)} files of {source.folder}") as checking:
                rows = checking.rows = importing.verify(spark, source)
        done = importing.done_before(client, source.job) & set(source.names)
        if done:
            say(f"{len(done)} of {len(source.names)} files were written before: skipped")
        size = 4 * spark.sparkContext.defaultParallelism
        count = len(done)
        for names in () if arguments.dry_run else importing.waves(source.names, done, size):
            what = f"writing files {count + 1} to {count + len(names)} of {len(source.names)}"
            with step(spark, what) as writing:
                importing.write(source.read(spark, names), endpoints)
                writing.rows = source.rows(names)
            importing.note(client, source.job, names)
            count += len(names)
        cluster = client.topology().cluster
    result = {
        "job": source.job,
        "cluster": cluster,
        "files": len(source.names) - len(done),
        "passed_over": len(done),
        "rows": rows,
        "dry_run": arguments.dry_run,
    }
    if arguments.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        verb = "would import" if arguments.dry_run else "imported"
        over = f", skipped {len(done)} that were written before" if done else ""
        all_rows = "" if rows is None else f" ({rows:,} rows in all)"
        sys.stdout.write(f"{verb} {result['files']} files{over}, into cluster {cluster}{all_rows}\n")
    return 0


if __name__ == "__main__":
    sys.exit(command.submit())
