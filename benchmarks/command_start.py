"""How long `wbkv get` takes, from the start of its process to the end, against a local cluster.

In turns with what the interpreter and the packages take of it. Bytecode is kept, as that of an installed
package is.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster

WBKV = str(Path(sys.executable).with_name("wbkv"))
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "python -c 'import grpc'": (sys.executable, "-c", "import grpc"),
    "python -c 'import wbkv'": (sys.executable, "-c", "import wbkv"),
    "wbkv put": (WBKV, "put", "alice", "100"),
    "wbkv get": (WBKV, "get", "alice"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder) / "cluster", 3, 3) as cluster:
        address = cluster.config.nodes[NodeId("n1")].api
        assert address is not None
        environment = {**os.environ, "WBKV_ENDPOINTS": address, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for command in COMMANDS.values():
            run(command, environment)
        walls: dict[str, list[float]] = {name: [] for name in COMMANDS}
        cpus: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                before, started = used(), time.perf_counter()
                run(command, environment)
                walls[name].append(time.perf_counter() - started)
                cpus[name].append(used() - before)
    print(f"{rounds} rounds in turns; seconds of wall and CPU time: best, median")
    for name in COMMANDS:
        wall, cpu = walls[name], cpus[name]
        print(
            f"{name:24}  wall {min(wall):.3f} {statistics.median(wall):.3f}  "
            f"CPU {min(cpu):.3f} {statistics.median(cpu):.3f}"
        )


def run(command: tuple[str, ...], environment: dict[str, str]) -> None:
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=60)  # noqa: S603 - ours


def used() -> float:
    """CPU time of the processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
