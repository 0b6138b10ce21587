"""A process that crashes leaves a trace; one that is killed does not, and its death is not counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.storage import lives

LIFE = """
import os, signal, sys
from pathlib import Path
from kvstore.server.crashes import crash_trace
from kvstore.storage import lives
disk = Path(sys.argv[1])
with crash_trace(disk / "crash", disk):
    print(lives.begin(disk), flush=True)
    {end}
"""


def live(disk: Path, end: str) -> tuple[int, str]:
    """Live once. Return how many deaths the process has counted, and what it said."""
    command = [sys.executable, "-c", LIFE.format(end=end), str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own code
    return int(done.stdout), done.stderr


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_deaths_from_outside_do_not_count(tmp_path: Path, number: str) -> None:
    for _ in range(3):
        assert live(tmp_path, f"os.kill(os.getpid(), signal.{number})")[0] == 0


@pytest.mark.parametrize("number", ["SIGABRT", "SIGSEGV", "SIGBUS"])
def test_crashes_count_and_are_named_at_the_next_start(tmp_path: Path, number: str) -> None:
    end = f"os.kill(os.getpid(), signal.{number})"
    deaths = [live(tmp_path, end)[0] for _ in range(lives.DEATHS)]
    found, said = live(tmp_path, "pass")
    assert [*deaths, found] == [0, 1, 2]
    assert "last process crashed" in said
    assert "File " in said, "where it was"


def test_an_end_by_an_exception_counts_until_a_life_goes_well(tmp_path: Path) -> None:
    """What the process found on its disk may be the reason."""
    assert [live(tmp_path, "1 / 0")[0] for _ in range(2)] == [0, 1]
    assert not (tmp_path / "crash").exists()
    lives.settle(tmp_path)
    assert live(tmp_path, "pass")[0] == 0


def test_a_death_from_outside_does_not_hide_crashes(tmp_path: Path) -> None:
    live(tmp_path, "os.abort()")
    assert live(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")[0] == 1
    live(tmp_path, "os.abort()")
    assert live(tmp_path, "pass")[0] == 2
