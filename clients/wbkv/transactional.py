"""The decorator `transactional`: it runs a function in a transaction, and retries after conflicts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from wbkv import aio, client, transaction

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")

Function = Callable[Concatenate[transaction.Transaction[V], P], R]
Given = Callable[Concatenate[client.Client[V] | transaction.Transaction[V], P], R]
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
    """Let a function whose first argument is a transaction also be called with a client.

    Called with a client, it begins a transaction, calls the function with it, commits, and retries after a
    conflict with another transaction, for `timeout` seconds (default: the client's). Called with a
    transaction, the function joins it. The function may run several times, so it should have no other side
    effects. `async def` functions take a client or transaction of `wbkv.aio`.
    """
    return _Decorator(timeout) if function is None else _decorated(function, timeout)


def _decorated(function: Any, timeout_s: float | None) -> Any:
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} is a generator, which would run after its transaction has ended")
    if not callable(function):
        raise TypeError(f"transactional decorates functions, not {function!r}")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(first: Any, /, *args: Any, **kwargs: Any) -> Any:
            if isinstance(first, aio.Transaction):
                return await function(first, *args, **kwargs)
            if not isinstance(first, aio.Client):
                raise TypeError(f"{name} needs a wbkv.aio client or transaction first, not {first!r}")
            return await first._transact(lambda tx: function(tx, *args, **kwargs), timeout_s)  # noqa: SLF001 - made for this

        return run_async

    @functools.wraps(function)
    def run(first: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, transaction.Transaction):
            return function(first, *args, **kwargs)
        if not isinstance(first, client.Client):
            raise TypeError(f"{name} needs a wbkv client or transaction first, not {first!r}")
        return first._transact(lambda tx: function(tx, *args, **kwargs), timeout_s)  # noqa: SLF001 - the same

    return run
