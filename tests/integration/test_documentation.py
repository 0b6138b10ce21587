"""Every block of the README, the tutorial and the how-tos does what the page says."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
import wbkv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kvstore.local.cluster import free_ports
from tests.integration.pages import USUAL, blocks, run, stop_clusters
from tests.tree import ROOT
from tests.unit.wbkv.cli.client_only import HIDE

DOCS = ROOT / "docs"
ON_A_CLUSTER = [ROOT / "README.md", DOCS / "api.md"]
"""They use a cluster that is up."""
ON_THEIR_OWN = [DOCS / "index.md", *sorted(DOCS.glob("how-to/*.md"))]
"""They get an embedded store as `client`, and start clusters if they need any."""

IN_A_SMALL_ENVIRONMENT = [DOCS / "tutorial.md"]
"""They need only what `make up` installs."""

IN_SPARK = [DOCS / "pipeline.md"]
"""tests/pipeline runs them, in Spark's session."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder where a page may leave files, and finds the examples as in the repository."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    stop_clusters(tmp_path)


@pytest.fixture(scope="module")
def up() -> Iterator[str]:
    """The address of a cluster that is up."""
    with wbkv.testing.running_cluster() as running:
        yield running.addresses[0]


def first_of_three_ports() -> int:
    """The first of three adjacent ports that are free now."""
    while True:
        first = free_ports(1)[0]
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + 3):
                held.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", port))))
            return first


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", ON_A_CLUSTER, ids=name_of)
def test_a_page_about_a_running_cluster(
    page: Path, up: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBKV_ENDPOINTS", up)
    names: dict[str, Any] = {}
    assert run(page, names, folder, up) > 0
    for name in {"bank", "channel"} & set(names):  # in a reader's shell, they end with it
        names[name].close()


@pytest.mark.parametrize("page", ON_THEIR_OWN, ids=name_of)
def test_a_page_of_its_own(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{first_of_three_ports()}"
    monkeypatch.setenv("WBKV_ENDPOINTS", address)
    with wbkv.open() as client:
        assert run(page, {"client": client}, folder, address) > 0


@pytest.mark.parametrize("page", IN_A_SMALL_ENVIRONMENT, ids=name_of)
def test_a_page_needs_only_what_make_up_installs(page: Path, folder: Path, tmp_path_factory: Any) -> None:
    environment = tmp_path_factory.mktemp("environment")
    hidden = installed_beside("server", "cli")
    assert {"numpy", "pyarrow", "pyspark", "pytest", "rustworkx"} <= hidden
    assert not {"google", "grpc", "lmdb", "rich", "wbkv"} & hidden
    (environment / "sitecustomize.py").write_text(HIDE.format(hidden))
    address = f"127.0.0.1:{first_of_three_ports()}"
    done = subprocess.run(  # noqa: S603 - our own page
        [sys.executable, "-m", "tests.integration.pages", page, folder, address],
        env=os.environ | {"PYTHONPATH": f"{environment}:{ROOT}", "WBKV_ENDPOINTS": address},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def installed_beside(*extras: str) -> set[str]:
    """The packages that can be imported here, but not where only wbkv and these extras are installed."""
    wanted, kept = [("wbkv", extra) for extra in ("", *extras)], set()
    while wanted:
        name, extra = wanted.pop()
        kept.add(name)
        for required in map(Requirement, requires(name) or ()):
            if required.marker is None or required.marker.evaluate({"extra": extra}):
                found = canonicalize_name(required.name)
                wanted += [(found, more) for more in ("", *required.extras) if found not in kept]
    return {
        package
        for package, homes in packages_distributions().items()
        if not kept & {canonicalize_name(home) for home in homes}
    }


def test_all_pages_that_teach_are_run() -> None:
    taught = {page for page in DOCS.rglob("*.md") if "python" in {block.language for block in blocks(page)}}
    assert taught - {*ON_A_CLUSTER, *ON_THEIR_OWN, *IN_A_SMALL_ENVIRONMENT, *IN_SPARK} == set()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", r"page.md, line 6: printed was '1\\n'"),
        ("```python\nx = 1\n```\n```python\nassert x == 2, 'x is 1'\n```\n", "x is 1"),
        ("```sh\necho no; false\n```\n", "page.md, line 2: status 1\nno"),
        ("```text\n2\n```\n", "nothing has been run"),
    ],
)
def test_a_page_that_is_wrong_is_found(text: str, complaint: str, folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=complaint):
        run(page, {}, folder, USUAL)


def test_a_page_can_show_what_is_not_run(folder: Path) -> None:
    page = folder / "page.md"
    shown = "<!-- not run: it fails -->\n```sh\nfalse\n```\n"
    page.write_text(shown + "```toml\na = 1\n```\n```sh\ntrue\n```\n" + shown)
    assert run(page, {}, folder, USUAL) == 1
