"""Changes of membership complete, whichever replicas are lost, evicted or restarted meanwhile."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from multicast.errors import InvalidArgument
from multicast.messages import Deliver, Deliveries, Heartbeat, Join, Members, Multicast, about
from multicast.numbering import Numbering
from multicast.protocol import Protocol, Timing
from multicast.sim.checkers import Violation
from multicast.skeen import FastCast, FtSkeen
from multicast.types import ClientId, Process, ReplicaId
from multicast.whitebox import WhiteBox
from tests.sim.membership_schedules import version
from tests.sim.schedules import G0, Story

PROTOCOLS = (WhiteBox, FtSkeen, FastCast)


@pytest.fixture(params=PROTOCOLS)
def story(request: pytest.FixtureRequest) -> Story:
    """One group of three replicas."""
    return Story(request.param, 1, 3, Timing())


def until_version(story: Story, wanted: int, seconds: float = 5.0) -> None:
    """Wait until a replica has learned this step."""
    found = story.run_until(lambda: story.topology.membership(G0).version >= wanted, story.loop.now + seconds)
    assert found, story.topology.membership(G0)


def finish(story: Story) -> None:
    """Check that everything completes within a minute."""
    try:
        story.finish()
    except Violation as violation:
        pytest.fail(str(violation))


def test_an_evicted_leader_finds_another_heir_when_the_first_has_lost_its_disk(story: Story) -> None:
    """The leader hands over to the first member of both configurations, which is down."""
    leader, heir, _ = story.topology.members(G0)
    assert story.leader(G0) == leader
    story.restart(story.successor(leader, evict=True))
    until_version(story, 2)
    story.down(heir)
    story.replace(heir, 0.0)
    finish(story)


def test_an_evicted_leader_finds_another_heir_when_the_first_is_in_a_higher_ballot(story: Story) -> None:
    """The heir has promised a ballot that no leader opened; the leader, a member no more, cannot pass it."""
    leader, heir, _ = story.topology.members(G0)
    story.isolate(heir)
    story.hosts[heir].nominate()
    new = story.successor(leader, evict=True)
    story.restart(new)
    until_version(story, 2)
    story.network.heal()
    finish(story)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_only_member_of_a_group_can_be_replaced(protocol: type[Protocol]) -> None:
    """Its leader has no other member to hand over to."""
    story = Story(protocol, 1, 1, Timing())
    (only,) = story.topology.members(G0)
    story.multicast(G0, wait_s=0.3)
    new = story.successor(only, evict=True)
    change = story.topology.membership(G0).replace(only, new, "")
    for step in (
        change,
        change.completed(),
    ):  # alone, a leader proposes without a word, and checkers hear none
        story.multicasts.add(Multicast(step.mid, (G0,), step.encode(), 0))
    story.restart(new)
    story.wait(3.0)
    finish(story)
    assert only not in story.topology.members(G0)


def test_a_step_that_does_not_count_does_not_use_up_its_number(story: Story) -> None:
    """A joiner's address is longer than a membership may have. It is no step, but the next one mismatches."""
    leader, _, lost = story.topology.members(G0)
    with pytest.raises(InvalidArgument, match="an address over 255 characters"):
        story.hosts[leader].receive(story.successor(lost), Join("x" * 256, lost))
    story.wait(0.3)
    story.wipe(lost, 0.1)
    finish(story)


def test_no_client_multicasts_steps(story: Story) -> None:
    """What a client sends under the number of a step is not refused, and no step can follow."""
    leader, _, lost = story.topology.members(G0)
    numbers = Numbering(ClientId(0))
    numbers.next((G0,), b"first")
    forged = numbers.next((G0,), b"not a membership")
    story.multicasts.add(forged)
    with contextlib.suppress(InvalidArgument):  # it may be refused, or ordered for nothing
        story.hosts[leader].receive(ClientId(1), forged)
    story.wait(0.3)
    story.wipe(lost, 0.1)
    finish(story)


def test_a_replica_that_accepted_completion_does_not_need_lost_members(story: Story) -> None:
    """The leader learns that the change is complete, and loses its disk before any other replica learns it.

    One disk of each configuration is lost at a time; the one that counts by then has two of three.
    """
    leader, _, lost = story.topology.members(G0)
    story.wipe(lost, 0.0)
    until_version(story, 2)
    story.lose(lambda s, t, m: isinstance(m, Deliver | Deliveries | Heartbeat | Members)
               and version(story, s) > 2 if isinstance(s, ReplicaId) else False)  # fmt: skip
    until_version(story, 3)
    leader = next(who for who in story.topology.members(G0) if version(story, who) == 3)
    assert story.survives_without(leader)
    story.wipe(leader, 0.0)
    story.lose(None)
    story.multicast(G0)
    finish(story)


def test_a_retired_replica_does_not_come_back(story: Story) -> None:
    """A leader that restarts knows only the newest members, and takes a retired one for a new one."""
    first = story.topology.members(G0)[2]
    second = story.successor(first, evict=True)
    story.restart(second)
    until_version(story, 3)
    story.wait(0.5)
    third = story.successor(second, evict=True)
    story.isolate(second)
    story.restart(third)
    until_version(story, 5)
    story.wait(0.5)
    for member in story.topology.members(G0):
        story.down(member)
        story.restart(member)
        story.wait(2.0)
    story.network.heal()
    story.wait(5.0)
    assert story.topology.members(G0)[2] == third
    assert story.topology.membership(G0).version == 5


def test_a_retired_replica_tells_clients_who_replaced_it(story: Story) -> None:
    """All first members are retired: each promised the ballot that left it out, and so it is recovering.

    A client that knows only them hears nothing, for ever; and so does another group.
    """
    first = story.topology.members(G0)
    for count, old in enumerate(first):
        story.restart(story.successor(old, evict=True))
        until_version(story, 2 * count + 3)
        story.wait(1.0)
    late: Any = story.clients[ClientId(2)]
    late.submit((G0,), b"who is there?")
    story.wait(20.0)
    assert late.idle


def test_a_step_that_was_only_accepted_is_no_fact(story: Story) -> None:
    """One member has accepted that the change is complete, and so needs fewer promises: but as long as that
    is not decided, no replica may use it as a step, for the next step would have no predecessor.
    """
    leader, other, old = story.topology.members(G0)
    new = story.successor(old, evict=True)
    story.restart(new)

    def steps(source: Process, target: Process, message: Any) -> bool:
        """The step reaches the other member only; and the leader's disk is slow."""
        return target != other and completed.mid in about(message)

    until_version(story, 2)
    completed = story.topology.membership(G0).completed()
    story.lose(steps)
    first: Any = story.hosts[leader].replica
    story.run_until(lambda: first.is_leader and first.cballot.configuration == 1, story.loop.now + 3.0)
    story.wait(0.02)
    story.hosts[leader].stalled_until = story.loop.now + 60.0
    second: Any = story.hosts[other].replica
    assert story.run_until(lambda: completed.mid in second.entries, story.loop.now + 3.0)
    story.down(leader)
    story.hosts[leader].stalled_until = 0.0
    story.lose(lambda s, t, m: other in (s, t) and not isinstance(m, Members))
    story.hosts[other].nominate()
    for who in (leader, new):
        story.restart(who)
        story.network.send(other, who, Members(second.membership))
    story.wait(0.1)
    story.down(other)
    story.lose(None, wait_s=3.0)
    story.multicast(G0, wait_s=1.0)
    membership = story.topology.membership(G0)
    assert not membership.is_complete or completed.mid in story.order.sequences[G0]
    finish(story)


@pytest.mark.parametrize("address", ["here", "elsewhere"])
def test_no_machine_replaces_a_member_of_another_by_itself(story: Story, address: str) -> None:
    """A member that an operator put there is down for a while. Only its own machine may replace it."""
    first = story.topology.members(G0)[2]
    second = story.successor(first, evict=True)
    story.hosts[second].address = "here"
    story.restart(second)
    until_version(story, 3)
    story.wait(0.5)
    story.down(second)
    third = story.successor(second)
    story.hosts[third].address = address
    story.restart(third)
    story.wait(5.0)
    assert (story.topology.members(G0)[2] == third) == (address == "here")
