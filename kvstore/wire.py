"""The wire format between nodes: frames of protocol messages, to bytes and back.

A frame carries what one node has for another in one turn of its loop, between any of their processes. It is
MessagePack: for each sender and receiver an array of messages, in order, each an array of its kind and its
fields. Messages are about runs already, with columns of their own, so there is nothing left to gather here:
what a frame costs is what is in it, and one with a single message is as cheap as it is small.

The formats are made from what the classes declare. Whoever changes a class, or `KINDS`, changes the format,
and `transport.PROTOCOL_VERSION` with it: nodes of different versions refuse each other.

Reading trusts nothing. Whatever the bytes are, they become what a node may have sent, or a `WireError`.
Memory goes by what the bytes contain, never by a number that they claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from kvstore.messages import STORE_MESSAGES, SnapshotAck, SnapshotPiece, StoreMessage
from multicast.client import Refused, Reply
from multicast.errors import InvalidArgument
from multicast.membership import Membership
from multicast.messages import Accept, ClockUpdate, LocalTimestamp, Message, Value
from multicast.types import (
    GROUPS_MAX,
    NO_BALLOT,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Timestamp,
)

NUMBER_MAX: Final = 2**63 - 1
"""The largest number on the wire, but for client ids, incarnations and digests, which have 64 bits."""

KNOWN_MAX: Final = 4096
"""Processes, ballots and destinations that are remembered."""

Sent: TypeAlias = Message | Reply | Refused | SnapshotPiece | SnapshotAck | StoreMessage
"""Whatever has a wire format."""

Envelope: TypeAlias = tuple[Process, Process, Sequence[Any]]
"""Sender, receiver, and what the one says to the other, in order."""


class WireError(ValueError):
    """Bytes that no correct node sends: the connection they came by is not worth keeping."""


def encode(envelopes: Iterable[Envelope]) -> bytes:
    """One frame with all these messages. Raises `TypeError` for what has no place in one."""
    try:
        return _write(
            [
                (
                    sender if type(sender) is ReplicaId else (_CLIENT, 0, sender),
                    receiver if type(receiver) is ReplicaId else (_CLIENT, 0, receiver),
                    [_PUT[type(message)](message) for message in messages],
                )
                for sender, receiver, messages in envelopes
            ]
        )
    except KeyError as error:
        raise TypeError(f"there is no wire format for {error.args[0].__name__}") from None


def decode(data: bytes) -> list[Envelope]:
    """What `encode` was given; equal ballots are one object, and so are equal destinations.

    Raises `WireError` for anything that is not a frame.
    """
    try:
        return [
            (
                _PROCESSES.get(sender) or _process(sender),
                _PROCESSES.get(receiver) or _process(receiver),
                [_TAKE[type(message)](message) for message in messages],
            )
            for sender, receiver, messages in _read(data)
        ]
    except (msgspec.MsgspecError, InvalidArgument, UnicodeDecodeError) as error:
        raise WireError(f"not a frame: {error}") from None


def size_of(message: Sent) -> int:
    """Bytes of a frame that carries this message only, from one replica to another."""
    return len(encode([(_SOMEBODY, _SOMEBODY_ELSE, (message,))]))


_SOMEBODY: Final = ReplicaId(GroupId(0), 0, 0)
_SOMEBODY_ELSE: Final = ReplicaId(GroupId(0), 1, 0)


# What is on the wire in the place of what. Processes, ballots and destinations are few, and come again and
# again: a table has those that were checked, so that a check is one lookup, and equal ones are one object.

_Group: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=GROUPS_MAX - 1)]
_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
_Wide: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""MessagePack has no numbers of more than 64 bits."""
_Replica: TypeAlias = tuple[int, int, int]
_Ballot: TypeAlias = tuple[int, _Replica, int]

_CLIENT: Final = -1
"""In the place of a group: then the third number is a client's. A union of tuples and bounded numbers would
be plainer, but the garbage collector crashes on the decoder that msgspec 0.22 makes of one."""

_PROCESSES: Final[dict[_Replica, Process]] = {}
_BALLOTS: Final[dict[_Ballot, Ballot]] = {NO_BALLOT: NO_BALLOT}
_DESTINATIONS: Final[dict[Destinations, Destinations]] = {}


def _process(raw: _Replica) -> Process:
    group, number, last = raw
    process: Process = ReplicaId(GroupId(group), number, last)
    if group == _CLIENT and number == 0 and last >= 0:
        process = ClientId(last)
    elif not (0 <= group < GROUPS_MAX and 0 <= number <= NUMBER_MAX and last >= 0):
        raise WireError(f"there is no process {raw}")
    if len(_PROCESSES) >= KNOWN_MAX:
        _PROCESSES.clear()
    _PROCESSES[raw] = process
    return process


def _replica(raw: _Replica) -> ReplicaId:
    process = _PROCESSES.get(raw) or _process(raw)
    if type(process) is not ReplicaId:
        raise WireError(f"{raw} is no replica")
    return process


def _ballot(raw: _Ballot) -> Ballot:
    known = _BALLOTS.get(raw)
    if known is not None:
        return known
    number, leader, configuration = raw
    if not (0 <= number <= NUMBER_MAX and 0 <= configuration <= NUMBER_MAX):
        raise WireError(f"there is no ballot {raw}")
    if len(_BALLOTS) >= KNOWN_MAX:
        _BALLOTS.clear()
        _BALLOTS[NO_BALLOT] = NO_BALLOT
    ballot = _BALLOTS[raw] = Ballot(number, _replica(leader), configuration)
    return ballot


def _destinations(raw: Destinations) -> Destinations:
    if len(_DESTINATIONS) >= KNOWN_MAX:
        _DESTINATIONS.clear()
    return _DESTINATIONS.setdefault(raw, raw)


def _put_value(value: Value) -> tuple[Any, ...]:
    if isinstance(value, ClockUpdate):
        return value.mid, value.global_ts, None
    mid, dest, payload, ack_below, local_ts = value
    return mid, local_ts, (dest, payload, ack_below)


def _take_value(raw: tuple[Any, ...]) -> Value:
    mid, ts, rest = raw
    if rest is None:
        return ClockUpdate(_new_mid(mid), ts)
    dest, payload, ack_below = rest
    return LocalTimestamp(_new_mid(mid), _destinations(dest), payload, ack_below, ts)


_new_mid: Final[Callable[[tuple[Any, ...]], MessageId]] = partial(tuple.__new__, MessageId)
"""As `_make`, in half the time: no Python code is run."""

_Make: TypeAlias = Callable[[Any], Any]


class _Format(NamedTuple):
    """How values of a type travel: as what, and how the one becomes the other, if that is not the same."""

    raw: Any
    put: _Make | None = None
    take: _Make | None = None


_Mid: TypeAlias = tuple[_Wide, _Number, _Wide]
_FORMATS: Final[dict[Any, _Format]] = {
    GroupId: _Format(_Group),
    ClientId: _Format(_Wide),
    Timestamp: _Format(_Number),
    int: _Format(_Number),
    bool: _Format(bool),
    bytes: _Format(bytes),
    str: _Format(str),
    Phase: _Format(Phase),
    MessageId: _Format(_Mid, take=_new_mid),
    ReplicaId: _Format(_Replica, take=_replica),
    Ballot: _Format(_Ballot, take=_ballot),
    Destinations: _Format(tuple[_Group, ...], take=_destinations),
    Membership: _Format(bytes, put=methodcaller("encode"), take=Membership.decode),
    Value: _Format(
        tuple[_Mid, _Number, tuple[tuple[_Group, ...], bytes, _Number] | None],
        put=_put_value,
        take=_take_value,
    ),
}


def _format(hint: Any) -> _Format:
    """How values with this type's hint travel."""
    if hint in _FORMATS:
        return _FORMATS[hint]
    arguments = get_args(hint)
    if get_origin(hint) is tuple and arguments[-1] is Ellipsis:
        raw, put, take = _format(arguments[0])
        return _Format(_tuple(raw, ...), put and partial(_each, put), take and partial(_each, take))
    if get_origin(hint) is tuple:
        return _row(tuple, [_format(argument) for argument in arguments])
    if get_origin(hint) in (Union, UnionType):
        (wanted,) = set(arguments) - {NoneType}
        raw, put, take = _format(wanted)
        return _Format(raw | None, put and partial(_unless_none, put), take and partial(_unless_none, take))
    return _row(hint, [_format(field) for field in get_type_hints(hint).values()])


def _tuple(*types: Any) -> Any:
    """The type, made at run time."""
    return tuple.__class_getitem__(types)


def _each(make: _Make, values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(make, values))


def _unless_none(make: _Make, value: Any) -> Any:
    return None if value is None else make(value)


def _row(cls: Any, formats: Sequence[_Format]) -> _Format:
    """Something with fields, as a tuple of them."""
    raw = _tuple(*(each.raw for each in formats))
    puts = [(i, each.put) for i, each in enumerate(formats) if each.put is not None]
    takes = [(i, each.take) for i, each in enumerate(formats) if each.take is not None]
    fields = None if issubclass(cls, tuple) else _fields(cls)
    put = partial(_put_row, fields, puts) if puts or fields is not None else None
    take = partial(_take_row, None if cls is tuple else cls, takes) if takes or cls is not tuple else None
    return _Format(raw, put, take)


def _fields(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    """All fields of a thing that is no tuple."""
    names = list(get_type_hints(cls))
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _put_row(
    fields: Callable[[Any], tuple[Any, ...]] | None, puts: Sequence[tuple[int, _Make]], value: Any
) -> Sequence[Any]:
    row = value if fields is None else fields(value)
    if not puts:
        return row
    changed = list(row)
    for i, put in puts:
        changed[i] = put(changed[i])
    return changed


def _take_row(cls: Any, takes: Sequence[tuple[int, _Make]], row: Iterable[Any]) -> Any:
    fields = list(row)
    for i, take in takes:
        fields[i] = take(fields[i])
    return tuple(fields) if cls is None else cls(*fields)


# Messages: a struct of msgspec's for each kind, since it tells these apart by their first number.

KINDS: Final[tuple[type, ...]] = (*get_args(Message), Reply, Refused, SnapshotPiece, SnapshotAck)
"""Whatever is not of the store's: those are structs already, with the numbers below 16."""

_FIRST: Final = 16


def _kind(number: int, cls: type) -> type[msgspec.Struct]:
    """Make the format of a kind of message, and enter it into the tables."""
    hints = get_type_hints(cls)
    raw, put, take = _row(cls, [_format(hint) for hint in hints.values()])
    struct = msgspec.defstruct(
        cls.__name__,
        zip(hints, get_args(raw), strict=True),
        tag=number,
        array_like=True,
        frozen=True,
        forbid_unknown_fields=True,
    )
    assert take is not None
    _PUT[cls] = partial(_put_message, number, put)
    _TAKE[struct] = partial(_take_message, take, _CHECKS.get(cls))
    return struct


def _put_message(number: int, put: _Make | None, message: Any) -> tuple[Any, ...]:
    return (number, *message) if put is None else (number, *put(message))


def _take_message(take: _Make, check: Callable[[Any], None] | None, struct: msgspec.Struct) -> Any:
    message = take(msgspec.structs.astuple(struct))
    if check is not None:
        check(message)
    return message


def _check_accept(message: Accept) -> None:
    length = len(message.mids)
    with_payloads = length if message.payloads else 0
    lengths = len(message.local_ts), len(message.payloads), len(message.ack_below)
    if lengths != (length, with_payloads, with_payloads):
        raise WireError(f"an ACCEPT of {length} messages has columns of {lengths}")


def _check_reply(message: Reply) -> None:
    if len(message.mids) != len(message.places):
        raise WireError(f"a reply has {len(message.places)} places of {len(message.mids)} messages")


def _same(message: StoreMessage) -> StoreMessage:
    return message


_CHECKS: Final[dict[type, Callable[[Any], None]]] = {Accept: _check_accept, Reply: _check_reply}
_PUT: Final[dict[type, Callable[[Any], Any]]] = dict.fromkeys(STORE_MESSAGES, _same)
_TAKE: Final[dict[type, Callable[[Any], Any]]] = dict.fromkeys(STORE_MESSAGES, _same)

_ANY: Final[Any] = Union[(StoreMessage, *(_kind(number, cls) for number, cls in enumerate(KINDS, _FIRST)))]
_write: Final = msgspec.msgpack.Encoder().encode
_read: Final[Callable[[bytes], list[tuple[_Replica, _Replica, list[Any]]]]] = msgspec.msgpack.Decoder(
    list[_tuple(_Replica, _Replica, list.__class_getitem__(_ANY))]  # type: ignore[misc]  # made here
).decode
