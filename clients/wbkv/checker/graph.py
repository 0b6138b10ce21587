"""The dependency graph as columns, real time as a chain of barriers, and strongly connected components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import rustworkx

from wbkv.checker.dependencies import BY_PROCESS, PROCESS, Dependencies
from wbkv.checker.history import NEVER, NOTHING, OK, HistoryColumns

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Further = tuple[Integers, Integers]
"""Further edges, as sources and targets, which may be additional nodes."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Edges as columns. Nodes below `transactions` are transactions, the others joints."""

    transactions: int
    nodes: int
    source: Integers
    target: Integers
    kind: Integers
    basis: Integers
    key: Integers
    before: Integers
    after: Integers
    start: Integers
    end: Integers
    """When transactions began, and when they ended."""

    @classmethod
    def of(cls, history: HistoryColumns, dependencies: Dependencies) -> Graph:
        """Return the graph of inferred dependencies."""

        def column(values: object) -> Integers:
            return np.array(values, dtype=np.int64)

        return cls(
            transactions=dependencies.transactions, nodes=dependencies.nodes,
            source=column(dependencies.source), target=column(dependencies.target),
            kind=column(dependencies.kind), basis=column(dependencies.basis), key=column(dependencies.key),
            before=column(dependencies.before), after=column(dependencies.after),
            start=column(history.start), end=column(history.end),
        )  # fmt: skip

    def select(self, edges: Mask) -> Graph:
        """Return the graph with only these edges."""
        return Graph(
            self.transactions, self.nodes, self.source[edges], self.target[edges], self.kind[edges],
            self.basis[edges], self.key[edges], self.before[edges], self.after[edges], self.start, self.end,
        )  # fmt: skip

    def within(self, transactions: Mask) -> Graph:
        """Return the graph without edges of other transactions; joints stay."""
        every = np.concatenate([transactions, np.ones(self.nodes - self.transactions, dtype=np.bool_)])
        return self.select(every[self.source] & every[self.target])


def add_process_order(history: HistoryColumns, happened: bytearray, to: Dependencies) -> None:
    """Add the order of each process, which begins a transaction after it knows the last one's outcome."""
    last: dict[int, int] = {}
    for transaction, process in enumerate(history.process):
        if not happened[transaction]:
            continue
        if process in last:
            to.add(PROCESS, last[process], transaction, NOTHING, NOTHING, NOTHING, BY_PROCESS)
        if history.status[transaction] == OK:
            last[process] = transaction


def barriers(graph: Graph, present: Mask) -> Further:
    """Return the order of real time as edges, in linear size.

    A barrier precedes each run of beginnings. A transaction that ended before it points to the barrier, each
    barrier points to the next one, and to the transactions that began after it.
    """
    members = np.flatnonzero(present)
    finished = members[graph.end[members] != NEVER]
    finished = finished[np.argsort(graph.end[finished], kind="stable")]
    behind = np.searchsorted(graph.end[finished], graph.start[members], side="left")
    """By member: how many transactions ended before it began."""
    used = np.unique(behind[behind > 0])
    if not len(used):
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing
    node = graph.nodes + np.arange(len(used))
    next_barrier = np.searchsorted(used, np.arange(1, len(finished) + 1), side="left")
    enters = next_barrier < len(used)
    leaves = behind > 0
    source = [finished[enters], node[:-1], node[np.searchsorted(used, behind[leaves])]]
    target = [node[next_barrier[enters]], node[1:], members[leaves]]
    return np.concatenate(source), np.concatenate(target)


def components(source: Integers, target: Integers) -> list[Integers]:
    """Return the strongly connected components of more than one node."""
    nodes, ends = np.unique(np.concatenate([source, target]), return_inverse=True)
    edges = zip(ends[: len(source)].tolist(), ends[len(source) :].tolist(), strict=True)
    graph = rustworkx.PyDiGraph[None, None]()
    graph.add_nodes_from([None] * len(nodes))
    graph.extend_from_edge_list(list(edges))
    found = rustworkx.strongly_connected_components(graph)
    return [nodes[sorted(members)] for members in found if len(members) > 1]


def cyclic(graph: Graph, more: Further | None = None) -> list[Integers]:
    """Return the transactions of each component that has a cycle, in the order of their beginning."""
    source, target = graph.source, graph.target
    if more is not None:
        source, target = np.concatenate([source, more[0]]), np.concatenate([target, more[1]])
    found = [component[component < graph.transactions] for component in components(source, target)]
    return sorted(found, key=lambda component: int(component[0]))


def inside(graph: Graph, component: Integers) -> Graph:
    """Return the edges within a component."""
    mask: Mask = np.zeros(graph.transactions, dtype=np.bool_)
    mask[component] = True
    return graph.within(mask)
