"""Read and write the configuration of a cluster: one TOML file, which every node reads.

    [cluster]
    id = "3f0c9a"
    secret = "9c56...e1"         # 64 hexadecimal digits that authenticate nodes: keep this file private
    protocol = "whitebox"        # any of `multicast.PROTOCOLS` or `VARIANTS`; whitebox if left out
    durability = "fsync"         # or "os": acknowledge before the disk has it
    clock = "hybrid"             # or "logical": timestamps that do not follow the time of day

    [store]                      # limits and placement, which cannot be changed; and:
    keep_history = "1d"          # how long leaders keep history: "90s", "15m", "12h", "1d", or "forever"

    [timing]                     # fields of `multicast.Timing`; those left out keep their defaults
    election_s = 0.8

    [nodes.n1]
    address = "127.0.0.1:7101"
    data = "n1"                  # relative to this file's folder, or absolute
    incarnation = "5e1f20c4a7b3996d"
    region = "eu"                # optional, for [delays]

    [groups.0]
    members = ["n1", "n2", "n3"]

    [delays]                     # one-way, in ms, between nodes or regions: to emulate a wide area
    "eu-us" = 40                 # holds both ways, unless "us-eu" is there too

    [disk]
    scrub_hours = 6              # how long a node takes to read all rows of its state once; 0: never

    [trace]
    deliveries = "traces"        # a folder where nodes record what they deliver; without one, they do not

A node's `incarnation` is that of its first disk, written when the cluster is created. A node that finds
another disk than this, or none, is not the member that the groups began with, and asks to replace it. A node
in no group has no incarnation: it may replace another node's replicas later.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final, cast

from kvstore.config.addresses import NodeId
from kvstore.config.checks import (
    LIMITS_MAX,
    TIMING_TYPES,
    ConfigError,
    Durability,
    show,
    show_key,
    suggestion,
)
from kvstore.config.history import FOREVER, KEEP_KEYS, KeepHistory
from kvstore.config.model import SCRUB_HOURS, Config, NodeConfig, StoreConfig
from kvstore.config.private import open_private
from kvstore.config.secret import Secret
from kvstore.machine.request import Limits
from multicast.errors import InvalidArgument
from multicast.protocol import Timing
from multicast.types import GROUPS_MAX, GroupId


def load_config(path: Path | str) -> Config:
    """Read and check the file. Raises `ConfigError`, which names the line where that is known."""
    path = Path(path)
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(error.strerror or str(error), where=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8: {error.reason} at byte {error.start}", where=str(path)) from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}", where=str(path)) from None
    try:
        return _read(document, path.absolute().parent)
    except ConfigError as error:
        line = _line(text, error.keys)
        where = str(path) if line is None else f"{path}, line {line}"
        raise ConfigError(error.problem, error.keys, where) from None


def dump_config(config: Config, path: Path | str) -> None:
    """Write a file from which `load_config` returns an equal configuration: durably, and all or nothing."""
    path = Path(path)
    text = _write(config).encode()
    new = path.with_name(path.name + ".new")
    with open(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# Reading


class _Table:
    """One table of the file: returns its values by type, and rejects unknown keys."""

    def __init__(self, value: object, keys: tuple[str, ...], allowed: Iterable[str] | None = None) -> None:
        if not isinstance(value, dict):
            raise ConfigError(f"must be a table, not {show(value)}", keys)
        self.values: dict[str, Any] = value
        self.keys = keys
        allowed = value if allowed is None else list(allowed)
        for key in value:
            if key not in allowed:
                raise ConfigError(f"unknown key{suggestion(key, allowed)}", (*keys, key))

    def table(self, key: str, allowed: Iterable[str] | None = None, *, required: bool = False) -> _Table:
        if required and key not in self.values:
            raise ConfigError("missing", (*self.keys, key))
        return _Table(self.values.get(key, {}), (*self.keys, key), allowed)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if value is None:
            raise ConfigError("missing", (*self.keys, key))
        if not isinstance(value, str):
            raise ConfigError(f"must be a string, not {show(value)}", (*self.keys, key))
        return value

    def number(self, key: str) -> float:
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
            raise ConfigError(f"must be a number, not {show(value)}", (*self.keys, key))
        return value


def _read(document: dict[str, Any], directory: Path) -> Config:
    top = _Table(document, (), ("cluster", "store", "timing", "nodes", "groups", "delays", "disk", "trace"))
    keys = ("id", "secret", "protocol", "durability", "application", "clock")
    cluster = top.table("cluster", keys, required=True)
    delays = top.table("delays")
    disk = top.table("disk", ("scrub_hours",))
    trace = top.table("trace", ("deliveries",))
    store = top.table("store", ("placement", "splits", *LIMITS_MAX, *KEEP_KEYS))
    nodes = top.table("nodes", required=True)
    groups = top.table("groups", required=True)
    return Config(
        id=cluster.text("id"),
        nodes={NodeId(name): _read_node(nodes, name) for name in nodes.values},
        groups=dict(_read_group(groups, name) for name in groups.values),
        protocol=cluster.text("protocol", "whitebox"),
        durability=cast(Durability, cluster.text("durability", "fsync")),  # `Config` checks it
        application=cluster.text("application", "store"),
        clock=cluster.text("clock", "hybrid"),
        store=_read_store(store),
        keep_history=_read_keep_history(store),
        timing=_read_timing(top.table("timing", TIMING_TYPES)),
        delays_ms={key: delays.number(key) for key in delays.values},
        scrub_hours=disk.number("scrub_hours") if disk.values else SCRUB_HOURS,
        trace=trace.text("deliveries") if trace.values else None,
        secret=_read_secret(cluster),
        directory=directory,
    )


def _read_secret(cluster: _Table) -> Secret:
    """Return the secret. No error shows a value that may be one."""
    keys = (*cluster.keys, "secret")
    found = cluster.values.get("secret")
    if found is None:
        remedy = "add the same 64 hexadecimal digits to the file of every node: `openssl rand -hex 32`"
        raise ConfigError(f"missing; nodes authenticate each other by it: {remedy}", keys)
    try:
        return Secret(found if isinstance(found, str) else "")
    except ValueError as error:
        raise ConfigError(f"the value (not shown) is {error}", keys) from None


def _read_node(nodes: _Table, name: str) -> NodeConfig:
    node = nodes.table(name, [item.name for item in fields(NodeConfig)])
    incarnation = node.text("incarnation", "") or None
    if incarnation is not None and not re.fullmatch("[0-9A-Fa-f]{1,16}", incarnation):
        raise ConfigError(f"{show(incarnation)} is not a hexadecimal number", (*node.keys, "incarnation"))
    region = node.text("region") if "region" in node.values else None
    number = None if incarnation is None else int(incarnation, 16)
    api = node.text("api") if "api" in node.values else None
    return NodeConfig(node.text("address"), node.text("data"), number, region, api)


def _read_store(store: _Table) -> StoreConfig:
    splits = store.values.get("splits", [])
    if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
        raise ConfigError(f"must be a list of keys, not {show(splits)}", ("store", "splits"))
    limits = {key: store.number(key) for key in LIMITS_MAX if key in store.values}
    for key, value in limits.items():
        if not isinstance(value, int):
            raise ConfigError(f"must be a whole number, not {show(value)}", ("store", key))
    found = Limits(**limits)  # type: ignore[arg-type]  # whole numbers
    return StoreConfig(store.text("placement", "hashed"), tuple(splits), found)


def _read_keep_history(store: _Table) -> KeepHistory:
    size = store.values.get("keep_history_bytes")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise ConfigError(f"must be a whole number, not {show(size)}", ("store", "keep_history_bytes"))
    return KeepHistory.read(store.values.get("keep_history", FOREVER), size)


def _read_group(groups: _Table, name: str) -> tuple[GroupId, tuple[NodeId, ...]]:
    if not re.fullmatch("0|[1-9][0-9]{0,5}", name):
        raise ConfigError(f"{show(name)} is not a group id: they are 0..{GROUPS_MAX - 1}", ("groups", name))
    group = groups.table(name, ("members",))
    members = group.values.get("members")
    if not isinstance(members, list) or not all(isinstance(member, str) for member in members):
        problem = "missing" if members is None else f"must be a list of nodes, not {show(members)}"
        raise ConfigError(problem, (*group.keys, "members"))
    return GroupId(int(name)), tuple(NodeId(member) for member in members)


def _read_timing(timing: _Table) -> Timing:
    found: dict[str, Any] = {}
    for key in timing.values:
        value = timing.number(key)
        if TIMING_TYPES[key] is int and not isinstance(value, int):
            raise ConfigError(f"must be a whole number, not {show(value)}", ("timing", key))
        found[key] = value
    try:
        return Timing(**found)
    except InvalidArgument as error:
        # The message begins with the name of the wrong field.
        key = str(error).split()[0]
        raise ConfigError(str(error), ("timing", key) if key in found else ("timing",)) from None


_PART: Final = r"""(?:"[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
_DOTTED: Final = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER: Final = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]")
_ASSIGNED: Final = re.compile(rf"\s*({_DOTTED})\s*=")


def _line(text: str, keys: tuple[str, ...]) -> int | None:
    """Return the line of a key, or else of the table it should be in. None rather than a guess."""
    if '"""' in text or "'''" in text:
        return None
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = _parts(header[1])
            lines.setdefault(table, number)
        elif assigned := _ASSIGNED.match(line):
            lines.setdefault((*table, *_parts(assigned[1])), number)
    return next((lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in lines), None)


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))


# Writing


def _write(config: Config) -> str:
    """Return the text of the whole file."""
    lines = ["[cluster]"]
    lines += [f"id = {show(config.id)}", f"secret = {show(config.secret.reveal())}"]
    keys = ("protocol", "durability", "application", "clock")
    lines += [f"{key} = {show(getattr(config, key))}" for key in keys]
    lines += _write_store(config.store, config.keep_history)
    plain = Timing()
    changed = [name for name in TIMING_TYPES if getattr(config.timing, name) != getattr(plain, name)]
    if changed:
        lines += ["", "[timing]", *(f"{name} = {show(getattr(config.timing, name))}" for name in changed)]
    for name, node in config.nodes.items():
        lines += ["", f"[nodes.{show_key(name)}]", f"address = {show(node.address)}"]
        lines.append(f"data = {show(node.data)}")
        lines += [] if node.incarnation is None else [f'incarnation = "{node.incarnation:016x}"']
        lines += [] if node.region is None else [f"region = {show(node.region)}"]
        lines += [] if node.api is None else [f"api = {show(node.api)}"]
    for group, members in sorted(config.groups.items()):
        lines += ["", f"[groups.{group}]", f"members = [{', '.join(map(show, members))}]"]
    if config.delays_ms:
        lines += ["", "[delays]", *(f"{show_key(key)} = {show(ms)}" for key, ms in config.delays_ms.items())]
    if config.scrub_hours != SCRUB_HOURS:
        lines += ["", "[disk]", f"scrub_hours = {show(config.scrub_hours)}"]
    if config.trace is not None:
        lines += ["", "[trace]", f"deliveries = {show(config.trace)}"]
    return "\n".join(lines) + "\n"


def _write_store(store: StoreConfig, keep: KeepHistory) -> list[str]:
    plain = Limits()
    lines = [] if store.placement == "hashed" else [f"placement = {show(store.placement)}"]
    lines += [f"splits = [{', '.join(map(show, store.splits))}]"] if store.splits else []
    for name, value in asdict(store.limits).items():
        lines += [] if value == getattr(plain, name) else [f"{name} = {value}"]
    lines += [] if keep.seconds is None else [f"keep_history = {show(keep.shown)}"]
    lines += [] if keep.bytes is None else [f"keep_history_bytes = {keep.bytes}"]
    return ["", "[store]", *lines] if lines else []
