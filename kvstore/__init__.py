"""The server: a partitioned, transactional key-value store on ordered multicast.

Every folder is one layer and imports only those below it (checked by import-linter). From bottom to top:

    machine      what ordered messages do to one group's keys; no I/O
    config       the configuration of a cluster, names and addresses
    wire         frames of messages, and the connections that carry them
    storage      a node's disk: the log and the state, in LMDB
    node         one node without I/O: replicas, routing, batches, snapshots
    bare, store  the two applications of a node: bare multicast, and the store
    api          the public API, as functions and over gRPC
    local        clusters and disks on this machine
    server       a node in an event loop, and as a process
    simulation   nodes and the store under the simulator
    embedded     a store inside another process
    commands     the server's subcommands of `wbkv`

Start with the docstring of `store`, which follows a request through all layers, then `node` for the life of a
message, and `machine` for what a transaction does.
"""
