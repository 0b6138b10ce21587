"""Every block of docs/pipeline.md does what the page says. Jobs run in the tests' session."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import wbkv.testing
from pyspark.sql import SparkSession
from wbkv.cli import main as command

from tests.integration import pages
from tests.tree import ROOT

PAGE = ROOT / "docs" / "pipeline.md"
JOB = re.compile(r"^\.venv/bin/wbkv (pipeline .+)$", re.MULTILINE)


def run_jobs(block: pages.Block, folder: Path, address: str) -> str:
    """Run a block that has only jobs."""
    lines = JOB.findall(block.text)
    assert len(lines) == len(block.text.splitlines()), f"{block} has something else than jobs"
    expected = 1 if "<!-- status 1 -->" in PAGE.read_text().splitlines()[block.line - 3] else 0
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for line in lines:
            status = command.main(shlex.split(line))
            assert status == expected, f"{block}: status {status}"
    # What an export or import is called there is not for a page.
    return "".join(line for line in printed.getvalue().splitlines(keepends=True) if " cluster " not in line)


def test_the_page_says_what_happens(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "run_shell", run_jobs)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with wbkv.testing.running_cluster(1, 3, durability="os") as running:
        address = running.addresses[0]
        monkeypatch.setenv("WBKV_ENDPOINTS", address)
        assert pages.run(PAGE, names, tmp_path, address) > 10
        names["client"].close()
    assert names["spark"] is spark
