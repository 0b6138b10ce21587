"""Calls of a store in the same process. It is found by an entry point: the client itself knows none."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Awaitable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as TooLate
from functools import cache
from typing import Any, Protocol, Self

from google.protobuf.message import Message
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.effects import Ask, Failure, Open, ReplyStream, failed
from wbkv.errors import ClientClosed, Error, Forked, error_of
from wbkv.links.tasks import AsyncLink


class StoreStream(Protocol):
    """Messages that come one after the other."""

    def next(self) -> Future[Message | None]:
        """The next one; None at the end."""

    def cancel(self) -> None:
        """No more is wanted."""


class Store(Protocol):
    """What the entry point `embedded` opens. What fails has the API's error in its attribute `error`."""

    def call(self, method: str, request: Message, timeout_s: float) -> Future[Message]:
        """One request, one response."""

    def stream(self, method: str, request: Message, timeout_s: float | None) -> StoreStream:
        """One request, many responses."""

    def close(self) -> None:
        """Commit, and end."""


@cache
def backend(name: str) -> Any:
    """What an installed package offers under the name."""
    from importlib.metadata import entry_points  # slow to load, and only embedded stores need it

    for entry in entry_points(group="wbkv.backends", name=name):
        try:
            return entry.load()
        except ModuleNotFoundError as error:
            missing = f" ({error.name} is missing)"
            break
    else:
        missing = ""
    raise Error(f"this needs the store itself{missing}: pip install 'wbkv[server]'")


def open_store(path: str | os.PathLike[str] | None, partitions: int | None, durability: str | None) -> Store:
    """Open an embedded store; what is not said is as it was, or as it usually is."""
    open_: Any = backend("embedded")
    try:
        store: Store = open_(path, partitions=partitions, durability=durability)
    except Exception as error:
        raise error_of(_failure(error).error) from error
    return store


class _EmbeddedStream:
    """A store's stream, of which one message at a time is asked for."""

    def __init__(self, stream: StoreStream) -> None:
        self._stream = stream
        self._asked: Future[Message | None] | None = None

    def ask(self) -> Future[Message | None]:
        """The message that is to come next."""
        if self._asked is None:
            self._asked = self._stream.next()
        return self._asked

    def came(self) -> None:
        """It has come."""
        self._asked = None

    def cancel(self) -> None:
        """No more is wanted."""
        self._stream.cancel()


class _Embedded:
    """A store that is open in this process, and no other."""

    def __init__(self, store: Store, *, shared: bool = False) -> None:
        self._opened = store
        self._shared = shared
        """Somebody else closes it."""
        self._closed = False
        self._pid = os.getpid()

    @property
    def _store(self) -> Store:
        if self._closed:
            raise ClientClosed("the store is closed")
        if os.getpid() != self._pid:
            raise Forked("an embedded store does not go with a process into its fork")
        return self._opened

    def _close(self) -> None:
        self._closed = True
        if not self._shared:
            self._opened.close()


class EmbeddedLink(_Embedded):
    """For threads."""

    @classmethod
    def opened(
        cls, path: str | os.PathLike[str] | None, partitions: int | None, durability: str | None
    ) -> Self:
        """Open the store."""
        return cls(open_store(path, partitions, durability))

    def ask(self, ask: Ask) -> Message | Failure:
        """One request, one response."""
        try:
            return self._store.call(ask.method.name, ask.request, ask.timeout_s).result()
        except Exception as error:  # noqa: BLE001 - those that are not the store's are raised again
            return _failure(error)

    def open(self, open_: Open) -> ReplyStream:
        """Begin a stream."""
        return _EmbeddedStream(self._store.stream(open_.method.name, open_.request, None))

    def next(self, stream: Any, timeout_s: float) -> Message | Failure | None:
        """Its next message; None at its end. Raises `queue.Empty` if none has come in time."""
        future: Future[Message | None] = stream.ask()
        try:
            found = future.result(timeout_s)
        except TooLate:
            if not future.done():
                raise queue.Empty from None
            return failed(ApiError.DEADLINE_PASSED, "the store was too slow")
        except CancelledError:
            return None
        except Exception as error:  # noqa: BLE001 - those that are not the store's are raised again
            return _failure(error)
        stream.came()
        return found

    async def in_loop(self) -> AsyncLink:
        """The same store, for the running event loop."""
        return AsyncEmbeddedLink(self._store, shared=True)

    def close(self) -> None:
        """Commit, and end."""
        self._close()


class AsyncEmbeddedLink(_Embedded):
    """For event loops."""

    @classmethod
    async def opened(
        cls, path: str | os.PathLike[str] | None, partitions: int | None, durability: str | None
    ) -> Self:
        """Open the store, in another thread."""
        return cls(await asyncio.to_thread(open_store, path, partitions, durability))

    def ask(self, ask: Ask) -> Awaitable[Message | Failure]:
        """One request, one response."""
        return _answer(self._store.call(ask.method.name, ask.request, ask.timeout_s))

    def open(self, open_: Open) -> ReplyStream:
        """Begin a stream."""
        return _EmbeddedStream(self._store.stream(open_.method.name, open_.request, None))

    async def next(self, stream: Any) -> Message | Failure | None:
        """Its next message; None at its end."""
        asked = asyncio.wrap_future(stream.ask())
        try:
            found: Message | None = await asyncio.shield(asked)
        except asyncio.CancelledError:
            if not asked.cancelled():
                raise
            return None
        except Exception as error:  # noqa: BLE001 - those that are not the store's are raised again
            return _failure(error)
        stream.came()
        return found

    async def close(self) -> None:
        """Commit, and end."""
        await asyncio.to_thread(self._close)


async def _answer(future: Future[Message]) -> Message | Failure:
    try:
        return await asyncio.wrap_future(future)
    except Exception as error:  # noqa: BLE001 - those that are not the store's are raised again
        return _failure(error)


def _failure(error: Exception) -> Failure:
    found = getattr(error, "error", None)
    if isinstance(found, ApiError):
        return Failure(found)
    raise error
