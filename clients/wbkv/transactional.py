"""Functions that are transactions: begun, committed and repeated for their callers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, overload

from wbkv import aio, client
from wbkv.core.calls import backoff, time_of
from wbkv.errors import Aborted, Error

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")

AT_ONCE: Final = 4
"""Of so many conflicts, all but the last are answered by another attempt at once."""

CONFLICT_TRIES: Final = 3
"""After so many conflicts the pauses grow no more: who waits long while others go on never has its turn."""

Function = Callable[Concatenate[client.Transaction[V], P], R]
Given = Callable[Concatenate[client.Client[V] | client.Transaction[V], P], R]
AsyncFunction = Callable[Concatenate[aio.Transaction[V], P], Coroutine[Any, Any, R]]
AsyncGiven = Callable[Concatenate[aio.Client[V] | aio.Transaction[V], P], Coroutine[Any, Any, R]]


class _Decorator:
    """`transactional` with options."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    @overload
    def __call__(self, function: AsyncFunction[V, P, R]) -> AsyncGiven[V, P, R]: ...

    @overload
    def __call__(self, function: Function[V, P, R]) -> Given[V, P, R]: ...

    def __call__(self, function: Any) -> Any:
        return _decorated(function, self._timeout_s)


@overload
def transactional(function: AsyncFunction[V, P, R]) -> AsyncGiven[V, P, R]: ...


@overload
def transactional(function: Function[V, P, R]) -> Given[V, P, R]: ...


@overload
def transactional(*, timeout: float | None = None) -> _Decorator: ...


def transactional(function: Any = None, *, timeout: float | None = None) -> Any:
    """Make a function of a transaction one that can be given a client as well.

    Given a client, it begins a transaction, calls the function with it, commits, and does it all again when
    another transaction was in the way, until `timeout` seconds (the client's time-out) have passed. Given a
    transaction, it just joins. The function may run several times, so it should have no other effects.
    `async def` functions go with `wbkv.aio`.
    """
    return _Decorator(timeout) if function is None else _decorated(function, timeout)


def _decorated(function: Any, timeout_s: float | None) -> Any:
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} is a generator: it would run after its transaction has ended")
    if not callable(function):
        raise TypeError(f"transactional decorates functions, not {function!r}")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(first: Any, /, *args: Any, **kwargs: Any) -> Any:
            if isinstance(first, aio.Transaction):
                return await function(first, *args, **kwargs)
            if not isinstance(first, aio.Client):
                raise TypeError(f"{name} needs a wbkv.aio client or transaction first, not {first!r}")
            return await _repeat_async(first, lambda tx: function(tx, *args, **kwargs), timeout_s)

        return run_async

    @functools.wraps(function)
    def run(first: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, client.Transaction):
            return function(first, *args, **kwargs)
        if not isinstance(first, client.Client):
            raise TypeError(f"{name} needs a wbkv client or transaction first, not {first!r}")
        return _repeat(first, lambda tx: function(tx, *args, **kwargs), timeout_s)

    return run


class _Patience:
    """How long to go on, and how long to wait in between."""

    def __init__(self, timeout_s: float | None, usual_s: float) -> None:
        self._timeout_s = time_of(timeout_s, usual_s)
        self._deadline = time.monotonic() + self._timeout_s
        self._tries = 0

    @property
    def left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)

    def pause(self, conflict: Aborted) -> float:
        """After a conflict. Raises it if there is no time left.

        Mostly 0: whoever has lost knows what is there now, and can win with one more message, while others
        still read. Now and then those who only disturb each other step back.
        """
        self._tries += 1
        pause = 0.0 if self._tries % AT_ONCE else backoff(min(self._tries // AT_ONCE, CONFLICT_TRIES))
        if time.monotonic() + pause >= self._deadline:
            raise Aborted(
                f"still in conflict after {self._tries} attempts in {self._timeout_s:g} s: {conflict}"
            ) from conflict
        return pause


_STALE = "what the transaction read did not hold together"


def _repeat(
    of: client.Client[Any], function: Callable[[client.Transaction[Any]], R], timeout_s: float | None
) -> R:
    patience = _Patience(timeout_s, of.timeout)
    tx = of.transaction(timeout=patience.left_s)
    while True:
        try:
            with tx:
                result = function(tx)
        except Aborted as conflict:
            pause = patience.pause(conflict)
        except Error:
            raise
        except Exception as error:
            # It may have read keys of different moments, and be confused by that only.
            try:
                holds = tx.holds()
            except Error:
                raise error from None  # nobody can tell
            if holds:
                raise
            pause = patience.pause(Aborted(_STALE))
        else:
            return result
        if pause:
            time.sleep(pause)
            tx = of.transaction(timeout=patience.left_s)
        else:
            tx = tx._again(patience.left_s)  # noqa: SLF001 - made for this


async def _repeat_async(of: aio.Client[Any], function: Callable[..., Any], timeout_s: float | None) -> Any:
    patience = _Patience(timeout_s, of.timeout)
    tx = of.transaction(timeout=patience.left_s)
    while True:
        try:
            async with tx:
                result = await function(tx)
        except Aborted as conflict:
            pause = patience.pause(conflict)
        except Error:
            raise
        except Exception as error:
            try:
                holds = await tx.holds()
            except Error:
                raise error from None
            if holds:
                raise
            pause = patience.pause(Aborted(_STALE))
        else:
            return result
        if pause:
            await asyncio.sleep(pause)
            tx = of.transaction(timeout=patience.left_s)
        else:
            tx = tx._again(patience.left_s)  # noqa: SLF001 - made for this
