"""Normal operation: ACCEPT and ACCEPT_ACK (left column of Figure *protocol*, from line 9).

What happens in one turn to messages with the same destinations happens to all of them together: one ACCEPT
proposes them, one record and one ACCEPT_ACK accept them. The figure's lines are the bodies of loops here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from multicast.durable import Accepted
from multicast.errors import InvariantBroken, PeerViolation
from multicast.membership import Membership
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
    time_of,
)
from multicast.whitebox.entry import Bal, Entry

START = Phase.START
ACCEPTED = Phase.ACCEPTED
COMMITTED = Phase.COMMITTED
LEADER = Status.LEADER
FOLLOWER = Status.FOLLOWER
RECOVERING = Status.RECOVERING

CACHED_MAX = 4096
"""How much is remembered of destination sets, of their ballots and of votes; beyond it, caches start over."""


class WhiteBox(Replica[Entry]):
    """How a message gets its timestamps while leaders are stable."""

    def __init__(self, start: Start) -> None:
        self.foreign: dict[Destinations, tuple[ReplicaId, ...]] = {}
        """A cache, by destinations: the processes of the other groups."""
        self.bals: dict[Vector, Bal] = {}
        """Every Bal lately heard of: there is one object for each."""
        self.proposed: dict[Destinations, list[Entry]] = {}
        """At a leader: what is to be proposed, or proposed again, with the next ACCEPTs."""
        self.acked: dict[Bal, list[MessageId]] = {}
        """Messages accepted and not yet acknowledged, by their ballots."""
        super().__init__(start)
        self._handlers[Accept] = self.on_accept
        self._handlers[AcceptAck] = self.on_accept_ack

    def new_entry(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> Entry:
        """An entry in START."""
        return Entry(mid, dest, payload, ack_below)

    def _spread(self, entry: Entry) -> None:
        self.proposed.setdefault(entry.dest, []).append(entry)

    def _repeat(self, entry: Entry, asker: Process) -> None:
        self._spread(entry)

    def _flush(self) -> None:
        """Lines 9 and 17, for all that has been proposed and accepted since the last time."""
        if self.proposed:
            proposed, self.proposed = self.proposed, {}
            for dest, entries in proposed.items():
                for run in self._runs(entries):
                    self._send_accept(dest, run)
        if self.acked:
            acked, self.acked = self.acked, {}
            for bal, mids in acked.items():
                ack = AcceptAck(tuple(mids), self.group, bal.vector)
                self._ready.promise.append((bal.leaders, ack))

    def _runs(self, entries: list[Entry]) -> Iterator[list[Entry]]:
        """The same, in pieces that fit a frame."""
        run: list[Entry] = []
        size = 0
        for entry in entries:
            size += len(entry.payload or b"")
            if run and (len(run) >= self.timing.part_entries or size > self.timing.part_bytes):
                yield run
                run, size = [], len(entry.payload or b"")
            run.append(entry)
        yield run

    def _send_accept(self, dest: Destinations, run: list[Entry]) -> None:
        """Line 9. Payloads go to the own group only; to itself, the leader speaks directly."""
        group, ballot, send = self.group, self.cballot, self._ready.send
        mids, local_ts, payloads, ack_below = _columns(run)
        own = Accept(dest, group, ballot, mids, local_ts, payloads, ack_below)
        if self.others:
            send.append((self.others, own))
        if len(dest) > 1:
            send.append((self._foreign(dest), Accept(dest, group, ballot, mids, local_ts, (), ())))
        self._gather(run, own)

    def _foreign(self, dest: Destinations) -> tuple[ReplicaId, ...]:
        """The processes of the other destination groups."""
        found = self.foreign.get(dest)
        if found is None:
            found = tuple(m for g in dest if g != self.group for m in self.topology.members(g))
            if len(self.foreign) >= CACHED_MAX:
                self.foreign.clear()
            self.foreign[dest] = found
        return found

    def _learn(self, membership: Membership) -> bool:
        self.foreign.clear()
        return super()._learn(membership)

    def on_accept(self, sender: ReplicaId, message: Accept) -> None:
        """Lines 10-11: gather the proposals of all destination groups, the newest ballot of each."""
        found = self._check_accept(sender, message)
        if message.group != self.group or (self.status is FOLLOWER and message.ballot == self.cballot):
            self.topology.configuration(message.group, message.ballot.configuration)
            self._gather(found, message)

    def _check_accept(self, sender: ReplicaId, message: Accept) -> list[Entry | None]:
        """What is known of these messages. Raise, with nothing changed, if no leader would say this."""
        dest, group, mids = message.dest, message.group, message.mids
        if message.ballot.leader != sender or sender.group != group:
            what = f"ACCEPT of {_names(mids)} for group {group} in ballot {message.ballot}"
            raise PeerViolation(f"{what} came from {sender}")
        self.topology.check_destinations(dest)
        if self.group not in dest or group not in dest:
            what = f"ACCEPT of {_names(mids)} to groups {dest}, by {group}"
            raise PeerViolation(f"{what}, came to {self.group}")
        count = len(mids)
        lengths = len(message.local_ts), len(message.payloads), len(message.ack_below)
        if not count or lengths != ((count, count, count) if group == self.group else (count, 0, 0)):
            raise PeerViolation(f"ACCEPT of {_names(mids)} lacks something; it came from {sender}")
        found = list(map(self.entries.get, mids))
        for entry in found:
            if entry is not None and entry.dest != dest:
                raise PeerViolation(f"ACCEPT of {entry.mid} to groups {entry.dest} came from {sender}")
        return found

    def _gather(self, found: Sequence[Entry | None], message: Accept) -> None:
        """A destination's leader proposes. Accept what all destinations have proposed."""
        dest, group, ballot = message.dest, message.group, message.ballot
        at, own = dest.index(group), group == self.group
        entries, orphans, find, now = self.entries, self.orphans, self.delivered_ids.find, self.now
        payloads: Iterable[bytes | None] = message.payloads or repeat(None)
        complete: list[Entry] = []
        repeated: list[Entry] = []
        for entry, mid, local_ts, payload, ack_below in zip(
            found, message.mids, message.local_ts, payloads, message.ack_below or repeat(0), strict=False
        ):
            if entry is None:
                entry = entries.get(mid)  # the run may have named it before
            if entry is None:
                if find(mid):
                    continue
                entry = entries[mid] = Entry(mid, dest, payload, ack_below)
                orphans[mid] = now
            elif own and entry.phase is not COMMITTED:
                entry.payload = payload
                entry.ack_below = ack_below
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
        """Lines 12-17: all proposals are here. Accept the own group's, pass the clock, acknowledge.

        What was accepted before, and is proposed again by a group, is acknowledged to its leader only.
        """
        if self.status is RECOVERING:
            return
        dest = run[0].dest
        at = dest.index(self.group)
        while run:
            bal = self._bal(tuple(run[0].ballots))
            others = [entry for entry in run if entry.ballots != bal.ballots]
            if others:
                run = [entry for entry in run if entry.ballots == bal.ballots]
            self._accept_in(bal, at, run, repeated)
            run = others

    def _accept_in(self, bal: Bal, at: int, run: Sequence[Entry], repeated: GroupId | None) -> None:
        accepted: list[Entry] = []
        again: list[MessageId] = []
        highest = NO_TIMESTAMP
        for entry in run:
            if entry.bal is bal:
                again.append(entry.mid)
                continue
            own = entry.proposals[at]
            if entry.phase is not COMMITTED:
                if entry.phase is START:
                    del self.orphans[entry.mid]
                entry.phase = ACCEPTED
            elif self._outdated(entry, own):
                continue
            entry.bal = bal
            entry.votes = 0 if entry.early is None else entry.early.pop(bal, 0)
            entry.local_ts = own
            global_ts = max(entry.proposals)
            if global_ts > highest:
                highest = global_ts
            accepted.append(entry)
        if accepted:
            for group, ballot in zip(bal.dest, bal.vector, strict=True):
                self.note_ballot(group, ballot)
            time = time_of(highest)
            if self.clock < time:
                self.clock = time
            mids, local_ts, payloads, ack_below = _columns(accepted)
            self._ready.persist.append(Accepted(bal.dest, mids, local_ts, payloads, ack_below, self.clock))
            self.acked.setdefault(bal, []).extend(mids)
        if again:
            if repeated is None:
                self.acked.setdefault(bal, []).extend(again)
            else:
                leader = bal.leaders[bal.dest.index(repeated)]
                ack = AcceptAck(tuple(again), self.group, bal.vector)
                self._ready.promise.append(((leader,), ack))

    def _outdated(self, entry: Entry, own: Timestamp) -> bool:
        """Whether our leader's proposal is not what was decided.

        Deliveries are facts of any ballot: we may have learnt of a decision made above our own ballot, whose
        leader's proposal comes late. It must not replace what was decided.
        """
        return entry.local_ts != own

    def _bal(self, vector: Vector) -> Bal:
        """The one object for these ballots."""
        bal = self.bals.get(vector)
        if bal is None:
            if len(self.bals) >= CACHED_MAX:
                self.bals.clear()
            voters = [self.topology.configuration(b.leader.group, b.configuration) for b in vector]
            bal = self.bals[vector] = Bal(vector, voters, self.me)
        return bal

    def _leave_ballot(self) -> None:
        self._flush()
        super()._leave_ballot()

    def on_accept_ack(self, sender: ReplicaId, message: AcceptAck) -> None:
        """Lines 18-24: a quorum of every destination, with us in it, accepted the same proposals."""
        group, vector = message.group, message.ballots
        if sender.group != group or group not in [ballot.leader.group for ballot in vector]:
            raise PeerViolation(f"ACCEPT_ACK of {_names(message.mids)} for group {group} came from {sender}")
        bal = self._counted(vector)
        if self.status is not LEADER or bal is None:
            return
        bit = bal.bits.get(sender, 0)
        verdicts, commit = bal.verdicts, self.queue.commit
        for entry in map(self.entries.get, message.mids):
            if entry is None or entry.phase is COMMITTED:
                continue
            if entry.bal is not bal:
                self._count_early(entry, bal, bit)
                continue
            votes = entry.votes = entry.votes | bit
            agreed = verdicts.get(votes)
            if agreed is None:
                agreed = self._is_agreed(bal, votes)
            if agreed:
                entry.phase = COMMITTED
                entry.global_ts = max(entry.proposals)
                entry.early = None
                commit(entry.local_ts, entry.global_ts)
        self._deliver_committed()

    def _counted(self, vector: Vector) -> Bal | None:
        """These ballots, if ours is among them: else nobody waits for their acknowledgements."""
        if self.cballot not in vector:
            return None
        self.topology.check_destinations(tuple([ballot.leader.group for ballot in vector]))
        return self._bal(vector)

    def _count_early(self, entry: Entry, bal: Bal, bit: int) -> None:
        """An acknowledgement overtook a proposal."""
        if bal.dest == entry.dest:
            if entry.early is None:
                entry.early = {}
            entry.early[bal] = entry.early.get(bal, 0) | bit

    def _is_agreed(self, bal: Bal, votes: int) -> bool:
        """Whether quorums of all destinations, and we, have accepted these proposals."""
        agreed = bal.is_agreed(votes)
        if len(bal.verdicts) < CACHED_MAX:
            bal.verdicts[votes] = agreed
        return agreed


def _names(mids: Sequence[MessageId]) -> str:
    return ", ".join(map(str, mids[:3])) + (", ..." if len(mids) > 3 else "")


def _columns(
    run: Sequence[Entry],
) -> tuple[tuple[MessageId, ...], tuple[Timestamp, ...], tuple[bytes, ...], tuple[int, ...]]:
    """What ACCEPT and its record say of each of these messages."""
    payloads = tuple([entry.payload for entry in run])
    if None in payloads:
        raise InvariantBroken(f"{run[payloads.index(None)].mid} is proposed without its payload")
    return (
        tuple([entry.mid for entry in run]),
        tuple([entry.local_ts for entry in run]),
        payloads,  # type: ignore[return-value]  # checked just now
        tuple([entry.ack_below for entry in run]),
    )
