"""On which node each replica is."""

from __future__ import annotations

from collections.abc import Mapping

from kvstore.config.addresses import Address, NodeId, parse_node_address
from multicast.membership import Membership
from multicast.types import ReplicaId


class Directory:
    """On which node each replica is. A node's replicas have the incarnation of its disk."""

    def __init__(self, incarnations: Mapping[NodeId, int]) -> None:
        self._nodes = {incarnation: node for node, incarnation in incarnations.items()}

    def note(self, node: NodeId, incarnation: int) -> None:
        """The node is on this disk."""
        self._nodes[incarnation] = node

    def node_of(self, replica: ReplicaId) -> NodeId | None:
        """Where the replica is, or was."""
        return self._nodes.get(replica.incarnation)

    def learn(self, membership: Membership) -> dict[NodeId, Address]:
        """Note where new members are. Nodes and addresses, as the membership has them."""
        found: dict[NodeId, Address] = {}
        current = membership.current
        for member, place in zip(current.members, current.addresses, strict=True):
            known = parse_node_address(place)
            if known is not None:
                node, found[node] = known
                self.note(node, member.incarnation)
        return found
