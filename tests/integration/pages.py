"""Run the blocks of a page of the documentation.

Every block of Python or shell is run, in the order of the page, unless a comment `<!-- not run: why -->`
precedes it. Blocks of Python share their names. A `text` block is the expected output of the block before it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstore.local.cluster import down
from kvstore.local.supervise import ClusterError

BIN = Path(sys.executable).parent
USUAL = "127.0.0.1:7400"
_BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    """The line number of its first line."""
    language: str
    text: str
    skipped: bool

    def __str__(self) -> str:
        return f"{self.page.name}, line {self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(3)) + 1
        yield Block(page, line, found[2], found[3], bool(found[1]))


def run(page: Path, names: dict[str, Any], folder: Path, address: str) -> int:
    """Run a page in a folder, its Python with these names; return the number of blocks run.

    The page's cluster, whether it is up or the page starts it, is at this address instead of `USUAL`.
    """
    said: str | None = None
    count = 0
    for block in blocks(page):
        if block.language == "text":
            assert said is not None, f"{block}: nothing has been run that could have printed this"
            assert said == block.text, f"{block}: printed was {said!r}"
        elif block.language == "python" and not block.skipped:
            said = run_python(block, names, address)
            count += 1
        elif block.language == "sh" and not block.skipped:
            said = run_shell(block, folder, address)
            count += 1
        else:
            said = None
    return count


def run_python(block: Block, names: dict[str, Any], address: str) -> str:
    """Run a block; return its output. Tracebacks show the page's own lines."""
    text = block.text.replace(USUAL, address)
    code = compile("\n" * (block.line - 1) + text, str(block.page), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)  # noqa: S102 - our own page
    return printed.getvalue()


def run_shell(block: Block, folder: Path, address: str) -> str:
    """Run a block with the commands of this environment; return its output."""
    port = address.rpartition(":")[2]
    text = block.text.replace(".venv/bin/", "").replace("wbkv up ", f"wbkv up --api-port {port} ")
    done = subprocess.run(  # noqa: S603 - our own page
        ["/bin/bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "WBKV_ENDPOINTS": address},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{block}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def stop_clusters(folder: Path) -> None:
    """Stop the clusters that a page has started in a folder and, since it failed, has not stopped."""
    for found in folder.glob("*/cluster.toml"):
        with contextlib.suppress(ClusterError):  # that it is not up
            down(found.parent)


if __name__ == "__main__":  # by itself: in an environment that lacks what tests need
    run(Path(sys.argv[1]), {}, Path(sys.argv[2]), sys.argv[3])
