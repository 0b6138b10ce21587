"""The production node under the simulator: the loop, the wire format and the store, on simulated ports."""

from kvstore.simulation.bare_disk import SimState
from kvstore.simulation.nodes import NodeSimulation
from kvstore.simulation.store import StoreSimulation, scenario_of, simulate_store
from kvstore.simulation.workloads import WORKLOADS

__all__ = ["WORKLOADS", "NodeSimulation", "SimState", "StoreSimulation", "scenario_of", "simulate_store"]
