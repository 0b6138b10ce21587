"""What programs record while nodes die must be explained by one order of all transactions: by the checker."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import wbkv
from wbkv import checker
from wbkv.record.history import Model

from tests.faults.harness import Work
from tests.faults.recording import RecordingPlan, merge, record

MODELS: tuple[Model, ...] = ("list-append", "register")


class Recording(Work):
    """Threads and tasks that work and record; what counts is the transactions that have begun."""

    def __init__(self, plan: RecordingPlan, file: Path) -> None:
        self._calls = itertools.count()
        super().__init__(lambda: record(plan, file, self._go_on))

    def _go_on(self) -> bool:
        self.done[0] = next(self._calls)
        return not self.stopped.is_set()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[Model, Path]:
    """A history of each model, of two clients each: one has little patience, so it often does not know."""
    folder = tmp_path_factory.mktemp("histories")
    plans: dict[Path, RecordingPlan] = {}
    with wbkv.testing.running_cluster(nodes=3, partitions=2) as running:
        for i, (model, timeout_s) in enumerate(itertools.product(MODELS, (0.3, 20.0))):
            plans[folder / f"{model}-{timeout_s}"] = RecordingPlan(
                running.addresses, model, threads=2, tasks=2, first=10 * i, seed=i, timeout_s=timeout_s
            )
        recordings = [Recording(plan, file) for file, plan in plans.items()]
        try:
            for node in ("n1", "n2"):
                for act in (running.kill, running.start):
                    for recording in recordings:
                        recording.wait_for(15)
                    act(node)
            for recording in recordings:
                recording.wait_for(15)
        finally:
            for recording in recordings:
                recording.finish()
    found = {}
    for model in MODELS:
        found[model] = folder / f"{model}.jsonl"
        merge([file for file, plan in plans.items() if plan.model == model], found[model])
    return found


@pytest.mark.parametrize("model", MODELS)
def test_histories_hold(recorded: dict[Model, Path], model: Model) -> None:
    with recorded[model].open("rb") as file:
        verdict = checker.check(checker.read(file))
    assert verdict.holds, verdict.anomalies
    types = [json.loads(line).get("type") for line in recorded[model].read_text().splitlines()]
    assert types.count("ok") > 100
    assert types.count("fail") > 0


@pytest.mark.parametrize("model", MODELS)
def test_a_history_in_which_a_write_was_denied_does_not(recorded: dict[Model, Path], model: Model) -> None:
    """The same history, if a client had been told that a transaction failed which others have seen."""
    events: list[dict[str, Any]] = [json.loads(line) for line in recorded[model].read_text().splitlines()]
    ended = [event for event in events if event.get("type") == "ok"]
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for number, event in enumerate(ended):
        for kind, key, shown in event["txn"]:
            for value in shown if isinstance(shown, list) else [shown]:
                if kind == "r" and value is not None:
                    seen[key, json.dumps(value)].add(number)
    denied = next(
        event
        for number, event in enumerate(ended)
        if any(kind != "r" and seen[key, json.dumps(value)] - {number} for kind, key, value in event["txn"])
    )
    denied["type"] = "fail"
    verdict = checker.check(checker.of_events(events))
    assert not verdict.holds
