"""Coming to lead: NEWLEADER and its promises, which every protocol begins with. Like Paxos' phase 1.

What members hold travels in bounded pieces. Before it speaks for the ballot, the candidate catches up with
everything a member of its quorum has executed, since members forget what a quorum has executed. What it
makes of their promises, the protocol says.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from multicast.durable import Promised
from multicast.errors import PeerViolation
from multicast.messages import H, Hint, NewLeader, NewLeaderAck, Part
from multicast.process.entry import E
from multicast.process.requests import Requests
from multicast.protocol import Start
from multicast.types import Ballot, Phase, Process, ReplicaId, Status, Timestamp

ACCEPTED = Phase.ACCEPTED
COMMITTED = Phase.COMMITTED


@dataclass(slots=True)
class Pieces(Generic[H]):
    """A state that arrives in pieces, in order. A new transfer starts over."""

    transfer: int = -1
    count: int = 0
    entries: list[H] = field(default_factory=list)
    next_index: int = 0

    def add(self, part: Part, entries: tuple[H, ...]) -> bool:
        """Take one piece. True when that completes the state."""
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
class Promise(Generic[H]):
    """One member's NEWLEADER_ACK, as far as its pieces have come."""

    cballot: Ballot
    clock: int
    executed: Timestamp
    pieces: Pieces[H]


@dataclass(slots=True)
class Campaign(Generic[H]):
    """A candidate's attempt to open a ballot."""

    ballot: Ballot
    resend_at: float
    promises: dict[ReplicaId, Promise[H]] = field(default_factory=dict)
    merged: bool = False
    """Whether the promises have been made use of: the ballot has its initial state."""
    acknowledged: int = 0
    """Members that hold the initial state, as bits."""

    def promised(self) -> list[ReplicaId]:
        """Who has answered NEWLEADER in full, in a fixed order."""
        return sorted(m for m, promise in self.promises.items() if promise.pieces.complete)


class Campaigning(Requests[E], Generic[E, H]):
    """How a process asks for promises, gives them, and starts to lead."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.campaign: Campaign[H] | None = None

    def recover(self) -> None:
        """Line 36: open a ballot above every one we know of."""
        self._leave_ballot()
        self.ballot = Ballot(self.highest_number + 1, self.me, self.configuration.number)
        self.note_ballot(self.group, self.ballot)
        self.campaign = Campaign(self.ballot, self.now + self.timing.retry_s)
        self.selection.promised(self.now)
        self._ready.persist.append(Promised(self.ballot))
        if self.others:
            self._ready.promise.append((self.others, NewLeader(self.ballot)))
        self._acknowledge_new_leader(self.me)

    def _leave_ballot(self) -> None:
        """Stop normal operation. What was only proposed is forgotten; its senders will repeat it."""
        self.status = Status.RECOVERING
        self.campaign = None
        self.queue.clear()
        self.numbers.clear()
        for entry in self.entries.values():
            if entry.phase is Phase.PROPOSED:
                entry.restart()
                self.orphans[entry.mid] = self.now
        self.selection.forget_leader()

    def on_new_leader(self, sender: Process, message: NewLeader) -> None:
        """Lines 38-42: join the ballot, and tell its leader everything."""
        ballot = message.ballot
        candidate = self._leader_speaks(sender, ballot)
        if ballot < self.ballot or ballot == self.cballot:
            self._ready.send.append(((candidate,), Hint(self.group, self.ballot)))
            return
        if ballot > self.ballot:
            self._leave_ballot()
            self.ballot = ballot
            self.selection.promised(self.now)
            self._ready.persist.append(Promised(ballot))
        self._acknowledge_new_leader(candidate)

    def _acknowledge_new_leader(self, candidate: ReplicaId) -> None:
        self._flush()
        for part, entries in self.parts(self.reported()):
            message = NewLeaderAck(self.ballot, self.cballot, self.clock, self.executed_ts, part, entries)
            self._ready.promise.append(((candidate,), message))

    def parts(self, entries: Iterable[H]) -> list[tuple[Part, tuple[H, ...]]]:
        """A state in pieces that fit a frame. At least one piece, so that an empty state arrives too."""
        pieces: list[list[H]] = [[]]
        size = 0
        for entry in entries:
            more = self._size(entry)
            if pieces[-1] and (
                len(pieces[-1]) >= self.timing.part_entries or size + more > self.timing.part_bytes
            ):
                pieces.append([])
                size = 0
            pieces[-1].append(entry)
            size += more
        self._transfer += 1
        return [
            (Part(self._transfer, index, len(pieces)), tuple(piece)) for index, piece in enumerate(pieces)
        ]

    def on_new_leader_ack(self, sender: Process, message: NewLeaderAck[H]) -> None:
        """Lines 43-44: gather a quorum of promises."""
        member = self._member(sender)
        campaign = self.campaign
        if campaign is None or message.ballot != campaign.ballot or campaign.merged:
            return
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
        """Once a quorum has promised, and we have executed all that any of it has, start the ballot."""
        campaign = self.campaign
        if campaign is None or campaign.merged:
            return
        promised = campaign.promised()
        if self.me not in promised or len(promised) < self.configuration.quorum:
            return
        furthest = max(promised, key=lambda m: campaign.promises[m].executed)
        if campaign.promises[furthest].executed > self.last_delivered:
            self._catch_up(furthest)
            return
        campaign.merged = True
        campaign.resend_at = self.now + self.timing.retry_s
        self._take_over(campaign.ballot, [campaign.promises[m] for m in promised])

    def _caught_up(self) -> None:
        self._try_merge()

    def _recovered_clock(self, promises: Sequence[Promise[H]]) -> int:
        """Line 55."""
        return max(promise.clock for promise in promises)

    def _lead(self) -> None:
        """Lines 66-69: deliver what can be, take up what the old leader left, then serve."""
        self.status = Status.LEADER
        self.campaign = None
        self.selection.lead(self.now)
        self.reports = {}
        unfinished = []
        for entry in self.entries.values():
            if entry.phase is ACCEPTED:
                entry.retries, entry.retry_at = 0, self.now
                self.queue.propose(entry.local_ts, entry)
                self.numbers[entry.mid.client, entry.mid.sequence] = entry.mid.digest
                unfinished.append(entry)
            elif entry.phase is COMMITTED and not entry.delivered:
                self.queue.add_committed(entry.global_ts, entry)
        self._deliver_committed()
        for entry in sorted(unfinished, key=lambda entry: entry.local_ts):
            self.retry(entry)
        self._release_waiting()
        self._heartbeat()

    def _resend(self) -> None:
        """A candidate repeats what may have been lost; whoever has answered is left alone."""
        campaign = self.campaign
        if campaign is None or self.now < campaign.resend_at:
            return
        campaign.resend_at = self.now + self.timing.retry_s
        if campaign.merged:
            self._resend_state(campaign)
            return
        silent = tuple(m for m in self.others if m not in campaign.promised())
        if silent:
            self._ready.promise.append((silent, NewLeader(campaign.ballot)))
        self._try_merge()

    def _leader_speaks(self, sender: Process, ballot: Ballot) -> ReplicaId:
        """The sender, if it is the member that leads the ballot it speaks of."""
        member = self._member(sender)
        if ballot.leader != member:
            raise PeerViolation(f"{sender} speaks for ballot {ballot}")
        self.topology.check_ballot(self.group, ballot)
        self.note_ballot(self.group, ballot)
        return member

    @abc.abstractmethod
    def reported(self) -> Iterable[H]:
        """What a promise tells the candidate."""

    @abc.abstractmethod
    def _size(self, entry: H) -> int:
        """About how many bytes a piece of a state takes."""

    @abc.abstractmethod
    def _take_over(self, ballot: Ballot, promises: list[Promise[H]]) -> None:
        """A quorum has promised: make the ballot's initial state of what it holds, and come to lead."""

    def _resend_state(self, campaign: Campaign[H]) -> None:
        """Repeat the ballot's initial state to those that may have missed it."""

    @abc.abstractmethod
    def _flush(self) -> None:
        """Send what has been gathered to be sent together."""

    @abc.abstractmethod
    def _heartbeat(self) -> None:
        """Say at once that there is a leader."""
