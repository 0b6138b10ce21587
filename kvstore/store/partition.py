"""One replica of a partition: a machine, its gate, and what replicas send each other beside the order.

Every replica executes. The leader also answers: transactions when the gate lets them pass, strict reads when
a quorum has confirmed its ballot. Leaders push votes and outcomes of transactions that several groups
vote on to the other groups' leaders and to their own followers; a replica that waits too long pulls them. Any
replica serves reads at a revision, and the change feed, from what it has executed.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, assert_never

from kvstore.machine import Compacted, Decision, Delivered, Machine, NotYet, Vote
from kvstore.machine.codec import RequestDecoder, decode_request, encode_result
from kvstore.machine.request import Get, footprint_of
from kvstore.machine.slices import SLICE_ROWS, Meter
from kvstore.node.ports import Outgoing
from kvstore.storage.errors import DamagedRow
from kvstore.store.chores import Chores
from kvstore.store.comparison import Comparison
from kvstore.store.gate import Announcement, Gate
from kvstore.store.messages import (
    Answer,
    BallotCheck,
    CalmLevels,
    CopyConfirmed,
    Digest,
    DigestWanted,
    Levels,
    Query,
    RaiseClock,
    Results,
    StoreMessage,
    Votes,
    VotesWanted,
)
from kvstore.store.questions import (
    Busy,
    ClockReport,
    ClockWanted,
    CompactedReply,
    Feed,
    NotLeading,
    Page,
    ReadAt,
    Response,
    Sample,
    StrictRead,
    Values,
)
from kvstore.store.questions import NotYetReply as NotYetHere
from kvstore.store.reads import FeedQueue, ReadQueue, page_at, perform_reads, sample
from kvstore.store.replica_view import ReplicaView
from kvstore.store.share import Share
from multicast.errors import PeerViolation
from multicast.messages import Delivery, Hint, Multicast
from multicast.quorum_time import OWN_CLIENTS
from multicast.types import (
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    Process,
    ReplicaId,
    Timestamp,
    timestamp,
)

logger = logging.getLogger(__name__)

PULL_S: Final = 0.1
"""How often to ask for votes, announcements and confirmations that have not come."""

IDLE_S: Final = 1.0
"""The same, when nothing is outstanding."""

PULLED: Final = 256
"""The most votes that are requested at once."""

ANSWER_BYTES: Final = 1 << 20
"""Results of one message, unless a single one is larger: a link carries no message of any size."""

SHORT_ROWS: Final = SLICE_ROWS // 2
"""Rows that short reads may look at in a turn, however slow long work has been: longer ones cost a cut."""

READS: Final = 10_000
"""Strict reads that may wait. Abandoned ones are among them: they end with the rest."""

_Waiting: TypeAlias = MessageId | int
"""What an answer at the gate belongs to: a message, or a read."""


@dataclass(slots=True)
class _Read:
    """A strict read in progress: only a leader can answer it."""

    client: ClientId
    number: int
    question: StrictRead


@dataclass(slots=True)
class _Round:
    """A check that the ballot is still current, begun after these reads arrived."""

    number: int
    ballot: Ballot
    reads: list[_Read]
    asked_at: float
    standing: set[ReplicaId] = field(default_factory=set)


class Partition:
    """One replica of a partition. Input comes by calls; `turn` returns the outgoing messages."""

    def __init__(
        self,
        replica: ReplicaView,
        machine: Machine,
        closed: Timestamp = NO_TIMESTAMP,
        share: Share | None = None,
        comparison: Comparison | None = None,
        chores: Chores | None = None,
    ) -> None:
        """`closed` is what the gate had closed when the machine's state was committed. `share` is that of the
        node's long work, `chores` of what it drops. Without `comparison`, this replica neither asks others
        for digests nor answers them.
        """
        self.comparison = comparison
        self.me = replica.me
        self.group = replica.me.group
        self.replica = replica
        self.machine = machine
        self.gate: Gate[_Waiting] = Gate(self.group)
        for gts, destinations in replica.retained_groups():
            if gts <= machine.delivered:
                self.gate.delivered(gts, destinations)
        if machine.delivered > self.gate.position:
            self.gate.delivered(machine.delivered, (self.group,))
        self.gate.heard(Announcement(self.group, closed, ()))
        self._ballot: Ballot | None = None
        """The ballot that this replica leads, or None."""
        self.leads = False
        """Whether there is one."""
        self._results: dict[_Waiting, Any] = {}
        """Results that wait at the gate."""
        self._votes: dict[GroupId, list[Vote]] = {}
        self._outcomes: list[tuple[Timestamp, Decision]] = []
        self._tokens = itertools.count()
        self._reads: dict[int, _Read] = {}
        """Reads that have passed the check of the ballot, and wait for locks or at the gate."""
        self._arrived: list[_Read] = []
        self._asked: set[tuple[ClientId, int]] = set()
        """The clients and numbers of all strict reads in progress."""
        self._round: _Round | None = None
        self._rounds = itertools.count()
        self._feed = FeedQueue(machine.versions)
        self._questions = ReadQueue()
        self._meter = Meter()
        """What short reads may still look at in this turn."""
        self._share = share or Share(pause_s=0.0)
        self._long_work: deque[tuple[Callable[[], bool], Callable[[int, float], int]]] = deque(
            (
                (lambda: self.machine.running, lambda rows, _: self.machine.run(rows)),
                (lambda: self._questions.long > 0, self._read_slice),
                (lambda: self._feed.behind > 0, self._feed_slice),
            )
        )
        """The kinds of long work, the next one first: whether there is any, and what does a slice of so many
        rows, and returns how many it has looked at.
        """
        self._waited: set[Timestamp] = set()
        """Transactions that waited for votes at the last pull."""
        self._pulled = NO_TIMESTAMP
        """The last transaction whose votes were pulled."""
        self._closed = NO_TIMESTAMP
        """What was closed at the last pull. If no more is, another group may have a leader unknown here."""
        self._announced_closed = NO_TIMESTAMP
        """What was last announced to our followers as closed."""
        self._askers: dict[GroupId, ReplicaId] = {}
        """Replicas that asked what we have closed: leaders of their groups, perhaps not yet known here."""
        self._outgoing: list[Outgoing] = []
        self._pull_at = 0.0
        self._idle = False
        self._chores = chores or Chores()
        self._more_work = False
        self.decode = RequestDecoder()
        """Decodes payloads; shared by all partitions of a node."""
        self._asked_for_more = False
        """Whether reads go on with the next turn."""
        self.worked = False
        """Whether rows were dropped since the last commit."""

    # What is ordered

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Deliver the group's next messages."""
        self._see_ballot()
        machine, gate, leading = self.machine, self.gate, self._ballot is not None
        decode = self.decode
        for mid, dest, payload, _, _, gts, _, _ in deliveries:
            if mid.client in OWN_CLIENTS:
                machine.skip(gts)
                gate.delivered(gts, dest)
                continue
            footprint = machine.deliver(Delivered(gts, mid, dest, decode(payload, len(dest))))
            if leading:
                gate.delivered(gts, dest, mid, footprint)
            else:
                gate.delivered(gts, dest)
            if self._reads:
                self._take_effects()

    def repeat(self, asked: Iterable[tuple[ClientId, Multicast]]) -> None:
        """Answer requests that were multicast again. Those not yet executed are answered when they are."""
        self._see_ballot()
        self._take_effects()  # new deliveries are answered anyway
        for _, message in asked:
            if self._ballot is None or message.mid in self._results:
                continue
            stored = self.machine.stored(decode_request(message.payload), message.dest)
            if stored is not None:
                self._results[message.mid] = stored
                self.gate.executed(message.mid)

    @property
    def executed(self) -> Timestamp:
        """What the ordering may forget, once it is durable: executed, and closed at the gate."""
        return min(self.machine.watermark, self._closed_now())

    def _closed_now(self) -> Timestamp:
        """Return what is closed. The gate closes only what answers wait for, unless it is asked."""
        self.gate.settle()
        return self.gate.closed

    # Messages of other processes

    def receive(self, sender: Process, message: StoreMessage, now: float) -> None:
        """Handle a message."""
        if isinstance(message, Query):
            self._ask(sender, message, now)
        elif isinstance(message, RaiseClock):
            self.replica.raise_clock(message.time)  # a gateway has had it confirmed
        elif not isinstance(sender, ReplicaId):
            raise PeerViolation(f"client {sender} sent {type(message).__name__}")
        elif isinstance(message, Votes):
            self._hear_votes(sender, message)
        elif isinstance(message, VotesWanted):
            self._send_known_votes(sender, message.places)
        elif isinstance(message, Levels):
            self._hear_levels(sender, message.announcement)
        elif isinstance(message, BallotCheck):
            self._stand(sender, message)
        elif isinstance(message, DigestWanted | Digest | CopyConfirmed):
            self._compare(sender, message, now)
        else:
            raise PeerViolation(f"{sender} sent {type(message).__name__} to a replica")

    def _compare(self, sender: ReplicaId, message: DigestWanted | Digest | CopyConfirmed, now: float) -> None:
        if self.comparison is None:
            return
        if isinstance(message, DigestWanted):
            self.comparison.wanted(sender, message, now)
        elif isinstance(message, Digest):
            self.comparison.answered(sender, message)
        else:
            self.comparison.confirmed(sender, message)

    def _take_comparison(self, comparison: Comparison, now: float) -> None:
        """Compare with other replicas. Raises `DamagedRow` if a majority has other content than this one."""
        verdict, self.machine.verdict = self.machine.verdict, None
        if verdict is not None:
            reason = comparison.reason(verdict)
            if reason is not None:
                raise DamagedRow(reason)
            logger.critical("%s learned that the state of %s is wrong: %s", self.me, verdict.replica, verdict)
        comparison.turn(now)
        self._outgoing += comparison.outgoing
        comparison.outgoing.clear()

    def _hear_votes(self, sender: ReplicaId, message: Votes) -> None:
        for vote in message.votes:
            if vote.group != sender.group:
                raise PeerViolation(f"{sender} sent a vote of group {vote.group}")
            self.machine.vote(vote)
            if self._reads:
                self._take_effects()
        for gts, decision in message.outcomes:
            if sender.group != self.group and not self.machine.waits_for(gts, sender.group):
                continue  # it was asked for, and is decided by now; or it is none of that group's business
            self.machine.outcome(gts, decision)
            if self._reads:
                self._take_effects()

    def _send_known_votes(self, asker: ReplicaId, positions: Sequence[Timestamp]) -> None:
        """Send what is known of these transactions. An outcome replaces all votes."""
        votes, outcomes = [], []
        for gts in positions[:PULLED]:
            known = self.machine.known_of(gts)
            if isinstance(known, Vote):
                votes.append(known)
            elif known is not None:
                outcomes.append((gts, known))
        if votes or outcomes:
            self._outgoing.append((self.me, (asker,), Votes(tuple(votes), tuple(outcomes))))

    def _hear_levels(self, sender: ReplicaId, announcement: Announcement) -> None:
        if sender.group != announcement.group:
            raise PeerViolation(f"{sender} sent an announcement of group {announcement.group}")
        self.gate.heard(announcement)
        if announcement.wanted:
            self._askers[sender.group] = sender
        if announcement.wanted and self._ballot is None:
            self._outgoing.append((self.me, (sender,), Hint(self.group, self.replica.ballot)))

    def _stand(self, sender: ReplicaId, message: BallotCheck) -> None:
        if sender.group != self.group:
            raise PeerViolation(f"{sender} sent a BallotCheck to group {self.group}, but is not a member")
        ballot, number = message.ballot, message.number
        if message.asked:
            if self.replica.is_in_ballot(ballot):
                self._outgoing.append((self.me, (sender,), BallotCheck(ballot, number, asked=False)))
        elif self._round is not None and (ballot, number) == (self._round.ballot, self._round.number):
            self._round.standing.add(sender)
            self._pass_round()

    # Questions

    def _ask(self, asker: Process, query: Query, now: float) -> None:
        if isinstance(asker, ReplicaId):
            raise PeerViolation(f"replica {asker} sent a Query, which only gateways send")
        question = query.question
        if isinstance(question, StrictRead):
            self._see_ballot()
            if self._ballot is None:
                self._answer(asker, query.number, NotLeading(self.replica.ballot))
            elif (asker, query.number) in self._asked:
                pass  # a retry of a read that still waits
            elif len(self._asked) >= READS:
                self._answer(asker, query.number, Busy())
            else:
                self._asked.add((asker, query.number))
                self._arrived.append(_Read(asker, query.number, question))
        elif isinstance(question, Feed) and not (self.machine.versions.watermark or self.serving):
            # A new disk, or one that is being restored: its silence would be that of an idle group.
            self._answer(asker, query.number, NotYetHere(NO_TIMESTAMP))
        elif isinstance(question, Feed):
            self._feed.add(asker, query.number, question, now)
        elif isinstance(question, ClockWanted):
            membership = self.replica.membership
            if self.me not in membership.everyone:
                return  # its clock says nothing of its group
            clock = self.replica.clock
            time = max(clock, self.replica.quorum_time())
            report = ClockReport(clock, time, self.replica.is_leader, membership.version)
            self._answer(asker, query.number, report)
        elif isinstance(question, ReadAt | Page | Sample):
            if not self._questions.add(asker, query.number, question, now):
                self._answer(asker, query.number, Busy())
            self._answer_questions(now)
        else:
            assert_never(question)

    def _answer_questions(self, now: float) -> None:
        """Perform short reads that are not strict, as far as the turn's rows allow."""
        for asker, number, question in self._questions.take(self._meter, now):
            self._answer(asker, number, self._read_at(question, self._meter))

    def work(self, now: float) -> bool:
        """Do a slice of long work, if there is any and it is this partition's turn. Return whether it was.

        What comes of it leaves with the next turn. The messages of the turn before must have left already:
        no process waits for a slice that has nothing to do with it.
        """
        share, group = self._share, self.group
        if not self.has_long_work:
            share.leave(group)
            return False
        if not share.take(group, now):
            return False
        kinds = self._long_work
        while not kinds[0][0]():
            kinds.rotate(-1)
        rows = kinds[0][1](share.rows, now)
        kinds.rotate(-1)
        share.done(group, more=self.has_long_work, waited_for=self.machine.is_waited_for(), rows=rows)
        return True

    def _read_slice(self, rows: int, now: float) -> int:
        """Perform long reads until a slice of so many rows is used up; return how many were looked at."""
        meter = Meter(rows)
        for asker, number, question in self._questions.take_long(meter, now):
            if isinstance(question, Sample):
                self._answer(asker, number, sample(self.machine.versions, question, meter))
            else:
                self._answer(asker, number, self._read_at(question, meter))
        return rows - meter.left

    def _feed_slice(self, rows: int, now: float) -> int:
        """Answer questions for changes that are there, in the same way."""
        meter = Meter(rows)
        for watcher, number, changes in self._feed.take_behind(meter, now):
            self._answer(watcher, number, changes)
        return rows - meter.left

    def _answer(self, client: ClientId, number: int, response: Response) -> None:
        self._outgoing.append((self.me, (client,), Answer(number, response)))

    def _read_at(self, question: ReadAt | Page, meter: Meter) -> Response:
        versions = self.machine.versions
        revision = question.revision or versions.watermark
        if not (revision or self.serving):
            return NotYetHere(NO_TIMESTAMP)  # a new disk, which has not caught up: not an empty store
        try:
            if isinstance(question, Page):
                return page_at(versions, question, revision, meter)
            return Values(revision, perform_reads(versions, question.operations, revision, meter))
        except NotYet as error:
            return NotYetHere(error.watermark)
        except Compacted as error:
            return CompactedReply(error.floor)

    # Strict reads: a quorum confirms the ballot after a read arrived, so no other leader can have answered

    def _check_reads(self, now: float) -> None:
        current = self._round
        if current is not None:
            if now - current.asked_at >= PULL_S:
                current.asked_at = now
                self._ask_round(current)
            return
        ballot = self.replica.reading_ballot
        if self._arrived and ballot is not None:
            self._round = _Round(next(self._rounds), ballot, self._arrived, now, {self.me})
            self._arrived = []
            self._ask_round(self._round)
            self._pass_round()

    def _ask_round(self, current: _Round) -> None:
        members, _ = self.replica.readers
        others = tuple(member for member in members if member not in current.standing)
        if others:
            self._outgoing.append((self.me, others, BallotCheck(current.ballot, current.number, asked=True)))

    def _pass_round(self) -> None:
        current = self._round
        if current is None or current.ballot != self.replica.reading_ballot:
            return
        members, quorum = self.replica.readers
        if len(current.standing.intersection(members)) < quorum:
            return
        self._round = None
        for read in current.reads:
            token = next(self._tokens)
            footprint = footprint_of((), enumerate(read.question.operations))
            self._reads[token] = read
            self.gate.read(token, footprint)
            self.machine.read(token, footprint)
            self._take_effects()

    def _read_now(self, token: int) -> None:
        """The locks are granted: nothing that is delivered and not executed touches what is read."""
        operations = self._reads[token].question.operations
        # Reads of keys are as many as callers ask for. Those of ranges share the turn's rows.
        meter = Meter() if all(isinstance(each, Get) for each in operations) else self._meter
        self._results[token] = Values(
            self.machine.watermark, perform_reads(self.machine.versions, operations, meter=meter)
        )
        self.gate.executed(token)

    # Turns

    def turn(self, now: float) -> list[Outgoing]:
        """Return all outgoing messages."""
        self._see_ballot()
        self._meter.left = max(self._share.rows, SHORT_ROWS)
        leading = self._ballot is not None
        if leading and (self._arrived or self._round is not None):
            self._check_reads(now)  # first, since in a group of one they are answered at once
        if self.machine.has_effects:
            self._take_effects()
        if leading:
            if self.gate.is_due or now >= self.gate.wake_at:
                self._pass_gate(now)
            if self._votes or self._outcomes:
                self._send_votes()
        if now >= self._pull_at or (self._idle and self._busy()):
            self._idle = not self._busy()
            self._pull_at = now + (IDLE_S if self._idle else PULL_S)
            self._pull()
        if self._feed:
            for watcher, number, changes in self._feed.due(now):
                self._answer(watcher, number, changes)
        if self._questions.short:
            self._answer_questions(now)
        self._asked_for_more = self._questions.short > 0
        comparison = self.comparison
        if comparison is not None and (
            comparison.due or now >= comparison.wake_at or self.machine.verdict is not None
        ):
            self._take_comparison(comparison, now)
        more_work = self._chores.work(self.machine, now)
        self.worked = self.worked or more_work or self._more_work
        self._more_work = more_work
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def _pass_gate(self, now: float) -> None:
        """As a leader, send the answers that the gate lets pass, and what it announces."""
        answers, announcements, calm = self.gate.turn(now)
        for group, announcement in announcements:
            leader = self.replica.leader_of(group)
            listeners = tuple(sorted({leader, self._askers.get(group, leader)}))
            self._outgoing.append((self.me, listeners, Levels(announcement)))
        for group, announcement in calm:
            self._outgoing.append((self.me, (self.replica.leader_of(group),), CalmLevels(announcement)))
        self._askers.clear()
        if answers:
            self._send_answers(answers)

    def _busy(self) -> bool:
        """Whether this replica waits for something that may have been lost."""
        closed = self._closed_now()
        return bool(len(self.gate) or self.machine.waiting or self._round or closed != self._announced_closed)

    @property
    def has_long_work(self) -> bool:
        """Whether there is work for the node's share of long work."""
        return self._questions.long > 0 or self.machine.running or self._feed.behind > 0

    @property
    def wake_at(self) -> float:
        """When the next turn is due."""
        if self._asked_for_more:
            return 0.0
        wake_at = min(self._share.at, self._pull_at) if self.has_long_work else self._pull_at
        if self._ballot is not None and self.gate.wake_at < wake_at:
            wake_at = self.gate.wake_at
        if self._more_work:
            wake_at = min(wake_at, self._chores.at)
        return wake_at if self.comparison is None else min(wake_at, self.comparison.wake_at)

    @property
    def leads_anew(self) -> bool:
        """Whether this replica has begun to lead, or has stopped, since the last turn."""
        return (self.replica.cballot if self.replica.is_leader else None) != self._ballot

    def _see_ballot(self) -> None:
        """Notice a change of ballot: what was known in another ballot does not count."""
        ballot = self.replica.cballot if self.replica.is_leader else None
        if ballot is self._ballot or ballot == self._ballot:
            return
        self._take_effects()
        self._closed_now()
        self._ballot = ballot
        self.leads = ballot is not None
        self.gate.new_ballot(timestamp(self.replica.clock + 1, GroupId(0)))
        waiting = [*self._arrived, *(self._round.reads if self._round else ()), *self._reads.values()]
        for read in waiting:
            self._answer(read.client, read.number, NotLeading(self.replica.ballot))
        self._arrived, self._round = [], None
        self._asked.clear()
        self._reads.clear()
        self._results.clear()
        self._votes.clear()
        self._outcomes.clear()
        self._pull_at = 0.0

    def _take_effects(self) -> None:
        """Take what the machine has done since the last call."""
        effects = self.machine.drain()
        for token in effects.reads:
            if token in self._reads:
                self._read_now(token)
        if effects.reads:
            self._take_effects()
        if self._ballot is None:
            return
        for executed in effects.results:
            mid = executed.delivered.mid
            self._results[mid] = executed.revision, executed.result
            self.gate.executed(mid)
        for vote, others in effects.votes:
            for group in others:
                self._votes.setdefault(group, []).append(vote)
        self._outcomes += [(gts, decision) for gts, _, decision in effects.outcomes]

    def _send_answers(self, answers: Sequence[_Waiting]) -> None:
        runs: dict[ClientId, list[MessageId]] = {}
        for answer in answers:
            if isinstance(answer, int):
                read = self._reads.pop(answer)
                self._asked.discard((read.client, read.number))
                self._answer(read.client, read.number, self._results.pop(answer))
            elif answer in self._results:
                runs.setdefault(answer.client, []).append(answer)
        for client, mids in runs.items():
            mine: list[tuple[MessageId, Timestamp, bytes]] = []
            size = 0
            for mid in mids:
                position, result = self._results.pop(mid)
                data = encode_result(result)
                if mine and size + len(data) > ANSWER_BYTES:
                    self._send_results(client, mine)
                    mine, size = [], 0
                mine.append((mid, position, data))
                size += len(data)
            self._send_results(client, mine)

    def _send_results(self, client: ClientId, found: Sequence[tuple[MessageId, Timestamp, bytes]]) -> None:
        mids, positions, results = zip(*found, strict=True)
        message = Results(self.group, self.machine.watermark, mids, positions, results)
        self._outgoing.append((self.me, (client,), message))

    def _send_votes(self) -> None:
        for group, votes in self._votes.items():
            self._outgoing.append((self.me, (self.replica.leader_of(group),), Votes(tuple(votes))))
        self._votes.clear()
        if self._outcomes and self.replica.others:
            self._outgoing.append((self.me, self.replica.others, Votes((), tuple(self._outcomes))))
        self._outcomes.clear()

    def _pull(self) -> None:
        """Request what should have arrived, and repeat what may have been lost."""
        leading = self._ballot is not None
        wanted: dict[GroupId, list[Timestamp]] = {}
        for gts, voters in self._late():
            # Voters forget the outcome when a quorum of ours has executed it: then our own group knows.
            for group in (self.group, *sorted(voters)) if leading else (self.group,):
                wanted.setdefault(group, []).append(gts)
        for group, positions in wanted.items():
            members = tuple(m for m in self.replica.topology.members(group) if m != self.me)
            self._outgoing.append((self.me, members, VotesWanted(tuple(positions))))
        self._announced_closed = self.gate.closed
        if not leading:
            return
        for group, announcement in self.gate.repeat():
            leader, everyone = (self.replica.leader_of(group),), self.replica.topology.members(group)
            stuck = self.gate.closed == self._closed
            self._outgoing.append((self.me, everyone if stuck else leader, Levels(announcement)))
        self._closed = self.gate.closed
        if self.replica.others:
            closed = Announcement(self.group, self.gate.closed, ())
            self._outgoing.append((self.me, self.replica.others, Levels(closed)))

    def _late(self) -> list[tuple[Timestamp, frozenset[GroupId]]]:
        """Return some of what has waited for votes since the last pull; the next pull takes what follows.

        Else the transactions of a group that is down would keep the others from ever being pulled.
        """
        waiting = self.machine.open_votes()
        late = [(gts, voters) for gts, voters in waiting if gts in self._waited]
        self._waited = {gts for gts, _ in waiting}
        first = next((i for i, (gts, _) in enumerate(late) if gts > self._pulled), 0)
        found = (late[first:] + late[:first])[:PULLED]
        self._pulled = found[-1][0] if found else NO_TIMESTAMP
        return found

    def status(self) -> dict[str, Any]:
        """Return the status, for people."""
        return {
            "executed": self.machine.watermark,
            "closed": self._closed_now(),
            "waiting": self.machine.waiting,
            "serving": self.serving,
            "comparison": None if self.comparison is None else self.comparison.status(),
        }

    @property
    def serving(self) -> bool:
        """Whether this replica is part of its group, and has caught up."""
        return self.replica.is_current
