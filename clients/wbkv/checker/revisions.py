"""The order that the store claims: revisions must be unique, and their order must explain what was seen.

Nothing is asked of revisions of transactions that share no key: a store may give the later of two a lower
one, if the history does not tell.
"""

from __future__ import annotations

import numpy as np

from wbkv.checker.cycles import Cycle, Edge, Layers
from wbkv.checker.dependencies import REALTIME, REVISION
from wbkv.checker.graph import Further, Graph, Integers, Mask
from wbkv.checker.history import NEVER, NOTHING, HistoryColumns


def revised(history: HistoryColumns, present: Mask) -> Integers:
    """Return the transactions that wrote and have a revision, in the order of revisions."""
    revisions = np.array(history.revision, dtype=np.int64)
    writers = np.array(history.writer, dtype=np.int64)
    wrote: Mask = np.zeros_like(present)
    wrote[writers[writers != NOTHING]] = True
    order = np.flatnonzero(present & wrote & (revisions != NOTHING))
    return order[np.argsort(revisions[order], kind="stable")]


def repeated(history: HistoryColumns, order: Integers) -> list[tuple[int, int]]:
    """Return pairs of transactions with the same revision."""
    revisions = np.array(history.revision, dtype=np.int64)[order]
    again = np.flatnonzero(np.diff(revisions) == 0)
    return list(zip(order[again].tolist(), order[again + 1].tolist(), strict=True))


def inverted(history: HistoryColumns, order: Integers) -> list[Cycle]:
    """Find, for each key, a write that ended before a write of a lower revision began."""
    writers = np.array(history.writer, dtype=np.int64)
    position = np.full(len(history), NOTHING)
    position[order] = np.arange(len(order))
    values = np.flatnonzero((writers != NOTHING) & (position[writers] != NOTHING))
    keys = np.array(history.value_key, dtype=np.int64)
    values = values[np.lexsort((position[writers[values]], keys[values]))]
    found: list[Cycle] = []
    key, first_done, known = NOTHING, NOTHING, False
    # From the highest revision of a key down: the first to end of those above.
    for value in values[::-1].tolist():
        writer = history.writer[value]
        if history.value_key[value] != key:
            key, first_done, known = history.value_key[value], writer, False
        elif not known and history.end[first_done] < history.start[writer]:
            known = True
            found.append(Cycle((Edge(first_done, writer, REALTIME), Edge(writer, first_done, REVISION))))
        elif history.end[writer] < history.end[first_done]:
            first_done = writer
    return found


class Claimed:
    """The order of revisions, which dependencies may contradict."""

    def __init__(self, history: HistoryColumns, order: Integers) -> None:
        revisions = np.array(history.revision, dtype=np.int64)
        self._order = order
        self._value, self._limit = np.full(len(history), NEVER), np.full(len(history), -NEVER)
        self._value[order] = self._limit[order] = revisions[order]

    def order(self, graph: Graph, present: Mask) -> Further:
        """Return edges from each transaction to the next."""
        order = self._order[present[self._order]]
        return order[:-1], order[1:]

    def against(self, graph: Graph, knot: Integers) -> list[Cycle]:
        """Find cycles of dependencies and one step of the order."""
        return Layers(graph, knot, self._value, self._limit).strongest(REVISION)
