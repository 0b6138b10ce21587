"""Locust, as people run it: two processes on a cluster with other users."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import wbkv
import wbkv.testing

USERS = 6
ACCOUNTS = 60


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(endpoints: list[str], output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: Locust patches the standard library of its processes."""
    command = [sys.executable, "-m", "loadtests", "bank", "--endpoints", ",".join(endpoints)]
    command += ["--output", str(output), "--users", str(USERS), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)  # noqa: S603 - ours


def test_two_processes_move_money_and_nothing_is_lost(tmp_path: Path) -> None:
    with wbkv.testing.running_cluster() as running, running.connect() as client:
        client.put("loadtest/mine", b"stays")
        settings = ("--set", f"keys={ACCOUNTS}", "--set", "value_size=5", "--set", "rate=20")
        done = run(running.addresses, tmp_path, "--processes", "2", "--seconds", "3", *settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "bank: all checks passed" in done.stdout
        prefix = next(line for line in done.stdout.split() if line.startswith("loadtest/"))
        balances = [int(entry.value) for entry in client.scan(f"{prefix}account/")]
        assert (len(balances), sum(balances)) == (ACCOUNTS, ACCOUNTS * 1_000)
        assert len(set(balances)) > 1, "money has moved"
        assert client.get("loadtest/mine") == b"stays"

    tallies = [json.loads(path.read_text()) for path in (tmp_path / "locust/bank").glob("tally-*")]
    assert len(tallies) == 2
    assert all(tally["ok"]["transfer"] for tally in tallies), "both processes have worked"
    summary = json.loads((tmp_path / "locust/bank/summary.json").read_text())
    counted = {row["name"]: row["requests"] for row in summary}
    assert counted["transfer"] == sum(tally["ok"]["transfer"] for tally in tallies), "Locust has counted all"
    traces = [lines_of(path) for path in sorted((tmp_path / "traces").glob("requests-*"))]
    performed = [lines for lines in traces if lines[0]["scenario"] != "bank/load"]
    assert (len(traces), len(performed)) == (3, 2), "a file for each process, and for what was loaded"
    # Every transfer is in a trace, and was counted by its process; no id is of both processes.
    transfers = Counter(
        line["outcome"] for lines in performed for line in lines if line["scenario"] == "bank/transfer"
    )
    assert transfers["ok"] == sum(tally["ok"]["transfer"] for tally in tallies)
    ids = [{line["client"] for line in lines if "client" in line} for lines in performed]
    assert ids[0].isdisjoint(ids[1])
    everything = [line for lines in performed for line in lines]
    assert {line["clients"] for line in everything} == {USERS}
    ok = [line for line in everything if line["outcome"] == "ok"]
    assert all(line["revision"] > 0 and line["start_us"] <= line["end_us"] for line in ok)
    assert all(line["intended_us"] <= line["start_us"] for line in ok if line["scenario"] == "bank/transfer")
    assert {len(line["partitions"]) for line in ok if line["scenario"] == "bank/transfer"} == {1, 2}
