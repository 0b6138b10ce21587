"""The node of each replica."""

from __future__ import annotations

from collections.abc import Mapping

from kvstore.config.addresses import Address, NodeId, parse_node_address
from multicast.membership import Membership
from multicast.types import ReplicaId


class Directory:
    """The node of each replica, by incarnation: all replicas of a node have that of its disk."""

    def __init__(self, incarnations: Mapping[NodeId, int]) -> None:
        self._nodes = {incarnation: node for node, incarnation in incarnations.items()}

    def note(self, node: NodeId, incarnation: int) -> None:
        """Note that the node runs on the disk with this incarnation."""
        self._nodes[incarnation] = node

    def node_of(self, replica: ReplicaId) -> NodeId | None:
        """Return the node that the replica is or was on; None if unknown."""
        return self._nodes.get(replica.incarnation)

    def learn(self, membership: Membership) -> dict[NodeId, Address]:
        """Note the nodes of all members; return the addresses that the membership has for them."""
        found: dict[NodeId, Address] = {}
        current = membership.current
        for member, address in zip(current.members, current.addresses, strict=True):
            known = parse_node_address(address)
            if known is not None:
                node, found[node] = known
                self.note(node, member.incarnation)
        return found
