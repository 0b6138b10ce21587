"""The white-box atomic multicast protocol (Figure *protocol*), made fit for crashes that end.

`process` has what any protocol's processes do; here is what makes this one white-box:

`normal`      ACCEPT, ACCEPT_ACK: the figure's left column
`recovery`    NEW_STATE, NEWSTATE_ACK: the figure's right column, and the process as a whole
"""

from multicast.whitebox.entry import Entry
from multicast.whitebox.recovery import WhiteBox

__all__ = ["Entry", "WhiteBox"]
