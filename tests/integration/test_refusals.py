"""What becomes of messages that a group refuses, at a real node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvstore.bare.client import MessageRefused, MulticastClient
from kvstore.local.cluster import LocalCluster
from multicast.types import ClientId, GroupId

WAIT_S = 60.0
"""Nothing here takes long; this is when to give up."""
G0, G1 = GroupId(0), GroupId(1)


def client_of(cluster: LocalCluster) -> MulticastClient:
    """A client that always has the same id, so that its messages always have the same numbers."""
    return MulticastClient.of(cluster.config, client=ClientId(7))


async def say(cluster: LocalCluster, dest: Sequence[GroupId], payload: bytes, *, twice: bool = False) -> None:
    """A client's first message. `twice`: it is answered after it was refused."""
    async with client_of(cluster) as client:
        try:
            await client.multicast(dest, payload, WAIT_S)
        finally:
            async with asyncio.timeout(WAIT_S):
                while twice and not client.late:
                    await asyncio.sleep(0.01)


def test_whoever_uses_a_number_twice_is_told(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "data", 1, 2, application="multicast") as cluster:
        asyncio.run(say(cluster, [G0], b"one"))
        asyncio.run(say(cluster, [G0], b"one"))  # a repetition is none
        with pytest.raises(MessageRefused, match=r"group 0 refused message 1: .* was used before"):
            asyncio.run(say(cluster, [G0], b"two"))


def test_a_refusal_is_no_outcome(tmp_path: Path) -> None:
    """One of the two groups has nothing against the message, and orders it; so the other has to."""
    with LocalCluster(tmp_path / "data", 1, 2, application="multicast") as cluster:
        asyncio.run(say(cluster, [G0], b"one"))
        with pytest.raises(MessageRefused, match="group 0"):
            asyncio.run(say(cluster, [G0, G1], b"two", twice=True))


def test_of_several_messages_the_right_one_is_refused(tmp_path: Path) -> None:
    async def three(cluster: LocalCluster) -> None:
        async with client_of(cluster) as client:
            told = [client.multicast([G0], payload, WAIT_S) for payload in (b"one", b"not two", b"three")]
            found = await asyncio.gather(*told, return_exceptions=True)
        assert [isinstance(each, MessageRefused) for each in found] == [False, True, False], found

    async def two(cluster: LocalCluster) -> None:
        async with client_of(cluster) as client:
            await asyncio.gather(*(client.multicast([G0], payload, WAIT_S) for payload in (b"one", b"two")))

    with LocalCluster(tmp_path / "data", 1, 2, application="multicast") as cluster:
        asyncio.run(two(cluster))
        asyncio.run(three(cluster))
