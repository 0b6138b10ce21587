"""Normal operation: ACCEPT and ACCEPT_ACK (left column of Figure *protocol*, from line 9).

The messages of one turn are handled together, whatever their destinations: one ACCEPT to each group proposes
them, one record and one ACCEPT_ACK to each leader accept them. The figure's lines are the bodies of loops
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from multicast.durable import Accepted
from multicast.errors import InvariantBroken, PeerViolation
from multicast.messages import Accept, AcceptAck
from multicast.process import Replica
from multicast.protocol import Start
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Status,
    Timestamp,
    Vector,
    expand_dests,
    time_of,
)
from multicast.whitebox.entry import AckBallots, BallotVector, Entry

START = Phase.START
ACCEPTED = Phase.ACCEPTED
COMMITTED = Phase.COMMITTED
LEADER = Status.LEADER
FOLLOWER = Status.FOLLOWER
RECOVERING = Status.RECOVERING

CACHED_MAX = 4096
"""The limit of each cache of destinations, ballots and votes; a full cache is cleared.

Votes that were counted stay valid: vectors of ballots are compared by value, not only by identity."""


class WhiteBox(Replica[Entry]):
    """Give messages their timestamps while leaders are stable."""

    def __init__(self, start: Start) -> None:
        self.bals: dict[Vector, BallotVector] = {}
        """Every Bal in use, one object for each, until the caches are cleared."""
        self.lately: dict[Destinations, BallotVector] = {}
        """Of these, by destinations, the one in which a message was accepted last."""
        self.ack_ballots: dict[Vector, AckBallots] = {}
        """The ballots of recent acknowledgements."""
        self.checked: dict[GroupId, set[Destinations]] = {}
        """Destinations that were found valid, by the proposing group."""
        self.proposed: list[Entry] = []
        """At a leader: the messages to propose, or propose again, with the next ACCEPTs."""
        self.named: Vector = ()
        """The ballots that our acknowledgements named last, one of each group."""
        self.together: set[BallotVector] = set()
        """Every Bal whose ballots are among these."""
        self.issued = NO_TIMESTAMP
        """At a leader: the last local timestamp that it has issued in its ballot."""
        self.acked: dict[BallotVector, list[MessageId]] = {}
        """Messages accepted and not yet acknowledged, by their ballots."""
        super().__init__(start)
        self._handlers[Accept] = self.on_accept
        self._handlers[AcceptAck] = self.on_accept_ack

    def new_entry(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> Entry:
        """Return an entry in START."""
        return Entry(mid, dest, payload, ack_below)

    def _send_proposal(self, entry: Entry) -> None:
        self.proposed.append(entry)

    def _repeat(self, entry: Entry, asker: Process) -> None:
        self._send_proposal(entry)

    def _flush(self) -> None:
        """Lines 9 and 17: send what has been proposed and accepted since the last time."""
        if self.proposed:
            proposed, self.proposed = self.proposed, []
            for run in self._runs(proposed):
                self._send_accept(run)
        if self.acked:
            acked, self.acked = self.acked, {}
            self._send_accept_ack(acked)

    @property
    def is_due(self) -> bool:
        """Whether there is anything to propose, acknowledge or send, or to answer clients with."""
        ready = self._ready
        return bool(
            self.acked
            or self.proposed
            or ready.promise
            or ready.send
            or (ready.deliver and self.answers_clients)
            or ready.duplicates
            or ready.transfers
            or ready.learned
        )

    def _runs(self, entries: list[Entry]) -> Iterator[list[Entry]]:
        """Yield the entries in runs that fit a frame."""
        run: list[Entry] = []
        size = 0
        for entry in entries:
            size += len(entry.payload or b"")
            if run and (len(run) >= self.timing.part_entries or size > self.timing.part_bytes):
                yield run
                run, size = [], len(entry.payload or b"")
            run.append(entry)
        yield run

    def _send_accept(self, run: list[Entry]) -> None:
        """Line 9: send ACCEPT. Payloads go to the own group only; the leader handles its own ACCEPT directly.

        Every other group receives the proposals of the messages that it is a destination of.
        """
        group, ballot, send = self.group, self.cballot, self._ready.send
        dests, mids, local_ts, payloads, ack_below = _columns(run)
        own = Accept(dests, group, ballot, mids, local_ts, payloads, ack_below, self.issued)
        self.issued = max(self.issued, *local_ts)
        if self.others:
            send.append((self.others, own))
        shares: dict[GroupId, list[Entry]] = {}
        for entry in run:
            for other in entry.dest:
                share = shares.get(other)
                if share is None:
                    shares[other] = [entry]
                else:
                    share.append(entry)
        hear_all: list[ReplicaId] = []
        for other, share in shares.items():
            if other == group:
                continue
            members = self.topology.members(other)
            if len(share) == len(run):
                hear_all += members
            else:
                dests, mids, local_ts, _, _ = _columns(share)
                send.append((members, Accept(dests, group, ballot, mids, local_ts, (), ())))
        if hear_all:
            send.append((tuple(hear_all), Accept(own.dests, group, ballot, own.mids, own.local_ts, (), ())))
        self._gather(run, own)

    def on_accept(self, sender: ReplicaId, message: Accept) -> None:
        """Lines 10-11: collect the proposals of all destination groups, the highest ballot of each."""
        found = self._check_accept(sender, message)
        if message.group != self.group or (self.status is FOLLOWER and message.ballot == self.cballot):
            self.topology.configuration(message.group, message.ballot.configuration)
            self._gather(found, message)

    def _check_accept(self, sender: ReplicaId, message: Accept) -> list[Entry | None]:
        """Return the messages' known entries. Raise, with nothing changed, if no leader sends this."""
        group, mids = message.group, message.mids
        if message.ballot.leader != sender or sender.group != group:
            what = f"ACCEPT of {_names(mids)} for group {group} in ballot {message.ballot}"
            raise PeerViolation(f"{what} came from {sender}")
        count = len(mids)
        dests = expand_dests(message.dests, count)
        lengths = len(dests), len(message.local_ts), len(message.payloads), len(message.ack_below)
        given = count if group == self.group else 0
        if not count or lengths != (count, count, given, given):
            raise PeerViolation(f"ACCEPT of {_names(mids)} from {sender} has columns of wrong lengths")
        if message.ballot.number > self.usual_number.get(group, 0):
            self.check_number(group, message.ballot)
        checked = self.checked.setdefault(group, set())
        for dest in message.dests:
            if dest not in checked:
                self.topology.check_destinations(dest)
                if self.group not in dest or group not in dest:
                    what = f"ACCEPT of {_names(mids)} to groups {dest}, by {group}"
                    raise PeerViolation(f"{what}, came to {self.group}")
                if len(checked) < CACHED_MAX:
                    checked.add(dest)
        found = list(map(self.entries.get, mids))
        for entry, dest in zip(found, dests, strict=True):
            if entry is not None and entry.dest is not dest and entry.dest != dest:
                raise PeerViolation(f"ACCEPT of {entry.mid} to groups {entry.dest} came from {sender}")
        return found

    def _gather(self, found: Sequence[Entry | None], message: Accept) -> None:
        """Record the proposals of a destination's leader. Accept what all destinations have now proposed."""
        group, ballot = message.group, message.ballot
        own = group == self.group
        entries, orphans, find, now = self.entries, self.orphans, self.delivered_ids.find, self.now
        dests = expand_dests(message.dests, len(message.mids))
        payloads: Iterable[bytes | None] = message.payloads or repeat(None)
        below = message.ack_below or repeat(0)
        complete: list[Entry] = []
        repeated: list[Entry] = []
        last: Destinations = ()
        at = 0
        for entry, mid, dest, local_ts, payload, ack_below in zip(
            found, message.mids, dests, message.local_ts, payloads, below, strict=False
        ):
            if entry is None:
                entry = entries.get(mid)  # the message may have named it before
            if entry is None:
                if find(mid):
                    continue
                entry = entries[mid] = Entry(mid, dest, payload, ack_below)
                orphans[mid] = now
            elif own and entry.phase is not COMMITTED:
                entry.payload = payload
                entry.ack_below = ack_below
            if entry.dest is not last:
                last = entry.dest
                at = last.index(group)
            known = entry.ballots[at]
            if known is NO_BALLOT:
                entry.missing -= 1
            elif known > ballot:
                continue
            entry.ballots[at] = ballot
            entry.proposals[at] = local_ts
            if not entry.missing:
                (repeated if known == ballot else complete).append(entry)
        if complete:
            self._accept(complete, None)
        if repeated:
            self._accept(repeated, group)

    def _accept(self, run: Sequence[Entry], repeated: GroupId | None) -> None:
        """Lines 12-17: with all proposals, accept the own group's, advance the clock, acknowledge.

        What was accepted before, and is proposed again by a group, is acknowledged to its leader only.
        """
        if self.status is RECOVERING:
            return
        group, lately, acked = self.group, self.lately, self.acked
        accepted: list[Entry] = []
        again: dict[BallotVector, list[MessageId]] = {}
        highest = NO_TIMESTAMP
        last: Destinations = ()
        bal: BallotVector | None = None
        at = 0
        for entry in run:
            dest = entry.dest
            if dest is not last:
                last, bal, at = dest, lately.get(dest), dest.index(group)
            if bal is None or bal.ballots != entry.ballots:
                bal = lately[dest] = self._bal(tuple(entry.ballots))
            if entry.bal is not None and entry.bal.vector == bal.vector:
                again.setdefault(bal, []).append(entry.mid)
                continue
            own = entry.proposals[at]
            if entry.phase is not COMMITTED:
                if entry.phase is START:
                    del self.orphans[entry.mid]
                entry.phase = ACCEPTED
            elif self._outdated(entry, own):
                continue
            if not bal.noted:
                self._note(bal)
            entry.bal = bal
            entry.votes = 0 if entry.early is None else entry.early.pop(bal.vector, 0)
            entry.local_ts = own
            global_ts = max(entry.proposals)
            if global_ts > highest:
                highest = global_ts
            accepted.append(entry)
            mids = acked.get(bal)
            if mids is None:
                acked[bal] = [entry.mid]
            else:
                mids.append(entry.mid)
        if accepted:
            time = time_of(highest)
            if self.clock < time:
                self.clock = time
            self._ready.persist.append(Accepted(*_columns(accepted), self.clock))
        for bal, mids in again.items():
            if repeated is None:
                acked.setdefault(bal, []).extend(mids)
            else:
                leader = bal.leaders[bal.dest.index(repeated)]
                self._ready.promise.append(
                    ((leader,), AcceptAck(tuple(mids), group, bal.vector, self.issued))
                )

    def _note(self, bal: BallotVector) -> None:
        """Note the ballots of these leaders."""
        bal.noted = True
        for group, ballot in zip(bal.dest, bal.vector, strict=True):
            self.note_ballot(group, ballot)

    def _outdated(self, entry: Entry, own: Timestamp) -> bool:
        """Return whether our leader's proposal differs from what was decided.

        Deliveries are facts of any ballot: we may have learned a decision made above our own ballot, whose
        leader's proposal arrives late. The proposal must not replace what was decided.
        """
        return entry.local_ts != own

    def _bal(self, vector: Vector) -> BallotVector:
        """Return the shared object for these ballots."""
        bal = self.bals.get(vector)
        if bal is None:
            if len(self.bals) >= CACHED_MAX:
                self.bals.clear()
                self.lately.clear()
                self.ack_ballots.clear()
                self.together.clear()
            voters = [self.topology.configuration(b.leader.group, b.configuration) for b in vector]
            bal = self.bals[vector] = BallotVector(vector, voters, self.group)
        return bal

    def _leave_ballot(self) -> None:
        self._flush()
        self.issued = NO_TIMESTAMP
        super()._leave_ballot()

    def _send_accept_ack(self, acked: dict[BallotVector, list[MessageId]]) -> None:
        """Line 17: acknowledge to the leader of every destination. A message names one ballot per group."""
        promise = self._ready.promise
        while acked:
            later = {} if acked.keys() <= self.together else self._name(acked)
            every: list[MessageId] = []
            shares: dict[ReplicaId, list[MessageId]] = {}
            for bal, mids in acked.items():
                if later and bal in later:
                    continue
                every += mids
                for receiver in self._counting(bal):
                    share = shares.get(receiver)
                    if share is None:
                        shares[receiver] = mids[:]
                    else:
                        share += mids
            ballots = self.named
            hear_all = tuple([receiver for receiver, share in shares.items() if len(share) == len(every)])
            if hear_all:
                promise.append((hear_all, AcceptAck(tuple(every), self.group, ballots, self.issued)))
            for receiver, share in shares.items():
                if len(share) < len(every):
                    promise.append(((receiver,), AcceptAck(tuple(share), self.group, ballots, self.issued)))
            acked = later

    def _name(self, acked: dict[BallotVector, list[MessageId]]) -> dict[BallotVector, list[MessageId]]:
        """Choose the ballots to name, the previous ones if possible. Return what needs another message."""
        by_group = {ballot.leader.group: ballot for ballot in self.named}
        if any(by_group.get(g, b) != b for bal in acked for g, b in zip(bal.dest, bal.vector, strict=True)):
            by_group.clear()
            self.together.clear()
        later: dict[BallotVector, list[MessageId]] = {}
        for bal, mids in acked.items():
            pairs = list(zip(bal.dest, bal.vector, strict=True))
            if any(by_group.get(group, ballot) != ballot for group, ballot in pairs):
                later[bal] = mids
            else:
                by_group.update(pairs)
                self.together.add(bal)
        self.named = tuple([by_group[group] for group in sorted(by_group)])
        return later

    def _counts(self) -> bool:
        """Return whether this process counts acknowledgements."""
        return self.status is LEADER

    def _counting(self, bal: BallotVector) -> Sequence[ReplicaId]:
        """Return the processes that count acknowledgements in these ballots."""
        return bal.leaders

    def on_accept_ack(self, sender: ReplicaId, message: AcceptAck) -> None:
        """Lines 18-24: commit what quorums of all destinations, us included, accepted in the same ballots."""
        acked_in = self._check_accept_ack(sender, message)
        if self._counts() and acked_in.ballots.get(self.group) == self.cballot:
            self._count(sender, message, acked_in)

    def _check_accept_ack(self, sender: ReplicaId, message: AcceptAck) -> AckBallots:
        """Return the ballots that it names. Raise, with nothing changed, if no process sends this."""
        if sender.group == message.group:
            acked_in = self.ack_ballots.get(message.ballots) or self._ack_ballots(message.ballots)
            if sender.group in acked_in.ballots:
                return acked_in
        what = f"ACCEPT_ACK of {_names(message.mids)} for group {message.group}"
        raise PeerViolation(f"{what} came from {sender}")

    def _count(self, sender: ReplicaId, message: AcceptAck, acked_in: AckBallots) -> None:
        """Commit what this acknowledgement completes, and deliver what may be delivered."""
        commit = self.queue.commit
        last: Destinations = ()
        bal: BallotVector | None = None
        bit = 0
        for entry in map(self.entries.get, message.mids):
            if entry is None or entry.phase is COMMITTED:
                continue
            if entry.dest is not last:
                last = entry.dest
                bal = acked_in.bals.get(last) or self._bal_of(last, acked_in)
                bit = 0 if bal is None else bal.bits.get(sender, 0)
            if bal is None:
                continue
            if entry.bal is not bal and (entry.bal is None or entry.bal.vector != bal.vector):
                if entry.early is None:
                    entry.early = {}
                vector = bal.vector
                entry.early[vector] = entry.early.get(vector, 0) | bit  # it has overtaken a proposal
                continue
            votes = entry.votes = entry.votes | bit
            if votes.bit_count() < bal.least:
                continue
            agreed = bal.verdicts.get(votes)
            if agreed is None:
                agreed = self._is_agreed(bal, votes)
            if agreed:
                entry.phase = COMMITTED
                entry.global_ts = max(entry.proposals)
                entry.early = None
                commit(entry.local_ts, entry.global_ts)
        self._deliver_committed()

    def _ack_ballots(self, ballots: Vector) -> AckBallots:
        """Return these ballots by group. Raise if no process names them together."""
        groups = tuple([ballot.leader.group for ballot in ballots])
        self.topology.check_destinations(groups)
        for ballot in ballots:
            self.topology.configuration(ballot.leader.group, ballot.configuration)
        if len(self.ack_ballots) >= CACHED_MAX:
            self.ack_ballots.clear()
        acked_in = self.ack_ballots[ballots] = AckBallots(ballots)
        return acked_in

    def _bal_of(self, dest: Destinations, acked_in: AckBallots) -> BallotVector | None:
        """Return Bal of a message to these groups, or None if a group's ballot is not named."""
        vector = tuple([acked_in.ballots.get(group, NO_BALLOT) for group in dest])
        if NO_BALLOT in vector:
            return None
        bal = acked_in.bals[dest] = self._bal(vector)
        return bal

    def _is_agreed(self, bal: BallotVector, votes: int) -> bool:
        """Return whether quorums of all destinations, and our leader, have accepted these proposals."""
        agreed = bal.is_agreed(votes)
        if len(bal.verdicts) < CACHED_MAX:
            bal.verdicts[votes] = agreed
        return agreed


def _names(mids: Sequence[MessageId]) -> str:
    return ", ".join(map(str, mids[:3])) + (", ..." if len(mids) > 3 else "")


def _columns(
    run: Sequence[Entry],
) -> tuple[
    tuple[Destinations, ...],
    tuple[MessageId, ...],
    tuple[Timestamp, ...],
    tuple[bytes, ...],
    tuple[int, ...],
]:
    """Return the columns of these messages in ACCEPT and in its record."""
    payloads = tuple([entry.payload for entry in run])
    if None in payloads:
        raise InvariantBroken(f"{run[payloads.index(None)].mid} is proposed, but its payload is missing")
    dests = tuple([entry.dest for entry in run])
    return (
        dests[:1] if dests.count(dests[0]) == len(dests) else dests,
        tuple([entry.mid for entry in run]),
        tuple([entry.local_ts for entry in run]),
        payloads,  # type: ignore[return-value]  # None was excluded above
        tuple([entry.ack_below for entry in run]),
    )
