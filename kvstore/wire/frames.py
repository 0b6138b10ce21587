"""The wire format between nodes: frames of protocol messages, to bytes and back.

A frame carries what one node has for another in one turn of its loop, between any of their processes. It is
MessagePack (`formats`): an array of messages; and for each sender and receiver, in order, which of these the
one says to the other. A message to several replicas of a node is in it once.

Whoever changes a message's class, or `KINDS`, changes the format, and `transport.PROTOCOL_VERSION` with it:
nodes of different versions refuse each other.

Reading trusts nothing. Whatever the bytes are, they become what a node may have sent, or a `WireError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias, get_args

import msgspec

from kvstore.store.messages import STORE_MESSAGES, StoreMessage
from kvstore.wire.messages import SnapshotAck, SnapshotPiece
from kvstore.wire.schema import ERRORS, Check, FormatError, RawProcess, kinds_of, put_process, take_process
from multicast.client import MulticastRefused, Reply
from multicast.messages import Accept, Message, Phase2a, Phase2b, Propose
from multicast.types import GroupId, Process, ReplicaId, expand_dests

Sent: TypeAlias = Message | Reply | MulticastRefused | SnapshotPiece | SnapshotAck | StoreMessage
"""Whatever has a wire format."""

Envelope: TypeAlias = tuple[Process, Process, Sequence[Any]]
"""Sender, receiver, and what the one says to the other, in order."""


class WireError(ValueError):
    """Bytes that no correct node sends: the connection they came by is not worth keeping."""


def encode(envelopes: Iterable[Envelope]) -> bytes:
    """One frame with all these messages. Raises `TypeError` for what has no place in one."""
    put = _MESSAGES.put
    said: list[Any] = []
    places: dict[
        int, int
    ] = {}  # where each message is, by identity: who says one thing to many says one object
    frame = []
    try:
        for sender, receiver, messages in envelopes:
            run: dict[int, None] = {}
            for message in messages:
                place = places.get(id(message))
                if place is None or place in run:
                    place = places[id(message)] = len(said)
                    said.append(put[type(message)](message))
                run[place] = None
            frame.append((put_process(sender), put_process(receiver), list(run)))
    except KeyError as error:
        raise TypeError(f"there is no wire format for {error.args[0].__name__}") from None
    return _write((said, frame))


def decode(data: bytes) -> list[Envelope]:
    """What `encode` was given; equal ballots are one object, and so are equal destinations.

    Raises `WireError` for anything that is not a frame.
    """
    take = _MESSAGES.take
    try:
        raw, frame = _read(data)
        told = [(sender, receiver, place) for sender, receiver, run in frame for place in run]
        if len(set(told)) < len(told):  # else a small frame could be a lot of work
            raise FormatError("it says the same thing twice")
        said = [take[type(message)](message) for message in raw]
        return [
            (take_process(sender), take_process(receiver), [said[place] for place in run])
            for sender, receiver, run in frame
        ]
    except ERRORS as error:
        raise WireError(f"not a frame: {error}") from None
    except IndexError:
        raise WireError("not a frame: it names a message that it does not have") from None


def size_of(message: Sent) -> int:
    """Bytes of a frame that carries this message only, from one replica to another."""
    return len(encode([(_SOMEBODY, _SOMEBODY_ELSE, (message,))]))


_SOMEBODY: Final = ReplicaId(GroupId(0), 0, 0)
_SOMEBODY_ELSE: Final = ReplicaId(GroupId(0), 1, 0)


def _check_accept(message: Accept) -> None:
    length = len(message.mids)
    with_payloads = length if message.payloads else 0
    dests = len(expand_dests(message.dests, length))
    lengths = dests, len(message.local_ts), len(message.payloads), len(message.ack_below)
    if lengths != (length, length, with_payloads, with_payloads):
        raise FormatError(f"an ACCEPT of {length} messages has columns of {lengths}")


def _check_propose(message: Propose) -> None:
    _check_columns("a PROPOSE", message.mids, message.dests, message.local_ts, message.decided)


def _check_2a(message: Phase2a) -> None:
    _check_columns("a 2A", *message.local)
    _check_columns("a 2A", *message.clocks)


def _check_2b(message: Phase2b) -> None:
    _check_columns("a 2B", *message.clocks)


def _check_columns(what: str, *columns: Sequence[Any]) -> None:
    if len(lengths := set(map(len, columns))) > 1:
        raise FormatError(f"{what} has columns of {sorted(lengths)}")


def _check_reply(message: Reply) -> None:
    if len(message.mids) != len(message.positions):
        raise FormatError(f"a reply has {len(message.positions)} places of {len(message.mids)} messages")


KINDS: Final[Sequence[type]] = (*get_args(Message), Reply, MulticastRefused, SnapshotPiece, SnapshotAck)
"""In the order of their numbers, which begin with 16: those below are the store's, which are structs."""

_CHECKS: Final[Mapping[type, Check]] = {
    Accept: _check_accept,
    Propose: _check_propose,
    Phase2a: _check_2a,
    Phase2b: _check_2b,
    Reply: _check_reply,
}
_MESSAGES: Final = kinds_of(dict(enumerate(KINDS, 16)), STORE_MESSAGES, _CHECKS)
_write: Final = msgspec.msgpack.Encoder().encode
_Place: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_read: Final[Callable[[bytes], tuple[list[Any], list[tuple[RawProcess, RawProcess, list[int]]]]]] = (
    msgspec.msgpack.Decoder(
        tuple[list[_MESSAGES.raw], list[tuple[RawProcess, RawProcess, list[_Place]]]]  # type: ignore[name-defined]  # made at run time
    ).decode
)
