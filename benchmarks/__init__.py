"""What the figures of this project come from. Only the development install has it; nothing else imports it.

`make performance` (`suite`) runs the benchmarks below, each by itself `python -m benchmarks.NAME [--quick]`.
`record` is their frame: sizes, command line, and the JSON files of `results/`, from which `page` makes the
tables of docs/performance.md. By layer:

    cluster   `cluster`, `availability`, `scan`, `compaction`, `far_votes`, `hot_key`, `growth`: three nodes,
              through the SDK
    etcd      `etcd`: three nodes of etcd 3.4 beside three of ours (`make bench-etcd`)
    profile   `profile`: where the time of a transaction goes (`make profile`)
    client    `embedded_cost`, `command_start`
    store     `store_path`: three nodes, without sockets; `store_cost`, `storage_cost`: one replica
              beyond its ordering, and its disk
    node      `multicast`, `node_cost`, `wire_cost`: nodes that only order messages
    ordering  `core_cost`: the ordering library alone
    tools     `simulator_speed`, `checker_speed`; with `make performance-long` `spark_source`, `verify_speed`

`load` is the load generator; `comparison` and `profiling` have what `etcd` and `profile` need beyond it.
`command` and `convoy_command` are `wbkv bench`, whose entry point is `entry`.
`paper` are the experiments of the paper (`make figures`, docs/evaluation.md). `flows` and `convoy_plot` draw
(`make pictures`), and `spark_cluster` tries jobs on a Spark cluster (`make spark-cluster`).

`loadtests` is another thing: users who behave like an application's, by Locust, whose totals are checked.
"""
