"""The manual of the ordering library, in its package's docstring: the host in it runs as printed."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import multicast


def test_the_host_of_the_manual_runs() -> None:
    assert doctest.testmod(multicast, raise_on_error=True).attempted > 10


def test_the_manual_names_what_exists() -> None:
    manual = multicast.__doc__ or ""
    root = Path(multicast.__file__).parent
    listed = manual.split("**Where to look**")[1].split("**How to add")[0]
    modules = set(re.findall(r"`(\w+)`", listed))
    found = {path.stem for path in root.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules == found - {"__init__", "errors"}
    for path in re.findall(r"`(tests/\S+\.py)`", manual):
        assert (root.parent / path).exists(), path
