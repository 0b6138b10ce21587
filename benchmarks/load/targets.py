"""Targets of the load: groups that only order messages, or the partitions of a store."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Final

import wbkv
import wbkv.aio

from benchmarks.load.loops import Send
from benchmarks.load.plan import Plan
from kvstore.bare.client import MulticastClient
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.wire.connection import LinkLimits
from multicast.types import GroupId

KEYS: Final = 256
"""Keys of each partition that are written to."""


def regions(config: Config) -> list[str | None]:
    """The regions of clients: every region of the cluster, or None if it has none."""
    found = {node.region for node in config.nodes.values() if node.region is not None}
    return [*sorted(found)] or [None]


def delays_s(config: Config, region: str | None) -> dict[NodeId, float]:
    """Delays from a client of a region to the nodes: those of a node of its region."""
    near = [name for name, node in config.nodes.items() if region is not None and node.region == region]
    found = {name: config.delays_s.get((near[0], name), 0.0) for name in config.nodes} if near else {}
    return {name: delay for name, delay in found.items() if name not in near}


def target(
    plan: Plan, config: Config, region: str | None, seed: str, trace: str | None
) -> contextlib.AbstractAsyncContextManager[Send]:
    """The target of a plan."""
    if plan.level == "multicast":
        return multicast(plan, config, region)
    return store(plan, config, random.Random(f"{seed}/keys"), trace)


@contextlib.asynccontextmanager
async def multicast(plan: Plan, config: Config, region: str | None) -> AsyncIterator[Send]:
    """Plain messages, from a client in a region."""
    payload = bytes(plan.payload)
    retry_s = 2 * config.timing.retry_s
    limits = LinkLimits(buffer=256 << 20)
    delays = delays_s(config, region)
    async with MulticastClient.of(config, retry_s=retry_s, limits=limits, delays_s=delays) as client:
        groups = {number: GroupId(number) for number in range(plan.groups)}

        def send(dest: tuple[int, ...]) -> asyncio.Future[dict[GroupId, int]]:
            wanted = [groups[number] for number in dest]
            return client.multicast(wanted, payload)  # type: ignore[return-value]  # timestamps are numbers

        yield send


@contextlib.asynccontextmanager
async def store(plan: Plan, config: Config, rng: random.Random, trace: str | None) -> AsyncIterator[Send]:
    """Transactions of a put for each partition, by the SDK."""
    addresses = [node.api for node in config.nodes.values() if node.api is not None]
    with contextlib.ExitStack() as stack:
        recording = None
        if trace is not None:
            made = wbkv.Trace(trace, scenario="puts", protocol=plan.protocol, clients=plan.clients)
            recording = stack.enter_context(made)
        async with wbkv.aio.connect(addresses, timeout=plan.patience_s, trace=recording) as client:
            await client.topology()
            keys = [] if plan.keys else _keys(client, plan)
            value = bytes(rng.randrange(256) for _ in range(plan.payload))
            running = asyncio.get_running_loop()

            def send(dest: tuple[int, ...]) -> asyncio.Future[wbkv.TxnResult[bytes]]:
                if plan.keys:
                    chosen = [stored_key(rng.randrange(plan.keys)) for _ in dest]
                else:
                    chosen = [rng.choice(keys[group]) for group in dest]
                txn = client.txn().then(*(wbkv.put(key, value) for key in chosen))
                if plan.conditions:
                    txn = txn.when(*(wbkv.version(key) < 1 << 40 for key in chosen))
                return running.create_task(txn.commit())

            yield send


def stored_key(number: int) -> bytes:
    """Return the key with this number of those that `benchmarks.scan.fill` puts."""
    return b"key%017d" % number


def _keys(client: wbkv.aio.Client[bytes], plan: Plan) -> list[list[bytes]]:
    """As many keys of each partition; plans with different seeds have different ones."""
    found: list[list[bytes]] = [[] for _ in range(plan.groups)]
    number, missing = 0, plan.groups
    while missing:
        key = b"load/%d/%d" % (plan.seed, number)
        number += 1
        mine = found[client.partition_of(key)]
        if len(mine) < KEYS:
            mine.append(key)
            missing -= len(mine) == KEYS
    return found
