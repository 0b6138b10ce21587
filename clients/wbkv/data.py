"""What the store is asked for and what it answers, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from wbkv_proto.v1 import kv_pb2 as kv

V = TypeVar("V")
W = TypeVar("W")

_TICKS_PER_S: Final = 10_000
_GROUP_BITS: Final = 10
"""A revision is a time, in ticks since the cluster was made, and the number of a partition."""

Key: TypeAlias = str | bytes
"""A str stands for its UTF-8 bytes."""

Consistency: TypeAlias = Literal["strict", "serializable"]
"""`strict`: sees everything completed before. `serializable`: a state that existed, not before anything
that this client has seen, from whichever replica is near.
"""


def keys_bytes(keys: Iterable[Key]) -> list[bytes]:
    """Several keys. One is not taken for its letters."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"several keys are needed, not the one key {keys!r}")
    return [key_bytes(key) for key in keys]


def key_bytes(key: Key) -> bytes:
    """A key as the store knows it."""
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
    """Some keys, in the order of their bytes: see `prefix`, `between` and `EVERYTHING`."""

    __slots__ = ("end", "start")

    def __init__(self, start: bytes, end: bytes | None) -> None:
        self.start: Final = start
        self.end: Final = end
        """Not included; None: to the last key."""

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

    def message(self) -> kv.Range:
        """As the API has it."""
        if self.end is None and not self.start:
            return kv.Range(prefix=b"")
        return kv.Range(interval=kv.Interval(start=self.start, end=self.end or b""))


EVERYTHING: Final = KeyRange(b"", None)
"""All keys."""

Keys: TypeAlias = Key | KeyRange
"""A range; a str or bytes is a prefix."""


def prefix(start: Key) -> KeyRange:
    """All keys that begin with this."""
    raw = key_bytes(start)
    head = raw.rstrip(b"\xff")
    return KeyRange(raw, head[:-1] + bytes((head[-1] + 1,)) if head else None)


def between(start: Key, end: Key | None) -> KeyRange:
    """All keys from `start` up to, not including, `end`; None: to the last."""
    first = key_bytes(start)
    if end is None:
        return KeyRange(first, None)
    last = key_bytes(end)
    if last <= first:
        raise ValueError(f"the range from {first!r} to {last!r} is empty")
    return KeyRange(first, last)


def range_of(keys: Keys) -> KeyRange:
    """What stands for a range."""
    return keys if isinstance(keys, KeyRange) else prefix(keys)


class Entry(NamedTuple, Generic[V]):
    """A key with its value, and the transactions that made it what it is."""

    key: bytes
    value: V
    create_revision: int
    """Of the transaction that created it."""
    mod_revision: int
    """Of the last one that wrote it."""
    version: int
    """How many have written it since it was created: 1 at first."""

    @property
    def name(self) -> str:
        """The key as text."""
        return self.key.decode()


@dataclass(frozen=True, slots=True)
class Scanned(Generic[V]):
    """What a scan inside a transaction found."""

    entries: tuple[Entry[V], ...]
    count: int
    more: bool
    """Its limits ended it before the range did."""


class Failed(NamedTuple):
    """An operation inside a transaction that could not be performed, and wrote nothing."""

    fault: str
    """`overflow`, `not a number`, `value too large`, `compacted` or `future revision`."""


class TxnResult(NamedTuple, Generic[V]):
    """What became of a transaction."""

    succeeded: bool
    """Whether all conditions held: which branch was taken."""
    revision: int
    """The transaction's own, which its writes have. Of one that only reads: everything up to it is in what
    was read, which may be newer.
    """
    results: tuple[Entry[V] | Scanned[V] | Failed | int | None, ...]
    """Of the branch taken, in the order of its operations: an entry or None of a get, a `Scanned` of a
    scan, how many keys of a delete, the new number or length of add, minimum, maximum and append, None
    of a put.
    """
    unmet: tuple[int, ...]
    """The places, from 0, of the conditions that did not hold."""


class Event(NamedTuple, Generic[V]):
    """What became of a key."""

    key: bytes
    value: V | None
    """None: it was removed."""
    create_revision: int
    version: int

    @property
    def name(self) -> str:
        """The key as text."""
        return self.key.decode()


class Change(NamedTuple, Generic[V]):
    """What one transaction made of the watched keys."""

    revision: int
    events: tuple[Event[V], ...]
    """In the order of keys. None at all: a mark of progress, everything up to the revision has been seen."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Entries of a scan, each field of all of them together: what `numpy.frombuffer` and Arrow take as it is.
    Numbers are little endian.
    """

    revision: int
    """What all of the scan is as of."""
    count: int
    """How many entries there are here."""
    keys: bytes
    """One after the other."""
    key_ends: bytes
    """Where each ends, 32 bits."""
    values: bytes
    value_ends: bytes
    """Likewise; both empty if only keys were asked for."""
    create_revisions: bytes
    """64 bits, as those that follow."""
    mod_revisions: bytes
    versions: bytes


@dataclass(frozen=True, slots=True)
class Split:
    """A piece of a range."""

    partition: int
    """It has keys of this partition only."""
    keys: KeyRange
    count: int
    """About how many."""


class RequestId(NamedTuple):
    """What makes a write the same write, wherever and whenever it is sent again: it is executed once."""

    client: int
    """From 1 to 2^63 - 1: chosen so that nobody else has the same, at random or as a hash of something."""
    sequence: int
    """From 1 to 4096."""
    deadline: int
    """A revision (see `later`), at most a day ahead: after it, the write is not executed any more."""


def later(revision: int, seconds: float) -> int:
    """A revision so many seconds after another."""
    return revision + (int(seconds * _TICKS_PER_S) << _GROUP_BITS)


@dataclass(frozen=True, slots=True)
class Partition:
    """Where a partition is."""

    id: int
    leader: str | None
    """A node's name, if anybody is known to lead."""
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """Where things are."""

    cluster: str
    nodes: Mapping[str, str]
    """Addresses by name."""
    partitions: tuple[Partition, ...]
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition at a node."""

    id: int
    serving: bool
    leads: bool
    revision: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """How a node is."""

    name: str
    address: str
    partitions: tuple[PartitionStatus, ...] | None
    """None: it does not answer."""
    details: str
    """Everything it says of itself, as JSON; or why there is nothing."""
