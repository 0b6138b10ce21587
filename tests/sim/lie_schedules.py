"""Directed schedules with a peer that is wrong: it tells what no correct one does. See `schedules`.

The liar is a member of the group, authenticated, and speaks for itself only: that is what authentication
leaves. What a replica refuses costs the liar its connection, and nothing else.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from multicast import messages as msg
from multicast.durable import Checkpoint
from multicast.errors import PeerViolation
from multicast.membership import Configuration, Membership
from multicast.protocol import Protocol, Timing
from multicast.sim.checkers import Violation
from multicast.sim.host import LogSnapshot
from multicast.types import (
    NUMBER_JUMP,
    Ballot,
    ClientId,
    MessageId,
    Process,
    ReplicaId,
    digest_of,
    time_of,
    timestamp,
)
from tests.sim import lie_mutants
from tests.sim.schedules import G0, Rule, Story

ABSURD: Final = 2**63 - 1


class LyingStory(Story):
    """A group of three, whose last member is down; the schedule speaks for it."""

    def __init__(self, protocol: type[Protocol], timing: Timing | None = None) -> None:
        super().__init__(protocol, 1, 3, timing or Timing(give_back_s=1000.0))
        self.leading, self.second, self.liar = self.leader_first(G0)
        self.lose(None)
        for _ in range(3):
            self.multicast(G0)
        self.wait(0.5)
        self.down(self.liar)

    def lose(self, rule: Rule | None, wait_s: float = 0.0) -> None:
        """Also lose what is for replicas that do not exist: lies name some."""

        def loses(source: Process, target: Process, message: Any) -> bool:
            absent = isinstance(target, ReplicaId) and target not in self.hosts
            return absent or (rule is not None and rule(source, target, message))

        super().lose(loses, wait_s)

    def lie(self, message: Any, source: ReplicaId | None = None, wait_s: float = 0.0) -> None:
        """Tell it to both other members; what they refuse is only lost."""
        for target in (self.leading, self.second):
            self._arrived(source or self.liar, target, message)
        self.wait(wait_s)

    def _receive(self, source: Process, target: ReplicaId, message: object) -> None:
        with contextlib.suppress(PeerViolation):
            super()._receive(source, target, message)

    def replicas(self) -> list[Any]:
        return [self.hosts[member].replica for member in (self.leading, self.second)]

    def expect(self, what: str, *, holds: bool) -> None:
        if not holds:
            raise Violation("Lies", what)

    def go_on(self) -> None:
        """The two others order messages, also after a change of leader; then the third comes back."""
        for _ in range(3):
            self.multicast(G0)
        self.wait(1.0)
        self.expect("a lie stops the group", holds=not self.client.sender.pending)
        self.nominate(self.second, wait_s=1.0)
        self.multicast(G0, wait_s=1.0)
        self.expect("a lie stops the next leader", holds=not self.client.sender.pending)
        self.finish(after_s=1.0)

    def unchanged(self) -> None:
        """No lie about members was believed."""
        versions = [replica.membership.version for replica in self.replicas()]
        self.expect(f"versions {versions} of the membership", holds=versions == [1, 1])


def outsiders(story: LyingStory, number: int) -> Membership:
    members = story.topology.members(G0)
    return Membership(Configuration(G0, number, [m._replace(incarnation=77 + m.number) for m in members]))


def forged_members(protocol: type[Protocol]) -> None:
    """A member tells that the group is in the hands of outsiders, who say so, too: one of them."""
    story = LyingStory(protocol)
    for number in (1, 5, 2**40):
        forged = outsiders(story, number)
        story.lie(msg.Members(forged), wait_s=0.1)
        story.lie(msg.Members(forged), forged.current.members[0], wait_s=0.1)
    story.unchanged()
    story.go_on()


def forged_by_a_stranger(protocol: type[Protocol]) -> None:
    """A replica that is not a member tells that it has replaced one: the next step, if a member told it."""
    story = LyingStory(protocol)
    known = story.topology.membership(G0)
    for old in known.current.members:
        stranger = old._replace(incarnation=99)
        for forged in (known.replace(old, stranger, ""), known.replace(old, stranger, "").completed()):
            story.lie(msg.Members(forged), stranger, wait_s=0.1)
    story.unchanged()
    story.go_on()


def absurd_ballots(protocol: type[Protocol]) -> None:
    """A member asks for the last ballot that there can be, in every message that names one."""
    story = LyingStory(protocol)
    ballot = Ballot(ABSURD, story.liar, 0)
    for lie in (
        msg.PreVote(ballot), msg.NewLeader(ballot), msg.Heartbeat(ballot, timestamp(0, G0), ()),
        msg.Hint(G0, ballot), msg.HeartbeatAck(ballot, ballot, timestamp(0, G0)),
        msg.NewState(ballot, 0, msg.StatePart(1, 0, 1), ()), msg.HandOver(ballot),
    ):  # fmt: skip
        story.lie(lie, wait_s=0.05)
    story.wait(2.0)
    numbers = [max(replica.highest_number, replica.ballot.number) for replica in story.replicas()]
    story.expect(f"ballot numbers {numbers}", holds=max(numbers) < 100)
    story.go_on()


def ballots_by_leaps(protocol: type[Protocol]) -> None:
    """A member goes as far as it may, as often as it can."""
    story = LyingStory(protocol)
    begun = story.loop.now
    for _ in range(400):
        number = max(replica.highest_number for replica in story.replicas())
        story.lie(msg.Hint(G0, Ballot(number + NUMBER_JUMP, story.liar, 0)), wait_s=0.005)
    leaps = max(replica.highest_number for replica in story.replicas()) // NUMBER_JUMP
    most = 2 * ((story.loop.now - begun) / story.scenario.timing.election_s + 1)
    story.expect(f"{leaps} leaps", holds=leaps <= most)
    story.go_on()


def unasked_snapshot(protocol: type[Protocol]) -> None:
    """A member sends an empty state from far ahead; then the leader hands over to the member that took it."""
    story = LyingStory(protocol)
    ahead = Checkpoint(position=timestamp(10**6, G0), executed=timestamp(10**6, G0))
    for number in range(3):
        story._arrived(story.liar, story.second, LogSnapshot(ahead, (), number))
    story.wait(0.1)
    story.expect("a snapshot that was not asked for", holds=len(story.hosts[story.second].log) == 3)
    story.go_on()


def snapshot_of_another_member(protocol: type[Protocol]) -> None:
    """A follower asks its leader for what it missed; another member answers, with another number."""
    story = LyingStory(protocol)
    story.lose(
        lambda s, t, m: isinstance(m, (msg.Deliver, msg.Deliveries, LogSnapshot)) and t == story.second
    )
    for _ in range(3):
        story.multicast(G0)
    story.wait(0.5)
    asked: Any = story.hosts[story.second].replica
    story.expect("it has asked", holds=bool(asked.asked) or story.leader(G0) == story.second)
    ahead = Checkpoint(position=timestamp(10**6, G0), executed=timestamp(10**6, G0))
    numbers = [number for number, _ in asked.asked.values()]
    for number in (*numbers, *(number + 1 for number in numbers), 0):
        story._arrived(story.liar, story.second, LogSnapshot(ahead, (), number))
    story.expect("a snapshot of another member", holds=len(story.hosts[story.second].log) == 3)
    story.lose(None, wait_s=0.5)
    story.go_on()


def unasked_deliveries(protocol: type[Protocol]) -> None:
    """A member sends what the group has never ordered, as if it followed the last delivery."""
    story = LyingStory(protocol)
    replica: Any = story.hosts[story.second].replica
    mid = MessageId(ClientId(9), 1, digest_of((G0,), b"never ordered"))
    last = replica.last_delivered
    at = timestamp(time_of(last) + 1, G0)
    forged = msg.Delivery(mid, (G0,), b"never ordered", 1, at, at, last, mismatch=False)
    story.lie(msg.Deliveries((forged,), at), wait_s=0.05)
    story.go_on()


def usurped_hand_over(protocol: type[Protocol]) -> None:
    """A member that does not lead asks another to lead, again and again: the leader stays."""
    story = LyingStory(protocol)
    before = [replica.ballot.number for replica in story.replicas()]
    cballot = story.replicas()[0].cballot
    for _ in range(20):
        for ballot in (cballot, cballot._replace(leader=story.liar)):
            story.lie(msg.HandOver(ballot), wait_s=0.02)
    after = [replica.ballot.number for replica in story.replicas()]
    story.expect(f"ballots {after} after {before}", holds=after == before)
    story.go_on()


TRIALS: Final = [
    (forged_members, lie_mutants.BelievesAnyMembers),
    (forged_members, lie_mutants.BelievesAJumpFromOneMember),
    (forged_by_a_stranger, lie_mutants.BelievesAnyMembers),
    (forged_by_a_stranger, lie_mutants.BelievesStrangers),
    (absurd_ballots, lie_mutants.AnyBallotNumber),
    (ballots_by_leaps, lie_mutants.JumpsAtAnyRate),
    (unasked_snapshot, lie_mutants.TakesAnySnapshot),
    (snapshot_of_another_member, lie_mutants.TakesASnapshotOfAnyMember),
    (unasked_deliveries, lie_mutants.TakesAnyDeliveries),
    (usurped_hand_over, lie_mutants.HandsOverToAnyone),
]
