"""How long a node gathers events before it takes a turn.

A turn costs about the same however much is in it: it writes a batch, sends a frame to each node, and wakes
those. So a node that has much to do does it in few turns. But gathering helps only if something can still
join: a lone transaction takes each of its steps at once.

What can join is known by what is under way: messages that a leader of this node has yet to deliver, and calls
that a gateway waits for. The more there are, the sooner the next event comes, and the more of them share a
turn. A group whose messages do not move (its quorum is down) does not count: nothing of it joins soon.

A turn that waits begins a fixed time after its *first* event. A time that began anew with each event, or grew
with the length of turns, would feed back into ever longer turns.
"""

from __future__ import annotations

from typing import Final

FEW: Final = 3
"""With fewer messages under way, each turn begins at once."""

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
