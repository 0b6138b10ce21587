"""The lock recipe for event loops. `wbkv.lock`, for threads, is generated from this module."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from wbkv.aio.forgotten import AsyncWithOnly
from wbkv.core.locks import RENEWALS, Holding
from wbkv.core.requests import Requests
from wbkv.data import Key
from wbkv.errors import ClientClosed, Error, LockLost
from wbkv.links.tasks import AsyncLink, AsyncRepeater, run
from wbkv.operations import Condition


class Lock(AsyncWithOnly):
    """A lock, which a background task renews while it is held. `client.lock` returns one."""

    def __init__(self, link: AsyncLink, requests: Requests[bytes], name: Key, ttl: float) -> None:
        self._link = link
        self._holding = Holding(requests, name, ttl)
        self._renewing: AsyncRepeater | None = None

    def __repr__(self) -> str:
        state = "lost" if self.lost else f"held, token {self.token}" if self.token else "not held"
        return f"<wbkv.aio.Lock {self._holding.key!r}: {state}>"

    @property
    def token(self) -> int:
        """The fencing token: it increases with every acquisition; 0 if the lock is not held."""
        return self._holding.token

    @property
    def lost(self) -> bool:
        """Whether another holder may have the lock by now, as it was not renewed in time."""
        return self._holding.lost

    def holds(self) -> Condition:
        """Return a condition for `when`: the lock is still held. With it, a transaction of a holder that was
        paused for too long has no effect.
        """
        return self._holding.condition()

    async def acquire(self, timeout: float | None = None) -> bool:
        """Wait for the lock, for `timeout` seconds at most. Return whether it is held."""
        taken = await run(self._link, self._holding.acquire(timeout))
        if taken:
            self._stop_renewing()  # of an earlier acquisition whose lock was lost
            name = f"wbkv lock {self._holding.key!r}"
            self._renewing = AsyncRepeater(self._renew, self._holding.ttl_s / RENEWALS, name)
        return taken

    async def _renew(self) -> bool:
        try:
            return await run(self._link, self._holding.renew())
        except ClientClosed:
            return False
        except Error:
            return not self._holding.lost

    def _stop_renewing(self) -> None:
        renewing, self._renewing = self._renewing, None  # at once: threads may share a lock
        if renewing is not None:
            renewing.stop()

    async def release(self) -> None:
        """Release the lock. Raises `LockLost` if it was no longer held, or was released before."""
        self._stop_renewing()
        if not await run(self._link, self._holding.release()):
            raise LockLost(f"the lock {self._holding.key!r} was not renewed in time, or was removed")

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.token:  # else the block has released it
            with contextlib.nullcontext() if kind is None else contextlib.suppress(Error):
                await self.release()
