"""When a leader hands over to a better connected member: patience, back-off, quorums, ids."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.config.addresses import NodeId
from kvstore.node.handover import BEHIND_TICKS, CALM_TICKS, LOWER_ID, PATIENCE_TICKS, HandOvers
from kvstore.wire.messages import Hearing
from multicast.types import GroupId, ReplicaId

N0, N1, N2 = (NodeId(f"n{number}") for number in range(3))
NODES = (N0, N1, N2)


def said(node: NodeId, *missed: int, apart: tuple[NodeId, ...] = (), reached: int = 4) -> Hearing:
    groups = tuple(map(GroupId, missed))
    return Hearing(node, 1, 1, (), (), groups, apart, reached)


class Leader:
    """A replica that leads its group of three, on the first node."""

    avoided: Any = ()

    def __init__(self, group: int) -> None:
        self.readers = tuple(ReplicaId(GroupId(group), number, 1) for number in range(3)), 2
        self.me = self.readers[0][0]
        self.asked: list[list[int]] = []
        self.hears = True

    def hand_over(self, _: float, heirs: list[ReplicaId] | None = None) -> bool:
        self.asked.append([heir.number for heir in heirs or ()])
        return self.hears


class Case:
    """What three nodes have said, and the rule of the first of them."""

    def __init__(self, *rows: Hearing) -> None:
        self.rows = {row.node: row for row in rows}
        reach: Any = SimpleNamespace(is_settled=True, own=lambda: self.rows[N0], said_by=self.rows.get)
        reach.peers = lambda: NODES[1:]
        self.behind = dict.fromkeys(NODES, 0)
        self.rule = HandOvers(
            reach, lambda member: NODES[member.number], self.behind.__getitem__, random.Random(0)
        )

    def ticks_to_hand_over(self, leader: Any, most: int = 10 * CALM_TICKS) -> int:
        before = len(leader.asked)
        for tick in range(most):
            self.rule.tick([leader], 0.0)
            if len(leader.asked) > before:
                return tick + 1
        pytest.fail("it has not handed over")


def test_it_hands_over_to_those_that_miss_fewest_leaders() -> None:
    leader = Leader(5)
    case = Case(said(N0, 1, 2), said(N1, 1), said(N2))
    case.ticks_to_hand_over(leader)
    assert leader.asked == [[2]]
    assert case.rule.count == 1


@pytest.mark.parametrize(
    "rows",
    [
        (said(N0, 1), said(N1, 1), said(N2, 2)),
        (said(N0, 1), said(N1, 1, 2)),
        (said(N0), said(N1), said(N2)),
        (said(N0), said(N1, reached=5), said(N2)),
        (said(N0, apart=(N2,), reached=3), said(N1, apart=(N2,), reached=3)),
        (said(N0, 1), said(N1, apart=(N0, N2)), said(N2, 1)),
        (said(N0, 1, apart=(N1,), reached=3), said(N1), said(N2, 1, apart=(N1,), reached=3)),
    ],
    ids=[
        "others miss as many", "fewer reach them, or are unknown", "all is well", "a member knows more nodes",
        "a node is down", "a member that reaches no quorum", "a member that was better, and is silent",
    ],
)  # fmt: skip
def test_it_stays_if_no_member_is_strictly_better(rows: tuple[Hearing, ...]) -> None:
    leader = Leader(5)
    case = Case(*rows)
    for _ in range(CALM_TICKS):
        assert case.rule.tick([leader], 0.0) == []  # type: ignore[list-item]  # as far as it is needed
    assert leader.asked == []


def test_its_own_group_does_not_count_as_missed() -> None:
    """A member that does not reach the leader's node misses the leader that would hand over."""
    leader = Leader(5)
    case = Case(said(N0, 1), said(N1, 5), said(N2, 1))
    case.ticks_to_hand_over(leader)
    assert leader.asked == [[1]]


def test_with_as_many_leaders_it_hands_over_to_one_that_reaches_more_nodes() -> None:
    leader = Leader(5)
    case = Case(said(N0, apart=(N2,), reached=3), said(N1), said(N2, reached=2, apart=(N0, N1)))
    case.ticks_to_hand_over(leader)
    assert leader.asked == [[1]]
    assert leader.avoided == {leader.readers[0][2]}


def test_those_that_are_worse_or_silent_get_nothing_back() -> None:
    leader = Leader(5)
    case = Case(said(N0), said(N1, 1))
    case.rule.tick([leader], 0.0)  # type: ignore[list-item]  # as far as it is needed
    assert leader.avoided == set(leader.readers[0][1:])
    case.rows[N1] = said(N1)
    case.rule.tick([leader], 0.0)  # type: ignore[list-item]  # as far as it is needed
    assert leader.avoided == {leader.readers[0][2]}


def test_of_two_groups_the_one_with_the_lower_id_waits_longer() -> None:
    took = {}
    for group, other in ((1, 2), (2, 1)):
        leader = Leader(group)
        took[group] = Case(said(N0, other), said(N1), said(N2)).ticks_to_hand_over(leader)
    assert took[1] > LOWER_ID * PATIENCE_TICKS >= took[2] + PATIENCE_TICKS


def test_patience_doubles_with_each_hand_over_until_the_group_was_left_alone() -> None:
    leader = Leader(5)
    case = Case(said(N0, 1), said(N1), said(N2))
    took = [case.ticks_to_hand_over(leader) for _ in range(10)]
    for at, ticks in enumerate(took):
        least = PATIENCE_TICKS << min(at, 6)
        assert least < ticks <= least + PATIENCE_TICKS
    case.rows[N0] = said(N0)
    for _ in range(1 + (CALM_TICKS << 6)):
        case.rule.tick([leader], 0.0)  # type: ignore[list-item]  # as far as it is needed
    case.rows[N0] = said(N0, 1)
    assert case.ticks_to_hand_over(leader) <= 2 * PATIENCE_TICKS


def test_it_asks_again_if_no_member_could_be_asked() -> None:
    leader = Leader(5)
    leader.hears = False
    case = Case(said(N0, 1), said(N1), said(N2))
    case.ticks_to_hand_over(leader)
    assert case.rule.count == 0
    assert case.ticks_to_hand_over(leader) == 1


def test_it_hands_over_to_anyone_if_a_quorum_has_told_that_it_reads_too_slowly() -> None:
    leader: Any = Leader(5)
    case = Case(said(N0), said(N1), said(N2))

    def told_by(*nodes: NodeId) -> int:
        """Return how often it hands over while these nodes tell that they have dropped their queues."""
        before = case.rule.count
        for node in nodes:
            case.behind[node] += 1
        for _ in range(BEHIND_TICKS):
            case.rule.tick([leader], 0.0)
        return case.rule.count - before

    assert told_by() == 0
    assert told_by(N1) == 0
    assert told_by(N2) == 0, "the other one has told so too long ago"
    assert told_by(N1, N2) == 1
    assert leader.asked == [[]]
    assert told_by(N1, N2) == 0, "not again so soon"
    assert told_by() + told_by() == 0
    assert told_by(N1, N2) == 1
