"""Leader recovery: NEWLEADER, NEWLEADER_ACK, NEW_STATE, NEWSTATE_ACK (right column of Figure *protocol*).

Beyond the figure: states travel in bounded pieces; the promises of the whole quorum are merged at once;
before it sends NEW_STATE, the candidate catches up with everything that a member of its quorum has executed;
members that were away join a running ballot by the same NEW_STATE.

The other protocols recover in the same way: what their members have voted for in the last ballot corresponds
to what a white-box process has accepted in it, and a ballot is open when a quorum holds its initial state.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from multicast.durable import Joined, Promised
from multicast.errors import PeerViolation
from multicast.membership import Membership
from multicast.messages import (
    EntryState,
    Hint,
    Members,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    StatePart,
)
from multicast.process.entry import E
from multicast.process.requests import Requests
from multicast.protocol import Start
from multicast.types import (
    NO_TIMESTAMP,
    TIME_MAX,
    Ballot,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Status,
    Timestamp,
)

ACCEPTED = Phase.ACCEPTED
COMMITTED = Phase.COMMITTED


@dataclass(slots=True)
class Pieces:
    """A state that arrives in pieces, in order. A new transfer starts over."""

    transfer: int = -1
    count: int = 0
    entries: list[EntryState] = field(default_factory=list)
    next_index: int = 0

    def add(self, part: StatePart, entries: tuple[EntryState, ...]) -> bool:
        """Add one piece. Return True when that completes the state."""
        if part.transfer != self.transfer:
            self.transfer, self.count, self.next_index = part.transfer, part.count, 0
            self.entries = []
        if part.index == self.next_index:
            self.entries.extend(entries)
            self.next_index += 1
            return self.complete
        return False

    @property
    def complete(self) -> bool:
        """Whether all pieces are here."""
        return self.transfer >= 0 and self.next_index == self.count


@dataclass(slots=True)
class Promise:
    """One member's NEWLEADER_ACK, as far as its pieces have arrived."""

    cballot: Ballot
    clock: int
    executed: Timestamp
    pieces: Pieces


@dataclass(slots=True)
class Campaign:
    """A candidate's attempt to open a ballot."""

    ballot: Ballot
    electorate: Membership
    """Quorums of its current configuration and, during a change, of its previous one must promise."""
    resend_at: float
    promises: dict[ReplicaId, Promise] = field(default_factory=dict)
    executed: Timestamp = NO_TIMESTAMP
    """The highest executed position among the promises that were merged."""
    merged: bool = False
    """Whether the promises are merged: the ballot has its initial state."""
    merged_at: float = 0.0
    acknowledged: set[ReplicaId] = field(default_factory=set)
    """The members that hold the initial state."""

    def promised(self) -> list[ReplicaId]:
        """Return the members that have answered NEWLEADER in full, in a fixed order."""
        return sorted(m for m, promise in self.promises.items() if promise.pieces.complete)


class LeaderRecovery(Requests[E]):
    """Take over as leader without losing what a quorum has accepted."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.campaign: Campaign | None = None
        self.incoming: tuple[Ballot, Pieces] | None = None
        """The pieces of a NEW_STATE that have arrived so far."""
        self.joining: dict[ReplicaId, float] = {}
        """At a leader: until when no further NEW_STATE goes to a member that was away."""
        self.opened_at = NO_TIMESTAMP
        """At a leader: the highest position executed by a member that promised its ballot. No message above
        it had been collected before."""
        self.inherited: list[MessageId] = []
        """At a leader: messages that it took over when it began to lead, and may have yet to deliver."""

    def recover(self) -> None:
        """Line 36: start a ballot above all known ones, in the newest known configuration."""
        membership = self.electorate
        if self.me not in membership.current.bit or self.is_silent:
            return
        self._leave_ballot()
        self.ballot = Ballot(self.highest_number + 1, self.me, membership.current.number)
        self.note_ballot(self.group, self.ballot)
        self.campaign = Campaign(self.ballot, membership, self.now + self.timing.retry_s)
        self.selection.promised(self.now)
        self._ready.persist.append(Promised(self.ballot))
        self._send_new_leader(membership.everyone)
        self._acknowledge_new_leader(self.me)

    def _send_new_leader(self, members: Iterable[ReplicaId]) -> None:
        """Line 37, preceded by the membership for members that may not know it."""
        receivers = tuple(member for member in members if member != self.me)
        if receivers:
            if not self.membership.is_complete:
                self._ready.promise.append((receivers, Members(self.membership)))
            self._ready.promise.append((receivers, NewLeader(self.ballot)))

    def _leave_ballot(self) -> None:
        """Stop normal operation. Forget what was only proposed; its senders will repeat it."""
        self.status = Status.RECOVERING
        self.campaign = None
        if self.quorum is not None:
            self.quorum.stop()
        self.queue.clear()
        self.unanswered.clear()
        self.numbers.clear()
        for entry in self.entries.values():
            if entry.phase is Phase.PROPOSED:
                entry.restart()
                self.orphans[entry.mid] = self.now
        self.selection.forget_leader()

    def on_new_leader(self, sender: Process, message: NewLeader) -> None:
        """Lines 38-42: join the ballot, and send its leader the whole state."""
        ballot = message.ballot
        candidate = self._leader_speaks(sender, ballot)
        if ballot < self.ballot or ballot == self.cballot:
            self._ready.send.append(((candidate,), Hint(self.group, self.ballot)))
            return
        if self._is_outdated(ballot) or self.me not in self.membership.everyone:
            # Ballots of older configurations are over, and a replica that is not a member has nothing to
            # promise.
            self._ready.send.append(((candidate,), Members(self.membership)))
            return
        if ballot > self.ballot:
            self._leave_ballot()
            self.ballot = ballot
            self.selection.promised(self.now)
            self._ready.persist.append(Promised(ballot))
        self._acknowledge_new_leader(candidate)

    def _is_outdated(self, ballot: Ballot) -> bool:
        """Return whether the ballot is of an older configuration than the newest known one."""
        return ballot.configuration < self.membership.current.number

    def _acknowledge_new_leader(self, candidate: ReplicaId) -> None:
        self._flush()
        for part, entries in self.parts(self.held()):
            message = NewLeaderAck(self.ballot, self.cballot, self.clock, self.executed_ts, part, entries)
            self._ready.promise.append(((candidate,), message))

    def parts(self, entries: Iterable[EntryState]) -> list[tuple[StatePart, tuple[EntryState, ...]]]:
        """Return the state in pieces that fit a frame: at least one, so that an empty state arrives too."""
        pieces: list[list[EntryState]] = [[]]
        size = 0
        for entry in entries:
            size += len(entry.payload)
            if pieces[-1] and (len(pieces[-1]) >= self.timing.part_entries or size > self.timing.part_bytes):
                pieces.append([])
                size = len(entry.payload)
            pieces[-1].append(entry)
        self._transfer += 1
        return [
            (StatePart(self._transfer, index, len(pieces)), tuple(piece))
            for index, piece in enumerate(pieces)
        ]

    def on_new_leader_ack(self, sender: Process, message: NewLeaderAck) -> None:
        """Lines 43-44: collect a quorum of promises."""
        member = self._member(sender)
        campaign = self.campaign
        if campaign is None or message.ballot != campaign.ballot or campaign.merged:
            return
        if member not in campaign.electorate.everyone:
            return
        _check_state(sender, message)
        if message.cballot >= message.ballot:
            raise PeerViolation(f"{sender} promised {message.ballot} from ballot {message.cballot} above it")
        promise = campaign.promises.get(member)
        if promise is None:
            promise = Promise(message.cballot, message.clock, message.executed, Pieces())
            campaign.promises[member] = promise
        if promise.pieces.complete:
            return
        promise.clock, promise.executed = message.clock, message.executed
        self.selection.expect_leader(self.now)
        if promise.pieces.add(message.part, message.entries):
            self._try_merge()

    def _try_merge(self) -> None:
        """Merge the promises of a quorum, once we have delivered all that any of its members has executed."""
        campaign = self.campaign
        if campaign is None or campaign.merged:
            return
        promised = campaign.promised()
        if self.me not in promised or not campaign.electorate.agrees(promised):
            return
        furthest = max(promised, key=lambda m: campaign.promises[m].executed)
        if campaign.promises[furthest].executed > self.last_delivered:
            self._catch_up(furthest)
            return
        campaign.merged = True
        campaign.merged_at = self.now
        campaign.executed = campaign.promises[furthest].executed
        campaign.resend_at = self.now + self.timing.retry_s
        promises = [campaign.promises[m] for m in promised]
        self._adopt(campaign.ballot, self._recovered_clock(promises), self._merge(promises))
        if self.quorum is not None:
            self.quorum.lead(self.configuration)
        self._send_new_state(self.others)
        self._ready.promise.append(((self.me,), NewStateAck(campaign.ballot)))

    def _caught_up(self) -> None:
        self._try_merge()

    def _recovered_clock(self, promises: Sequence[Promise]) -> int:
        """Line 55."""
        return max(promise.clock for promise in promises)

    def _merge(self, promises: Sequence[Promise]) -> dict[MessageId, EntryState]:
        """Lines 45-54: take what is committed anywhere; of the rest, what is accepted in the highest cballot.

        A message that we have delivered and that no promise holds as committed was collected: it is done.
        """
        highest = max(promise.cballot for promise in promises)
        merged: dict[MessageId, EntryState] = {}
        for promise in promises:
            for state in promise.pieces.entries:
                if state.phase is COMMITTED or (promise.cballot == highest and state.mid not in merged):
                    merged[state.mid] = state
        for entry in self.entries.values():
            if entry.phase is COMMITTED:
                merged[entry.mid] = entry.state()
        return {
            mid: state
            for mid, state in merged.items()
            if state.phase is COMMITTED or mid not in self.delivered_ids
        }

    def _adopt(self, ballot: Ballot, clock: int, states: dict[MessageId, EntryState]) -> None:
        """Lines 56 and 60-62: replace our state by the ballot's initial state.

        Kept beside it: what we have delivered, until it is collected, and other groups' proposals, which do
        not bind this group. What we have delivered and collected never comes back.
        """
        self.status = Status.RECOVERING
        self.ballot = self.cballot = ballot
        self._configure()
        self.clock = max(self.clock, clock)
        old, self.entries = self.entries, {}
        self.orphans.clear()
        for mid, state in states.items():
            entry = old.pop(mid, None)
            if entry is None:
                if mid in self.delivered_ids and (
                    state.phase is not COMMITTED or state.global_ts <= self.last_delivered
                ):
                    continue
                entry = self._entry(state)
            elif not entry.delivered:
                entry.take(state)
            self.entries[mid] = entry
        for entry in self.entries.values():
            entry.leave_ballot(self.group)
        for mid, entry in old.items():
            entry.leave_ballot(self.group)
            if entry.delivered:
                self.entries[mid] = entry
            elif entry.missing < len(entry.dest):
                entry.restart()
                self.entries[mid] = entry
                self.orphans[mid] = self.now
        self._ready.persist.append(Joined(ballot, self.clock, tuple(self.held())))

    def _send_new_state(self, receivers: tuple[ReplicaId, ...]) -> None:
        """Line 57: send the ballot's initial state."""
        if receivers:
            for part, entries in self.parts(self.held()):
                self._ready.promise.append((receivers, NewState(self.cballot, self.clock, part, entries)))

    def on_new_state(self, sender: Process, message: NewState) -> None:
        """Lines 58-63: adopt the state. A repeat is only acknowledged: it would erase later entries."""
        ballot = message.ballot
        _check_state(sender, message)
        leader = self._leader_speaks(sender, ballot)
        if self.me not in self.topology.configuration(self.group, ballot.configuration).bit:
            return
        if ballot < self.ballot:
            self._ready.send.append(((leader,), Hint(self.group, self.ballot)))
        elif ballot == self.cballot:
            self._ready.promise.append(((leader,), NewStateAck(ballot, self.wall_us())))
        elif self._is_outdated(ballot):
            self._ready.send.append(((leader,), Members(self.membership)))
        else:
            if self.incoming is None or self.incoming[0] != ballot:
                self.incoming = (ballot, Pieces())
            pieces = self.incoming[1]
            if pieces.add(message.part, message.entries):
                self.incoming = None
                self._leave_ballot()
                self._adopt(ballot, message.clock, {state.mid: state for state in pieces.entries})
                self.status = Status.FOLLOWER
                self.selection.promised(self.now)
                self._ready.promise.append(((leader,), NewStateAck(ballot, self.wall_us())))
                self._release_waiting()

    def on_new_state_ack(self, sender: Process, message: NewStateAck) -> None:
        """Lines 64-65: lead the ballot, once a quorum holds its state."""
        member = self._member(sender)
        campaign = self.campaign
        if campaign is None or not campaign.merged or message.ballot != campaign.ballot:
            return
        campaign.acknowledged.add(member)
        if self.quorum is not None and message.wall_us:
            self.quorum.report(member, message.wall_us / 1e6, campaign.merged_at, self.now)
        self.selection.expect_leader(self.now)
        if self.me in campaign.acknowledged and self.configuration.has_quorum(campaign.acknowledged):
            self._lead()

    def _lead(self) -> None:
        """Lines 66-69: deliver what may be delivered, continue what earlier leaders left, then serve."""
        self.status = Status.LEADER
        self.opened_at = NO_TIMESTAMP if self.campaign is None else self.campaign.executed
        self.campaign = None
        self.joining = {}
        self.selection.lead(self.configuration, self.now)
        self.reports = {}
        self.executed_by_quorum = NO_TIMESTAMP
        unfinished = []
        for entry in self.entries.values():
            if entry.phase is ACCEPTED:
                entry.retries = 0
                self.queue.propose(entry.local_ts, entry)
                self.numbers[entry.mid.client, entry.mid.sequence] = entry.mid.digest
                unfinished.append(entry)
            elif entry.phase is COMMITTED and not entry.delivered:
                self.queue.add_committed(entry.global_ts, entry)
        self.inherited = [
            entry.mid for entry in self.entries.values() if entry.phase >= ACCEPTED and not entry.delivered
        ]
        self._deliver_committed()
        for entry in sorted(unfinished, key=lambda entry: entry.local_ts):
            self.retry(entry)
        self._release_waiting()
        self._heartbeat()

    @property
    def reading_ballot(self) -> Ballot | None:
        """The ballot we lead, if we have delivered what we took over: it may have been answered before."""
        if self.status is not Status.LEADER:
            return None
        inherited = self.inherited
        while inherited:
            entry = self.entries.get(inherited[-1])
            if entry is not None and not entry.delivered:
                return None
            inherited.pop()
        return self.cballot

    def _resend(self) -> None:
        """At a candidate: repeat what may have been lost, to members that have not answered."""
        campaign = self.campaign
        if campaign is None or self.now < campaign.resend_at:
            return
        campaign.resend_at = self.now + self.timing.retry_s
        if campaign.merged:
            self._send_new_state(tuple(m for m in self.others if m not in campaign.acknowledged))
            return
        promised = campaign.promised()
        self._send_new_leader(m for m in campaign.electorate.everyone if m not in promised)
        self._try_merge()

    def _leader_speaks(self, sender: Process, ballot: Ballot) -> ReplicaId:
        """Return the sender if it is the member that leads the ballot of its message; note the ballot."""
        member = self._member(sender)
        if ballot.leader != member:
            raise PeerViolation(f"{sender} speaks for ballot {ballot}, which it does not lead")
        self.topology.check_ballot(self.group, ballot)
        self.check_number(self.group, ballot)
        self.note_ballot(self.group, ballot)
        return member

    def _left_behind(self, member: ReplicaId) -> None:
        """Send NEW_STATE to a member that hears us, but is not in our ballot yet."""
        if self.now >= self.joining.get(member, 0.0):
            self.joining[member] = self.now + self.timing.retry_s
            self._send_new_state((member,))

    @abc.abstractmethod
    def _flush(self) -> None:
        """Send what has been collected to be sent together."""

    @abc.abstractmethod
    def _heartbeat(self) -> None:
        """Announce at once that there is a leader."""


def _check_state(sender: Process, message: NewState | NewLeaderAck) -> None:
    """Raise unless a process can be in this state."""
    part = message.part
    if not part.index < part.count:
        raise PeerViolation(f"{sender} sent piece {part.index} of a state of {part.count} pieces")
    if message.clock > TIME_MAX:
        raise PeerViolation(f"{sender} has a clock of {message.clock}")
    for state in message.entries:
        if state.phase < ACCEPTED or (state.phase is COMMITTED and state.global_ts < state.local_ts):
            raise PeerViolation(f"{sender} has {state.mid} in {state.phase.name} at {state.global_ts}")
