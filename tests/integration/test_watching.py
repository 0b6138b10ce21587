"""Watches of real nodes: many of them, and of transactions that fit into no message."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import wbkv
import wbkv.aio
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.local.cluster import LocalCluster
from kvstore.machine import Limits
from tests.unit.kvstore.api.harness import Client

PATIENCE_S = 120.0


async def fill(client: wbkv.aio.Client[bytes], keys: list[bytes], size: int) -> None:
    for first in range(0, len(keys), size):
        await client.txn().then(*(wbkv.put(key, b"") for key in keys[first : first + size])).commit()


def test_a_large_transaction_is_watched_at_a_node_without_it(tmp_path: Path) -> None:
    # As large as a transaction's deletes may be. In one frame between nodes, its events would reset the link.
    count = Limits().delete_bytes // 4200
    keys = [b"k%05d" % i + b"x" * 4000 for i in range(count)]

    async def test(cluster: LocalCluster) -> None:
        first, second = cluster.addresses
        async with asyncio.timeout(PATIENCE_S), wbkv.aio.connect([first], timeout=60.0) as client:
            await fill(client, keys, 1500)
            other = Client(second)
            watch = other.kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=b"k")], progress_ms=200))
            begun = await watch.read()
            request = kv.DeleteRequest(range=kv.Range(prefix=b"k"))
            owner = Client(first)
            assert (await owner.kv.Delete(request, timeout=60)).count == len(keys)
            await owner.close()
            await client.put(b"k", b"after")
            parts, revision = [], begun.revision
            while True:
                message = await watch.read()
                assert message is not grpc.aio.EOF
                assert message.ByteSize() < 4 << 20
                parts += message.transactions
                revision = message.revision
                if parts and parts[-1].events and parts[-1].events[0].key == b"k":
                    break
                if parts and parts[-1].continued:
                    assert revision < parts[-1].revision
            watch.cancel()
            await other.close()
            large, last = parts[:-1], parts[-1]
            assert len({part.revision for part in large}) == 1
            assert [part.continued for part in large] == [True] * (len(large) - 1) + [False]
            assert [part.continuation for part in large] == [False] + [True] * (len(large) - 1)
            assert [event.key for part in large for event in part.events] == keys
            assert not last.continued
            assert not last.continuation
            # The SDK's user sees one transaction, also when it begins before it.
            async with client.watch(b"k", after=begun.revision) as changes:
                change = await anext(changes)
                assert [event.key for event in change.events] == keys
                assert (await anext(changes)).revision == last.revision

    with LocalCluster(tmp_path / "data", 2, groups=[["n1"]], durability="os") as cluster:
        asyncio.run(test(cluster))
