"""The white-box atomic multicast protocol (Figure *protocol*), extended to processes that crash and recover.

`process` has what the processes of any protocol do. `normal` has what makes this protocol white-box: one
ACCEPT carries a group's proposal to the processes of all destinations, and one ACCEPT_ACK tells the leaders
of all destinations both that a process has replicated the proposals and that its clock has passed them.
`entry` has what a process counts for one message. `everywhere` goes past the paper: followers deliver as soon
as leaders.
`docs/divergence.md` lists every departure from the paper, with its safety argument.
"""

from multicast.whitebox.entry import Entry
from multicast.whitebox.everywhere import DeliverEverywhere
from multicast.whitebox.normal import WhiteBox

__all__ = ["DeliverEverywhere", "Entry", "WhiteBox"]
