"""Links to an embedded store, which an entry point opens: the client does not import the store."""

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
    """A stream of responses of the store."""

    def next(self) -> Future[Message | None]:
        """Return the next message; None at the end."""

    def cancel(self) -> None:
        """End the stream."""


class Store(Protocol):
    """The store that the entry point `embedded` opens. Its exceptions have the API's error as `error`."""

    def call(self, method: str, request: Message, timeout_s: float) -> Future[Message]:
        """Send a request, and wait for its response."""

    def stream(self, method: str, request: Message, timeout_s: float | None) -> StoreStream:
        """Send a request that has a stream of responses."""

    def close(self) -> None:
        """Commit, and close the store."""


@cache
def backend(name: str) -> Any:
    """Load the entry point of this name."""
    from importlib.metadata import entry_points  # slow to load, and only embedded stores need it

    for entry in entry_points(group="wbkv.backends", name=name):
        try:
            return entry.load()
        except ModuleNotFoundError as error:
            missing = f" ({error.name} is missing)"
            break
    else:
        missing = ""
    raise Error(f"this needs the store{missing}: pip install 'wbkv[server]'")


def open_store(
    path: str | os.PathLike[str] | None,
    partitions: int | None,
    durability: str | None,
    keep_history: str | None = None,
) -> Store:
    """Open an embedded store. None keeps the stored value, or is the default for a new store."""
    open_: Any = backend("embedded")
    try:
        store: Store = open_(path, partitions=partitions, durability=durability, keep_history=keep_history)
    except Exception as error:
        raise error_of(_failure(error).error) from error
    return store


class _EmbeddedStream:
    """A stream of the store, whose messages are requested one at a time."""

    def __init__(self, stream: StoreStream) -> None:
        self._stream = stream
        self._asked: Future[Message | None] | None = None

    def ask(self) -> Future[Message | None]:
        """Return the future of the next message."""
        if self._asked is None:
            self._asked = self._stream.next()
        return self._asked

    def came(self) -> None:
        """Record that the message has arrived."""
        self._asked = None

    def cancel(self) -> None:
        """End the stream."""
        self._stream.cancel()


class _Embedded:
    """A store that is open in this process. A fork of the process cannot use it."""

    def __init__(self, store: Store, *, shared: bool = False) -> None:
        self._opened = store
        self._shared = shared
        """Whether another link closes the store."""
        self._closed = False
        self._pid = os.getpid()

    @property
    def _store(self) -> Store:
        if self._closed:
            raise ClientClosed("the store is closed")
        if os.getpid() != self._pid:
            raise Forked("an embedded store of the parent process cannot be used in its fork")
        return self._opened

    def _close(self) -> None:
        self._closed = True
        if not self._shared:
            self._opened.close()


class EmbeddedLink(_Embedded):
    """A link to an embedded store for threads."""

    @classmethod
    def opened(
        cls,
        path: str | os.PathLike[str] | None,
        partitions: int | None,
        durability: str | None,
        keep_history: str | None = None,
    ) -> Self:
        """Open the store."""
        return cls(open_store(path, partitions, durability, keep_history))

    def ask(self, ask: Ask) -> Message | Failure:
        """Send a request, and wait for its response."""
        try:
            return self._store.call(ask.method.name, ask.request, ask.timeout_s).result()
        except Exception as error:  # noqa: BLE001 - those that are not the store's are raised again
            return _failure(error)

    def open(self, open_: Open) -> ReplyStream:
        """Open a stream."""
        return _EmbeddedStream(self._store.stream(open_.method.name, open_.request, None))

    def next(self, stream: Any, timeout_s: float) -> Message | Failure | None:
        """Return the next message; None at the end. Raises `queue.Empty` if none arrives in time."""
        future: Future[Message | None] = stream.ask()
        try:
            found = future.result(timeout_s)
        except TooLate:
            if not future.done():
                raise queue.Empty from None
            return failed(ApiError.DEADLINE_PASSED, "the store timed out")
        except CancelledError:
            return None
        except Exception as error:  # noqa: BLE001 - those that are not the store's are raised again
            return _failure(error)
        stream.came()
        return found

    async def in_loop(self) -> AsyncLink:
        """Return a link to the same store for the running event loop."""
        return AsyncEmbeddedLink(self._store, shared=True)

    def close(self) -> None:
        """Commit, and close the store."""
        self._close()


class AsyncEmbeddedLink(_Embedded):
    """A link to an embedded store for event loops."""

    @classmethod
    async def opened(
        cls,
        path: str | os.PathLike[str] | None,
        partitions: int | None,
        durability: str | None,
        keep_history: str | None = None,
    ) -> Self:
        """Open the store, in another thread."""
        return cls(await asyncio.to_thread(open_store, path, partitions, durability, keep_history))

    def ask(self, ask: Ask) -> Awaitable[Message | Failure]:
        """Send a request, and wait for its response."""
        return _answer(self._store.call(ask.method.name, ask.request, ask.timeout_s))

    def open(self, open_: Open) -> ReplyStream:
        """Open a stream."""
        return _EmbeddedStream(self._store.stream(open_.method.name, open_.request, None))

    async def next(self, stream: Any) -> Message | Failure | None:
        """Return the next message; None at the end."""
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
        """Commit, and close the store."""
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
