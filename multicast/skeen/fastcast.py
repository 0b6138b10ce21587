"""FastCast, after Coelho et al.: fault-tolerant Skeen that speculates on the outcome of consensus.

A leader sends its local timestamp to the other leaders at once, while its group decides it. They proceed as
if it were decided: the maximum is the global timestamp, and they have their groups decide that their clocks
pass it. When the local timestamp is decided, a second PROPOSE confirms it. By then the rest is usually done.

    client ──────> leader ═══════ consensus on lts ═══════> leader ──PROPOSE──> leader: deliver
              δ      └──PROPOSE──> leader ════ consensus on the clock ═════════════^
                          δ                             2δ

If a leader crashes before its group has decided, the group may decide another timestamp. Then the other
leaders learn the decided one, and have their groups decide about the right global timestamp instead.
"""

from __future__ import annotations

from multicast.skeen.entry import Entry
from multicast.skeen.ftskeen import FtSkeen


class FastCast(FtSkeen):
    """One process of FastCast."""

    def _send_proposal(self, entry: Entry) -> None:
        super()._send_proposal(entry)
        if len(entry.dest) > 1:  # otherwise there is no other leader
            self._note(entry, self.me, entry.local_ts, decided=False)
            self._queue_propose(entry)
            if not entry.missing:
                self._advance(entry)

    def _may_speak(self, entry: Entry) -> bool:
        return True


class EagerFastCast(FastCast):
    """FastCast whose clocks do not wait: they pass timestamps that are not decided yet."""

    eager = True
