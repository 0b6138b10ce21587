"""The whole store with the SDK's clients under the simulator: from `client.txn()` to the disk.

The store does not know its clients, and clients know the wire format only: this package knows both.

- `run`: `StoreSimulation`, a run of nodes (`kvstore.simulation`), clients and watchers;
- `clients`: simulated processes with a client of `wbkv.aio` each; `link`: what carries and records their
  calls; `facts`: what messages mean to the checkers;
- `workloads`: what clients do, by name, and the invariant of each; add a workload to `WORKLOADS`;
- `recipes`: what all clients do beside their workload: interactive transactions, locks, batches;
- `watchers`: clients that follow all changes;
- `command`: `wbkv sim`.
"""

from kvstore.simulation import scenario_of
from wbkv_sim.run import StoreSimulation, simulate_store
from wbkv_sim.workloads import WORKLOADS

__all__ = ["WORKLOADS", "StoreSimulation", "scenario_of", "simulate_store"]
