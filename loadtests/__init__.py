"""Load tests: Locust's users of the store, what they do as data, and whether it all still holds together.

`python -m loadtests bank ycsb-a orders` starts a cluster, or is given one, and then for each scenario

1. loads its keys (`workloads`), under a prefix of this run;
2. lets Locust run (`locustfile`), in processes of its own, since it patches the standard library for gevent;
3. checks what must still be true: no money is lost, no order is half there.

What a scenario does is in `scenarios/*.toml`, how the number of users changes in `shapes/*.toml`. Only
`locustfile` and what it alone uses import Locust: everything else runs anywhere, an embedded store included.
"""
