"""asyncio in virtual time: what coroutines see of it, and what is left of a process that was killed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest

from kvstore.simulation.event_loop import SimEventLoop
from multicast.sim.checkers import Violation
from multicast.sim.network import Loop


def process(loop: Loop, rate: float = 1.0) -> SimEventLoop:
    return SimEventLoop(loop, "a process", rate)  # type: ignore[abstract]  # see the module


def run(main: Coroutine[Any, Any, object], *, rate: float = 1.0, until: float = 1000.0) -> Loop:
    loop = Loop()
    process(loop, rate).create_task(main)
    while loop.now < until and loop.step():
        pass
    return loop


def test_time_passes_only_while_everybody_waits() -> None:
    seen: list[object] = []

    async def main() -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(1.0)
        seen.append(round(now(), 6))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.sleep(10.0)
        seen.append(round(now(), 6))
        seen.append(await asyncio.gather(asyncio.sleep(1.0, "a"), asyncio.sleep(0.5, "b")))
        late = asyncio.create_task(asyncio.sleep(5.0))
        _, pending = await asyncio.wait([late], timeout=1.0)
        seen.append((pending == {late}, round(now(), 6)))
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late

    run(main())
    assert seen == [1.0, 3.0, ["a", "b"], (True, 5.0)]


def test_a_shielded_future_outlives_its_waiter() -> None:
    seen: list[object] = []

    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1.0, future.set_result, "late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.shield(future)
        seen.append(await future)

    run(main())
    assert seen == ["late"]


def test_a_fast_clock_is_fast() -> None:
    assert run(asyncio.sleep(10.0), rate=2.0).now == pytest.approx(5.0, abs=1e-6)


def test_waiting_for_a_time_that_was_rounded_ends() -> None:
    async def main() -> None:
        now = asyncio.get_running_loop().time
        for until in (0.1, 0.7, 1.3, 2.9, 77.7):
            while now() < until:
                await asyncio.sleep(until - now())

    run(main(), rate=1.0 + 1e-3 / 3)


def test_a_livelock_is_found() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Violation, match="Livelock"):
        run(main())


def test_what_a_callback_raises_fails_the_run_and_what_would_be_logged_is_kept() -> None:
    loop = Loop()
    running = process(loop)
    running.call_soon(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loop.step()

    async def fail() -> None:
        raise ValueError("nobody waits for this")

    running.create_task(fail())
    while loop.step():
        pass
    gc.collect()
    assert "nobody waits" in running.unhandled[0]


def test_a_killed_process_never_runs_again_and_leaves_nothing() -> None:
    loop = Loop()
    killed = process(loop)
    ran: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(100):
                yield number
                await asyncio.sleep(0.1)
        finally:
            ran.append("finally")
            asyncio.create_task(asyncio.sleep(1.0))  # noqa: RUF006 - what is begun by what ends

    async def main() -> None:
        async for number in numbers():
            ran[number:] = ["number"]

    killed.create_task(main())
    killed.call_later(0.35, killed.kill)
    while loop.step():
        pass
    assert ran == ["number"] * 4
    killed.close()
    assert ran == ["number"] * 4 + ["finally"]
    assert not killed._tasks
    gc.collect()  # warnings are errors
