"""What programs record while nodes die must be explained by one order of all transactions: by the checker."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import wbkv
from wbkv import checker
from wbkv.record.history import Model

from tests.faults.harness import PATIENCE_S
from tests.faults.recording import RecordingPlan, merge, record

MODELS: tuple[Model, ...] = ("list-append", "register")


class Recording:
    """Threads and tasks that work and record, until they are told to stop."""

    def __init__(self, plan: RecordingPlan, file: Path) -> None:
        self._file = file
        self._stop = threading.Event()
        self._calls = itertools.count()
        self._made = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(plan,))
        self._thread.start()

    def _run(self, plan: RecordingPlan) -> None:
        try:
            record(plan, self._file, self._go_on)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self._failure = error

    def _go_on(self) -> bool:
        self._made = next(self._calls)
        return not self._stop.is_set()

    def wait_for(self, more: int) -> None:
        """Until so many more transactions have begun."""
        until, deadline = self._made + more, time.monotonic() + PATIENCE_S
        while self._made < until:
            assert self._failure is None, self._failure
            assert time.monotonic() < deadline, f"no progress beyond {self._made} transactions"
            time.sleep(0.02)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


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
    """The same history, if somebody had been told that a transaction failed which others have seen."""
    events: list[dict[str, Any]] = [json.loads(line) for line in recorded[model].read_text().splitlines()]
    seen = {
        (key, json.dumps(value))
        for event in events
        if event.get("type") == "ok"
        for kind, key, shown in event["txn"]
        if kind == "r" and shown is not None
        for value in (shown if isinstance(shown, list) else [shown])
    }
    denied = next(
        event
        for event in events
        if event.get("type") == "ok"
        and any(kind != "r" and (key, json.dumps(value)) in seen for kind, key, value in event["txn"])
    )
    denied["type"] = "fail"
    verdict = checker.check(checker.of_events(events))
    assert not verdict.holds
