"""The machine is a function of its inputs: it imports nothing that could make it anything else."""

from __future__ import annotations

import ast
from pathlib import Path

import kvstore.machine

ALLOWED = {
    "__future__",
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "msgspec",
    "msgspec.structs",
    "multicast.errors",
    "multicast.types",
    "operator",
    "re",
    "sortedcontainers",
    "struct",
    "types",
    "typing",
    "zlib",
}


def test_it_imports_neither_clocks_nor_chance_nor_io() -> None:
    files = sorted(Path(kvstore.machine.__path__[0]).glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name in ALLOWED or name.startswith("kvstore.machine"), f"{file.name} imports {name}"
