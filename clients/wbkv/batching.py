"""Batches: many calls at once from threads, carried by an event loop on one stream to each node."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from wbkv.core.effects import Plan
from wbkv.core.requests import Requests
from wbkv.data import Entry, Key, KeyRange, RequestId, TxnResult, V
from wbkv.errors import ClientClosed, Forked
from wbkv.links.tasks import AsyncLink, run
from wbkv.operations import Condition, Operation, add, append

IN_FLIGHT: Final = 1024
"""The maximum number of calls in progress; a further call blocks. A node accepts as many on one stream."""

T = TypeVar("T")
D = TypeVar("D")


class Batch(Generic[V]):
    """Many calls at once. `client.batch` returns one. Every call returns a future at once. Calls that are in
    progress together are executed in any order; the end of the `with` block waits for all of them.
    """

    def __init__(self, requests: Requests[V], make_link: Callable[[], Awaitable[AsyncLink]]) -> None:
        self._requests = requests
        self._make_link = make_link
        self._room = threading.Semaphore(IN_FLIGHT)
        self._asked: deque[tuple[Plan[Any], Future[Any], Context]] = deque()
        self._futures: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="wbkv batch", daemon=True)
        self._thread.start()
        try:
            self._link: AsyncLink = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except BaseException:
            self._stop()
            raise

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._futures)} calls under way"
        return f"<wbkv.Batch: {state}>"

    async def _open(self) -> AsyncLink:
        return await self._make_link()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _submit(self, plan: Plan[T]) -> Future[T]:
        if self._pid != os.getpid():
            raise Forked("a batch of the parent process cannot be used in its fork: begin another one")
        self._room.acquire()
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                self._room.release()
                raise ClientClosed("the batch is closed")
            self._futures.add(future)
            self._asked.append((plan, future, copy_context()))
            if len(self._asked) == 1:
                self._loop.call_soon_threadsafe(self._begin)
        return future

    def _begin(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, deque()
        for plan, future, context in asked:
            task = self._loop.create_task(self._carry_out(plan, future), context=context)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, plan: Plan[T], future: Future[T]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(await run(self._link, plan))
        except BaseException as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        finally:
            with self._lock:
                self._futures.discard(future)
            self._room.release()

    # Calls

    @overload
    def get(self, key: Key, *, timeout: float | None = None) -> Future[V | None]: ...

    @overload
    def get(self, key: Key, default: D, *, timeout: float | None = None) -> Future[V | D]: ...

    def get(self, key: Key, default: Any = None, *, timeout: float | None = None) -> Future[Any]:
        """Read the key's value, or the default if the key is absent."""
        return self._submit(self._requests.get(key, default, 0, None, timeout))

    def entry(self, key: Key, *, timeout: float | None = None) -> Future[Entry[V] | None]:
        """Read the key with its value and revisions, or None."""
        return self._submit(self._requests.entry(key, 0, None, timeout))

    def get_many(self, keys: Iterable[Key], *, timeout: float | None = None) -> Future[list[V | None]]:
        """Read the values of the keys, all as of one revision."""
        return self._submit(self._requests.get_many(keys, None, 0, None, timeout))

    def put(self, key: Key, value: V, *, timeout: float | None = None) -> Future[int]:
        """Write a key. The result is the revision."""
        return self._submit(self._requests.put(key, value, timeout))

    def delete(self, keys: Key | KeyRange, *, timeout: float | None = None) -> Future[int]:
        """Remove a key or a range. The result is the number of keys removed."""
        return self._submit(self._requests.delete(keys, timeout))

    def add(
        self,
        key: Key,
        amount: int = 1,
        *,
        floor: int | None = None,
        ceiling: int | None = None,
        timeout: float | None = None,
    ) -> Future[int]:
        """Add to a number. The result is the new number; or `OperationFailed`, as `Client.add` raises it."""
        operation = add(key, amount, floor=floor, ceiling=ceiling)
        return self._submit(self._requests.number(operation, timeout))

    def append(self, key: Key, value: V, *, timeout: float | None = None) -> Future[int]:
        """Append to a value. The result is its new length."""
        return self._submit(self._requests.number(append(key, value), timeout))

    def transact(
        self,
        *then: Operation,
        when: Iterable[Condition] = (),
        otherwise: Iterable[Operation] = (),
        id: RequestId | None = None,  # noqa: A002 - what it is
        allow_failures: bool = False,
        timeout: float | None = None,
    ) -> Future[TxnResult[V]]:
        """Execute a transaction, as `Client.txn` does. One with an `id` is executed once, whichever client
        repeats it.
        """
        plan = self._requests.transact(
            tuple(when), then, tuple(otherwise), timeout, id, allow_failures=allow_failures
        )
        return self._submit(plan)

    # The end

    def wait(self) -> None:
        """Wait until all calls so far have ended."""
        with self._lock:
            futures = list(self._futures)
        wait_for(futures)

    def close(self) -> None:
        """Wait for all calls, and close the batch."""
        if self._pid != os.getpid():
            return  # the batch belongs to the parent
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.wait()
        asyncio.run_coroutine_threadsafe(self._link.close(), self._loop).result()
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
