"""Exports: a DataFrame of the store's rows as Parquet files that can be checked."""

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
"""Of a file: a task that computes its checksum has all of it in memory."""


def write(rows: DataFrame, folder: Folder, rows_per_file: int = ROWS_PER_FILE) -> None:
    """Write the data of an export: a folder for each of the store's partitions."""
    writer = rows.write.partitionBy("partition").option("maxRecordsPerFile", str(rows_per_file))
    writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer.parquet(folder.child(DATA))


def count(spark: SparkSession, folder: Folder, schema: str) -> dict[str, int]:
    """How many rows were written, by file. One row for each file comes to the driver."""
    if not files_of(folder):
        return {}
    rows = spark.read.schema(schema).parquet(folder.child(DATA))
    counted = rows.groupBy(_name("_metadata.file_path")).count()
    return {row["name"]: row["count"] for row in counted.collect()}


def describe(spark: SparkSession, folder: Folder, rows: Mapping[str, int]) -> tuple[ExportedFile, ...]:
    """All files that were written, with their rows, and checksums that are computed in tasks."""
    found = dict(files_of(folder))
    too_large = max(found, key=lambda name: found[name], default=None)
    if too_large is not None and found[too_large] > BYTES_MAX:
        raise PipelineError(f"{too_large} has {found[too_large]:,} bytes: take fewer --rows-per-file")
    known = checksums(spark, folder) if found else []
    return tuple(ExportedFile(name, rows.get(name, 0), size, digest) for name, size, digest in known)


def files_of(folder: Folder) -> list[tuple[str, int]]:
    """The names and sizes of an export's files."""
    before = f"{DATA}/"
    return sorted(
        (name.removeprefix(before), size) for name, size in folder.files() if name.startswith(before)
    )


def checksums(spark: SparkSession, folder: Folder) -> list[tuple[str, int, str]]:
    """Name, size and SHA-256 of each file of an export, by name."""
    contents = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(folder.child(DATA))
    found = contents.select(_name("path"), "length", F.sha2("content", 256).alias("sha256"))
    return sorted((row["name"], row["length"], row["sha256"]) for row in found.collect())


def _name(path: str) -> Column:
    """A file's name in the folder of the data, from its address."""
    return F.regexp_extract(path, r"([^/]+/[^/]+)$", 1).alias("name")


def verify(spark: SparkSession, folder: Folder, manifest: Manifest) -> None:
    """Compare all files with the manifest. Raises `PipelineError`, which names one that is not as it was."""
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
            raise PipelineError(f"{folder}: {DATA}/{name} is damaged: its checksum is another")


def read(spark: SparkSession, folder: Folder, manifest: Manifest) -> DataFrame:
    """The rows of an export."""
    if not manifest.files:
        return spark.createDataFrame([], manifest.schema)
    return spark.read.schema(manifest.schema).parquet(folder.child(DATA))
