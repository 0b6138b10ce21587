"""`wbkv pipeline export`: writes a snapshot of a cluster to Parquet files."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wbkv_pipeline import command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

help = command.JOBS["export"]  # noqa: A001 - the interface of jobs


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "All rows are of one revision. manifest.json is written last: a folder that has it is complete. The "
        "pipeline's own records (keys that begin with wbkv.import/ or wbkv.stream/) are left out."
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="new or empty; any URI that Spark can write to")
    command.add_store(parser)
    add("--prefix", default="", metavar="KEY", help="only keys that begin with this")
    add("--revision", type=int, default=0, metavar="R", help="the revision to export (the present one)")
    add("--splits", type=int, default=0, metavar="N", help="about how many tasks (2 for each partition)")
    add("--rows-per-file", type=int, default=500_000, metavar="N", help="most rows of a file (500000)")


def run(arguments: argparse.Namespace, spark: SparkSession) -> int:
    """Export, and print what was written. Return the exit status."""
    from wbkv_pipeline import exporting, stores
    from wbkv_pipeline.files import new_folder
    from wbkv_pipeline.manifest import NAME, Manifest
    from wbkv_pipeline.progress import step

    folder = new_folder(spark, arguments.folder)
    temporary = folder.temporary(spark)
    with stores.held(arguments.endpoints, arguments.revision) as state:
        rows = stores.read(spark, state, arguments.prefix, arguments.splits)
        try:
            schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
            what = f"exporting {state.cluster} at revision {state.revision} to {folder}"
            with step(spark, what) as writing:
                exporting.write(rows, temporary, arguments.rows_per_file)
                counts = exporting.count(spark, temporary, schema)
                writing.rows = sum(counts.values())
            with step(spark, f"computing checksums of {len(counts)} files"):
                files = exporting.describe(spark, temporary, counts)
            temporary.become(folder)
        finally:
            temporary.remove()
    options = {"prefix": arguments.prefix} if arguments.prefix else {}
    time = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(state.cluster, state.revision, time, options, schema, files)
    folder.write(NAME, manifest.encode())
    result = {
        "folder": folder.uri,
        "cluster": state.cluster,
        "revision": state.revision,
        "rows": manifest.rows,
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
    }
    if arguments.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        sys.stdout.write("exported {rows:,} rows at revision {revision}: {folder}\n".format(**result))
    return 0


if __name__ == "__main__":
    sys.exit(command.submit())
