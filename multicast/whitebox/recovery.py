"""Leader recovery: NEW_STATE and NEWSTATE_ACK (right column of Figure *protocol*, from line 45).

Beyond the figure: the whole quorum is merged at once, states travel in bounded pieces, and members that
were away join a running ballot by the same NEW_STATE.
"""

from __future__ import annotations

from collections.abc import Iterable

from multicast.durable import Joined
from multicast.messages import EntryState, Hint, NewState, NewStateAck
from multicast.process.campaign import Campaign, Pieces, Promise
from multicast.protocol import Start
from multicast.types import Ballot, MessageId, Phase, Process, ReplicaId, Status
from multicast.whitebox.normal import NormalOperation

COMMITTED = Phase.COMMITTED


class WhiteBox(NormalOperation):
    """One process of the white-box protocol: how a new leader keeps what a quorum has accepted."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._handlers[NewState] = self.on_new_state
        self._handlers[NewStateAck] = self.on_new_state_ack
        self.incoming: tuple[Ballot, Pieces[EntryState]] | None = None
        """The pieces of a NEW_STATE that have come so far."""
        self.joining: dict[ReplicaId, float] = {}
        """At a leader: until when a member that was away is left alone with its NEW_STATE."""

    def reported(self) -> Iterable[EntryState]:
        """Everything accepted or committed here."""
        return self.held()

    def _size(self, entry: EntryState) -> int:
        return len(entry.payload)

    def _take_over(self, ballot: Ballot, promises: list[Promise[EntryState]]) -> None:
        self._adopt(ballot, self._recovered_clock(promises), self._merge(promises))
        self._send_new_state(self.others)
        self._ready.promise.append(((self.me,), NewStateAck(ballot)))

    def _merge(self, promises: list[Promise[EntryState]]) -> dict[MessageId, EntryState]:
        """Lines 45-54: committed anywhere; accepted only as the highest cballot has it.

        What we have delivered ourselves and nobody remembers as committed was collected: it is done.
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
        """Lines 56 and 60-62: the ballot's initial state replaces ours.

        Kept beside it: what we have delivered, until it is collected, and other groups' proposals, which
        bind nobody. What we have delivered and collected never comes back.
        """
        self.status = Status.RECOVERING
        self.ballot = self.cballot = ballot
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
        """Line 57."""
        if receivers:
            for part, entries in self.parts(self.held()):
                self._ready.promise.append((receivers, NewState(self.cballot, self.clock, part, entries)))

    def on_new_state(self, sender: Process, message: NewState) -> None:
        """Lines 58-63. A repeat is acknowledged, but not applied: it would erase what came after it."""
        ballot = message.ballot
        leader = self._leader_speaks(sender, ballot)
        if ballot < self.ballot:
            self._ready.send.append(((leader,), Hint(self.group, self.ballot)))
        elif ballot == self.cballot:
            self._ready.promise.append(((leader,), NewStateAck(ballot)))
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
                self._ready.promise.append(((leader,), NewStateAck(ballot)))
                self._release_waiting()

    def on_new_state_ack(self, sender: Process, message: NewStateAck) -> None:
        """Lines 64-65: with a quorum in the ballot, lead it."""
        member = self._member(sender)
        campaign = self.campaign
        if campaign is None or not campaign.merged or message.ballot != campaign.ballot:
            return
        campaign.acknowledged |= self.configuration.bit[member]
        self.selection.expect_leader(self.now)
        if campaign.acknowledged & self.my_bit and self.configuration.is_quorum(campaign.acknowledged):
            self._lead()

    def _lead(self) -> None:
        self.joining = {}
        super()._lead()

    def _left_behind(self, member: ReplicaId) -> None:
        if self.now >= self.joining.get(member, 0.0):
            self.joining[member] = self.now + self.timing.retry_s
            self._send_new_state((member,))

    def _resend_state(self, campaign: Campaign[EntryState]) -> None:
        bit = self.configuration.bit
        self._send_new_state(tuple(m for m in self.others if not campaign.acknowledged & bit[m]))
