"""Predictions from delays alone: the latency of a lone client, from the one-way delays between regions.

Every group has a replica in each region, and its leader in one of them. Processes take no time, messages do
not meet. The three protocols are written down as in docs/protocol.md, each as the times at which messages
arrive; a process's messages to itself take no time, others what the table says.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

REPLICAS: Final = 3
QUORUM: Final = 2


@dataclass(frozen=True, slots=True)
class Area:
    """One-way delays between regions, in any unit."""

    delays: Sequence[Sequence[float]]
    together: int | None = None
    """The region that has all leaders. If None, the leader of group g is in region g, counted around."""

    @classmethod
    def of_round_trips(cls, first_second: float, second_third: float, first_third: float) -> Area:
        """Three regions, with no delay within a region."""
        a, b, c = first_second / 2, second_third / 2, first_third / 2
        return cls(((0, a, c), (a, 0, b), (c, b, 0)))

    def home(self, group: int) -> int:
        """The region of the group's leader."""
        return group % REPLICAS if self.together is None else self.together

    def leader(self, group: int) -> tuple[int, int]:
        """The replica that leads."""
        return group, self.home(group)

    def between(self, sender: tuple[int, int], receiver: tuple[int, int]) -> float:
        """The delay from one replica, (group, region), to another."""
        return 0.0 if sender == receiver else self.delays[sender[1]][receiver[1]]

    def round_trip(self, leader: tuple[int, int]) -> float:
        """The time until a quorum of the group has voted: the leader and the nearest others."""
        group, home = leader
        others = (
            self.between(leader, (group, region)) + self.between((group, region), leader)
            for region in range(REPLICAS)
            if region != home
        )
        return sorted(others)[QUORUM - 2]


Commits = Callable[[Area, Mapping[int, float]], dict[int, float]]
"""When each group's leader commits, from when it has the message."""


def whitebox(area: Area, arrives: Mapping[int, float]) -> dict[int, float]:
    """ACCEPT to all replicas of all groups; acknowledgements of a quorum of each to every leader."""
    replicas = [(group, region) for group in arrives for region in range(REPLICAS)]
    accepts = {
        replica: max(at + area.between(area.leader(group), replica) for group, at in arrives.items())
        for replica in replicas
    }

    def hears(leader: tuple[int, int], group: int) -> float:
        """When the leader has acknowledgements of a quorum of a group, of its own with itself among them."""
        acks = {
            (group, region): accepts[group, region] + area.between((group, region), leader)
            for region in range(REPLICAS)
        }
        own = acks.pop(leader, None)
        if own is not None:
            return max(own, sorted(acks.values())[QUORUM - 2])
        return sorted(acks.values())[QUORUM - 1]

    return {home: max(hears(area.leader(home), group) for group in arrives) for home in arrives}


def ftskeen(area: Area, arrives: Mapping[int, float]) -> dict[int, float]:
    """Consensus on the local timestamp, PROPOSE, consensus on the clock; alone, the first is all."""
    decided = {group: at + area.round_trip(area.leader(group)) for group, at in arrives.items()}
    if len(arrives) == 1:
        return decided
    proposed = _exchanged(area, decided)
    return {group: at + area.round_trip(area.leader(group)) for group, at in proposed.items()}


def fastcast(area: Area, arrives: Mapping[int, float]) -> dict[int, float]:
    """PROPOSE at once, and again when the local timestamp is decided; the clock's consensus meanwhile."""
    decided = {group: at + area.round_trip(area.leader(group)) for group, at in arrives.items()}
    if len(arrives) == 1:
        return decided
    confirmed = _exchanged(area, decided)
    early = _exchanged(area, arrives)
    return {
        group: max(confirmed[group], early[group] + area.round_trip(area.leader(group))) for group in arrives
    }


def _exchanged(area: Area, said: Mapping[int, float]) -> dict[int, float]:
    """When each leader has received the messages of all the others."""
    return {
        home: max(at + area.between(area.leader(group), area.leader(home)) for group, at in said.items())
        for home in said
    }


PROTOCOLS: Final[Mapping[str, Commits]] = {"whitebox": whitebox, "fastcast": fastcast, "ftskeen": ftskeen}


def commits(protocol: str, area: Area, arrives: Mapping[int, float]) -> dict[int, float]:
    """When each group's leader commits a message that conflicts with none."""
    return PROTOCOLS[protocol](area, arrives)


def clock_updates(protocol: str, area: Area, arrives: Mapping[int, float]) -> dict[int, float]:
    """When each leader's clock has passed the global timestamp: what comes later goes after the message.

    White-box leaders pass it when they have all ACCEPTs, the others when their groups have decided so.
    """
    if len(arrives) == 1:
        return dict(arrives)
    if protocol == "ftskeen":
        return ftskeen(area, arrives)
    early = _exchanged(area, arrives)
    if protocol == "whitebox":
        return early
    return {group: at + area.round_trip(area.leader(group)) for group, at in early.items()}


def latency(protocol: str, area: Area, client: int, dest: Sequence[int]) -> float:
    """The latency of a message from a client in a region to these groups, until the last answer."""
    arrives = {group: area.delays[client][area.home(group)] for group in dest}
    done = commits(protocol, area, arrives)
    return max(at + area.delays[area.home(group)][client] for group, at in done.items())


def mean_latency(protocol: str, area: Area, groups: int, dest: int) -> float:
    """The mean latency over all sets of `dest` destinations and clients in all regions."""
    return statistics.fmean(
        latency(protocol, area, client, chosen)
        for chosen in itertools.combinations(range(groups), dest)
        for client in range(REPLICAS)
    )
