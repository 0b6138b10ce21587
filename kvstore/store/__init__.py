"""The key-value store, as a node's application.

From a client's request inwards: `service` (coroutines, deadlines, long scans, watches) over `gateway` (a
process that multicasts and asks, one on each node); and from delivered messages outwards: `partition` (one
replica of a group: the machine, votes, reads, the change feed) with `gate` and `dependencies` (when to
answer), all of a node's put together by `application`. `questions` and `errors` are what they say.
"""
