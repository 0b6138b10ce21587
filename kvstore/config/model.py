"""The configuration of a cluster, and the facts that follow from it.

A `Config` is checked when it is made (`checks`). It is read from one TOML file that all nodes share (`toml`).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from kvstore.config.addresses import NodeId, new_incarnation, split_address
from kvstore.config.checks import (
    KNOWN_PROTOCOLS,
    ConfigError,
    Durability,
    check,
    ends_of,
    show,
    suggestion,
)
from kvstore.config.history import FOREVER, KEEP_HISTORY, KeepHistory
from kvstore.config.secret import Secret
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import Limits
from multicast.errors import InvalidArgument
from multicast.protocol import Protocol, Timing
from multicast.topology import Topology
from multicast.types import GroupId, ReplicaId

PORT: Final = 7101
"""Port of the first node of a local cluster, by default."""
API_PORT: Final = 7400
"""Port where the first node of a local cluster serves clients, by default."""

SCRUB_HOURS: Final = 6.0
"""How long a node takes to read all rows of its state once, by default."""


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
    """A valid configuration: its holder need not check it again."""

    id: str
    nodes: Mapping[NodeId, NodeConfig]
    groups: Mapping[GroupId, Sequence[NodeId]]
    """The first members of each group; the replica's number is the index."""
    secret: Secret = field(default_factory=Secret.new, repr=False)
    """What authenticates connections to nodes: a new one, unless it is that of an existing cluster."""
    protocol: str = "whitebox"
    durability: Durability = "fsync"
    application: str = "store"
    """What delivered messages mean: "store", or "multicast" for nothing but their order."""
    clock: str = "hybrid"
    """What gives local timestamps: "hybrid" clocks follow the time of day, "logical" ones are the paper's."""
    store: StoreConfig = field(default_factory=StoreConfig)
    keep_history: KeepHistory = field(default_factory=KeepHistory)
    """How much history leaders keep. Without a setting all of it: dropping it cannot be undone."""
    timing: Timing = field(default_factory=Timing)
    delays_ms: Mapping[str, float] = field(default_factory=dict)
    """As written, by "FROM-TO"; `delays_s` is what they come to."""
    scrub_hours: float = SCRUB_HOURS
    """How long a node takes to read all rows of its state once; 0 for never."""
    trace: str | None = None
    """Where nodes record what they deliver, as written; `trace_folder` is the folder."""
    directory: Path = field(default=Path(), compare=False)
    """What relative paths are relative to: the file's folder."""

    def __post_init__(self) -> None:
        check(self)

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
        keep_history: str = KEEP_HISTORY,
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
                raise ConfigError(f"regions: unknown node {show(name)}{suggestion(name, names)}")
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
            keep_history=KeepHistory.read(keep_history if application == "store" else FOREVER),
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
        return Topology({group: self.members(group) for group in self.groups})

    @cached_property
    def placement(self) -> Mapping[ReplicaId, NodeId]:
        """Which node every replica is on."""
        return {
            replica: node
            for group, nodes in sorted(self.groups.items())
            for replica, node in zip(self.members(group), nodes, strict=True)
        }

    def members(self, group: GroupId) -> list[ReplicaId]:
        """Return the first replicas of a group."""
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
        return KNOWN_PROTOCOLS[self.protocol]

    @cached_property
    def hash(self) -> bytes:
        """Of everything the nodes must agree on. Time-outs, addresses and paths may differ between them."""
        members = [
            [group, [[node, self.incarnations[node]] for node in nodes]]
            for group, nodes in sorted(self.groups.items())
        ]
        store = [self.application, self.store.placement, self.store.splits, asdict(self.store.limits)]
        agreed = json.dumps([self.id, self.protocol, members, store])
        return hashlib.blake2b(agreed.encode(), digest_size=16).digest()

    def node(self, name: str) -> NodeId:
        """The node of this name. Raises `ConfigError` if there is none."""
        if name not in self.nodes:
            raise ConfigError(f"unknown node {show(name)}{suggestion(name, self.nodes)}")
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

    def crash_trace(self, node: NodeId) -> Path:
        """Where a crash of the node's process leaves a trace: beside its disk, too."""
        return self.data(node).parent / f"{node}.crash"

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
        written = {ends_of(self, key): value for key, value in self.delays_ms.items()}
        found = {}
        for a, b in ((a, b) for a in self.nodes for b in self.nodes if a != b):
            for pair in ((x, y) for x in self.names(a) for y in self.names(b)):
                delay = written.get(pair, written.get(pair[::-1]))
                if delay is not None:
                    found[a, b] = delay / 1000
                    break
        return found

    def names(self, node: NodeId) -> list[str]:
        """Return the node's name, and its region's if it has one."""
        return [name for name in (node, self.nodes[node].region) if name is not None]


def default_members(nodes: int, partitions: int, replicas: int) -> list[list[str]]:
    """The default members of each group.

    Group g's preferred leader is node g + 1, counted around, and its other members are the nodes that follow.
    With a replica on every node, all groups list the nodes in the same order.
    """
    return [[f"n{1 + (g + (n - g) % replicas) % nodes}" for n in range(replicas)] for g in range(partitions)]


def _at_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"
