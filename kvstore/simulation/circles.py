"""Circles in the order of conflicts and of real time: there is none if a history is strictly serializable."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from multicast.sim.checkers import Violation


@dataclass(slots=True)
class Node:
    """A transaction or a read, in the order of conflicts and of real time."""

    what: str
    invoked: float
    returned: float | None
    reads: dict[bytes, int] = field(default_factory=dict)
    """Keys, and the changes that were seen of them; as of a position, where a result does not say which."""
    writes: tuple[bytes, ...] = ()
    position: int = 0


def find_circle(nodes: Sequence[Node]) -> None:
    """Raise a `Violation` if there is a circle.

    Real time is a line of points: a call that returns comes before the next point on it, and a call that
    begins comes after the last, so that there are as many edges as nodes.
    """
    after: dict[int, list[int]] = defaultdict(list)
    count = len(nodes)
    points = sorted(
        [(node.invoked, 0, i) for i, node in enumerate(nodes)]
        + [(node.returned, 1, i) for i, node in enumerate(nodes) if node.returned is not None]
    )
    for at, (_, returns, i) in enumerate(points):
        if at:
            after[count + at - 1].append(count + at)
        if returns:
            after[i].append(count + at)
        else:
            after[count + at].append(i)
    for first, second in _conflicts(nodes):
        after[first].append(second)
    before = [0] * (count + len(points))
    for followers in after.values():
        for each in followers:
            before[each] += 1
    free = [i for i, each in enumerate(before) if not each]
    done = 0
    while free:
        done += 1
        for each in after[free.pop()]:
            before[each] -= 1
            if not before[each]:
                free.append(each)
    if done < len(before):
        left = {i for i, each in enumerate(before) if each}
        circle = [nodes[i].what for i in _circle(after, left) if i < count]
        raise Violation("Strictness", "a circle: " + "; then ".join(circle))


def _circle(after: Mapping[int, Sequence[int]], left: set[int]) -> list[int]:
    """Return a circle among the nodes left: each has a predecessor, so walk back until one repeats."""
    back = {each: i for i in sorted(left) for each in after[i] if each in left}
    path, at = [], min(left)
    while at not in path:
        path.append(at)
        at = back[at]
    return path[path.index(at) :][::-1]


def _conflicts(nodes: Sequence[Node]) -> Iterator[tuple[int, int]]:
    """Edges of conflicts, key by key: a writer, those that saw its change, and the next writer."""
    writers: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for i, node in enumerate(nodes):
        for key in node.writes:
            writers[key].append((node.position, i))
    for found in writers.values():
        found.sort()
        for (_, first), (_, second) in pairwise(found):
            yield first, second
    for i, node in enumerate(nodes):
        for key, seen in node.reads.items():
            found = writers.get(key, [])
            at = bisect_right(found, (seen, 1 << 60))
            if at and found[at - 1][1] != i:
                yield found[at - 1][1], i
            while at < len(found) and found[at][1] == i:
                at += 1
            if at < len(found):
                yield i, found[at][1]
