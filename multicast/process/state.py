"""The variables of a process (Figure *vars*), and how it restarts."""

from __future__ import annotations

import abc
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Generic

from multicast.delivered import DeliveredIds
from multicast.durable import Checkpoint, Configured, Reported
from multicast.election import LeaderSelection
from multicast.errors import InvalidArgument, PeerViolation
from multicast.history import DeliveryHistory
from multicast.membership import Membership
from multicast.messages import EntryState, Multicast
from multicast.process.entry import E
from multicast.protocol import Protocol, Ready, Start
from multicast.queue import DeliveryQueue
from multicast.quorum_time import ANCHOR, Anchor, QuorumTime
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    NUMBER_JUMP,
    NUMBER_STEP,
    Ballot,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Status,
    Timestamp,
    time_of,
)

WALL_US_MAX: Final = 2**63 - 1
"""The latest time of day that a message can express."""


class State(Protocol, Generic[E]):
    """A process p_i of group g_0: its variables and their initial or restored values."""

    def __init__(self, start: Start) -> None:
        me, topology, now = start.me, start.topology, start.now
        self.check_topology(topology)
        durable, checkpoint = start.durable, start.checkpoint
        self.me = me
        self.group = me.group
        self.address, self.evicts = start.address, start.evicts
        self.timing = start.timing
        self.topology = topology = topology.copy()
        """This process's own knowledge of all groups' members, which grows."""
        for membership in durable.memberships.values():
            topology.learn(membership)
        if me.number not in [member.number for member in topology.members(me.group)]:
            raise InvalidArgument(f"{me} cannot join group {me.group}: no member has its number")

        self.quorum: QuorumTime | None = None
        """With a hybrid clock: the time of day, as a quorum of the group has reached it."""
        if start.wall is not None:
            self.quorum = QuorumTime(me, start.wall, start.timing.election_s)
        self.clock = durable.clock
        self.ballot = durable.ballot
        self.cballot = durable.cballot
        self.configuration = self.membership.current
        """The configuration of cballot, by which acknowledgements are counted."""
        self.others: tuple[ReplicaId, ...] = ()
        self._configure()
        self.entries: dict[MessageId, E] = {}
        self.last_delivered = checkpoint.position
        """The paper's max_delivered_gts."""
        self.delivered_ids: DeliveredIds = checkpoint.delivered.copy()
        self.anchor = Anchor(self.delivered_ids.low(ANCHOR), now, start.timing.clock_step_s)
        self.leaders: dict[GroupId, Ballot] = {}
        """cur_leader: the highest known ballot of each group; its leader is the presumed one."""
        self.usual_number: dict[GroupId, int] = {me.group: self.ballot.number + NUMBER_STEP}
        """The ballot numbers up to which no jump is needed, by group."""
        self.jump_at: dict[GroupId, float] = {}
        """When the next jump to a far higher ballot number may be believed, by group."""
        self.queue: DeliveryQueue[E] = DeliveryQueue()
        """What a leader has yet to deliver; empty at other processes."""

        self.history = DeliveryHistory(self.timing.history, self.timing.history_bytes)
        self.retained: dict[Destinations, deque[E]] = {}
        """Delivered entries that some destination may still ask for, by destinations, in delivery order."""
        self.superseded: deque[tuple[Timestamp, MessageId]] = deque()
        """Accepted messages that a snapshot covers, each with the position at which the snapshot must be
        durable before its record may be dropped."""
        self.orphans: dict[MessageId, float] = {}
        """Entries in phase START, which only hold other groups' proposals, with their creation times."""
        self.waiting: deque[tuple[Process, Multicast]] = deque()
        """MULTICASTs that arrived while this process was recovering."""
        self.numbers: dict[tuple[int, int], int] = {}
        """At a leader: digests of the undelivered messages, by client and sequence number."""
        self.asked: dict[ReplicaId, tuple[int, float]] = {}
        """The number of the CATCH_UPs to each replica, and when the last was sent."""
        self.asked_until = 0.0
        """Until when an answer to the last CATCH_UP is awaited."""

        if checkpoint.executed > checkpoint.position:
            raise InvalidArgument(
                f"checkpoint has executed {checkpoint.executed}, beyond its position {checkpoint.position}"
            )
        self.executed_ts = max(checkpoint.executed, durable.executed)
        """The reported position up to which everything is durably executed here. It never falls."""
        self.is_restoring = checkpoint.executed < durable.executed
        """Whether this replica has lost part of its state: see `restoration`."""
        alone = self.membership.everyone == (me,)
        self.is_doubting = not (start.trusts_log or alone)
        """Whether this replica may have forgotten promises, as far as it knows: see `memories`."""
        self.is_silent = self.is_restoring or self.is_doubting
        """Whether this replica promises nothing."""
        self.count = durable.count
        """Rises when this replica has made something durable: other members remember it. See `memories`."""
        self.memories = dict(durable.memories)
        """The highest known counts of the group's members."""
        self.facts: dict[GroupId, Timestamp] = {}
        """E(h): the position up to which a quorum of group h has durably executed, as far as known."""
        self.reports: dict[ReplicaId, Timestamp] = {}
        """At a leader: the position up to which each member has durably executed."""
        self.executed_by_quorum = NO_TIMESTAMP
        """At a leader: the position that a quorum has reported in its ballot."""
        self.asked_facts: dict[GroupId, Timestamp] = {}
        """At a leader: the known watermark of each group when the leader last asked for it."""

        self.selection = LeaderSelection(me, self.membership, self.timing, start.rng)
        self.now = now
        self._ready = Ready()
        if self.executed_ts > durable.executed:
            # The state was durable, but the crash came before the log had the report.
            self._ready.persist.append(Reported(self.executed_ts))
        # Pieces sent before and after a restart must never be taken for one state.
        self._transfer = start.rng.getrandbits(62)

        self.status = self._first_status()
        self.highest_number = self.ballot.number
        self.clock = max(self.clock, time_of(self.last_delivered))
        for state in durable.entries.values():
            if state.phase is Phase.ACCEPTED and state.mid in self.delivered_ids:
                self.superseded.append((self.last_delivered, state.mid))
            else:
                self._restore(state)
        self._rebuild_retained()
        self.selection.expect_leader(now, at_once=alone or self._is_first())

    def _first_status(self) -> Status:
        """Return the status with which a process begins.

        Departure 1: a promise in flight, or a ballot this process led, ends with the crash.
        """
        followed = (
            self.cballot == self.ballot != NO_BALLOT
            and self.ballot.leader != self.me
            and self.configuration.number == self.cballot.configuration
            and not self.is_silent
        )
        return Status.FOLLOWER if followed else Status.RECOVERING

    def _is_first(self) -> bool:
        """Return whether this process is to lead a group that has just been created."""
        return self.ballot == NO_BALLOT and self.topology.preferred_leader(self.group) == self.me

    def _break_silence(self) -> None:
        """Take part, with the status of a restart, once neither the state nor the log is in doubt."""
        self.is_silent = self.is_restoring or self.is_doubting
        if not self.is_silent:
            self.status = self._first_status()

    @property
    def membership(self) -> Membership:
        """The newest known membership of the own group: a ballot needs promises of its quorums."""
        return self.topology.memberships[self.group]

    @property
    def electorate(self) -> Membership:
        """The membership whose promises a ballot needs.

        No leader proposes that a change is complete before that is safe to rely on, so a member that has
        accepted this step need not ask the previous members: the only replica that delivered it may have lost
        its disk since, and they theirs. But until the step is decided it is not a fact, and is not announced.
        """
        membership = self.membership
        if membership.is_complete:
            return membership
        completed = membership.completed()
        entry = self.entries.get(completed.mid)
        return completed if entry is not None and entry.phase >= Phase.ACCEPTED else membership

    @property
    def is_outsider(self) -> bool:
        """Whether this replica is in no configuration that counts: not yet, or not any more."""
        return self.me not in self.membership.everyone

    def _configure(self) -> None:
        """Set the configuration of cballot."""
        found = self.topology.known(self.group, self.cballot.configuration)
        self.configuration = found or self.membership.current
        self.others = tuple(m for m in self.configuration.members if m != self.me)

    def _learn(self, membership: Membership) -> bool:
        """Take over a group's membership. Return whether it is news."""
        news = self.topology.learn(membership)
        if news:
            self._ready.persist.append(Configured(membership))
            self._ready.learned.append(membership)
        return news

    @abc.abstractmethod
    def new_entry(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> E:
        """Return an entry in START, of the protocol's own kind."""

    def _entry(self, state: EntryState) -> E:
        entry = self.new_entry(state.mid, state.dest, state.payload, state.ack_below)
        entry.take(state)
        return entry

    def _restore(self, state: EntryState) -> None:
        self.entries[state.mid] = entry = self._entry(state)
        entry.delivered = state.phase is Phase.COMMITTED and state.global_ts <= self.last_delivered
        self.clock = max(self.clock, time_of(state.local_ts), time_of(state.global_ts))

    def _rebuild_retained(self) -> None:
        self.retained = {}
        delivered = [entry for entry in self.entries.values() if entry.delivered]
        for entry in sorted(delivered, key=lambda entry: entry.global_ts):
            self.retained.setdefault(entry.dest, deque()).append(entry)

    @property
    def is_leader(self) -> bool:
        """Whether this process leads its group, in normal operation."""
        return self.status is Status.LEADER

    @property
    def queued(self) -> int:
        """The number of messages that a leader has yet to deliver."""
        return len(self.queue)

    def leader_of(self, group: GroupId) -> ReplicaId:
        """Return cur_leader[g], the presumed leader."""
        ballot = self.leaders.get(group)
        return self.topology.preferred_leader(group) if ballot is None else ballot.leader

    def check_number(self, group: GroupId, ballot: Ballot) -> None:
        """Raise, with nothing changed but the limit, if no history of the group leads here (departure 19).

        A number may be far above those known here, since this process may have been away. But the limit rises
        by one jump in a time-out at most, whatever others say: that is as fast as the group's numbers can
        have risen, so a process that was away catches up, and no peer exhausts them.
        """
        usual = self.usual_number.get(group, NUMBER_STEP)
        jump = ballot.number - usual
        if jump <= 0:
            return
        waited = self.now >= self.jump_at.get(group, -math.inf)
        if waited:
            self.jump_at[group] = self.now + self.timing.election_s
            self.usual_number[group] = usual + min(jump + NUMBER_STEP, NUMBER_JUMP)
        if not waited or jump > NUMBER_JUMP:
            raise PeerViolation(f"ballot {ballot} of group {group} is {jump} above what can be expected")

    def note_ballot(self, group: GroupId, ballot: Ballot) -> None:
        """Note a ballot: the leader of the highest one is the presumed leader, and its number is used."""
        if ballot.number + NUMBER_STEP > self.usual_number.get(group, 0):
            self.usual_number[group] = ballot.number + NUMBER_STEP
        if ballot > self.leaders.get(group, NO_BALLOT):
            self.leaders[group] = ballot
        if group == self.group and ballot.number > self.highest_number:
            self.highest_number = ballot.number

    def wall_us(self) -> int:
        """Return the own time of day in microseconds, rounded up; 0 if the clock is logical."""
        if self.quorum is None:
            return 0
        own_s = self.quorum.own()
        return min(max(1, math.ceil(own_s * 1e6)), WALL_US_MAX) if math.isfinite(own_s) else 1

    def held(self) -> list[EntryState]:
        """Return the state of every message accepted or committed here."""
        return [entry.state() for entry in self.entries.values() if entry.phase >= Phase.ACCEPTED]

    def _forget(self, mids: Iterable[MessageId]) -> None:
        """Drop these messages, which no process can need any more."""
        for mid in mids:
            del self.entries[mid]

    def status_of(self) -> dict[str, Any]:
        """Return the status, for people."""
        status = "restoring" if self.is_restoring else "doubting" if self.is_doubting else self.status.value
        return {
            "status": status if self.me in self.membership.current.bit else "outsider",
            "ballot": self.ballot.number,
            "leader": self.ballot.leader if self.ballot.number else None,
            "configuration": self.membership.current.number,
            "settled": self.membership.is_complete,
            "clock": self.clock,
            "entries": len(self.entries),
        }

    def unfinished(self) -> list[MessageId]:
        """Return the messages of which this process holds any state, or that wait for a leader here."""
        return [*self.entries, *(message.mid for _, message in self.waiting)]

    def checkpoint(self) -> Checkpoint:
        """Return the ordering side of a snapshot taken now, at the last delivery."""
        retained = [entry.state() for entry in self.entries.values() if entry.delivered]
        return Checkpoint(
            self.last_delivered,
            self.delivered_ids.copy(),
            tuple(retained),
            self.membership,
            self.executed_ts,
        )

    def retained_groups(self) -> list[tuple[Timestamp, Destinations]]:
        """Return delivered, not yet collected messages to several groups."""
        return sorted(
            (entry.global_ts, dest)
            for dest, bucket in self.retained.items()
            if len(dest) > 1
            for entry in bucket
        )

    def oldest_retained(self) -> Timestamp | None:
        """Return the position of the first of these, without looking at all of them."""
        firsts = [bucket[0].global_ts for dest, bucket in self.retained.items() if len(dest) > 1 and bucket]
        return min(firsts, default=None)

    def is_in_ballot(self, ballot: Ballot) -> bool:
        """Return whether this process is in the ballot and has promised no higher one."""
        return self.ballot == self.cballot == ballot and self.status is not Status.RECOVERING

    @property
    def reported(self) -> Timestamp:
        """The position up to which this process may have reported everything as executed."""
        return self.executed_ts

    @property
    def readers(self) -> tuple[tuple[ReplicaId, ...], int]:
        """The members of cballot, and the size of a quorum of them."""
        return self.configuration.members, self.configuration.quorum

    def executed(self, watermark: Timestamp) -> None:
        """Record that the application has durably executed everything up to here."""
        if not NO_TIMESTAMP <= watermark <= self.last_delivered:
            raise InvalidArgument(f"executed {watermark}, but delivered only {self.last_delivered}")
        if watermark > self.executed_ts:
            self.executed_ts = watermark
            self._ready.persist.append(Reported(watermark))
