"""Load tests: Locust users of the store, scenarios as data, and checks of invariants.

`python -m loadtests bank ycsb-a orders` starts a cluster, or uses a running one, and then for each scenario

1. loads its keys (`workloads`), under a prefix of this run;
2. runs Locust (`locustfile`), in processes of its own, since it patches the standard library for gevent;
3. checks the workload's invariants: no money is lost, no order is incomplete.

`scenarios/*.toml` define what users do, `shapes/*.toml` how the number of users changes. Only `locustfile`
imports Locust: everything else runs anywhere, an embedded store included.
"""
