"""Routing: which node to ask for a key, by the topology that the cluster's nodes return."""

from __future__ import annotations

import os
import sys
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.environment import Environment
from wbkv.data import KeyRange, Partition, Topology, prefix
from wbkv.errors import Unavailable

DEFAULT: Final = ("127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402")
"""The default endpoints of a local cluster. Several, as a node may be down."""

REFRESH_S: Final = 30.0
"""The maximum age of the topology. After a failure it is fetched at once."""

AGAIN_S: Final = 0.05
"""The minimum age of the topology before it is fetched again after a failure."""

REST_S: Final = 5.0
"""How long an unreachable node is only tried after all others."""

ENVELOPE_BYTES: Final = 64
"""The maximum overhead of a session around a request."""

_SLOT_MASK: Final = (1 << 14) - 1


def endpoints_of(endpoints: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the addresses of the nodes in an argument of `connect`, or the default."""
    if endpoints is None:
        endpoints = os.environ.get("WBKV_ENDPOINTS") or DEFAULT
    if isinstance(endpoints, str):
        endpoints = endpoints.split(",")
    found = tuple(dict.fromkeys(address.strip() for address in endpoints))
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"an endpoint must be HOST:PORT, not {address!r}")
    if not found:
        raise ValueError("at least one endpoint is needed")
    return found


_BUSY: Final = frozenset({ApiError.OVERLOADED, ApiError.WINDOW_FULL})
"""Failures that do not depend on which node leads."""


class Placement(NamedTuple):
    """The partition of every key: see `wbkv.v1.Placement`."""

    hashed: bool
    starts: tuple[bytes, ...]
    owners: tuple[int, ...]

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a key."""
        if len(self.owners) == 1:
            return self.owners[0]
        token = key
        if self.hashed:
            token = (zlib.crc32(_tag_of(key)) & _SLOT_MASK).to_bytes(2, "big")
        return self.owners[bisect_right(self.starts, token) - 1]

    def partitions_of(self, keys: KeyRange) -> frozenset[int]:
        """Return the partitions of a range: with hash slots all, unless its keys share a tag."""
        start, end = keys.start, keys.end
        if self.hashed:
            stem = start
            if keys != prefix(stem):
                same = takewhile(lambda pair: pair[0] == pair[1], zip(start, end or b"", strict=False))
                stem = bytes(one for one, _ in same)
            return frozenset(self.owners if _tag_of(stem) == stem else (self.partition_of(stem),))
        first = bisect_right(self.starts, start) - 1
        last = len(self.starts) if end is None else bisect_left(self.starts, end)
        return frozenset(self.owners[first:last])


def _tag_of(key: bytes) -> bytes:
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1) if begin >= 0 else -1
    return key[begin + 1 : end] if end > begin + 1 else key


class Router:
    """The client's knowledge of the cluster. Attributes are replaced whole, so that threads may read them
    while another one updates them.
    """

    def __init__(self, seeds: Sequence[str], environment: Environment) -> None:
        self.seeds: Final = tuple(seeds)
        self.environment: Final = environment
        self.topology: Topology | None = None
        self.placement: Placement | None = None
        self._leaders: dict[int, str] = {}
        """Addresses by partition."""
        self._addresses = self.seeds
        """All nodes that may be asked."""
        self._learned_at = 0.0
        self.stale = True
        self.request_bytes = sys.maxsize
        """The size limit of a request."""
        self._key_bytes = sys.maxsize
        self._resting: dict[str, float] = {}
        """Unreachable nodes, and until when to prefer others."""

    @property
    def due(self) -> bool:
        """Whether the topology should be fetched."""
        return self.environment.now() - self._learned_at > (AGAIN_S if self.stale else REFRESH_S)

    def learn(self, map_: cluster.TopologyResponse) -> bool:
        """Update the topology. Return False, and ignore it, if it is that of another cluster."""
        name = map_.header.cluster
        if self.topology is not None and self.topology.cluster != name:
            return False
        nodes = {node.name: node.address for node in map_.nodes}
        partitions = tuple(Partition(p.id, p.leader or None, tuple(p.members)) for p in map_.partitions)
        limits = {field.name: value for field, value in map_.limits.ListFields()}
        placement = map_.placement
        hashed = placement.scheme == cluster.Placement.HASHED
        starts, owners = tuple(placement.starts), tuple(placement.owners)
        self.placement = Placement(hashed, starts, owners) if owners else None
        self._leaders = {
            p.id: nodes[p.leader] for p in partitions if p.leader is not None and nodes.get(p.leader)
        }
        listed = list(filter(None, nodes.values()))
        # The caller has not said that the default endpoints are nodes of this cluster.
        seeds = () if self.seeds == DEFAULT and listed else self.seeds
        addresses = dict.fromkeys([*seeds, *listed])
        if addresses.keys() != set(self._addresses) or self.topology is None:
            # Requests that any node can serve should not all go to the first one.
            self._addresses = tuple(self.environment.rng.sample(list(addresses), len(addresses)))
        self.topology = Topology(name, nodes, partitions, limits)
        self.request_bytes = (map_.limits.message_bytes or sys.maxsize) - ENVELOPE_BYTES
        self._key_bytes = map_.limits.key_bytes or sys.maxsize
        self._learned_at = self.environment.now()
        self.stale = False
        return True

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a key. Raises `Unavailable` if the topology is not known yet."""
        if self.placement is None:
            raise Unavailable("the partitions are not known yet: no node has returned the topology")
        return self.placement.partition_of(key)

    def after(self, key: bytes) -> bytes | None:
        """Return the lowest possible key above this one; None if there is none."""
        return key + b"\0" if len(key) < self._key_bytes else prefix(key).end

    def beyond(self, keys: KeyRange, key: bytes, *, reverse: bool) -> KeyRange | None:
        """Return the rest of a range behind a key, in the direction of a scan; None if it is empty."""
        start, end = keys.start, keys.end
        if reverse:
            end = key if end is None else min(key, end)
        else:
            above = self.after(key)
            if above is None:
                return None
            start = max(start, above)
        return None if end is not None and start >= end else KeyRange(start, end)

    def address_for(self, key: bytes | None, tries: int, tried: Iterable[str] = ()) -> str:
        """Return the node to ask next for a key: first the leader of its partition, then the others."""
        leader = None
        if key is not None and self.placement is not None:
            leader = self._leaders.get(self.placement.partition_of(key))
        if tries == 0 and leader is not None and leader not in self._resting:
            return leader
        now = self.environment.now()
        resting = {address for address, until in list(self._resting.items()) if until > now}
        if len(resting) < len(self._resting):
            self._resting = {a: until for a, until in list(self._resting.items()) if until > now}
        asked = set(tried)
        ranked = sorted(
            self._addresses,
            key=lambda address: (address in asked, address in resting, address != leader),
        )
        fresh = [address for address in ranked if address not in asked]
        return fresh[0] if fresh else ranked[tries % len(ranked)]

    def reachable(self) -> list[str]:
        """Return the addresses of all nodes but those that were unreachable lately."""
        return [address for address in self._addresses if address not in self._resting]

    def failed(self, address: str, error: ApiError, *, gone: bool) -> None:
        """Record a node's failure: its error may name the leaders, or the node may be unreachable."""
        if error.kind not in _BUSY:
            self.stale = True
        if gone:
            self._resting = {**self._resting, address: self.environment.now() + REST_S}
        if error.leaders:
            known = {leader.partition: leader.address for leader in error.leaders if leader.address}
            self._leaders = {**self._leaders, **known}
        elif gone:
            self._leaders = {p: a for p, a in self._leaders.items() if a != address}

    def answered(self, address: str) -> None:
        """Record that a node is reachable again."""
        if address in self._resting:
            self._resting = {a: until for a, until in self._resting.items() if a != address}
