"""The examples, run as people run them: on a cluster, and on a store of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import wbkv

from tests.tree import ROOT

EXAMPLES = ROOT / "examples"
LAST = {
    "bank": "800 in all",
    "change_feed": "nothing missed, nothing counted twice",
    "directory": "the indexes agree with the rows",
    "inventory": "customers were rejected",
    "lock": "was not renewed",
    "work_queue": "all 12 jobs done, each exactly once",
}
"""What each says in the end, when all that it asserts has held."""


@pytest.fixture(scope="module")
def endpoints() -> Iterator[str]:
    """One cluster for all of them: each keeps to keys of its own."""
    with wbkv.testing.running_cluster() as running:
        yield ",".join(running.addresses)


def run(name: str, *arguments: str, **environment: str) -> str:
    """The last line that an example prints."""
    done = subprocess.run(  # noqa: S603 - our own example
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments], env=os.environ | environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", LAST)
def test_an_example_on_a_cluster(name: str, endpoints: str) -> None:
    assert LAST[name] in run(name, WBKV_ENDPOINTS=endpoints)


@pytest.mark.parametrize("name", LAST)
def test_an_example_by_itself(name: str) -> None:
    assert LAST[name] in run(name, "--embedded", WBKV_ENDPOINTS="127.0.0.1:1")


def test_all_examples_are_run_and_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(LAST)
    listed = (EXAMPLES / "README.md").read_text()
    shown = (EXAMPLES.parent / "docs" / "how-to" / "examples.md").read_text()
    for name in LAST:
        assert f"({name}.py)" in listed
        assert f'--8<-- "examples/{name}.py"' in shown
