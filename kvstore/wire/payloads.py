"""The payloads of messages, which may travel apart from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from kvstore.wire.frames import Envelope
from multicast.messages import Accept, Deliveries, Multicast, NewLeaderAck, NewState, Phase2a

STATES: Final = frozenset({NewLeaderAck, NewState})
"""Classes of messages that are a state of a group."""


def _of_entries(message: Any) -> list[bytes]:
    return [entry.payload for entry in message.entries]


_PAYLOADS: Final[Mapping[type, Callable[[Any], Sequence[bytes]]]] = {
    Multicast: lambda message: (message.payload,),
    Accept: attrgetter("payloads"),
    Phase2a: attrgetter("local.payloads"),
    NewLeaderAck: _of_entries,
    NewState: _of_entries,
    Deliveries: lambda message: [delivery.payload for delivery in message.deliveries],
}
"""By class, the payloads of a message that may become blobs."""


def payloads_of(message: Any) -> Sequence[bytes]:
    """Return the payloads of a message that may become blobs."""
    of = _PAYLOADS.get(type(message))
    return () if of is None else of(message)


def with_payloads(message: Any, payloads: Iterable[bytes], other: Mapping[int, bytes]) -> Any:
    """Return the message with other payloads in some columns."""
    new = tuple([other.get(column, payload) for column, payload in enumerate(payloads)])
    match message:
        case Multicast():
            return message._replace(payload=new[0])
        case Accept():
            return replace(message, payloads=new)
        case Phase2a():
            return replace(message, local=message.local._replace(payloads=new))
        case NewLeaderAck() | NewState():
            return replace(message, entries=_with(message.entries, new))
        case _:
            return replace(message, deliveries=_with(message.deliveries, new))


def _with(rows: Iterable[Any], payloads: Iterable[bytes]) -> tuple[Any, ...]:
    return tuple([row._replace(payload=payload) for row, payload in zip(rows, payloads, strict=True)])


def split_in_two(envelopes: Sequence[Envelope]) -> list[Sequence[Envelope]]:
    """Return the halves of envelopes that exceed one frame, in order; nothing for a single message."""
    if len(envelopes) > 1:
        middle = len(envelopes) // 2
        return [envelopes[:middle], envelopes[middle:]]
    [(sender, receiver, messages)] = envelopes
    middle = len(messages) // 2
    if not middle:
        return []
    return [[(sender, receiver, messages[:middle])], [(sender, receiver, messages[middle:])]]
