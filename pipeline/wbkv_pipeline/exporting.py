"""Exports: the store's rows as Parquet files with checksums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.manifest import DATA, ExportedFile, Manifest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from wbkv_pipeline.files import Folder

ROWS_PER_FILE: Final = 500_000
BYTES_MAX: Final = 1 << 30
"""Largest file: a task that computes its checksum holds all of it in memory."""


def write(rows: DataFrame, folder: Folder, rows_per_file: int = ROWS_PER_FILE) -> None:
    """Write the data of an export: a folder for each of the store's partitions."""
    writer = rows.write.partitionBy("partition").option("maxRecordsPerFile", str(rows_per_file))
    writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer.parquet(folder.child(DATA))


def count(spark: SparkSession, folder: Folder, schema: str) -> dict[str, int]:
    """Return the number of rows of each file. The driver receives one row for each file."""
    if not files_of(folder):
        return {}
    rows = spark.read.schema(schema).parquet(folder.child(DATA))
    counted = rows.groupBy(_name("_metadata.file_path")).count()
    return {row["name"]: row["count"] for row in counted.collect()}


def describe(spark: SparkSession, folder: Folder, rows: Mapping[str, int]) -> tuple[ExportedFile, ...]:
    """Return all files with their rows and checksums, which tasks compute."""
    found = dict(files_of(folder))
    too_large = max(found, key=lambda name: found[name], default=None)
    if too_large is not None and found[too_large] > BYTES_MAX:
        raise PipelineError(
            f"{too_large} has {found[too_large]:,} bytes, above the limit of {BYTES_MAX:,}: "
            "choose a lower --rows-per-file"
        )
    known = checksums(spark, folder) if found else []
    return tuple(ExportedFile(name, rows.get(name, 0), size, digest) for name, size, digest in known)


def files_of(folder: Folder) -> list[tuple[str, int]]:
    """Return the names and sizes of an export's files."""
    before = f"{DATA}/"
    return sorted(
        (name.removeprefix(before), size) for name, size in folder.files() if name.startswith(before)
    )


def checksums(spark: SparkSession, folder: Folder) -> list[tuple[str, int, str]]:
    """Return name, size and SHA-256 of each file of an export, by name."""
    contents = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(folder.child(DATA))
    found = contents.select(_name("path"), "length", F.sha2("content", 256).alias("sha256"))
    return sorted((row["name"], row["length"], row["sha256"]) for row in found.collect())


def _name(path: str) -> Column:
    """Extract a file's name below the data folder from its URI."""
    return F.regexp_extract(path, r"([^/]+/[^/]+)$", 1).alias("name")


def verify(spark: SparkSession, folder: Folder, manifest: Manifest) -> None:
    """Compare all files with the manifest. Raises `PipelineError` for the first that differs."""
    listed = {file.name: file for file in manifest.files}
    there = dict(files_of(folder))
    for name in sorted(listed.keys() - there.keys()):
        raise PipelineError(f"{folder}: {DATA}/{name} is missing")
    for name in sorted(there.keys() - listed.keys()):
        raise PipelineError(f"{folder}: {DATA}/{name} does not belong to the export")
    for name, size in there.items():
        if size != listed[name].bytes:
            raise PipelineError(f"{folder}: {DATA}/{name} is damaged: {size} bytes, not {listed[name].bytes}")
    for name, _, digest in checksums(spark, folder) if there else ():
        if digest != listed[name].sha256:
            raise PipelineError(f"{folder}: {DATA}/{name} is damaged: its checksum differs")


def read(spark: SparkSession, folder: Folder, manifest: Manifest) -> DataFrame:
    """Return the rows of an export."""
    if not manifest.files:
        return spark.createDataFrame([], manifest.schema)
    return spark.read.schema(manifest.schema).parquet(folder.child(DATA))
