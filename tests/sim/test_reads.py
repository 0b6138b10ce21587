"""Reads at leaders: a quorum's word that it stands in the leader's ballot, and what goes wrong without it.

A read is a round of pings. What any leader of the group had answered before the read began must be delivered
at the leader that answers the read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import pytest

from multicast.client import Reply
from multicast.messages import AcceptAck, Deliver, Propose
from multicast.protocol import Protocol, Timing
from multicast.sim import Scenario, Simulation, Workload
from multicast.sim.checkers import Checker, Violation
from multicast.sim.host import Host
from multicast.skeen import FastCast, FtSkeen
from multicast.types import NO_TIMESTAMP, Ballot, GroupId, Process, ReplicaId, Timestamp, format_timestamp
from multicast.whitebox import WhiteBox
from tests.sim.schedules import G0, G1, Story

PROTOCOLS: Final[list[type[Protocol]]] = [WhiteBox, FtSkeen, FastCast]


@dataclass
class Read:
    """A read on its way, at one leader in one life of it."""

    replica: Any
    ballot: Ballot
    answered: Timestamp
    """The highest place that any leader of the group had answered before."""
    quorum: int
    standing: set[Process] = field(default_factory=set)


@dataclass
class Ping:
    """Do you stand in this ballot?"""

    read: int
    ballot: Ballot


@dataclass
class Pong:
    """Yes."""

    read: int


class Answers(Checker):
    """What leaders have answered."""

    def __init__(self) -> None:
        self.highest: dict[GroupId, Timestamp] = defaultdict(lambda: NO_TIMESTAMP)

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        if isinstance(message, Reply):
            self.highest[message.group] = max(self.highest[message.group], *message.positions)


class Reading(Simulation):
    """A run in which every replica that may answer reads is asked all the time."""

    every_s = 0.02
    done: ClassVar[Counter[bool]] = Counter()
    """Reads, by whether anything had been answered before them."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.answers = Answers()
        self.reads: list[Read] = []
        super().__init__(scenario, seed, [self.answers])

    def start(self) -> None:
        super().start()
        self.loop.at(self.every_s, self._read_everywhere)

    def _read_everywhere(self) -> None:
        for host in list(self.hosts.values()):
            if host.up and (ballot := self.reading_ballot(host.replica)) is not None:
                self._read(host, ballot)
        self.loop.at(self.loop.now + self.every_s, self._read_everywhere)

    def _read(self, host: Host, ballot: Ballot) -> None:
        assert host.replica is not None
        members, quorum = host.replica.readers
        self.reads.append(Read(host.replica, ballot, self.answers.highest[host.me.group], quorum))
        number = len(self.reads) - 1
        for member in members:
            if member != host.me:
                self.network.send(host.me, member, Ping(number, ballot))
        if self.is_in_ballot(host.replica, ballot):
            self._stands(number, host.me)

    def _receive(self, source: Process, target: ReplicaId, message: object) -> None:
        replica = self.hosts[target].replica
        if isinstance(message, Ping):
            if replica is not None and self.is_in_ballot(replica, message.ballot):
                self.network.send(target, source, Pong(message.read))
        elif isinstance(message, Pong):
            if replica is self.reads[message.read].replica:
                self._stands(message.read, source)
        else:
            super()._receive(source, target, message)

    def _stands(self, number: int, member: Process) -> None:
        read = self.reads[number]
        read.standing.add(member)
        if len(read.standing) == read.quorum:
            self._answer(read)

    def _answer(self, read: Read) -> None:
        self.done[read.answered > NO_TIMESTAMP] += 1
        if read.replica.last_delivered < read.answered:
            seen, before = map(format_timestamp, (read.replica.last_delivered, read.answered))
            what = f"{read.replica.me} in {read.ballot} answers as of {seen}"
            raise Violation("Read", f"{what}, but {before} was answered before")

    # What is sabotaged

    def reading_ballot(self, replica: Any) -> Ballot | None:
        return replica.reading_ballot  # type: ignore[no-any-return]  # it is what its type says

    def is_in_ballot(self, replica: Any, ballot: Ballot) -> bool:
        return replica.is_in_ballot(ballot)  # type: ignore[no-any-return]  # it is what its type says


class AsksNobody(Reading):
    """A leader answers because it thinks that it leads."""

    def _read(self, host: Host, ballot: Ballot) -> None:
        self._answer(Read(host.replica, ballot, self.answers.highest[host.me.group], 1))


class DoesNotDeliverFirst(Reading):
    """A new leader answers before it has delivered what it took over."""

    def reading_ballot(self, replica: Any) -> Ballot | None:
        return replica.cballot if replica.is_leader else None


class HasPromisedMore(Reading):
    """A member that has promised a higher ballot still says that it stands in the one it joined last."""

    def is_in_ballot(self, replica: Any, ballot: Ballot) -> bool:
        return replica.cballot == ballot  # type: ignore[no-any-return]  # it is what its type says


def scenario(protocol: type[Protocol], seed: int) -> Scenario:
    """Many nominations, and cuts or lost disks."""
    return Scenario(
        protocol, groups=2, faults=("all", "partition", "wipe")[seed % 3],
        replicas=5 if seed % 4 == 3 else 3,
        timing=Timing(heartbeat_s=0.05, election_s=0.2),
        workload=Workload(think_s=0.02, messages=300),
        clock="hybrid" if seed % 2 else "logical",
    )  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_reads_see_what_was_answered_before(protocol: type[Protocol]) -> None:
    Reading.done.clear()
    for seed in range(12):
        assert Reading(scenario(protocol, seed), seed).run().violation is None
    assert Reading.done[True] > 1000, "reads that could have gone wrong"


def reading_story(broken: type[Reading], protocol: type[Protocol], groups: int = 1) -> Any:
    """Groups of three, which elect no leader by themselves, and are read all the time."""
    timing = Timing(heartbeat_s=2.0, election_s=4.0, retry_s=5.0)
    return type("ReadingStory", (Story, broken), {})(protocol, groups, 3, timing)


def deposed(broken: type[Reading], protocol: type[Protocol]) -> str | None:
    """A leader is cut off, and does not know that another one leads, which has answered a client."""
    story = reading_story(broken, protocol)
    old, candidate, _ = story.topology.members(G0)
    assert story.leader(G0) == old
    story.lose(lambda source, target, _: old in (source, target))
    try:
        story.nominate(candidate, 0.05)
        story.hand(story.multicast(G0), candidate, 0.05)
        assert story.answers.highest[G0] > story.hosts[old].replica.last_delivered
        assert story.hosts[old].replica.reading_ballot is not None
        story.wait(0.05)
        story.finish()
    except Violation as violation:
        return str(violation)
    return None


def took_over(broken: type[Reading], protocol: type[Protocol]) -> str | None:
    """A leader has answered a client, and falls. The next one cannot deliver the same message yet: it needs
    the other group for that, or acknowledgements in its own ballot.
    """
    story = reading_story(broken, protocol, groups=2)
    old, candidate, _ = story.topology.members(G0)
    assert story.leader(G0) == old
    story.lose(lambda source, _, message: source == old and isinstance(message, Deliver))
    try:
        story.multicast(G0, G1, wait_s=0.05)

        def loses(source: Process, target: Process, message: object) -> bool:
            return old in (source, target) or isinstance(message, AcceptAck | Propose)

        story.lose(loses)
        story.nominate(candidate, 0.05)
        assert story.hosts[candidate].replica.is_leader
        assert story.answers.highest[G0] > story.hosts[candidate].replica.last_delivered
        story.wait(0.05)
        story.finish()
    except Violation as violation:
        return str(violation)
    return None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("broken", "story"), [(AsksNobody, deposed), (DoesNotDeliverFirst, took_over)])
def test_sabotaged_reads_are_caught(
    broken: type[Reading], story: Callable[..., str | None], protocol: type[Protocol]
) -> None:
    assert story(Reading, protocol) is None
    assert str(story(broken, protocol)).startswith("Read")


def promised_in_a_change(broken: type[Reading], protocol: type[Protocol]) -> str | None:
    """A member is replaced, and the next ballot's quorum holds its state without it and without the leader.

    All that the one that is replaced knows of that ballot is that it has promised it.
    """
    story = reading_story(broken, protocol)
    old, candidate, replaced = story.topology.members(G0)
    assert story.leader(G0) == old
    story.restart(new := story.successor(replaced, evict=True))
    changed = [story.hosts[old], story.hosts[candidate]]
    assert story.run_until(
        lambda: all(host.replica.membership.current.number == 1 for host in changed), story.loop.now + 0.1
    )
    story.lose(lambda s, t, m: old in (s, t) and replaced not in (s, t))
    try:
        story.hosts[candidate].nominate()
        story.wait(0.03)
        assert story.hosts[candidate].replica.is_in_ballot(story.hosts[new].replica.cballot)
        story.hand(story.multicast(G0), candidate)
        story.wait(0.05)
        assert story.answers.highest[G0] > story.hosts[old].replica.last_delivered
        assert story.hosts[old].replica.reading_ballot is not None
        story.wait(0.05)
        story.finish()
    except Violation as violation:
        return str(violation)
    return None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_has_promised_more_stands_in_no_ballot(protocol: type[Protocol]) -> None:
    assert promised_in_a_change(Reading, protocol) is None
    assert str(promised_in_a_change(HasPromisedMore, protocol)).startswith("Read")
