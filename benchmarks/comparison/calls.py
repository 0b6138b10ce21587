"""The calls of each row, for either store. A process of clients has one object of these.

Unary calls go through the same few lines for both: a gRPC channel, a request that is built, sent, answered
and checked. They go to the node that leads: etcd's leader, or the leader of the (first) key's partition.
"""

from __future__ import annotations

import abc
import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
import wbkv
import wbkv.aio
from wbkv_proto.v1 import kv_pb2 as kv

from benchmarks.comparison import etcd_messages as etcd

PARTITIONS: Final = 3
KEYS: Final = 256
"""Keys of each partition; etcd has as many in all."""
VALUE_BYTES: Final = 20
TIMEOUT_S: Final = 10.0
PRELOAD: Final = 64
"""Puts in flight that write all keys at first."""

Call = Callable[[], Awaitable[object]]
"""Make one call. Raises if it fails, or its answer is not the right one."""


class WrongAnswer(Exception):
    """A call was answered, but not as asked."""


class Calls(abc.ABC):
    """Calls to the nodes of one store. They belong to one event loop."""

    keys: Sequence[Sequence[bytes]]
    """By partition."""

    def __init__(self, addresses: Sequence[str], rng: random.Random) -> None:
        self.addresses = addresses
        self.rng = rng
        self.value = rng.randbytes(VALUE_BYTES)
        self._channels = {address: grpc.aio.insecure_channel(address) for address in addresses}

    def method(self, address: str, path: str, response: Any) -> Callable[..., Awaitable[Any]]:
        """Return a unary method of a node."""
        found = self._channels[address].unary_unary(
            path, request_serializer=_serialize, response_deserializer=response.FromString
        )
        return lambda request: found(request, timeout=TIMEOUT_S)

    @abc.abstractmethod
    async def open(self) -> None:
        """Find the nodes that lead."""

    @abc.abstractmethod
    def row(self, name: str) -> Call:
        """Return what makes one call of a row."""

    @abc.abstractmethod
    async def put(self, key: bytes) -> None:
        """Write a key by a unary call."""

    async def preload(self) -> None:
        """Write every key, so that gets find them."""
        left = [key for keys in self.keys for key in keys]

        async def some() -> None:
            while left:
                await self.put(left.pop())

        await asyncio.gather(*(some() for _ in range(PRELOAD)))

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            await channel.close()


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


class EtcdCalls(Calls):
    """Calls to etcd: to the leader's node, so that nothing is forwarded."""

    async def open(self) -> None:
        """Find the leader."""
        self.keys = [[b"load/%d" % number for number in range(PARTITIONS * KEYS)]]
        for address in self.addresses:
            status = await self.method(address, etcd.STATUS, etcd.StatusResponse)(etcd.StatusRequest())
            if status.leader == status.header.member_id:
                break
        else:
            raise WrongAnswer("no node of etcd leads")
        self._put = self.method(address, etcd.PUT, etcd.PutResponse)
        self._range = self.method(address, etcd.RANGE, etcd.RangeResponse)
        self._txn = self.method(address, etcd.TXN, etcd.TxnResponse)

    async def put(self, key: bytes) -> None:
        """Write a key."""
        await self._put(etcd.PutRequest(key=key, value=self.value))

    def row(self, name: str) -> Call:
        """Return what makes one call of a row."""
        choice, sample, value, (keys,) = self.rng.choice, self.rng.sample, self.value, self.keys

        async def get() -> None:
            response = await self._range(etcd.RangeRequest(key=choice(keys)))
            if not response.kvs:
                raise WrongAnswer("the key is absent")

        async def two() -> None:
            puts = [etcd.PutRequest(key=key, value=value) for key in sample(keys, 2)]
            operations = [etcd.RequestOp(request_put=put) for put in puts]
            response = await self._txn(etcd.TxnRequest(success=operations))
            if not response.succeeded:
                raise WrongAnswer("the transaction did not succeed")

        return {"put": lambda: self.put(choice(keys)), "get": get, "two": two}[name]


class WbkvCalls(Calls):
    """Calls to our store: unary ones, and those of the SDK's asyncio client, which have sessions."""

    async def open(self) -> None:
        """Find the leaders, and keys of each partition."""
        self._client = await wbkv.aio.connect(list(self.addresses), timeout=TIMEOUT_S).__aenter__()
        topology = await self._client.topology()
        if len(topology.partitions) != PARTITIONS:
            raise WrongAnswer(f"the store has {len(topology.partitions)} partitions, not {PARTITIONS}")
        leaders = {partition.id: partition.leader for partition in topology.partitions}
        missing = [number for number, leader in leaders.items() if leader is None]
        if missing:
            raise WrongAnswer(f"no node leads partition {missing[0]}")
        at = [topology.nodes[leaders[number] or ""] for number in range(PARTITIONS)]
        self._puts = [self.method(address, "/wbkv.v1.KV/Put", kv.PutResponse) for address in at]
        self._gets = [self.method(address, "/wbkv.v1.KV/Get", kv.GetResponse) for address in at]
        self._txns = [self.method(address, "/wbkv.v1.KV/Txn", kv.TxnResponse) for address in at]
        found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        number = 0
        while min(map(len, found)) < KEYS:
            key = b"load/%d" % number
            number += 1
            mine = found[self._client.partition_of(key)]
            if len(mine) < KEYS:
                mine.append(key)
        self.keys = found

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
        await super().close()

    async def put(self, key: bytes) -> None:
        """Write a key."""
        await self._puts[self._client.partition_of(key)](kv.PutRequest(key=key, value=self.value))

    def row(self, name: str) -> Call:
        """Return what makes one call of a row."""
        return {**self._unary_rows(), **self._session_rows()}[name]

    def _unary_rows(self) -> dict[str, Call]:
        choice, sample, value, keys = self.rng.choice, self.rng.sample, self.value, self.keys
        partitions = range(PARTITIONS)

        async def put() -> None:
            partition = choice(partitions)
            await self._puts[partition](kv.PutRequest(key=choice(keys[partition]), value=value))

        async def get() -> None:
            partition = choice(partitions)
            response = await self._gets[partition](kv.GetRequest(key=choice(keys[partition])))
            if not response.HasField("entry"):
                raise WrongAnswer("the key is absent")

        async def two() -> None:
            chosen = sample(partitions, 2)
            puts = [kv.Put(key=choice(keys[partition]), value=value) for partition in chosen]
            operations = [kv.Operation(put=put) for put in puts]
            response = await self._txns[chosen[0]](kv.TxnRequest(then=operations))
            if not response.succeeded:
                raise WrongAnswer("the transaction did not succeed")

        return {"put": put, "get": get, "two": two}

    def _session_rows(self) -> dict[str, Call]:
        choice, sample, value, keys = self.rng.choice, self.rng.sample, self.value, self.keys
        client, partitions = self._client, range(PARTITIONS)

        async def commit(chosen: Sequence[bytes]) -> None:
            result = await client.txn().then(*(wbkv.put(key, value) for key in chosen)).commit()
            if not result.succeeded:
                raise WrongAnswer("the transaction did not succeed")

        async def get() -> None:
            if await client.get(choice(keys[choice(partitions)])) is None:
                raise WrongAnswer("the key is absent")

        return {
            "two-session": lambda: commit([choice(keys[each]) for each in sample(partitions, 2)]),
            "one-session": lambda: commit(sample(keys[choice(partitions)], 2)),
            "get-session": get,
        }


SYSTEMS: Final[dict[str, type[Calls]]] = {"etcd": EtcdCalls, "wbkv": WbkvCalls}
