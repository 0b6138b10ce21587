"""Commands of nodes and clients that are watched: each begins to watch itself, then does its own work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_NODE: Final = """
import sys
from pathlib import Path
from benchmarks.profiling import {module}
{module}.watch(Path(sys.argv[1]))
from kvstore.commands.serve import main
sys.exit(main(sys.argv[2:]))
"""

_CLIENT: Final = """
import sys
from pathlib import Path
from benchmarks.profiling import {module}
{module}.watch(Path(sys.argv[1]))
from benchmarks.comparison.client import main
main()
"""


def node(module: str, folder: Path) -> list[str]:
    """Return the command of a node that is watched by a module of this package."""
    return [sys.executable, "-P", "-c", _NODE.format(module=module), str(folder)]


def client(module: str, folder: Path) -> list[str]:
    """Return the command of a client process that is watched by a module of this package."""
    return [sys.executable, "-P", "-c", _CLIENT.format(module=module), str(folder)]
