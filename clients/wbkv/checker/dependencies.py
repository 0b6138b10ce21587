"""Dependencies as columns: which transaction must come before which, and by which key and values.

Where many transactions precede many others for one reason, a *joint* stands between them: each of the first
has an edge to it, and it has one to each of the others. So the graph stays linear in the history. A path
through a joint is one dependency, of the kind of its first half.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

WW, WR, RW, PROCESS, REALTIME, REVISION, JOINT = range(7)
KIND_NAMES = ("ww", "wr", "rw", "process", "realtime", "revision", "joint")

BY_DATA, BY_PROCESS, BY_TIME, BY_REVISION = range(4)
"""What a dependency rests on: on values alone, on one process doing one thing at a time, on real time, or on
the revisions that the store has given out."""


class Predecessor(NamedTuple):
    """A transaction that precedes: the kind of dependency, and the value that it wrote or read."""

    kind: int
    transaction: int
    value: int


class Successor(NamedTuple):
    """A transaction that follows, and the value that it wrote."""

    transaction: int
    value: int


class Dependencies:
    """Edges between transactions 0 to n-1, and joints from n on."""

    def __init__(self, transactions: int) -> None:
        self.transactions = transactions
        self.nodes = transactions
        self.source = array("q")
        self.target = array("q")
        self.kind = array("b")
        self.basis = array("b")
        self.key = array("i")
        self.before = array("i")
        self.after = array("i")

    def add(
        self, kind: int, source: int, target: int, key: int, before: int, after: int, basis: int = BY_DATA
    ) -> None:
        """Add an edge, unless it leads from a transaction to itself."""
        if source == target:
            return
        self.source.append(source)
        self.target.append(target)
        self.kind.append(kind)
        self.basis.append(basis)
        self.key.append(key)
        self.before.append(before)
        self.after.append(after)

    def join(
        self,
        predecessors: Sequence[Predecessor],
        successors: Sequence[Successor],
        key: int,
        basis: int = BY_DATA,
    ) -> None:
        """Add edges from all predecessors to all successors. No transaction may be on both sides, unless
        one side has a single one.
        """
        if len(predecessors) <= 1 or len(successors) <= 1:
            for kind, source, before in predecessors:
                for target, after in successors:
                    self.add(kind, source, target, key, before, after, basis)
            return
        joint = self.nodes
        self.nodes += 1
        for kind, source, before in predecessors:
            self.add(kind, source, joint, key, before, -1, basis)
        for target, after in successors:
            self.add(JOINT, joint, target, key, -1, after, basis)
