"""Normal operation: ACCEPT and ACCEPT_ACK (left column of Figure *protocol*, from line 9)."""

from __future__ import annotations

from multicast.durable import Accepted
from multicast.errors import PeerViolation
from multicast.membership import Membership
from multicast.messages import Accept, AcceptAck
from multicast.process import Replica
from multicast.protocol import Start
from multicast.types import (
    NO_TIMESTAMP,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Status,
    Vector,
    time_of,
)
from multicast.whitebox.entry import NO_PROPOSAL, Entry, Votes

START = Phase.START
ACCEPTED = Phase.ACCEPTED
COMMITTED = Phase.COMMITTED
LEADER = Status.LEADER
FOLLOWER = Status.FOLLOWER
RECOVERING = Status.RECOVERING

CACHED_MAX = 4096
"""Destination sets that are remembered; beyond them, the caches start over."""


class WhiteBox(Replica[Entry]):
    """How a message gets its timestamps while leaders are stable."""

    def __init__(self, start: Start) -> None:
        self.foreign: dict[Destinations, tuple[ReplicaId, ...]] = {}
        self.vectors: dict[Destinations, tuple[Vector, tuple[ReplicaId, ...]]] = {}
        """Caches, by destinations: the processes of the other groups; the last Bal and its leaders."""
        self.acked: list[MessageId] = []
        self.acked_vector: Vector = ()
        self.acked_leaders: tuple[ReplicaId, ...] = ()
        """Messages accepted and not yet acknowledged, all in the same ballots, and whom to answer."""
        self.counted: tuple[Vector, dict[GroupId, int]] = ((), {})
        """The last Bal that was counted for, and its quorums."""
        super().__init__(start)
        self._handlers[Accept] = self.on_accept
        self._handlers[AcceptAck] = self.on_accept_ack

    def new_entry(self, mid: MessageId, dest: Destinations, payload: bytes | None, ack_below: int) -> Entry:
        """An entry in START."""
        return Entry(mid, dest, payload, ack_below)

    def _spread(self, entry: Entry) -> None:
        self._send_accept(entry)

    def _repeat(self, entry: Entry, asker: Process) -> None:
        self._send_accept(entry)

    def _send_accept(self, entry: Entry) -> None:
        """Line 9. The payload goes to the own group only; to itself, the leader speaks directly."""
        mid, dest, group, ballot, local_ts = entry.mid, entry.dest, self.group, self.cballot, entry.local_ts
        send = self._ready.send
        own = Accept(mid, dest, group, ballot, local_ts, entry.payload, entry.ack_below)
        if self.others:
            send.append((self.others, own))
        if len(dest) > 1:
            send.append((self._foreign(dest), Accept(mid, dest, group, ballot, local_ts, None, 0)))
        self._propose_to_itself(entry, own)

    def _propose_to_itself(self, entry: Entry, message: Accept) -> None:
        at = entry.dest.index(self.group)
        repeated = entry.proposals[at] is not NO_PROPOSAL
        entry.proposals[at] = message
        if not repeated:
            entry.missing -= 1
        if not entry.missing:
            self._accept(entry, self.group if repeated else None)

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
        mid, group, ballot = message.mid, message.group, message.ballot
        if ballot.leader != sender or sender.group != group:
            raise PeerViolation(f"ACCEPT of {mid} for group {group} in ballot {ballot} came from {sender}")
        own = group == self.group
        if own and (self.status is not FOLLOWER or ballot != self.cballot):
            return
        if ballot.configuration:
            self.topology.configuration(group, ballot.configuration)
        entry = self.entries.get(mid)
        if entry is None:
            entry = self._first_heard(mid, message.dest, group)
            if entry is None:
                return
        try:
            at = entry.dest.index(group)
        except ValueError:
            raise PeerViolation(f"ACCEPT of {mid} to groups {entry.dest} came from {sender}") from None
        known = entry.proposals[at]
        if known is NO_PROPOSAL:
            entry.missing -= 1
        elif known.ballot > ballot:
            return
        entry.proposals[at] = message
        if own and entry.phase is not COMMITTED:
            entry.payload = message.payload
            entry.ack_below = message.ack_below
        if not entry.missing:
            self._accept(entry, group if known.ballot == ballot else None)

    def _accept(self, entry: Entry, repeated: GroupId | None) -> None:
        """Lines 12-17: all proposals are here. Accept the own group's, pass the clock, acknowledge."""
        status = self.status
        if status is RECOVERING:
            return
        dest, proposals = entry.dest, entry.proposals
        vector, leaders = self.vectors.get(dest) or self._vector(entry)
        highest = NO_TIMESTAMP
        for ballot, message in zip(vector, proposals, strict=True):
            if message.ballot is not ballot:
                vector, leaders = self._vector(entry)
            if message.local_ts > highest:
                highest = message.local_ts
        if entry.vector is not vector:
            own = proposals[dest.index(self.group)]
            if entry.phase is COMMITTED and self._outdated(entry, own):
                return
            entry.vector = vector
            if entry.phase < ACCEPTED:
                if entry.phase is START:
                    del self.orphans[entry.mid]
                entry.phase = ACCEPTED
            entry.local_ts = own.local_ts
            time = time_of(highest)
            if self.clock < time:
                self.clock = time
            self._ready.persist.append(Accepted(own, self.clock))
            if status is LEADER:
                self._votes(entry, vector).global_ts = highest
        elif repeated is not None:
            leader = vector[dest.index(repeated)].leader
            self._ready.promise.append(((leader,), AcceptAck((entry.mid,), self.group, vector)))
            return
        if vector is not self.acked_vector:
            self._flush()
            self.acked_vector, self.acked_leaders = vector, leaders
        self.acked.append(entry.mid)

    def _flush(self) -> None:
        """Line 17, for all that has been accepted since the last time."""
        if self.acked:
            message = AcceptAck(tuple(self.acked), self.group, self.acked_vector)
            self._ready.promise.append((self.acked_leaders, message))
            self.acked = []

    def _outdated(self, entry: Entry, own: Accept) -> bool:
        """Whether our leader's proposal is not what was decided.

        Deliveries are facts of any ballot: we may have learnt of a decision made above our own ballot, whose
        leader's proposal comes late. It must not replace what was decided.
        """
        return entry.local_ts != own.local_ts

    def _vector(self, entry: Entry) -> tuple[Vector, tuple[ReplicaId, ...]]:
        """Bal, and whom to answer. While leaders stay the same, so does this tuple: one for all messages."""
        vector = tuple([message.ballot for message in entry.proposals])
        cached = self.vectors.get(entry.dest)
        if cached is None or cached[0] != vector:
            for group, ballot in zip(entry.dest, vector, strict=True):
                self.note_ballot(group, ballot)
            if len(self.vectors) >= CACHED_MAX:
                self.vectors.clear()
            cached = self.vectors[entry.dest] = (vector, tuple([ballot.leader for ballot in vector]))
        return cached

    def _votes(self, entry: Entry, vector: Vector) -> Votes:
        """The acknowledgements of these proposals."""
        for votes in entry.votes or ():
            if votes.vector == vector:
                return votes
        votes = Votes(vector, entry.dest, self._quorums(vector))
        if entry.votes is None:
            entry.votes = []
        entry.votes.append(votes)
        return votes

    def _quorums(self, vector: Vector) -> dict[GroupId, int]:
        """How many acknowledgements each group needs, by the configuration that its ballot names."""
        if self.counted[0] is not vector:
            configurations = [
                self.topology.configuration(ballot.leader.group, ballot.configuration) for ballot in vector
            ]
            self.counted = (vector, {c.group: c.quorum for c in configurations})
        return self.counted[1]

    def on_accept_ack(self, sender: ReplicaId, message: AcceptAck) -> None:
        """Lines 18-24: a quorum of every destination, with us in it, accepted the same proposals."""
        group, vector = message.group, message.ballots
        numbers = [ballot.configuration for ballot in vector if ballot.leader.group == group]
        if sender.group != group or len(numbers) != 1:
            which = ", ".join(map(str, message.mids[:3]))
            raise PeerViolation(f"ACCEPT_ACK of {which} for group {group} came from {sender}")
        if self.status is not LEADER:
            return
        configuration = self.topology.configuration(group, numbers[0])
        bit, quorum = configuration.bit.get(sender, 0), configuration.quorum
        for mid in message.mids:
            entry = self.entries.get(mid)
            if entry is None or entry.phase is COMMITTED:
                continue
            if entry.votes is not None and entry.votes[0].vector == vector:
                votes = entry.votes[0]
            elif self._is_vector(vector, entry.dest):
                votes = self._votes(entry, vector)
            else:
                continue
            votes.members[group] |= bit
            if votes.members[group].bit_count() >= quorum and self._is_agreed(votes):
                entry.phase = COMMITTED
                entry.global_ts = votes.global_ts
                entry.votes = None
                self.queue.commit(entry.local_ts, entry.global_ts)
        self._deliver_committed()

    def _is_agreed(self, votes: Votes) -> bool:
        """Whether quorums of all destinations, and we, have accepted these proposals."""
        if not votes.global_ts or not votes.members[self.group] & self.my_bit:
            return False
        for group, members in votes.members.items():  # noqa: SIM110 - a generator costs as much again
            if members.bit_count() < votes.quorums[group]:
                return False
        return True

    def _is_vector(self, ballots: Vector, dest: Destinations) -> bool:
        """Whether these are ballots of just these groups, with ours in its place."""
        return (
            tuple([ballot.leader.group for ballot in ballots]) == dest
            and ballots[dest.index(self.group)] == self.cballot
        )
