"""A leader that is about to stop hands over: the group goes on without waiting for a time-out."""

from __future__ import annotations

from typing import Any

import pytest

from multicast import PROTOCOLS, Protocol
from multicast.messages import Deliver, Deliveries, HandOver
from multicast.protocol import Timing
from multicast.types import Process
from tests.sim.schedules import G0, G1, Story

MANY = [protocol for name, protocol in PROTOCOLS.items() if name != "skeen"]


def hand_over(story: Story) -> bool:
    host = story.hosts[story.leader_first(G0)[0]]
    assert host.replica is not None
    asked = host.replica.hand_over(host.local(story.loop.now))
    host._drain()
    return asked


@pytest.mark.parametrize("protocol", MANY)
def test_the_group_has_another_leader_at_once(protocol: type[Protocol]) -> None:
    story = Story(protocol, 2, 3, Timing())
    old = story.leader_first(G0)[0]
    for _ in range(5):
        story.multicast(G0, G1)
    story.wait(0.0035)  # in the middle of things
    assert hand_over(story)
    story.wait(0.02)  # twenty delays: far less than any time-out
    new = story.leader_first(G0)[0]
    assert new != old
    story.down(old)
    story.hand(story.multicast(G0, G1), new, wait_s=0.02)
    assert len(story.hosts[new].log) == 6
    story.finish()


@pytest.mark.parametrize("protocol", MANY)
def test_who_has_executed_most_is_asked(protocol: type[Protocol]) -> None:
    story = Story(protocol, 1, 3, Timing())
    behind = story.topology.members(G0)[1]
    story.lose(lambda s, t, m: isinstance(m, Deliver) and t == behind)
    for _ in range(5):
        story.multicast(G0, wait_s=0.03)
    asked: list[Process] = []

    def watch(source: Process, target: Process, message: Any) -> bool:
        if isinstance(message, HandOver):
            asked.append(target)
        return isinstance(message, Deliver) and target == behind

    story.lose(watch)
    assert hand_over(story)
    assert asked == [story.topology.members(G0)[2]]


def test_nobody_to_ask() -> None:
    alone = Story(PROTOCOLS["whitebox"], 1, 1, Timing())
    assert not hand_over(alone)
    story = Story(PROTOCOLS["whitebox"], 1, 3, Timing())
    leader = story.leader_first(G0)[0]
    story.isolate(leader)
    story.wait(0.5)
    replica = story.hosts[leader].replica
    assert replica is not None
    assert replica.is_leader
    assert not replica.hand_over(story.loop.now)


def test_a_late_request_is_ignored() -> None:
    """A request of a leader that has been deposed since must not depose its successor."""
    story = Story(PROTOCOLS["whitebox"], 1, 3, Timing())
    old, new, third = story.topology.members(G0)
    replica: Any = story.hosts[old].replica
    request = HandOver(replica.cballot)
    story.nominate(new, wait_s=0.02)
    assert story.leader(G0) == new
    story._arrived(old, third, request)
    story.wait(0.02)
    assert story.leader(G0) == new


@pytest.mark.parametrize("protocol", MANY)
def test_who_should_lead_gets_the_group_back_once_it_has_been_well_for_long(protocol: type[Protocol]) -> None:
    story = Story(protocol, 1, 3, Timing(give_back_s=3.0))
    first = story.leader_first(G0)[0]
    assert first == story.topology.preferred_leader(G0)
    story.crash(first, 1.0)
    story.wait(2.0)
    second = story.leader(G0)
    assert second not in (None, first)
    story.crash(first, 0.6)  # it was back, but not for good: the time counts from its return
    story.wait(3.2)
    assert story.leader(G0) == second
    story.wait(1.0)
    assert story.leader(G0) == first
    story.multicast(G0)
    story.finish()


@pytest.mark.parametrize("protocol", MANY)
def test_who_is_behind_does_not_get_the_group_back(protocol: type[Protocol]) -> None:
    story = Story(protocol, 1, 3, Timing(give_back_s=1.0))
    first = story.leader_first(G0)[0]
    story.crash(first, 2.0)
    story.wait(1.5)
    second = story.leader(G0)
    story.lose(lambda s, t, m: t == first and isinstance(m, Deliver | Deliveries))
    story.multicast(G0, wait_s=5.0)
    assert story.leader(G0) == second != first
    story.lose(None, wait_s=3.0)
    assert story.leader(G0) == first
    story.finish()
