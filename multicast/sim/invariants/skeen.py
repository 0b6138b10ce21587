"""The invariants of Skeen's family, beyond atomic multicast itself.

Consensus: a leader proposes one value per instance in its ballot, and a group decides one value per instance.
Skeen: local timestamps are unique, decided once, and never below what the group has delivered; a message is
delivered at the maximum of its groups' decided local timestamps, once its group has decided that its clock
passes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

from multicast.messages import (
    Delivery,
    Instance,
    LocalTimestamp,
    Message,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Phase2a,
    Phase2b,
    Propose,
)
from multicast.sim.checkers import Checker, Violation
from multicast.sim.host import Host
from multicast.topology import Topology
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    Ballot,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Timestamp,
    format_timestamp,
    time_of,
)

_Question: TypeAlias = tuple[GroupId, Instance]

_Answer: TypeAlias = LocalTimestamp | None
"""None for a clock update, which has only one value."""


def _instances(message: Phase2b) -> list[Instance]:
    """Return the instances of the votes."""
    return [*((mid, NO_TIMESTAMP) for mid in message.local), *zip(*message.clocks, strict=True)]


class Decisions(Checker):
    """The decisions of groups, by the votes that have left, and the deliveries that follow from them."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._proposed: dict[tuple[Ballot, Instance], _Answer] = {}
        self._votes: dict[tuple[Ballot, Instance], set[ReplicaId]] = defaultdict(set)
        self._decided: dict[_Question, _Answer] = {}
        self._owner: dict[tuple[GroupId, Timestamp], MessageId] = {}
        self._passed: dict[tuple[GroupId, MessageId], Timestamp] = defaultdict(lambda: NO_TIMESTAMP)
        self._initial: dict[tuple[ReplicaId, Ballot], list[LocalTimestamp]] = {}
        """The values that a member held when it joined a ballot."""
        self._delivered: dict[GroupId, Timestamp] = defaultdict(lambda: NO_TIMESTAMP)
        """The highest global timestamp that any replica of the group has delivered."""

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Record proposals and votes; check what leaders report as decided."""
        if isinstance(message, Phase2a):
            for row in zip(*message.local, strict=True):
                self._propose(message.ballot, (row[0], NO_TIMESTAMP), row)
            for instance in zip(*message.clocks, strict=True):
                self._propose(message.ballot, instance, None)
        elif isinstance(message, Phase2b):
            for instance in _instances(message):
                self._vote(host, message.ballot, instance)
        elif isinstance(message, NewStateAck):
            for row in self._initial.get((host.me, message.ballot), ()):
                self._propose(message.ballot, (row[0], NO_TIMESTAMP), row)
                self._vote(host, message.ballot, (row[0], NO_TIMESTAMP))
        elif isinstance(message, Propose):
            for mid, local_ts, decided in zip(message.mids, message.local_ts, message.decided, strict=True):
                answer = self._decided.get((message.group, (mid, NO_TIMESTAMP)))
                if decided and (answer is None or answer[-1] != local_ts):
                    raise Violation(
                        "Decision", f"{host.me} reports {format_timestamp(local_ts)} as decided for {mid}"
                    )

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """Record a process that joins a ballot: it votes for all that the ballot begins with."""
        self._joined(host)

    def _joined(self, host: Host) -> None:
        replica: Any = host.replica
        key = (host.me, replica.cballot)
        if key not in self._initial:
            self._initial[key] = [
                (entry.mid, entry.dest, entry.payload, entry.ack_below, entry.local_ts)
                for entry in replica.entries.values()
                if entry.phase is Phase.ACCEPTED
            ]

    def installed(self, host: Host) -> None:
        """Record a candidate that was waiting for a snapshot and joins its ballot."""
        self._joined(host)

    def _propose(self, ballot: Ballot, instance: Instance, answer: _Answer) -> None:
        if self._proposed.setdefault((ballot, instance), answer) != answer:
            raise Violation("Consensus", f"two values in {ballot} for {instance[0]}")

    def _vote(self, host: Host, ballot: Ballot, instance: Instance) -> None:
        key = (ballot, instance)
        mid, at = instance
        answer = self._proposed.get(key)
        if answer is None and not at:
            # A group of one never sends a 2a; its own vote is on its disk.
            entry = host.durable.entry(mid)
            if entry is None:
                return
            answer = (*entry[:4], entry.local_ts)
        self._proposed[key] = answer
        self._votes[key].add(host.me)
        if self._topology.configuration(host.me.group, ballot.configuration).has_quorum(self._votes[key]):
            self._decide(host.me.group, instance, answer)

    def _decide(self, group: GroupId, instance: Instance, answer: _Answer) -> None:
        question = (group, instance)
        mid, at = instance
        if question in self._decided:
            if self._decided[question] != answer:
                raise Violation("Consensus", f"group {group} decided twice about {mid}")
            return
        self._decided[question] = answer
        if answer is None:
            self._passed[group, mid] = max(self._passed[group, mid], at)
            return
        local_ts = answer[-1]
        if self._owner.setdefault((group, local_ts), mid) != mid:
            other = self._owner[group, local_ts]
            raise Violation("Uniqueness", f"{mid} and {other} share {format_timestamp(local_ts)}")
        if local_ts <= self._delivered[group]:
            raise Violation(
                "Clock",
                f"group {group} gave {mid} the local timestamp {format_timestamp(local_ts)}, "
                f"but had delivered {format_timestamp(self._delivered[group])}",
            )

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """Check that the global timestamp is the maximum of the decided ones, and below the clock."""
        group, mid, global_ts = host.me.group, delivery.mid, delivery.global_ts
        highest = NO_TIMESTAMP
        for destination in delivery.dest:
            decided = self._decided.get((destination, (mid, NO_TIMESTAMP)))
            if decided is None:
                raise Violation("Decision", f"{host.me} delivered {mid}: undecided in group {destination}")
            highest = max(highest, decided[-1])
        if highest != global_ts:
            found, decision = format_timestamp(global_ts), format_timestamp(highest)
            raise Violation("Decision", f"{host.me} delivered {mid} at {found}, but {decision} was decided")
        if len(delivery.dest) > 1 and self._passed[group, mid] < global_ts:
            raise Violation("Clock", f"{host.me} delivered {mid}: its group's clock may be below")
        self._delivered[group] = max(self._delivered[group], global_ts)


class Promises(Checker):
    """Ballots only rise, and promises and votes survive crashes for as long as they matter."""

    def __init__(self) -> None:
        self._before: dict[ReplicaId, tuple[Ballot, Ballot, int]] = {}
        self._revealed: dict[ReplicaId, Ballot] = defaultdict(lambda: NO_BALLOT)
        self._voted: dict[ReplicaId, dict[Instance, Ballot]] = defaultdict(dict)
        self._clock: dict[ReplicaId, int] = defaultdict(int)
        """The clock that each process has voted for."""
        self._lent: dict[ReplicaId, int] = defaultdict(int)
        """The clock that each process has voted for as a follower. A leader's own votes need not be in its
        promises: it knows their outcome, or no process relies on them."""

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """Remember what this process has promised to others."""
        if isinstance(message, (NewLeader, NewLeaderAck, NewState, NewStateAck, Phase2b)):
            self._revealed[host.me] = max(self._revealed[host.me], message.ballot)
        if isinstance(message, NewLeaderAck) and message.clock < self._lent[host.me]:
            raise Violation(
                "Clock", f"{host.me} promises a clock of {message.clock}, but voted for {self._lent[host.me]}"
            )
        if isinstance(message, Phase2b):
            highest = max(map(time_of, message.clocks.global_ts), default=0)
            if message.ballot.leader != host.me:
                self._lent[host.me] = max(self._lent[host.me], highest)
            self._voted[host.me].update(dict.fromkeys(_instances(message), message.ballot))
            self._clock[host.me] = max(self._clock[host.me], highest)

    def restarted(self, host: Host) -> None:
        """Check that promises have survived the crash."""
        me, durable = host.me, host.durable
        if host.rolled_back:  # `RolledBack` checks that it makes no use of what it has
            self._before.pop(me, None)
            return
        if durable.ballot < self._revealed[me]:
            raise Violation(
                "Durability", f"{me} promised {self._revealed[me]} and restarted with {durable.ballot}"
            )
        delivered = host.commit.checkpoint.delivered
        for (mid, at), ballot in self._voted[me].items():
            kept = mid in durable.latest or mid in delivered
            if at == NO_TIMESTAMP and ballot == durable.cballot and not kept:
                raise Violation("Durability", f"{me} voted on {mid} in {ballot} and forgot it")
        replica: Any = host.replica
        if replica.clock < self._clock[me]:
            raise Violation("Durability", f"{me} voted for a clock of {self._clock[me]} and forgot it")
        self._voted[me] = {i: b for i, b in self._voted[me].items() if b >= durable.cballot}
        self._before.pop(me, None)

    def stepping(self, host: Host, sender: Process, message: Message) -> None:
        """Record the state before the step."""
        replica: Any = host.replica
        self._before[host.me] = (replica.ballot, replica.cballot, replica.clock)

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """Check that nothing has fallen."""
        replica: Any = host.replica
        ballot, cballot, clock = self._before[host.me]
        if not (ballot <= replica.ballot and cballot <= replica.cballot <= replica.ballot):
            raise Violation(
                "Ballots", f"{host.me} went from {cballot}/{ballot} to {replica.cballot}/{replica.ballot}"
            )
        if replica.clock < clock:
            raise Violation("Clock", f"the clock of {host.me} fell from {clock} to {replica.clock}")
