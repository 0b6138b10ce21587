"""What a node knows of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvstore.api.ports import PartitionFacts, Topology
from kvstore.config.addresses import NodeId
from kvstore.store.application import StoreApplication
from multicast.types import GroupId, ReplicaId, timestamp


def topology_of(
    addresses: Mapping[NodeId, str],
    first: Mapping[GroupId, Sequence[NodeId]],
    store: StoreApplication,
    node_of: Callable[[ReplicaId], NodeId | None],
) -> Topology:
    """Who leads and who is a member: as its own replicas know it, or else as its gateway guesses.

    `addresses` are those of the nodes' APIs, and `first` are the nodes that each group began with.
    """
    return Topology(
        addresses={str(name): address for name, address in addresses.items()},
        partitions={group: _partition(group, store, node_of, first) for group in store.gateway.groups},
        placement=store.gateway.placement,
        revision=timestamp(store.gateway.newest(), GroupId(0)),
    )


def _partition(
    group: GroupId,
    store: StoreApplication,
    node_of: Callable[[ReplicaId], NodeId | None],
    first: Mapping[GroupId, Sequence[NodeId]],
) -> PartitionFacts:
    if group not in store.groups:
        return PartitionFacts(node_of(store.gateway.leader(group)), tuple(first[group]))
    partition = store.partition(group)
    replica = partition.replica
    members = [node_of(member) for member in replica.membership.current.members]
    return PartitionFacts(
        leader=node_of(replica.ballot.leader) if replica.ballot.number else None,
        members=tuple(member for member in members if member is not None),
        here=True,
        caught_up=partition.serving,
        leads=replica.is_leader,
        revision=partition.machine.watermark,
    )
