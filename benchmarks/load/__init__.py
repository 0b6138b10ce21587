"""A load generator: a cluster of real processes, clients in processes of their own, and what they measured.

    plan = Plan(protocol="whitebox", groups=10, dest=2, clients=200)
    with running(plan) as cluster:
        print(measure(plan, cluster).throughput)

`Plan` says what is measured, `running` starts the cluster for it, and `measure` lets clients loose on it. One
cluster serves any number of plans that differ in nothing that concerns nodes.
"""

from benchmarks.load.measuring import Measurement, measure
from benchmarks.load.nodes import running
from benchmarks.load.plan import Plan, PlanError
from benchmarks.load.processes import LoadError

__all__ = ["LoadError", "Measurement", "Plan", "PlanError", "measure", "running"]
