"""Membership: how a replica on a new disk replaces a lost one (departures 7 and 8).

A replica that is in no configuration acts in no ballot. It asks its group's leader to replace the member with
its number. The leader has the group order that change; when it is delivered, the leader opens a ballot in the
new configuration, with promises from quorums of both configurations; and when a quorum of the new one has
executed all that the old one may have collected, the leader has the group order that the change is complete.

A process asks for memberships that it does not know: a ballot names its configuration, and the sender of a
ballot knows that configuration.
"""

from __future__ import annotations

from collections.abc import Iterable

from multicast.claims import MembershipClaims
from multicast.errors import InvalidArgument, PeerViolation
from multicast.membership import Membership
from multicast.messages import HandOver, Join, Members, MembersWanted, Message, Multicast
from multicast.process.entry import E
from multicast.process.recovery import LeaderRecovery
from multicast.protocol import Start
from multicast.types import NO_BALLOT, NO_TIMESTAMP, TIME_MAX, GroupId, Process, ReplicaId, Status


class Admission(LeaderRecovery[E]):
    """Admit new members, retire old ones, and spread memberships."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.join_at = start.now
        """At a replica that is not a member: when to ask again."""
        self.asked_members: dict[GroupId, float] = {}
        """Until when no process is asked again for a group's members."""
        self.claims = MembershipClaims()
        """Memberships that were told and are not believed yet."""
        self.asked_claims: dict[GroupId, float] = {}
        """Until when no process is asked again about a claim, by group."""
        self.leaving_since: float | None = None
        """At a leader that is not a member any more: since when it tries to hand over."""

    def _stay_outside(self) -> None:
        """Ask to join, if this replica never was a member; and release requests that wait here."""
        self._release_waiting()
        if self.address and self.me in self.topology:
            successor = next((m for m in self.membership.current.members if m.number == self.me.number), None)
            if successor is not None and self.membership.current.address_of(successor) == self.address:
                # Only a replica on a later disk of this very node can have joined with its address.
                self.forgot = (
                    f"{self.me} was replaced by {successor} of its own node: its disk is an old copy"
                )
        if self.ballot == NO_BALLOT and self.now >= self.join_at:
            self.join_at = self.now + self.timing.election_s
            self._ready.send.append((self.membership.everyone, Join(self.address, self.evicts)))

    def on_join(self, sender: ReplicaId, message: Join) -> None:
        """Handle a replica's wish to become a member. Only the leader can fulfil it, one change at a time."""
        if sender.group != self.group:
            raise PeerViolation(f"JOIN of group {self.group} came from {sender}, of another group")
        membership = self.membership
        old = next((m for m in membership.current.members if m.number == sender.number), None)
        if old is None:
            raise PeerViolation(f"{sender} asks to join group {self.group}, where no member has its number")
        change = membership.replace(old, sender, message.address)
        self._ready.send.append(((sender,), Members(membership)))
        # Without an operator, a replica replaces only a member at its own or at an unknown address.
        own = membership.current.address_of(old) in ("", message.address)
        gone = own and not self.selection.hears_us(old, self.now)
        granted = message.evicts == old or (gone and self._is_well_without(old))
        if granted and sender not in self.topology and self._may_change():
            self._step(change)

    def _is_well_without(self, old: ReplicaId) -> bool:
        """Return whether a quorum is well without this member: in our ballot, heard within a time-out, and
        with all that any quorum is known to have executed.

        Until then the member's disk may be worth more than its replacement: what is on it may be missing
        elsewhere.
        """
        wanted = max(self.opened_at, self.facts.get(self.group, NO_TIMESTAMP))
        well = [
            m for m in self.configuration.members
            if m != old and self.selection.hears_us(m, self.now)
            and self.reports.get(m, NO_TIMESTAMP) >= wanted
        ]  # fmt: skip
        return self.configuration.has_quorum(well)

    def _may_change(self) -> bool:
        """Return whether a change may begin: one at a time, and in a ballot of the newest configuration."""
        return self.status is Status.LEADER and self.membership.is_complete and self._is_current()

    def _is_current(self) -> bool:
        return self.cballot.configuration == self.membership.current.number

    def _step(self, membership: Membership) -> None:
        """Have the group order the next step, like any message; if the clock still allows one."""
        if self.clock >= TIME_MAX:
            return
        message = Multicast(membership.mid, (self.group,), membership.encode(), membership.version)
        self.on_multicast(self.me, message)

    def _follow_changes(self) -> None:
        """At a leader: take the next step of a change, if it is due."""
        membership = self.membership
        if self.cballot.configuration == membership.current.number:
            if not membership.is_complete and self._is_executed():
                self._step(membership.completed())
        elif self.me in membership.current.bit:
            self.recover()
        else:
            self._leave(membership)

    def _leave(self, membership: Membership) -> None:
        """Hand over a group of which we are not a member any more; after a time-out, stop leading anyway."""
        if self.leaving_since is None:
            self.leaving_since = self.now
        if self.now - self.leaving_since >= self.timing.election_s:
            self._leave_ballot()
            return
        heirs = [m for m in membership.current.members if self.selection.hears_us(m, self.now)]
        if heirs:
            self._ready.send.append(((heirs[0],), HandOver(self.cballot)))

    def _is_executed(self) -> bool:
        """Return whether a quorum of this ballot has executed all that earlier ballots may have collected."""
        return self.executed_by_quorum >= self.opened_at

    # Spreading memberships

    def receive_stranger(self, sender: ReplicaId, messages: Iterable[Message]) -> None:
        """Handle messages of an unknown replica: it may be new, or our knowledge stale."""
        if sender.group not in self.topology.memberships:
            raise PeerViolation(f"a message came from {sender}, whose group is unknown")
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
        """Ask a process for a membership that it must know, at most once in half a heartbeat."""
        if self.now >= self.asked_members.get(group, 0.0):
            self.asked_members[group] = self.now + self.timing.heartbeat_s / 2
            self._ready.send.append(((whom,), MembersWanted(group)))

    def on_members_wanted(self, sender: Process, message: MembersWanted) -> None:
        """Answer with the membership known here."""
        if message.group not in self.topology.memberships:
            raise InvalidArgument(f"{sender} asks for the members of group {message.group}, which is unknown")
        self._ready.send.append(((sender,), Members(self.topology.memberships[message.group])))

    def on_members(self, sender: Process, message: Members) -> None:
        """Learn a group's membership, which is a fact if the sender is right (departure 19)."""
        told = message.membership
        known = self.topology.memberships.get(told.group)
        if known is None:
            raise PeerViolation(f"MEMBERS of the unknown group {told.group} came from {sender}")
        if told.version <= known.version:
            return
        if self.claims.believes(known, told, sender):
            self._learn(told)
        elif self.now >= self.asked_claims.get(told.group, 0.0):
            self.asked_claims[told.group] = self.now + self.timing.heartbeat_s
            asked = dict.fromkeys((*known.everyone, *told.everyone))
            receivers = tuple(member for member in asked if member != self.me)
            self._ready.send.append((receivers, MembersWanted(told.group)))

    def _lead(self) -> None:
        super()._lead()
        self.leaving_since = None
        if not self.membership.is_complete:
            # All replicas will meet this ballot's configuration: spare them the question.
            self._announce()

    def _learn(self, membership: Membership) -> bool:
        news = super()._learn(membership)
        if (
            news
            and membership.group == self.group
            and self.status is Status.LEADER
            and membership.is_complete
        ):
            # Replicas that are not members any more should know it: no other message reaches them.
            self._announce()
        return news

    def _announce(self) -> None:
        everyone = tuple(sorted(self.topology.replicas - {self.me}))
        self._ready.send.append((everyone, Members(self.membership)))
