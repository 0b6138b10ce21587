"""The white-box atomic multicast protocol (Figure *protocol*), made fit for crashes that end.

`process` has what any protocol's processes do, `normal` what makes this one white-box: ACCEPT and ACCEPT_ACK.
"""

from multicast.whitebox.entry import Entry
from multicast.whitebox.normal import WhiteBox

__all__ = ["Entry", "WhiteBox"]
