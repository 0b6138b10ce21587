"""The time line of one call: what each process does, and when. Of many calls, the most typical one is shown.

Processes are named by what they do for the call: `gateway` is the node that the client talks to, which leads
the first partition; `leader` is another node that answers the gateway; others are followers.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmarks.profiling.events import CLIENT

Event = Sequence[float | str]
"""A time, and what happened."""

QUIET: Final = frozenset({"Reach", "Heartbeat", ""})
"""Messages that belong to no call."""
ARRIVES: Final = "call arrives"
TOGETHER_MS: Final = 0.001
"""Messages of a frame are noted together."""
MISSING_MS: Final = 1.0
"""How far a call is from the medians because of an event that it does not have."""

Key = tuple[str, str, int]
"""An event: process, name, and how often that name came before in the same process and call."""

_FRAME: Final = re.compile(r"(from|to) (\S+): (.*)")


def calls_of(client: Sequence[Event]) -> list[tuple[float, float]]:
    """Return begin and end of each call of a client that makes one at a time."""
    found = []
    for (begun, first), (ended, second) in itertools.pairwise(client):
        if (first, second) == (CLIENT.begin, CLIENT.end):
            found.append((float(begun), float(ended)))
    return found


def split(name: str) -> Iterator[str]:
    """Yield an event for each message of a frame; none for messages that belong to no call."""
    frame = _FRAME.fullmatch(name)
    if frame is None:
        yield name
        return
    way, peer, kinds = frame.groups()
    for each in kinds.split(", "):
        count, _, kind = each.rpartition(" ")
        if kind not in QUIET:
            yield from [f"{way} {peer}: {kind}"] * int(count or 1)


def without_idle_turns(events: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Leave out turns in which nothing happened."""
    kept: list[tuple[float, str]] = []
    for at, name in events:
        if name == "turn ends" and kept and kept[-1][1] == "turn begins":
            kept.pop()
        else:
            kept.append((at, name))
    return kept


def roles_of(events: Mapping[str, Sequence[tuple[float, str]]]) -> dict[str, str] | None:
    """Return what each node does for a call; None if that is not clear."""
    gateways = [node for node, its in events.items() if any(name == ARRIVES for _, name in its)]
    if len(gateways) != 1:
        return None
    gateway = gateways[0]
    answer = f"to {gateway}: Results"
    leaders = [node for node, its in events.items() if any(name == answer for _, name in its)]
    if len(leaders) > 1:
        return None
    others = sorted(events.keys() - {gateway, *leaders})
    named = [f"follower {n + 1}" for n in range(len(others))] if len(others) > 1 else ["follower"]
    return {gateway: "gateway", **dict.fromkeys(leaders, "leader"), **dict(zip(others, named, strict=False))}


class TimeLine:
    """Events of many calls: each has a process, a name, and a number if the name comes more than once."""

    def __init__(self) -> None:
        self.calls: list[dict[Key, float]] = []
        """By event: when it happened, in milliseconds since the call began."""

    def add(self, begun: float, ended: float, nodes: Mapping[str, Sequence[tuple[float, str]]]) -> None:
        """Add a call, and what nodes did from its begin to its end."""
        roles = roles_of(nodes)
        if roles is None:
            return
        found: dict[Key, float] = {("client", CLIENT.begin, 0): 0.0}
        for node, events in nodes.items():
            seen: Counter[str] = Counter()
            for at, name in without_idle_turns(events):
                told = _FRAME.sub(lambda frame: _renamed(frame, roles), name)
                found[roles[node], told, seen[told]] = 1000 * (at - begun)
                seen[told] += 1
        found["client", CLIENT.end, 0] = 1000 * (ended - begun)
        self.calls.append(found)

    def medians(self) -> dict[Key, float]:
        """Return the medians of events that happen in at least half of the calls."""
        found: defaultdict[Key, list[float]] = defaultdict(list)
        for call in self.calls:
            for key, at_ms in call.items():
                found[key].append(at_ms)
        return {key: statistics.median(at) for key, at in found.items() if 2 * len(at) >= len(self.calls)}

    def typical(self) -> list[tuple[float, str, str]]:
        """Return one call, in order: that whose events are nearest to the medians. Turns do not count: which
        of them is the second or the third differs from call to call.
        """
        medians = {key: at for key, at in self.medians().items() if not key[1].startswith("turn ")}

        def distance(call: Mapping[Key, float]) -> float:
            return sum(abs(call[key] - at) if key in call else MISSING_MS for key, at in medians.items())

        call = min(self.calls, key=distance)
        return sorted((at_ms, process, name) for (process, name, _), at_ms in call.items())


def _renamed(frame: re.Match[str], roles: Mapping[str, str]) -> str:
    way, peer, kinds = frame.groups()
    return f"{way} {roles.get(peer, peer)}: {kinds}"


def together(events: Sequence[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Join the messages of a frame: events of a process with the same peer at about the same time."""
    joined: list[tuple[float, str, str]] = []
    last: dict[tuple[str, str, str], int] = {}
    for at_ms, process, name in events:
        if frame := _FRAME.fullmatch(name):
            key = process, frame[1], frame[2]
            index = last.get(key)
            if index is not None and at_ms - joined[index][0] <= TOGETHER_MS:
                joined[index] = (*joined[index][:2], f"{joined[index][2]}, {frame[3]}")
                continue
            last[key] = len(joined)
        joined.append((at_ms, process, name))
    return joined


def time_line(nodes: Mapping[str, Sequence[Event]], client: Sequence[Event]) -> TimeLine:
    """Return the time line of all calls of a client that makes one at a time."""
    found = TimeLine()
    named = {
        node: [(float(at), each) for at, name in events for each in split(str(name))]
        for node, events in nodes.items()
    }
    starts = dict.fromkeys(named, 0)
    for begun, ended in calls_of(client):
        during: dict[str, list[tuple[float, str]]] = {}
        for node, events in named.items():
            index = starts[node]
            while index < len(events) and events[index][0] < begun:
                index += 1
            starts[node] = index
            while index < len(events) and events[index][0] <= ended:
                index += 1
            during[node] = events[starts[node] : index]
        found.add(begun, ended, during)
    return found
