"""Where the time of a transaction goes: real processes that are watched from inside.

`sampler` counts CPU time by layer (`layers` says which function belongs to which), and `events` notes what a
node does, and when. `processes` has the commands of nodes and clients that run one of the two, and asks them
for what they have found. Nothing of this is in the product: a process that is not watched runs as always.
`benchmarks.profile` is built on these.
"""
