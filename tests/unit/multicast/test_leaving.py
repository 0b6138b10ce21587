"""When a leader lets a replica that has lost its log or its disk replace its former self."""

from __future__ import annotations

import pytest

from multicast.messages import HeartbeatAck, Join, Members
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, ReplicaId, Timestamp, begun_anew, disk_of
from multicast.whitebox import WhiteBox
from tests.unit.multicast.replicas import G0, G1, drain, lead, replica_ids, start

FIVE = Topology({G0: replica_ids(G0, 5), G1: replica_ids(G1, 3)})
LEADER, SECOND, THIRD, FOURTH, BAD = FIVE.members(G0)
AGAIN = BAD._replace(incarnation=begun_anew(BAD.incarnation, 1))
E = Timestamp(1 << 10)


class GrantsWithoutAQuorum(WhiteBox):
    """A sabotage: whoever is silent may be replaced."""

    def _is_well_without(self, old: ReplicaId) -> bool:
        return True


def leader(protocol: type[WhiteBox], *heard: tuple[ReplicaId, Timestamp]) -> WhiteBox:
    """A leader, long after it began to lead, that has just heard these members."""
    replica = start(protocol, LEADER, FIVE)
    ballot = lead(replica, [SECOND, THIRD])
    replica._learn_fact(G0, E)
    now = 0.3
    for member, executed in ((LEADER, E), (SECOND, E), (THIRD, E)):
        replica.step(member, HeartbeatAck(ballot, ballot, executed), now)
    now = 0.75
    for member, executed in heard:
        replica.reports.pop(member, None)
        replica.step(member, HeartbeatAck(ballot, ballot, executed), now)
    drain(replica)
    return replica


def ask(replica: WhiteBox, joiner: ReplicaId = AGAIN) -> bool:
    """Whether the leader begins the change."""
    replica.step(joiner, Join("", None), 0.8)
    said = drain(replica)
    assert any(isinstance(message, Members) for message in said.to(joiner))
    return any(entry.mid.client == 0 for entry in replica.entries.values())


def test_a_new_incarnation_is_on_the_same_disk() -> None:
    assert AGAIN != BAD
    assert disk_of(AGAIN.incarnation) == disk_of(BAD.incarnation)
    assert begun_anew(2**64 - 1, 1) == (1 << 48) - 1


def test_a_replica_that_begins_anew_is_admitted_while_a_quorum_is_well_without_it() -> None:
    assert ask(leader(WhiteBox, (LEADER, E), (SECOND, E), (THIRD, E)))


@pytest.mark.parametrize(
    "heard",
    [
        [(LEADER, E), (SECOND, E)],
        [(LEADER, E), (SECOND, E), (THIRD, NO_TIMESTAMP)],
        [(SECOND, E), (THIRD, E)],
        [(LEADER, E), (SECOND, E), (THIRD, E), (BAD, E)],
    ],
    ids=["one is silent", "one is behind", "the leader's own disk hangs", "the former one is there"],
)
def test_it_waits_outside_otherwise(heard: list[tuple[ReplicaId, Timestamp]]) -> None:
    assert not ask(leader(WhiteBox, *heard))
    assert ask(leader(GrantsWithoutAQuorum, *heard)) is (BAD not in dict(heard))


def test_one_is_admitted_at_a_time() -> None:
    replica = leader(WhiteBox, (LEADER, E), (SECOND, E), (THIRD, E))
    assert ask(replica)
    count = len(replica.entries)
    other = FOURTH._replace(incarnation=begun_anew(FOURTH.incarnation, 1))
    ask(replica, other)
    assert replica.membership.is_complete
    steps = [entry.mid.sequence for entry in replica.entries.values()]
    assert len(steps) - count <= 1
    assert len(set(steps)) == 1  # of two steps of one version, the first that is delivered counts
