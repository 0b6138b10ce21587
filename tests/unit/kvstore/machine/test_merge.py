"""What groups have done of a transaction, as one: the same as if one group had all keys."""

from __future__ import annotations

import random

import pytest

from kvstore.machine.commands import Delivered, Request
from kvstore.machine.machine import Machine
from kvstore.machine.merge import Merged, merge
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import (
    Condition,
    DeleteRange,
    Get,
    Operation,
    Put,
    Range,
    Scan,
    Shape,
    Transaction,
    Unchanged,
)
from kvstore.machine.results import Deleted, Fault, Got, KeyValue, Outcome, Scanned, Unmet
from kvstore.machine.state import MachineState, Store
from multicast.errors import InvariantBroken
from multicast.types import ClientId, Destinations, GroupId, MessageId, timestamp

GROUPS = [GroupId(g) for g in range(3)]
A, B, C = GROUPS
KEYS = [b"%c%d" % (letter, i) for letter in b"abcdef" for i in range(4)]


def execute(placement: Placement, *transactions: Transaction) -> list[dict[GroupId, Outcome]]:
    """What each group says of each."""
    groups: Destinations = placement.groups
    found: list[dict[GroupId, Outcome]] = [{} for _ in transactions]
    machines = {g: Machine(g, Store(), MachineState(placement)) for g in groups}
    for i, transaction in enumerate(transactions):
        request = Request(1, i, 0, 1 << 50, 0, transaction)
        for machine in machines.values():
            machine.deliver(Delivered(timestamp(i + 1, A), MessageId(ClientId(1), i, 0), groups, request))
        for _ in range(2):  # what the machines have executed at once, and what after all votes
            for g, machine in machines.items():
                machine.run()
                effects = machine.drain()
                for executed in effects.results:
                    assert isinstance(executed.result, Outcome)
                    found[i][g] = executed.result
                for vote, others in effects.votes:
                    for other in others:
                        machines[other].vote(vote)
        assert len(found[i]) == len(groups)
    return found


def some_range(rng: random.Random) -> Range:
    low, high = sorted(rng.sample([b"", *KEYS, b"z"], 2))
    return Range(low, rng.choice([high, None]))


def some_operation(rng: random.Random) -> Operation:
    kind = rng.randrange(4)
    if kind == 0:
        return Get(rng.choice(KEYS))
    if kind == 1:
        return DeleteRange(Range(low := rng.choice(KEYS), low + b"\xff"))
    shape, reverse = rng.choice(list(Shape)), rng.random() < 0.5
    return Scan(some_range(rng), rng.choice([0, 1, 3, 10]), rng.choice([1, 15, 60, 1000]), reverse, shape)


@pytest.mark.parametrize("seed", range(40))
def test_several_groups_answer_as_one_would(seed: int) -> None:
    rng = random.Random(seed)
    starts = tuple(sorted(rng.sample(KEYS, 5)))
    owners = tuple(rng.choice(GROUPS) for _ in range(6))
    several = rng.choice(
        [Placement.evenly(GROUPS), Placement(1, Scheme.ORDERED, (b"", *starts), owners, tuple(GROUPS))]
    )
    puts = tuple(Put(key, b"v" * rng.randrange(25)) for key in KEYS if rng.random() < 0.8)
    asked = [Transaction(then=tuple(some_operation(rng) for _ in range(6))) for _ in range(10)]
    parts = execute(several, Transaction(then=puts), *asked)
    wholes = execute(Placement.evenly([A]), Transaction(then=puts), *asked)
    for transaction, part, whole in zip(asked, parts[1:], wholes[1:], strict=True):
        merged = merge(transaction, several, part)
        expected = tuple(result for _, result in whole[A].results)
        assert merged.succeeded
        for operation, one, other in zip(transaction.then, merged.results, expected, strict=True):
            if not isinstance(one, Scanned) or not isinstance(other, Scanned) or one == other:
                assert one == other
                continue
            # Each group goes as far as its bytes allow, which may be less far than one group alone would go.
            assert isinstance(operation, Scan)
            assert other.entries[: len(one.entries)] == one.entries
            assert one.entries
            assert one.more
            assert operation.limit_bytes < 1000


def entries(keys: str) -> tuple[KeyValue, ...]:
    return tuple(KeyValue(key.encode(), b"v" * 9, 1, 1, 1) for key in keys)


def scanned(keys: str, *, more: bool) -> Scanned:
    return Scanned(entries(keys), len(keys), more)


def merge_scan(asked: Scan, *parts: Scanned) -> Scanned:
    outcomes = {g: Outcome(True, (), ((0, part),)) for g, part in zip(GROUPS, parts, strict=True)}  # noqa: FBT003 - whether it succeeded
    (result,) = merge(Transaction(then=(asked,)), Placement.evenly(GROUPS), outcomes).results
    assert isinstance(result, Scanned)
    return result


ALL = Range(b"", None)


def test_what_lies_beyond_the_end_of_one_group_is_left_out() -> None:
    """Another group may have keys there that it did not come to."""
    parts = (scanned("ad", more=True), scanned("bfg", more=False), scanned("c", more=False))
    assert merge_scan(Scan(ALL), *parts) == scanned("abcd", more=True)
    assert merge_scan(Scan(ALL, limit=3), *parts) == scanned("abc", more=True)
    assert merge_scan(Scan(ALL, limit_bytes=20), *parts) == scanned("ab", more=True)
    assert merge_scan(Scan(ALL, limit_bytes=1), *parts) == scanned("a", more=True)


def test_backwards() -> None:
    parts = (scanned("gfb", more=False), scanned("ed", more=True), scanned("", more=False))
    assert merge_scan(Scan(ALL, reverse=True), *parts) == scanned("gfed", more=True)
    assert merge_scan(Scan(ALL, limit=2, reverse=True), *parts) == scanned("gf", more=True)


def test_there_is_more_if_the_limit_cuts_and_not_if_it_fits() -> None:
    parts = (scanned("a", more=False), scanned("b", more=False), scanned("c", more=False))
    assert merge_scan(Scan(ALL, limit=3), *parts) == scanned("abc", more=False)
    assert merge_scan(Scan(ALL, limit=2), *parts) == scanned("ab", more=True)


def test_counts_are_summed() -> None:
    counts = (Scanned((), 2, more=False), Scanned((), 0, more=False), Scanned((), 5, more=False))
    assert merge_scan(Scan(ALL, limit=1, shape=Shape.COUNT), *counts) == Scanned((), 7, more=False)
    removed = {g: Outcome(True, (), ((0, Deleted(g + 1)),)) for g in GROUPS}  # noqa: FBT003 - whether it succeeded
    transaction = Transaction(then=(DeleteRange(ALL),))
    assert merge(transaction, Placement.evenly(GROUPS), removed).results == (Deleted(6),)


def test_conditions_and_the_other_branch() -> None:
    placement = Placement(1, Scheme.ORDERED, (b"", b"m"), (A, B), (A, B, C))
    conditions: tuple[Condition, ...] = (Unchanged(Range(b"a", b"z"), 3), Unchanged(Range(b"b", b"z"), 3))
    transaction = Transaction(conditions, (Put(b"a", b""),), (Get(b"n"), Get(b"a")))
    parts = {
        B: Outcome(succeeded=False, unmet=(Unmet(0), Unmet(1, Fault.COMPACTED)), results=((0, Got(None)),)),
        A: Outcome(
            succeeded=False, unmet=(Unmet(0, Fault.FUTURE_REVISION),), results=((1, Got(entries("a")[0])),)
        ),
    }
    assert merge(transaction, placement, parts) == Merged(
        succeeded=False,
        unmet=(Unmet(0), Unmet(1, Fault.COMPACTED)),
        results=(Got(None), Got(entries("a")[0])),
    )


def test_parts_that_cannot_be() -> None:
    placement = Placement(1, Scheme.ORDERED, (b"", b"m"), (A, B), (A, B))
    transaction = Transaction(then=(Get(b"a"), Get(b"n")))
    half = {A: Outcome(succeeded=True, unmet=(), results=((0, Got(None)),))}
    with pytest.raises(InvariantBroken, match=r"operation 1 belongs to groups \[1\], but only 0 of them"):
        merge(transaction, placement, half)
    with pytest.raises(InvariantBroken, match=r"groups \[0, 1\] do not agree"):
        merge(transaction, placement, {**half, B: Outcome(succeeded=False, unmet=(), results=())})
