"""Jobs on a cluster of real nodes: their effects, their output, and their errors."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import wbkv
import wbkv.testing
from pyspark.sql import SparkSession
from wbkv_pipeline import command, importing
from wbkv_pipeline.errors import PipelineError

from tests.campaigns import campaign

Run: TypeAlias = Callable[..., tuple[int, Any, str]]
PLACES = [f"place/{number:03}" for number in range(60)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[wbkv.testing.RunningCluster]:
    with wbkv.testing.running_cluster(1, 3, durability="os") as running:
        yield running


@pytest.fixture
def client(cluster: wbkv.testing.RunningCluster) -> Iterator[wbkv.Client[bytes]]:
    """A client of the cluster, which has sixty keys."""
    with wbkv.connect(cluster.addresses) as client:
        client.delete(wbkv.EVERYTHING)
        client.txn().then(*(wbkv.put(place, f"of {place}".encode()) for place in PLACES)).commit()
        yield client


@pytest.fixture
def run(spark: SparkSession, cluster: wbkv.testing.RunningCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(job: str, *arguments: object) -> tuple[int, Any, str]:
        """Return the exit status, the result as JSON, and the standard error."""
        capsys.readouterr()
        module = importlib.import_module(f"wbkv_pipeline.jobs.{job}")
        where = () if "-e" in arguments else ("-e", ",".join(cluster.addresses))
        status = command.execute(job, module, [*map(str, arguments), "--json", *where])
        said = capsys.readouterr()
        assert said.out or status == 2, said.err
        return status, json.loads(said.out) if said.out else None, said.err

    return run


@campaign  # docs/pipeline.md does the like
def test_an_export_is_compared_and_imported_again(
    client: wbkv.Client[bytes], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "export"
    client.put("wbkv.import/x/y", b"a note of the pipeline's own")
    status, result, said = run("export", folder, "--rows-per-file", 3)
    assert (status, result["rows"]) == (0, 60), said
    assert result["files"] > 16
    assert "computing checksums" in said
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["revision"], manifest["rows"]) == (result["revision"], 60)
    assert {path.name for path in folder.glob("[!.]*")} == {"manifest.json", "data"}
    assert {path.name for path in tmp_path.iterdir()} == {"export"}

    client.txn().then(
        wbkv.put("place/000", b"elsewhere"), wbkv.delete("place/001"), wbkv.put("person", b"new")
    ).commit()
    status, result, said = run("diff", folder, "@now")
    assert status == 1, said
    assert (status, result["added"], result["removed"], result["changed"]) == (1, 1, 1, 1), said
    assert {row["key"]: row["change"] for row in result["sample"]} == {
        "person": "added",
        "place/000": "changed",
        "place/001": "removed",
    }
    status, _, said = run("diff", folder, "@now", "--prefix", "place/002")
    assert status == 0, said
    output = tmp_path / "differences"
    status, result, _ = run("diff", f"@{manifest['revision']}", "@now", "--output", output, "--sample", 1)
    assert (status, len(result["sample"])) == (1, 1)
    assert list(output.glob("*.parquet"))

    # An import that is interrupted after the first files.
    noted: list[str] = []

    def note(client: wbkv.Client[bytes], job: str, names: list[str]) -> None:
        if noted:
            raise PipelineError("the power is gone")
        noted.extend(names)
        importing_note(client, job, names)

    importing_note = importing.note
    client.delete(wbkv.prefix("place/"))
    with monkeypatch.context() as context:
        context.setattr(importing, "note", note)
        status, _, said = run("import", folder)
    assert (status, said.splitlines()[-1]) == (2, "wbkv pipeline import: the power is gone")
    assert noted
    # Later changes to keys of files that are written already stay.
    first = next(entry.key for entry in client.scan("place/"))
    status, result, _ = run("import", folder, "--dry-run")
    assert (status, result["passed_over"], result["files"]) == (
        0,
        len(noted),
        len(manifest["files"]) - len(noted),
    )
    status, result, said = run("import", folder)
    assert (status, result["passed_over"], result["rows"]) == (0, len(noted), 60), said
    assert f"{len(noted)} of {len(manifest['files'])} files were written before: skipped" in said
    client.delete("person")
    status, result, _ = run("diff", folder, "@now", "--ignore-revisions")
    assert (status, result["sample"]) == (0, [])
    assert run("diff", folder, "@now")[1]["changed"] == 60
    client.put(first, b"changed after the import")
    status, result, _ = run("import", folder)
    assert (status, result["files"]) == (0, 0)
    assert client.get(first) == b"changed after the import"


def test_bad_input_is_one_line(
    client: wbkv.Client[bytes], run: Run, tmp_path: Path, spark: SparkSession
) -> None:
    def refused(complaint: str, job: str, *arguments: object) -> None:
        status, result, said = run(job, *arguments)
        assert (status, result) == (2, None)
        assert said.splitlines()[-1].startswith(f"wbkv pipeline {job}: ")
        assert complaint in said.splitlines()[-1]
        assert "Traceback" not in said
        assert "\tat " not in said

    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()
    refused("full is not empty: name a new folder", "export", full)
    refused("full is not empty: name a new folder", "diff", "@now", "@now", "--output", full)
    refused("no node answers on 127.0.0.1:1", "export", tmp_path / "new", "-e", "127.0.0.1:1")
    refused("an endpoint must be HOST:PORT, not 'x'", "export", tmp_path / "new", "-e", "x")
    refused("full is not an export: it has no manifest.json", "diff", full, "@now")
    refused("nowhere is not an export: it does not exist", "diff", tmp_path / "nowhere", "@now")
    refused("no such file or folder", "import", tmp_path / "nowhere")
    with wbkv.testing.running_cluster(1, 1, durability="os") as other, other.connect() as fresh:
        old = fresh.put("x", b"1")  # on the other one, earlier snapshots hold what would be compacted
        fresh.compact(fresh.put("x", b"2"))
        (address,) = other.addresses
        refused(f"revision {old} is compacted", "export", tmp_path / "new", "--revision", old, "-e", address)
        refused(f"revision {old} is compacted", "diff", f"{address}@{old}", "@now")
    assert not (tmp_path / "new").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"full"}


def test_what_fails_in_a_task_is_one_line(
    client: wbkv.Client[bytes], run: Run, tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"key": "x" * 100_000, "value": "y"}) + "\n")
    status, _, said = run("import", tmp_path / "x.json")
    assert status == 2
    assert said.splitlines()[-1].startswith("wbkv pipeline import: ")
    assert "key" in said.splitlines()[-1]
    assert "\tat " not in said
