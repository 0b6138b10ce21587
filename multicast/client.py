"""The multicasting process: it numbers messages, sends them to the leaders, and retries until answered.

Like a protocol, it does no I/O: messages and the time go in, sends come out. A message is finished when every
destination group has answered. Only then may `ack_below` pass its number, for groups forget results below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from multicast.claims import MembershipClaims
from multicast.errors import InvalidArgument, UnknownConfiguration
from multicast.membership import Membership
from multicast.messages import Hint, Members, MembersWanted, Multicast
from multicast.numbering import Numbering
from multicast.protocol import Send
from multicast.retries import RetryQueue
from multicast.topology import Topology
from multicast.types import (
    NO_BALLOT,
    NUMBER_JUMP,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    ReplicaId,
    Timestamp,
)

JUMPS = 256
"""How many jumps of a ballot's number a hint may be above the known leader's; beyond it, it is ignored."""

CACHED_MAX = 4096
"""The number of destination sets whose leaders are cached; when it is reached, the cache is cleared."""


@dataclass(slots=True)
class Reply:
    """A group has delivered these messages at these positions. Sent by the host of the group's leader."""

    mids: tuple[MessageId, ...]
    group: GroupId
    positions: tuple[Timestamp, ...]
    """Global timestamps, one for each message."""


@dataclass(slots=True)
class MulticastRefused:
    """A process refuses to order the message for a client, with a reason for people. Sent by its host.

    This is not an outcome. Another destination may have begun to order the message, and then this group
    follows it; so may a later leader, which knows less. A client that never uses a number twice is never
    refused.
    """

    mid: MessageId
    group: GroupId
    reason: str


@dataclass(slots=True)
class _Pending:
    message: Multicast
    positions: dict[GroupId, Timestamp] = field(default_factory=dict)
    """The positions answered so far."""
    asked_at: float = 0.0
    retries: int = 0
    repeated: bool = False
    """Whether it was sent more than once: then an answer does not tell which of these it is for."""

    @property
    def unanswered(self) -> list[GroupId]:
        """The destinations that have not answered, in order."""
        return [group for group in self.message.dest if group not in self.positions]

    def waits_for(self, group: GroupId) -> bool:
        """Return whether the group is a destination that has not answered."""
        return group in self.message.dest and group not in self.positions


def _is_pending(pending: _Pending) -> bool:
    return len(pending.positions) < len(pending.message.dest)


@dataclass(slots=True)
class Sender:
    """multicast(m), lines 1-2 of Figure *protocol*, until every destination has answered."""

    client: ClientId
    topology: Topology
    retry_s: float = 0.5
    sends: list[Send] = field(default_factory=list)
    finished: dict[MessageId, dict[GroupId, Timestamp]] = field(default_factory=dict)
    """Messages that every destination has answered since the caller last looked, with their positions."""
    learned: list[Membership] = field(default_factory=list)
    """Memberships learned since the caller last looked: it must know where to send."""
    refused: list[MulticastRefused] = field(default_factory=list)
    """Refusals since the caller last looked. The messages stay pending; only new leaders are asked again."""
    leaders: dict[GroupId, Ballot] = field(default_factory=dict)
    claims: MembershipClaims = field(default_factory=MembershipClaims)
    """Memberships that were told and are not believed yet."""
    doubts: bool = False
    """Whether already the first retry goes to all members of a group that has answered nothing since: its
    leader may be dead. Else the first retry goes to the leader, which may be slow."""
    answering: dict[GroupId, ReplicaId] = field(default_factory=dict)
    """The replica that answers for a group, if that is not the leader by `leaders`: no hint names it."""
    pending: dict[MessageId, _Pending] = field(default_factory=dict)
    numbers: Numbering = field(init=False)
    _answered_at: dict[GroupId, float] = field(default_factory=dict)
    _receivers: dict[Destinations, list[tuple[ReplicaId]]] = field(default_factory=dict)
    """The leaders of each destination set, in order, while leaders stay the same."""
    _unanswered: RetryQueue[_Pending] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = Numbering(self.client)
        self.topology = self.topology.copy()
        self._unanswered = RetryQueue(self.retry_s, _is_pending)

    def multicast(
        self, dest: Sequence[GroupId], payload: bytes, now: float, digest: int | None = None
    ) -> Multicast:
        """Send a new message to the leaders of its destination groups. `digest` is `digest_of` these, if the
        caller knows it.
        """
        groups = tuple(sorted(dest))
        leaders = self._receivers.get(groups)
        if leaders is None:
            self.topology.check_destinations(groups)
            if len(self._receivers) >= CACHED_MAX:
                self._receivers.clear()
            leaders = self._receivers[groups] = [(self.leader(group),) for group in groups]
        message = self.numbers.next(groups, payload, digest)
        self.pending[message.mid] = pending = _Pending(message)
        self._unanswered.asked(pending, now)
        for leader in leaders:
            self.sends.append((leader, message))
        return message

    def step(
        self, answer: Reply | MulticastRefused | Hint | Members, now: float, teller: ReplicaId | None = None
    ) -> None:
        """Handle a group's answer, a hint about its leader, or its membership.

        A membership is believed if its `teller` may tell it (`claims`), or if the caller names none.
        """
        if isinstance(answer, Reply):
            self._answered(answer, now)
        elif isinstance(answer, MulticastRefused):
            pending = self.pending.get(answer.mid)
            if pending is not None and pending.waits_for(answer.group):
                pending.asked_at = math.inf
                pending.repeated = True
                self.refused.append(answer)
        elif isinstance(answer, Hint):
            self._hinted(answer, now)
        elif isinstance(answer, Members):
            if teller is None or self._believes(answer.membership, teller):
                self.learn(answer.membership, now)
        else:
            raise InvalidArgument(f"{type(answer).__name__} is not a message for a client")

    def _believes(self, told: Membership, teller: ReplicaId) -> bool:
        known = self.topology.membership(told.group)
        if told.version <= known.version:
            return False
        if self.claims.believes(known, told, teller):
            return True
        if teller in told.current.bit:  # the first that tells it makes us ask the others
            others = tuple(m for m in told.current.members if m != teller)
            self.sends.append((others, MembersWanted(told.group)))
        return False

    def learn(self, membership: Membership, now: float) -> None:
        """Take over a group's membership, unless it is stale, and send again what it has not answered."""
        before = self.leader(membership.group)
        if self.topology.learn(membership):
            self.learned.append(membership)
            known = self.leaders.get(membership.group)
            if known is not None and known.leader not in membership.current.bit:
                del self.leaders[membership.group]
            if self.answering.get(membership.group) not in membership.current.bit:
                self.answering.pop(membership.group, None)
            self.send_again(membership.group, now, silent=self.leader(membership.group) == before)

    def ask_members(self, group: GroupId) -> None:
        """Ask all known members of the group for its current membership."""
        self.sends.append((self.topology.members(group), MembersWanted(group)))

    def _hinted(self, hint: Hint, now: float) -> None:
        known = self.leaders.get(hint.group, NO_BALLOT)
        if known < hint.ballot and hint.ballot.number - known.number <= JUMPS * NUMBER_JUMP:
            try:
                self.topology.check_ballot(hint.group, hint.ballot)
            except UnknownConfiguration:
                self.ask_members(hint.group)
                return
            self.leaders[hint.group] = hint.ballot
            self.answering.pop(hint.group, None)
            self.send_again(hint.group, now)

    def answered_by(self, replica: ReplicaId, mids: Sequence[MessageId]) -> bool:
        """Record which replica answers for its group; call this before the answers are taken. Return whether
        another leader is supposed now: then `send_again`, after they are. Only for hosts of which leaders
        alone answer.

        If messages had to be sent to all members, and another than the supposed leader answers, it leads. A
        leader sends no hint: without this, all messages would go to a dead leader first if the other members
        are down or unknown.
        """
        group = replica.group
        if replica != self.leader(group) and any(
            self.pending[mid].retries for mid in mids if mid in self.pending
        ):
            self.answering[group] = replica
            return True
        return False

    def does_not_lead(self, replica: ReplicaId, now: float) -> None:
        """Record that a replica says that it does not lead its group, although it has answered for it."""
        if self.answering.get(replica.group) == replica:
            del self.answering[replica.group]
            self.send_again(replica.group, now, silent=True)

    def _answered(self, reply: Reply, now: float) -> None:
        """Record a group's answers. Of the messages that they finish, one updates the retry time-out."""
        group = reply.group
        self._answered_at[group] = now
        finished = None
        for mid, position in zip(reply.mids, reply.positions, strict=True):
            pending = self.pending.get(mid)
            if pending is None:
                continue
            dest, positions = pending.message.dest, pending.positions
            if group in dest:
                positions.setdefault(group, position)
            if len(positions) == len(dest):
                del self.pending[mid]
                self.numbers.done(mid.sequence)
                self.finished[mid] = positions
                finished = pending
        if finished is not None and not finished.repeated:
            self._unanswered.timeout.answered(now - finished.asked_at)

    def send_again(self, group: GroupId, now: float, *, silent: bool = False) -> None:
        """Send all that the group has not answered to its leader, which is new or reachable again.

        If it is `silent`, the supposed leader is none that was found meanwhile: a message that it may have
        failed to answer goes to all members, or it would wait for another time-out.
        """
        self._receivers.clear()
        leader, everyone = (self.leader(group),), self.topology.members(group)
        for pending in self.pending.values():
            if pending.waits_for(group):
                doubted = silent and self._is_in_doubt(group, pending.asked_at)
                pending.repeated = True
                self._unanswered.asked(pending, now)
                self.sends.append((everyone if doubted else leader, pending.message))

    def _is_in_doubt(self, group: GroupId, asked_at: float) -> bool:
        """Return whether the group has answered nothing since a message was sent to it."""
        return self.doubts and self._answered_at.get(group, -math.inf) < asked_at

    def tick(self, now: float) -> None:
        """Retry what is overdue: at the presumed leader first, then at all members."""
        for pending in self._unanswered.overdue(now):
            asked_at = pending.asked_at
            pending.retries += 1
            pending.repeated = True
            self._unanswered.asked(pending, now)
            for group in pending.unanswered:
                everyone = pending.retries > 1 or self._is_in_doubt(group, asked_at)
                receivers = self.topology.members(group) if everyone else (self.leader(group),)
                self.sends.append((receivers, pending.message))

    def probe(self, group: GroupId) -> None:
        """Find the group's leader, since the known one is gone: send one pending message to all members."""
        for pending in self.pending.values():
            if pending.waits_for(group):
                self.sends.append((self.topology.members(group), pending.message))
                return

    @property
    def wake_at(self) -> float | None:
        """When `tick` is due, or None if nothing is pending."""
        return self._unanswered.wake_at()

    def drain(self) -> list[Send]:
        """Drain what is to be sent."""
        sends, self.sends = self.sends, []
        return sends

    def leader(self, group: GroupId) -> ReplicaId:
        """Return the group's leader, as far as known."""
        answering = self.answering.get(group)
        if answering is not None:
            return answering
        ballot = self.leaders.get(group)
        return self.topology.preferred_leader(group) if ballot is None else ballot.leader
