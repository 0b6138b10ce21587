"""Large payloads on links of bounded bandwidth, with production's flow control on both ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from kvstore.simulation.bounded_links import BoundedLinks
from kvstore.wire.flow import EPOCH, FORGET
from kvstore.wire.frames import Envelope
from kvstore.wire.inflow import Inflow
from kvstore.wire.outflow import Outflow
from multicast.sim import Outcome
from tests.campaigns import CAMPAIGN
from wbkv_sim import StoreSimulation, scenario_of

SEEDS: Final = range(12)
"""Random seeds within which a mutant must be caught."""


class BoundedSimulation(StoreSimulation):
    """Links are bounded whatever the seed."""

    def _has_bounded_links(self) -> bool:
        return True


def run(seed: int, faults: str = "none", **types: Any) -> tuple[Outcome, BoundedLinks]:
    """Run a seed. Without other faults, links are slow and nodes do not read, the more often."""
    simulation = BoundedSimulation(scenario_of(faults, operations=50), seed, "large")
    links = simulation.bounded
    assert links is not None
    for name, value in types.items():
        setattr(links, name, value)
    for _ in range(3 if faults == "none" else 0):
        links.draw(simulation.fork("stress"), range(3), 3.0)
    return simulation.run(), links


@pytest.mark.parametrize("faults", ["none", "links", "all"])
def test_large_payloads_are_sliced_queued_and_dropped_and_all_completes(faults: str) -> None:
    epochs = 0
    for seed in range(100 if CAMPAIGN else 2):
        outcome, links = run(seed, faults)
        assert outcome.violation is None, f"seed {seed}"
        assert links.counts.sliced > 300
        epochs += links.counts.epochs
    assert epochs > 0 or faults != "none"


# Sabotages of the flow control


class NeverResumes(Outflow):
    """A peer that was behind once is sent nothing any more."""

    def resume(self) -> None:
        pass


class DropsWithoutAnEpoch(Outflow):
    """The queue is dropped, and the same epoch goes on."""

    def fall_behind(self) -> None:
        super().fall_behind()
        self.behind = False


class TellsOfNoEpoch(Inflow):
    """A new epoch does not end what the old one has left."""

    def receive(self, frame: bytes) -> list[Envelope]:
        return [] if frame[0] == EPOCH else super().receive(frame)


class KeepsEverything(Inflow):
    """What the peer forgets stays."""

    def receive(self, frame: bytes) -> list[Envelope]:
        return [] if frame[0] == FORGET else super().receive(frame)


class SendsOutOfOrder(Outflow):
    """Of a pair, what is small is sent at once, in front of what waits for a large payload."""

    def send(self, envelopes: Sequence[Envelope]) -> None:
        lanes, self._lanes = self._lanes, {}
        super().send(envelopes)
        for pair, lane in self._lanes.items():
            lanes.setdefault(pair, lane).items.extend(() if lanes[pair] is lane else lane.items)
        self._lanes = lanes


@pytest.mark.parametrize(
    ("mutant", "where"),
    [
        (NeverResumes, "outflow_type"),
        (DropsWithoutAnEpoch, "outflow_type"),
        (SendsOutOfOrder, "outflow_type"),
        (TellsOfNoEpoch, "inflow_type"),
        (KeepsEverything, "inflow_type"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_seeds_catch_it(mutant: type[Any], where: str) -> None:
    for seed in SEEDS:
        outcome, _ = run(seed, "none", **{where: mutant})
        if outcome.violation is not None:
            assert outcome.error is None, "it just breaks down"
            assert run(seed)[0].violation is None
            return
    pytest.fail(f"{mutant.__name__} came through {len(SEEDS)} seeds")


def test_no_link_is_slow_when_all_faults_have_ended() -> None:
    """A link whose window filled while it was slow would stay busy with it for seconds."""
    simulation = BoundedSimulation(scenario_of("none", operations=8), 0, "large")
    links = simulation.bounded
    assert links is not None
    for source, target in ((0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)):
        simulation.loop.at(1.0, links.slow_down, source, target, 500.0, 60.0)
    busy: list[bool] = []
    simulation.loop.at(2.0, lambda: busy.append(any(link.is_busy for link in links._links.values())))
    simulation.loop.at(2.0, links.heal)
    simulation.loop.at(2.0, lambda: busy.append(any(link.is_busy for link in links._links.values())))
    assert simulation.run().violation is None
    assert busy == [True, False]
