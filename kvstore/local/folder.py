"""The folder of a local cluster or an embedded store: its contents, and the process that uses it.

The process that runs the cluster holds a lock on `cluster.lock`, which the kernel releases however that
process ends. A supervisor that other processes may ask to stop writes `cluster.pid`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvstore.config.checks import ConfigError
from kvstore.config.model import Config
from kvstore.config.private import make_private, open_private, tighten
from kvstore.local.supervise import ClusterError

CONFIG, LOCK, PID = "cluster.toml", "cluster.lock", "cluster.pid"


def lock(data: Path) -> int:
    """Lock a folder, which must hold a cluster or be empty; return the lock's file descriptor."""
    if data.exists() and not data.is_dir():
        raise ConfigError(f"{data} is not a folder")
    if not data.parent.is_dir():
        raise ConfigError(
            f"there is no folder {data.parent} to hold {data.name}: create it, or correct the path"
        )
    if data.exists() and not (data / LOCK).exists() and not (data / CONFIG).exists():
        check_empty(data)  # before the lock is created there
    make_private(data)
    held = open_private(data / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(held, 20, 0).decode(errors="replace")
        os.close(held)
        found = supervisor(data)
        if found:
            raise ClusterError(f"a cluster is up in {data} already (process {found})") from None
        raise ClusterError(f"{data} is in use already, by process {owner or 'unknown'}") from None
    os.ftruncate(held, 0)
    os.pwrite(held, str(os.getpid()).encode(), 0)
    tighten(data, [path for pattern in ("cluster.*", "*.log*", "*.sock") for path in data.glob(pattern)])
    return held


def check_empty(data: Path) -> None:
    """Raise `ConfigError` if the folder has files that are not a cluster's."""
    present = set(os.listdir(data)) - {LOCK}
    if present:
        raise ConfigError(f"{data} is not empty, and not a cluster: it has {min(present)} but no {CONFIG}")


def compare(file: Path, config: Config, wanted: Mapping[str, object]) -> None:
    """Raise `ConfigError` if an existing cluster differs from what is wanted."""
    sizes = sorted({len(members) for members in config.groups.values()})
    found: Mapping[str, object] = {
        "nodes": len(config.nodes),
        "partitions": len(config.groups),
        "replicas": sizes[0] if len(sizes) == 1 else sizes,
        "protocol": config.protocol,
        "durability": config.durability,
        "application": config.application,
        "clock": config.clock,
        "store": config.store,
        "timing": config.timing,
        "regions": {name: node.region for name, node in config.nodes.items() if node.region is not None},
        "delays_ms": config.delays_ms,
        "groups": [list(members) for _, members in sorted(config.groups.items())],
    }
    for name, value in wanted.items():
        if value is not None and value != found[name]:
            raise ConfigError(f"{file} is of a cluster with {name} {found[name]}, not {value}")


@contextlib.contextmanager
def pid_file(data: Path) -> Iterator[None]:
    """Announce, for the context, that this process runs the cluster, and stops it at a SIGTERM."""
    file = data / PID
    new = file.with_suffix(".new")
    with open(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as written:
        json.dump({"pid": os.getpid(), "started": started_at(os.getpid())}, written)
    new.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def supervisor(data: Path) -> int | None:
    """Return the process that runs the cluster of this folder; None if the pid file is missing or stale."""
    try:
        found = json.loads((data / PID).read_text())
        pid, started = int(found["pid"]), str(found["started"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return pid if started_at(pid) == started else None


def started_at(pid: int) -> str | None:
    """Return when a process began, in ticks of this boot: unique, with its id. None if it has ended."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The second field is the command's name, in brackets, with any characters.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else f"{boot}/{rest[18]}"


def check_cluster(data: Path) -> None:
    """Raise `ConfigError` if there is no cluster in the folder."""
    if not (data / CONFIG).exists():
        raise ConfigError(f"{data} holds no cluster: there is no {CONFIG}")


def is_locked(data: Path) -> bool:
    """Return whether a process runs the cluster of the folder."""
    try:
        found = os.open(data / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(found)
    return False
