"""What nodes are called and where they are: names, addresses, and both together as a *place*.

A place is what the members of a group are told of a replica that they have not met: `n4@10.0.0.4:7101`.
"""

from __future__ import annotations

import re
import secrets
from typing import Final, NewType, TypeAlias

NodeId = NewType("NodeId", str)

Address: TypeAlias = tuple[str, int]
"""Host and port."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""Nodes are also file names; so no slash, and no dot in front."""

INCARNATION_MAX: Final = 2**63 - 1
"""The largest incarnation of a disk; the smallest is 1."""

_ADDRESS: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def new_incarnation() -> int:
    """Return a random incarnation, which no other disk has."""
    return 1 + secrets.randbelow(INCARNATION_MAX)


def split_address(text: str) -> Address | None:
    """Host and port, if it is HOST:PORT."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65_535:
        return None
    return found["host"].strip("[]"), int(found["port"])


def join_address(host: str, port: int) -> str:
    """HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def node_address(node: NodeId, address: Address) -> str:
    """What to tell those who do not know where the node is."""
    return f"{node}@{join_address(*address)}"


def parse_node_address(place: str) -> tuple[NodeId, Address] | None:
    """Node and address, if it is a place."""
    name, _, text = place.partition("@")
    address = split_address(text)
    if address is None or not NAME.fullmatch(name):
        return None
    return NodeId(name), address
