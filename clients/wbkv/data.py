"""Keys, ranges and results as plain data."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from wbkv_proto.v1 import kv_pb2 as kv

V = TypeVar("V")
W = TypeVar("W")

_TICKS_PER_S: Final = 10_000
_GROUP_BITS: Final = 10
"""A revision is a time, in ticks since the cluster was made, and the number of a partition."""

SHOWN: Final = 40
"""Bytes or characters of a value that are shown; and twice as many of other representations."""

LISTED: Final = 3
"""Items that are shown."""


class _Short(reprlib.Repr):
    """Shortens what may be of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = 2 * SHOWN

    def repr_bytes(self, value: bytes, _: int) -> str:
        """Show the beginning of bytes, and how many there are."""
        return repr(value) if len(value) <= SHOWN else f"{value[:SHOWN]!r}... ({len(value)} bytes)"


short: Final = _Short().repr
"""Return the representation of a value, shortened: values may have megabytes."""


def several(items: Sequence[object]) -> str:
    """Return the representations of the first items, and how many others there are."""
    more = [f"... and {len(items) - LISTED} more"] if len(items) > LISTED else []
    return ", ".join([*map(repr, items[:LISTED]), *more])


Key: TypeAlias = str | bytes
"""A key. A str stands for its UTF-8 bytes."""

Consistency: TypeAlias = Literal["strict", "serializable"]
"""`strict`: a read sees everything completed before it. `serializable`: a read sees a past state, at least as
recent as anything that this client has seen, and any replica may serve it.
"""


def keys_bytes(keys: Iterable[Key]) -> list[bytes]:
    """Encode several keys. Raises `TypeError` for one str or bytes, which would be split into letters."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"several keys are needed, not the one key {keys!r}; pass a list")
    return [key_bytes(key) for key in keys]


def key_bytes(key: Key) -> bytes:
    """Encode a key."""
    if type(key) is str:
        return key.encode()
    if type(key) is bytes:
        return key
    if isinstance(key, str):
        return str(key).encode()
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise TypeError(f"a key must be str or bytes, not {type(key).__name__}")


class KeyRange:
    """A range of keys, in the order of their bytes: see `prefix`, `between` and `EVERYTHING`."""

    __slots__ = ("end", "start")

    def __init__(self, start: bytes, end: bytes | None) -> None:
        self.start: Final = start
        self.end: Final = end
        """The exclusive upper bound; None: the range has no upper bound."""

    def __repr__(self) -> str:
        return f"KeyRange({self.start!r}, {self.end!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyRange):
            return NotImplemented
        return (self.start, self.end) == (other.start, other.end)

    def __hash__(self) -> int:
        return hash((self.start, self.end))

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str | bytes):
            return False
        raw = key_bytes(key)
        return raw >= self.start and (self.end is None or raw < self.end)

    def overlaps(self, other: KeyRange) -> bool:
        """Return whether a key may be in both ranges."""
        above = self.end is not None and other.start >= self.end
        below = other.end is not None and self.start >= other.end
        return not (above or below)

    def message(self) -> kv.Range:
        """Return the range as a message of the API."""
        if self.end is None and not self.start:
            return kv.Range(prefix=b"")
        return kv.Range(interval=kv.Interval(start=self.start, end=self.end or b""))


EVERYTHING: Final = KeyRange(b"", None)
"""The range of all keys."""

Keys: TypeAlias = Key | KeyRange
"""A range; a str or bytes is a prefix."""


def prefix(start: Key) -> KeyRange:
    """Return the range of all keys that begin with `start`."""
    raw = key_bytes(start)
    head = raw.rstrip(b"\xff")
    return KeyRange(raw, head[:-1] + bytes((head[-1] + 1,)) if head else None)


def between(start: Key, end: Key | None) -> KeyRange:
    """Return the range of keys from `start` up to, not including, `end`; None: no upper bound."""
    first = key_bytes(start)
    if end is None:
        return KeyRange(first, None)
    last = key_bytes(end)
    if last <= first:
        raise ValueError(f"the range from {first!r} to {last!r} is empty: end must be greater than start")
    return KeyRange(first, last)


def range_of(keys: Keys) -> KeyRange:
    """Convert a range or a prefix to a range."""
    return keys if isinstance(keys, KeyRange) else prefix(keys)


class Entry(NamedTuple, Generic[V]):
    """A key with its value and revisions."""

    key: bytes
    value: V
    create_revision: int
    """The revision of the transaction that created the key."""
    mod_revision: int
    """The revision of the last transaction that wrote the key."""
    version: int
    """The number of transactions that have written the key since its creation, which counts as 1."""

    def __repr__(self) -> str:
        revisions = f"create_revision={self.create_revision}, mod_revision={self.mod_revision}"
        return f"Entry({short(self.key)}, {short(self.value)}, {revisions}, version={self.version})"

    @property
    def name(self) -> str:
        """The key as text."""
        return self.key.decode()


@dataclass(frozen=True, slots=True)
class Scanned(Generic[V]):
    """The result of a scan inside a transaction."""

    entries: tuple[Entry[V], ...]
    count: int
    more: bool
    """Whether a limit ended the scan before the end of the range."""

    def __repr__(self) -> str:
        return f"Scanned([{several(self.entries)}], count={self.count}, more={self.more})"


class Failed(NamedTuple):
    """The result of a read inside a transaction that is too large to return; and, in a transaction that
    allows failures, of an operation that could not be performed, and wrote nothing.
    """

    fault: str
    """`not a number`, `overflow`, `below floor`, `above ceiling`, `value too large` or `too many rows`."""


class TxnResult(NamedTuple, Generic[V]):
    """The result of a transaction."""

    succeeded: bool
    """Whether all conditions held: `then` was executed, and otherwise `otherwise`."""
    revision: int
    """The revision of the transaction, which its writes have. If it only reads: everything up to this
    revision is in what was read, which may be newer.
    """
    results: tuple[Entry[V] | Scanned[V] | Failed | int | None, ...]
    """The results of the branch executed, in the order of its operations: an `Entry` or None for a get or a
    swap, a `Scanned` for a scan, the number of keys for a delete, the new number or length for add, minimum,
    maximum and append, None for a put, a `Failed` for an operation that failed.
    """
    unmet: tuple[int, ...]
    """The indexes, from 0, of the conditions that did not hold. An `any_of` or `all_of` counts as one."""

    def __repr__(self) -> str:
        shown = f"succeeded={self.succeeded}, revision={self.revision}, results=[{several(self.results)}]"
        return f"TxnResult({shown}{f', unmet={self.unmet}' if self.unmet else ''})"


class Event(NamedTuple, Generic[V]):
    """The change of one key by a transaction."""

    key: bytes
    value: V | None
    """None: the key was removed, or a codec has decoded its value as None: see `removed`."""
    create_revision: int
    version: int

    @property
    def removed(self) -> bool:
        """Whether the key was removed."""
        return self.version == 0

    def __repr__(self) -> str:
        revisions = f"create_revision={self.create_revision}, version={self.version}"
        shown = "removed=True" if self.removed else short(self.value)
        return f"Event({short(self.key)}, {shown}, {revisions})"

    @property
    def name(self) -> str:
        """The key as text."""
        return self.key.decode()


class Change(NamedTuple, Generic[V]):
    """The changes of one transaction to the watched keys."""

    revision: int
    events: tuple[Event[V], ...]
    """In the order of keys. Empty for a progress mark: all changes up to the revision have been returned."""

    def __repr__(self) -> str:
        return f"Change(revision={self.revision}, events=[{several(self.events)}])"


@dataclass(frozen=True, slots=True)
class Columns:
    """A page of a scan as columns, which `numpy.frombuffer` and Arrow read without conversion. Numbers are
    little endian.
    """

    revision: int
    """The revision of the whole scan."""
    count: int
    """The number of entries in this page."""
    keys: bytes
    """All keys, concatenated."""
    key_ends: bytes
    """The end of each key in `keys`, 32 bits."""
    values: bytes
    value_ends: bytes
    """Likewise for values. Both are empty if only keys were requested."""
    create_revisions: bytes
    """64 bits each, as in the following columns."""
    mod_revisions: bytes
    versions: bytes

    def __repr__(self) -> str:
        size = sum(len(getattr(self, name)) for name in self.__slots__ if name not in ("revision", "count"))
        return f"Columns(revision={self.revision}, count={self.count}, {size} bytes)"


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a range, for parallel scans."""

    partition: int
    """The only partition whose keys are in it."""
    keys: KeyRange
    count: int
    """About how many keys it has."""


class RequestId(NamedTuple):
    """The id of a write. Writes with the same id are executed once, whenever they are repeated."""

    client: int
    """From 1 to 2^63 - 1. Choose one that no other client uses: at random, or as a hash."""
    sequence: int
    """From 1 to 4096."""
    deadline: int
    """A revision, at most a day ahead (see `later`). After it, the write is not executed."""


def later(revision: int, seconds: float) -> int:
    """Return the revision that is `seconds` after another."""
    return revision + (int(seconds * _TICKS_PER_S) << _GROUP_BITS)


@dataclass(frozen=True, slots=True)
class Partition:
    """The location of a partition."""

    id: int
    leader: str | None
    """The name of the leading node; None if it is unknown."""
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes and partitions of a cluster."""

    cluster: str
    nodes: Mapping[str, str]
    """The addresses of the nodes, by name."""
    partitions: tuple[Partition, ...]
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The status of a partition at a node."""

    id: int
    serving: bool
    leads: bool
    revision: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a node."""

    name: str
    address: str
    partitions: tuple[PartitionStatus, ...] | None
    """None: the node does not answer."""
    details: str = field(repr=False)
    """The node's full status as JSON, or the reason why there is none."""
