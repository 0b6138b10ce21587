"""Random messages in the order of their global timestamps, for 1-4 groups."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from msgspec.structs import replace

from kvstore.machine.commands import (
    ChangePlacement,
    Command,
    Compact,
    Delivered,
    Deviates,
    Expire,
    Malformed,
    Pin,
    Request,
    Tick,
    Unpin,
)
from kvstore.machine.formula import Combined
from kvstore.machine.placement import Placement, Scheme, slot_token
from kvstore.machine.request import (
    INT64_MAX,
    INT64_MIN,
    Append,
    Arithmetic,
    Calculate,
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Get,
    Limits,
    Operation,
    Operator,
    Put,
    Range,
    Scan,
    Shape,
    Subject,
    Swap,
    Transaction,
    Unchanged,
    validate,
)
from multicast.types import ClientId, GroupId, MessageId, ReplicaId, timestamp

KEYS = [b"a", b"b", b"c{x}", b"d", b"e", b"f{x}", b"g", b"h"]
VALUES = [b"1", b"-7", b"word", b"", str(INT64_MAX).encode(), str(INT64_MIN).encode(), b"007", b"1" * 20]
LIMITS = Limits(transaction_rows=5, delete_keys=2, delete_bytes=24)
WINDOW = 6


def some_placement(rng: random.Random, groups: list[GroupId], scheme: Scheme, version: int) -> Placement:
    pool = KEYS if scheme is Scheme.ORDERED else [slot_token(s) for s in range(0, 1 << 14, 1 << 11)]
    starts = sorted(rng.sample(pool[1:], rng.randrange(len(groups) + 2)))
    owners = [rng.choice(groups) for _ in range(len(starts) + 1)]
    return Placement(version, scheme, (b"", *starts), tuple(owners), tuple(groups))


def split(rng: random.Random, placement: Placement, version: int) -> Placement:
    """The same owners in other ranges."""
    pool = KEYS if placement.scheme is Scheme.ORDERED else [slot_token(s) for s in range(0, 1 << 14, 1 << 11)]
    starts = {b"": placement.owners[0]}
    for start in sorted({*placement.starts, rng.choice(pool)}):
        at = max(i for i, low in enumerate(placement.starts) if low <= start)
        starts[start] = placement.owners[at]
    return Placement(version, placement.scheme, tuple(starts), tuple(starts.values()), placement.groups)


def some_range(rng: random.Random) -> Range:
    if rng.random() < 0.3:
        return Range.of_prefix(rng.choice([b"", b"a", b"c{x}", b"e"]))
    one, other = sorted(rng.sample([b"", *KEYS, b"z"], 2))
    return Range(one, other if rng.random() < 0.9 else None)


def some_operation(rng: random.Random) -> Operation:
    key = rng.choice(KEYS)
    kind = rng.randrange(9)
    if kind <= 2:
        return Swap(key, rng.choice(VALUES)) if rng.random() < 0.2 else Put(key, rng.choice(VALUES))
    if kind == 3:
        return Delete(key)
    if kind == 4:
        return Get(key)
    if kind == 5:
        number = rng.choice([1, -1, 5, INT64_MAX, INT64_MIN])
        how = rng.choice([*Arithmetic, Arithmetic.ADD])
        if how is not Arithmetic.ADD:
            return Calculate(key, how, number)
        return Calculate(key, how, number, rng.choice([None, None, -3, 0]), rng.choice([None, None, 1, 6]))
    if kind == 6:
        return Append(key, rng.choice(VALUES), 40)
    if kind == 7:
        limit = rng.choice([1, 2]) if rng.random() < 0.3 else 0
        return DeleteRange(some_range(rng), limit) if rng.random() < 0.5 else Get(key)
    return Scan(
        some_range(rng),
        limit=rng.choice([0, 1, 2, 5]),
        limit_bytes=rng.choice([1, 10, 30, 1000]),
        reverse=rng.random() < 0.5,
        shape=rng.choice(list(Shape)),
    )


def some_condition(rng: random.Random, revisions: list[int]) -> Condition:
    if rng.random() < 0.3:
        return Unchanged(some_range(rng), rng.choice(revisions))
    subject = rng.choice(list(Subject))
    how = rng.choice(list(Operator))
    if subject is Subject.VALUE:
        return Compare(rng.choice(KEYS), subject, how, rng.choice(VALUES))
    if how is Operator.STARTS_WITH:
        return Compare(rng.choice(KEYS), Subject.VALUE, how, rng.choice([b"", b"1", b"-", b"wo", b"1" * 20]))
    if subject is Subject.NUMBER:
        return Compare(rng.choice(KEYS), subject, how, rng.choice([-7, 0, 1, 5, INT64_MAX, INT64_MIN]))
    if subject is Subject.EXISTS:
        how = rng.choice([Operator.EQUAL, Operator.NOT_EQUAL])
        return Compare(rng.choice(KEYS), subject, how, rng.randrange(2))
    if subject is Subject.VERSION:
        return Compare(rng.choice(KEYS), subject, how, rng.randrange(4))
    return Compare(rng.choice(KEYS), subject, how, rng.choice(revisions))


def some_formula(rng: random.Random, conditions: int) -> tuple[Combined, ...]:
    """Combine conditions, and what was combined, at random, until some roots are left."""
    roots = list(range(conditions))
    nodes: list[Combined] = []
    while roots and rng.random() < 0.7:
        members = sorted(rng.sample(roots, rng.randint(1, min(3, len(roots)))))
        roots = [*(root for root in roots if root not in members), conditions + len(nodes)]
        nodes.append(Combined(rng.random() < 0.6, tuple(members)))
    return tuple(nodes[:8])


def some_transaction(rng: random.Random, revisions: list[int]) -> Transaction:
    conditions = tuple(some_condition(rng, revisions) for _ in range(rng.choice([0, 0, 1, 2, 3, 4])))
    transaction = Transaction(
        conditions,
        tuple(some_operation(rng) for _ in range(rng.choice([1, 1, 2, 3, 5]))),
        tuple(some_operation(rng) for _ in range(rng.choice([0, 0, 1, 2]))),
        some_formula(rng, len(conditions)) if rng.random() < 0.5 else (),
        rng.random() < 0.2,
    )
    for branch in (transaction.then, transaction.otherwise):
        if sum(each.limit for each in branch if isinstance(each, DeleteRange)) > LIMITS.delete_keys:
            return some_transaction(rng, revisions)
    validate(transaction, LIMITS)
    return transaction


def destinations_of(transaction: Transaction, placement: Placement) -> tuple[GroupId, ...]:
    found: set[GroupId] = set()
    for item in (*transaction.conditions, *transaction.then, *transaction.otherwise):
        if isinstance(item, Unchanged | Scan | DeleteRange):
            found |= placement.groups_of_range(item.range)
        else:
            found.add(placement.group_of(item.key))
    return tuple(sorted(found))


@dataclass
class Workload:
    """What was multicast, in order."""

    placement: Placement
    messages: list[Delivered] = field(default_factory=list)


def number(i: int) -> MessageId:
    """Ordering has its own numbers, whichever client the request is from."""
    return MessageId(ClientId(77), i, 0)


def some_workload(rng: random.Random, count: int) -> Workload:
    groups = [GroupId(g) for g in range(rng.randint(1, 4))]
    scheme = rng.choice(list(Scheme))
    placement = some_placement(rng, groups, scheme, 1)
    workload = Workload(placement)
    sequences = dict.fromkeys([1, 2, 3], 0)
    revisions = [0]
    time = 0
    for _ in range(count):
        time += rng.choice([1, 1, 1, 3])
        gts = timestamp(time, rng.choice(groups))
        transactions = [m for m in workload.messages if isinstance(m.request.command, Transaction)]
        if transactions and rng.random() < 0.12:
            again = rng.choice(transactions)
            request = again.request
            if rng.random() < 0.3:
                request = replace(request, digest=request.digest + 1)
            if rng.random() < 0.3:
                request = replace(request, deadline=gts + rng.randrange(40_000))
            workload.messages.append(
                Delivered(gts, number(len(workload.messages)), again.destinations, request)
            )
            continue
        client = rng.choice(list(sequences))
        sequence = sequences[client] = sequences[client] + 1
        ack_below = rng.randint(max(0, sequence - WINDOW - 1), sequence)
        deadline = gts + rng.choice([-1, *range(0, 40_000, 5000)])
        command, destinations = some_command(rng, groups, placement, revisions, gts)
        if isinstance(command, ChangePlacement):
            if len(destinations) == len(groups) and command.placement.version == placement.version + 1:
                follows = deadline >= gts and command.placement.moved_from(placement) is None
                placement = command.placement if follows else placement
        elif rng.random() < 0.05:
            destinations = tuple(sorted({*destinations, rng.choice(groups)}))
        revisions.append(gts)
        request = Request(client, sequence, ack_below, deadline, 10, command)
        workload.messages.append(Delivered(gts, number(len(workload.messages)), destinations, request))
    return workload


def some_command(
    rng: random.Random, groups: list[GroupId], placement: Placement, revisions: list[int], gts: int
) -> tuple[Command, tuple[GroupId, ...]]:
    everyone, someone = tuple(groups), (rng.choice(groups),)
    kind = rng.random()
    past = [*revisions, gts + 5000]
    if kind < 0.04:
        return Compact(rng.choice(past)), someone
    if kind < 0.07:
        return Pin(rng.choice("pq"), rng.choice(past), gts + rng.choice([-1, 0, 10_000, 30_000])), someone
    if kind < 0.09:
        return Unpin((rng.choice("pq"),)), someone
    if kind < 0.12:
        return Expire(rng.choice([gts, gts, gts - 5000, gts + 1])), rng.choice([everyone, someone, someone])
    if kind < 0.125:
        return Tick(), someone
    if kind < 0.13:
        replica = ReplicaId(someone[0], 1, 7)
        return Deviates(replica, 0, history=False, start=b"a", end=None, revision=gts), someone
    if kind < 0.14:
        return Malformed("no such thing"), someone
    if kind < 0.17:
        version = placement.version + rng.choice([1, 1, 2])
        after = some_placement(rng, groups, placement.scheme, version)
        if rng.random() < 0.7:
            after = split(rng, placement, version)
        return ChangePlacement(after), rng.choice([everyone, everyone, someone])
    transaction = some_transaction(rng, past)
    stale = rng.random() < 0.05
    by = some_placement(rng, groups, placement.scheme, placement.version) if stale else placement
    return transaction, destinations_of(transaction, by)
