"""Unavailable is a store in which a call with enough time left fails, after all faults have ended."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from google.protobuf.message import Message
from wbkv.core.effects import Ask, Failure, failed
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv_sim import clients, scenario_of, simulate_store
from wbkv_sim.link import OPERATION, SimLink


def test_the_last_call_of_an_interactive_transaction_may_have_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this run a transfer's last attempt begins 0.05 s before the transfer's deadline, and fails."""
    monkeypatch.setattr("kvstore.simulation.store.BOUNDED", 0.0)
    assert simulate_store(scenario_of("all"), 124, "recipes").violation is None


class LosesAnswers(SimLink):
    """After all faults, no answer to a request comes back: the store is silent."""

    def ask(self, ask: Ask) -> Awaitable[Message | Failure]:
        answer = super().ask(ask)
        simulation = self._process.simulation
        silent_from = simulation.healed_at + clients.BACK_S if clients.BACK_S > 0 else 0.0
        if ask.method.in_session and self._now.now > silent_from:
            return _lost(answer)
        return answer


async def _lost(answer: Awaitable[Message | Failure]) -> Message | Failure:
    await answer
    return failed(ApiError.UNAVAILABLE, "lost")


def test_a_silent_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SimLink", LosesAnswers)
    outcome = simulate_store(scenario_of("none", operations=20), 0, "register")
    assert outcome.violation is not None
    assert outcome.violation.startswith("Availability")


def test_so_is_one_that_fails_late_in_an_interactive_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first reads are answered, and what follows is not, with much time left."""

    class LosesCommits(LosesAnswers):
        def ask(self, ask: Ask) -> Awaitable[Message | Failure]:
            operation = OPERATION.get()
            commits = type(ask.request).__name__ == "TxnRequest"
            transfer = operation is not None and operation.what.startswith("a transfer")
            return super().ask(ask) if commits and transfer else SimLink.ask(self, ask)

    monkeypatch.setattr(clients, "SimLink", LosesCommits)
    monkeypatch.setattr(clients, "BACK_S", -1000.0)
    monkeypatch.setattr(clients.ClientProcess, "timeout", lambda _: 2.0)
    for seed in range(6):  # whether the last attempt of a transfer has much time left depends on its schedule
        outcome = simulate_store(scenario_of("none", operations=20), seed, "recipes")
        if outcome.violation is not None:
            break
    assert outcome.violation is not None
    assert outcome.violation.startswith("Availability: a transfer")
