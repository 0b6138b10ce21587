"""How long a node gathers events before it takes a turn.

A turn costs about the same however much is in it: it writes a batch, sends a frame to each node, and wakes
those. So a node that has much to do does it in few turns. But gathering helps only if something can still
join: a lone transaction takes each of its steps at once.

What can join is known by what is under way: messages that a leader of this node has yet to deliver, and calls
that a gateway waits for. The more there are, the sooner the next event comes, and the more of them share a
turn. A group whose messages do not move (its quorum is down) does not count: nothing of it joins soon.

With two or more under way, further ones may be on the way: gRPC hands unary calls to the event loop one at a
time, and a turn for each would keep the others waiting. So the node looks for further events until none has
come for about as long as a turn costs.

A turn that waits begins at most a fixed time after its *first* event. A time that began anew with each event,
or grew with the length of turns, would feed back into ever longer turns.
"""

from __future__ import annotations

from typing import Final

COMPANY: Final = 2
"""With fewer messages under way, each turn begins at once."""

QUIET_S: Final = 0.0002
"""With `COMPANY` or more, a turn begins when nothing has come for so long: about what a turn costs."""

FEW: Final = 3
"""With so many, a turn begins after a time that grows with them."""

EACH_S: Final = 0.0001
"""How long to gather for each message under way."""

MOST_S: Final = 0.003
"""The longest time to gather: far below the time-outs of elections and retries."""

LONG_S: Final = MOST_S / 2
"""A node that gathers for so long leaves its log's commits to their thread: see `storage.log`."""

MOVING_S: Final = 0.25
"""A group moves if it has delivered or answered something within this time."""


def gather_s(under_way: int) -> float:
    """Return how long a turn waits after its first event, with so many messages under way."""
    return 0.0 if under_way < FEW else min(under_way * EACH_S, MOST_S)
