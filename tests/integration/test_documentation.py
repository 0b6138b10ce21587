"""Every block of the README, the tutorial and the how-tos does what the page says."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wbkv

from kvstore.local.cluster import free_ports
from tests.integration.pages import ROOT, USUAL, blocks, run, stop_clusters

DOCS = ROOT / "docs"
ON_A_CLUSTER = [ROOT / "README.md", DOCS / "api.md"]
"""They are about a cluster that is up."""
ON_THEIR_OWN = [DOCS / "index.md", DOCS / "tutorial.md", *sorted(DOCS.glob("how-to/*.md"))]
"""They are given an embedded store as `client`, and start clusters if they want any."""

IN_SPARK = [DOCS / "pipeline.md"]
"""Run in Spark's session: tests/pipeline."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page may leave files. Its programs are found from there as from the repository."""
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
    """Where a cluster of three may serve: nobody listens there now."""
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
    for name in {"bank", "channel"} & set(names):  # pasted into a shell, they end with that
        names[name].close()


@pytest.mark.parametrize("page", ON_THEIR_OWN, ids=name_of)
def test_a_page_of_its_own(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{first_of_three_ports()}"
    monkeypatch.setenv("WBKV_ENDPOINTS", address)
    with wbkv.open() as client:
        assert run(page, {"client": client}, folder, address) > 0


def test_all_pages_that_teach_are_run() -> None:
    taught = {page for page in DOCS.rglob("*.md") if "python" in {block.language for block in blocks(page)}}
    assert taught - {*ON_A_CLUSTER, *ON_THEIR_OWN, *IN_SPARK} == set()


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
