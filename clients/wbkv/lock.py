"""The lock recipe, for threads and for event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Any, Self

from wbkv.core.locks import RENEWALS, Holding
from wbkv.core.requests import Requests
from wbkv.data import Key
from wbkv.errors import ClientClosed, Error, LockLost
from wbkv.links import tasks, threads
from wbkv.operations import Condition


class _Lock:
    """What both have in common."""

    def __init__(self, requests: Requests[bytes], name: Key, ttl: float) -> None:
        self._holding = Holding(requests, name, ttl)

    @property
    def token(self) -> int:
        """The fencing token: it rises with every acquisition. 0 if the lock is not held."""
        return self._holding.token

    @property
    def lost(self) -> bool:
        """Whether somebody else may hold it by now: it could not be renewed in time."""
        return self._holding.lost

    def holds(self) -> Condition:
        """A condition for `when`: that the lock is still held. With it, a transaction of a holder that was
        paused for too long does nothing.
        """
        return self._holding.condition()

    def _lost_it(self) -> LockLost:
        return LockLost(f"the lock {self._holding.key!r} was not renewed in time, or was removed")


class Lock(_Lock):
    """A lock, renewed by a thread of its own while it is held. Made by `client.lock`."""

    def __init__(self, link: threads.Link, requests: Requests[bytes], name: Key, ttl: float) -> None:
        super().__init__(requests, name, ttl)
        self._link = link
        self._stop = threading.Event()

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait for the lock, for so long at most. Whether it is held."""
        taken = threads.run(self._link, self._holding.acquire(timeout))
        if taken:
            self._stop.set()  # of a time before, if it was lost
            self._stop = threading.Event()
            name = f"wbkv lock {self._holding.key!r}"
            threading.Thread(target=self._renew, args=(self._stop,), name=name, daemon=True).start()
        return taken

    def _renew(self, stop: threading.Event) -> None:
        while not stop.wait(self._holding.ttl_s / RENEWALS):
            try:
                if not threads.run(self._link, self._holding.renew()):
                    return
            except ClientClosed:
                return
            except Error:
                if self._holding.lost:
                    return

    def release(self) -> None:
        """Give it up. Raises `LockLost` if it was not held any more."""
        self._stop.set()
        if self.token and not threads.run(self._link, self._holding.release()):
            raise self._lost_it()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.nullcontext() if kind is None else contextlib.suppress(Error):
            self.release()


class AsyncLock(_Lock):
    """A lock, renewed by a task of its own while it is held. Made by `client.lock` of `wbkv.aio`."""

    def __init__(self, link: tasks.AsyncLink, requests: Requests[bytes], name: Key, ttl: float) -> None:
        super().__init__(requests, name, ttl)
        self._link = link
        self._renewing: asyncio.Task[Any] | None = None

    async def acquire(self, timeout: float | None = None) -> bool:
        """Wait for the lock, for so long at most. Whether it is held."""
        taken = await tasks.run(self._link, self._holding.acquire(timeout))
        if taken:
            if self._renewing is not None:
                self._renewing.cancel()  # of a time before, if it was lost
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return taken

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._holding.ttl_s / RENEWALS)
            try:
                if not await tasks.run(self._link, self._holding.renew()):
                    return
            except ClientClosed:
                return
            except Error:
                if self._holding.lost:
                    return

    async def release(self) -> None:
        """Give it up. Raises `LockLost` if it was not held any more."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        if self.token and not await tasks.run(self._link, self._holding.release()):
            raise self._lost_it()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.nullcontext() if kind is None else contextlib.suppress(Error):
            await self.release()
