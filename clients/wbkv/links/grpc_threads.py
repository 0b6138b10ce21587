"""A gRPC link for any number of threads: every call is a unary call."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from wbkv.core.effects import Ask, Failure, Method, Open, ReplyStream
from wbkv.core.forks import at_fork
from wbkv.errors import ClientClosed, Forked
from wbkv.links.grpc_common import AT_FORK, CLOSED, OPTIONS, failure_of, serialize
from wbkv.links.grpc_tasks import AsyncGrpcLink
from wbkv.links.tasks import AsyncLink

AHEAD: Final = 4
"""How many messages of a stream are read ahead."""


class GrpcLink:
    """Channels to the nodes, opened on first use. After a fork the child opens its own."""

    def __init__(self, credentials: grpc.ChannelCredentials | None = None) -> None:
        AT_FORK.check()
        self._credentials = credentials
        self._closed = False
        self._channels: dict[str, grpc.Channel] = {}
        self._parents: list[dict[str, grpc.Channel]] = []
        """The channels of the processes that this one was forked from."""
        self.forked()
        at_fork(self)
        AT_FORK.add(self)

    def suspend(self) -> None:
        """Before a fork: close all channels, and let no thread open one until `resume`."""
        self._lock.acquire()
        self._close_channels()

    def resume(self) -> None:
        """After a fork, in the parent: let threads open channels again."""
        self._lock.release()

    def forked(self) -> None:
        """Drop all channels. The parent's are kept, unused: closing them could end the parent's calls."""
        self._parents.append(self._channels)
        self._lock = threading.Lock()
        self._channels = {}
        self._callables: dict[tuple[str, str], Callable[..., Any]] = {}

    def ask(self, ask: Ask) -> Message | Failure:
        """Send a request, and wait for its response."""
        address, method, request, timeout_s, patience_s = ask
        call = self._callables.get((address, method.name))
        while True:
            if call is None:
                call = self._callable(address, method, streams=False)
            try:
                response: Message = call(request, timeout=min(timeout_s, patience_s))
            except grpc.RpcError as error:
                return _failure(error, address)
            except ValueError:  # the channel was closed before the call began: by `close`, or for a fork
                call = None
            else:
                return response

    def open(self, open_: Open) -> ReplyStream:
        """Open a stream."""
        while True:
            call = self._callable(open_.address, open_.method, streams=True)
            try:
                return _GrpcThreadStream(call(open_.request), open_.address)
            except ValueError:  # as above
                continue

    def next(self, stream: Any, timeout_s: float) -> Message | Failure | None:
        """Return the next message; None at the end. Raises `queue.Empty` if none arrives in time."""
        found: Message | Failure | None = stream.next(timeout_s)
        return found

    def _callable(self, address: str, method: Method, *, streams: bool) -> Callable[..., Any]:
        with self._lock:
            if self._closed:
                raise ClientClosed(CLOSED)
            AT_FORK.check()
            found = self._callables.get((address, method.name))
            if found is None:
                channel = self._channels.get(address)
                if channel is None:
                    channel = self._channels[address] = self._connect(address)
                make: Any = channel.unary_stream if streams else channel.unary_unary
                found = make(
                    method.path,
                    request_serializer=serialize,
                    response_deserializer=method.response.FromString,
                )
                self._callables[address, method.name] = found
            return found

    def _connect(self, address: str) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(address, OPTIONS)
        return grpc.secure_channel(address, self._credentials, OPTIONS)

    async def in_loop(self) -> AsyncLink:
        """Return a link to the same nodes for the running event loop."""
        if self._closed:
            raise ClientClosed(CLOSED)
        return AsyncGrpcLink(self._credentials)

    def close(self) -> None:
        """Close all connections. Calls in progress fail."""
        with self._lock:
            self._closed = True
            self._close_channels()

    def _close_channels(self) -> None:
        channels, self._channels, self._callables = self._channels, {}, {}
        for channel in channels.values():
            channel.close()


class _GrpcThreadStream:
    """A stream of responses. A thread reads a few ahead, so that waiting can have a time limit."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._came: queue.SimpleQueue[Message | Failure | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._cancelled = False
        self._pid = os.getpid()
        threading.Thread(target=self._read, name=f"wbkv stream of {address}", daemon=True).start()

    def _read(self) -> None:
        last: Failure | None = None
        try:
            for message in self._call:
                self._room.acquire()
                if self._cancelled:
                    break
                self._came.put(message)
        except grpc.RpcError as error:
            last = _failure(error, self._address)
        self._came.put(last)

    def next(self, timeout_s: float) -> Message | Failure | None:
        """Return the next message; None at the end. Raises `queue.Empty` if none arrives in time."""
        if self._pid != os.getpid():
            raise Forked("a scan or watch of the parent process cannot be used in its fork: begin another")
        found = self._came.get(timeout=timeout_s)
        self._room.release()
        return found

    def cancel(self) -> None:
        """End the stream and its thread."""
        if self._pid == os.getpid():
            self._cancelled = True
            self._call.cancel()
            self._room.release()


def _failure(error: Any, address: str) -> Failure:
    return failure_of(error.code(), error.details(), error.trailing_metadata(), address)
