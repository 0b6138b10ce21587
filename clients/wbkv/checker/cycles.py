"""Find the shortest cycles among those that are the strongest evidence.

There are two searches. A component whose edges are all in the graph is searched breadth first from each of
its transactions. Where a cycle needs one step of an *order* (real time, revisions) in addition to an acyclic
graph, the search goes in layers over all transactions at once. One such step is enough: if a cycle has two,
from a to b and from c to d, then an interval order also has a before d or c before b, and either makes the
cycle shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from wbkv.checker.dependencies import JOINT, PROCESS, RW, WR, WW
from wbkv.checker.graph import Graph, Integers, Mask, cyclic
from wbkv.checker.history import NEVER, NOTHING

WRITES, FLOW, ONE_MISSED, MISSED = range(4)
"""The badness of a path: it has only ww (and orders); some wr; one rw; or several rw."""

VISITS = 500_000
"""Dependencies searched in one component; beyond that, a better cycle may exist than the one reported."""
FURTHER = 4
"""How many steps longer than the shortest a less bad cycle may be to be searched."""
TRIED = 64
"""How many of the paths that an order closes in one layer are followed."""


class Edge(NamedTuple):
    """A dependency between two transactions."""

    source: int
    target: int
    kind: int
    key: int = NOTHING
    before: int = NOTHING
    after: int = NOTHING
    basis: int = 0


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle of dependencies, and how many transactions begin a similar one."""

    edges: tuple[Edge, ...]
    alike: int = 1


def worse(kind: int, path: int) -> int:
    """Return the badness of a path with one more dependency."""
    if kind == RW:
        return MISSED if path >= ONE_MISSED else ONE_MISSED
    if kind == WR:
        return max(path, FLOW)
    return path


def name(edges: tuple[Edge, ...]) -> str:
    """Return the name of a cycle by its dependencies, without their basis."""
    missed = [edge.kind == RW for edge in edges]
    if sum(missed) == 0:
        return "G1c" if any(edge.kind == WR for edge in edges) else "G0"
    if sum(missed) == 1:
        return "G-single"
    if not any(one and other for one, other in zip(missed, missed[1:] + missed[:1], strict=True)):
        return "G-nonadjacent"
    return "G2-item"


class Edges:
    """The dependencies of a part of the graph, by transaction."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._rows: dict[int, list[int]] = {}
        for row, source in enumerate(graph.source.tolist()):
            self._rows.setdefault(source, []).append(row)

    def of(self, transaction: int) -> Iterator[Edge]:
        """Yield the dependencies on a transaction: what must come after it."""
        graph = self._graph
        for row in self._rows.get(transaction, ()):
            kind, target = int(graph.kind[row]), int(graph.target[row])
            key, before, basis = int(graph.key[row]), int(graph.before[row]), int(graph.basis[row])
            if target < graph.transactions:
                yield Edge(transaction, target, kind, key, before, int(graph.after[row]), basis)
                continue
            for exit_row in self._rows.get(target, ()):
                after = int(graph.after[exit_row])
                yield Edge(transaction, int(graph.target[exit_row]), kind, key, before, after, basis)


def strongest(graph: Graph, component: Integers) -> list[Cycle]:
    """Find a shortest cycle of the strongest name in a component; `graph` has its edges."""
    edges = Edges(graph)
    known = {transaction: list(edges.of(transaction)) for transaction in component.tolist()}
    search = _Search(known, _least_badness(graph))
    for begin in known:
        search.begin(begin)
        if search.is_over():
            break
    return [Cycle(search.best)]


def _least_badness(graph: Graph) -> int:
    """Return the least badness of a cycle in the graph."""
    if cyclic(graph.select((graph.kind != RW) & (graph.kind != WR))):
        return WRITES
    return FLOW if cyclic(graph.select(graph.kind != RW)) else ONE_MISSED


class _Search:
    """A breadth-first search from each transaction, for less bad and then for shorter cycles."""

    def __init__(self, known: dict[int, list[Edge]], floor: int) -> None:
        self._known = known
        self._floor = floor
        self._visits = 0
        self._badness = MISSED
        self.best: tuple[Edge, ...] = ()

    def is_over(self) -> bool:
        """Return whether no better cycle exists, or the search has become too expensive."""
        return self._visits > VISITS or (self._badness == self._floor and len(self.best) == 2)

    def begin(self, begin: int) -> None:
        """Find paths that lead back to a transaction."""
        reached: dict[tuple[int, int], tuple[tuple[int, int], Edge] | None] = {(begin, WRITES): None}
        layer = [(begin, WRITES)]
        length = 0
        while layer and not (self._badness == self._floor and 0 < len(self.best) <= length + 1):
            length += 1
            following: list[tuple[int, int]] = []
            for state in layer:
                self._visits += len(self._known[state[0]])
                for edge in self._known[state[0]]:
                    path = worse(edge.kind, state[1])
                    if path > self._badness:
                        continue
                    if edge.target == begin:
                        self._close(reached, state, edge, path)
                    elif (edge.target, path) not in reached:
                        reached[edge.target, path] = (state, edge)
                        following.append((edge.target, path))
            layer = following

    def _close(
        self,
        reached: dict[tuple[int, int], tuple[tuple[int, int], Edge] | None],
        state: tuple[int, int],
        edge: Edge,
        badness: int,
    ) -> None:
        cycle = [edge]
        back = reached[state]
        while back is not None:
            cycle.append(back[1])
            back = reached[back[0]]
        # A cycle with a transaction twice is never the best: without the detour it is shorter, and no worse.
        if not self.best or (badness, len(cycle)) < (self._badness, len(self.best)):
            self._badness, self.best = badness, tuple(reversed(cycle))


class Layers:
    """Paths of equal length, from all transactions of a component at once.

    `layer[badness, x]` is the least `value` of a transaction at the end of a path from x. If it is below
    `limit` of x, the order leads from there back to x.
    """

    def __init__(self, graph: Graph, component: Integers, value: Integers, limit: Integers) -> None:
        self._nodes = np.unique(np.concatenate([component, graph.source, graph.target]))
        self._graph = graph
        self._edges = Edges(graph)
        is_transaction: Mask = self._nodes < graph.transactions
        transactions = self._nodes[is_transaction]
        self._limit = np.full(len(self._nodes), -NEVER)
        self._limit[is_transaction] = limit[transactions]
        self._source = np.searchsorted(self._nodes, graph.source)
        self._target = np.searchsorted(self._nodes, graph.target)
        first = np.full((4, len(self._nodes)), NEVER)
        first[WRITES, is_transaction] = value[transactions]
        self._layers = [self._through_joints(first)]

    def strongest(self, closing: int) -> list[Cycle]:
        """Find shortest cycles of the least badness, without common transactions; `closing` is the order."""
        found: dict[int, list[Cycle]] = {}
        deadline = len(self._nodes)
        while len(self._layers) <= deadline and WRITES not in found:
            layer = self._next()
            if (layer == NEVER).all():
                break
            self._layers.append(layer)
            for path in range(min(found, default=4)):
                if cycles := self._closed(path, closing):
                    found[path] = cycles
                    deadline = min(deadline, len(self._layers) - 1 + FURTHER)
                    break
        return found[min(found)]

    def _closed(self, path: int, closing: int) -> list[Cycle]:
        """Return the cycles that the order closes with paths of the last layer."""
        cycles: list[Cycle] = []
        on_one: set[int] = set()
        hits = np.flatnonzero(self._layers[-1][path] < self._limit)
        for hit in hits[:TRIED].tolist():
            edges = self._trace(hit, path)
            edges = (*edges, Edge(edges[-1].target, edges[0].source, closing))
            members = {edge.source for edge in edges}
            if on_one.isdisjoint(members):
                on_one |= members
                cycles.append(Cycle(edges))
        return [replace(cycle, alike=len(hits) - len(cycles) + 1) for cycle in cycles[:1]] + cycles[1:]

    def _next(self) -> Integers:
        last = self._layers[-1]
        layer = np.full_like(last, NEVER)
        for path in range(4):
            if (last[path] == NEVER).all():
                continue
            for kind in (WW, WR, RW, PROCESS):
                rows = self._graph.kind == kind
                into = layer[worse(kind, path)]
                np.minimum.at(into, self._source[rows], last[path][self._target[rows]])
        return self._through_joints(layer)

    def _through_joints(self, layer: Integers) -> Integers:
        rows = self._graph.kind == JOINT
        for path in layer:
            np.minimum.at(path, self._source[rows], path[self._target[rows]])
        return layer

    def _trace(self, index: int, path: int) -> tuple[Edge, ...]:
        """Follow a path of the last layer back through the layers before it."""
        edges: list[Edge] = []
        wanted = int(self._layers[-1][path, index])
        for layer in reversed(self._layers[:-1]):
            edge, path = self._step(int(self._nodes[index]), path, wanted, layer)
            edges.append(edge)
            index = int(np.searchsorted(self._nodes, edge.target))
        return tuple(edges)

    def _step(self, transaction: int, path: int, wanted: int, layer: Integers) -> tuple[Edge, int]:
        for edge in self._edges.of(transaction):
            index = int(np.searchsorted(self._nodes, edge.target))
            for before in range(4):
                if worse(edge.kind, before) == path and layer[before, index] == wanted:
                    return edge, before
        raise AssertionError("a layer has a value that no dependency explains")
