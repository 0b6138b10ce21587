"""Decide from a history of requests and results whether a store was strictly serializable.

    from wbkv import checker

    with open("history.jsonl", "rb") as file:
        verdict = checker.check(checker.read(file))
    verdict.holds, verdict.anomalies

Reading needs nothing but Python; `check` needs the extra `check` (numpy and rustworkx).
"""

from __future__ import annotations

from wbkv.checker.history import HistoryError
from wbkv.checker.model import Recording
from wbkv.checker.reader import of_events, read
from wbkv.checker.verdict import MODELS, NAMES, Anomaly, Description, Step, Verdict

__all__ = [
    "MODELS", "NAMES", "Anomaly", "Description", "HistoryError", "Recording", "Step", "Verdict", "check",
    "of_events", "read",
]  # fmt: skip


def check(recording: Recording, model: str = MODELS[0]) -> Verdict:
    """Decide whether the recording satisfies the consistency model."""
    # The command imports this package to list its subcommands, and must not load numpy for that.
    from wbkv.checker.analysis import analyse

    return analyse(recording, model)
