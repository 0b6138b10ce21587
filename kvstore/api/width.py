"""How many fields a protobuf message has: counted before it is parsed.

A field may take two bytes on the wire, and fifty in memory. A message of eight megabytes of such fields takes
hundreds of megabytes and a third of a second to parse, in one step. So a large message is walked first, up to
a number of fields that no sensible message has.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kvstore.store.errors import LimitExceeded

FIELDS: Final = 1 << 17
"""Fields of a message and of all within it. A transaction within the limits has an eighth of that, and a
message of a session half, as the SDK sends it: it collects 256 KiB of calls at most.
"""

DEPTH: Final = 100
"""How deeply messages may be within each other: a parser rejects what is nested more deeply."""

Nested: TypeAlias = "dict[int, Nested | None]"
"""The fields of a message that have others within, by number: messages, and None for packed numbers."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Wire types. The two that are left are without a length."""


def check_width(kind: type[Message], raw: bytes) -> None:
    """Raise `LimitExceeded` if a message has too many fields. Malformed ones are left to the parser."""
    if len(raw) <= 2 * FIELDS:
        return
    try:
        count = _count(_nested(kind.DESCRIPTOR), raw, 0, len(raw), 0, DEPTH)
    except IndexError:
        return  # truncated
    if count > FIELDS:
        raise LimitExceeded(
            f"the message has more than {FIELDS:,} fields, which is the limit; send smaller messages",
            *("fields", FIELDS),
        )


def _count(nested: Nested, raw: bytes, at: int, end: int, count: int, depth: int) -> int:
    """Count the fields of a message from a position to another, in addition to a count, until they are too
    many. Returns the sum.
    """
    while at < end and count <= FIELDS:
        count += 1
        tag = raw[at]
        at += 1
        if tag > 127:
            tag, at = _varint(raw, at - 1)
        wire_type = tag & 7
        if wire_type == _LENGTH:
            length = raw[at]
            at += 1
            if length > 127:
                length, at = _varint(raw, at - 1)
            if length and depth and (tag >> 3) in nested:
                inner = nested[tag >> 3]
                if inner is None:
                    count += length  # packed numbers have a byte each at least
                else:
                    count = _count(inner, raw, at, min(at + length, end), count, depth - 1)
            at += length
        elif wire_type == _VARINT:
            while raw[at] > 127:
                at += 1
            at += 1
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
    return count


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Read a varint at a position. Returns it, and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise IndexError("a varint of more than ten bytes")


@cache
def _nested(kind: Any) -> Nested:
    """Find the fields that have others within."""
    return _fields_of(kind, {})


def _fields_of(kind: Any, known: dict[str, Nested]) -> Nested:
    """Find them in a message that may have others of its own kind within, as conditions do."""
    if kind.full_name in known:
        return known[kind.full_name]
    found: Nested = {}
    known[kind.full_name] = found
    flat = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)
    for field in kind.fields:
        if field.message_type is not None:
            found[field.number] = _fields_of(field.message_type, known)
        elif field.is_repeated and field.type not in flat:
            found[field.number] = None
    return found
