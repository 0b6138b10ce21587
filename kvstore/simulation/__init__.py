"""The production node under the simulator of `multicast.sim`: the loop, the wire format and the store.

- `nodes`: `NodeSimulation` runs nodes with bare multicast; `bare_disk`, their disks, which lose what was not
  synced;
- `store`: `StoreSimulation` runs the whole store: gateways, clients, watchers; `disk`, its disks;
- `history`, `clients`, `watching`: what simulated clients ask for, and what became of it;
- `workloads`: what clients do, by name, and the invariant of each; add a workload to `WORKLOADS`;
- `model`: the naive store that everything is compared with; `checks`, `circles`: the comparison.

One seed decides everything. A run ends in a `Violation`, with the seed, or in an outcome whose trace is the
same whenever the same seed runs again.
"""

from kvstore.simulation.bare_disk import SimState
from kvstore.simulation.nodes import NodeSimulation
from kvstore.simulation.store import StoreSimulation, scenario_of, simulate_store
from kvstore.simulation.workloads import WORKLOADS

__all__ = ["WORKLOADS", "NodeSimulation", "SimState", "StoreSimulation", "scenario_of", "simulate_store"]
