"""Imports: writes files with keys and values into a cluster, a few files at a time.

When all rows of a file are written, the import records the file's name in the store. The same import, started
again, skips that file. Rows of other files are written again, with the same values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import wbkv
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from wbkv_pipeline import exporting
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.manifest import DATA, NAME, Manifest, decode
from wbkv_pipeline.stores import FORMAT, IMPORTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wbkv_pipeline.files import Folder

FORMATS: Final = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
COMPRESSED: Final = (".gz", ".zst", ".bz2", ".snappy", ".lz4")
TEXT: Final = ("binary", "string")


@dataclass(frozen=True)
class ImportSource:
    """The files of an import."""

    folder: Folder
    format: str
    names: tuple[str, ...]
    """Of all files, in order."""
    job: str
    """The import's id: equal for equal files only."""
    manifest: Manifest | None = None

    def rows(self, names: Iterable[str]) -> int | None:
        """Return the number of rows of these files, or None without a manifest."""
        if self.manifest is None:
            return None
        known = {f"{DATA}/{file.name}": file.rows for file in self.manifest.files}
        return sum(known[name] for name in names)

    def read(self, spark: SparkSession, names: Sequence[str]) -> DataFrame:
        """Return the keys and values of these files."""
        reader = spark.read
        if self.manifest is not None:
            reader = reader.schema("key binary, value binary")
        elif self.format == "csv":
            reader = reader.option("header", "true").option("enforceSchema", "false")
        rows = reader.format(self.format).load([self.folder.child(name) for name in names])
        kinds = dict(rows.dtypes)
        for column in ("key", "value"):
            if column not in kinds:
                raise PipelineError(f"{self.folder}: there is no column {column}, only {', '.join(kinds)}")
            if kinds[column] not in TEXT:
                raise PipelineError(
                    f"{self.folder}: column {column} is of type {kinds[column]}, not binary or string"
                )
        if self.format == "csv":  # CSV has no nulls: an empty value is an empty text
            rows = rows.withColumn("value", F.coalesce("value", F.lit("")))
        return rows.select("key", "value")


def find(folder: Folder, kind: str | None = None, job: str | None = None) -> ImportSource:
    """Find an export, or files of one format, in a folder or as one file. Reads the manifest only."""
    if not folder.exists():
        raise PipelineError(f"{folder}: no such file or folder")
    content = folder.read(NAME)
    if content is not None:
        manifest = decode(content, folder.child(NAME))
        names = tuple(f"{DATA}/{file.name}" for file in manifest.files)
        return ImportSource(folder, "parquet", names, job or manifest.digest()[:32], manifest)
    found = sorted(folder.files())
    kinds = {kind or kind_of(name or folder.uri) for name, _ in found} - {None}
    if kind is None and len(kinds) != 1:
        what = (
            f"files of {' and '.join(sorted(map(str, kinds)))}" if kinds else "no Parquet, CSV or JSON file"
        )
        raise PipelineError(f"{folder} is not an export: it has no {NAME}, and {what}")
    (one,) = kinds
    chosen = [(name, size) for name, size in found if kind or kind_of(name or folder.uri)]
    digest = hashlib.sha256(json.dumps([folder.uri, chosen]).encode()).hexdigest()
    return ImportSource(folder, str(one), tuple(name for name, _ in chosen), job or digest[:32])


def kind_of(name: str) -> str | None:
    """Return a file's format by its name."""
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return next((kind for ending, kind in FORMATS.items() if name.endswith(ending)), None)


def verify(spark: SparkSession, source: ImportSource) -> int:
    """Check files against their manifest; without one, check that no key is null or repeated.

    Returns the number of rows. Called before anything is written.
    """
    if source.manifest is not None:
        exporting.verify(spark, source.folder, source.manifest)
        return source.manifest.rows
    # One row for each key, so that one pass finds null keys and repeated keys.
    keys = source.read(spark, source.names).groupBy("key").count()
    bad = F.col("key").isNull() | (F.col("count") > 1)
    found = keys.agg(
        F.coalesce(F.sum("count"), F.lit(0)).alias("rows"),
        F.first(F.when(bad, F.struct("key", "count")), ignorenulls=True).alias("bad"),
    ).collect()[0]
    if found["bad"] is not None:
        key, count = found["bad"]
        if key is None:
            raise PipelineError(f"{source.folder}: {count} rows have no key")
        name = key if isinstance(key, str) else bytes(key)
        raise PipelineError(f"{source.folder}: the key {name!r} occurs {count} times")
    return int(found["rows"])


def waves(names: Sequence[str], done: Iterable[str], size: int) -> Iterator[Sequence[str]]:
    """Yield the files that are not done, `size` at a time."""
    past = set(done)
    left = [name for name in names if name not in past]
    for start in range(0, len(left), size):
        yield left[start : start + size]


def write(rows: DataFrame, endpoints: str) -> None:
    """Write keys and values."""
    rows.write.format(FORMAT).mode("append").option("endpoints", endpoints).save()


def done_before(client: wbkv.Client[bytes], job: str) -> set[str]:
    """Return the files that an earlier run of the import has written."""
    before = f"{IMPORTS}{job}/"
    return {entry.key.decode().removeprefix(before) for entry in client.scan(before)}


def note(client: wbkv.Client[bytes], job: str, names: Sequence[str]) -> None:
    """Record that all rows of these files are written."""
    client.txn().then(*(wbkv.put(f"{IMPORTS}{job}/{name}", b"done") for name in names)).commit()
