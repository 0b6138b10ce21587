"""The key-value store, as a node's application.

Life of a request:

1. `service` takes it from the API: coroutines with deadlines over the gateway. Reads that need no position in
   the order become questions to replicas (`questions`); long scans are fetched in `pages`, watches merge
   `feeds`, `splits` divides ranges.
2. `gateway`, one on each node, multicasts a transaction to the groups that own its keys, under the client's
   number or one of its own, and repeats it until every group has answered.
3. The ordering (`multicast`) delivers the message at every replica of these groups.
4. `partition`, one for each replica, feeds its machine (`kvstore.machine`) with it, exchanges votes with
   other groups' leaders, and answers questions (`reads`).
5. `gate`, with `dependencies`, holds the leader's answer until no later transaction can precede it.
6. The gateway merges the groups' answers, and the service resolves the caller's future.

`application` puts a node's partitions and gateway together, and commits them to the disk. `replica_view` is
what a partition needs of the ordering; `messages` is what partitions and gateways send each other; `errors`
is what becomes of requests that fail; `retention` is how long things are kept.
"""
