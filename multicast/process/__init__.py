"""What every process does, whichever protocol orders its messages.

The protocols differ in how messages get their timestamps. All the rest is here, once, so that a comparison of
protocols compares nothing else. Each module adds one idea to a process:

`state`       the variables, and what a restart brings back
`delivery`    the one path by which messages are delivered, the chain, and catching up
`collection`  forgetting what everyone has executed
`requests`    MULTICAST from clients and other groups, and multicasting again what takes too long
`recovery`    NEWLEADER ... NEWSTATE_ACK: how a process comes to lead
`membership`  how a replica on a new disk becomes a member
`replica`     time: heartbeats, elections, time-outs; and the dispatch of messages
"""

from multicast.process.entry import Entry
from multicast.process.replica import Replica

__all__ = ["Entry", "Replica"]
