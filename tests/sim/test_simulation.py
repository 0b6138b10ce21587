"""The simulator itself: every kind of fault, determinism, bad input."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from multicast import PROTOCOLS, VARIANTS
from multicast.errors import InvalidArgument
from multicast.protocol import Timing
from multicast.sim import FAULTS, Scenario, Simulation, Workload, simulate
from multicast.sim.delays import group_size
from multicast.sim.faults import Stall
from multicast.sim.host import DiskDelays
from multicast.sim.network import Delays
from multicast.types import GroupId
from tests.campaigns import CAMPAIGN

ALL = PROTOCOLS | VARIANTS
MANY = [name for name in PROTOCOLS if name != "skeen"]
"""Protocols for groups of any size."""

TRACE = "from multicast.sim import *; print(simulate(Scenario(workload=Workload(messages=60)), 7).trace)"


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("seed", range(1000, 1004 if CAMPAIGN else 1002))
def test_comes_through(protocol: str, faults: str, seed: int) -> None:
    replicas, clock = group_size(ALL[protocol], 3), "hybrid" if seed % 2 else "logical"
    outcome = simulate(Scenario(ALL[protocol], replicas=replicas, faults=faults, clock=clock), seed)
    assert outcome.violation is None
    assert outcome.delivered > 0


@pytest.mark.parametrize("protocol", MANY)
@pytest.mark.parametrize(("groups", "replicas"), [(1, 1), (1, 3), (4, 1), (2, 5), (1, 7), (6, 3)])
def test_any_number_of_groups_and_any_odd_size(protocol: str, groups: int, replicas: int) -> None:
    workload = Workload(messages=100, spread=groups)
    for seed in range(3):
        outcome = simulate(Scenario(ALL[protocol], groups, replicas, workload=workload), seed)
        assert outcome.violation is None


@pytest.mark.parametrize("protocol", MANY)
@pytest.mark.parametrize("replicas", [3, 5])
def test_slow_disks_delay_elections_but_do_not_prevent_them(protocol: str, replicas: int) -> None:
    """A sync that takes as long as a time-out: without back-off, no campaign ever ends in time."""
    for seed in range(4):
        scenario = Scenario(
            ALL[protocol],
            groups=2,
            replicas=replicas,
            faults="none",
            disk=DiskDelays(0.3, 0.3, 0.25),
            workload=Workload(messages=40),
        )
        assert simulate(scenario, seed).violation is None


@pytest.mark.parametrize("protocol", MANY)
@pytest.mark.parametrize("seed", range(8))
def test_comes_through_with_slow_disks_and_no_history(protocol: str, seed: int) -> None:
    scenario = Scenario(
        ALL[protocol],
        disk=DiskDelays(0.05, 0.3, 0.25),
        timing=Timing(history=0, part_entries=1),
        workload=Workload(messages=60),
    )
    assert simulate(scenario, seed).violation is None


@pytest.mark.parametrize(
    ("disk", "delays"),
    [
        pytest.param(DiskDelays(0.8, 1.0, 0.25), Delays(), id="disks"),
        pytest.param(DiskDelays(), Delays(0.3, 0.5, 0.0), id="links"),
    ],
)
def test_a_leader_is_kept_although_all_answers_are_slower_than_its_time_out(
    disk: DiskDelays, delays: Delays
) -> None:
    for seed in range(3):
        scenario = Scenario(groups=2, faults="none", disk=disk, delays=delays, workload=Workload(messages=40))
        assert simulate(scenario, seed).violation is None


def test_a_leader_whose_disk_hangs_gives_way() -> None:
    scenario = Scenario(groups=1, faults="none", workload=Workload(messages=200, think_s=0.02))
    simulation = Simulation(scenario, 5)
    leader = simulation.topology.preferred_leader(GroupId(0))
    simulation.start()
    simulation.run_until(lambda: len(simulation.hosts[leader].log) > 3, 5.0)
    simulation.inject(Stall(leader, 60.0))
    assert simulation.run_until(lambda: all(c.idle for c in simulation.clients.values()), 30.0)


def test_same_seed_same_trace_whatever_the_hash_seed() -> None:
    traces = {
        subprocess.run(  # noqa: S603 - our own interpreter, a fixed program
            [sys.executable, "-c", TRACE],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(traces) == 1


def test_other_seed_other_trace() -> None:
    assert len({simulate(Scenario(workload=Workload(messages=20)), seed).trace for seed in range(3)}) == 3


def test_nothing_is_left_behind() -> None:
    simulation = Simulation(Scenario(), 3)
    assert simulation.run().violation is None
    simulation.run_until(lambda: False, simulation.loop.now + 0.5)
    for host in simulation.living():
        replica = host.replica
        assert replica is not None
        held = vars(replica)
        for name in ("entries", "orphans", "retained", "superseded", "waiting", "numbers"):
            assert not held[name], (host.me, name)
        assert not host.durable.entries


def test_unknown_faults_are_refused() -> None:
    simulation = Simulation(Scenario(faults="gremlins"), 0)
    outcome = simulation.run()
    assert outcome.violation is not None
    assert "gremlins" in outcome.violation


def test_unknown_clocks_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="sundial"):
        Scenario(clock="sundial")


def test_even_groups_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="2 members"):
        Simulation(Scenario(replicas=2), 0)
