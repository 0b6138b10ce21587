"""The white-box protocol's own invariants: Figure *inv* and those of appendix A that can be observed.

The checkers use what quorums have acknowledged, and the variables of processes that join ballots, restart or
handle a message. Numbers are the paper's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from multicast.messages import (
    Accept,
    AcceptAck,
    Deliver,
    Delivery,
    Message,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    about,
)
from multicast.sim.checkers import Checker, Multicasts, Violation
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


@dataclass
class Quorum:
    """A quorum of a group has accepted these proposals for a message (the premise of Invariant 2)."""

    mid: MessageId
    ballot: Ballot
    local_ts: Timestamp
    global_ts: Timestamp


@dataclass
class Projection:
    """The messages below gts that the leader held when it accepted m (the premise of Invariant 5)."""

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
        self._acks: dict[tuple[MessageId, Vector], dict[GroupId, set[ReplicaId]]] = {}
        self._complete: dict[MessageId, set[Vector]] = defaultdict(set)
        self._quorums: dict[GroupId, dict[MessageId, Quorum]] = defaultdict(dict)
        self._projections: dict[GroupId, list[Projection]] = defaultdict(list)
        self._pending: dict[tuple[MessageId, Ballot], Projection] = {}
        self._local: dict[tuple[GroupId, MessageId], Timestamp] = {}
        self._global: dict[MessageId, Timestamp] = {}
        """The decided timestamps of messages that have been delivered at some replica."""
        self._cballots: dict[ReplicaId, Ballot] = {}
        self._synced: dict[Ballot, set[ReplicaId]] = defaultdict(set)
        self._led: dict[ReplicaId, bool] = {}

    # Messages

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Dispatch on the message."""
        if isinstance(message, Accept):
            for mid, local_ts in zip(message.mids, message.local_ts, strict=True):
                self._accept(mid, message.group, message.ballot, local_ts)
        elif isinstance(message, AcceptAck):
            ballots = {ballot.leader.group: ballot for ballot in message.ballots}
            for mid in message.mids:
                vector = tuple(ballots[group] for group in self._multicasts.known[mid].dest)
                self._accept_ack(host, mid, message.group, vector)
        elif isinstance(message, NewStateAck):
            self._synced[message.ballot].add(host.me)
        elif isinstance(message, Deliver):
            for mid, local_ts, global_ts in message.run:
                self._deliver(host, mid, local_ts, global_ts)

    def _accept(self, mid: MessageId, group: GroupId, ballot: Ballot, local_ts: Timestamp) -> None:
        lts = self._proposals.setdefault((mid, group, ballot), local_ts)
        if lts != local_ts:
            raise Violation(
                "Invariant 1",
                f"{mid} was proposed {format_timestamp(local_ts)} and {format_timestamp(lts)} by {ballot}",
            )
        owner = self._issued.setdefault((ballot, lts), mid)
        if owner != mid:
            raise Violation("Invariant 20", f"{owner} and {mid} share {format_timestamp(lts)} in {ballot}")

    def _accept_ack(self, host: Host, mid: MessageId, group: GroupId, vector: Vector) -> None:
        dest = self._multicasts.known[mid].dest
        proposals = {}
        for other, ballot in zip(dest, vector, strict=True):
            lts = self._proposals.get((mid, other, ballot))
            if lts is None and other == group and self._is_alone(group, ballot):
                # Alone in its group, a leader proposes to itself, without a message. If its disk is slow, it
                # may have collected by now what was repeated to it.
                replica: Any = host.replica
                entry = replica.entries.get(mid)
                lts = self._local[group, mid] if entry is None else entry.local_ts
                self._proposals[mid, group, ballot] = lts
            if lts is None:
                raise Violation("Invariant 2", f"{host.me} accepted what {ballot} never proposed: {mid}")
            assert lts is not None
            proposals[other] = lts
        own = vector[dest.index(group)]
        gts = max(proposals.values())
        if own.leader == host.me and (mid, own) not in self._pending:
            self._pending[mid, own] = Projection(own, gts, self._below(host, gts))
        acks = self._acks.setdefault((mid, vector), {other: set() for other in dest})
        if host.me in acks[group]:
            return
        acks[group].add(host.me)
        if not self._is_quorum(group, own, acks[group]):
            return
        self._quorum_formed(group, Quorum(mid, own, proposals[group], gts))
        if own.leader in acks[group]:
            projections = self._projections[group]
            projections.append(self._pending[mid, own])
            del projections[:-32]
        if all(self._is_quorum(g, b, acks[g]) for g, b in zip(dest, vector, strict=True)):
            self._complete[mid].add(vector)

    def _is_alone(self, group: GroupId, ballot: Ballot) -> bool:
        return len(self._topology.configuration(group, ballot.configuration).members) == 1

    def _is_quorum(self, group: GroupId, ballot: Ballot, replicas: set[ReplicaId]) -> bool:
        return self._topology.configuration(group, ballot.configuration).has_quorum(replicas)

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
            if known.local_ts != quorum.local_ts:
                raise Violation(
                    "Invariant 19",
                    f"quorums of group {group} accepted {quorum.mid} with "
                    f"{format_timestamp(known.local_ts)} and {format_timestamp(quorum.local_ts)}",
                )
            if known.ballot <= quorum.ballot:
                return
        self._quorums[group][quorum.mid] = quorum
        for member, host in self._hosts.items():
            if member.group == group and host.up:
                self._persists(host, quorum)

    def _deliver(self, host: Host, mid: MessageId, lts: Timestamp, gts: Timestamp) -> None:
        group = host.me.group
        self._global[mid] = gts
        if lts > gts:
            raise Violation("Invariant 13", f"{mid} has lts {lts} above gts {gts} at {host.me}")
        if self._local.setdefault((group, mid), lts) != lts:
            raise Violation("Invariant 3a", f"{mid} was delivered with two local timestamps in group {group}")
        if not self._explained(group, mid, lts, gts):
            raise Violation(
                "Invariant 17",
                f"{host.me} delivers {mid} at {format_timestamp(gts)}, which no quorums accepted",
            )

    def _explained(self, group: GroupId, mid: MessageId, lts: Timestamp, gts: Timestamp) -> bool:
        """Return whether quorums of all destinations, and this group's leader, accepted these timestamps."""
        dest = self._multicasts.known[mid].dest
        at = dest.index(group)
        for vector in self._complete[mid]:
            proposals = [self._proposals[mid, g, b] for g, b in zip(dest, vector, strict=True)]
            leader = vector[at].leader
            if proposals[at] == lts and max(proposals) == gts and leader in self._acks[mid, vector][group]:
                return True
        return False

    # Variables

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Check a delivery here too: groups of one send no DELIVER."""
        self._deliver(host, delivery.mid, delivery.local_ts, delivery.global_ts)
        replica: Any = host.replica
        if replica.clock < time_of(delivery.global_ts):
            raise Violation(
                "Invariant 14", f"{host.me} delivered {delivery.mid} with its clock at {replica.clock}"
            )

    def stepping(self, host: Host, sender: Process, message: Message) -> None:
        """Remember whether the process led before."""
        replica: Any = host.replica
        self._led[host.me] = replica.status is Status.LEADER

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """Check that a process that joins a ballot knows what quorums of lower ballots accepted."""
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
        if not self._is_quorum(host.me.group, replica.cballot, self._synced[replica.cballot]):
            raise Violation(
                "Invariant 18", f"{host.me} leads {replica.cballot} before a quorum has its state"
            )

    def _follows(self, host: Host, message: Accept) -> None:
        """Line 11, for Invariant 15: a process accepts only what the leader of its own ballot proposed."""
        replica: Any = host.replica
        for mid in message.mids:
            entry = replica.entries.get(mid)
            if entry is None or entry.bal is None:
                continue
            own = next(ballot for ballot in entry.bal.vector if ballot.leader.group == host.me.group)
            if own != replica.cballot:
                raise Violation("Invariant 15", f"{host.me} in {replica.cballot} accepted {mid} as of {own}")

    def restarted(self, host: Host) -> None:
        """Check the same of a restored state."""
        replica: Any = host.replica
        self._cballots[host.me] = replica.cballot
        if replica.cballot != NO_BALLOT and not host.rolled_back:
            self._joined(host)

    def _joined(self, host: Host) -> None:
        replica: Any = host.replica
        group = host.me.group
        executed = min((self._hosts[m].once_executed for m in self._topology.members(group)), default=0)
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
            if other != entry.mid:
                raise Violation(
                    "Invariant 20", f"{host.me} holds {other} and {entry.mid} with one local timestamp"
                )
            if entry.phase is Phase.COMMITTED and not self._explained(
                group, entry.mid, entry.local_ts, entry.global_ts
            ):
                raise Violation("Invariant 16", f"{host.me} committed {entry.mid}, which no quorums accepted")
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
            if not (mid in replica.delivered_ids or self._executed(mid)):
                raise Violation(
                    "Invariant 2a",
                    f"{host.me} in {replica.cballot} has lost {mid}, accepted in {quorum.ballot}",
                )
        elif entry.local_ts != quorum.local_ts:
            raise Violation(
                "Invariant 2b",
                f"{host.me} has {mid} at {format_timestamp(entry.local_ts)}, "
                f"but a quorum accepted {format_timestamp(quorum.local_ts)}",
            )
        if replica.clock < time_of(quorum.global_ts):
            raise Violation(
                "Invariant 2c",
                f"the clock of {host.me} is {replica.clock}, below {mid}'s "
                f"{format_timestamp(quorum.global_ts)}",
            )

    def _executed(self, mid: MessageId) -> bool:
        """Return whether quorums of all destinations have durably executed the message: it may be dropped."""
        gts = self._global.get(mid)
        if gts is None:
            return False
        for group in self._multicasts.known[mid].dest:
            done = [me for me, host in self._hosts.items() if host.once_executed >= gts]
            if not any(c.has_quorum(done) for c in self._topology.configurations(group)):
                return False
        return True

    def _no_resurrection(self, host: Host, projection: Projection) -> None:
        """Invariant 5: no local timestamp below gts that the leader did not know."""
        replica: Any = host.replica
        group = host.me.group
        for entry in replica.entries.values():
            if entry.phase < Phase.ACCEPTED or entry.local_ts >= projection.global_ts:
                continue
            # When its acknowledgement is durable, the leader may have left the ballot and forgotten what
            # it had only proposed; but it did know it.
            proposed = self._proposals.get((entry.mid, group, projection.ballot))
            known = projection.local.get(entry.mid, self._local.get((group, entry.mid), proposed))
            if known != entry.local_ts:
                raise Violation(
                    "Invariant 5",
                    f"{host.me} in {replica.cballot} has {entry.mid} at "
                    f"{format_timestamp(entry.local_ts)}, below {format_timestamp(projection.global_ts)}, "
                    f"unknown to the leader of {projection.ballot}",
                )


@dataclass
class _Before:
    cballot: Ballot = NO_BALLOT
    ballot: Ballot = NO_BALLOT
    clock: int = 0
    accepted: list[tuple[MessageId, Phase, Timestamp]] = field(default_factory=list)
    """Phase and local timestamp of the messages that the step is about."""


class Monotone(Checker):
    """Invariants 8-12, and that promises are durable before they are sent."""

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
        """Check that promises have survived the crash."""
        me, durable = host.me, host.durable
        if host.rolled_back:  # `RolledBack` checks that it makes no use of what it has
            self._before[me] = _Before()
            return
        if durable.ballot < self._revealed[me]:
            raise Violation(
                "Durability", f"{me} promised {self._revealed[me]} and restarted with {durable.ballot}"
            )
        delivered = host.commit.checkpoint.delivered
        for mid, ballot in self._accepted[me].items():
            if not (ballot != durable.cballot or mid in durable.latest or mid in delivered):
                raise Violation("Durability", f"{me} acknowledged {mid} in {ballot} and restarted without it")
        self._accepted[me] = {m: b for m, b in self._accepted[me].items() if b >= durable.cballot}
        self._before[me] = _Before()

    def stepping(self, host: Host, sender: Process, message: Message) -> None:
        """Record the state before the step."""
        replica: Any = host.replica
        before = self._before[host.me]
        before.cballot, before.ballot, before.clock = replica.cballot, replica.ballot, replica.clock
        entries = [replica.entries.get(mid) for mid in about(message)]
        before.accepted = [
            (entry.mid, entry.phase, entry.local_ts)
            for entry in entries
            if entry is not None and entry.phase >= Phase.ACCEPTED
        ]

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """Check that nothing has fallen."""
        replica: Any = host.replica
        before = self._before[host.me]
        if not (before.ballot <= replica.ballot and before.cballot <= replica.cballot <= replica.ballot):
            raise Violation(
                "Invariant 8", f"{host.me} went from {before.cballot}/{before.ballot} to "
                f"{replica.cballot}/{replica.ballot}",
            )  # fmt: skip
        if before.cballot != replica.cballot:
            return
        if isinstance(message, NewState) and not replica.is_silent:  # which may lack what was collected
            for mid, ballot in self._accepted[host.me].items():
                if not (ballot != replica.cballot or mid in replica.entries or mid in replica.delivered_ids):
                    raise Violation("Invariant 10", f"{host.me} forgot {mid}, acknowledged in {ballot}")
        if replica.clock < before.clock:
            raise Violation("Invariant 11", f"the clock of {host.me} fell from {before.clock}")
        for mid, phase, local_ts in before.accepted:
            entry = replica.entries.get(mid)
            if entry is None:
                if not (phase is Phase.COMMITTED or mid in replica.delivered_ids):
                    raise Violation("Invariant 10", f"{host.me} forgot {mid}, accepted in {before.cballot}")
            elif entry.phase < phase:
                raise Violation("Invariant 10", f"{mid} at {host.me} fell back to {entry.phase.name}")
            elif entry.local_ts != local_ts:
                raise Violation(
                    "Invariant 12", f"{host.me} changed the local timestamp of {mid} within {before.cballot}"
                )
