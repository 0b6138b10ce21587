"""The SDK's reference in docs/reference is generated, and complete."""

from __future__ import annotations

import pytest
import wbkv
from tools.reference import FOLDER, PAGES, page


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_what_is_committed_is_what_is_generated(name: str) -> None:
    assert page(text_of(name)) == text_of(name), "run `make reference`"


def test_everything_exported_is_in_the_reference() -> None:
    shown = "".join(map(text_of, PAGES))
    modules = {"codecs", "testing"}  # of which the parts are there
    for name in set(wbkv.__all__) - modules - {"aio"}:
        assert f"### `wbkv.{name}`\n" in shown, name
    for name in modules | {f"aio.{name}" for name in wbkv.aio.__all__}:
        assert f"### `wbkv.{name}" in shown, name


def test_what_is_generated_follows_the_source() -> None:
    found = page("<!-- reference: wbkv.minimum -->\nold\n<!-- end -->")
    assert found.startswith(
        "<!-- reference: wbkv.minimum -->\n\n### `wbkv.minimum`\n\n```py\ndef minimum(key: Key, operand: int"
    )
    assert "old" not in found
