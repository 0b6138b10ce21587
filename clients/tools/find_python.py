"""Print the Python to install into: the default one, or a faster build of the same version on this machine.

Distributions build Python with profile-guided optimisation, version managers often without. How it was built
is not recorded reliably, so a loop of calls and look-ups is timed. The default (`python3`) is kept unless
another of the same minor version is clearly faster and can make virtual environments. (All pinned packages
can be installed in every patch release of Python 3.11; distributions backport fixes.) If the
default is too old, others are taken. Everything but the path goes to stderr.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

LEAST: Final = (3, 11)
WORTH: Final = 1.08
"""How many times as fast another Python must be to be preferred to the default."""

PROBE: Final = """
import ensurepip, json, sys, time, venv

class Item:
    __slots__ = ("value",)
    def __init__(self, value):
        self.value = value
    def get(self):
        return self.value

def work():
    seen = {}
    for number in range(40000):
        key = Item(number).get() & 255
        seen[key] = seen.get(key, 0) + isinstance(key, int)

best = 9.0
for _ in range(9):
    began = time.process_time()
    work()
    best = min(best, time.process_time() - began)
print(json.dumps([sys.version_info[:3], best]))
"""


def candidates() -> Iterator[str]:
    """Yield the default Python, then others by their usual names, each executable once."""
    seen = set()
    versions = [f"python3.{minor}" for minor in range(11, 20)]
    folders = [None, "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"]
    for name in ["python3", *versions]:
        for folder in folders:
            path = shutil.which(name, path=folder)
            if path is not None and os.path.realpath(path) not in seen:
                seen.add(os.path.realpath(path))
                yield path


def probe(path: str) -> tuple[tuple[int, ...], float] | None:
    """Return the version and the time of a Python; None if it cannot be used."""
    try:
        done = subprocess.run(  # noqa: S603 - a Python of this machine
            [path, "-I", "-c", PROBE], capture_output=True, text=True, timeout=20, check=True
        )
        version, took_s = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return (tuple(version), took_s) if tuple(version) >= LEAST else None


def choose(found: list[tuple[str, tuple[int, ...], float]]) -> str:
    """Return the first Python; or the fastest of the same minor version, if that is clearly faster."""
    first, version, first_s = found[0]
    alike = [(took_s, path) for path, other, took_s in found if other[:2] == version[:2]]
    took_s, path = min(alike)
    return path if first_s > WORTH * took_s else first


def main() -> int:
    """Print the choice; return 1 if there is no Python that is recent enough."""
    found = [(path, *probed) for path in candidates() if (probed := probe(path)) is not None]
    if not found:
        sys.stderr.write("wbkv needs Python 3.11 or later with the module venv; set PYTHON=...\n")
        return 1
    chosen = choose(found)
    shown = ", ".join(f"{path} {'.'.join(map(str, v))} ({s * 1000:.1f} ms)" for path, v, s in found)
    sys.stderr.write(f"using {chosen} of {shown}\n" if len(found) > 1 else f"using {chosen}\n")
    sys.stdout.write(chosen + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
