"""How long a node gathers, by what is under way."""

from __future__ import annotations

from kvstore.node.pace import EACH_S, FEW, MOST_S, gather_s


def test_a_lone_message_waits_for_no_other() -> None:
    assert [gather_s(under_way) for under_way in range(FEW)] == [0.0] * FEW


def test_the_more_is_under_way_the_longer_a_node_gathers_up_to_a_bound() -> None:
    times = [gather_s(under_way) for under_way in range(FEW, 1000)]
    assert times == sorted(times)
    assert times[0] == FEW * EACH_S
    assert times[-1] == MOST_S
