"""The white-box atomic multicast protocol (Figure *protocol*), made fit for crashes that end.

Read the modules in this order; each adds one idea to a process:

`state`       the variables, and what a restart brings back
`delivery`    the one path by which messages are delivered, the chain, and catching up
`collection`  forgetting what everyone has executed
`normal`      MULTICAST, ACCEPT, ACCEPT_ACK, retry: the figure's left column
`recovery`    NEWLEADER ... NEWSTATE_ACK: the figure's right column
`replica`     time: heartbeats, elections, time-outs; and the dispatch of messages
"""

from multicast.whitebox.entry import Entry
from multicast.whitebox.replica import WhiteBox

__all__ = ["Entry", "WhiteBox"]
