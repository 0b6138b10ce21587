"""What the store's simulated clients do, and what must be true of it whatever else is checked."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kvstore.machine.commands import Compact, Pin, Unpin
from kvstore.machine.placement import Placement
from kvstore.machine.request import (
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
    ReadOperation,
    Scan,
    Shape,
    Subject,
    Transaction,
    Unchanged,
)
from kvstore.machine.results import Got, Number, Scanned
from kvstore.simulation.clients import Script, StoreClient
from kvstore.simulation.history import Cut, History, OrderCall, ReadAtCall, StrictCall, Think, Transact
from kvstore.store.gateway import Committed, Ordered
from kvstore.store.questions import CompactedReply, Values
from multicast.sim.checkers import Violation
from multicast.types import GroupId

EVERYTHING: Final = Range(b"", None)


class Workload:
    """Some keys of every group, and what clients do with them."""

    keys_per_group = 3
    limits = Limits()

    def __init__(self, placement: Placement, think_s: float) -> None:
        self.placement = placement
        self.think_s = think_s
        self.keys: dict[GroupId, list[bytes]] = {group: [] for group in placement.groups}
        number = 0
        while any(len(keys) < self.keys_per_group for keys in self.keys.values()):
            key = b"k%d" % number
            number += 1
            mine = self.keys[placement.group_of(key)]
            if len(mine) < self.keys_per_group:
                mine.append(key)
        self.all = sorted(key for keys in self.keys.values() for key in keys)

    def script(self, client: StoreClient) -> Script:
        """Transactions of this workload, among reads of all kinds."""
        rng = client.rng
        while client.more():
            yield Think(rng.expovariate(1 / self.think_s))
            look = rng.random()
            if look < 0.60:
                yield from self.act(client)
            elif look < 0.75:
                yield from self._read_strictly(client)
            elif look < 0.85:
                yield from self._read_somewhere(client)
            elif look < 0.95:
                yield from self._read_snapshot(client)
            else:
                yield from self._compact(client)

    def act(self, client: StoreClient) -> Script:
        """What this workload is about."""
        raise NotImplementedError

    def check(self, history: History, final: Mapping[bytes, bytes]) -> None:
        """What must be true at the end."""

    def _group(self, rng: random.Random) -> GroupId:
        return rng.choice(self.placement.groups)

    def _some(self, rng: random.Random, group: GroupId) -> tuple[ReadOperation, ...]:
        """Keys of a group, or all of it."""
        if rng.random() < 0.2:
            return (Scan(EVERYTHING),)
        keys = self.keys[group]
        return tuple(Get(key) for key in rng.sample(keys, rng.randint(1, len(keys))))

    def _read_strictly(self, client: StoreClient) -> Script:
        """Of one group, without a transaction. Then what was read may be relied on."""
        rng = client.rng
        group = self._group(rng)
        found = yield StrictCall(group, self._some(rng, group))
        if isinstance(found, Values) and rng.random() < 0.5:
            keys = [r.entry.key for r in found.results if isinstance(r, Got) and r.entry]
            if keys:
                yield from self._if_unchanged(rng, keys[0], found.revision)

    def _if_unchanged(self, rng: random.Random, key: bytes, since: int) -> Script:
        condition = Unchanged(Range(key, key + b"\0"), since)
        yield Transact(Transaction((condition,), (Get(key),), (Get(key),)))

    def _read_somewhere(self, client: StoreClient) -> Script:
        rng = client.rng
        group = self._group(rng)
        yield ReadAtCall(group, self._some(rng, group))

    def _read_snapshot(self, client: StoreClient) -> Script:
        """A revision of all groups, read from anywhere, some of it some time later."""
        rng = client.rng
        placed = yield Cut((EVERYTHING,))
        if not isinstance(placed, Ordered):
            return
        revision, until = placed.revision, client.revision_in(3.0)
        name = f"{client.id:x} {revision}"
        pinned = rng.random() < 0.5
        for group in self.placement.groups if pinned else ():
            kept = yield OrderCall(group, Pin(name, revision, until), revision)
            pinned = pinned and isinstance(kept, Ordered)
        for group in self.placement.groups:
            if rng.random() < 0.3:
                yield Think(rng.expovariate(1 / self.think_s))
            found = yield ReadAtCall(group, (Scan(EVERYTHING),), revision)
            if isinstance(found, CompactedReply) and pinned and client.revision_in(1.0) < until:
                raise Violation("Pins", f"revision {revision} was pinned, and is compacted to {found}")
        if pinned and rng.random() < 0.7:
            for group in self.placement.groups:
                yield OrderCall(group, Unpin((name,)))

    def _compact(self, client: StoreClient) -> Script:
        """To something that was seen not long ago, in all groups."""
        if client.seen:
            floor = client.seen - client.rng.choice((0, 1 << 16, 1 << 22))
            for group in self.placement.groups:
                yield OrderCall(group, Compact(max(1, floor)), max(1, floor))


class Bank(Workload):
    """Money moves between accounts of all groups; there is always the same amount of it."""

    start = 100

    def act(self, client: StoreClient) -> Script:
        """Move some money, or look at all accounts at once."""
        rng = client.rng
        if rng.random() < 0.25:
            yield Transact(Transaction(then=tuple(Get(key) for key in self.all)))
            return
        if rng.random() < 0.1:
            yield Transact(Transaction(then=(Scan(EVERYTHING),)))
            return
        source, target = rng.sample(self.all, 2)
        amount = rng.randint(1, 60)
        found = yield Transact(Transaction(then=(Get(source), Get(target))))
        if not isinstance(found, Committed):
            return
        have = [_number(each, self.start) for each in found.results]
        conditions = tuple(
            _as_read(key, each) for key, each in zip((source, target), found.results, strict=True)
        )
        if rng.random() < 0.3:
            # Both accounts as they were at the last revision that is complete.
            conditions = tuple(Unchanged(Range(key, key + b"\0"), found.complete) for key in (source, target))
        if have[0] >= amount:
            puts = (
                Put(source, b"%d" % (have[0] - amount)),
                Put(target, b"%d" % (have[1] + amount)),
            )
            yield Transact(Transaction(conditions, puts, (Get(source),)))

    def check(self, history: History, final: Mapping[bytes, bytes]) -> None:
        """Every look at all accounts shows the same total."""
        total = self.start * len(self.all)
        for call in history.calls:
            if isinstance(call.asked, Transact) and isinstance(call.outcome, Committed):
                results = call.outcome.results
                if len(results) == len(self.all):
                    found = sum(_number(each, self.start) for each in results)
                elif len(results) == 1 and isinstance(results[0], Scanned):
                    found = _total(results[0], self.start, len(self.all))
                else:
                    continue
                if found != total:
                    raise Violation("Bank", f"{found} instead of {total} in {call}")
        if sum(int(final.get(key, b"%d" % self.start)) for key in self.all) != total:
            raise Violation("Bank", f"{final} is not {total} in all")
        self._check_snapshots(history, total)

    def _check_snapshots(self, history: History, total: int) -> None:
        snapshots: dict[tuple[int, int], dict[GroupId, Scanned]] = {}
        for call in history.calls:
            if (
                isinstance(call.asked, ReadAtCall)
                and call.asked.revision
                and isinstance(call.outcome, Values)
            ):
                scanned = call.outcome.results[0]
                assert isinstance(scanned, Scanned)
                snapshots.setdefault((call.client, call.asked.revision), {})[call.asked.group] = scanned
        for (_, revision), parts in snapshots.items():
            if len(parts) == len(self.placement.groups):
                found = sum(_total(part, self.start, 0) for part in parts.values())
                found += self.start * (len(self.all) - sum(len(part.entries) for part in parts.values()))
                if found != total:
                    raise Violation("Bank", f"{found} instead of {total} at revision {revision}")


def _total(scanned: Scanned, start: int, keys: int) -> int:
    return sum(int(e.value) for e in scanned.entries) + start * max(0, keys - len(scanned.entries))


def _number(result: Any, otherwise: int) -> int:
    return int(result.entry.value) if isinstance(result, Got) and result.entry else otherwise


def _as_read(key: bytes, result: Any) -> Condition:
    revision = result.entry.mod_revision if isinstance(result, Got) and result.entry else 0
    return Compare(key, Subject.MOD_REVISION, Operator.EQUAL, revision)


class Register(Workload):
    """Keys are written, removed, compared and read, some of several groups at once."""

    def act(self, client: StoreClient) -> Script:
        """One transaction of a few operations."""
        rng = client.rng
        keys = rng.sample(self.all, rng.randint(1, 3))
        conditions = []
        if rng.random() < 0.4:
            for key in rng.sample(self.all, rng.randint(1, 2)):
                if rng.random() < 0.5:
                    conditions.append(Compare(key, Subject.EXISTS, Operator.EQUAL, rng.randint(0, 1)))
                else:
                    value = b"%d" % rng.randint(0, 3)
                    conditions.append(Compare(key, Subject.VALUE, Operator.EQUAL, value))
        then = tuple(self._operation(rng, key) for key in keys)
        otherwise = tuple(self._operation(rng, key) for key in rng.sample(keys, 1)) if conditions else ()
        yield Transact(Transaction(tuple(conditions), then, otherwise))

    def _operation(self, rng: random.Random, key: bytes) -> Operation:
        kind = rng.random()
        if kind < 0.4:
            return Put(key, b"%d" % rng.randint(0, 3))
        return Get(key) if kind < 0.85 else Delete(key)


class Counter(Workload):
    """Numbers grow by one. Each sum is handed out once, however often a request was repeated."""

    def act(self, client: StoreClient) -> Script:
        """Add one to a number or two."""
        keys = client.rng.sample(self.all, client.rng.randint(1, 2))
        yield Transact(Transaction(then=tuple(Calculate(key, Arithmetic.ADD, 1) for key in keys)))

    def check(self, history: History, final: Mapping[bytes, bytes]) -> None:
        """No sum twice; and only calls of unknown outcome are missing."""
        for key in self.all:
            sums: list[int] = []
            unknown = 0
            for call in history.calls:
                asked = call.asked
                if not isinstance(asked, Transact):
                    continue
                at = [i for i, each in enumerate(asked.transaction.then) if each == _add_one(key)]
                if at and isinstance(call.outcome, Committed):
                    result = call.outcome.results[at[0]]
                    assert isinstance(result, Number)
                    sums.append(result.value)
                elif at:
                    unknown += 1
            value = int(final.get(key, b"0"))
            if len(set(sums)) < len(sums) or not len(sums) <= value <= len(sums) + unknown:
                raise Violation(
                    "Counter", f"{key!r} is {value}: sums {sorted(sums)}, and {unknown} of unknown outcome"
                )


def _add_one(key: bytes) -> Operation:
    return Calculate(key, Arithmetic.ADD, 1)


class ListAppend(Workload):
    """Every append is of a value of its own, and reads show lists: each is the beginning of the next."""

    def __init__(self, placement: Placement, think_s: float) -> None:
        super().__init__(placement, think_s)
        self._next = 0

    def act(self, client: StoreClient) -> Script:
        """Append to some keys and read others, of random groups."""
        rng = client.rng
        operations: list[Operation] = []
        for key in rng.sample(self.all, rng.randint(1, min(4, len(self.all)))):
            if rng.random() < 0.5:
                operations.append(Get(key))
            else:
                self._next += 1
                operations.append(Append(key, b"%d," % self._next))
        yield Transact(Transaction(then=tuple(operations)))

    def check(self, history: History, final: Mapping[bytes, bytes]) -> None:
        """All that was ever read of a key is a beginning of what there is of it at the end."""
        for call in history.calls:
            if isinstance(call.outcome, Committed | Values):
                for result in call.outcome.results:
                    entries = result.entries if isinstance(result, Scanned) else ()
                    if isinstance(result, Got) and result.entry is not None:
                        entries = (result.entry,)
                    for entry in entries:
                        if not final.get(entry.key, b"").startswith(entry.value):
                            raise Violation("Append", f"{entry} is not a prefix of {final.get(entry.key)!r}")


class Ring(Workload):
    """Each transaction reads a key and writes the next one of a ring through all groups."""

    keys_per_group = 1

    def act(self, client: StoreClient) -> Script:
        """Take a step on the ring."""
        rng = client.rng
        at = rng.randrange(len(self.all))
        operations = (Get(self.all[at]), Put(self.all[(at + 1) % len(self.all)], b"%d" % rng.getrandbits(20)))
        yield Transact(Transaction(then=operations))


class Ranges(Workload):
    """Ranges are counted, read, compared and removed, many keys at once, up to limits that are often reached.

    What it does has no invariant of its own: the model's results are the check.
    """

    keys_per_group = 8
    limits = Limits(transaction_rows=12, delete_keys=5)

    def act(self, client: StoreClient) -> Script:
        """One transaction on ranges, or one that fills them."""
        rng = client.rng
        kind = rng.random()
        if kind < 0.4:
            keys = rng.sample(self.all, rng.randint(1, 6))
            yield Transact(Transaction(then=tuple(Put(key, b"%d" % rng.getrandbits(8)) for key in keys)))
            return
        conditions: tuple[Condition, ...] = ()
        if client.seen and kind < 0.6:
            conditions = (Unchanged(self._range(rng), client.seen),)
        then = [self._operation(rng) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            then.insert(rng.randrange(len(then) + 1), Put(rng.choice(self.all), b"put"))
        otherwise: tuple[Operation, ...] = ()
        if rng.random() < 0.5:
            otherwise = (self._count(rng), DeleteRange(self._range(rng), 1))
        yield Transact(Transaction(conditions, tuple(then), otherwise))

    def _range(self, rng: random.Random) -> Range:
        start, end = sorted(rng.sample([b"", *self.all, b"z"], 2))
        return Range(start, end)

    def _count(self, rng: random.Random) -> Scan:
        return Scan(self._range(rng), shape=Shape.COUNT)

    def _operation(self, rng: random.Random) -> Operation:
        kind = rng.random()
        if kind < 0.3:
            return self._count(rng)
        if kind < 0.6:
            return Scan(self._range(rng), reverse=rng.random() < 0.3)
        return DeleteRange(self._range(rng), rng.choice((0, 0, 1)))


WORKLOADS: Final[Mapping[str, Callable[[Placement, float], Workload]]] = {
    "bank": Bank,
    "register": Register,
    "counter": Counter,
    "append": ListAppend,
    "ring": Ring,
    "ranges": Ranges,
}

__all__: Sequence[str] = ("WORKLOADS", "Workload")
