"""A simulator that tries to refute the protocols: virtual time, seeded faults, checkers at every step.

`network`   virtual time, and links that delay, lose and reset
`host`      one replica with a disk that forgets what was not durable, and a log as application
`clients`   multicasting processes, which may die half-way
`faults`    what goes wrong, drawn from the seed
`checkers`  what must be true of any atomic multicast, at every step
`delays`    latencies in message delays, as the paper's Section 5 has them
`convoy`    the same against the rate of conflicting messages
`invariants`  the same for each protocol's own variables and messages
`run`       one run in two phases: faults, then healing and the demand to finish
`trace`, `diagram`  one run for people: as text, as a picture
"""

from multicast.sim.clients import Workload
from multicast.sim.faults import FAULTS
from multicast.sim.run import Outcome, Scenario, Simulation, simulate

__all__ = ["FAULTS", "Outcome", "Scenario", "Simulation", "Workload", "simulate"]
