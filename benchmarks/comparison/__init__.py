"""Two stores under the same load: three nodes of etcd, or three of ours, and the same clients for both.

`rows` says what is compared. `systems` starts the nodes, `calls` makes the calls of each row, `client` is a
process of clients, and `measuring` runs one load and returns its figures. `etcd_messages` has the messages of
etcd's API that the calls need. `table` and `plot` show the results. `benchmarks.etcd` is built on these.
"""
