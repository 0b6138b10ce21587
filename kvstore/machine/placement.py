"""Which group has which key: an ordered token of every key, and a versioned map of token ranges to groups.

A change of the map is a message to all groups. So the map is a function of the global timestamp, and all
destinations of a transaction judge its routing alike.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

from msgspec.structs import replace

from kvstore.machine.data import Data
from kvstore.machine.formula import Combined
from kvstore.machine.request import (
    RANGE_OPERATIONS,
    Append,
    Calculate,
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Footprint,
    Get,
    InvalidRequest,
    Operation,
    PointOperation,
    Put,
    Range,
    Scan,
    Swap,
    Transaction,
    Unchanged,
    footprint_of,
)
from multicast.types import Destinations, GroupId

SLOTS: Final = 1 << 14
_SLOT_BYTES: Final = 2
_SLOT_MASK: Final = SLOTS - 1
SHORT: Final = 64
"""Keys that a transaction reads in one step, whatever their values."""
WRITES: Final = 256
"""Keys that a transaction writes in one step."""
_BLIND: Final = (Put, Delete)
"""Operations whose results do not depend on what was there."""
_FALLIBLE: Final = (Calculate, Append, Swap)
"""Writes of a key that may turn out to be impossible."""
_RETURNS_VALUES: Final = (Get, Scan, Swap)
_ON_RANGES: Final = (*RANGE_OPERATIONS, Unchanged)
_NO_GROUPS: Final[frozenset[GroupId]] = frozenset()


class Scheme(enum.Enum):
    """What a key's token is: its hash slot, or the key itself."""

    HASHED = "hashed"
    ORDERED = "ordered"


_ORDERED: Final = Scheme.ORDERED


def tag_of(key: bytes) -> bytes:
    """What of a key is hashed: what stands in its first braces, unless nothing does, or all of it."""
    begin = key.find(b"{")
    if begin < 0:
        return key
    end = key.find(b"}", begin + 1)
    return key[begin + 1 : end] if end > begin + 1 else key


def slot_token(slot: int) -> bytes:
    """A hash slot as a token."""
    return slot.to_bytes(_SLOT_BYTES, "big")


class Placement(Data, frozen=True):
    """The map: from each token in `starts` up to the next, the group beside it."""

    version: int
    scheme: Scheme
    starts: tuple[bytes, ...]
    owners: tuple[GroupId, ...]
    groups: tuple[GroupId, ...]
    """All groups there are, those that own no tokens included: a change of the map is sent to all."""

    def __post_init__(self) -> None:
        if not set(self.owners).issubset(self.groups):
            raise InvalidRequest(f"the owners {self.owners} are not all among the groups {self.groups}")
        if len(self.starts) != len(self.owners) or not self.starts:
            raise InvalidRequest(f"{len(self.starts)} token ranges with {len(self.owners)} groups")
        if self.starts[0] != b"" or list(self.starts) != sorted(set(self.starts)):
            raise InvalidRequest("token ranges must begin at the lowest token and rise strictly")

    @classmethod
    def evenly(cls, groups: Sequence[GroupId], version: int = 1) -> Placement:
        """Hash slots in equal shares."""
        starts = [slot_token(i * SLOTS // len(groups)) for i in range(len(groups))]
        return cls(version, Scheme.HASHED, (b"", *starts[1:]), tuple(groups), tuple(groups))

    def follows(self, other: Placement) -> bool:
        """Whether it may be the next map after another."""
        return self.version == other.version + 1 and self.scheme is other.scheme

    def moved_from(self, other: Placement) -> bytes | None:
        """The lowest token that has another owner than in another map; None if there is none."""
        for token in sorted({*self.starts, *other.starts}):
            if self._owner(token) != other._owner(token):
                return token
        return None

    def _owner(self, token: bytes) -> GroupId:
        return self.owners[bisect_right(self.starts, token) - 1]

    def token(self, key: bytes) -> bytes:
        """The key's position in the order of tokens."""
        if self.scheme is _ORDERED:
            return key
        tag = tag_of(key) if b"{" in key else key
        return (crc32(tag) & _SLOT_MASK).to_bytes(_SLOT_BYTES, "big")

    def group_of(self, key: bytes) -> GroupId:
        """The group that has the key."""
        owners = self.owners
        if len(owners) == 1:
            return owners[0]
        if self.scheme is _ORDERED or b"{" in key:
            return owners[bisect_right(self.starts, self.token(key)) - 1]
        # `token`, written out: every key of every transaction comes here, at every replica.
        return owners[bisect_right(self.starts, (crc32(key) & _SLOT_MASK).to_bytes(_SLOT_BYTES, "big")) - 1]

    def groups_of_range(self, asked: Range) -> frozenset[GroupId]:
        """The groups that have keys of the range: with hash slots nearly always all."""
        if self.scheme is Scheme.ORDERED:
            first = bisect_right(self.starts, asked.start) - 1
            last = len(self.starts) if asked.end is None else bisect_right(self.starts, asked.end)
            found = zip(self.starts[first:last], self.owners[first:last], strict=True)
            return frozenset(owner for start, owner in found if asked.end is None or start < asked.end)
        stem = asked.start
        if asked != Range.of_prefix(stem):
            stem = _common_prefix(asked.start, asked.end or b"")
        if tag_of(stem) != stem:  # every key of the range has this tag
            return frozenset((self.group_of(stem),))
        return frozenset(self.owners)


def _common_prefix(one: bytes, other: bytes) -> bytes:
    """What all keys between the two begin with."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:i]
    return min(one, other, key=len)


class GroupShare(Data, frozen=True):
    """A group's share of a transaction, each item with its index in the request."""

    conditions: tuple[tuple[int, Condition], ...]
    then: tuple[tuple[int, Operation], ...]
    otherwise: tuple[tuple[int, Operation], ...]
    footprint: Footprint
    voters: frozenset[GroupId] = _NO_GROUPS
    """The groups whose votes this group needs, its own among them if it has one."""
    judges: frozenset[GroupId] = _NO_GROUPS
    """Of these, those that have conditions."""
    then_may_fail: frozenset[GroupId] = _NO_GROUPS
    """Those in which a write of `then` may turn out to be impossible."""
    otherwise_may_fail: frozenset[GroupId] = _NO_GROUPS
    listeners: Destinations = ()
    """The groups that need this group's vote, if it has one. Itself may be among them."""
    formula: tuple[Combined, ...] = ()
    owners: tuple[frozenset[GroupId], ...] = ()
    """With a formula, the groups that each of the transaction's conditions belongs to."""
    allow_failures: bool = False
    only_puts: bool = False
    """Whether the share is puts of different keys, without conditions, and nothing else."""

    @property
    def branches(self) -> Footprint:
        """The part of the footprint that the operations touch, and not only conditions."""
        return footprint_of((), self.then + self.otherwise)

    @property
    def writes(self) -> Footprint:
        """The part of the footprint that they write."""
        return Footprint(writes=self.footprint.writes, write_ranges=self.footprint.write_ranges)

    @property
    def is_long(self) -> bool:
        """Whether it is executed in slices: it has ranges, writes many keys, or reads so many that their
        values may be too much for one step.
        """
        if self.only_puts:
            return len(self.then) > WRITES
        footprint = self.footprint
        if footprint.read_ranges or footprint.write_ranges:
            return True
        if len(self.then) + len(self.otherwise) + len(self.conditions) <= SHORT:
            return False
        if len(self.conditions) > SHORT or max(len(self.then), len(self.otherwise)) > WRITES:
            return True
        return any(
            sum(type(operation) not in _BLIND for _, operation in branch) > SHORT
            for branch in (self.then, self.otherwise)
        )


_HAS_RANGES: Final = GroupShare((), (), (), Footprint())


def share_of(
    transaction: Transaction, placement: Placement, group: GroupId, destinations: Destinations
) -> GroupShare | None:
    """Return the group's share; None if the transaction touches a group that it was not sent to."""
    if not (transaction.conditions or transaction.otherwise):
        plain = _share_of_points(transaction, placement, group, destinations)
        if plain is not _HAS_RANGES:
            return plain
    judges = _NO_GROUPS
    conditions: tuple[tuple[int, Condition], ...] = ()
    owners: tuple[frozenset[GroupId], ...] = ()
    if transaction.conditions:
        owners = tuple([frozenset(owners_of(condition, placement)) for condition in transaction.conditions])
        judges = judges.union(*owners)
        if not judges.issubset(destinations):
            return None
        mine = [(i, c) for i, c in enumerate(transaction.conditions) if group in owners[i]]
        conditions = tuple(mine)
    then = _split(transaction.then, placement, group, destinations)
    otherwise = _split(transaction.otherwise, placement, group, destinations)
    if then is None or otherwise is None:
        return None
    footprint = footprint_of(conditions, then + otherwise if otherwise else then)
    share = GroupShare(
        conditions, then, otherwise, footprint, judges, judges, listeners=destinations,
        formula=transaction.formula, owners=owners if transaction.formula else (),
        allow_failures=transaction.allow_failures,
    )  # fmt: skip
    return _with_failures(share, transaction, placement, group, destinations)


def _share_of_points(
    transaction: Transaction, placement: Placement, group: GroupId, destinations: Destinations
) -> GroupShare | None:
    """Return the share of a transaction without conditions, as `share_of` does, by looking at each operation
    once; `_HAS_RANGES` if one is on a range.
    """
    mine: list[tuple[int, Operation]] = []
    reads: dict[bytes, None] = {}
    writes: dict[bytes, None] = {}
    owner_of = placement.group_of
    puts = 0
    may_fail = False
    for item in enumerate(transaction.then):
        operation = item[1]
        if isinstance(operation, RANGE_OPERATIONS):
            return _HAS_RANGES
        point: PointOperation = operation
        key = point.key
        owner = owner_of(key)
        if owner == group:
            mine.append(item)
            if type(point) is Put:
                puts += 1
                writes[key] = None
            else:
                (writes if point.writes else reads)[key] = None
        elif owner not in destinations:
            return None
        if type(point) in _FALLIBLE:
            may_fail = True
    if reads and writes:
        for key in writes:
            reads.pop(key, None)
    footprint = Footprint(tuple(reads), tuple(writes))
    alone = len(destinations) == 1
    share = GroupShare(
        (),
        tuple(mine),
        (),
        footprint,
        then_may_fail=frozenset(destinations) if may_fail and alone else _NO_GROUPS,
        allow_failures=transaction.allow_failures,
        only_puts=puts == len(mine) == len(writes),
    )
    if alone or not may_fail:
        return share
    return _with_failures(share, transaction, placement, group, destinations)


def _with_failures(
    share: GroupShare,
    transaction: Transaction,
    placement: Placement,
    group: GroupId,
    destinations: Destinations,
) -> GroupShare:
    """Add the groups in which a branch may turn out to be impossible.

    Without conditions, a group that writes nothing needs no vote: it returns what it reads, of which nothing
    is told to the client if the others abort.
    """
    then = _may_fail(transaction.then, placement, allowed=share.allow_failures)
    otherwise = _NO_GROUPS
    if transaction.conditions:
        otherwise = _may_fail(transaction.otherwise, placement, allowed=share.allow_failures)
    if not (then or otherwise):
        return share
    listeners = destinations
    if not transaction.conditions:
        writers = {g for each in transaction.then if each.writes for g in owners_of(each, placement)}
        if group not in writers:
            return share
        listeners = tuple(sorted(writers))
    alone = len(destinations) == 1
    return replace(
        share, voters=share.voters if alone else share.voters | then | otherwise,
        then_may_fail=then, otherwise_may_fail=otherwise, listeners=listeners,
    )  # fmt: skip


def _may_fail(branch: tuple[Operation, ...], placement: Placement, *, allowed: bool) -> frozenset[GroupId]:
    """Return the groups in which a write of a branch may turn out to be impossible."""
    found: set[GroupId] = set()
    swaps: set[GroupId] = set()
    for each in branch:
        if isinstance(each, DeleteRange):
            if each.is_whole:
                found.update(owners_of(each, placement))
        elif not allowed and isinstance(each, _FALLIBLE):
            (swaps if isinstance(each, Swap) else found).update(owners_of(each, placement))
    if swaps:
        # The first value that a group returns may be of any size: a single one cannot fail.
        values = Counter(
            owner
            for each in branch
            if isinstance(each, _RETURNS_VALUES)
            for owner in owners_of(each, placement)
        )
        found.update(group for group in swaps if values[group] > 1)
    return frozenset(found)


def owners_of(item: Condition | Operation, placement: Placement) -> Iterable[GroupId]:
    """The groups that take part in a condition or an operation."""
    if isinstance(item, _ON_RANGES):
        return placement.groups_of_range(item.range)
    point: Compare | PointOperation = item  # the type checker sees that no other kind is left
    return (placement.group_of(point.key),)


def _split(
    operations: tuple[Operation, ...], placement: Placement, group: GroupId, destinations: Destinations
) -> tuple[tuple[int, Operation], ...] | None:
    """The operations that are the group's; None if one belongs to a group that is not a destination."""
    if not operations:
        return ()
    mine: list[tuple[int, Operation]] = []
    for item in enumerate(operations):
        operation = item[1]
        if isinstance(operation, RANGE_OPERATIONS):
            owners = placement.groups_of_range(operation.range)
            if not owners.issubset(destinations):
                return None
            if group in owners:
                mine.append(item)
        else:
            point: PointOperation = operation
            owner = placement.group_of(point.key)
            if owner == group:
                mine.append(item)
            elif owner not in destinations:
                return None
    return tuple(mine)


def groups_of(transaction: Transaction, placement: Placement) -> Destinations:
    """The groups that a transaction is to be sent to."""
    found: set[GroupId] = set()
    for part in (transaction.conditions, transaction.then, transaction.otherwise):
        for each in part:
            if isinstance(each, _ON_RANGES):
                found.update(placement.groups_of_range(each.range))
            else:
                found.add(placement.group_of(each.key))
    return tuple(sorted(found)) if len(found) > 1 else tuple(found)
