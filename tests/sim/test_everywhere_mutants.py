"""Delivery at every replica: each sabotage of it is caught by a story, and the protocol survives them all."""

from __future__ import annotations

from typing import Final

import pytest

from multicast.protocol import Protocol
from multicast.whitebox import DeliverEverywhere
from tests.sim import everywhere_mutants as mutants
from tests.sim import everywhere_schedules as stories
from tests.sim import schedules
from tests.sim.test_mutants import Schedule, name

DIRECTED: Final[list[tuple[Schedule, type[Protocol]]]] = [
    (stories.lost_before_the_next, mutants.HearsNoGap),
    (stories.lost_before_the_next, mutants.DeliversBlindly),
    (stories.lost_at_the_end, mutants.MissesTheLast),
    (stories.lost_and_not_committed, mutants.SeesTooSoon),
    (stories.lost_and_delivered, mutants.SeesBeforeItHasCaughtUp),
    (stories.forgotten, mutants.ForgetsWhatWasProposed),
    (stories.proposed_by_one_group, mutants.AwaitsOnlyTheAccepted),
    (stories.committed_without_the_leader, mutants.NeedsNoLeader),
]


@pytest.mark.parametrize(("schedule", "mutant"), DIRECTED, ids=name)
def test_schedule_catches(schedule: Schedule, mutant: type[Protocol]) -> None:
    assert schedules.play(schedule, mutant) is not None


@pytest.mark.parametrize("schedule", dict.fromkeys(schedule for schedule, _ in DIRECTED), ids=name)
def test_the_protocol_comes_through_the_same_schedules(schedule: Schedule) -> None:
    assert schedules.play(schedule, DeliverEverywhere) is None


def test_every_mutant_is_on_trial() -> None:
    defined = {
        value
        for value in vars(mutants).values()
        if isinstance(value, type) and value.__module__ == mutants.__name__
    }
    assert defined == {mutant for _, mutant in DIRECTED}
