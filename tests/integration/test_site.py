"""The documentation's site: it builds without warnings, fetches nothing, and is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from kvstore.config.checks import LIMITS_MAX
from kvstore.config.toml import load_config
from kvstore.machine.request import Limits
from multicast.protocol import Timing
from tests.integration.pages import blocks
from tests.tree import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(  # noqa: S603 - our own site
        [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_readers_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?([^\"' >]+)", text)
        fetched += [
            found[1]
            for found in re.finditer(r"<link[^>]*\shref=[\"']?([^\"' >]+)[^>]*>", text)
            if "canonical" not in found[0]
        ]
        assert not [address for address in fetched if "//" in address], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()), style


CONFIGURATION = ROOT / "docs" / "reference" / "configuration.md"


def test_the_configuration_shown_is_one(tmp_path: Path) -> None:
    (shown,) = blocks(CONFIGURATION)
    (tmp_path / "cluster.toml").write_text(shown.text.replace("64 hexadecimal digits", "5e" * 32))
    assert load_config(tmp_path / "cluster.toml").timing.election_s == 0.8


def test_the_configuration_page_has_every_setting_and_its_default() -> None:
    page = CONFIGURATION.read_text()
    limits = Limits()
    for name, most in LIMITS_MAX.items():
        assert f"| `{name}` | {getattr(limits, name)} | {most} |" in page
    timing = Timing()
    for field in fields(Timing):
        default = getattr(timing, field.name)
        row = rf"^\|.*`{field.name}`.*\|.*\b{re.escape(str(default))}\b.*\|"
        assert re.search(row, page, re.MULTILINE), field.name
