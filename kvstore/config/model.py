"""The cluster's configuration: one TOML file that every node reads, checked before anything starts.

    [cluster]
    id = "3f0c9a"
    protocol = "whitebox"        # any of `multicast.PROTOCOLS` or `VARIANTS`; whitebox if left out
    durability = "fsync"         # or "os": acknowledge before the disk has it
    clock = "hybrid"             # or "logical": timestamps that do not follow the time of day

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

    [trace]
    deliveries = "traces"        # a folder where nodes record what they deliver; without one, they do not

A node's `incarnation` is that of its first disk, written when the cluster is created. A node that finds
another disk than this, or none, is not the member that the groups began with, and asks to take its place. A
node that is in no group has none: it may take the place of another node's replicas later.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args, get_type_hints

from kvstore.config.addresses import INCARNATION_MAX, NAME, NodeId, new_incarnation, split_address
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import Limits
from multicast import PROTOCOLS, VARIANTS
from multicast.errors import InvalidArgument
from multicast.membership import Configuration
from multicast.protocol import Protocol, Timing
from multicast.topology import Topology
from multicast.types import GROUPS_MAX, GroupId, ReplicaId

Durability: TypeAlias = Literal["fsync", "os"]
"""What an acknowledgement waits for: the disk, or only the operating system."""

DURABILITY: Final[tuple[Durability, ...]] = get_args(Durability)
DELAY_MAX_MS: Final = 60_000
PORT: Final = 7101
API_PORT: Final = 7400

APPLICATIONS: Final = ("store", "multicast")
CLOCKS: Final = ("hybrid", "logical")
PLACEMENTS: Final = ("hashed", "ordered")

LIMITS_MAX: Final[Mapping[str, int]] = {
    "key_bytes": 4 << 10,
    "value_bytes": 8 << 20,
    "transaction_bytes": 16 << 20,
    "operations": 1 << 16,
    "scan_bytes": 16 << 20,
}
"""The most that limits may be raised to: what frames, and the disk, can hold."""
"""Of the first node of a local cluster, if nobody says otherwise."""

_PROTOCOLS: Final[Mapping[str, type[Protocol]]] = PROTOCOLS | VARIANTS
_TIMING: Final = get_type_hints(Timing)


class ConfigError(ValueError):
    """A configuration that cannot work. The message names the file, the line, the key and what it says."""

    def __init__(self, problem: str, keys: Iterable[str] = (), where: str = "") -> None:
        self.problem = problem
        self.keys = tuple(keys)
        super().__init__(": ".join(filter(None, (where, ".".join(map(_key, self.keys)), problem))))


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Where a node listens, and where it keeps its data."""

    address: str
    data: str
    incarnation: int | None = None
    """Of its first disk, if it is one of the first members of a group."""
    region: str | None = None
    api: str | None = None
    """Where it listens for clients of the store; without one it serves none."""

    @property
    def host(self) -> str:
        """What to listen on, and to connect to."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """What the nodes of a store must agree on. It cannot be changed while there is data."""

    placement: str = "hashed"
    """How keys are placed: by hash slots in equal shares, or in their order, cut at `splits`."""
    splits: tuple[str, ...] = ()
    """With ordered placement, the first keys of the second group, of the third, and so on."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Config:
    """A valid configuration: whoever holds one need not check it again."""

    id: str
    nodes: Mapping[NodeId, NodeConfig]
    groups: Mapping[GroupId, Sequence[NodeId]]
    """The first members of each group; the replica's number is the index."""
    protocol: str = "whitebox"
    durability: Durability = "fsync"
    application: str = "store"
    """What delivered messages mean: "store", or "multicast" for nothing but their order."""
    clock: str = "hybrid"
    """What gives local timestamps: "hybrid" clocks follow the time of day, "logical" ones are the paper's."""
    store: StoreConfig = field(default_factory=StoreConfig)
    timing: Timing = field(default_factory=Timing)
    delays_ms: Mapping[str, float] = field(default_factory=dict)
    """As written, by "FROM-TO"; `delays_s` is what they come to."""
    trace: str | None = None
    """Where nodes record what they deliver, as written; `trace_folder` is the folder."""
    directory: Path = field(default=Path(), compare=False)
    """What relative paths are relative to: the file's folder."""

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def load(cls, path: Path | str) -> Config:
        """Read and check the file. Raises `ConfigError`."""
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

    def dump(self, path: Path | str) -> None:
        """Write a file from which `load` gets this again. It is there as a whole or not at all."""
        path = Path(path)
        text = _write(self).encode()
        new = path.with_name(path.name + ".new")
        with new.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @classmethod
    def local(
        cls,
        nodes: int,
        partitions: int,
        replicas: int,
        data: Path | str,
        *,
        ports: Sequence[int] | None = None,
        api_ports: Sequence[int] | None = None,
        protocol: str = "whitebox",
        durability: Durability = "fsync",
        application: str = "store",
        clock: str = "hybrid",
        store: StoreConfig | None = None,
        timing: Timing | None = None,
        regions: Mapping[str, str] | None = None,
        delays_ms: Mapping[str, float] | None = None,
        groups: Sequence[Sequence[str]] | None = None,
    ) -> Config:
        """A new cluster on this machine: nodes n1, n2, ..., groups 0, 1, ..., with fresh incarnations.

        `groups` has the members of each group (`default_members` if left out), `regions` where nodes are, for
        `delays_ms`.
        """
        for name, number in (("nodes", nodes), ("partitions", partitions), ("replicas", replicas)):
            if number < 1:
                raise ConfigError(f"{name} must be at least 1, not {number}")
        if replicas > nodes and groups is None:
            raise ConfigError(f"{replicas} replicas of a group need as many nodes, not {nodes}")
        members = default_members(nodes, partitions, replicas) if groups is None else groups
        if len(members) != partitions:
            raise ConfigError(f"groups has members of {len(members)} groups, and there are {partitions}")
        names = [NodeId(f"n{number}") for number in range(1, nodes + 1)]
        regions = regions or {}
        for name in regions:
            if name not in names:
                raise ConfigError(f"regions: unknown node {_show(name)}{_instead(name, names)}")
        found = range(PORT, PORT + nodes) if ports is None else ports
        apis: list[str | None] = [None] * nodes
        if application == "store":
            numbers = range(API_PORT, API_PORT + nodes) if api_ports is None else api_ports
            apis = [f"127.0.0.1:{number}" for number in numbers]
        return cls(
            id=secrets.token_hex(8),
            nodes={
                name: NodeConfig(f"127.0.0.1:{port}", name, new_incarnation(), regions.get(name), api)
                for name, port, api in zip(names, found, apis, strict=True)
            },
            groups={GroupId(g): tuple(map(NodeId, each)) for g, each in enumerate(members)},
            protocol=protocol,
            durability=durability,
            application=application,
            clock=clock,
            store=store or StoreConfig(),
            timing=timing or Timing(),
            delays_ms=delays_ms or {},
            directory=Path(data).absolute(),
        )

    def with_node(self, node: NodeId, port: int, api_port: int | None = None) -> Config:
        """The same cluster, with one more node on this machine, in no group yet."""
        api = None if api_port is None else f"127.0.0.1:{api_port}"
        return replace(self, nodes={**self.nodes, node: NodeConfig(f"127.0.0.1:{port}", node, api=api)})

    def moved(self, ports: Sequence[int], api_ports: Sequence[int] | None = None) -> Config:
        """The same cluster on other ports of the same hosts."""
        nodes = {
            name: replace(node, address=_at_port(node.address, port))
            for (name, node), port in zip(self.nodes.items(), ports, strict=True)
        }
        for (name, node), port in zip(nodes.items(), api_ports or (), strict=False):
            if node.api is not None:
                nodes[name] = replace(node, api=_at_port(node.api, port))
        return replace(self, nodes=nodes)

    @property
    def first_placement(self) -> Placement:
        """Which group has which keys, in the beginning."""
        groups = tuple(sorted(self.groups))
        if self.store.placement == "hashed":
            return Placement.evenly(groups)
        starts = (b"", *(split.encode() for split in self.store.splits))
        return Placement(1, Scheme.ORDERED, starts, groups, groups)

    @cached_property
    def topology(self) -> Topology:
        """The groups as the protocol sees them."""
        return Topology({group: self._members(group) for group in self.groups})

    @cached_property
    def placement(self) -> Mapping[ReplicaId, NodeId]:
        """Which node every replica is on."""
        return {
            replica: node
            for group, nodes in sorted(self.groups.items())
            for replica, node in zip(self._members(group), nodes, strict=True)
        }

    def _members(self, group: GroupId) -> list[ReplicaId]:
        return [
            ReplicaId(group, number, self.incarnations[node])
            for number, node in enumerate(self.groups[group])
        ]

    @cached_property
    def incarnations(self) -> Mapping[NodeId, int]:
        """Those of the first disks."""
        found = {name: node.incarnation for name, node in self.nodes.items()}
        return {name: incarnation for name, incarnation in found.items() if incarnation is not None}

    @cached_property
    def addresses(self) -> Mapping[NodeId, tuple[str, int]]:
        """Host and port of every node."""
        return {name: (node.host, node.port) for name, node in self.nodes.items()}

    @cached_property
    def api_addresses(self) -> Mapping[NodeId, tuple[str, int]]:
        """Host and port where clients are served, of every node that serves any."""
        found = {name: node.api and split_address(node.api) for name, node in self.nodes.items()}
        return {name: address for name, address in found.items() if address}

    @property
    def protocol_type(self) -> type[Protocol]:
        """What orders the messages."""
        return _PROTOCOLS[self.protocol]

    @cached_property
    def hash(self) -> bytes:
        """Of everything the nodes must agree on. Time-outs, addresses and paths may differ between them."""
        members = [
            [group, [[node, self.incarnations[node]] for node in nodes]]
            for group, nodes in sorted(self.groups.items())
        ]
        store = [self.application, self.store.placement, self.store.splits, _limits(self.store.limits)]
        agreed = json.dumps([self.id, self.protocol, members, store])
        return hashlib.blake2b(agreed.encode(), digest_size=16).digest()

    def node(self, name: str) -> NodeId:
        """The node of this name. Raises `ConfigError` if there is none."""
        if name not in self.nodes:
            raise ConfigError(f"unknown node {_show(name)}{_instead(name, self.nodes)}")
        return NodeId(name)

    def node_of(self, replica: ReplicaId) -> NodeId:
        """The node that a replica of the first configuration is on."""
        node = self.placement.get(replica)
        if node is None:
            raise InvalidArgument(f"{replica} is not in this cluster")
        return node

    def data(self, node: NodeId) -> Path:
        """The folder of the node's disk."""
        return Path(os.path.normpath(self.directory / self.nodes[node].data))

    def status_socket(self, node: NodeId) -> Path:
        """Where the node says how it is (`status`): beside its disk, which may be gone."""
        return self.data(node).parent / f"{node}.sock"

    @property
    def trace_folder(self) -> Path | None:
        """Where nodes record what they deliver."""
        return None if self.trace is None else Path(os.path.normpath(self.directory / self.trace))

    @cached_property
    def delays_s(self) -> Mapping[tuple[NodeId, NodeId], float]:
        """Emulated one-way delays from node to node; pairs without one are left out.

        What is said of two nodes counts more than what is said of their regions, and what is said of a
        direction more than what is said of the other.
        """
        written = {_ends(self, key): value for key, value in self.delays_ms.items()}
        found = {}
        for a, b in ((a, b) for a in self.nodes for b in self.nodes if a != b):
            for pair in ((x, y) for x in self._called(a) for y in self._called(b)):
                delay = written.get(pair, written.get(pair[::-1]))
                if delay is not None:
                    found[a, b] = delay / 1000
                    break
        return found

    def _called(self, node: NodeId) -> list[str]:
        return [name for name in (node, self.nodes[node].region) if name is not None]


def default_members(nodes: int, partitions: int, replicas: int) -> list[list[str]]:
    """Which nodes are members of which groups, unless somebody says otherwise.

    Group g's preferred leader is node g + 1, counted around, and its other members are the nodes that follow.
    With a replica on every node, all groups list the nodes in the same order.
    """
    return [[f"n{1 + (g + (n - g) % replicas) % nodes}" for n in range(replicas)] for g in range(partitions)]


# Checking what a configuration says


def _check(config: Config) -> None:
    _check_name(config.id, ("cluster", "id"))
    _check_choice(config.protocol, _PROTOCOLS, ("cluster", "protocol"))
    _check_choice(config.durability, DURABILITY, ("cluster", "durability"))
    _check_choice(config.application, APPLICATIONS, ("cluster", "application"))
    _check_choice(config.clock, CLOCKS, ("cluster", "clock"))
    if config.clock == "logical" and config.application == "store":
        # It forgets clients by the time since their revisions, and judges what revisions can have been seen.
        problem = '"logical" does not go with the store, whose revisions tell the time'
        raise ConfigError(problem, ("cluster", "clock"))
    for name in _TIMING:
        if not 0 <= getattr(config.timing, name) < 2**63:
            raise ConfigError(f"{getattr(config.timing, name)} is too much", ("timing", name))
    _check_nodes(config)
    _check_groups(config)
    _check_store(config)
    if config.trace is not None:
        _check_folder(config.trace, ("trace", "deliveries"))
    for key, delay_ms in config.delays_ms.items():
        _ends(config, key)
        if not 0 <= delay_ms <= DELAY_MAX_MS:
            raise ConfigError(f"{delay_ms} ms is not in 0..{DELAY_MAX_MS}", ("delays", key))


def _check_nodes(config: Config) -> None:
    if not config.nodes:
        raise ConfigError("a cluster needs at least one node", ("nodes",))
    seen: dict[object, NodeId] = {}
    for name, node in config.nodes.items():
        keys = ("nodes", name)
        _check_name(name, keys)
        if split_address(node.address) is None:
            raise ConfigError(f"{_show(node.address)} is not HOST:PORT", (*keys, "address"))
        if node.api is not None and split_address(node.api) is None:
            raise ConfigError(f"{_show(node.api)} is not HOST:PORT", (*keys, "api"))
        _check_folder(node.data, (*keys, "data"))
        incarnation = node.incarnation
        if incarnation is not None and not 1 <= incarnation <= INCARNATION_MAX:
            raise ConfigError(f"{incarnation:x} is not in 1..{INCARNATION_MAX:x}", (*keys, "incarnation"))
        if node.region is not None:
            _check_name(node.region, (*keys, "region"))
            if node.region in config.nodes:
                raise ConfigError(f"{_show(node.region)} is a node's name already", (*keys, "region"))
        for key, value, shown in (
            ("address", (node.host, node.port), node.address),
            ("api", node.api and split_address(node.api), node.api),
            ("data", config.data(name), node.data),
            ("incarnation", incarnation, f"{incarnation or 0:016x}"),
        ):
            if value is not None and seen.setdefault(value, name) != name:
                raise ConfigError(f"{_show(shown)} is {seen[value]}'s already", (*keys, key))


def _check_store(config: Config) -> None:
    store = config.store
    _check_choice(store.placement, PLACEMENTS, ("store", "placement"))
    wanted = len(config.groups) - 1 if store.placement == "ordered" else 0
    if len(store.splits) != wanted:
        problem = f"{len(store.splits)} keys; {len(config.groups)} groups with this placement need {wanted}"
        raise ConfigError(problem, ("store", "splits"))
    if "" in store.splits or list(store.splits) != sorted(set(store.splits), key=str.encode):
        raise ConfigError("keys must rise strictly", ("store", "splits"))
    for name, most in LIMITS_MAX.items():
        if not 1 <= getattr(store.limits, name) <= most:
            raise ConfigError(f"{getattr(store.limits, name)} is not in 1..{most}", ("store", name))


def _check_groups(config: Config) -> None:
    if not config.groups:
        raise ConfigError("a cluster needs at least one group", ("groups",))
    for group, members in config.groups.items():
        keys = ("groups", str(group), "members")
        if not 0 <= group < GROUPS_MAX:
            raise ConfigError(f"group ids are 0..{GROUPS_MAX - 1}", keys[:2])
        for member in members:
            if member not in config.nodes:
                raise ConfigError(f"unknown node {_show(member)}{_instead(member, config.nodes)}", keys)
            if list(members).count(member) > 1:
                raise ConfigError(f"{_show(member)} is listed twice", keys)
            if member not in config.incarnations:
                raise ConfigError("missing: it is in a group", ("nodes", member, "incarnation"))
        try:
            Configuration(group, 0, config._members(group))  # noqa: SLF001 - the same module
        except InvalidArgument as error:
            raise ConfigError(str(error), keys) from None
    try:
        config.protocol_type.check_topology(config.topology)
    except InvalidArgument as error:
        raise ConfigError(f"{_show(config.protocol)}: {error}", ("cluster", "protocol")) from None


def _check_name(name: str, keys: Sequence[str]) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{_show(name)} is no name: use letters, digits, '_', '-' and '.'", keys)


def _check_folder(folder: str, keys: Sequence[str]) -> None:
    if not folder.strip() or "\0" in folder:
        raise ConfigError(f"{_show(folder)} is no folder", keys)


def _check_choice(value: str, allowed: Iterable[str], keys: Sequence[str]) -> None:
    allowed = list(allowed)
    if value not in allowed:
        raise ConfigError(f"{_show(value)} is none of {', '.join(allowed)}{_instead(value, allowed)}", keys)


def _ends(config: Config, key: str) -> tuple[str, str]:
    """What a delay is between. Names may have dashes themselves."""
    known = {name for node in config.nodes for name in config._called(node)}  # noqa: SLF001 - the same module
    parts = key.split("-")
    splits = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    found = [(a, b) for a, b in splits if a in known and b in known]
    if not found:
        raise ConfigError(f"not FROM-TO, two of {', '.join(sorted(known))}", ("delays", key))
    if len(found) > 1:
        raise ConfigError("could be " + " or ".join(f"{a} to {b}" for a, b in found), ("delays", key))
    (pair,) = found
    if pair[0] == pair[1] and pair[0] in config.nodes:
        raise ConfigError("a node has no link to itself", ("delays", key))
    return pair


# Reading


class _Table:
    """One table of the file: hands out its values by type, and knows no other keys."""

    def __init__(self, value: object, keys: tuple[str, ...], allowed: Iterable[str] | None = None) -> None:
        if not isinstance(value, dict):
            raise ConfigError(f"must be a table, not {_show(value)}", keys)
        self.values: dict[str, Any] = value
        self.keys = keys
        allowed = value if allowed is None else list(allowed)
        for key in value:
            if key not in allowed:
                raise ConfigError(f"unknown key{_instead(key, allowed)}", (*keys, key))

    def table(self, key: str, allowed: Iterable[str] | None = None, *, required: bool = False) -> _Table:
        if required and key not in self.values:
            raise ConfigError("missing", (*self.keys, key))
        return _Table(self.values.get(key, {}), (*self.keys, key), allowed)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if value is None:
            raise ConfigError("missing", (*self.keys, key))
        if not isinstance(value, str):
            raise ConfigError(f"must be a string, not {_show(value)}", (*self.keys, key))
        return value

    def number(self, key: str) -> float:
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
            raise ConfigError(f"must be a number, not {_show(value)}", (*self.keys, key))
        return value


def _read(document: dict[str, Any], directory: Path) -> Config:
    top = _Table(document, (), ("cluster", "store", "timing", "nodes", "groups", "delays", "trace"))
    cluster = top.table("cluster", ("id", "protocol", "durability", "application", "clock"), required=True)
    delays = top.table("delays")
    trace = top.table("trace", ("deliveries",))
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
        store=_read_store(top.table("store", ("placement", "splits", *LIMITS_MAX))),
        timing=_read_timing(top.table("timing", _TIMING)),
        delays_ms={key: delays.number(key) for key in delays.values},
        trace=trace.text("deliveries") if trace.values else None,
        directory=directory,
    )


def _read_node(nodes: _Table, name: str) -> NodeConfig:
    node = nodes.table(name, [item.name for item in fields(NodeConfig)])
    incarnation = node.text("incarnation", "") or None
    if incarnation is not None and not re.fullmatch("[0-9A-Fa-f]{1,16}", incarnation):
        raise ConfigError(f"{_show(incarnation)} is not a hexadecimal number", (*node.keys, "incarnation"))
    region = node.text("region") if "region" in node.values else None
    number = None if incarnation is None else int(incarnation, 16)
    api = node.text("api") if "api" in node.values else None
    return NodeConfig(node.text("address"), node.text("data"), number, region, api)


def _read_store(store: _Table) -> StoreConfig:
    splits = store.values.get("splits", [])
    if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
        raise ConfigError(f"must be a list of keys, not {_show(splits)}", ("store", "splits"))
    limits = {key: store.number(key) for key in LIMITS_MAX if key in store.values}
    for key, value in limits.items():
        if not isinstance(value, int):
            raise ConfigError(f"must be a whole number, not {_show(value)}", ("store", key))
    found = Limits(**limits)  # type: ignore[arg-type]  # whole numbers
    return StoreConfig(store.text("placement", "hashed"), tuple(splits), found)


def _read_group(groups: _Table, name: str) -> tuple[GroupId, tuple[NodeId, ...]]:
    if not re.fullmatch("0|[1-9][0-9]{0,5}", name):
        raise ConfigError(f"{_show(name)} is not a group id: they are 0..{GROUPS_MAX - 1}", ("groups", name))
    group = groups.table(name, ("members",))
    members = group.values.get("members")
    if not isinstance(members, list) or not all(isinstance(member, str) for member in members):
        problem = "missing" if members is None else f"must be a list of nodes, not {_show(members)}"
        raise ConfigError(problem, (*group.keys, "members"))
    return GroupId(int(name)), tuple(NodeId(member) for member in members)


def _read_timing(timing: _Table) -> Timing:
    found: dict[str, Any] = {}
    for key in timing.values:
        value = timing.number(key)
        if _TIMING[key] is int and not isinstance(value, int):
            raise ConfigError(f"must be a whole number, not {_show(value)}", ("timing", key))
        found[key] = value
    try:
        return Timing(**found)
    except InvalidArgument as error:
        # It begins with the field that is wrong.
        key = str(error).split()[0]
        raise ConfigError(str(error), ("timing", key) if key in found else ("timing",)) from None


_PART: Final = r"""(?:"[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
_DOTTED: Final = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER: Final = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]")
_ASSIGNED: Final = re.compile(rf"\s*({_DOTTED})\s*=")


def _line(text: str, keys: tuple[str, ...]) -> int | None:
    """Where a key is, or else the table it should be in. None rather than a guess."""
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


# Writing, and showing values in errors


def _write(config: Config) -> str:
    """The whole file, in the one style that we write."""
    lines = ["[cluster]"]
    keys = ("id", "protocol", "durability", "application", "clock")
    lines += [f"{key} = {_show(getattr(config, key))}" for key in keys]
    lines += _write_store(config.store)
    plain = Timing()
    changed = [name for name in _TIMING if getattr(config.timing, name) != getattr(plain, name)]
    if changed:
        lines += ["", "[timing]", *(f"{name} = {_show(getattr(config.timing, name))}" for name in changed)]
    for name, node in config.nodes.items():
        lines += ["", f"[nodes.{_key(name)}]", f"address = {_show(node.address)}"]
        lines.append(f"data = {_show(node.data)}")
        lines += [] if node.incarnation is None else [f'incarnation = "{node.incarnation:016x}"']
        lines += [] if node.region is None else [f"region = {_show(node.region)}"]
        lines += [] if node.api is None else [f"api = {_show(node.api)}"]
    for group, members in sorted(config.groups.items()):
        lines += ["", f"[groups.{group}]", f"members = [{', '.join(map(_show, members))}]"]
    if config.delays_ms:
        lines += ["", "[delays]", *(f"{_key(key)} = {_show(ms)}" for key, ms in config.delays_ms.items())]
    if config.trace is not None:
        lines += ["", "[trace]", f"deliveries = {_show(config.trace)}"]
    return "\n".join(lines) + "\n"


def _write_store(store: StoreConfig) -> list[str]:
    plain = Limits()
    lines = [] if store.placement == "hashed" else [f"placement = {_show(store.placement)}"]
    lines += [f"splits = [{', '.join(map(_show, store.splits))}]"] if store.splits else []
    for name, value in _limits(store.limits).items():
        lines += [] if value == getattr(plain, name) else [f"{name} = {value}"]
    return ["", "[store]", *lines] if lines else []


def _limits(limits: Limits) -> dict[str, int]:
    return {name: getattr(limits, name) for name in LIMITS_MAX}


def _at_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"


def _key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _show(key)


def _show(value: object) -> str:
    """A value as TOML has it. JSON's strings are TOML's, but for DEL; others only ever appear in errors."""
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _instead(wrong: str, allowed: Iterable[str]) -> str:
    """What was probably meant, or else what there is."""
    allowed = list(allowed)
    close = difflib.get_close_matches(wrong, allowed, 1)
    if close:
        return f"; did you mean {_show(close[0])}?"
    return f"; there is {', '.join(allowed)}" if allowed else ""
