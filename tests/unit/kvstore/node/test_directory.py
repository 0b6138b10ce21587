"""Directories: a node sends for the replicas of its own disk and for its own gateway, and for no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvstore.config.addresses import NodeId
from kvstore.node import directory
from kvstore.node.directory import Directory
from multicast.membership import Configuration, Membership
from multicast.types import ClientId, GroupId, Process, ReplicaId

G0 = GroupId(0)
N1, N2, N3, N4 = (NodeId(f"n{n}") for n in range(1, 5))


def of(incarnation: int) -> ReplicaId:
    return ReplicaId(G0, 0, incarnation)


def found() -> Directory:
    return Directory({N1: 1, N2: 2})


def test_a_node_sends_for_the_replicas_of_its_disk_only() -> None:
    known = found()
    assert known.may_send(N1, of(1))
    assert not known.may_send(N1, of(2))
    assert not known.may_send(N3, of(1))
    assert not known.may_send(N3, of(3)), "a disk that no node has named"
    known.note(N3, 3)
    assert known.may_send(N3, of(3))


def test_a_disk_belongs_to_one_node() -> None:
    known = found()
    for other in (N2, N3):
        assert not known.admits(other, 1)
        known.note(other, 1)
        assert known.node_of(of(1)) == N1
    assert known.admits(N1, 1)
    known.note(N3, 3)
    assert not known.admits(N4, 3)
    known.note(N1, 9)  # its first disk is lost
    assert known.node_of(of(9)) == known.node_of(of(1)) == N1
    known.note(N3, 4)
    assert known.node_of(of(3)) is None
    assert known.admits(N4, 3)


def test_a_membership_does_not_take_a_disk_from_its_node() -> None:
    known = found()
    members = [ReplicaId(G0, 0, 1), ReplicaId(G0, 1, 2), ReplicaId(G0, 2, 4)]
    places = ["n9@10.0.0.9:1", "", "n4@10.0.0.4:1"]
    addresses = known.learn(Membership(Configuration(G0, 1, members, places)))
    assert addresses[N4] == ("10.0.0.4", 1)
    assert known.node_of(of(1)) == N1
    assert known.node_of(of(4)) == N4
    assert not known.admits(N3, 4)


def test_a_gateway_belongs_to_the_node_that_sends_for_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    known = found()
    assert known.may_send(N1, ClientId(7))
    assert known.may_send(N1, ClientId(7))
    assert not known.may_send(N2, ClientId(7))
    monkeypatch.setattr(directory, "GATEWAYS_MAX", 2)
    assert all(known.may_send(N1, ClientId(n)) for n in range(10, 20))
    assert len(known._gateways) == 2


def test_what_nodes_say_of_themselves_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "CLAIMED_MAX", 3)
    known = found()
    for number in range(10, 30):
        known.note(NodeId(f"n{number}"), number)
    assert len(known._claims) == len(known._claimed) == 3
    assert known.node_of(of(29)) == NodeId("n29")
    assert known.node_of(of(1)) == N1


class SendsForAnyDisk(Directory):
    """Messages of a replica may come from any node."""

    def may_send(self, node: NodeId, sender: Process) -> bool:
        return isinstance(sender, ReplicaId) or super().may_send(node, sender)


class SendsForUnknownDisks(Directory):
    """Messages of a replica may come from any node, while it is not known which node has the disk."""

    def may_send(self, node: NodeId, sender: Process) -> bool:
        if isinstance(sender, ReplicaId) and self.node_of(sender) is None:
            return True
        return super().may_send(node, sender)


class SendsForAnyGateway(Directory):
    """A gateway belongs to no node."""

    def may_send(self, node: NodeId, sender: Process) -> bool:
        return not isinstance(sender, ReplicaId) or super().may_send(node, sender)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (SendsForAnyDisk, test_a_node_sends_for_the_replicas_of_its_disk_only),
        (SendsForUnknownDisks, test_a_node_sends_for_the_replicas_of_its_disk_only),
        (SendsForAnyGateway, test_a_gateway_belongs_to_the_node_that_sends_for_it_first),
    ],
)
def test_mutants_are_caught(
    mutant: type[Directory], test: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.Directory", mutant)
    with pytest.raises(AssertionError):
        test(**({"monkeypatch": monkeypatch} if mutant is SendsForAnyGateway else {}))
