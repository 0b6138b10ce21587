"""Run each coroutine test on asyncio's loop and on uvloop's; an error that a loop reports fails the test."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

import pytest
import uvloop

LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
TIMEOUT_S: Final = 60.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("loop")
        metafunc.parametrize("loop", LOOPS)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    problems: list[dict[str, Any]] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with asyncio.timeout(TIMEOUT_S):
            await test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters})

    with asyncio.Runner(loop_factory=LOOPS[str(pyfuncitem.callspec.params["loop"])]) as runner:
        runner.run(bounded())
    assert not problems
    return True
