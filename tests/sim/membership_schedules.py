"""Directed schedules of lost disks and changes of membership. See `schedules`."""

from __future__ import annotations

from typing import Any

from multicast import messages as msg
from multicast.durable import Durable
from multicast.protocol import Protocol, Timing
from multicast.sim.checkers import Execution, RolledBack, Violation
from multicast.sim.host import Commit, DiskCopy
from multicast.sim.invariants.skeen import Promises
from multicast.sim.invariants.whitebox import Monotone
from multicast.types import Process, ReplicaId
from tests.sim.schedules import G0, Never, Story

PROPOSALS = (msg.Accept, msg.Phase2a)
DELIVERIES = (msg.Deliver, msg.Deliveries)


def story_of(protocol: type[Protocol], replicas: int = 3) -> tuple[Story, list[ReplicaId]]:
    """One group, led by its first member."""
    story = Story(protocol, 1, replicas, Timing(retry_s=5.0))
    members = list(story.topology.members(G0))
    assert story.leader(G0) == members[0]
    return story, members


def replaced(protocol: type[Protocol]) -> None:
    """A follower's disk is lost; then another one's, then the leader's. All are made good."""
    story = Story(protocol, 1, 3, Timing())
    members = story.topology.members(G0)
    for lost in (members[1], members[2], members[0]):
        for _ in range(3):
            story.multicast(G0)
        story.wait(0.3)
        story.wipe(lost, 0.2)
        story.multicast(G0, wait_s=4.0)
        assert story.topology.membership(G0).is_complete
        assert lost not in story.topology.members(G0)
    assert story.topology.membership(G0).current.number == 3
    story.finish()


def evicted(protocol: type[Protocol]) -> None:
    """An operator replaces members that are well: a follower, and the leader, which hands over."""
    story = Story(protocol, 1, 3, Timing())
    members = story.topology.members(G0)
    for old in (members[2], members[0]):
        story.restart(story.successor(old, evict=True))
        for _ in range(3):
            story.multicast(G0)
        story.wait(3.0)
        assert story.topology.membership(G0).is_complete
        assert old not in story.topology.members(G0)
        assert story.leader(G0) != old
        story.multicast(G0)
    story.finish()


def two_disks(protocol: type[Protocol]) -> None:
    """Two of five disks are lost at once: both are replaced, one after the other. Settling takes a while."""
    story = Story(protocol, 1, 5, Timing(), commit_s=1.5)
    lost = story.topology.members(G0)[3:]
    slow = [story.hosts[member] for member in story.topology.members(G0)[:2]]
    for host in slow:
        host.late = Never()
    story.multicast(G0, wait_s=2.0)
    for replica in lost:
        story.down(replica)
        story.replace(replica, 0.0)
    story.wait(4.0)
    for host in slow:
        host.late = None
    story.wait(8.0)
    if story.topology.membership(G0).version != 5:
        raise Violation("Membership", f"{story.topology.membership(G0)} is all that came of it")
    story.finish()


def not_needed(protocol: type[Protocol]) -> None:
    """A replica turns up under the number of one that is well: it stays outside."""
    story, members = story_of(protocol)
    story.multicast(G0)
    outsider = story.successor(members[2])
    story.restart(outsider)
    story.wait(5.0)
    assert story.topology.members(G0) == tuple(members)
    story.hosts[outsider].gone = True
    story.down(outsider)
    story.finish()


def wiped(protocol: type[Protocol], *, under_its_old_identity: bool) -> None:
    """M is accepted by three of five; one of them returns empty, and votes with those that do not know m."""
    story, (leader, one, forgetful, *others) = story_of(protocol, 5)
    story.wait(0.5)
    story.lose(lambda s, t, m: t in others and isinstance(m, (*PROPOSALS, *DELIVERIES)))
    story.multicast(G0, wait_s=0.02)
    assert len(story.hosts[leader].log) == 1
    story.lose(None)
    story.down(leader)
    story.down(one)
    if under_its_old_identity:
        roll_back(story, forgetful, DiskCopy(Durable(), Commit(), ()))
    else:
        story.down(forgetful)
        story.replace(forgetful, 0.0)
    story.nominate(others[0], wait_s=0.3, times=3)
    story.multicast(G0, wait_s=1.0)
    story.finish()


def back_on_a_new_disk(protocol: type[Protocol]) -> None:
    """As it must be: the replica that lost its disk has a new identity, and the group waits."""
    wiped(protocol, under_its_old_identity=False)


def back_under_its_old_identity(protocol: type[Protocol]) -> None:
    """As it must not be; but the others remember more than an empty disk."""
    wiped(protocol, under_its_old_identity=True)


def roll_back(story: Story, replica: ReplicaId, copy: DiskCopy | None = None) -> None:
    """Restart a replica from its last copy, or from this one."""
    # The loss must be noticed by its effects, not by a checker that knows what was promised.
    story.ignore(Monotone, Promises, Execution, RolledBack)
    story.down(replica)
    host = story.hosts[replica]
    host.roll_back(host.copies[-1] if copy is None else copy)
    story.restart(replica)


def rolled_back(protocol: type[Protocol], *, restarts: bool = False) -> None:
    """M is accepted by the leader and by a replica that returns with an older disk. The third knows what the
    second has counted, and does not know m.
    """
    story, (leader, ignorant, forgetful) = story_of(protocol)
    story.wait(0.5)
    story.hosts[forgetful].copy_disk()
    story.lose(lambda s, t, m: t == ignorant and isinstance(m, (*PROPOSALS, *DELIVERIES)))
    story.multicast(G0, wait_s=3.0)
    assert len(story.hosts[leader].log) == 1
    assert not story.hosts[ignorant].log
    story.down(leader)
    if restarts:
        story.down(ignorant)
        story.restart(ignorant)
    roll_back(story, forgetful)
    story.lose(None)
    story.nominate(ignorant, wait_s=0.3, times=3)
    story.multicast(G0, wait_s=1.0)
    story.finish()


def rolled_back_while_another_restarts(protocol: type[Protocol]) -> None:
    """The same, and the third restarts too: what it remembers is in its log."""
    rolled_back(protocol, restarts=True)


def rolled_back_beside_one_that_was_away(protocol: type[Protocol]) -> None:
    """M is accepted by three of five. One of them returns with an older disk, and is answered first by a
    member that was away.
    """
    story, (leader, one, forgetful, other, away) = story_of(protocol, 5)
    story.wait(0.5)
    story.hosts[forgetful].copy_disk()
    story.isolate(away)
    story.lose(lambda s, t, m: t == other and isinstance(m, (*PROPOSALS, *DELIVERIES)))
    story.multicast(G0, wait_s=3.0)
    assert len(story.hosts[leader].log) == 1
    story.down(leader)
    story.down(one)
    story.down(other)
    story.network.heal()
    roll_back(story, forgetful)
    story.wait(0.5)
    story.restart(other)
    story.lose(None)
    story.nominate(other, wait_s=0.3, times=3)
    story.multicast(G0, wait_s=1.0)
    story.finish()


def known_by_the_lost(protocol: type[Protocol]) -> None:
    """M is accepted by the leader and by a replica whose disk is lost then; the third learns of its
    successor, but not of m; the leader crashes.
    """
    story, (leader, ignorant, lost) = story_of(protocol)
    kept_back = (*PROPOSALS, *DELIVERIES, msg.Heartbeat)

    def ignorance(source: Process, target: Process, message: Any) -> bool:
        return target == ignorant and isinstance(message, kept_back)

    story.lose(ignorance)
    story.multicast(G0, wait_s=0.05)
    assert len(story.hosts[leader].log) == 1
    story.down(lost)
    story.replace(lost, 0.0)
    new = story.now_at(lost)
    # The change needs a quorum of the old members: for a moment, the third hears of it, and accepts it.
    story.lose(lambda s, t, m: t == ignorant and isinstance(m, DELIVERIES))
    story.run_until(lambda: story.topology.membership(G0).version > 1, story.loop.now + 3.0)
    assert story.topology.membership(G0).version == 2
    story.lose(lambda s, t, m: isinstance(m, (msg.NewLeader, msg.NewState, msg.CatchUp, msg.Deliver)))
    story.run_until(lambda: all(version(story, who) > 1 for who in (ignorant, new)), story.loop.now + 3.0)
    story.down(leader)
    story.lose(None)
    story.nominate(ignorant, wait_s=1.0)
    story.nominate(ignorant, wait_s=3.0)
    story.finish()


def version(story: Story, who: ReplicaId) -> int:
    """How much a replica knows of its group's membership."""
    replica: Any = story.hosts[who].replica
    return 0 if replica is None else int(replica.membership.version)


def old_members_meet(protocol: type[Protocol]) -> None:
    """M is accepted in the new configuration, by the leader and the new member; then the evicted member,
    which has heard of nothing, asks the third for its vote.
    """
    story, (leader, third, evicted_one) = story_of(protocol)
    new = story.successor(evicted_one, evict=True)

    def deaf(source: Process, target: Process, message: Any) -> bool:
        return evicted_one in (source, target)

    story.lose(deaf)
    story.restart(new)
    story.run_until(lambda: version(story, third) > 2 and bool(story.leader(G0)), story.loop.now + 3.0)
    story.wait(0.5)
    assert story.leader(G0) == leader
    story.lose(
        lambda s, t, m: (
            deaf(s, t, m) or (t == third and isinstance(m, (*PROPOSALS, *DELIVERIES, msg.Heartbeat)))
        )
    )
    story.multicast(G0, wait_s=0.05)
    story.down(leader)
    assert len(story.hosts[leader].log) > 2
    # Those two alone, with a ballot above all others.
    replica: Any = story.hosts[evicted_one].replica
    replica.highest_number = 50
    story.lose(lambda s, t, m: new in (s, t) or isinstance(m, msg.Members))
    story.nominate(evicted_one, wait_s=0.02)
    story.hand(story.multicast(G0), evicted_one, wait_s=0.5)
    story.finish()


def nothing_but_the_collected(protocol: type[Protocol]) -> None:
    """M is executed by two and collected; one of them is replaced, and the other crashes as soon as the
    change is complete.
    """
    story, (leader, away, lost) = story_of(protocol)
    story.lose(lambda s, t, m: t == away and not isinstance(m, msg.PreVote))
    story.multicast(G0, wait_s=0.6)
    replica: Any = story.hosts[leader].replica
    assert not replica.entries, "it is collected"
    new = story.successor(lost, evict=True)
    # The one that was away comes back, but neither it nor the new member learns of any delivery.
    story.lose(lambda s, t, m: t in (away, new) and isinstance(m, DELIVERIES))
    story.restart(new)
    story.run_until(lambda: version(story, leader) == 3, story.loop.now + 3.0)
    for who in (away, new):
        story.network.send(leader, who, msg.Members(replica.membership))
    story.wait(0.01)
    story.down(leader)
    story.isolate(lost)
    story.nominate(away, wait_s=1.0)
    story.lose(None)
    story.multicast(G0, wait_s=1.0)
    story.finish()


def two_changes(protocol: type[Protocol]) -> None:
    """M is accepted by the leader and a member that is then replaced, and so is the third."""
    story, (leader, third, accepting) = story_of(protocol)
    ignorance = (*PROPOSALS, *DELIVERIES, msg.Heartbeat, msg.NewState, msg.NewLeader)

    def rule(source: Process, target: Process, message: Any) -> bool:
        return target not in (leader, accepting) and isinstance(message, ignorance)

    story.lose(rule)
    story.multicast(G0, wait_s=0.05)
    assert len(story.hosts[leader].log) == 1
    first = story.successor(accepting, evict=True)
    second = story.successor(third, evict=True)
    story.restart(first)
    story.wait(0.5)
    story.restart(second)
    story.wait(0.5)
    story.down(leader)
    story.down(accepting)
    story.lose(None)
    for who in (first, second, first):
        story.nominate(who, wait_s=0.4)
    story.multicast(G0, wait_s=1.0)
    story.finish()
