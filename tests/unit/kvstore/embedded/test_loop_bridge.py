"""Calls into a loop that runs in another thread, with methods that do as they are told."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message
from wbkv_proto.v1.kv_pb2 import GetRequest, GetResponse, PutRequest, ScanRequest, ScanResponse

from kvstore.api.methods import Streaming, Unary
from kvstore.embedded.loop_bridge import BridgedStream, Closed, Forked, LoopBridge
from kvstore.store.errors import DeadlinePassed

WAIT_S = 60.0


class Told(Exception):
    """What a caller got for an error."""

    def __init__(self, why: BaseException, kind: type[Message]) -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind


class Loop:
    """A loop in a thread, and what goes on in it."""

    def __init__(self) -> None:
        self.begun: list[Message] = []
        self.ended: list[Message] = []
        self.made = 0
        """Responses of streams."""
        self.go = asyncio.Event()
        started: Future[LoopBridge] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(started)))
        self._thread.start()
        self.bridge = started.result(WAIT_S)

    async def _main(self, started: Future[LoopBridge]) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        started.set_result(LoopBridge(Told))
        await self._stop.wait()

    async def _call(self, request: Message, timeout_s: float) -> Message:
        self.begun.append(request)
        try:
            await self.go.wait()
            return GetResponse()
        finally:
            self.ended.append(request)

    async def _stream(self, request: ScanRequest, timeout_s: float | None) -> AsyncGenerator[Message, None]:
        self.begun.append(request)
        try:
            for count in range(request.limit):
                self.made += 1
                yield ScanResponse(count=count)
            if request.reverse:
                await self.go.wait()
        finally:
            self.ended.append(request)

    def call(self, timeout_s: float = WAIT_S) -> Future[Message]:
        return self.bridge.call(Unary(PutRequest, self._call), PutRequest(), timeout_s)

    def stream(self, limit: int, timeout_s: float | None = None, *, endless: bool = False) -> BridgedStream:
        request = ScanRequest(limit=limit, reverse=endless)
        return self.bridge.stream(Streaming(ScanRequest, self._stream), request, timeout_s)

    def do(self, call: Callable[[], object]) -> None:
        """In the loop, after all that was posted so far, and all that followed from it at once."""
        self._loop.call_soon_threadsafe(call)
        asyncio.run_coroutine_threadsafe(_rounds(), self._loop).result(WAIT_S)

    def settled(self) -> None:
        self.do(lambda: None)

    def close(self) -> None:
        self.do(self.bridge.close)
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


async def _rounds() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def loop() -> Iterator[Loop]:
    found = Loop()
    try:
        yield found
    finally:
        if found._thread.is_alive():
            found.close()


@contextmanager
def told(kind: type[BaseException]) -> Iterator[None]:
    with pytest.raises(Told) as caught:
        yield
    assert isinstance(caught.value.why, kind)


def test_a_call_is_answered(loop: Loop) -> None:
    future = loop.call()
    loop.do(loop.go.set)
    assert future.result(WAIT_S) == GetResponse()


def test_an_error_of_the_call_is_told(loop: Loop) -> None:
    async def fail(request: Message, timeout_s: float) -> Message:
        raise KeyError("no")

    with told(KeyError):
        loop.bridge.call(Unary(GetRequest, fail), GetRequest(), WAIT_S).result(WAIT_S)


def test_one_wake_is_enough_for_all_that_was_posted_before(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = []
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        release.wait(WAIT_S)

    loop.bridge.post(hold)  # one post: with two, the second may have woken the loop already
    held.wait(WAIT_S)
    monkeypatch.setattr(
        loop.bridge, "_loop", type("Counting", (), {"call_soon_threadsafe": lambda _, c: woken.append(c)})()
    )
    done: list[int] = []
    for number in range(100):
        loop.bridge.post(partial(done.append, number))
    monkeypatch.undo()
    release.set()
    loop.settled()
    assert done == list(range(100))
    assert len(woken) == 1


def test_posts_from_many_threads_are_all_done(loop: Loop) -> None:
    done: list[tuple[int, int]] = []

    def post(thread: int) -> None:
        for number in range(500):
            loop.bridge.post(partial(done.append, (thread, number)))

    threads = [threading.Thread(target=post, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    loop.settled()
    assert len(done) == 8 * 500


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_without_time_nothing_begins(loop: Loop, timeout_s: float) -> None:
    with told(DeadlinePassed):
        loop.call(timeout_s=timeout_s).result(WAIT_S)
    with told(DeadlinePassed):
        (stream := loop.stream(1, timeout_s)).next().result(WAIT_S)
    del stream
    assert not loop.begun


def test_a_deadline_counts_from_the_call(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    loop.bridge.post(partial(release.wait, WAIT_S))
    future = loop.call(timeout_s=5.0)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 6.0)
    release.set()
    with told(DeadlinePassed):
        future.result()
    assert not loop.begun


def test_a_cancelled_future_ends_its_call(loop: Loop) -> None:
    future = loop.call()
    loop.settled()
    assert len(loop.begun) == 1
    assert future.cancel()
    loop.settled()
    assert loop.ended == loop.begun
    assert not loop.bridge.calls


def test_a_future_that_is_cancelled_before_its_call_began_ends_it_too(loop: Loop) -> None:
    release = threading.Event()
    loop.bridge.post(partial(release.wait, WAIT_S))
    future = loop.call()
    assert future.cancel()
    release.set()
    loop.settled()
    assert loop.ended == loop.begun
    assert not loop.bridge.calls


def test_a_stream_gives_its_responses_and_then_none_for_ever(loop: Loop) -> None:
    stream = loop.stream(3)
    found = [stream.next() for _ in range(5)]
    counts = [getattr(future.result(WAIT_S), "count", None) for future in found]
    assert counts == [0, 1, 2, None, None]
    assert stream.next().result(WAIT_S) is None


def test_a_stream_runs_one_response_ahead_of_its_reader(loop: Loop) -> None:
    stream = loop.stream(100)
    loop.settled()
    assert loop.made == 1
    stream.next().result(WAIT_S)
    loop.settled()
    assert loop.made == 2


def test_a_response_that_nobody_waits_for_any_more_is_for_the_next(loop: Loop) -> None:
    release = threading.Event()
    loop.bridge.post(partial(release.wait, WAIT_S))
    stream = loop.stream(1)
    first = stream.next()
    assert first.cancel()
    release.set()
    found = stream.next().result(WAIT_S)
    assert isinstance(found, ScanResponse)


def test_readers_who_give_up_leave_nothing_behind(loop: Loop) -> None:
    stream = loop.stream(0, endless=True)
    for _ in range(100):
        stream.next().cancel()
    loop.settled()
    assert len(stream._feed._askers) <= 1


def test_a_cancelled_stream_ends_for_all_who_wait(loop: Loop) -> None:
    stream = loop.stream(0, endless=True)
    waiting = stream.next()
    stream.cancel()
    for future in (waiting, stream.next()):
        with pytest.raises(CancelledError):
            future.result(WAIT_S)
    assert loop.ended == loop.begun
    assert not loop.bridge.streams


def test_a_stream_that_is_cancelled_before_it_began_ends_too(loop: Loop) -> None:
    release = threading.Event()
    loop.bridge.post(partial(release.wait, WAIT_S))
    stream = loop.stream(1)
    waiting = stream.next()
    stream.cancel()
    release.set()
    with pytest.raises(CancelledError):
        waiting.result(WAIT_S)
    assert not loop.bridge.streams
    assert not loop.begun


def test_what_is_cut_off_before_it_began_is_told(loop: Loop) -> None:
    def cut_off() -> None:
        for task in loop.bridge.calls | loop.bridge.streams:
            task.cancel()

    release = threading.Event()
    loop.bridge.post(partial(release.wait, WAIT_S))
    future, stream = loop.call(), loop.stream(1)
    waiting: tuple[Future[Any], ...] = future, stream.next()
    loop.bridge.post(cut_off)
    release.set()
    for each in waiting:
        with told(asyncio.CancelledError):
            each.result(WAIT_S)


def test_a_forgotten_stream_is_cancelled(loop: Loop) -> None:
    stream = loop.stream(100)
    loop.settled()
    assert loop.bridge.streams
    del stream
    gc.collect()
    loop.settled()
    assert not loop.bridge.streams
    assert loop.ended == loop.begun


def test_a_streams_deadline_is_for_all_of_it(loop: Loop) -> None:
    stream = loop.stream(1, 0.05, endless=True)
    assert stream.next().result(WAIT_S) is not None
    for _ in range(2):
        with told(DeadlinePassed):
            stream.next().result(WAIT_S)
    assert loop.ended == loop.begun


def test_after_the_end_everything_is_refused(loop: Loop) -> None:
    stream = loop.stream(1, endless=True)
    loop.close()
    with told(Closed):
        loop.call().result(WAIT_S)
    with told(Closed):
        loop.stream(1).next().result(WAIT_S)
    with told(Closed):
        stream.next().result(WAIT_S)
    stream.cancel()


def test_what_was_posted_before_the_end_is_still_begun(loop: Loop) -> None:
    release = threading.Event()
    loop.bridge.post(partial(release.wait, WAIT_S))
    loop.bridge.post(loop.bridge.close)
    future = loop.call()
    loop.bridge.post(loop.go.set)
    release.set()
    assert future.result(WAIT_S) == GetResponse()


def test_a_forked_process_is_refused(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with told(Forked):
        loop.call().result(WAIT_S)
    with told(Forked):
        loop.stream(1).next().result(WAIT_S)
    monkeypatch.undo()
    assert not loop.begun
