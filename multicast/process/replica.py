"""A complete process: messages and time in, `Ready` out; heartbeats, elections and time-outs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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
    Recall,
    Recalled,
)
from multicast.process.entry import E
from multicast.process.membership import Admission
from multicast.protocol import Ready, Start
from multicast.quorum_time import ANCHOR, anchor_id
from multicast.types import NO_TIMESTAMP, TIME_MAX, Ballot, Phase, Process, ReplicaId, Status, Timestamp

ANCHOR_REPEAT: Final = 10
"""Heartbeats after which a leader proposes an anchor again that was not delivered."""


class _NotForIt(Exception):
    def __init__(self, kind: type) -> None:
        self.kind = kind


class _Handlers(dict[type, Callable[[Any, Any], None]]):
    """The handler of each kind of message that a sender may send."""

    def __missing__(self, kind: type) -> NoReturn:
        raise _NotForIt(kind)


class Replica(Admission[E]):
    """One process of a group. A protocol adds the handlers of its own messages."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.pre_vote_for: Ballot | None = None
        self.housekeeping_at = start.now
        self.exchange_at = start.now
        """At a follower: when to ask other groups for watermarks, if a retained message still needs them."""
        self.defied: dict[ReplicaId, float] = {}
        """At a leader: members that have promised a higher ballot, and since when."""
        self.anchor_at = start.now
        """At a leader: when to move the anchor next."""
        self.led_upto: Timestamp | None = None
        """The last delivery of the leader that we follow, as of its last heartbeat."""
        self.heir_well_since = start.now
        """At a leader that is not the preferred one: since when the preferred leader has been healthy."""
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
            Recall: self.on_recall,
            Recalled: self.on_recalled,
        })  # fmt: skip

    def receive(self, sender: Process, messages: Iterable[Message], now: float) -> None:
        """Handle messages that arrived together."""
        self.now = now
        if self.is_silent:
            messages = self.harmless(sender, messages)
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
                    # This is as if the message had been lost, except that the sender can be asked.
                    self.ask_members(error.group, sender)
        except _NotForIt as error:
            who = f"{'' if handlers is self._handlers else 'client '}{sender}"
            raise PeerViolation(f"{who} sent {error.kind.__name__}, which it may not send") from None

    @property
    def is_current(self) -> bool:
        """Whether this process takes part in its group, and has all that its leader had a moment ago."""
        if self.status is Status.FOLLOWER:
            return self.led_upto is not None and self.led_upto <= self.last_delivered
        return self.reading_ballot is not None

    def ready(self) -> Ready:
        """Drain what the host is to do."""
        self._flush()
        ready, self._ready = self._ready, Ready()
        if ready.persist:
            self.uncounted = True
            if self.now >= self.count_at and not self.is_silent:
                self._raise_count()
        if self.memos:
            ready.persist += self.memos
            self.memos = []
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

    def hand_over(self, now: float, heirs: Collection[ReplicaId] | None = None) -> bool:
        """Ask the member that has executed most, of those that acknowledge us, to lead."""
        self.now = now
        if self.status is not Status.LEADER:
            return False
        hearing = [
            m for m in self.others
            if m in self.reports and m in self.membership.current.bit and self.selection.hears_us(m, now)
        ]  # fmt: skip
        if heirs is not None:
            hearing = [m for m in hearing if m in heirs and self.reports[m] >= self.executed_by_quorum]
        if not hearing:
            return False
        heir = max(hearing, key=lambda member: (member not in self.avoided, self.reports[member]))
        self._ready.send.append(((heir,), HandOver(self.cballot)))
        return True

    def on_hand_over(self, sender: Process, message: HandOver) -> None:
        """Stand at once, since our leader asks for it."""
        self._leader_speaks(sender, message.ballot)
        if self.status is Status.FOLLOWER and message.ballot == self.cballot:
            self.recover()

    def _housekeeping(self) -> None:
        if self.is_doubting:
            self._ask_memories(self.membership.everyone)
            self._end_doubt()  # the membership may have changed since the last answer
        if self.is_silent and not self.is_outsider:
            if self.is_restoring:
                self._ask_for_state()
            return
        self._keep_memories()
        if self.status is Status.LEADER:
            if not self.selection.keeps_quorum(self.now):
                self._step_down()
                return
            self._compute_watermark()
            self._exchange_watermarks()
            self._heartbeat()
            self._retry_overdue()
            self._follow_changes()
            if self.quorum is not None and self.status is Status.LEADER:
                self._move_anchor()
            self._give_back()
        elif self.is_outsider:
            self._stay_outside()
        else:
            self._resend()
            if self.pre_vote_for is not None and self.campaign is None:
                # Other members may have started since: the first candidate should not lose its turn.
                self._send_pre_vote()
            if self.retained and self.now >= self.exchange_at:
                # The leader may have collected long ago what we still hold, and then asks no group for
                # watermarks.
                self.exchange_at = self.now + 10 * self.timing.heartbeat_s
                self._exchange_watermarks()
        self._collect()
        self._expire_orphans()

    def _move_anchor(self) -> None:
        """At a leader: order the next anchor, once the group has delivered anything that it could protect."""
        if self.now < self.anchor_at or not self.last_delivered:
            return
        due = not self.anchor.ticks or self.now - self.anchor.at >= self.timing.anchor_s
        time = self.quorum_time()
        if due and time:
            self._propose_anchor(self.anchor.next(time, self.now))

    def accept_time(self, now: float) -> bool:
        """As an operator wants: order an anchor at quorum time, however far ahead that is.

        Return False if this replica does not lead, or has no quorum time.
        """
        self.now = now
        time = None if self.quorum is None else self.quorum.now(now)
        if self.status is not Status.LEADER or time is None:
            return False
        self._propose_anchor(time)
        return True

    def _propose_anchor(self, anchor: int) -> None:
        """Have the group order an anchor, like any message; if the clock still allows one.

        Anchors are ordered by rising numbers, since a delivered one acknowledges all below it: a lower one,
        behind one that is pending, would count as delivered before it is, and never be accepted.
        """
        self.anchor_at = self.now + ANCHOR_REPEAT * self.timing.heartbeat_s
        pending = [
            entry.mid.sequence
            for entry in self.entries.values()
            if entry.mid.client == ANCHOR and not entry.delivered and entry.phase >= Phase.PROPOSED
        ]
        if anchor > max(self.anchor.ticks, *pending, 0) and self.clock < TIME_MAX:
            mid = anchor_id(anchor, self.group)
            self.on_multicast(self.me, Multicast(mid, (self.group,), b"", anchor))

    def time_of_day(self) -> dict[str, Any]:
        """Return, for people, what a leader knows of the time of day: whether quorum time is held back by the
        anchor, and which members' clocks are wrong, by how many seconds.
        """
        quorum = self.quorum
        if quorum is None or self.status is not Status.LEADER:
            return {}
        time = quorum.now(self.now)
        held = time is not None and self.anchor.holds(time, self.now)
        return {
            "quorum_time": time,
            "anchor": self.anchor.ticks,
            "held": held,
            "wrong": {str(m): by_s for m, by_s in quorum.wrong(self.now).items()},
        }

    def _give_back(self) -> None:
        """Hand over to the preferred leader, once it has been healthy for long: leaders are spread over
        nodes.

        It is healthy if it acknowledges us and has executed what a quorum has.
        """
        heir = self.topology.preferred_leader(self.group)
        well = (
            heir != self.me
            and self.membership.is_complete
            and self.selection.hears_us(heir, self.now)
            and self.reports.get(heir, NO_TIMESTAMP) >= self.executed_by_quorum
            and heir not in self.avoided
        )
        if not well:
            self.heir_well_since = self.now
        elif self.now - self.heir_well_since >= self.timing.give_back_s:
            self.heir_well_since = self.now
            self._ready.send.append(((heir,), HandOver(self.cballot)))

    def _lead(self) -> None:
        self.defied = {}
        self.heir_well_since = self.now
        self.anchor_at = self.now
        super()._lead()

    def _leave_ballot(self) -> None:
        self.pre_vote_for = None
        self.led_upto = None
        super()._leave_ballot()

    def _step_down(self) -> None:
        """Stop leading for lack of a quorum: this ballot is over, and we will stand in a higher one."""
        self._leave_ballot()
        self.selection.expect_leader(self.now)

    def _stand(self) -> None:
        """Ask for pre-votes before spending a ballot, since no leader has been heard."""
        membership = self.membership
        if self.me not in membership.current.bit or self.is_silent:
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
        """Grant a pre-vote if we hear no leader either; tell a member with a stale ballot the newer one."""
        member = self._member(sender)
        if message.ballot.leader != member:
            raise PeerViolation(f"{sender} asks for pre-votes for ballot {message.ballot} of another leader")
        self.topology.check_ballot(self.group, message.ballot)
        self.check_number(self.group, message.ballot)
        if self._is_outdated(message.ballot) or self.is_outsider:
            self._ready.send.append(((member,), Members(self.membership)))
        elif message.ballot <= self.ballot:
            self._ready.send.append(((member,), Hint(self.group, self.ballot)))
        elif self.status is not Status.LEADER and self.selection.grants(self.now):
            self._ready.send.append(((member,), PreVoteAck(message.ballot)))

    def on_pre_vote_ack(self, sender: Process, message: PreVoteAck) -> None:
        """Start a ballot, once a quorum hears no leader."""
        member = self._member(sender)
        if (
            message.ballot == self.pre_vote_for
            and self.status is not Status.LEADER
            and self.selection.pre_vote(member)
        ):
            self.pre_vote_for = None
            self.recover()

    def _heartbeat(self) -> None:
        # To itself, the leader acknowledges only what is durable on its own disk.
        ack = HeartbeatAck(self.ballot, self.cballot, self.executed_ts, count=self.counted())
        self._ready.promise.append(((self.me,), ack))
        if self.others:
            facts = tuple(sorted(self.facts.items()))
            sent_us = max(0, int(self.now * 1e6))
            message = Heartbeat(
                self.cballot, self.last_delivered, facts, *self._pending(), sent_us,
                counts=self.known_counts(),
            )  # fmt: skip
            self._ready.send.append((self.others, message))

    def _pending(self) -> tuple[Timestamp, Timestamp]:
        """Return `lowest` and `issued` of a heartbeat: the local timestamps that are yet to be delivered, and
        those issued. Bottom, where followers need not know.
        """
        return NO_TIMESTAMP, NO_TIMESTAMP

    def on_heartbeat(self, sender: Process, message: Heartbeat) -> None:
        """Follow a live leader, and catch up with what we missed."""
        ballot = message.ballot
        leader = self._leader_speaks(sender, ballot)
        for group, watermark in message.executed:
            self._learn_fact(group, watermark)
        if self.is_silent:
            self.selection.heard_leader(self.now)
            if not message.alive_only and self._is_late(message.last_delivered):
                self._catch_up(leader)
            return
        if ballot >= self.ballot:
            if ballot > self.ballot and (self.status is Status.LEADER or self.campaign is not None):
                self._leave_ballot()
            self.selection.heard_leader(self.now)
            self.pre_vote_for = None
            if ballot == self.cballot and not message.alive_only:
                self.led_upto = max(self.led_upto or NO_TIMESTAMP, message.last_delivered)
                counts = dict(zip(self.configuration.members, message.counts, strict=False))
                self.compare_count(counts.get(self.me, 0), leader)
                self.remember(counts.items())
                if self._is_late(message.last_delivered):
                    self._catch_up(leader)
        wall_us, count = self.wall_us(), self.counted()
        ack = HeartbeatAck(self.ballot, self.cballot, self.executed_ts, wall_us, message.sent_us, count)
        self._ready.promise.append(((leader,), ack))

    def _is_late(self, upto: Timestamp) -> bool:
        """Return whether our leader has delivered something that we have missed."""
        return self.last_delivered < upto

    def on_heartbeat_ack(self, sender: Process, message: HeartbeatAck) -> None:
        """Count a member's acknowledgement, let it join if it was away, and react to ballots above ours."""
        member = self._member(sender)
        if self.status is not Status.LEADER:
            return
        self.check_number(self.group, message.ballot)
        self.remember([(member, message.count)])
        if message.cballot == message.ballot == self.cballot:
            self.reports[member] = max(self.reports.get(member, message.executed), message.executed)
            self.selection.heard_member(member, self.now)
            self.defied.pop(member, None)
            if self.quorum is not None and message.wall_us:
                self.quorum.report(member, message.wall_us / 1e6, message.sent_us / 1e6, self.now)
        elif message.ballot > self.ballot:
            # It has promised a ballot that no leader has opened, and cannot return to ours.
            self.note_ballot(self.group, message.ballot)
            since = self.defied.setdefault(member, self.now)
            if self.now - since >= 2 * self.timing.election_s:
                self.recover()
        else:
            self._left_behind(member)
