"""The message ids that a group has delivered: a low watermark per client, and exceptions above it.

The table is a function of the group's deliveries and their order only, so all replicas have the same table at
the same position.
"""

from __future__ import annotations

from collections.abc import Iterator

from multicast.types import ClientId, MessageId


class _ClientIds:
    __slots__ = ("above", "low")

    def __init__(self, low: int, above: dict[int, int | tuple[int, ...]]) -> None:
        self.low = low
        self.above = above

    def pass_below(self, low: int) -> None:
        above = self.above
        if low - self.low <= len(above):
            for passed in range(self.low, low):
                above.pop(passed, None)
        else:
            self.above = {s: d for s, d in above.items() if s >= low}
        self.low = low


class DeliveredIds:
    """Delivered ids, by client. A number below the client's watermark counts as delivered."""

    __slots__ = ("_clients",)

    def __init__(self) -> None:
        self._clients: dict[ClientId, _ClientIds] = {}

    def __contains__(self, mid: MessageId) -> bool:
        return self.find(mid) is True

    def find(self, mid: MessageId) -> bool | None:
        """Return True if it was delivered, False if only its number was, with another digest, else None."""
        number, sequence, digest = mid
        client = self._clients.get(number)
        if client is None:
            return None
        known = client.above.get(sequence)
        if known is None:
            return True if sequence < client.low else None
        return known == digest or digest in _all(known)

    def add(self, mid: MessageId, ack_below: int) -> bool:
        """Record a delivery. Return True if its number was used before, or is below the watermark."""
        number, sequence, digest = mid
        client = self._clients.get(number)
        if client is None:
            client = self._clients[number] = _ClientIds(0, {})
        above = client.above
        mismatch = sequence < client.low
        if sequence in above:
            mismatch = True
            above[sequence] = (*_all(above[sequence]), digest)
        elif not mismatch:
            above[sequence] = digest
        if ack_below > client.low:
            client.pass_below(ack_below)
        return mismatch

    def pass_below(self, client: ClientId, low: int) -> None:
        """Raise the client's watermark to at least this."""
        known = self._clients.get(client)
        if known is None:
            self._clients[client] = _ClientIds(low, {})
        elif low > known.low:
            known.pass_below(low)

    def low(self, client: ClientId) -> int:
        """Return the client's watermark; 0 if nothing of it was delivered."""
        known = self._clients.get(client)
        return 0 if known is None else known.low

    def copy(self) -> DeliveredIds:
        """Return an independent copy."""
        other = DeliveredIds()
        other._clients = {c: _ClientIds(k.low, dict(k.above)) for c, k in self._clients.items()}
        return other

    def rows(self) -> Iterator[tuple[ClientId, int, tuple[tuple[int, tuple[int, ...]], ...]]]:
        """Iterate over (client, low watermark, ((sequence, digests), ...)) by client, in a fixed order."""
        for client, known in sorted(self._clients.items()):
            above = sorted((sequence, _all(digests)) for sequence, digests in known.above.items())
            yield client, known.low, tuple(above)

    def __repr__(self) -> str:
        return f"DeliveredIds({list(self.rows())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeliveredIds) and list(self.rows()) == list(other.rows())

    __hash__ = None  # type: ignore[assignment]  # mutable


def _all(digests: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the digests as a tuple. Nearly every number has one digest, which is kept bare."""
    return (digests,) if isinstance(digests, int) else digests
