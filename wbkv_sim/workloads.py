"""What simulated clients do with the SDK, and what must be true of it whatever else is checked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import wbkv
from wbkv.operations import (
    Condition,
    Operation,
    absent,
    add,
    all_of,
    any_of,
    append,
    delete,
    exists,
    get,
    mod_revision,
    number,
    put,
    scan,
    swap,
    unchanged,
    value,
)
from wbkv.operations import Scan as SdkScan
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.machine.placement import Placement
from kvstore.machine.request import Arithmetic, Calculate, Get, Limits, Scan
from kvstore.machine.results import Got, KeyValue, Number, Scanned
from kvstore.simulation.history import Call, History, Pages, ReadAtCall, ScanCall, StrictCall, Transact
from kvstore.store.gateway import Committed
from kvstore.store.questions import Values
from multicast.sim.checkers import Violation
from multicast.types import GroupId
from wbkv_sim.clients import StoreClient
from wbkv_sim.recipes import Batches, Locks, Rooms, Transfers

KEYS: Final = wbkv.prefix(b"k")
"""The keys of the workload; recipes have others."""

MARGIN_S: Final = 1.0
"""How much sooner than it says a snapshot may end: gateways' clocks differ."""


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
        self.transfers, self.locks, self.batches = Transfers(), Locks(), Batches()
        self._steps: list[tuple[Callable[[StoreClient], Awaitable[None]], float]] = [
            (self.act, 54),
            (self._read_strictly, 12),
            (self._read_somewhere, 8),
            (self._read_snapshot, 10),
            (self._scan, 5),
            (self.transfers.act, 5),
            (self.locks.act, 1.5),
            (self.batches.act, 1.5),
            (self._compact, 3),
        ]

    async def step(self, client: StoreClient) -> None:
        """A transaction of this workload, or a read of any kind, or a recipe."""
        (step,) = client.rng.choices([step for step, _ in self._steps], [share for _, share in self._steps])
        await step(client)

    async def act(self, client: StoreClient) -> None:
        """What this workload is about."""
        raise NotImplementedError

    def check(self, history: History, final: Mapping[bytes, bytes]) -> None:
        """What must be true at the end."""
        self.transfers.check(final)
        self.batches.check(final)

    def _some(self, rng: random.Random) -> list[bytes]:
        """Keys of a group."""
        keys = self.keys[rng.choice(self.placement.groups)]
        return rng.sample(keys, rng.randint(1, len(keys)))

    async def _read_strictly(self, client: StoreClient) -> None:
        """Of one group, without a transaction, or all of it. Then what was read may be relied on."""
        rng, timeout_s = client.rng, client.timeout()
        if rng.random() < 0.2:
            await client.txn((scan(KEYS),))
            return
        keys = self._some(rng)
        if len(keys) == 1:
            await client.do("a read", client.client.entry(keys[0], timeout=timeout_s), timeout_s)
        else:
            await client.do("a read", client.client.get_many(keys, timeout=timeout_s), timeout_s)
        if client.seen and rng.random() < 0.4:
            found = await client.txn([get(keys[0])])
            if found is not None:
                await self._if_unchanged(client, keys[0], found.revision)

    async def _if_unchanged(self, client: StoreClient, key: bytes, since: int) -> None:
        condition = unchanged(wbkv.between(key, key + b"\0"), since=since)
        await client.txn((get(key),), (condition,), (get(key),))

    async def _read_somewhere(self, client: StoreClient) -> None:
        """At any replica, of one group or of several."""
        rng, timeout_s = client.rng, client.timeout()
        keys = self._some(rng) if rng.random() < 0.6 else rng.sample(self.all, 2)
        reading = client.client.get_many(keys, consistency="serializable", timeout=timeout_s)
        await client.do("a serializable read", reading, timeout_s)

    async def _read_snapshot(self, client: StoreClient) -> None:
        """A revision of all groups, read from anywhere, some of it some time later."""
        rng, loop, timeout_s = client.rng, client.simulation.loop, client.timeout()
        if rng.random() < 0.5:
            asking = client.client.revision(timeout=timeout_s)
            revision = await client.cut("a revision", asking, lambda found: found, timeout_s)
            if revision is not None:
                await self._read_at(client, revision)
            return
        ttl_s, begun = 3.0, loop.now
        snapshot: Any = await client.cut(
            "a snapshot", _awaited(client.client.snapshot(ttl=ttl_s, timeout=timeout_s)),
            lambda found: found.revision, timeout_s,
        )  # fmt: skip
        if snapshot is None:
            return
        compacted = await self._read_at(client, snapshot.revision)
        # A group whose time has lagged jumps ahead when it can, and its pins end early: departure 16.
        passed_s = client.simulation.recorder.passed_s(snapshot.revision)
        if compacted and max(passed_s, loop.now - begun) < ttl_s - MARGIN_S:
            raise Violation("Pins", f"revision {snapshot.revision} was pinned, and is compacted")
        if rng.random() < 0.7:
            await client.do("a release", snapshot.close(), client.client.timeout)

    async def _read_at(self, client: StoreClient, revision: int) -> bool:
        """Read at a revision. Return whether that was compacted."""
        rng = client.rng
        if rng.random() < 0.3:
            await asyncio.sleep(rng.expovariate(1 / self.think_s))
        compacted = []

        async def read() -> None:
            try:
                await client.client.get_many(self.all, revision=revision, timeout=client.timeout())
            except wbkv.Compacted:
                compacted.append(revision)

        await client.do("a read at a revision", read(), 0.0)
        if not compacted and rng.random() < 0.5:
            await client.scan(KEYS, revision=revision)
        return bool(compacted)

    async def _scan(self, client: StoreClient) -> None:
        """Page by page, strictly."""
        rng = client.rng
        await client.scan(KEYS, limit=rng.choice((0, 0, 2, 4)), reverse=rng.random() < 0.3)

    async def _compact(self, client: StoreClient) -> None:
        """To something that was seen not long ago, in all groups."""
        if client.seen:
            floor = max(1, client.seen - client.rng.choice((0, 1 << 16, 1 << 22)))
            timeout_s = client.timeout()
            await client.do("a compaction", client.client.compact(floor, timeout=timeout_s), timeout_s)


async def _awaited(opening: Any) -> Any:
    return await opening


def _entries(call: Call) -> Iterable[KeyValue]:
    """All entries that a call has returned."""
    if isinstance(call.outcome, Pages):
        yield from call.outcome.entries
    elif isinstance(call.outcome, Committed | Values):
        for result in call.outcome.results:
            if isinstance(result, Scanned):
                yield from result.entries
            elif isinstance(result, Got) and result.entry is not None:
                yield result.entry


class Bank(Workload):
    """Money moves between accounts of all groups; there is always the same amount of it."""

    start = 100

    async def act(self, client: StoreClient) -> None:
        """Move some money, or look at all accounts at once."""
        rng = client.rng
        if rng.random() < 0.25:
            await client.txn([get(key) for key in self.all])
            return
        if rng.random() < 0.1:
            await client.txn((scan(KEYS),))
            return
        source, target = rng.sample(self.all, 2)
        amount = rng.randint(1, 60)
        found = await client.txn((get(source), get(target)))
        if found is None:
            return
        entries: Sequence[Any] = found.results
        have = [self.start if entry is None else int(entry.value) for entry in entries]
        conditions: list[Condition] = [
            mod_revision(key) == (0 if entry is None else entry.mod_revision)
            for key, entry in zip((source, target), entries, strict=True)
        ]
        if rng.random() < 0.3:
            # Both accounts as they were at the last revision that is complete.
            conditions = [
                unchanged(wbkv.between(key, key + b"\0"), since=found.revision) for key in (source, target)
            ]
        if have[0] >= amount:
            puts = (put(source, b"%d" % (have[0] - amount)), put(target, b"%d" % (have[1] + amount)))
            await client.txn(puts, conditions, (get(source),))

    def check(self, history: History, final: Mapping[bytes, bytes]) -> None:
        """Every look at all accounts shows the same total."""
        super().check(history, final)
        for call in history.calls:
            if self._shows_all(call):
                self._check_total(_entries(call), str(call))
        found = [KeyValue(key, final[key], 0, 0, 0) for key in self.all if key in final]
        self._check_total(found, f"{final}")

    def _shows_all(self, call: Call) -> bool:
        asked, outcome = call.asked, call.outcome
        if isinstance(asked, ScanCall):
            return isinstance(outcome, Pages) and outcome.whole and not asked.limit
        if not isinstance(outcome, Committed | Values):
            return False
        operations = asked.transaction.then if isinstance(asked, Transact) else ()
        if isinstance(asked, StrictCall | ReadAtCall):
            operations = asked.operations
        keys = {operation.key for operation in operations if isinstance(operation, Get)}
        return keys >= set(self.all) or (len(operations) == 1 and isinstance(operations[0], Scan))

    def _check_total(self, entries: Iterable[KeyValue], where: str) -> None:
        there = {entry.key: self.worth(entry.value) for entry in entries}
        total = sum(there.values()) + self.start * (len(self.all) - len(there))
        if total != self.start * len(self.all):
            raise Violation("Bank", f"{total} instead of {self.start * len(self.all)} in {where}")

    def worth(self, value: bytes) -> int:
        """The money in an account."""
        return int(value)


class Ledger(Bank):
    """Money moves by additions that fail if an account has too little, or too much, or is closed: then it is
    no number. Nothing may be added anywhere then. All accounts together have nothing, since some owe.
    """

    start = 0
    most = 40
    closed: Final = b"closed "
    notes: Final = tuple(b"n%d" % number for number in range(4))
    """Keys that have no money: what is done there need not be balanced."""

    async def act(self, client: StoreClient) -> None:
        """Move some money, close or open an account, or look at all accounts at once."""
        acts = (self._look, self._close, self._move, self._move_if, self._note)
        (act,) = client.rng.choices(acts, (3, 2, 6, 3, 2))
        await act(client)

    async def _look(self, client: StoreClient) -> None:
        await client.txn((scan(KEYS),) if client.rng.random() < 0.3 else [get(key) for key in self.all])

    async def _close(self, client: StoreClient) -> None:
        """Close an account, or open it."""
        key = client.rng.choice(self.all)
        found = await client.txn((get(key),))
        if found is None:
            return
        (entry,) = found.results
        if not isinstance(entry, wbkv.Entry):
            await client.txn((put(key, self.closed + b"0"),), (absent(key),))
        elif entry.value.startswith(self.closed):
            await client.txn((put(key, entry.value.removeprefix(self.closed)),), (value(key) == entry.value,))
        else:
            await client.txn((put(key, self.closed + entry.value),), (value(key) == entry.value,))

    def _moves(self, client: StoreClient) -> list[Operation]:
        """Additions that are nothing together, and other operations between them."""
        rng = client.rng
        keys = rng.sample(self.all, rng.choice((2, 2, 3)))
        amounts = [rng.randint(1, 25) for _ in keys[1:]]
        found = [add(keys[0], -sum(amounts), floor=-self.most)]
        found += [add(key, amount, ceiling=self.most) for key, amount in zip(keys[1:], amounts, strict=True)]
        if rng.random() < 0.3:
            found.append(swap(rng.choice(self.notes), b"%d" % rng.getrandbits(20)))
        if rng.random() < 0.3:
            found.append(get(rng.choice(self.all)))
        rng.shuffle(found)
        return found

    async def _move(self, client: StoreClient) -> None:
        await client.txn(self._moves(client))

    async def _move_if(self, client: StoreClient) -> None:
        """By conditions of which any must hold, or all, or another branch moves other money."""
        rng = client.rng
        some = [
            number(key) >= rng.randint(-30, 30) if rng.random() < 0.6 else value(key).starts_with(self.closed)
            for key in rng.sample(self.all, 3)
        ]
        conditions: list[Condition] = [any_of(*some[:2])]
        if rng.random() < 0.5:
            conditions = [any_of(some[0], all_of(*some[1:]))]
        otherwise = self._moves(client) if rng.random() < 0.5 else [get(rng.choice(self.all))]
        await client.txn(self._moves(client), conditions, otherwise)

    async def _note(self, client: StoreClient) -> None:
        """Operations of which some fail, and the others are performed nevertheless."""
        rng = client.rng
        first, second = rng.sample(self.notes, 2)
        operations = [swap(first, b"word" if rng.random() < 0.3 else b"7"), add(second, 1, ceiling=30)]
        await client.txn(operations, allow_failures=rng.random() < 0.6)

    def worth(self, value: bytes) -> int:
        """The money in an account, which may be closed."""
        return int(value.removeprefix(self.closed))


class Register(Workload):
    """Keys are written, removed, compared and read, some of several groups at once."""

    async def act(self, client: StoreClient) -> None:
        """One transaction of a few operations."""
        rng = client.rng
        keys = rng.sample(self.all, rng.randint(1, 3))
        conditions: list[Condition] = []
        if rng.random() < 0.4:
            for key in rng.sample(self.all, rng.randint(1, 2)):
                if rng.random() < 0.5:
                    conditions.append(exists(key) if rng.random() < 0.5 else absent(key))
                else:
                    conditions.append(value(key) == b"%d" % rng.randint(0, 3))
        then = [self._operation(rng, key) for key in keys]
        otherwise = [self._operation(rng, key) for key in rng.sample(keys, 1)] if conditions else []
        await client.txn(then, conditions, otherwise)

    def _operation(self, rng: random.Random, key: bytes) -> Operation:
        kind = rng.random()
        if kind < 0.4:
            return put(key, b"%d" % rng.randint(0, 3))
        return get(key) if kind < 0.85 else delete(key)


class Counter(Workload):
    """Numbers grow by one. Each sum is handed out once, however often a request was repeated."""

    async def act(self, client: StoreClient) -> None:
        """Add one to a number or two."""
        keys = client.rng.sample(self.all, client.rng.randint(1, 2))
        await client.txn([add(key, 1) for key in keys])

    def check(self, history: History, final: Mapping[bytes, bytes]) -> None:
        """No sum twice; and only calls of unknown outcome are missing."""
        super().check(history, final)
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
            number = int(final.get(key, b"0"))
            if len(set(sums)) < len(sums) or not len(sums) <= number <= len(sums) + unknown:
                raise Violation(
                    "Counter", f"{key!r} is {number}: sums {sorted(sums)}, and {unknown} of unknown outcome"
                )


def _add_one(key: bytes) -> Calculate:
    return Calculate(key, Arithmetic.ADD, 1)


class ListAppend(Workload):
    """Every append is of a value of its own, and reads show lists: each is the beginning of the next."""

    def __init__(self, placement: Placement, think_s: float) -> None:
        super().__init__(placement, think_s)
        self._next = 0

    async def act(self, client: StoreClient) -> None:
        """Append to some keys and read others, of random groups."""
        rng = client.rng
        operations: list[Operation] = []
        for key in rng.sample(self.all, rng.randint(1, min(4, len(self.all)))):
            if rng.random() < 0.5:
                operations.append(get(key))
            else:
                self._next += 1
                operations.append(append(key, b"%d," % self._next))
        await client.txn(operations)

    def check(self, history: History, final: Mapping[bytes, bytes]) -> None:
        """All that was ever read of a key is a beginning of what there is of it at the end."""
        super().check(history, final)
        mine = set(self.all)
        for call in history.calls:
            for entry in _entries(call):
                if entry.key in mine and not final.get(entry.key, b"").startswith(entry.value):
                    raise Violation("Append", f"{entry} is not a prefix of {final.get(entry.key)!r}")


class Ring(Workload):
    """Each transaction reads a key and writes the next one of a ring through all groups."""

    keys_per_group = 1

    async def act(self, client: StoreClient) -> None:
        """Take a step on the ring."""
        rng = client.rng
        at = rng.randrange(len(self.all))
        number = rng.getrandbits(20)
        await client.txn((get(self.all[at]), put(self.all[(at + 1) % len(self.all)], b"%d" % number)))


class Ranges(Workload):
    """Ranges are counted, read, compared and removed, many keys at once, up to limits that are often reached.

    What it does has no invariant of its own: the model's results are the check.
    """

    keys_per_group = 8
    limits = Limits(transaction_rows=12, delete_keys=5)

    async def act(self, client: StoreClient) -> None:
        """One transaction on ranges, or one that fills them."""
        rng = client.rng
        kind = rng.random()
        if kind < 0.4:
            keys = rng.sample(self.all, rng.randint(1, 6))
            await client.txn([put(key, b"%d" % rng.getrandbits(8)) for key in keys])
            return
        conditions: tuple[Condition, ...] = ()
        if client.seen and kind < 0.6:
            conditions = (unchanged(self._range(rng), since=client.seen),)
        then = [self._operation(rng) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            then.insert(rng.randrange(len(then) + 1), put(rng.choice(self.all), b"put"))
        otherwise: tuple[Operation, ...] = ()
        if rng.random() < 0.5:
            otherwise = (Count(self._range(rng), 0, False), delete(self._range(rng), limit=1))  # noqa: FBT003 - as it is
        await client.txn(then, conditions, otherwise)

    def _range(self, rng: random.Random) -> wbkv.KeyRange:
        start, end = sorted(rng.sample([b"k", *self.all, b"l"], 2))  # not the keys of recipes
        return wbkv.between(start, end)

    def _operation(self, rng: random.Random) -> Operation:
        kind = rng.random()
        if kind < 0.3:
            return Count(self._range(rng), 0, False)  # noqa: FBT003 - as it is
        if kind < 0.6:
            return scan(self._range(rng), reverse=rng.random() < 0.3)
        return delete(self._range(rng), limit=rng.choice((0, 0, 1)))


class Large(Workload):
    """Values of many slices beside small ones, mostly of several groups: links are full at times.

    What it does has no invariant of its own: the model's results are the check.
    """

    async def act(self, client: StoreClient) -> None:
        """Write one or two large values, or some small ones; read others."""
        rng = client.rng
        keys = rng.sample(self.all, rng.randint(1, 4))
        large = rng.random() < 0.4
        operations = [
            put(key, rng.randbytes(rng.randint(300, 2000) if large and at < 2 else 8))
            for at, key in enumerate(keys)
        ]
        await client.txn([*operations, get(rng.choice(self.all))])


class Count(SdkScan):
    """Count the keys of a range: what the API has, and the SDK only outside of transactions."""

    __slots__ = ()

    def fill(self, message: kv.Operation, values: Any) -> None:
        """Fill the message of the API."""
        super().fill(message, values)
        message.scan.shape = kv.COUNT


class Recipes(Workload):
    """Mostly interactive transactions, locks, batches, and long scans of what others change meanwhile."""

    def __init__(self, placement: Placement, think_s: float) -> None:
        super().__init__(placement, think_s)
        self.rooms = Rooms()

    async def act(self, client: StoreClient) -> None:
        """Write, or do what the SDK has recipes for."""
        acts = (
            self._put, self._scan, self.transfers.act, self.locks.act, self.batches.act, self.rooms.act,
        )  # fmt: skip
        (act,) = client.rng.choices(acts, (4, 2, 3, 2, 1, 3))
        await act(client)

    def check(self, history: History, final: Mapping[bytes, bytes]) -> None:
        """There are not too many in the room."""
        super().check(history, final)
        self.rooms.check(final)

    async def _put(self, client: StoreClient) -> None:
        keys = client.rng.sample(self.all, 2)
        await client.txn([put(key, b"%d" % client.rng.getrandbits(16)) for key in keys])


WORKLOADS: Final[Mapping[str, type[Workload]]] = {
    "bank": Bank,
    "ledger": Ledger,
    "register": Register,
    "counter": Counter,
    "append": ListAppend,
    "ring": Ring,
    "ranges": Ranges,
    "recipes": Recipes,
    "large": Large,
}
