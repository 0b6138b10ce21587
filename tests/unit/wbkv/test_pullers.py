"""Iterators for event loops, in virtual time: callers with little patience go on where the last one was."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable
from typing import Any

from google.protobuf.message import Message
from wbkv.core.effects import TOPOLOGY, Ask, Emit, Failure, Open, Plan, ReplyStream, Wait
from wbkv.links.tasks import AsyncPuller
from wbkv_proto.v1 import cluster_pb2 as cluster

from kvstore.simulation.event_loop import SimEventLoop
from multicast.sim.network import Loop


class SlowLink:
    """Answers after half a second."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, ask: Ask) -> Awaitable[Message | Failure]:
        self.asked += 1
        return self._answer()

    async def _answer(self) -> Message:
        await asyncio.sleep(0.5)
        return cluster.TopologyResponse()

    def open(self, open_: Open) -> ReplyStream:
        raise NotImplementedError

    async def next(self, stream: Any) -> Message | Failure | None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def patient(plan: Plan[None], link: SlowLink) -> list[object]:
    """Pull, a tenth of a second at a time."""
    found: list[object] = []

    async def main() -> None:
        puller: AsyncPuller[object] = AsyncPuller(link, plan)
        for _ in range(20):
            try:
                found.append(await puller.pull(0.1))
            except queue.Empty:
                continue
            except StopAsyncIteration:
                return

    loop = Loop()
    SimEventLoop(loop, "a client").create_task(main())  # type: ignore[abstract]  # see the module
    while loop.step():
        pass
    return found


def test_a_pause_ends_however_short_the_callers_time_limits_are() -> None:
    def plan() -> Plan[None]:
        yield Wait(0.5)
        yield Emit("after the pause")

    assert patient(plan(), SlowLink()) == ["after the pause"]


def test_a_request_is_made_once_however_short_the_callers_time_limits_are() -> None:
    def plan() -> Plan[None]:
        answer = yield Ask("h:1", TOPOLOGY, cluster.TopologyRequest(), 2.0, 2.0)
        yield Emit(type(answer))

    link = SlowLink()
    assert patient(plan(), link) == [cluster.TopologyResponse]
    assert link.asked == 1
