"""Restoration: how a replica returns whose state is lost or damaged, while its log is sound (departure 20).

The log says what the replica has promised, and what it may have reported as executed. A replica whose state
has executed less than that keeps its identity and its promises, and makes no new ones: it neither leads nor
votes nor accepts, and answers no client. It asks the members of its group for deliveries or a snapshot, and
takes no snapshot that has executed less than it had reported. When such a state is durable, it takes part
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from multicast.messages import (
    Deliveries,
    Executed,
    Heartbeat,
    Hint,
    Members,
    MembersWanted,
    Message,
    Multicast,
    Recall,
    Recalled,
)
from multicast.process.delivery import DeliveryPath
from multicast.process.entry import E
from multicast.types import NO_BALLOT, Process, Timestamp

HANDLED: Final = frozenset(
    (Heartbeat, Deliveries, Members, MembersWanted, Executed, Multicast, Recall, Recalled)
)
"""What a silent replica handles: none of it makes the replica promise anything."""


class Restoration(DeliveryPath[E]):
    """Restore a lost state from other members."""

    _asked = 0
    """The number of members that were asked for the state."""

    def harmless(self, sender: Process, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield those messages that a silent replica may handle, and redirect clients."""
        for message in messages:
            if type(message) is Multicast:
                self._redirect(sender)
            elif type(message) in HANDLED:
                yield message

    def _redirect(self, client: Process) -> None:
        ballot = self.leaders.get(self.group, NO_BALLOT)
        if ballot.leader not in (NO_BALLOT.leader, self.me):
            self._ready.send.append(((client,), Hint(self.group, ballot)))

    def _ask_for_state(self) -> None:
        """Ask the other members for the state, one after the other: there may be only one that has it."""
        others = [member for member in self.membership.everyone if member != self.me]
        if others and self.now >= self.asked_until:
            self._asked += 1
            self._catch_up(others[self._asked % len(others)])

    def executed(self, watermark: Timestamp) -> None:
        """Record what the application has durably executed; with enough of it, take part again."""
        super().executed(watermark)
        if self.is_restoring and watermark >= self.executed_ts:
            self.is_restoring = False
            self._break_silence()
            self.selection.expect_leader(self.now)
