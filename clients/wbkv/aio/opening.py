"""The awaitable that `wbkv.aio` returns for clients and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Closes(Protocol):
    """A resource that can be closed."""

    async def close(self) -> None:
        """Release the resource."""


C = TypeVar("C", bound=Closes)


class Opening(Generic[C]):
    """A resource that is being opened: `await` it and close it yourself, or use it in `async with`."""

    def __init__(self, open_: Callable[[], Coroutine[Any, Any, C]]) -> None:
        self._open = open_
        self._opened: C | None = None

    def __await__(self) -> Generator[Any, Any, C]:
        return self._open().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
