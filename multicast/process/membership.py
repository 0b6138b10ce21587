"""Membership: how a replica on a new disk takes a lost one's place (departures 7 and 8).

A replica that no configuration has acts in no ballot. It asks its group's leader to take the place of the
member with its number. The leader has the group order that change; when it is delivered, it opens a ballot in
the new configuration, with promises from quorums of both; and when a quorum of the new one has executed all
that the old one may have collected, it has the group order that the change is settled.

What processes do not know of others' members, they ask for: a ballot names its configuration, and whoever
speaks of a ballot knows that.
"""

from __future__ import annotations

from collections.abc import Iterable

from multicast.errors import InvalidArgument, PeerViolation
from multicast.membership import Membership
from multicast.messages import HandOver, Join, Members, MembersWanted, Message, Multicast
from multicast.process.entry import E
from multicast.process.recovery import LeaderRecovery
from multicast.protocol import Start
from multicast.types import NO_BALLOT, TIME_MAX, GroupId, Process, ReplicaId, Status


class Admission(LeaderRecovery[E]):
    """Who comes, who goes, and who knows of it."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.join_at = start.now
        """At an outsider: when to ask again."""
        self.asked_members: dict[GroupId, float] = {}
        """Until when nobody is asked again for a group's members."""
        self.leaving_since: float | None = None
        """At a leader that is no member any more: since when it looks for an heir."""

    def _stay_outside(self) -> None:
        """Who never was a member asks to become one. Whoever is none does not let others wait for it."""
        self._release_waiting()
        if self.ballot == NO_BALLOT and self.now >= self.join_at:
            self.join_at = self.now + self.timing.election_s
            self._ready.send.append((self.membership.everyone, Join(self.address, self.evicts)))

    def on_join(self, sender: ReplicaId, message: Join) -> None:
        """A replica that we do not know would be a member. Only the leader can help it, one at a time."""
        if sender.group != self.group:
            raise PeerViolation(f"{sender} asks to join group {self.group}")
        membership = self.membership
        old = next((m for m in membership.current.members if m.number == sender.number), None)
        if old is None:
            raise PeerViolation(f"{sender} asks to join group {self.group}, which has no such number")
        change = membership.replace(old, sender, message.address)
        self._ready.send.append(((sender,), Members(membership)))
        # By itself, a replica takes a place that was its machine's, or of which nothing else is known.
        own = membership.current.address_of(old) in ("", message.address)
        gone = own and not self.selection.hears_us(old, self.now)
        if (gone or message.evicts == old) and sender not in self.topology and self._may_change():
            self._step(change)

    def _may_change(self) -> bool:
        """One change at a time: in a ballot of the newest configuration, which is settled."""
        return self.status is Status.LEADER and self.membership.is_complete and self._is_current()

    def _is_current(self) -> bool:
        return self.cballot.configuration == self.membership.current.number

    def _step(self, membership: Membership) -> None:
        """Have the group order the next step, as any message; if it can still order any."""
        if self.clock >= TIME_MAX:
            return
        message = Multicast(membership.mid, (self.group,), membership.encode(), membership.version)
        self.on_multicast(self.me, message)

    def _follow_changes(self) -> None:
        """At a leader: take the next step of a change, if it is time for it."""
        membership = self.membership
        if self.cballot.configuration == membership.current.number:
            if not membership.is_complete and self._is_executed():
                self._step(membership.completed())
        elif self.me in membership.current.bit:
            self.recover()
        else:
            self._leave(membership)

    def _leave(self, membership: Membership) -> None:
        """We lead a group that we are in no more: ask a member to lead, and do not insist."""
        if self.leaving_since is None:
            self.leaving_since = self.now
        if self.now - self.leaving_since >= self.timing.election_s:
            self._leave_ballot()
            return
        heirs = [m for m in membership.current.members if self.selection.hears_us(m, self.now)]
        if heirs:
            self._ready.send.append(((heirs[0],), HandOver(self.cballot)))

    def _is_executed(self) -> bool:
        """Whether a quorum of this ballot has executed all that earlier ballots may have collected."""
        return self.executed_by_quorum >= self.opened_at

    # Who knows what

    def receive_stranger(self, sender: ReplicaId, messages: Iterable[Message]) -> None:
        """Somebody we do not know: it may be new, or we may be."""
        if sender.group not in self.topology.memberships:
            raise PeerViolation(f"a message came from {sender}, whose group does not exist")
        rest = iter(messages)
        for message in rest:
            if sender in self.topology:
                self.receive(sender, (message, *rest), self.now)
            elif isinstance(message, Join):
                self.on_join(sender, message)
            elif isinstance(message, Members):
                self.on_members(sender, message)
            elif isinstance(message, MembersWanted):
                self.on_members_wanted(sender, message)
            else:
                self.ask_members(sender.group, sender)
                if sender.group == self.group:
                    self._ready.send.append(((sender,), Members(self.membership)))

    def ask_members(self, group: GroupId, whom: Process) -> None:
        """Who speaks of a configuration that we have not heard of can tell us."""
        if self.now >= self.asked_members.get(group, 0.0):
            self.asked_members[group] = self.now + self.timing.heartbeat_s / 2
            self._ready.send.append(((whom,), MembersWanted(group)))

    def on_members_wanted(self, sender: Process, message: MembersWanted) -> None:
        """Say what we know."""
        if message.group not in self.topology.memberships:
            raise InvalidArgument(f"{sender} asks for the members of group {message.group}")
        self._ready.send.append(((sender,), Members(self.topology.memberships[message.group])))

    def on_members(self, sender: Process, message: Members) -> None:
        """A fact about some group."""
        if message.membership.group not in self.topology.memberships:
            raise PeerViolation(f"{sender} speaks of group {message.membership.group}")
        self._learn(message.membership)

    def _lead(self) -> None:
        super()._lead()
        self.leaving_since = None
        if not self.membership.is_complete:
            # Everyone will meet this ballot's configuration: they need not stumble over it first.
            self._announce()

    def _learn(self, membership: Membership) -> bool:
        news = super()._learn(membership)
        if (
            news
            and membership.group == self.group
            and self.status is Status.LEADER
            and membership.is_complete
        ):
            # Those that are no members any more should know it: nobody else talks to them.
            self._announce()
        return news

    def _announce(self) -> None:
        everyone = tuple(sorted(self.topology.replicas - {self.me}))
        self._ready.send.append((everyone, Members(self.membership)))
