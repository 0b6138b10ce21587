"""Names and addresses of nodes; and which replica is on which node."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvstore.config.addresses import NodeId, join_address, node_address, parse_node_address, split_address
from kvstore.node.directory import Directory
from multicast.membership import Configuration, Membership
from multicast.types import GroupId, ReplicaId

G0 = GroupId(0)
N1, N2, N4 = NodeId("n1"), NodeId("n2"), NodeId("n4")


@pytest.mark.parametrize("address", [("127.0.0.1", 1), ("::1", 65535), ("host.example-1", 7101)])
def test_addresses_come_back_as_they_were(address: tuple[str, int]) -> None:
    assert split_address(join_address(*address)) == address
    assert parse_node_address(node_address(N4, address)) == (N4, address)


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":1", "host:0", "host:65536", "host:port", "a b:1", "::1:7", "h" * 256 + ":1"],
)
def test_text_that_is_not_an_address_is_not_parsed(text: str) -> None:
    assert split_address(text) is None
    assert parse_node_address(f"n1@{text}") is None


@pytest.mark.parametrize("text", ["", "n1", "@h:1", "../n1@h:1", ".n1@h:1", "n1@n2@h:1", "n" * 64 + "@h:1"])
def test_text_that_is_not_a_node_and_its_address_is_not_parsed(text: str) -> None:
    assert parse_node_address(text) is None


def test_the_names_of_nodes_load_no_other_layer() -> None:
    code = "import sys; from kvstore.config.addresses import NodeId; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - the line above
    packages = {name for name in loaded.stdout.split() if name.partition(".")[0] in ("kvstore", "multicast")}
    assert packages == {"kvstore", "kvstore.config", "kvstore.config.addresses"}


def test_a_directory_learns_from_members_and_from_nodes() -> None:
    directory = Directory({N1: 1, N2: 2})
    old, new, far = (ReplicaId(G0, 1, incarnation) for incarnation in (2, 0xB, 0xC))
    assert directory.node_of(old) == N2
    assert directory.node_of(new) is None
    directory.note(N2, 0xB)
    assert directory.node_of(new) == N2
    assert directory.node_of(old) == N2, "it was there, on another disk"
    members = [ReplicaId(G0, 0, 1), far, ReplicaId(G0, 2, 3)]
    membership = Membership(Configuration(G0, 1, members, ["", "n4@127.0.0.1:7", "no address"]))
    assert directory.learn(membership) == {N4: ("127.0.0.1", 7)}
    assert directory.node_of(far) == N4
    assert directory.node_of(members[2]) is None
