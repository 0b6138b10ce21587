"""Analyse a history: from dependencies to a verdict.

The strongest evidence is searched first: cycles by values alone, then those that need the order of processes,
then real time, then the store's revisions. Transactions on a cycle are excluded from the later searches, so
that a weaker name is only given to what a stronger one does not explain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from wbkv.checker.cycles import Cycle, Edge, Layers, name, strongest
from wbkv.checker.dependencies import BY_DATA, BY_PROCESS, BY_REVISION, BY_TIME, REALTIME, RW, Dependencies
from wbkv.checker.explain import Explainer
from wbkv.checker.graph import Further, Graph, Integers, Mask, add_process_order, barriers, cyclic, inside
from wbkv.checker.history import FAIL, OK, UNKNOWN, HistoryColumns, called
from wbkv.checker.model import Model, Recording
from wbkv.checker.revisions import Claimed, inverted, repeated, revised
from wbkv.checker.verdict import MODELS, NAMES, Anomaly, Verdict

SEARCHES, SEARCHED = 64, 500_000
"""The maximum number of searches for cycles of one basis, and of transactions searched in all. Strongly
connected components beyond that are only counted."""
REVISED = "revision-order"


def analyse(recording: Recording, wanted: str) -> Verdict:
    """Decide whether the history satisfies the model, as far as it can be decided."""
    if wanted not in MODELS:
        raise ValueError(f"unknown model {wanted!r}: it must be one of {', '.join(MODELS)}")
    history = recording.history
    observed = len(history.findings)
    try:
        return _Analysis(history, recording.model, wanted).verdict()
    finally:
        # Inferred facts belong to this verdict; the recording can be checked again.
        del history.findings[observed:]
        history.lost.clear()


class _Analysis:
    def __init__(self, history: HistoryColumns, model: Model, wanted: str) -> None:
        self._history = history
        self._model = model
        self._wanted = wanted
        self._strict = wanted == "strict-serializable"
        self._explainer = Explainer(history, model)
        self._lost: dict[tuple[int, int], tuple[int, ...]] = {}
        """By key and version: the transactions that replaced it, where several did."""
        self._anomalies: list[Anomaly] = []
        self._warnings = list(history.warnings)

    def verdict(self) -> Verdict:
        history = self._history
        dependencies = Dependencies(len(history))
        happened = self._model.infer(dependencies)
        if self._wanted != "serializable":
            add_process_order(history, happened, dependencies)
        graph = Graph.of(history, dependencies)
        if not self._strict:
            graph = graph.select(graph.basis != BY_TIME)
        present: Mask = np.array(happened, dtype=np.bool_)
        self._single()
        self._lost_updates()
        self._search(graph.select(graph.basis != BY_REVISION), present)
        self._revisions(graph, present)
        strength = {title: index for index, title in enumerate(NAMES)}
        self._anomalies.sort(key=lambda anomaly: (strength[anomaly.name], anomaly.transactions))
        concerned = {number for anomaly in self._anomalies for number in anomaly.transactions}
        counts = {
            "transactions": len(history), "ok": history.status.count(OK),
            "fail": history.status.count(FAIL), "unknown": history.status.count(UNKNOWN),
            "operations": len(history.op_kind), "processes": len(set(history.process)),
            "keys": len(history.keys),
        }  # fmt: skip
        return Verdict(
            self._wanted, self._model.name, counts, tuple(self._anomalies),
            {number: self._explainer.describe(number - 1) for number in sorted(concerned)},
            tuple(self._warnings),
        )  # fmt: skip

    def _single(self) -> None:
        for finding in self._history.findings:
            numbers = tuple(transaction + 1 for transaction in finding.transactions)
            self._anomalies.append(Anomaly(finding.name, f"{finding.text}.", numbers))

    def _lost_updates(self) -> None:
        history = self._history
        for key, version, transactions in history.lost:
            self._lost[key, version] = transactions
            one, other = transactions[:2]
            edges = [
                Edge(one, other, RW, key, version, history.writes(other, key)[-1]),
                Edge(other, one, RW, key, version, history.writes(one, key)[-1]),
            ]
            self._add("lost-update", Cycle(tuple(edges), len(transactions) - 1))

    def _add(self, title: str, cycle: Cycle) -> None:
        steps = tuple(self._explainer.step(edge) for edge in cycle.edges)
        text = "; ".join(step.text for step in steps)
        transactions = tuple(step.source for step in steps)
        self._anomalies.append(Anomaly(title, f"{text}.", transactions, steps, cycle.alike - 1))

    def _search(self, graph: Graph, present: Mask) -> None:
        """Find cycles, and remove transactions that may be on one from `present`."""
        knots = cyclic(graph, barriers(graph, present) if self._strict else None)
        if not knots:
            return
        rest: Mask = np.zeros_like(present)
        rest[np.concatenate(knots)] = True
        graph = graph.within(rest)
        for basis, suffix in ((BY_DATA, ""), (BY_PROCESS, "-process"), (BY_TIME, "-realtime")):
            part = graph.select(graph.basis <= basis).within(rest)
            knots = cyclic(part)
            self._unravel(part, knots, strongest, _no_order, suffix)
            _leave_out(knots, rest, present)
        if self._strict:
            part = graph.within(rest)
            knots = cyclic(part, barriers(part, rest))
            self._unravel(part, knots, _against_time, barriers, "-realtime")
            _leave_out(knots, rest, present)

    def _unravel(
        self,
        graph: Graph,
        knots: list[Integers],
        find: Callable[[Graph, Integers], list[Cycle]],
        order: Callable[[Graph, Mask], Further | None],
        suffix: str,
    ) -> None:
        """Report cycles of each component, excluding their transactions, until none is left."""
        parts = deque(knots)
        searches = searched = 0
        while parts and searches < SEARCHES and searched < SEARCHED:
            part = parts.popleft()
            searches += 1
            searched += len(part)
            within = inside(graph, part)
            rest: Mask = np.zeros(graph.transactions, dtype=np.bool_)
            rest[part] = True
            for cycle in find(within, part):
                self._name(cycle, suffix)
                rest[[edge.source for edge in cycle.edges]] = False
            within = within.within(rest)
            parts += cyclic(within, order(within, rest))
        if parts:
            self._warnings.append(f"{len(parts):,} more knots of transactions are not explained")

    def _name(self, cycle: Cycle, suffix: str) -> None:
        """Report a cycle, unless all its anti-dependencies are lost updates, which are reported already."""
        missed = [edge for edge in cycle.edges if edge.kind == RW]
        if missed and all(edge.source in self._lost.get((edge.key, edge.before), ()) for edge in missed):
            return
        title = name(cycle.edges)
        if len(cycle.edges) == len(missed) == 2 and not suffix:
            title = "write-skew"
        self._add(suffix if suffix == REVISED else title + suffix, cycle)

    def _revisions(self, graph: Graph, present: Mask) -> None:
        """Check that the order of revisions also explains the history."""
        history = self._history
        order = revised(history, present)
        same = repeated(history, order)
        for one, other in same:
            text = f"{called(one)} and {called(other)} both have revision {history.revision[one]}."
            self._anomalies.append(Anomaly(REVISED, text, (one + 1, other + 1)))
        order = order[~np.isin(order, [other for _, other in same])]
        for cycle in inverted(history, order):
            self._add(REVISED, cycle)
            present[[edge.source for edge in cycle.edges]] = False
        graph = graph.select(graph.basis != BY_PROCESS).within(present)
        knots = cyclic(graph)
        self._unravel(graph, knots, strongest, _no_order, REVISED)
        _leave_out(knots, present)
        graph = graph.within(present)
        claimed = Claimed(history, order)
        knots = cyclic(graph, claimed.order(graph, present))
        self._unravel(graph, knots, claimed.against, claimed.order, REVISED)


def _no_order(_graph: Graph, _present: Mask) -> None:
    """Return no further edges: the graph has all of them."""


def _against_time(graph: Graph, knot: Integers) -> list[Cycle]:
    return Layers(graph, knot, graph.end, graph.start).strongest(REALTIME)


def _leave_out(knots: list[Integers], *masks: Mask) -> None:
    for component in knots:
        for mask in masks:
            mask[component] = False
