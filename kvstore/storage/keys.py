"""Names of sub-databases, and the keys of their rows.

Keys are big-endian, so that LMDB's order is that of the numbers.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from kvstore.storage.errors import DamagedRow
from multicast.types import GROUPS_MAX, ClientId, GroupId, MessageId, Timestamp

# Sub-databases

META: Final = b"meta"
"""In both environments: `INCARNATION`, so that they cannot be mixed with another disk's."""

LOG_ROWS: Final = b"rows"
"""(group, number of the last batch in it): records that became durable together."""

LOG_BASES: Final = b"bases"
"""group: a number, and records that amount to all rows up to it. Such rows are only waiting to be deleted."""

LOG_STAGED: Final = b"staged"
"""(number of a payload, index): a piece of a large payload, to which records refer."""

STATE_POSITIONS: Final = b"positions"
"""group: the global timestamp of its last delivery, and how many there are."""

STATE_DELIVERIES: Final = b"deliveries"
"""(group, global timestamp of the last of them): a run of deliveries."""

STATE_CLIENTS: Final = b"clients"
"""(group, client): the low watermark of the delivered ids, if it is above 0."""

STATE_ORDER: Final = b"places"
"""(group, client, sequence, digest): global timestamp of a delivery at or above the client's watermark."""

STORE_CHECKPOINTS: Final = b"images"
"""group: everything of a store that is in no table."""

STORE_RINGS: Final = b"rings"
"""group: which of the last deliveries `STATE_DELIVERIES` still has, and how many bytes they are."""

STORE_NODES: Final = b"nodes"
"""(node, the rest of a long key, or its next part): as in a table. See `kvstore.storage.rows`."""

LOG_DATABASES: Final = (META, LOG_ROWS, LOG_BASES, LOG_STAGED)
DELIVERIES_DATABASES: Final = (META, STATE_POSITIONS, STATE_DELIVERIES, STATE_CLIENTS, STATE_ORDER)
STORE_DATABASES: Final = (META, STORE_CHECKPOINTS, STORE_RINGS, STATE_DELIVERIES, STORE_NODES)

INCARNATION: Final = b"incarnation"

_BEGUN: Final = b"begun"


# Keys. A row of a group has its group's key as prefix.

_GROUP: Final = struct.Struct(">H")
_PAIR: Final = struct.Struct(">HQ")
_PIECE: Final = struct.Struct(">QI")
_DELIVERY: Final = struct.Struct(">HQQQ")
NUMBER: Final = struct.Struct(">Q")

group_key = _GROUP.pack


def begun_key(group: GroupId) -> bytes:
    """Return the key, in `META` of the log, of how often the group's replica had begun anew when it wrote
    the rows that are there.
    """
    return _BEGUN + _GROUP.pack(group)


def row_key(group: GroupId, number: int) -> bytes:
    """Return the key of a row of the log."""
    return _PAIR.pack(group, number)


def piece_key(stage: int, index: int) -> bytes:
    """Return the key of a piece of a staged payload."""
    return _PIECE.pack(stage, index)


def stage_of_key(key: bytes, where: str) -> int:
    """Return the number of the payload that has this piece."""
    stage: int
    stage, _ = unpack(_PIECE, key, where)
    return stage


def run_key(group: GroupId, last: Timestamp) -> bytes:
    """Return the key of a run of deliveries that ends at this timestamp."""
    return _PAIR.pack(group, last)


def client_key(group: GroupId, client: ClientId) -> bytes:
    """Return the key of a client's low watermark."""
    return _PAIR.pack(group, client)


def delivery_key(group: GroupId, mid: MessageId) -> bytes:
    """Return the key of a delivery's position in the order."""
    return _DELIVERY.pack(group, *mid)


NODE_BYTES: Final = NUMBER.size


def table_name(name: str) -> bytes:
    """Return the sub-database of a store's table: (group, key), or a mark that leads to a long key."""
    return b"table " + name.encode()


def number_of_node(key: bytes) -> int:
    """Return the node that has this row."""
    return int.from_bytes(key[:NODE_BYTES], "big")


def group_of_key(key: bytes, where: str) -> GroupId:
    """Return the group that has this row."""
    group: int
    (group,) = unpack(_GROUP, key[: _GROUP.size], where)
    if group >= GROUPS_MAX:
        raise DamagedRow(f"{where}: the key {key.hex()} has the group {group}")
    return GroupId(group)


def number_of_key(key: bytes, where: str) -> int:
    """Return the number after the group: of a row, a run's last global timestamp, or a client."""
    number: int
    _, number = unpack(_PAIR, key, where)
    return number


def mid_of_key(key: bytes, where: str) -> MessageId:
    """Return the message of a row with a position."""
    _, client, sequence, digest = unpack(_DELIVERY, key, where)
    return MessageId(client, sequence, digest)


def unpack(form: struct.Struct, data: bytes, where: str) -> tuple[Any, ...]:
    """Unpack a key or value of exactly this form. Raises `DamagedRow`."""
    if len(data) != form.size:
        raise DamagedRow(f"{where}: {data.hex()} has {len(data)} bytes, not {form.size}")
    return form.unpack(data)
