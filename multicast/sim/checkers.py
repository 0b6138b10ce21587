"""The properties that hold at every step of a run, under any workload and faults.

Each checker watches one family of properties and raises `Violation` at the first step that breaks one.
Checkers share nothing with a protocol's own code but its messages. These properties hold for any atomic
multicast;
`invariants` has each protocol's own.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from multicast.client import Reply
from multicast.membership import MEMBERSHIP, Membership
from multicast.messages import (
    Accept,
    AcceptAck,
    Delivery,
    HeartbeatAck,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Phase2a,
    Phase2b,
    PreVoteAck,
    about,
)
from multicast.quorum_time import ANCHOR, OWN_CLIENTS, anchor_id
from multicast.sim.host import Host, Observer
from multicast.topology import Topology
from multicast.types import (
    NO_TIMESTAMP,
    Destinations,
    GroupId,
    MessageId,
    Process,
    ReplicaId,
    Timestamp,
    expand_dests,
    format_timestamp,
)

PROMISES: Final = (
    AcceptAck,
    Phase2b,
    HeartbeatAck,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    PreVoteAck,
)
"""Messages that reveal promises, or are counted."""


class Violation(Exception):
    """A property of the protocol does not hold."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


class Checker(Observer):
    """An observer that raises `Violation` at the first step that breaks its properties."""


@dataclass
class Multicasts:
    """The messages that clients have multicast: the ground truth of Validity."""

    known: dict[MessageId, Multicast] = field(default_factory=dict)

    def add(self, message: Multicast) -> None:
        """Record a message that a client is about to send for the first time."""
        self.known[message.mid] = message


def _proposed(message: object) -> Iterator[tuple[MessageId, Destinations, bytes, int]]:
    """Iterate over the requests that a leader proposes to its own group in this message."""
    if isinstance(message, Phase2a):
        for mid, dest, payload, ack_below, _ in zip(*message.local, strict=True):
            yield mid, dest, payload, ack_below
    elif isinstance(message, Accept) and message.payloads:
        dests = expand_dests(message.dests, len(message.mids))
        yield from zip(message.mids, dests, message.payloads, message.ack_below, strict=True)


class Memberships(Checker):
    """A group's membership changes step by step, each decided once; other checkers use the result."""

    def __init__(self, topology: Topology, multicasts: Multicasts) -> None:
        self._topology = topology
        self._multicasts = multicasts
        self._facts: dict[tuple[GroupId, int], Membership] = {}

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Record a step of membership, which the leader that proposes it multicasts."""
        for mid, dest, payload, ack_below in _proposed(message):
            if mid.client in OWN_CLIENTS:
                if dest != (host.me.group,):
                    raise Violation("Membership", f"{host.me} proposes the step {mid} to groups {dest}")
                self._multicasts.add(Multicast(mid, dest, payload, ack_below))
        group = host.me.group
        if len(self._topology.members(group)) == 1:  # it proposes to no other process
            for mid in about(message):
                if mid.client == ANCHOR and mid == anchor_id(mid.sequence, group):
                    self._multicasts.add(Multicast(mid, (group,), b"", mid.sequence))

    def learned(self, host: Host, membership: Membership) -> None:
        """Check that all replicas learn the same membership under one version."""
        fact = self._facts.setdefault((membership.group, membership.version), membership)
        if fact != membership:
            raise Violation("Membership", f"{host.me} learned {membership}, other replicas {fact}")
        self._topology.learn(membership)

    def check_ordered(self, group: GroupId, first: Membership, sequence: Sequence[MessageId]) -> None:
        """Check that the learned membership is the result of the group's order."""
        for mid in sequence:
            if mid.client == MEMBERSHIP:
                first = first.after(self._multicasts.known[mid].payload)
        if self._topology.membership(group) != first:
            found = self._topology.membership(group)
            raise Violation("Membership", f"replicas learned {found}, but {first} was ordered")


class Order(Checker):
    """Validity, Integrity, Ordering: the properties of atomic multicast, on applications' logs only."""

    def __init__(self, topology: Topology, multicasts: Multicasts) -> None:
        self._multicasts = multicasts
        self._topology = topology
        self.sequences: dict[GroupId, list[MessageId]] = {g: [] for g in topology.groups}
        """The deliveries of each group, as its most advanced replica has them."""
        self._gts: dict[MessageId, Timestamp] = {}
        self._owner: dict[Timestamp, MessageId] = {}
        self._position: dict[ReplicaId, int] = defaultdict(int)
        self._seen: dict[ReplicaId, set[MessageId]] = defaultdict(set)

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Check one delivery against clients, the own group, and the other groups."""
        me, mid = host.me, delivery.mid
        sent = self._multicasts.known.get(mid)
        if sent is None:
            raise Violation("Validity", f"{me} delivered {mid}, which no client multicast")
        assert sent is not None
        if not (me.group in sent.dest and sent.dest == delivery.dest and sent.payload == delivery.payload):
            raise Violation(
                "Validity", f"{me} delivered {mid} as {delivery.dest}, but it was multicast to {sent.dest}"
            )
        if mid in self._seen[me]:
            raise Violation("Integrity", f"{me} delivered {mid} twice")
        self._seen[me].add(mid)
        sequence, at = self.sequences[me.group], self._position[me]
        if at == len(sequence):
            sequence.append(mid)
        if sequence[at] != mid:
            raise Violation(
                "Ordering",
                f"{me} delivered {mid} as number {at} of its group, where other replicas have {sequence[at]}",
            )
        self._position[me] = at + 1
        gts = delivery.global_ts
        if self._gts.setdefault(mid, gts) != gts:
            raise Violation(
                "Invariant 3b",
                f"{mid} has global timestamps {format_timestamp(gts)} at {me} and "
                f"{format_timestamp(self._gts[mid])} elsewhere",
            )
        if self._owner.setdefault(gts, mid) != mid:
            raise Violation("Invariant 4", f"{mid} and {self._owner[gts]} share {format_timestamp(gts)}")
        if at:
            before = self._gts[sequence[at - 1]]
            if before >= gts:
                raise Violation("Ordering", f"{me} delivered {mid} after a higher global timestamp")

    def _reload(self, host: Host) -> None:
        mids = [delivery.mid for delivery in host.log]
        sequence = self.sequences[host.me.group]
        if mids != sequence[: len(mids)]:
            raise Violation("Ordering", f"{host.me} holds another order than its group")
        self._position[host.me] = len(mids)
        self._seen[host.me] = set(mids)

    installed = _reload
    restarted = _reload

    def check_acyclic(self) -> None:
        """Check Ordering without timestamps: the union of all groups' orders has no cycle."""
        after: dict[MessageId, list[MessageId]] = defaultdict(list)
        before: dict[MessageId, int] = defaultdict(int)
        for sequence in self.sequences.values():
            for first, second in itertools.pairwise(sequence):
                after[first].append(second)
                before[second] += 1
        free = [mid for mid in after if not before[mid]]
        ordered = set(free)
        while free:
            for mid in after[free.pop()]:
                before[mid] -= 1
                if not before[mid]:
                    free.append(mid)
                    ordered.add(mid)
        stuck = [str(mid) for mid, count in before.items() if count]
        if stuck:
            raise Violation("Ordering", f"no total order exists: {', '.join(stuck[:6])} are in a cycle")


class Execution(Checker):
    """Reported executions are durable; no message is dropped before all destinations have executed it."""

    def __init__(self, topology: Topology, hosts: Mapping[ReplicaId, Host]) -> None:
        self._topology = topology
        self._hosts = hosts
        self._delivered: dict[MessageId, Delivery] = {}
        self._anchors: dict[GroupId, int] = defaultdict(int)
        """The highest anchor that each group has delivered."""
        self._reported: dict[ReplicaId, Timestamp] = defaultdict(lambda: NO_TIMESTAMP)

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Check that a report is true, and not lower than an earlier one."""
        if isinstance(message, (HeartbeatAck, NewLeaderAck)):
            before, executed = self._reported[host.me], host.commit.checkpoint.executed
            if not before <= message.executed <= executed:
                watermarks = ", ".join(map(format_timestamp, (before, message.executed, executed)))
                raise Violation("Execution", f"{host.me} reported, reports, has executed: {watermarks}")
            self._reported[host.me] = message.executed

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Remember the message's position in the order."""
        self._delivered[delivery.mid] = delivery
        if delivery.mid.client == ANCHOR:
            self._anchors[host.me.group] = max(self._anchors[host.me.group], delivery.mid.sequence)

    def restarted(self, host: Host) -> None:
        """Check that what was reported survived the crash, unless the disk was rolled back."""
        if not host.rolled_back and host.commit.checkpoint.executed < self._reported[host.me]:
            raise Violation("Execution", f"{host.me} restarted with less than it had reported")

    def dropped(self, host: Host, mids: Sequence[MessageId]) -> None:
        """Check that this replica and quorums of all destinations have executed the messages."""
        for mid in mids:
            delivery = self._delivered.get(mid)
            if delivery is None and mid.client == ANCHOR and mid.sequence < self._anchors[host.me.group]:
                continue  # a deposed leader's own: had it been chosen, the higher one would be behind it
            if delivery is None:
                raise Violation("Collection", f"{host.me} drops {mid}, which no replica has delivered")
            done = [
                me for me, each in self._hosts.items()
                if each.once_executed >= delivery.global_ts
            ]  # fmt: skip
            if host.me not in done:
                raise Violation("Collection", f"{host.me} drops {delivery.mid} before it has executed it")
            for group in delivery.dest:
                if not any(each.has_quorum(done) for each in self._topology.configurations(group)):
                    raise Violation("Collection", f"{host.me} drops {mid}, not executed in group {group}")


class RolledBack(Checker):
    """A replica whose disk was rolled back promises nothing."""

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Check a message of such a replica."""
        if host.rolled_back and isinstance(message, PROMISES):
            kind = type(message).__name__
            raise Violation("Memories", f"{host.me} sends {kind}, from a log that was rolled back")


class Genuine(Checker):
    """Minimality: only the sender and the destinations of m take part in ordering m."""

    def __init__(self, multicasts: Multicasts) -> None:
        self._multicasts = multicasts

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Check that sender and receivers of a message about m are among the sender and destinations of m."""
        for mid in message.mids if isinstance(message, Reply) else about(message):
            self._check(mid, host, receivers)

    def _check(self, mid: MessageId, host: Host, receivers: Sequence[Process]) -> None:
        known = self._multicasts.known.get(mid)
        if known is None:
            raise Violation("Invariant 7", f"{host.me} speaks of {mid}, which was never multicast")
        for process in (host.me, *receivers):
            ok = process == mid.client or (isinstance(process, ReplicaId) and process.group in known.dest)
            if not ok:
                raise Violation("Genuineness", f"{process} takes part in {mid} to groups {known.dest}")
