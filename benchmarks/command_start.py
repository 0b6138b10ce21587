"""How long `wbkv get` takes, from the start of its process to the end, against a local cluster.

In turns with what the interpreter and the packages take of it. Bytecode is kept, as that of an installed
package is.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.record import Benchmark, Figure
from kvstore.local.cluster import LocalCluster

WBKV = str(Path(sys.executable).with_name("wbkv"))
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "python -c 'import grpc'": (sys.executable, "-c", "import grpc"),
    "python -c 'import wbkv'": (sys.executable, "-c", "import wbkv"),
    "wbkv put": (WBKV, "put", "alice", "100"),
    "wbkv get": (WBKV, "get", "alice"),
}


def measure(sizes: Any) -> Iterator[Figure]:
    """All commands in turns."""
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder) / "cluster", 3, 3) as cluster:
        environment = {
            **os.environ,
            "WBKV_ENDPOINTS": ",".join(cluster.addresses),
            "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for command in COMMANDS.values():
            run(command, environment)
        walls: dict[str, list[float]] = {name: [] for name in COMMANDS}
        cpus: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(sizes.rounds):
            for name, command in COMMANDS.items():
                before, started = used(), time.perf_counter()
                run(command, environment)
                walls[name].append(1e3 * (time.perf_counter() - started))
                cpus[name].append(1e3 * (used() - before))
    for name in COMMANDS:
        yield Figure.of(f"`{name}`", "ms", walls[name])
        yield Figure.of(f"`{name}`: CPU", "ms", cpus[name])


def run(command: tuple[str, ...], environment: dict[str, str]) -> None:
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=60)  # noqa: S603 - ours


def used() -> float:
    """CPU time of the processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


BENCHMARK = Benchmark("command_start", "client", __doc__, measure, {"rounds": (10, 1)})

if __name__ == "__main__":
    BENCHMARK.main()
