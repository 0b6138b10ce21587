"""What simulated clients do beside their workload: the SDK's recipes, each on keys of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import wbkv
from wbkv import aio

from kvstore.machine.request import Put, Range
from kvstore.simulation.history import Interactive, Transact
from kvstore.store.gateway import Committed
from multicast.sim.checkers import Violation
from wbkv_sim.clients import StoreClient


class Transfers:
    """Interactive transactions that move money between accounts, some after a look at all of them."""

    accounts: Final = tuple(b"t%d" % number for number in range(5))
    start: Final = 100

    async def act(self, client: StoreClient) -> None:
        """Move some money, however often that has to be tried."""
        rng, timeout_s = client.rng, client.timeout()
        source, target = rng.sample(self.accounts, 2)
        amount, looks, slow = rng.randint(1, 30), rng.random() < 0.3, rng.random() < 0.3
        done = Interactive(0, {})
        committed: list[aio.Transaction[bytes]] = []

        @wbkv.transactional(timeout=timeout_s)
        async def move(tx: aio.Transaction[bytes]) -> None:
            done.reads.clear()
            done.ranges.clear()
            if looks:
                found = tuple([(entry.key, entry.value) async for entry in tx.scan(b"t")])
                keys = wbkv.prefix(b"t")
                done.ranges.append((Range(keys.start, keys.end), found))
            have = []
            for key in (source, target):
                entry = await tx.entry(key)
                done.reads[key] = None if entry is None else (entry.value, entry.mod_revision)
                have.append(self.start if entry is None else int(entry.value))
                if slow:
                    await asyncio.sleep(rng.expovariate(20.0))
            tx.put(source, b"%d" % (have[0] - amount))
            tx.put(target, b"%d" % (have[1] + amount))
            committed[:] = [tx]

        await client.do("a transfer", move(client.client), timeout_s)
        if committed and committed[0].revision:
            done.revision = committed[0].revision
            client.simulation.history.interactive.append(done)

    def check(self, final: Mapping[bytes, bytes]) -> None:
        """There is as much money as there was."""
        total = sum(int(final.get(key, b"%d" % self.start)) for key in self.accounts)
        if total != self.start * len(self.accounts):
            raise Violation("Transfers", f"{total} in all: {final}")


class Rooms:
    """A room for a few members: who counts them and finds room enters; others empty it, and enter alone."""

    members: Final = wbkv.prefix(b"m")
    size: Final = 3

    def __init__(self) -> None:
        self._entered = 0

    async def act(self, client: StoreClient) -> None:
        """Enter if there is room, or empty the room."""
        rng, timeout_s = client.rng, client.timeout()
        empties, looks = rng.random() < 0.25, rng.random() < 0.5
        self._entered += 1
        member = b"m%d" % self._entered

        @wbkv.transactional(timeout=timeout_s)
        async def enter(tx: aio.Transaction[bytes]) -> None:
            if empties:
                tx.delete(self.members)
            if looks:
                count = len([entry async for entry in tx.scan(self.members, reverse=rng.random() < 0.5)])
            else:
                count = await tx.count(self.members)
            if count > (0 if empties else self.size):
                raise Violation("Rooms", f"{count} members, in a room of {self.size}")
            await asyncio.sleep(rng.expovariate(50.0))
            if count < self.size:
                tx.put(member, b"")

        await client.do("an entry", enter(client.client), timeout_s)

    def check(self, final: Mapping[bytes, bytes]) -> None:
        """There are not too many members."""
        found = [key for key in final if key in self.members]
        if len(found) > self.size:
            raise Violation("Rooms", f"{found} in a room of {self.size}")


class Locks:
    """A lock that clients take, hold for a while, and write under."""

    name: Final = b"lock"
    guarded: Final = b"guarded"
    ttl_s: Final = 0.6

    async def act(self, client: StoreClient) -> None:
        """Take the lock, if that is possible soon."""
        rng = client.rng
        lock = client.client.lock(self.name, ttl=self.ttl_s)
        if not await client.do("a lock", lock.acquire(timeout=rng.uniform(0.2, 1.5)), 0.0, once=False):
            return
        if lock.lost:
            raise Violation("Lock", f"{lock.token} was lost when it was taken")
        holders = client.simulation.lock_holders
        for other, token in holders.items():
            # The clocks of all clients run alike: then a lock has one holder.
            if not other.lost:
                raise Violation("Lock", f"{lock.token} was taken while {token} was held")
            if lock.token <= token:
                raise Violation("Lock", f"the token {lock.token} comes after {token}")
        holders[lock] = lock.token
        await self._hold(client, lock)
        del holders[lock]  # from now on it may be taken, whenever we hear of its release
        await client.do("an unlock", lock.release(), 0.0, once=False)

    async def _hold(self, client: StoreClient, lock: aio.Lock) -> None:
        until = client.loop.time() + client.rng.uniform(0.0, 2.0)
        token, lost = lock.token, False
        while client.loop.time() < until:
            if lost and not lock.lost:
                raise Violation("Lock", f"{token} was lost, and is held again")
            lost = lock.lost
            self._check_time(client, lock)
            if client.rng.random() < 0.2:
                await client.txn((wbkv.put(self.guarded, b"%d" % token),), (lock.holds(),))
            await asyncio.sleep(0.05)

    def _check_time(self, client: StoreClient, lock: aio.Lock) -> None:
        """The lock is held by a write that succeeded, for its time to live from when that was first sent."""
        safe_until = lock._holding._safe_until  # noqa: SLF001 - most runs do not wait until it is over
        sent = [
            call.invoked
            for call in client.simulation.history.calls
            if isinstance(call.asked, Transact)
            and isinstance(call.outcome, Committed)
            and call.outcome.succeeded
            and any(
                operation == Put(self.name, lock._holding._value)  # noqa: SLF001 - it names the holder
                for operation in call.asked.transaction.then
            )
        ]
        if not lock.lost and safe_until > max(sent, default=0.0) + self.ttl_s + 1e-9:
            raise Violation("Lock", f"{lock.token} counts as held until {safe_until}, and was written {sent}")


class Batches:
    """Many calls at once on one connection, each of which is executed once."""

    keys: Final = tuple(b"b%d" % number for number in range(4))

    def __init__(self) -> None:
        self._sums: dict[bytes, list[int]] = {key: [] for key in self.keys}
        self._unknown: dict[bytes, int] = dict.fromkeys(self.keys, 0)

    async def act(self, client: StoreClient) -> None:
        """Add to many numbers at once."""
        rng = client.rng
        keys = [rng.choice(self.keys) for _ in range(rng.randint(3, 8))]
        await asyncio.gather(*(self._add(client, key) for key in keys))

    async def _add(self, client: StoreClient, key: bytes) -> None:
        self._unknown[key] += 1
        timeout_s = client.timeout()
        number = await client.do("an addition", client.client.add(key, 1, timeout=timeout_s), timeout_s)
        if number is not None:
            self._unknown[key] -= 1
            self._sums[key].append(number)

    def check(self, final: Mapping[bytes, bytes]) -> None:
        """No sum twice; and only calls of unknown outcome are missing."""
        for key, sums in self._sums.items():
            number, unknown = int(final.get(key, b"0")), self._unknown[key]
            if len(set(sums)) < len(sums) or not len(sums) <= number <= len(sums) + unknown:
                raise Violation("Batches", f"{key!r} is {number}: {sorted(sums)}, and {unknown} more")
