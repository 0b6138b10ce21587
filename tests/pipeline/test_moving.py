"""The functions behind export, import and diff, on DataFrames and files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from wbkv_pipeline import diffing, exporting, importing
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.files import Folder
from wbkv_pipeline.manifest import NAME, Manifest

SCHEMA = (
    "key binary, value binary, create_revision bigint, mod_revision bigint, version bigint, partition int"
)


def store(spark: SparkSession, rows: Iterable[tuple[str, str, int]]) -> DataFrame:
    """Rows with the columns of the data source, from key, value and revision."""
    content = [
        (key.encode(), value.encode(), revision, revision, 1, len(key) % 2) for key, value, revision in rows
    ]
    return spark.createDataFrame(content, SCHEMA)


def exported(spark: SparkSession, rows: DataFrame, path: Path) -> tuple[Folder, Manifest]:
    folder = Folder(spark, str(path))
    exporting.write(rows, folder, rows_per_file=2)
    files = exporting.describe(spark, folder, exporting.count(spark, folder, SCHEMA))
    manifest = Manifest("c1", 7, "2026-01-01", {}, SCHEMA, files)
    folder.write(NAME, manifest.encode())
    return folder, manifest


def test_an_export_reads_back_and_any_damage_is_named(spark: SparkSession, tmp_path: Path) -> None:
    rows = store(spark, [("a", "1", 1), ("b", "2", 2), ("c", "3", 3), ("dd", "4", 4)]).coalesce(1)
    folder, manifest = exported(spark, rows, tmp_path / "an export")
    assert sorted(file.rows for file in manifest.files) == [1, 1, 2]
    assert manifest.rows == 4
    assert sorted(exporting.read(spark, folder, manifest).collect()) == sorted(rows.collect())
    source = importing.find(folder)
    assert (source.manifest, source.job) == (manifest, manifest.digest()[:32])
    assert importing.verify(spark, source) == 4

    first = tmp_path / "an export/data" / manifest.files[0].name
    content = first.read_bytes()
    # Spark's own checksum beside the file would fail first, so it is removed, as a careful forger would.
    first.with_name(f".{first.name}.crc").unlink()
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    first.write_bytes(changed)
    with pytest.raises(PipelineError, match=rf"{first.name} is damaged: its checksum differs"):
        importing.verify(spark, source)
    first.write_bytes(content[:-1])
    with pytest.raises(PipelineError, match=rf"{first.name} is damaged: \d+ bytes, not \d+"):
        importing.verify(spark, source)
    first.rename(first.with_name("other.parquet"))
    with pytest.raises(PipelineError, match=rf"{first.name} is missing"):
        importing.verify(spark, source)
    first.write_bytes(content)
    with pytest.raises(PipelineError, match=r"other.parquet does not belong to the export"):
        importing.verify(spark, source)


def test_an_export_of_nothing_is_one(spark: SparkSession, tmp_path: Path) -> None:
    folder, manifest = exported(spark, store(spark, []), tmp_path / "nothing")
    assert manifest.files == ()
    assert importing.verify(spark, importing.find(folder)) == 0
    assert exporting.read(spark, folder, manifest).collect() == []


def test_differences_are_added_removed_and_changed_keys(spark: SparkSession) -> None:
    left = store(spark, [("same", "1", 1), ("gone", "2", 2), ("new value", "3", 3), ("rewritten", "4", 4)])
    right = store(spark, [("same", "1", 1), ("came", "5", 5), ("new value", "6", 6), ("rewritten", "4", 7)])

    def found(**how: Any) -> dict[str, str]:
        different = diffing.differences(left, right, **how)
        return {bytes(row["key"]).decode(): row["change"] for row in different.collect()}

    expected = {"gone": "removed", "came": "added", "new value": "changed"}
    assert found() == {**expected, "rewritten": "changed"}
    assert found(ignore_revisions=True) == expected
    assert diffing.counts(diffing.differences(left, right)) == {"added": 1, "removed": 1, "changed": 2}
    assert diffing.counts(diffing.differences(left, left)) == {"added": 0, "removed": 0, "changed": 0}


def test_other_files_are_checked_before_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    def write(name: str, *lines: str) -> Folder:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return Folder(spark, str((tmp_path / name).parent))

    write("csv/1.csv", "value,key", "1,a", ",b")
    source = importing.find(write("csv/2.csv", "value,key", "3,c"))
    assert (source.format, source.names) == ("csv", ("1.csv", "2.csv"))
    assert importing.verify(spark, source) == 3
    assert sorted(source.read(spark, source.names).collect()) == [("a", "1"), ("b", ""), ("c", "3")]
    assert importing.find(Folder(spark, f"{tmp_path}/csv/1.csv")).names == ("",)

    source = importing.find(write("json/x.jsonl", '{"key": "a", "value": "1"}', '{"key": "a", "value": "2"}'))
    with pytest.raises(PipelineError, match="the key 'a' occurs 2 times"):
        importing.verify(spark, source)
    source = importing.find(write("null/x.json", '{"key": "a", "value": "1"}', '{"value": "2"}'))
    with pytest.raises(PipelineError, match="1 rows have no key"):
        importing.verify(spark, source)
    source = importing.find(write("none/x.json", '{"k": "a", "value": "1"}'))
    with pytest.raises(PipelineError, match="there is no column key, only k, value"):
        importing.verify(spark, source)
    source = importing.find(write("type/x.json", '{"key": "a", "value": 1}'))
    with pytest.raises(PipelineError, match="column value is of type bigint, not binary or string"):
        importing.verify(spark, source)

    write("mixed/x.json")
    with pytest.raises(PipelineError, match=r"is not an export: .* and files of csv and json"):
        importing.find(write("mixed/x.csv"))
    with pytest.raises(PipelineError, match=r"it has no manifest.json, and no Parquet, CSV or JSON file"):
        importing.find(write("text/x.txt", "x"))
    with pytest.raises(PipelineError, match="no such file or folder"):
        importing.find(Folder(spark, f"{tmp_path}/nowhere"))
    with pytest.raises(PipelineError, match=r"manifest.json is not the manifest of an export, or damaged"):
        importing.find(write("damaged/manifest.json", "{"))
    with pytest.raises(PipelineError, match='No FileSystem for scheme "nope"'):
        Folder(spark, "nope://x/y")


def test_a_folder_is_written_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path / "folder"))
    assert folder.is_empty()
    (tmp_path / "folder").mkdir()
    assert folder.is_empty()
    temporary = folder.temporary(spark)
    temporary.write("x", b"1")
    temporary.become(folder)
    temporary.remove()
    assert (tmp_path / "folder/x").read_bytes() == folder.read("x") == b"1"
    assert not folder.is_empty()
    assert list(folder.files()) == [("x", 1)]
    with pytest.raises(PipelineError, match="cannot be written"):
        folder.write("x", b"2")
