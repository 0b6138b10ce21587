"""One node without I/O. Read `ports` first (what a node needs of its machine), then `loop`.

`snapshots` transfers whole states, `directory` knows which replica is on which node, `recorder` writes
deliveries to a trace.
"""
