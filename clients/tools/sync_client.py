"""Generate the client for threads, `wbkv/NAME.py`, from the one for event loops, `wbkv/aio/NAME.py`.

Run `make sync-client` after a change of `wbkv.aio`; a test checks the committed result. `RULES` replace
words, and `TEXTS` replaces texts that differ between threads and event loops. Code that works differently
(waiting with a limit, repeating in the background, gRPC) is written by hand, in `wbkv.links`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

WBKV: Final = Path(__file__).resolve().parents[1] / "wbkv"
MODULES: Final = ("client", "connect", "iterators", "lock", "table", "transaction")
HEADER: Final = (
    "# Generated from aio/{}.py by clients/tools/sync_client.py (`make sync-client`): do not edit.\n"
)

RULES: Final = (
    (r"from wbkv\.aio\.forgotten import .*\n", ""),
    (r"\(Async(?:With|For)Only\)", ""),
    (r"\bAsync(?:With|For)Only, ", ""),
    (r"\ban (?=`async )", "a "),
    (r"\basync (?=def|for|with)\b", ""),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\baclosing\b", "closing"),
    (r"\bStopAsync", "Stop"),
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bwbkv\.aio\.", "wbkv."),
    (r"\bevent loops\b", "threads"),
    (r"(?<=[._ ])task(s?)\b", r"thread\1"),
)
"""Patterns that are replaced everywhere, in this order."""

TEXTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "client": (
        (
            "`wbkv.client`, the client for threads, is generated from this module.",
            "`wbkv.aio` has the same names, awaited.",
        ),
        ("It belongs to one event loop.", "Any number of threads may use it."),
        ("from wbkv.codecs import", "from wbkv.batching import Batch\nfrom wbkv.codecs import"),
        (
            "    # History\n",
            '''\
    def batch(self) -> Batch[V]:
        """Make many calls at once on one stream to each node: each returns a `concurrent.futures.Future`."""
        return Batch(self._requests, self._link.in_loop)

    # History
''',
        ),
    ),
    "connect": (
        (" `wbkv.connect`, for threads, is generated from this module.", ""),
        (" Await it, or use it in an\n    `async with` block.", ""),
    ),
    "iterators": (("\n`wbkv.iterators`, for threads, is generated from this module.\n", ""),),
    "table": ((" `wbkv.table`, for threads, is generated from this module.", ""),),
    "transaction": ((" `wbkv.transaction`, for threads, is generated from this module.", ""),),
    "lock": ((" `wbkv.lock`, for threads, is generated from this module.", ""),),
}
"""Texts of one module that are replaced once, before the rules. They also add what only threads have."""

FIXES: Final = "D202,F401,I,UP028"
"""Ruff's rules that finish the work: blank lines, unused imports, their order, `yield from` for a loop."""


def generate(name: str, source: str) -> str:
    """Return the module for threads that belongs to the source of one for event loops."""
    source = _without_openings(source)
    for text, other in TEXTS[name]:
        if source.count(text) != 1:
            raise ValueError(f"aio/{name}.py has {source.count(text)} times, not once: {text!r}")
        source = source.replace(text, other)
    for pattern, other in RULES:
        source = re.sub(pattern, other, source)
    fixed = _ruff(name, HEADER.format(name) + source, "check", "--fix", "--unsafe-fixes", "--select", FIXES)
    return _ruff(name, fixed, "format")


def _without_openings(source: str) -> str:
    """Replace `async def f(): BODY` and `return Opening(f)` by BODY, and the type `Opening[T]` by `T`."""
    lines = source.splitlines(keepends=True)
    for node in reversed(list(ast.walk(ast.parse(source)))):
        if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
            inner, last = node.body[-2:]
            if isinstance(inner, ast.AsyncFunctionDef) and ast.unparse(last).startswith("return Opening("):
                body = lines[inner.body[0].lineno - 1 : inner.end_lineno]
                lines[inner.lineno - 1 : last.end_lineno] = [line.removeprefix("    ") for line in body]
    return re.sub(r"\bOpening\[(.*)\](?=:| )", r"\1", "".join(lines))


def _ruff(name: str, source: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "-q", "--stdin-filename", f"{WBKV}/{name}.py", "-"]
    return subprocess.run(command, input=source, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603 - ours


def main() -> None:
    """Write all modules."""
    for name in MODULES:
        source = (WBKV / "aio" / f"{name}.py").read_text(encoding="utf-8")
        (WBKV / f"{name}.py").write_text(generate(name, source), encoding="utf-8")


if __name__ == "__main__":
    main()
