"""The node in its event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop

from kvstore.cluster import free_ports
from kvstore.config import Config
from kvstore.ports import NodeId
from kvstore.server import Server, create_disk
from multicast.protocol import Timing

ME = NodeId("n1")


def test_no_timer_wakes_a_node_before_it_is_time(tmp_path: Path) -> None:
    """An idle node costs what its ticks cost, so none may be in vain."""
    timing = Timing(heartbeat_s=0.0104)  # a part of a millisecond, which is rounded down
    config = Config.local(1, 2, 1, tmp_path, ports=free_ports(1), timing=timing)
    create_disk(config, ME)
    late: list[float] = []

    async def run() -> int:
        server = Server(config, ME)
        tick = server.node.tick

        def observed() -> None:
            late.append(server.now() - server.node.wake_at)
            tick()
            if len(late) == 20:
                server._stopped.set()

        server.node.tick = observed  # type: ignore[method-assign]
        return await server.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == 0
    assert min(late) >= 0
