"""A process as hosts see it: messages in, time in, `Ready` out. Heartbeats, elections, time-outs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from multicast.errors import PeerViolation, UnknownConfiguration
from multicast.messages import (
    CatchUp,
    Deliver,
    Deliveries,
    Executed,
    HandOver,
    Heartbeat,
    HeartbeatAck,
    Hint,
    Join,
    Members,
    MembersWanted,
    Message,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    PreVote,
    PreVoteAck,
)
from multicast.process.entry import E
from multicast.process.membership import Admission
from multicast.protocol import Ready, Start
from multicast.types import NO_TIMESTAMP, TICKS_PER_S, Ballot, Process, ReplicaId, Status, Timestamp

WALL_LEAD_MAX: Final = TICKS_PER_S // 2
"""By how many ticks a leader's time of day may lead that of most others, what their acknowledgements take
included. Who is further ahead counts on from its clock, as if it had no time of day."""


class _NotForIt(Exception):
    def __init__(self, kind: type) -> None:
        self.kind = kind


class _Handlers(dict[type, Callable[[Any, Any], None]]):
    """What to do with each kind of message. The rest is not for the sender to send."""

    def __missing__(self, kind: type) -> NoReturn:
        raise _NotForIt(kind)


class Replica(Admission[E]):
    """One process of its group. A protocol adds the handlers of its own messages."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.pre_vote_for: Ballot | None = None
        self.housekeeping_at = start.now
        self.exchange_at = start.now
        """At a follower: when to ask other groups for watermarks, if anything still waits for them."""
        self.defied: dict[ReplicaId, float] = {}
        """At a leader: members that have promised a higher ballot, and since when."""
        self.leads_by: dict[ReplicaId, int] = {}
        """At a leader with a hybrid clock: by how many ticks its time of day was ahead of each member's."""
        self.led_upto: Timestamp | None = None
        """What the leader that we follow had delivered when it last spoke to us."""
        self.heir_well_since = start.now
        """At a leader that should not lead: since when the one that should has been well."""
        self._client_handlers = _Handlers(
            {Multicast: self.on_multicast, MembersWanted: self.on_members_wanted}
        )
        self._handlers = _Handlers({
            Multicast: self.on_multicast,
            Deliver: self.on_deliver,
            NewLeader: self.on_new_leader,
            NewLeaderAck: self.on_new_leader_ack,
            NewState: self.on_new_state,
            NewStateAck: self.on_new_state_ack,
            Hint: self.on_hint,
            Heartbeat: self.on_heartbeat,
            HeartbeatAck: self.on_heartbeat_ack,
            PreVote: self.on_pre_vote,
            PreVoteAck: self.on_pre_vote_ack,
            HandOver: self.on_hand_over,
            Join: self.on_join,
            Members: self.on_members,
            MembersWanted: self.on_members_wanted,
            CatchUp: self.on_catch_up,
            Deliveries: self.on_deliveries,
            Executed: self.on_executed,
        })  # fmt: skip

    def receive(self, sender: Process, messages: Iterable[Message], now: float) -> None:
        """Handle messages that came together."""
        self.now = now
        handlers = self._handlers
        if sender not in self.topology.replicas:
            handlers = self._client_handlers
            if type(sender) is ReplicaId:
                self.receive_stranger(sender, messages)
                return
        try:
            for message in messages:
                try:
                    handlers[type(message)](sender, message)
                except UnknownConfiguration as error:
                    # It is as if the message had been lost, but that we know whom to ask.
                    self.ask_members(error.group, sender)
        except _NotForIt as error:
            who = f"{'' if handlers is self._handlers else 'client '}{sender}"
            raise PeerViolation(f"{who} sent {error.kind.__name__}, which is not for it to send") from None

    @property
    def is_current(self) -> bool:
        """Whether this process takes part in its group, and has all that its leader had a moment ago."""
        if self.status is Status.FOLLOWER:
            return self.led_upto is not None and self.led_upto <= self.last_delivered
        return self.reading_ballot is not None

    def ready(self) -> Ready:
        """Drain what is to be done."""
        self._flush()
        ready, self._ready = self._ready, Ready()
        ready.wake_at = min(self.housekeeping_at, self.selection.stand_at)
        return ready

    def tick(self, now: float) -> None:
        """Let time pass."""
        self.now = now
        if now >= self.housekeeping_at:
            self.housekeeping_at = now + self.timing.heartbeat_s
            self._housekeeping()
        if self.status is not Status.LEADER and now >= self.selection.stand_at:
            self._stand()

    def nominate(self, now: float) -> None:
        """Try to lead, whatever others hear."""
        self.now = now
        self.recover()

    def hand_over(self, now: float) -> bool:
        """Ask the member that has executed most, of those that hear us, to lead."""
        self.now = now
        if self.status is not Status.LEADER:
            return False
        hearing = [
            m for m in self.others
            if m in self.reports and m in self.membership.current.bit and self.selection.hears_us(m, now)
        ]  # fmt: skip
        if not hearing:
            return False
        heir = max(hearing, key=lambda member: self.reports[member])
        self._ready.send.append(((heir,), HandOver(self.cballot)))
        return True

    def on_hand_over(self, sender: Process, message: HandOver) -> None:
        """Our leader stops: no need to wait until we miss it."""
        self._leader_speaks(sender, message.ballot)
        if self.status is Status.FOLLOWER and message.ballot == self.cballot:
            self.recover()

    def _housekeeping(self) -> None:
        if self.status is Status.LEADER:
            if not self.selection.keeps_quorum(self.now):
                self._step_down()
                return
            self._compute_watermark()
            self._exchange_watermarks()
            self._heartbeat()
            self._retry_overdue()
            self._follow_changes()
            self._give_back()
        elif self.is_outsider:
            self._stay_outside()
        else:
            self._resend()
            if self.pre_vote_for is not None and self.campaign is None:
                # Others may have come up since: whoever is to lead first should not miss its turn.
                self._send_pre_vote()
            if self.retained and self.now >= self.exchange_at:
                # The leader may have collected long ago what we still hold, and asks no more.
                self.exchange_at = self.now + 10 * self.timing.heartbeat_s
                self._exchange_watermarks()
        self._collect()
        self._expire_orphans()

    def _compare_clocks(self, member: ReplicaId, wall_time: int) -> None:
        """A leader whose time of day leads that of most others by far does not use it.

        Skew harms nobody but those who wait for the clocks of others to pass: all of them wait for this one.
        """
        self.leads_by[member] = self.wall_time() - wall_time
        ahead = [m for m in self.others if self.leads_by.get(m, 0) > WALL_LEAD_MAX]
        self.is_fast = 2 * len(ahead) > len(self.others)

    def _give_back(self) -> None:
        """Leaders are to be spread over nodes: hand over to who should lead, once it has been well for long.

        It is well if it hears us and has executed what a quorum has.
        """
        heir = self.topology.preferred_leader(self.group)
        well = (
            heir != self.me
            and self.membership.is_complete
            and self.selection.hears_us(heir, self.now)
            and self.reports.get(heir, NO_TIMESTAMP) >= self.executed_by_quorum
        )
        if not well:
            self.heir_well_since = self.now
        elif self.now - self.heir_well_since >= self.timing.give_back_s:
            self.heir_well_since = self.now
            self._ready.send.append(((heir,), HandOver(self.cballot)))

    def _lead(self) -> None:
        self.defied = {}
        self.heir_well_since = self.now
        self.leads_by = {}
        self.is_fast = False
        super()._lead()

    def _leave_ballot(self) -> None:
        self.pre_vote_for = None
        self.led_upto = None
        super()._leave_ballot()

    def _step_down(self) -> None:
        """A leader without a quorum stops; its ballot is dead, and it will stand in a higher one."""
        self._leave_ballot()
        self.selection.expect_leader(self.now)

    def _stand(self) -> None:
        """No leader has been heard: ask whether others would join us, before spending a ballot."""
        membership = self.membership
        if self.me not in membership.current.bit:
            self.selection.expect_leader(self.now)
            return
        membership = self.electorate
        self.pre_vote_for = Ballot(self.highest_number + 1, self.me, membership.current.number)
        if self.selection.begin_pre_vote(membership, self.now):
            self.recover()
        else:
            self._send_pre_vote()

    def _send_pre_vote(self) -> None:
        if self.pre_vote_for is not None:
            others = tuple(m for m in self.membership.everyone if m != self.me)
            self._ready.send.append((others, PreVote(self.pre_vote_for)))

    def on_pre_vote(self, sender: Process, message: PreVote) -> None:
        """Grant it if we hear no leader either; a member with an old ballot is told the newer one."""
        member = self._member(sender)
        if message.ballot.leader != member:
            raise PeerViolation(f"{sender} asks for pre-votes for ballot {message.ballot}")
        self.topology.check_ballot(self.group, message.ballot)
        if self._is_outdated(message.ballot) or self.is_outsider:
            self._ready.send.append(((member,), Members(self.membership)))
        elif message.ballot <= self.ballot:
            self._ready.send.append(((member,), Hint(self.group, self.ballot)))
        elif self.status is not Status.LEADER and self.selection.grants(self.now):
            self._ready.send.append(((member,), PreVoteAck(message.ballot)))

    def on_pre_vote_ack(self, sender: Process, message: PreVoteAck) -> None:
        """With a quorum that hears no leader, open a ballot."""
        member = self._member(sender)
        if (
            message.ballot == self.pre_vote_for
            and self.status is not Status.LEADER
            and self.selection.pre_vote(member)
        ):
            self.pre_vote_for = None
            self.recover()

    def _heartbeat(self) -> None:
        # To itself, the leader only says what its disk has kept.
        ack = HeartbeatAck(self.ballot, self.cballot, self.executed_ts, self.wall_time())
        self._ready.promise.append(((self.me,), ack))
        if self.others:
            facts = tuple(sorted(self.facts.items()))
            message = Heartbeat(self.cballot, self.last_delivered, facts, *self._pending())
            self._ready.send.append((self.others, message))

    def _pending(self) -> tuple[Timestamp, Timestamp]:
        """Where local timestamps begin that are yet to be delivered here, and where those that were issued
        end, if anybody has to know.
        """
        return NO_TIMESTAMP, NO_TIMESTAMP

    def on_heartbeat(self, sender: Process, message: Heartbeat) -> None:
        """A leader is alive: follow it, and find out what we missed."""
        ballot = message.ballot
        leader = self._leader_speaks(sender, ballot)
        for group, watermark in message.executed:
            self._learn_fact(group, watermark)
        if ballot >= self.ballot:
            if ballot > self.ballot and (self.status is Status.LEADER or self.campaign is not None):
                self._leave_ballot()
            self.selection.heard_leader(self.now)
            self.pre_vote_for = None
            if ballot == self.cballot:
                self.led_upto = message.last_delivered
                if self._is_late(message.last_delivered):
                    self._catch_up(leader)
        ack = HeartbeatAck(self.ballot, self.cballot, self.executed_ts, self.wall_time())
        self._ready.promise.append(((leader,), ack))

    def _is_late(self, upto: Timestamp) -> bool:
        """Whether we have missed something of what our leader has delivered."""
        return self.last_delivered < upto

    def on_heartbeat_ack(self, sender: Process, message: HeartbeatAck) -> None:
        """A member hears us: count it, let it join if it was away, and mind ballots above ours."""
        member = self._member(sender)
        if self.status is not Status.LEADER:
            return
        if message.cballot == message.ballot == self.cballot:
            self.reports[member] = max(self.reports.get(member, message.executed), message.executed)
            self.selection.heard_member(member, self.now)
            self.defied.pop(member, None)
            if self.wall_s is not None and message.wall_time and member != self.me:
                self._compare_clocks(member, message.wall_time)
        elif message.ballot > self.ballot:
            # It has promised a ballot that nobody opened, and cannot come back to ours.
            self.note_ballot(self.group, message.ballot)
            since = self.defied.setdefault(member, self.now)
            if self.now - since >= 2 * self.timing.election_s:
                self.recover()
        else:
            self._left_behind(member)
