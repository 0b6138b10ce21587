"""Normal operation: MULTICAST, ACCEPT, ACCEPT_ACK, and `retry` (left column of Figure *protocol*)."""

from __future__ import annotations

from multicast.durable import Accepted
from multicast.errors import InvalidArgument, InvariantBroken, PeerViolation
from multicast.messages import Accept, AcceptAck, Hint, Multicast
from multicast.types import (
    NO_TIMESTAMP,
    Destinations,
    GroupId,
    Phase,
    Process,
    ReplicaId,
    Status,
    Vector,
    digest_of,
    time_of,
    timestamp,
)
from multicast.whitebox.collection import Collection
from multicast.whitebox.entry import NO_PROPOSAL, Entry, Votes

START = Phase.START
PROPOSED = Phase.PROPOSED
ACCEPTED = Phase.ACCEPTED
COMMITTED = Phase.COMMITTED
LEADER = Status.LEADER
FOLLOWER = Status.FOLLOWER
RECOVERING = Status.RECOVERING

CACHED_MAX = 4096
"""Destination sets that are remembered; beyond them, the caches start over."""


class NormalOperation(Collection):
    """How a message gets its timestamps while leaders are stable."""

    def on_multicast(self, sender: Process, message: Multicast) -> None:
        """Lines 3-9: the leader proposes a local timestamp, or repeats its proposal."""
        self._check_multicast(sender, message)
        if self.status is not LEADER:
            self._defer(sender, message)
            return
        entry = self.entries.get(message.mid)
        if entry is None:
            if message.mid in self.delivered_ids:
                self._ready.duplicates.append((sender, message.mid))
                return
            entry = Entry(message.mid, message.dest, message.payload, message.ack_below)
            self.entries[message.mid] = entry
            self._propose(entry)
        elif entry.phase is START:
            del self.orphans[message.mid]
            entry.payload = message.payload
            entry.ack_below = message.ack_below
            self._propose(entry)
        elif entry.delivered:
            self._ready.duplicates.append((sender, message.mid))
        self._send_accept(entry)

    def _check_multicast(self, sender: Process, message: Multicast) -> None:
        """Raise, with nothing changed, if no leader should order this."""
        mid = message.mid
        dest = message.dest
        self.topology.check_destinations(dest)
        if self.group not in dest:
            raise InvalidArgument(f"message {mid} to groups {dest} was sent to group {self.group}")
        if message.ack_below > mid.sequence:
            raise InvalidArgument(f"message {mid} acknowledges itself: ack_below {message.ack_below}")
        if mid.digest != digest_of(dest, message.payload):
            raise InvalidArgument(f"message {mid} does not have the digest of its payload and destinations")
        # A mismatch that another group has begun to order is ordered, or that group would wait for ever.
        if type(sender) is not ReplicaId and (
            self.numbers.get((mid.client, mid.sequence), mid.digest) != mid.digest
            or self.delivered_ids.conflicts(mid)
        ):
            raise InvalidArgument(f"message id {mid} was used before with another payload or destinations")

    def _defer(self, sender: Process, message: Multicast) -> None:
        """Departure 11: a follower answers with a hint; a recovering process lets the message wait."""
        if self.status is FOLLOWER or len(self.waiting) >= self.timing.waiting:
            self._ready.send.append(((sender,), Hint(self.group, self.ballot)))
        else:
            self.waiting.append((sender, message))

    def _propose(self, entry: Entry) -> None:
        """Lines 6-8."""
        self.clock += 1
        entry.local_ts = timestamp(self.clock, self.group)
        entry.phase = PROPOSED
        entry.retry_at = self.now + self.timing.retry_s
        entry.retries = 0
        self.numbers[entry.mid.client, entry.mid.sequence] = entry.mid.digest
        self.queue.propose(entry.local_ts, entry)

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

    def on_accept(self, sender: ReplicaId, message: Accept) -> None:
        """Lines 10-11: gather the proposals of all destination groups, the newest ballot of each."""
        mid, group, ballot = message.mid, message.group, message.ballot
        if ballot.leader != sender or sender.group != group:
            raise PeerViolation(f"ACCEPT of {mid} for group {group} in ballot {ballot} came from {sender}")
        own = group == self.group
        if own and (self.status is not FOLLOWER or ballot != self.cballot):
            return
        entry = self.entries.get(mid)
        if entry is None:
            entry = self._first_heard(message)
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

    def _first_heard(self, message: Accept) -> Entry | None:
        """An entry in START for a message that others propose; none if it was delivered and collected."""
        mid, dest = message.mid, message.dest
        if mid in self.delivered_ids:
            return None
        self.topology.check_destinations(dest)
        if self.group not in dest or message.group not in dest:
            raise PeerViolation(f"ACCEPT of {mid} to groups {dest}, for {message.group}, at {self.group}")
        self.entries[mid] = entry = Entry(mid, dest, None, 0)
        self.orphans[mid] = self.now
        return entry

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
            self._acknowledge()
            self.acked_vector, self.acked_leaders = vector, leaders
        self.acked.append(entry.mid)

    def _acknowledge(self) -> None:
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
        if entry.votes is None:
            entry.votes = []
        for votes in entry.votes:
            if votes.vector == vector:
                return votes
        entry.votes.append(votes := Votes(vector, entry.dest))
        return votes

    def on_accept_ack(self, sender: ReplicaId, message: AcceptAck) -> None:
        """Lines 18-24: a quorum of every destination, with us in it, accepted the same proposals."""
        group, vector = message.group, message.ballots
        if sender.group != group or group not in [ballot.leader.group for ballot in vector]:
            which = ", ".join(map(str, message.mids[:3]))
            raise PeerViolation(f"ACCEPT_ACK of {which} for group {group} came from {sender}")
        if self.status is not LEADER:
            return
        bit, quorum = self.bits[sender], self.quorums[group]
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
            if members.bit_count() < self.quorums[group]:
                return False
        return True

    def _is_vector(self, ballots: Vector, dest: Destinations) -> bool:
        """Whether these are ballots of just these groups, with ours in its place."""
        return (
            tuple([ballot.leader.group for ballot in ballots]) == dest
            and ballots[dest.index(self.group)] == self.cballot
        )

    def retry(self, entry: Entry) -> None:
        """Lines 33-35: multicast m again to the leaders of all destinations, and repeat our own part.

        After two tries in vain the guesses may be wrong, so every member of the other groups is asked:
        those who do not lead answer with a hint.
        """
        entry.retries += 1
        entry.retry_at = self.now + self.timing.retry_s * min(entry.retries, 8)
        if entry.payload is None:
            raise InvariantBroken(f"{entry.mid} is {entry.phase.name} without its payload")
        message = Multicast(entry.mid, entry.dest, entry.payload, entry.ack_below)
        for group in entry.dest:
            if group != self.group:
                receivers = self.topology.members(group) if entry.retries > 2 else (self.leader_of(group),)
                self._ready.send.append((receivers, message))
        self._send_accept(entry)

    def _retry_overdue(self) -> None:
        """Departure 2: whoever leads and holds a message uncommitted for too long tries again."""
        overdue = []
        for entry in self.queue.uncommitted():
            if entry.retry_at <= self.now:
                overdue.append(entry)
            elif not entry.retries:
                break  # those behind it are younger
        for entry in overdue:
            self.retry(entry)

    def on_hint(self, sender: Process, message: Hint) -> None:
        """Somebody does not lead its group, and says who might."""
        if type(sender) is not ReplicaId or sender.group != message.group:
            raise PeerViolation(f"a hint for group {message.group} came from {sender}")
        if message.ballot.number:
            self.topology.check_ballot(message.group, message.ballot)
            self.note_ballot(message.group, message.ballot)
