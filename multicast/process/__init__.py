"""What every process does, under any ordering protocol.

The protocols differ only in how messages get their timestamps. Everything else is here, once, so that a
comparison of protocols compares nothing else. `Replica` is the end of a line of classes, each in a module
that adds one idea to the class before it; read them in this order. A protocol derives from `Replica`, keeps
its own kind of `Entry` for each message, and adds handlers for its own messages. A handler is called `on_`
and the name of its message.

`state`       the variables, and what a restart brings back
`delivery`    the one path by which messages are delivered, the chain, and catching up
`restoration` how a replica returns whose state is damaged
`memories`    how a replica notices that its log was rolled back
`collection`  garbage collection: dropping what every destination has executed
`requests`    MULTICAST from clients and other groups, and retries of what takes too long
`recovery`    NEWLEADER ... NEWSTATE_ACK: how a process becomes the leader
`membership`  how a replica on a new disk becomes a member
`replica`     time (heartbeats, elections, time-outs) and the dispatch of messages
"""

from multicast.process.entry import Entry
from multicast.process.replica import Replica

__all__ = ["Entry", "Replica"]
