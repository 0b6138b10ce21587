"""Which Python `make` installs into."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[3] / "clients/tools/find_python.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("find_python", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OURS, THEIRS, NEWER, OLDER = "/ours/python3", "/usr/bin/python3", "/usr/bin/python3.14", "/usr/bin/python3.10"


@pytest.mark.parametrize(
    ("theirs_s", "chosen"),
    [(0.8, THEIRS), (0.99, OURS), (1.2, OURS)],
    ids=["clearly faster", "about the same", "slower"],
)
def test_the_default_is_kept_unless_another_build_is_clearly_faster(theirs_s: float, chosen: str) -> None:
    found = [(OURS, (3, 11, 7), 1.0), (THEIRS, (3, 11, 2), theirs_s), (NEWER, (3, 14, 0), 0.1)]
    found.append((OLDER, (3, 10, 2), 0.1))
    assert load().choose(found) == chosen, "a newer or older one may lack packages"


def test_a_python_that_cannot_be_used_is_passed_over(tmp_path: Path) -> None:
    module = load()
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert module.probe(str(broken)) is None
    assert module.probe(str(tmp_path / "missing")) is None
    version, took_s = module.probe(sys.executable)
    assert version == sys.version_info[:3]
    assert took_s > 0


def test_it_prints_one_path_that_runs() -> None:
    done = subprocess.run([sys.executable, PATH], capture_output=True, text=True, check=True)  # noqa: S603
    path = done.stdout.strip()
    subprocess.run([path, "-c", "import venv"], check=True)  # noqa: S603
    assert path in done.stderr
