"""The production node under the simulator of `multicast.sim`: loop, wire format, store and API.

- `nodes`: `NodeSimulation` runs nodes with bare multicast; `bare_disk`, their disks, which lose what was not
  synced;
- `store`: `StoreCluster` runs the whole store, up to its gRPC methods; `disk`, its disks;
- `availability`: links that stay cut, and probes: no partition with a connected quorum is silent for long;
- `event_loop`: asyncio in virtual time; `rpc`: connections between clients and nodes, and their faults;
- `history`: what clients ask for, and what became of it;
- `model`: the naive store that everything is compared with; `checks`, `circles`: the comparison.

One seed decides everything. A run ends in a `Violation`, with the seed, or in an outcome whose trace is the
same whenever the same seed runs again. `wbkv_sim` adds the SDK's clients and their workloads.
"""

from kvstore.simulation.bare_disk import SimState
from kvstore.simulation.nodes import NodeSimulation
from kvstore.simulation.store import StoreCluster, scenario_of

__all__ = ["NodeSimulation", "SimState", "StoreCluster", "scenario_of"]
