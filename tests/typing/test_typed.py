"""Users of the client see no `Any`: a program with all of it passes the strictest checks there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
HERE = Path(__file__).parent


def test_a_program_with_the_whole_api(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = True\nwarn_unreachable = True\ndisallow_any_expr = True\n"
        "disallow_any_decorated = True\ndisallow_any_explicit = True\ndisallow_any_unimported = True\n"
        "explicit_package_bases = True\nmypy_path = .:clients:proto\nfollow_imports = silent\n"
    )
    files = [str(HERE / name) for name in ("whole_api.py", "user_program.py", "wrong_uses.py")]
    options = ["--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    checked = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "mypy", *options, *files],
        capture_output=True, text=True, timeout=300, cwd=HERE.parent.parent, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
