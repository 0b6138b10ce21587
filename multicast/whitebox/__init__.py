"""The white-box atomic multicast protocol (Figure *protocol*), made fit for crashes that end.

`process` has what any protocol's processes do, `normal` what makes this one white-box: ACCEPT and ACCEPT_ACK.
`everywhere` goes past the paper: followers deliver as soon as leaders do.
"""

from multicast.whitebox.entry import Entry
from multicast.whitebox.everywhere import DeliverEverywhere
from multicast.whitebox.normal import WhiteBox

__all__ = ["DeliverEverywhere", "Entry", "WhiteBox"]
