"""Directed schedules for delivery at every replica: what a follower must not deliver yet.

In each, a follower of group 0 is about to deliver something although a message that it does not know of, or
that is not committed yet, comes before it. As in `schedules`, links take a millisecond and disks none.
"""

from __future__ import annotations

from typing import Any

from multicast.messages import Accept, AcceptAck, CatchUp, Deliveries, Heartbeat, Multicast
from multicast.protocol import Protocol, Timing
from multicast.types import MessageId, Process, ReplicaId
from tests.sim.schedules import G0, G1, Rule, Story

PATIENT = Timing(retry_s=5.0)
"""No process retries anything during a schedule."""


def _lost_to(follower: ReplicaId, kind: type[Any]) -> Rule:
    def rule(source: Process, target: Process, message: Any) -> bool:
        return target == follower and isinstance(message, kind) and getattr(message, "group", G0) == G0

    return rule


def _unheard_in_group_1(source: Process, target: Process, message: Any) -> bool:
    """Group 1 gets no request, and no proposal: what is multicast to it stays proposed by group 0 alone."""
    return isinstance(target, ReplicaId) and target.group == G1 and isinstance(message, (Accept, Multicast))


def _pending(story: Story) -> MessageId:
    """Something for both groups, whose client dies."""
    return story.submit_and_die(b"proposed by one group", G0, G1, wait_s=0.01)


def lost_before_the_next(protocol: type[Protocol]) -> None:
    """A proposal is lost to the follower; the next one arrives, and is committed."""
    story = Story(protocol, 1, 3, PATIENT)
    _, follower, _ = story.leader_first(G0)
    story.lose(_lost_to(follower, Accept))
    story.multicast(G0, wait_s=0.002)
    story.lose(None)
    story.multicast(G0, wait_s=0.02)
    story.finish()


def lost_at_the_end(protocol: type[Protocol]) -> None:
    """The last proposal is lost to the follower; an earlier one gets a higher timestamp from group 1."""
    story = Story(protocol, 2, 3, PATIENT)
    _, follower, _ = story.leader_first(G0)
    story.raise_clock(story.leader_first(G1)[0], 100)
    story.multicast(G0, G1, wait_s=0.0005)
    lower = story.multicast(G0)
    story.lose(lambda s, t, m: t == follower and isinstance(m, Accept) and lower in m.mids, wait_s=0.02)
    story.lose(None)
    story.finish()


def lost_and_not_committed(protocol: type[Protocol]) -> None:
    """A proposal is lost to the follower, and waits at the leader while heartbeats pass."""
    story = Story(protocol, 2, 3, PATIENT)
    _, follower, _ = story.leader_first(G0)
    lost = _lost_to(follower, Accept)
    story.lose(lambda s, t, m: lost(s, t, m) or _unheard_in_group_1(s, t, m))
    _pending(story)
    story.lose(_unheard_in_group_1, wait_s=0.25)
    story.multicast(G0, wait_s=0.02)
    story.finish()


def lost_and_delivered(protocol: type[Protocol]) -> None:
    """A proposal is lost to the follower, and delivered by the leader; the follower cannot catch up."""
    story = Story(protocol, 1, 3, PATIENT)
    _, follower, _ = story.leader_first(G0)
    story.lose(_lost_to(follower, Accept))
    story.multicast(G0, wait_s=0.01)
    story.lose(lambda s, t, m: isinstance(m, (CatchUp, Deliveries)), wait_s=0.25)
    story.multicast(G0, wait_s=0.02)
    story.finish()


def forgotten(protocol: type[Protocol]) -> None:
    """What only the own leader has proposed expires at the follower, which then catches up otherwise."""
    story = Story(protocol, 2, 3, Timing(retry_s=5.0, orphan_s=0.05))
    _, follower, _ = story.leader_first(G0)
    story.lose(_lost_to(follower, AcceptAck))
    story.multicast(G0, wait_s=0.01)
    silent = _lost_to(follower, Heartbeat)
    story.lose(lambda s, t, m: silent(s, t, m) or _unheard_in_group_1(s, t, m))
    mid = _pending(story)
    story.wait(0.25)
    replica: Any = story.hosts[follower].replica
    assert mid not in replica.entries
    story.lose(_unheard_in_group_1, wait_s=0.25)
    assert len(story.hosts[follower].log) == 1
    story.multicast(G0, wait_s=0.02)
    story.finish()


def proposed_by_one_group(protocol: type[Protocol]) -> None:
    """The follower knows a proposal that group 1 has not answered; something higher is committed."""
    story = Story(protocol, 2, 3, PATIENT)
    story.lose(_unheard_in_group_1)
    _pending(story)
    story.multicast(G0, wait_s=0.02)
    story.finish()


def committed_without_the_leader(protocol: type[Protocol]) -> None:
    """All but the leader have accepted a high timestamp; the leader goes on to propose lower ones."""
    story = Story(protocol, 2, 3, PATIENT)
    leader = story.leader_first(G0)[0]
    story.raise_clock(story.leader_first(G1)[0], 100)
    story.lose(lambda s, t, m: t == leader and isinstance(m, Accept) and m.group == G1)
    story.multicast(G0, G1, wait_s=0.01)
    story.multicast(G0, wait_s=0.01)
    story.finish()
