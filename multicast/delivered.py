"""Which message ids a group has delivered: a low watermark per client, and exceptions above it.

The table is a function of the group's deliveries and their order only, so all replicas have the same one
at the same position.
"""

from __future__ import annotations

from collections.abc import Iterator

from multicast.types import ClientId, MessageId


class _Client:
    __slots__ = ("above", "low")

    def __init__(self, low: int, above: dict[int, tuple[int, ...]]) -> None:
        self.low = low
        self.above = above


class DeliveredIds:
    """Delivered ids, by client. A number below the client's watermark counts as delivered."""

    __slots__ = ("_clients",)

    def __init__(self) -> None:
        self._clients: dict[ClientId, _Client] = {}

    def __contains__(self, mid: MessageId) -> bool:
        client = self._clients.get(mid.client)
        if client is None:
            return False
        return mid.sequence < client.low or mid.digest in client.above.get(mid.sequence, ())

    def conflicts(self, mid: MessageId) -> bool:
        """Whether the client's number was delivered here under another digest."""
        client = self._clients.get(mid.client)
        return client is not None and mid.digest not in client.above.get(mid.sequence, (mid.digest,))

    def add(self, mid: MessageId, ack_below: int) -> bool:
        """Record a delivery. True if the number was taken by something else, or is below the watermark."""
        sequence = mid.sequence
        client = self._clients.get(mid.client)
        if client is None:
            self._clients[mid.client] = _Client(ack_below, {sequence: (mid.digest,)})
            return False
        above = client.above
        known = above.get(sequence)
        mismatch = known is not None or sequence < client.low
        if known is not None:
            above[sequence] = (*known, mid.digest)
        elif not mismatch:
            above[sequence] = (mid.digest,)
        if ack_below > client.low:
            if ack_below - client.low <= len(above):
                for passed in range(client.low, ack_below):
                    above.pop(passed, None)
            else:
                client.above = {s: d for s, d in above.items() if s >= ack_below}
            client.low = ack_below
        return mismatch

    def copy(self) -> DeliveredIds:
        """An independent copy."""
        other = DeliveredIds()
        other._clients = {c: _Client(k.low, dict(k.above)) for c, k in self._clients.items()}
        return other

    def rows(self) -> Iterator[tuple[ClientId, int, tuple[tuple[int, tuple[int, ...]], ...]]]:
        """Every client's row: (client, low watermark, ((sequence, digests), ...)), in a fixed order."""
        for client, known in sorted(self._clients.items()):
            yield client, known.low, tuple(sorted(known.above.items()))

    def __repr__(self) -> str:
        return f"DeliveredIds({list(self.rows())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeliveredIds) and list(self.rows()) == list(other.rows())

    __hash__ = None  # type: ignore[assignment]  # mutable
