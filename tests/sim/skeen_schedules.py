"""Directed schedules for Skeen's family: see `schedules`."""

from __future__ import annotations

from typing import Any

from multicast import messages as msg
from multicast.protocol import Protocol, Timing
from multicast.types import Process, ReplicaId
from tests.sim.schedules import G0, G1, Story, lower_proposal

NEVER_S = 1000.0
"""How often applications commit, where none of a story's may."""


def executed_by_one(protocol: type[Protocol]) -> None:
    """M's leader has executed it, and leads again with a member that never heard of it; then it falls."""
    story = Story(protocol, 1, 3, Timing())
    old, voter, third = story.leader_first(G0)
    hide = (msg.Deliver, msg.Deliveries, msg.CatchUp)
    story.lose(lambda s, t, m: isinstance(m, hide) or (isinstance(m, msg.Phase2a) and t == third))
    story.multicast(G0, wait_s=0.2)
    assert len(story.hosts[old].log) == 1
    story.lose(lambda s, t, m: isinstance(m, hide) or (isinstance(m, msg.NewLeader) and t == voter))
    story.nominate(old, wait_s=0.2)
    assert story.leader(G0) == old
    story.down(old)
    story.wait(2.0)
    story.multicast(G0, wait_s=2.0)
    story.finish()


def clock_of_the_fallen(protocol: type[Protocol], *, restarts: bool = True) -> None:
    """A quorum voted that the clock passes m's timestamp; one of it is cut off, the other restarts."""
    story = Story(protocol, 2, 3, Timing(retry_s=5.0), NEVER_S)
    old, voter, new = story.leader_first(G0)
    for _ in range(9):
        story.multicast(G1)
    story.wait(0.05)
    story.lose(lambda s, t, m: t == new or (isinstance(m, msg.Deliver) and s == old))
    story.multicast(G0, G1, wait_s=0.02)
    assert len(story.hosts[old].log) == 1
    story.isolate(old)
    if restarts:
        story.crash(voter, 0.001)
        story.wait(0.01)
    story.lose(lambda s, t, m: isinstance(m, msg.Propose))
    story.nominate(new, wait_s=0.15)
    story.hand(story.multicast(G0), new, wait_s=0.05)
    story.lose(None, wait_s=1.0)
    story.finish()


def clock_in_a_promise(protocol: type[Protocol]) -> None:
    """As `clock_of_the_fallen`, without a restart: the promise of the other voter must report the clock."""
    clock_of_the_fallen(protocol, restarts=False)


def delivers_alone(protocol: type[Protocol]) -> None:
    """A leader delivers what its ballot began with; no other process may know that ballot.

    V got a lower timestamp than m in b1, where only the leader voted for it. B2 delivers m and is gone; then
    b1's leader comes back, with a member of b2's quorum.
    """
    story = Story(protocol, 1, 3, Timing())
    old, second, _ = story.leader_first(G0)
    story.lose(lambda s, t, m: isinstance(m, msg.Phase2a))
    story.submit_and_die(b"v", G0, wait_s=0.005)
    story.lose(None)
    story.multicast(G0, wait_s=0.005)
    unheard = (msg.Heartbeat, msg.Deliver)
    story.lose(lambda s, t, m: old in (s, t) or (s == second and isinstance(m, unheard)))
    story.nominate(second, wait_s=0.01)
    assert len(story.hosts[second].log) == 1
    story.down(second)
    story.lose(None)
    story.nominate(old, wait_s=0.02, times=3)
    story.finish()


def two_half_open_ballots(protocol: type[Protocol]) -> None:
    """X and y got one timestamp, in two ballots of which neither got far; a third must not keep both."""
    story = Story(protocol, 1, 3, Timing(retry_s=5.0))
    p, q, r = story.leader_first(G0)
    story.lose(lambda s, t, m: isinstance(m, msg.Phase2a))
    story.submit_and_die(b"x", G0, wait_s=0.005)
    story.lose(
        lambda s, t, m: p in (s, t) or ((s, t) == (q, r) and isinstance(m, (msg.Heartbeat, msg.Phase2a)))
    )
    story.nominate(q, wait_s=0.01)
    story.hand(story.multicast(G0), q, wait_s=0.005)
    story.lose(lambda s, t, m: p in (s, t) or (s == r and isinstance(m, msg.Phase2b)))
    story.nominate(q, wait_s=0.01)
    story.down(q)
    story.lose(None)
    story.nominate(p, wait_s=0.01, times=5)
    story.finish()


def late_proposal(protocol: type[Protocol]) -> None:
    """A follower of b2 learns what b3 decided of m; then b2's proposal of m arrives, and it leads."""
    story = Story(protocol, 2, 5, Timing(retry_s=5.0))
    a, b, _, d, e = story.topology.members(G0)
    remote = story.leader_first(G1)[0]
    assert story.leader(G0) == a

    def first(s: Process, t: Process, m: Any) -> bool:
        late = isinstance(m, msg.CatchUp) and s == e
        return story.hold(s, t, m) if late else isinstance(m, msg.Deliver) and t == e

    story.lose(first)
    story.multicast(G0, wait_s=0.15)
    asked = story.held.pop()
    hide = (msg.Deliver, msg.Deliveries, msg.CatchUp)
    story.lose(lambda s, t, m: a in (s, t) or d in (s, t) or isinstance(m, hide))
    story.nominate(b, wait_s=0.02)
    assert story.leader(G0) in (a, b)
    story.held.clear()

    def slow(s: Process, t: Process, m: Any) -> bool:
        if isinstance(m, msg.Phase2a) and s == b:
            return story.hold(s, t, m) if t == e else True
        return a in (s, t) or d in (s, t)

    story.lose(slow)
    message = story.mortal.submit([G0, G1], b"decided twice?")
    story.hand(message, b, wait_s=0.005)
    late = story.held.pop(0)

    def apart(s: Process, t: Process, m: Any) -> bool:
        sides = [x in (b, e) for x in (s, t) if isinstance(x, ReplicaId) and x.group == G0]
        return len(set(sides)) > 1 or (s, t) == (b, e)

    story.lose(apart)
    story.nominate(a, wait_s=0.01, times=3)
    filler = story.client.submit([G0], b"filler")
    story.hand(filler, a, wait_s=0.01)
    story.hand(message, a)
    story.ask_again(message, a, remote, wait_s=0.02)
    assert len(story.hosts[a].log) == 3
    story.lose(lambda s, t, m: not isinstance(m, (msg.CatchUp, msg.Deliveries)) and apart(s, t, m))
    story.send(*asked, wait_s=0.01)
    assert len(story.hosts[e].log) == 3
    story.lose(None)
    story.network.send(*late)
    story.lose(apart, wait_s=0.005)
    story.lose(None)
    story.nominate(e, wait_s=0.02, times=5)
    story.ask_again(message, remote, e, wait_s=0.05)
    story.finish()


def votes_for_the_deposed(protocol: type[Protocol]) -> None:
    """A deposed leader still reaches a member that follows another; that member must not help it."""
    story = Story(protocol, 1, 3, Timing(retry_s=5.0))
    old, new, torn = story.leader_first(G0)
    alive = (msg.Phase2a, msg.Phase2b)
    story.lose(lambda s, t, m: old in (s, t))
    story.nominate(new, wait_s=0.02)
    story.lose(lambda s, t, m: old in (s, t) and not (torn in (s, t) and isinstance(m, alive)))
    one, other = story.multicast(G0), story.multicast(G0)
    story.hand(one, old)
    story.hand(other, new, wait_s=0.02)
    story.finish()


def votes_of_another_ballot(protocol: type[Protocol]) -> None:
    """Votes that b1's leader got for m arrive when it leads again, and proposes another timestamp for m."""
    story = Story(protocol, 2, 5, Timing(retry_s=5.0))
    a, b, c, d, _ = story.topology.members(G0)

    def late_votes(s: Process, t: Process, m: Any) -> bool:
        late = isinstance(m, msg.Phase2b) and s == c
        return story.hold(s, t, m) if late else isinstance(m, msg.Phase2a) and t != c

    story.lose(late_votes)
    message = story.submit_and_die(b"m", G0, G1, wait_s=0.01)
    late = story.held[0]
    story.lose(lambda s, t, m: a in (s, t) or c in (s, t))
    story.nominate(b, wait_s=0.05)
    assert story.leader(G0) in (a, b)
    story.hand(story.multicast(G0), b, wait_s=0.02)
    story.lose(lambda s, t, m: b in (s, t) or c in (s, t))
    story.nominate(a, wait_s=0.02, times=3)
    assert story.leader(G0) == a
    story.lose(lambda s, t, m: b in (s, t) or c in (s, t) or (isinstance(m, msg.Phase2a) and t != d))
    story.hand(message, a, wait_s=0.01)
    story.lose(None)
    story.network.send(*late)
    story.finish(after_s=0.05)


def speculation_fails(protocol: type[Protocol]) -> None:
    """A leader sends the other group a high timestamp, and dies; its group decides a lower one."""
    lower_proposal(protocol, msg.Phase2a)


def speculation_fails_unanswered(protocol: type[Protocol]) -> None:
    """As `speculation_fails`; and no member votes on the clock that was speculated with."""
    lower_proposal(
        protocol,
        msg.Phase2a,
        also=lambda s, t, m: isinstance(m, msg.Phase2a) and bool(m.clocks.mids),
        later=lambda s, t, m: isinstance(m, msg.Phase2a) and max(m.clocks.global_ts, default=0) >= 11 << 10,
    )
