"""One node without I/O. Read `ports` first (what a node needs from its machine), then `loop`.

`outbox` queues outgoing messages, `snapshots` transfers whole states, `directory` maps replicas to nodes,
`recorder` writes deliveries to a trace.
"""
