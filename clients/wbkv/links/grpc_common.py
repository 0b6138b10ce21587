"""What both gRPC links share: options, and the meaning of failed calls."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError, Message
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.effects import Failure, failed
from wbkv.core.forks import IS_GRPC_SET
from wbkv.errors import Forked

logger = logging.getLogger(__name__)

METADATA: Final = "wbkv-error-bin"

OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # the nodes' own limits bound responses
    ("grpc.max_send_message_length", -1),  # nodes reject requests that are too large, naming the limit
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),  # so long may a node take to accept a connection
    ("grpc.max_reconnect_backoff_ms", 250),  # until then, gRPC fails calls although the node is back
    ("grpc.enable_retries", 0),  # the client retries itself, under request ids
)

CLOSED: Final = "the client is closed"

ENDING_S: Final = 1.0
"""How long a fork waits for gRPC's threads to end; they take milliseconds."""

_THREADS: Final = ("event_engine", "grpc_", "lifeguard")
"""How the names of gRPC's own threads begin."""

_NOT_BEGUN: Final = ("failed to connect to all addresses", "dns resolution failed")


class ChannelHolder(Protocol):
    """An object whose gRPC channels can be closed while no thread uses them, and are opened again on use."""

    def suspend(self) -> None:
        """Before a fork: close all channels, and let no thread open one until `resume`."""

    def resume(self) -> None:
        """After a fork, in the parent: let threads open channels again."""


class _AtFork:
    """Lets a process fork while it uses gRPC.

    gRPC's own support of forks restarts its threads in the child, where they go on with the parent's calls.
    In some children they crash, also in those that never use gRPC. So `core.forks` switches it off, unless
    $GRPC_ENABLE_FORK_SUPPORT says otherwise or grpc was imported before. Without it, gRPC is unusable in a
    child that is forked while gRPC runs. If no thread is inside gRPC during a fork, all channels are closed
    before it, which ends gRPC, and both processes open channels of their own. Otherwise the child learns that
    it cannot use gRPC.
    """

    def __init__(self) -> None:
        self._runs = False
        self._unusable = False
        self._suspended: list[ChannelHolder] = []
        self._holders: weakref.WeakSet[ChannelHolder] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):  # where there are forks
            os.register_at_fork(
                before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
            )

    def add(self, holder: ChannelHolder) -> None:
        """Suspend and resume this object around every fork, for as long as it lives."""
        self._holders.add(holder)

    def _before(self) -> None:
        if not _is_grpc_running():
            self._runs = False
            return
        if _is_grpc_busy():
            if not IS_GRPC_SET:
                logger.warning(
                    "the child of a fork amid gRPC calls may crash; set GRPC_ENABLE_FORK_SUPPORT=0 or import "
                    "wbkv before grpc"
                )
        else:
            for holder in list(self._holders):
                holder.suspend()
                self._suspended.append(holder)
            until = time.monotonic() + ENDING_S
            while _is_grpc_running() and time.monotonic() < until:
                time.sleep(0.001)
        self._runs = _is_grpc_running()

    def _in_parent(self) -> None:
        while self._suspended:
            self._suspended.pop().resume()

    def _in_child(self) -> None:
        self._suspended.clear()  # each object resets itself
        self._unusable = self._unusable or self._runs

    def check(self) -> None:
        """Raise `Forked` if gRPC is unusable in this process."""
        if self._unusable:
            raise Forked(
                "the parent was using gRPC (in another thread, an event loop, or a channel of its own) when "
                "this process was forked, so this process cannot use gRPC: fork before connecting, or start "
                "processes by `spawn`"
            )


def _is_grpc_busy() -> bool:
    """Whether another thread is in a call, or reads a stream, or polls for an event loop."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    me = threading.get_ident()
    return any(
        frame.f_globals.get("__name__", "").startswith("grpc.") or "(_poll_wrapper)" in names.get(ident, "")
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, and made for this
        if ident != me
    )


def _is_grpc_running() -> bool:
    """Whether gRPC has threads in this process; where they cannot be listed: whether it is loaded."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return "grpc" in sys.modules
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/comm") as name:
                if name.read().startswith(_THREADS):
                    return True
        except OSError:
            continue  # it has ended
    return False


AT_FORK: Final = _AtFork()


def serialize(message: Message) -> bytes:
    """Serialize a request."""
    return message.SerializeToString()


def failure_of(
    code: grpc.StatusCode | None,
    details: str | None,
    trailing: Iterable[tuple[Any, Any]] | None,
    address: str,
) -> Failure:
    """Return the failure of a call that did not succeed."""
    for name, value in trailing or ():
        if name == METADATA:
            try:
                return Failure(ApiError.FromString(value))
            except DecodeError:
                break
    reason = details or (code.name if code is not None else "the connection broke")
    message = f"{address}: {reason}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return failed(ApiError.DEADLINE_PASSED, f"{address} timed out", silent=True)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Failure(
            ApiError(kind=ApiError.INVALID_REQUEST, message=f"{address} is not a wbkv node ({reason})")
        )
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if "larger than max" in reason:
            return Failure(ApiError(kind=ApiError.LIMIT_EXCEEDED, message=message))
        return failed(ApiError.OVERLOADED, message)
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return Failure(ApiError(kind=ApiError.INVALID_REQUEST, message=message))
    begun = not any(sign in reason.lower() for sign in _NOT_BEGUN)
    if not begun:
        message = f"cannot connect to {address}"
    return failed(ApiError.UNAVAILABLE, message, begun=begun, silent=not begun and "timed out" in reason)
