"""What must be true at every step of a run, whatever the workload and the faults.

Each checker watches one family of properties and raises `Violation` at the first step that breaks it. The
numbers are those of Figure *inv* and of the paper's appendix A. Checkers look at what processes send,
deliver and hold; they share nothing with the protocol's own code but its messages.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from multicast.client import Reply
from multicast.messages import (
    Accept,
    AcceptAck,
    Deliver,
    Delivery,
    Message,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
)
from multicast.sim.host import Host
from multicast.topology import Topology
from multicast.types import (
    NO_BALLOT,
    Ballot,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Status,
    Timestamp,
    Vector,
    format_timestamp,
    time_of,
)


class Violation(Exception):
    """A property of the protocol does not hold."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


def require(condition: object, name: str, detail: str) -> None:
    """Raise unless it holds."""
    if not condition:
        raise Violation(name, detail)


class Checker:
    """An observer that cares about some events only."""

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """A replica's message leaves."""

    def stepping(self, host: Host, sender: Process, message: Message) -> None:
        """A replica is about to handle a message."""

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """A replica has handled a message."""

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """A replica's application got a message."""

    def installed(self, host: Host) -> None:
        """A replica's application was replaced by a snapshot."""

    def crashed(self, host: Host) -> None:
        """A replica is down."""

    def restarted(self, host: Host) -> None:
        """A replica is up again."""


@dataclass
class Multicasts:
    """What clients have multicast: the ground truth of Validity."""

    known: dict[MessageId, Multicast] = field(default_factory=dict)

    def add(self, message: Multicast) -> None:
        """A client is about to send this for the first time."""
        self.known[message.mid] = message


class Order(Checker):
    """Validity, Integrity, Ordering: the properties of atomic multicast, on applications' logs only."""

    def __init__(self, topology: Topology, multicasts: Multicasts) -> None:
        self._multicasts = multicasts
        self._topology = topology
        self.sequences: dict[GroupId, list[MessageId]] = {g: [] for g in topology.groups}
        """What each group has delivered, as the furthest of its replicas has it."""
        self._gts: dict[MessageId, Timestamp] = {}
        self._owner: dict[Timestamp, MessageId] = {}
        self._position: dict[ReplicaId, int] = defaultdict(int)
        self._seen: dict[ReplicaId, set[MessageId]] = defaultdict(set)

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Check one delivery against the clients, the group, and the other groups."""
        me, mid = host.me, delivery.mid
        sent = self._multicasts.known.get(mid)
        require(sent is not None, "Validity", f"{me} delivered {mid}, which nobody multicast")
        assert sent is not None
        require(
            me.group in sent.dest and sent.dest == delivery.dest and sent.payload == delivery.payload,
            "Validity", f"{me} delivered {mid} as {delivery.dest}, but it was multicast to {sent.dest}",
        )  # fmt: skip
        require(mid not in self._seen[me], "Integrity", f"{me} delivered {mid} twice")
        self._seen[me].add(mid)
        sequence, at = self.sequences[me.group], self._position[me]
        if at == len(sequence):
            sequence.append(mid)
        require(
            sequence[at] == mid,
            "Ordering", f"{me} delivered {mid} as number {at} of its group, where others have {sequence[at]}",
        )  # fmt: skip
        self._position[me] = at + 1
        gts = delivery.global_ts
        require(
            self._gts.setdefault(mid, gts) == gts,
            "Invariant 3b", f"{mid} has global timestamps {format_timestamp(gts)} at {me} and "
            f"{format_timestamp(self._gts[mid])} elsewhere",
        )  # fmt: skip
        require(
            self._owner.setdefault(gts, mid) == mid,
            "Invariant 4", f"{mid} and {self._owner[gts]} share {format_timestamp(gts)}",
        )  # fmt: skip
        if at:
            before = self._gts[sequence[at - 1]]
            require(before < gts, "Ordering", f"{me} delivered {mid} after a higher global timestamp")

    def _reload(self, host: Host) -> None:
        mids = [delivery.mid for delivery in host.log]
        sequence = self.sequences[host.me.group]
        require(mids == sequence[: len(mids)], "Ordering", f"{host.me} holds another order than its group")
        self._position[host.me] = len(mids)
        self._seen[host.me] = set(mids)

    installed = _reload
    restarted = _reload

    def check_acyclic(self) -> None:
        """Ordering, without believing timestamps: the union of all groups' orders has no cycle."""
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
        require(not stuck, "Ordering", f"no total order exists: {', '.join(stuck[:6])} are in a cycle")


class Genuine(Checker):
    """Minimality: only the sender and the destinations of m take part in ordering m."""

    def __init__(self, multicasts: Multicasts) -> None:
        self._multicasts = multicasts

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Whoever speaks or hears of m must have business with it."""
        if isinstance(message, AcceptAck):
            for mid in message.mids:
                self._check(mid, host, receivers)
        elif isinstance(message, Deliver):
            for mid, _, _ in message.run:
                self._check(mid, host, receivers)
        elif isinstance(message, (Multicast, Accept, Reply)):
            self._check(message.mid, host, receivers)

    def _check(self, mid: MessageId, host: Host, receivers: Sequence[Process]) -> None:
        known = self._multicasts.known.get(mid)
        require(known is not None, "Invariant 7", f"{host.me} speaks of {mid}: never multicast")
        assert known is not None
        for process in (host.me, *receivers):
            ok = process == mid.client or (isinstance(process, ReplicaId) and process.group in known.dest)
            require(ok, "Genuineness", f"{process} takes part in {mid} to groups {known.dest}")


@dataclass
class Quorum:
    """A quorum of a group has accepted these proposals for a message (the premise of Invariant 2)."""

    mid: MessageId
    ballot: Ballot
    local_ts: Timestamp
    global_ts: Timestamp


@dataclass
class Projection:
    """What the leader held below gts when it accepted m (the premise of Invariant 5)."""

    ballot: Ballot
    global_ts: Timestamp
    local: dict[MessageId, Timestamp]


class Agreement(Checker):
    """Invariants 1-5, 13, 14, 16-20: what quorums have accepted survives leaders and fixes the order."""

    def __init__(self, topology: Topology, multicasts: Multicasts, hosts: dict[ReplicaId, Host]) -> None:
        self._topology = topology
        self._multicasts = multicasts
        self._hosts = hosts
        self._proposals: dict[tuple[MessageId, GroupId, Ballot], Timestamp] = {}
        self._issued: dict[tuple[Ballot, Timestamp], MessageId] = {}
        self._acks: dict[tuple[MessageId, Vector], dict[GroupId, int]] = {}
        self._complete: dict[MessageId, set[Vector]] = defaultdict(set)
        self._quorums: dict[GroupId, dict[MessageId, Quorum]] = defaultdict(dict)
        self._projections: dict[GroupId, list[Projection]] = defaultdict(list)
        self._pending: dict[tuple[MessageId, Ballot], Projection] = {}
        self._local: dict[tuple[GroupId, MessageId], Timestamp] = {}
        self._cballots: dict[ReplicaId, Ballot] = {}
        self._synced: dict[Ballot, int] = defaultdict(int)
        self._led: dict[ReplicaId, bool] = {}

    # What processes say

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Dispatch on what is said."""
        if isinstance(message, Accept):
            self._accept(message)
        elif isinstance(message, AcceptAck):
            for mid in message.mids:
                self._accept_ack(host, mid, message.group, message.ballots)
        elif isinstance(message, NewStateAck):
            self._synced[message.ballot] |= self._topology.bits[host.me]
        elif isinstance(message, Deliver):
            for mid, local_ts, global_ts in message.run:
                self._deliver(host, mid, local_ts, global_ts)

    def _accept(self, message: Accept) -> None:
        key = (message.mid, message.group, message.ballot)
        lts = self._proposals.setdefault(key, message.local_ts)
        require(
            lts == message.local_ts,
            "Invariant 1", f"{message.mid} was proposed {format_timestamp(message.local_ts)} and "
            f"{format_timestamp(lts)} by {message.ballot}",
        )  # fmt: skip
        owner = self._issued.setdefault((message.ballot, lts), message.mid)
        require(
            owner == message.mid,
            "Invariant 20", f"{owner} and {message.mid} share {format_timestamp(lts)} in {message.ballot}",
        )  # fmt: skip

    def _accept_ack(self, host: Host, mid: MessageId, group: GroupId, vector: Vector) -> None:
        dest = self._multicasts.known[mid].dest
        proposals = {}
        for other, ballot in zip(dest, vector, strict=True):
            lts = self._proposals.get((mid, other, ballot))
            if lts is None and other == group and len(self._topology.members(group)) == 1:
                # Alone in its group, a leader proposes to nobody but itself, without a word.
                replica: Any = host.replica
                lts = self._proposals[mid, group, ballot] = replica.entries[mid].local_ts
            require(lts is not None, "Invariant 2", f"{host.me} accepted what {ballot} never proposed: {mid}")
            assert lts is not None
            proposals[other] = lts
        own = vector[dest.index(group)]
        gts = max(proposals.values())
        if own.leader == host.me and (mid, own) not in self._pending:
            self._pending[mid, own] = Projection(own, gts, self._below(host, gts))
        acks = self._acks.setdefault((mid, vector), dict.fromkeys(dest, 0))
        before = acks[group]
        acks[group] |= self._topology.bits[host.me]
        quorum = self._topology.configurations[group].is_quorum
        if acks[group] == before or not quorum(acks[group]):
            return
        self._quorum_formed(group, Quorum(mid, own, proposals[group], gts))
        if acks[group] & self._topology.bits[own.leader]:
            projections = self._projections[group]
            projections.append(self._pending[mid, own])
            del projections[:-32]
        if all(self._topology.configurations[g].is_quorum(acks[g]) for g in dest):
            self._complete[mid].add(vector)

    def _below(self, host: Host, gts: Timestamp) -> dict[MessageId, Timestamp]:
        replica: Any = host.replica
        return {
            entry.mid: entry.local_ts
            for entry in replica.entries.values()
            if entry.phase is not Phase.START and not entry.delivered and entry.local_ts < gts
        }

    def _quorum_formed(self, group: GroupId, quorum: Quorum) -> None:
        known = self._quorums[group].get(quorum.mid)
        if known is not None:
            require(
                known.local_ts == quorum.local_ts,
                "Invariant 19", f"quorums of group {group} accepted {quorum.mid} with "
                f"{format_timestamp(known.local_ts)} and {format_timestamp(quorum.local_ts)}",
            )  # fmt: skip
            if known.ballot <= quorum.ballot:
                return
        self._quorums[group][quorum.mid] = quorum
        for member in self._topology.members(group):
            host = self._hosts[member]
            if host.up:
                self._persists(host, quorum)

    def _deliver(self, host: Host, mid: MessageId, lts: Timestamp, gts: Timestamp) -> None:
        group = host.me.group
        require(lts <= gts, "Invariant 13", f"{mid} has lts {lts} above gts {gts} at {host.me}")
        require(
            self._local.setdefault((group, mid), lts) == lts,
            "Invariant 3a", f"{mid} was delivered with two local timestamps in group {group}",
        )  # fmt: skip
        require(
            self._explained(group, mid, lts, gts),
            "Invariant 17", f"{host.me} delivers {mid} at {format_timestamp(gts)}, which no quorums accepted",
        )  # fmt: skip

    def _explained(self, group: GroupId, mid: MessageId, lts: Timestamp, gts: Timestamp) -> bool:
        """Whether quorums of all destinations, with this group's leader, accepted just these timestamps."""
        dest = self._multicasts.known[mid].dest
        at = dest.index(group)
        for vector in self._complete[mid]:
            proposals = [self._proposals[mid, g, b] for g, b in zip(dest, vector, strict=True)]
            leader = self._topology.bits[vector[at].leader]
            if proposals[at] == lts and max(proposals) == gts and self._acks[mid, vector][group] & leader:
                return True
        return False

    # What processes hold

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Deliveries of groups of one are not sent to anyone, so look at them here."""
        self._deliver(host, delivery.mid, delivery.local_ts, delivery.global_ts)
        replica: Any = host.replica
        require(
            replica.clock >= time_of(delivery.global_ts),
            "Invariant 14", f"{host.me} delivered {delivery.mid} with its clock at {replica.clock}",
        )  # fmt: skip

    def stepping(self, host: Host, sender: Process, message: Message) -> None:
        """Remember who led before."""
        replica: Any = host.replica
        self._led[host.me] = replica.status is Status.LEADER

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """When a process joins a ballot, it must know what quorums of lower ballots accepted."""
        replica: Any = host.replica
        if replica.cballot != self._cballots.get(host.me, NO_BALLOT):
            self._cballots[host.me] = replica.cballot
            self._joined(host)
        if replica.status is Status.LEADER and not self._led[host.me]:
            self._leads(host)
        if isinstance(message, Accept):
            self._follows(host, message)

    def _leads(self, host: Host) -> None:
        """Lines 64-65, the premise of Invariant 18: normal operation starts with a quorum in sync."""
        replica: Any = host.replica
        configuration = self._topology.configurations[host.me.group]
        require(
            configuration.is_quorum(self._synced[replica.cballot]),
            "Invariant 18", f"{host.me} leads {replica.cballot} before a quorum has its state",
        )  # fmt: skip

    def _follows(self, host: Host, message: Accept) -> None:
        """Line 11, for Invariant 15: a process accepts only what the leader of its own ballot proposed."""
        replica: Any = host.replica
        entry = replica.entries.get(message.mid)
        if entry is None or entry.vector is None:
            return
        own = next(ballot for ballot in entry.vector if ballot.leader.group == host.me.group)
        require(
            own == replica.cballot,
            "Invariant 15", f"{host.me} in {replica.cballot} accepted {message.mid} as of {own}",
        )  # fmt: skip

    def restarted(self, host: Host) -> None:
        """A restart brings back a state that must satisfy the same."""
        replica: Any = host.replica
        self._cballots[host.me] = replica.cballot
        if replica.cballot != NO_BALLOT:
            self._joined(host)

    def _joined(self, host: Host) -> None:
        replica: Any = host.replica
        group = host.me.group
        executed = min(
            (self._hosts[m].commit.checkpoint.position for m in self._topology.members(group)), default=0
        )
        quorums = self._quorums[group]
        for mid in [mid for mid, quorum in quorums.items() if quorum.global_ts <= executed]:
            del quorums[mid]
        for quorum in quorums.values():
            self._persists(host, quorum)
        held: dict[Timestamp, MessageId] = {}
        for entry in replica.entries.values():
            if entry.phase < Phase.ACCEPTED:
                continue
            other = held.setdefault(entry.local_ts, entry.mid)
            require(
                other == entry.mid,
                "Invariant 20", f"{host.me} holds {other} and {entry.mid} with one local timestamp",
            )  # fmt: skip
            if entry.phase is Phase.COMMITTED:
                require(
                    self._explained(group, entry.mid, entry.local_ts, entry.global_ts),
                    "Invariant 16", f"{host.me} has {entry.mid} committed, which no quorums accepted",
                )  # fmt: skip
        for projection in self._projections[group]:
            if projection.ballot < replica.cballot and projection.global_ts > executed:
                self._no_resurrection(host, projection)

    def _persists(self, host: Host, quorum: Quorum) -> None:
        """Invariant 2, for a process that is past the ballot in which the quorum accepted."""
        replica: Any = host.replica
        if replica.cballot <= quorum.ballot:
            return
        mid = quorum.mid
        entry = replica.entries.get(mid)
        if entry is None or entry.phase < Phase.ACCEPTED:
            require(
                mid in replica.delivered_ids or self._executed(mid, quorum.global_ts),
                "Invariant 2a", f"{host.me} in {replica.cballot} has lost {mid}, accepted in {quorum.ballot}",
            )  # fmt: skip
        else:
            require(
                entry.local_ts == quorum.local_ts,
                "Invariant 2b", f"{host.me} has {mid} at {format_timestamp(entry.local_ts)}, "
                f"but a quorum accepted {format_timestamp(quorum.local_ts)}",
            )  # fmt: skip
        require(
            replica.clock >= time_of(quorum.global_ts),
            "Invariant 2c", f"the clock of {host.me} is {replica.clock}, below {mid}'s "
            f"{format_timestamp(quorum.global_ts)}",
        )  # fmt: skip

    def _executed(self, mid: MessageId, gts: Timestamp) -> bool:
        """Whether quorums of all destinations have durably executed the message: it may be forgotten."""
        for group in self._multicasts.known[mid].dest:
            done = [m for m in self._topology.members(group)
                    if self._hosts[m].commit.checkpoint.position >= gts]  # fmt: skip
            if len(done) < self._topology.quorums[group]:
                return False
        return True

    def _no_resurrection(self, host: Host, projection: Projection) -> None:
        """Invariant 5: no local timestamp below gts that the leader did not know of."""
        replica: Any = host.replica
        group = host.me.group
        for entry in replica.entries.values():
            if entry.phase < Phase.ACCEPTED or entry.local_ts >= projection.global_ts:
                continue
            # When its acknowledgement is durable, the leader may have left the ballot and forgotten what
            # it had only proposed; but it did know.
            proposed = self._proposals.get((entry.mid, group, projection.ballot))
            known = projection.local.get(entry.mid, self._local.get((group, entry.mid), proposed))
            require(
                known == entry.local_ts,
                "Invariant 5", f"{host.me} in {replica.cballot} has {entry.mid} at "
                f"{format_timestamp(entry.local_ts)}, below {format_timestamp(projection.global_ts)}, "
                f"unknown to the leader of {projection.ballot}",
            )  # fmt: skip


@dataclass
class _Before:
    cballot: Ballot = NO_BALLOT
    ballot: Ballot = NO_BALLOT
    clock: int = 0
    mid: MessageId | None = None
    phase: Phase = Phase.START
    local_ts: int = 0


class Monotone(Checker):
    """Invariants 8-12, and that no promise is revealed before it is durable."""

    def __init__(self) -> None:
        self._before: dict[ReplicaId, _Before] = defaultdict(_Before)
        self._revealed: dict[ReplicaId, Ballot] = defaultdict(lambda: NO_BALLOT)
        self._accepted: dict[ReplicaId, dict[MessageId, Ballot]] = defaultdict(dict)

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Remember what this process has promised to others."""
        if isinstance(message, (NewLeader, NewLeaderAck, NewState, NewStateAck)):
            self._revealed[host.me] = max(self._revealed[host.me], message.ballot)
        elif isinstance(message, AcceptAck):
            own = next(b for b in message.ballots if b.leader.group == host.me.group)
            self._accepted[host.me].update(dict.fromkeys(message.mids, own))

    def restarted(self, host: Host) -> None:
        """What was promised must have survived the crash."""
        me, durable = host.me, host.durable
        require(
            durable.ballot >= self._revealed[me],
            "Durability", f"{me} promised {self._revealed[me]} and came back with {durable.ballot}",
        )  # fmt: skip
        delivered = host.commit.checkpoint.delivered
        for mid, ballot in self._accepted[me].items():
            require(
                ballot != durable.cballot or mid in durable.entries or mid in delivered,
                "Durability", f"{me} acknowledged {mid} in {ballot} and came back without it",
            )  # fmt: skip
        self._accepted[me] = {m: b for m, b in self._accepted[me].items() if b >= durable.cballot}
        self._before[me] = _Before()

    def stepping(self, host: Host, sender: Process, message: Message) -> None:
        """Note what is there before the step."""
        replica: Any = host.replica
        before = self._before[host.me]
        before.cballot, before.ballot, before.clock = replica.cballot, replica.ballot, replica.clock
        before.mid = getattr(message, "mid", None)
        entry = None if before.mid is None else replica.entries.get(before.mid)
        before.phase = Phase.START if entry is None else entry.phase
        before.local_ts = 0 if entry is None else entry.local_ts

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """Nothing may have gone backwards."""
        replica: Any = host.replica
        before = self._before[host.me]
        if not (before.ballot <= replica.ballot and before.cballot <= replica.cballot <= replica.ballot):
            raise Violation(
                "Invariant 8", f"{host.me} went from {before.cballot}/{before.ballot} to "
                f"{replica.cballot}/{replica.ballot}",
            )  # fmt: skip
        if before.cballot != replica.cballot:
            return
        if isinstance(message, NewState):
            for mid, ballot in self._accepted[host.me].items():
                require(
                    ballot != replica.cballot or mid in replica.entries or mid in replica.delivered_ids,
                    "Invariant 10", f"{host.me} forgot {mid}, acknowledged in {ballot}",
                )  # fmt: skip
        if replica.clock < before.clock:
            raise Violation("Invariant 11", f"the clock of {host.me} fell from {before.clock}")
        if before.mid is not None and before.phase >= Phase.ACCEPTED:
            entry = replica.entries.get(before.mid)
            if entry is None:
                require(
                    before.phase is Phase.COMMITTED or before.mid in replica.delivered_ids,
                    "Invariant 10", f"{host.me} forgot {before.mid}, accepted in {before.cballot}",
                )  # fmt: skip
            elif entry.phase < before.phase:
                raise Violation("Invariant 10", f"{before.mid} at {host.me} fell back to {entry.phase.name}")
            elif entry.local_ts != before.local_ts:
                raise Violation(
                    "Invariant 12", f"{host.me} changed the local timestamp of {before.mid} within "
                    f"{before.cballot}",
                )  # fmt: skip
