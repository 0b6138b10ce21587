"""The demonstration of `wbkv sim --demo`: one total order over three groups, across a leader's crash."""

from __future__ import annotations

from multicast.sim import Scenario, Simulation, Workload
from multicast.sim.faults import Crash
from multicast.types import format_timestamp

SEED, MESSAGES = 4, 18


def demonstrate() -> int:
    """Simulate, and print what each group delivers; return the exit status."""
    workload = Workload(clients=3, messages=MESSAGES, window=2, think_s=0.05, repeats=0.0)
    simulation = Simulation(Scenario(faults="none", workload=workload), SEED)
    victim = simulation.topology.preferred_leader(simulation.topology.groups[1])
    simulation.loop.at(0.15, simulation.inject, Crash(victim, 0.5))
    print(f"Three groups of three replicas, simulated. Three clients multicast {MESSAGES} messages, each to")
    print(f"one, two or three groups. After 150 ms the leader of group 1, {victim}, crashes; it restarts")
    print("half a second later. Each group delivers only its own messages, in the order of their global")
    print("timestamps, which is the same order everywhere:\n")
    outcome = simulation.run()
    if outcome.violation is not None:
        print(f"the run violates a property of the protocol (seed {SEED}): {outcome.violation}")
        return 1
    order = sorted({(d.global_ts, d.mid, d.dest) for host in simulation.hosts.values() for d in host.log})
    groups = simulation.topology.groups
    print("  timestamp   message  " + "  ".join(f"group {group}" for group in groups))
    for global_ts, mid, dest in order:
        cells = "  ".join(f"{'deliver' if group in dest else '.':^7}" for group in groups)
        print(f"  {format_timestamp(global_ts):>9}   {mid!s:>7}  {cells}")
    print()
    for group in groups:
        hosts = [simulation.hosts[member] for member in simulation.topology.members(group)]
        logs = {tuple(d.mid for d in host.log) for host in hosts}
        same = "the same order" if len(logs) == 1 else "DIFFERENT ORDERS"
        print(f"  group {group}: {len(hosts[0].log)} deliveries at each of {len(hosts)} replicas, {same}")
    print(f"\n{outcome.messages} protocol messages in {outcome.virtual_s:.2f} virtual seconds. Try next:\n")
    print("  .venv/bin/wbkv sim --seed 1 --trace               one run, message by message")
    print("  .venv/bin/wbkv sim --seed 1 --diagram flow.svg    the same as a picture")
    print("  .venv/bin/wbkv sim --faults all --seeds 0:50      fifty runs with crashes, partitions, losses")
    return 0
