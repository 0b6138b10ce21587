"""What nodes are called and where they are: names, addresses, and both together as a *place*.

A place is what the members of a group are told of a replica that they have not met: `n4@10.0.0.4:7101`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from kvstore.ports import NodeId
from multicast.membership import Membership
from multicast.types import ReplicaId

Address: TypeAlias = tuple[str, int]
"""Host and port."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""Nodes are also file names; so no slash, and no dot in front."""

_ADDRESS: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def split_address(text: str) -> Address | None:
    """Host and port, if it is HOST:PORT."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65_535:
        return None
    return found["host"].strip("[]"), int(found["port"])


def join_address(host: str, port: int) -> str:
    """HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def place_of(node: NodeId, address: Address) -> str:
    """What to tell those who do not know where the node is."""
    return f"{node}@{join_address(*address)}"


def read_place(place: str) -> tuple[NodeId, Address] | None:
    """Node and address, if it is a place."""
    name, _, text = place.partition("@")
    address = split_address(text)
    if address is None or not NAME.fullmatch(name):
        return None
    return NodeId(name), address


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
            known = read_place(place)
            if known is not None:
                node, found[node] = known
                self.note(node, member.incarnation)
        return found
