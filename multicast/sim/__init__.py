"""A simulator that tries to refute the protocols: virtual time, seeded faults, checkers at every step.

A `Simulation` runs the production classes on one virtual clock. One seed decides every delay, time-out and
fault, so a failure repeats exactly. A run has two phases: faults while clients multicast; then all faults
end, and every replica must deliver every message and hold nothing. Add a fault to `faults`, a property of
every protocol to `checkers`, a protocol's own to `invariants`; a new sabotage for them to catch belongs in
`tests/sim/mutants.py`.

`network`   virtual time, and links that delay, lose and reset
`host`      one replica with a disk that loses what was not durable, and a log as its application
`clients`   multicasting processes, which may die half-way
`faults`    the schedule of faults, drawn from the seed
`checkers`  the properties of any atomic multicast, checked at every step
`invariants`  the same for each protocol's own variables and messages
`run`       one run in two phases: faults, then healing and the demand to finish
`delays`    latencies in message delays, as in the paper's Section 5
`convoy`    latencies against the rate of conflicting messages
`trace`, `diagram`  one run for people: as text, as a picture
"""

from multicast.sim.clients import Workload
from multicast.sim.faults import FAULTS
from multicast.sim.run import Outcome, Scenario, Simulation, simulate

__all__ = ["FAULTS", "Outcome", "Scenario", "Simulation", "Workload", "simulate"]
