"""The node of each replica, and which processes a node may send for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvstore.config.addresses import Address, NodeId, parse_node_address
from kvstore.wire.messages import NODE
from multicast.membership import Membership
from multicast.types import ClientId, Process, ReplicaId, disk_of

CLAIMED_MAX: Final = 4096
"""Nodes whose disks are known only from their own Hello; beyond it, the first is forgotten."""

GATEWAYS_MAX: Final = 1 << 16
"""Gateways whose nodes are known; beyond it, the first is forgotten."""

FOUND_MAX: Final = 4096
"""Replicas whose nodes are memoised."""


class Directory:
    """The node of each replica, by its disk: the incarnations of all replicas on a disk name it (`disk_of`).

    The configuration and memberships name nodes with their disks. A node also says which disk it has when it
    connects: that counts unless the disk is known to be another node's.
    """

    def __init__(self, incarnations: Mapping[NodeId, int]) -> None:
        self._named = {disk_of(incarnation): node for node, incarnation in incarnations.items()}
        self._claims: dict[NodeId, int] = {}
        self._claimed: dict[int, NodeId] = {}
        """The same, by disk."""
        self._gateways: dict[ClientId, NodeId] = {}
        self._found: dict[ReplicaId, NodeId] = {}
        """What `node_of` has found, until any of this changes."""

    def admits(self, node: NodeId, incarnation: int) -> bool:
        """Return whether the node may have this disk: no other node has it."""
        disk = disk_of(incarnation)
        return (self._named.get(disk) or self._claimed.get(disk, node)) == node

    def note(self, node: NodeId, incarnation: int) -> None:
        """Note that the node says that it runs on this disk, if no other node has it."""
        if not self.admits(node, incarnation):
            return
        self._found.clear()
        old = self._claims.pop(node, None)
        if old is not None:
            del self._claimed[old]
        elif len(self._claims) >= CLAIMED_MAX:
            del self._claimed[self._claims.pop(next(iter(self._claims)))]
        disk = disk_of(incarnation)
        self._claims[node] = disk
        self._claimed[disk] = node

    def node_of(self, replica: ReplicaId) -> NodeId | None:
        """Return the node that the replica is or was on; None if unknown."""
        found = self._found.get(replica)
        if found is None:
            disk = disk_of(replica.incarnation)
            found = self._named.get(disk) or self._claimed.get(disk)
            if found is not None and len(self._found) < FOUND_MAX:
                self._found[replica] = found
        return found

    def learn(self, membership: Membership) -> dict[NodeId, Address]:
        """Note the nodes of all members; return the addresses that the membership has for them."""
        self._found.clear()
        found: dict[NodeId, Address] = {}
        current = membership.current
        for member, address in zip(current.members, current.addresses, strict=True):
            known = parse_node_address(address)
            if known is not None:
                node, found[node] = known
                self._named.setdefault(disk_of(member.incarnation), node)
        return found

    def may_send(self, node: NodeId, sender: Process) -> bool:
        """Return whether messages of this process may come from this node.

        A replica's come from the node with its disk. A gateway has a random id in each life of its node: it
        belongs to the node that sends for it first. Every node sends for itself (`NODE`).
        """
        if sender == NODE:
            return True
        if isinstance(sender, ReplicaId):
            return self.node_of(sender) == node
        home = self._gateways.get(sender)
        if home is None:
            if len(self._gateways) >= GATEWAYS_MAX:
                del self._gateways[next(iter(self._gateways))]
            home = self._gateways[sender] = node
        return home == node
