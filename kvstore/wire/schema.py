"""MessagePack formats of messages and records, on the wire and on disk, derived from their classes.

A message or a record is an array of its tag and its fields. Most messages are about runs, as columns, so
nothing has to be gathered.

Decoding trusts nothing. Any bytes become values that a correct process may have written, or raise one of
`ERRORS`. Memory grows with the bytes themselves, never with a length that they claim. Encoding checks
nothing: its values were decoded, or made by the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter, methodcaller
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from kvstore.config.addresses import NodeId
from multicast.errors import InvalidArgument
from multicast.membership import Membership
from multicast.types import (
    GROUPS_MAX,
    NO_BALLOT,
    TIMESTAMP_MAX,
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
"""The largest number, except for client ids, incarnations and digests, which have 64 bits."""

KNOWN_MAX: Final = 4096
"""Processes, ballots and destinations that are memoised."""


class FormatError(ValueError):
    """Well-formed bytes that no correct process writes."""


ERRORS: Final = (FormatError, msgspec.MsgspecError, InvalidArgument, UnicodeDecodeError)
"""What decoding may raise."""


# Processes, ballots and destinations are few, and come again and again: those that were checked are memoised,
# so that a check is one lookup, and equal ones are one object.

_Group: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=GROUPS_MAX - 1)]
_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
_Timestamp: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=TIMESTAMP_MAX)]
_Wide: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""Of 64 bits: MessagePack has no larger numbers."""
_Mid: Final = type(
    "MessageId",
    (MessageId,),
    {"__slots__": (), "__annotations__": {"client": _Wide, "sequence": _Number, "digest": _Wide}},
)
"""Message ids are most of what is read. With bounds that msgspec checks it makes them itself, in less than
half the time that it takes to make them of tuples."""
RawProcess: TypeAlias = tuple[int, int, int]
_Ballot: TypeAlias = tuple[int, RawProcess, int]

_CLIENT: Final = -1
"""Instead of a group: then the third number is a client's. A union of tuples and bounded numbers would be
simpler, but the garbage collector crashes on the decoder that msgspec 0.22 makes of one."""


def put_process(process: Process) -> RawProcess:
    """Return a process as three numbers."""
    return process if isinstance(process, ReplicaId) else (_CLIENT, 0, process)


@lru_cache(KNOWN_MAX)
def take_process(raw: RawProcess) -> Process:
    """Return the process that `put_process` was given."""
    group, number, last = raw
    if group == _CLIENT and number == 0 and last >= 0:
        return ClientId(last)
    if not (0 <= group < GROUPS_MAX and 0 <= number <= NUMBER_MAX and last >= 0):
        raise FormatError(f"{raw} is not a process")
    return ReplicaId(GroupId(group), number, last)


def _replica(raw: RawProcess) -> ReplicaId:
    process = take_process(raw)
    if type(process) is not ReplicaId:
        raise FormatError(f"{raw} is not a replica")
    return process


@lru_cache(KNOWN_MAX)
def _ballot(raw: _Ballot) -> Ballot:
    if raw == NO_BALLOT:
        return NO_BALLOT
    number, leader, configuration = raw
    if not (0 <= number <= NUMBER_MAX and 0 <= configuration <= NUMBER_MAX):
        raise FormatError(f"{raw} is not a ballot")
    return Ballot(number, _replica(leader), configuration)


@lru_cache(KNOWN_MAX)
def _destinations(raw: Destinations) -> Destinations:
    return raw


_Make: TypeAlias = Callable[[Any], Any]


class _Format(NamedTuple):
    """How values of a type are encoded: the raw type, and the conversions, unless values stay as they are."""

    raw: Any
    put: _Make | None = None
    take: _Make | None = None


_FORMATS: Final[dict[Any, _Format]] = {
    GroupId: _Format(_Group),
    ClientId: _Format(_Wide),
    Timestamp: _Format(_Timestamp),
    int: _Format(_Number),
    bool: _Format(bool),
    bytes: _Format(bytes),
    str: _Format(str),
    NodeId: _Format(str),
    Phase: _Format(Phase),
    MessageId: _Format(_Mid),
    ReplicaId: _Format(RawProcess, take=_replica),
    Ballot: _Format(_Ballot, take=_ballot),
    Destinations: _Format(tuple[_Group, ...], take=_destinations),
    Membership: _Format(bytes, put=methodcaller("encode"), take=Membership.decode),
}


def _format(hint: Any) -> _Format:
    """Return the format of values with this type hint."""
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
    """Return the tuple type, made at run time."""
    return tuple.__class_getitem__(types)


def _each(make: _Make, values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(make, values))


def _unless_none(make: _Make, value: Any) -> Any:
    return None if value is None else make(value)


_Conversion: TypeAlias = tuple[int, _Make]
"""The index of a field, and how it is converted."""


def _conversions(makes: Iterable[_Make | None]) -> list[_Conversion]:
    """Return the conversions of fields, but for those that stay as they are."""
    return [(i, make) for i, make in enumerate(makes) if make is not None]


def _row(cls: Any, formats: Sequence[_Format]) -> _Format:
    """Return the format of a class with fields, as a tuple of them."""
    raw = _tuple(*(each.raw for each in formats))
    puts, takes = _conversions(each.put for each in formats), _conversions(each.take for each in formats)
    fields = None if issubclass(cls, tuple) else _fields(cls)
    put = partial(_put_row, fields, puts) if puts or fields is not None else None
    take = partial(_take_row, None if cls is tuple else cls, takes) if takes or cls is not tuple else None
    return _Format(raw, put, take)


def _fields(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns all fields of an object that is not a tuple."""
    names = list(get_type_hints(cls))
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _put_row(
    fields: Callable[[Any], tuple[Any, ...]] | None, puts: Sequence[_Conversion], value: Any
) -> Sequence[Any]:
    row = value if fields is None else fields(value)
    if not puts:
        return row
    changed = list(row)
    for i, put in puts:
        changed[i] = put(changed[i])
    return changed


def _take_row(cls: Any, takes: Sequence[_Conversion], row: Iterable[Any]) -> Any:
    fields = list(row)
    for i, take in takes:
        fields[i] = take(fields[i])
    return tuple(fields) if cls is None else cls(*fields)


# Each class gets a msgspec struct: msgspec distinguishes structs by their tag.

Check: TypeAlias = Callable[[Any], None]
"""Raises `FormatError` if a decoded value is inconsistent."""


class Kinds(NamedTuple):
    """The formats of some classes."""

    put: Mapping[type, _Make]
    """By class, the conversion of an object for msgspec."""
    take: Mapping[type, _Make]
    """By msgspec struct, the conversion to the object."""
    raw: Any
    """The union of all msgspec structs."""


def kinds_of(tags: Mapping[int, type], checks: Mapping[type, Check]) -> Kinds:
    """Return the formats of classes, by their tags."""
    put: dict[type, _Make] = {}
    take: dict[type, _Make] = {}
    for tag, cls in tags.items():
        hints = get_type_hints(cls)
        formats = [_format(hint) for hint in hints.values()]
        struct = msgspec.defstruct(
            cls.__name__,
            [(name, each.raw) for name, each in zip(hints, formats, strict=True)],
            tag=tag,
            array_like=True,
            frozen=True,
            forbid_unknown_fields=True,
        )
        put[cls] = _put_kind(tag, cls, _conversions(each.put for each in formats))
        take[struct] = _take_kind(cls, _conversions(each.take for each in formats), checks.get(cls))
    return Kinds(put, take, Union[tuple(take)])  # noqa: UP007 - made at run time


# Frames and records consist of objects of these classes: each conversion is one call of a function.


def _put_kind(tag: int, cls: type, puts: Sequence[_Conversion]) -> _Make:
    """Return the function that converts an object for msgspec: to its tag and its fields."""
    fields = tuple if issubclass(cls, tuple) else _fields(cls)

    def put_plain(value: Any) -> Sequence[Any]:
        return (tag, *fields(value))

    def put_converted(value: Any) -> Sequence[Any]:
        row = [tag, *fields(value)]
        for i, put in puts:
            row[i + 1] = put(row[i + 1])
        return row

    return put_converted if puts else put_plain


def _take_kind(cls: type, takes: Sequence[_Conversion], check: Check | None) -> _Make:
    """Return the function that converts a msgspec struct to the object."""
    fields_of = msgspec.structs.astuple

    def take_plain(struct: msgspec.Struct) -> Any:
        return cls(*fields_of(struct))

    def take_converted(struct: msgspec.Struct) -> Any:
        fields = list(fields_of(struct))
        for i, take in takes:
            fields[i] = take(fields[i])
        value = cls(*fields)
        if check is not None:
            check(value)
        return value

    return take_converted if takes or check is not None else take_plain
