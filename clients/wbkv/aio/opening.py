"""The awaitable that `wbkv.aio` returns for clients and snapshots."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from wbkv.aio.forgotten import AsyncWithOnly


class Closes(Protocol):
    """A resource that can be closed."""

    async def close(self) -> None:
        """Release the resource."""


C = TypeVar("C", bound=Closes)


class Opening(AsyncWithOnly, Generic[C]):
    """A resource that is being opened: `await` it and close it yourself, or use it in `async with`."""

    def __init__(self, open_: Callable[[], Coroutine[Any, Any, C]]) -> None:
        self._open = open_
        self._opened: C | None = None
        self._awaited = False

    def __repr__(self) -> str:
        function = self._open.__qualname__.partition(".<locals>")[0]
        return f"<wbkv.aio.{function}(...), {'awaited' if self._awaited else 'not awaited yet'}>"

    def _begin(self) -> Coroutine[Any, Any, C]:
        self._awaited = True
        return self._open()

    def __await__(self) -> Generator[Any, Any, C]:
        return self._begin().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._begin()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()

    def __del__(self) -> None:
        if not self._awaited:
            warnings.warn(f"{self!r} was never awaited", RuntimeWarning, stacklevel=2, source=self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # Python itself asks for such names, also of half-made copies
                raise AttributeError(name)
            raise AttributeError(f"{self!r} has no {name!r}: `await` it first, or use it in `async with`")
