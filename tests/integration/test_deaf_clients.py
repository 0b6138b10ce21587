"""Clients that never read, against a real node: its memory stays bounded, and others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import wbkv.aio
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import session_pb2 as session

from kvstore.local.cluster import LocalCluster
from tests.unit.kvstore.api.deaf import DeafClient

MIB = 1 << 20
MORE_MIB = 450
"""What a node's memory may grow by. The budget is 256 MiB; before, it grew by 800, and by gigabytes."""
PATIENCE_S = 60.0


def memory_mib(pid: int) -> int:
    """The resident memory of a process that is not a mapped file's."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) >> 10
    raise AssertionError(f"process {pid} has no memory")


async def unary(address: str) -> list[DeafClient]:
    """400 calls."""
    attackers = [DeafClient(address) for _ in range(4)]
    for client in attackers:
        await client.connect()
        for _ in range(100):
            client.call("/wbkv.v1.KV/Get", kv.GetRequest(key=b"large").SerializeToString())
    return attackers


async def sessions(address: str) -> list[DeafClient]:
    """100 sessions, of 20 calls each."""
    attackers = [DeafClient(address) for _ in range(10)]
    calls = [session.Call(number=number, get=kv.GetRequest(key=b"large")) for number in range(1, 21)]
    message = session.SessionRequest(calls=calls).SerializeToString()
    for client in attackers:
        await client.connect()
        for _ in range(10):
            client.call("/wbkv.v1.Session/Open", message, end=False)
    return attackers


@pytest.mark.parametrize("attack", [unary, sessions])
def test_memory_of_a_node_whose_clients_do_not_read(
    tmp_path: Path, attack: Callable[[str], Awaitable[list[DeafClient]]]
) -> None:
    async def test(cluster: LocalCluster) -> None:
        (address,) = cluster.addresses
        pid = cluster.pid(cluster.nodes[0])
        assert pid is not None
        async with asyncio.timeout(PATIENCE_S), wbkv.aio.connect([address], timeout=20.0) as client:
            await client.put(b"large", b"v" * MIB)
            await client.put(b"small", b"v")
            before = memory_mib(pid)
            attackers = await attack(address)
            most = 0
            for _ in range(50):  # nobody is refused, and nothing waits for long
                await client.put(b"other", b"v")
                assert await client.get(b"small") == b"v"
                most = max(most, memory_mib(pid))
                await asyncio.sleep(0.02)
            assert most - before < MORE_MIB
            for attacker in attackers:
                attacker.close()
            assert await client.get(b"large") is not None

    with LocalCluster(tmp_path / "data", 1, 1, durability="os") as cluster:
        asyncio.run(test(cluster))
