"""Exactly once: what became of each client's requests, by their numbers.

The table changes with deliveries only, in their order. Whether a number is within the client's window is read
off the request itself, and a client expires by a message to all groups: so all destinations of a request
judge it alike, whatever else each of them has seen of the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from kvstore.machine.ordered import OrderedMap
from kvstore.machine.results import Refusal, Refused, Result
from multicast.types import ClientId, MessageId

WINDOW: Final = 4096
_EXPIRED: Final = -1

Number: TypeAlias = tuple[ClientId, int]


class Stored(NamedTuple):
    """A result that its client has not acknowledged, and the request's digest."""

    digest: int
    result: Result


@dataclass(frozen=True, slots=True)
class Repeated:
    """The request was delivered before; without a result, it is not yet executed."""

    result: Result | None


class Sessions:
    """The results of one group's requests that their clients may still ask for."""

    __slots__ = ("_lows", "_open", "_results", "_window")

    def __init__(
        self, lows: OrderedMap[ClientId, int], results: OrderedMap[Number, Stored], window: int = WINDOW
    ) -> None:
        self._lows = lows
        """Below it a client has acknowledged all results."""
        self._results = results
        self._open: dict[Number, int] = {}
        """Digests of what is delivered and not executed. Kept with the requests themselves."""
        self._window = window

    def admit(self, mid: MessageId, ack_below: int) -> Repeated | Refused | None:
        """A request is delivered. None if it is to be executed."""
        client, sequence, digest = mid
        low = self._lows.get(client)
        if low is None:
            low = 0
        elif low == _EXPIRED:
            return Refused(Refusal.EXPIRED, f"client {client} has expired")
        elif sequence < low:
            return Refused(
                Refusal.FORGOTTEN,
                f"request {sequence} of client {client}, which has acknowledged those below {low}",
            )
        known = self.find(mid)
        if known is None:
            if sequence >= ack_below + self._window:
                return Refused(
                    Refusal.WINDOW_FULL,
                    f"request {sequence} of client {client}, which has acknowledged those below {ack_below}, "
                    f"exceeds its window of {self._window}",
                )
            self._open[client, sequence] = digest
        if ack_below > low:
            self._trim(client, low, ack_below)
        return known

    def find(self, mid: MessageId) -> Repeated | Refused | None:
        """What is known of a request's number; None if nothing."""
        client, sequence, digest = mid
        number = (client, sequence)
        stored = self._results.get(number)
        if stored is not None:
            known, result = stored
        elif number in self._open:
            known, result = self._open[number], None
        else:
            return None
        if known != digest:
            return Refused(Refusal.MISMATCH, f"request {sequence} of client {client} was another one before")
        return Repeated(result)

    def reopen(self, mid: MessageId) -> None:
        """After a restart: a request that is delivered and not executed."""
        self._open[mid.client, mid.sequence] = mid.digest

    def executed(self, mid: MessageId, result: Result) -> None:
        """Keep the result until its client acknowledges it."""
        client, sequence, digest = mid
        del self._open[client, sequence]
        low = self._lows.get(client) or 0
        if low != _EXPIRED and sequence >= low:
            self._results.put((client, sequence), Stored(digest, result))

    def expire(self, client: ClientId) -> None:
        """Forget the client's results; whatever comes of it later is refused."""
        for number, _ in list(self._results.items((client, 0), (ClientId(client + 1), 0))):
            self._results.delete(number)
        self._lows.put(client, _EXPIRED)

    def _trim(self, client: ClientId, low: int, ack_below: int) -> None:
        self._lows.put(client, ack_below)
        for sequence in range(low, min(ack_below, low + self._window)):  # no number beyond was admitted
            self._results.delete((client, sequence))
