"""The load generator: a cluster of real processes, clients in processes of their own, and what they measure.

    plan = Plan(protocol="whitebox", groups=10, dest=2, clients=200)
    with running(plan) as cluster:
        print(measure(plan, cluster).throughput)

`Plan` says what is measured, `running` starts its cluster, and `measure` runs the clients. One cluster serves
any number of plans that differ in nothing that concerns nodes. This generator finds what a cluster can do,
with little work of its own per message; `loadtests` (Locust) has users who behave like an application's, and
checks what they see.
"""

from benchmarks.load.measuring import BackgroundMeasurement, Measurement, measure
from benchmarks.load.nodes import running
from benchmarks.load.plan import Plan, PlanError
from benchmarks.load.processes import LoadError
from benchmarks.load.tally import Sample, read_samples

__all__ = [
    "BackgroundMeasurement",
    "LoadError",
    "Measurement",
    "Plan",
    "PlanError",
    "Sample",
    "measure",
    "read_samples",
    "running",
]
