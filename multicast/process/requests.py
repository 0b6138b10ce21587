"""MULTICAST: requests of clients and of other groups, which of them are valid, and retries.

How a leader reacts to a request depends on the protocol: it sends its proposal of a local timestamp, and
repeats the proposal when the request is repeated.
"""

from __future__ import annotations

import abc

from multicast.errors import InvalidArgument, InvariantBroken, PeerViolation
from multicast.messages import Hint, Members, Multicast
from multicast.process.collection import Collection
from multicast.process.entry import E, Entry
from multicast.protocol import Start
from multicast.quorum_time import OWN_CLIENTS
from multicast.retries import RetryQueue
from multicast.types import (
    TIME_MAX,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Status,
    digest_of,
    timestamp,
)

START = Phase.START
PROPOSED = Phase.PROPOSED
COMMITTED = Phase.COMMITTED
LEADER = Status.LEADER
FOLLOWER = Status.FOLLOWER


LARGE = 4096
"""Bytes of a payload whose digest is computed only if it is needed."""


def _is_uncommitted(entry: Entry) -> bool:
    return entry.phase is not COMMITTED


class Requests(Collection[E]):
    """Handle requests to order a message."""

    checked_dest: Destinations | None = None
    """The last destinations that were found valid: nearly all messages share the same object."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.unanswered: RetryQueue[E] = RetryQueue(self.timing.retry_s, _is_uncommitted)
        """At a leader: the messages that it has proposed and that are not committed."""

    def on_multicast(self, sender: Process, message: Multicast) -> None:
        """Lines 3-9: the leader proposes a local timestamp, or repeats its proposal."""
        delivered = self._check_multicast(sender, message)
        if self.status is not LEADER:
            self._defer(sender, message)
            return
        mid, dest, payload, ack_below = message
        entry = self.entries.get(mid)
        if entry is None:
            if delivered:
                self._ready.duplicates.append((sender, message))
                return
            self._check_clock()
            entry = self.entries[mid] = self.new_entry(mid, dest, payload, ack_below)
        elif entry.phase is START:
            self._check_clock()
            del self.orphans[mid]
            entry.payload = payload
            entry.ack_below = ack_below
        else:
            if entry.delivered:
                self._ready.duplicates.append((sender, message))
            self._repeat(entry, sender)
            return
        self._propose(entry)
        self._send_proposal(entry)

    def _check_multicast(self, sender: Process, message: Multicast) -> bool | None:
        """Return whether it was delivered here. Raise, with nothing changed, if it must not be ordered."""
        mid, dest, payload, ack_below = message
        client, sequence, digest = mid
        if client in OWN_CLIENTS and sender != self.me:
            raise InvalidArgument(f"message {mid}: client id {client} is reserved for messages of the group")
        if dest is not self.checked_dest:
            self.topology.check_destinations(dest)
            if self.group not in dest:
                raise InvalidArgument(f"message {mid} to groups {dest} was sent to group {self.group}")
        if ack_below > sequence:
            raise InvalidArgument(f"message {mid} acknowledges itself: ack_below {ack_below}")
        delivered = self.delivered_ids.find(mid)
        if (
            len(payload) < LARGE
            or (self._uses_payload(sender, mid, delivered) and not self.knows_digest(message))
        ) and digest != digest_of(dest, payload):
            raise InvalidArgument(f"message {mid} does not have the digest of its payload and destinations")
        # A mismatch that another group has begun to order is ordered, or that group would wait for ever.
        if type(sender) is not ReplicaId and (
            delivered is False or self.numbers.get(mid[:2], digest) != digest
        ):
            raise InvalidArgument(f"message id {mid} was used before with another payload or destinations")
        self.checked_dest = dest
        return delivered

    def _uses_payload(self, sender: Process, mid: MessageId, delivered: bool | None) -> bool:  # noqa: FBT001 - an outcome
        """Return whether the payload of a MULTICAST matters: not if it is a repeat of one that is known here.

        Large messages are repeated by the leaders of all their destinations to all others. The digest of each
        copy would take longer than the retry time-out, and so cause the next retries.
        """
        if self.status is not LEADER:
            return False  # it answers with a hint, or keeps the message and looks again
        entry = self.entries.get(mid)
        if entry is not None and not entry.delivered:
            return entry.phase is START
        return type(sender) is not ReplicaId or (entry is None and not delivered)

    def _defer(self, sender: Process, message: Multicast) -> None:
        """Departure 11: a follower answers with a hint, a recovering process keeps the message, and a replica
        that is not a member answers with the membership.
        """
        if self.me not in self.membership.current.bit:
            self._ready.send.append(((sender,), Members(self.membership)))
            return
        if self.status is FOLLOWER or len(self.waiting) >= self.timing.waiting:
            self._ready.send.append(((sender,), Hint(self.group, self.ballot)))
        else:
            self.waiting.append((sender, message))

    def _release_waiting(self) -> None:
        """Handle the messages that waited for a leader, or answer them with a hint."""
        waiting, self.waiting = self.waiting, type(self.waiting)()
        for sender, message in waiting:
            try:
                self.on_multicast(sender, message)
            except InvalidArgument:
                # Two requests waited under one number. The second is refused when its sender repeats it.
                continue

    def _check_clock(self) -> None:
        """Raise, with nothing changed, if no timestamp is left: larger ones would be read wrongly."""
        if self.clock >= TIME_MAX:
            raise InvalidArgument(f"the clock of group {self.group} has reached its limit, {TIME_MAX}")

    def raise_clock(self, time: int) -> None:
        """Let the next local timestamps be above this time."""
        if not 0 <= time <= TIME_MAX:
            raise InvalidArgument(f"a clock cannot be raised to {time}, which is not in 0..{TIME_MAX}")
        self.clock = max(self.clock, time)

    def quorum_time(self) -> int:
        """Return quorum time in ticks, at a leader that may use it; otherwise 0."""
        quorum = self.quorum
        if quorum is None or (time := quorum.now(self.now)) is None or self.anchor.holds(time, self.now):
            return 0
        return time

    def _propose(self, entry: E) -> None:
        """Lines 6-8: advance the clock, and give the message its local timestamp.

        A hybrid clock advances to quorum time, if that is ahead of it.
        """
        time = self.clock + 1
        if self.quorum is not None:
            time = max(time, self.quorum_time())
        self.clock = time
        entry.local_ts = local_ts = timestamp(time, self.group)
        entry.phase = PROPOSED
        entry.retries = 0
        self.unanswered.asked(entry, self.now)
        mid = entry.mid
        self.numbers[mid[:2]] = mid[2]
        self.queue.propose(local_ts, entry)

    @abc.abstractmethod
    def _send_proposal(self, entry: E) -> None:
        """Send the local timestamp that this leader has given the message to the processes that need it."""

    @abc.abstractmethod
    def _repeat(self, entry: E, asker: Process) -> None:
        """Repeat to the sender of a repeated MULTICAST what it may have missed."""

    def _first_heard(self, mid: MessageId, dest: Destinations, proposer: GroupId) -> E | None:
        """Return a new entry in START for a message that another group proposes; None if it was collected."""
        if mid in self.delivered_ids:
            return None
        self.topology.check_destinations(dest)
        if self.group not in dest or proposer not in dest:
            raise PeerViolation(
                f"a proposal for {mid} to groups {dest}, by group {proposer}, came to group {self.group}"
            )
        self.entries[mid] = entry = self.new_entry(mid, dest, None, 0)
        self.orphans[mid] = self.now
        return entry

    def retry(self, entry: E) -> None:
        """Lines 33-35: multicast m again to the leaders of all destinations, and repeat our own part.

        After two unanswered retries the presumed leaders may be wrong, so every member of the other groups is
        asked: those that do not lead answer with a hint.
        """
        entry.retries += 1
        self.unanswered.asked(entry, self.now)
        if entry.payload is None:
            raise InvariantBroken(f"{entry.mid} is {entry.phase.name}, but its payload is missing")
        message = Multicast(entry.mid, entry.dest, entry.payload, entry.ack_below)
        for group in entry.dest:
            if group != self.group:
                receivers = self.topology.members(group) if entry.retries > 2 else (self.leader_of(group),)
                self._ready.send.append((receivers, message))
        self._repeat(entry, self.me)

    def _retry_overdue(self) -> None:
        """Departure 2: at a leader, retry the messages that stay uncommitted for too long."""
        for entry in self.unanswered.overdue(self.now):
            self.retry(entry)

    def _deliver_committed(self) -> None:
        """Deliver, and measure how long a commit takes: one message of a run stands for all."""
        entry, self.queue.latest = self.queue.latest, None
        if entry is not None and not entry.retries and self.status is LEADER:
            self.unanswered.timeout.answered(self.now - entry.asked_at)
        super()._deliver_committed()

    def on_hint(self, sender: Process, message: Hint) -> None:
        """Learn from a process that does not lead its group which one does."""
        if type(sender) is not ReplicaId or sender.group != message.group:
            raise PeerViolation(f"HINT for group {message.group} came from {sender}")
        if message.ballot.number:
            self.topology.check_ballot(message.group, message.ballot)
            self.check_number(message.group, message.ballot)
            self.note_ballot(message.group, message.ballot)
