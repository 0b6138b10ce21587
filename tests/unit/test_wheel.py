"""A wheel puts these packages, and no others, into a user's site-packages."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.tree import ROOT
from tests.unit.wbkv.cli.client_only import HIDE

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENTS = {"wbkv", "wbkv_command", "wbkv_proto"}
PACKAGES = CLIENTS | {"kvstore", "multicast", "wbkv_sim", "wbkv_pipeline", "pyspark_wbkv"}

INSTALLED = HIDE.format(["wbkv_bench"]) + "from wbkv.cli.main import main\nsys.exit(main())"


def test_the_wheel_has_our_packages_only() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {wheel["sources"].get(folder, folder) for folder in wheel["only-include"]} == PACKAGES
    assert all((ROOT / folder).is_dir() for folder in wheel["only-include"])


def test_entry_points_load_packages_of_the_wheel() -> None:
    groups = PROJECT["project"]["entry-points"].values()
    tops = {target.partition(".")[0].partition(":")[0] for group in groups for target in group.values()}
    assert tops - PACKAGES == {"wbkv_bench"}  # the development install's, under a name of its own


def test_a_package_benchmarks_of_the_user_is_not_taken_for_ours(tmp_path: Path) -> None:
    theirs = tmp_path / "benchmarks"
    theirs.mkdir()
    for name in ("__init__", "command"):
        (theirs / f"{name}.py").write_text("print('imported by mistake')\n")

    def wbkv(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-c", INSTALLED, *arguments],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    done = wbkv("bench", "delays")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("wbkv: bench belongs to the development install: ")
    offered = wbkv("--help").stdout
    assert "  sim " in offered
    assert "bench" not in offered
    assert "mistake" not in offered
