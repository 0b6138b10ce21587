"""What both gRPC links share: options, and the meaning of failed calls."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.effects import Failure, failed
from wbkv.errors import Forked

METADATA: Final = "wbkv-error-bin"

OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # the nodes' own limits bound responses
    ("grpc.max_send_message_length", -1),  # nodes reject requests that are too large, naming the limit
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),  # the client retries itself, under request ids
)

CLOSED: Final = "the client is closed"

_NOT_BEGUN: Final = ("failed to connect to all addresses", "dns resolution failed")


class _AtFork:
    """Detects forks after which gRPC is unusable in the child: it hangs or crashes there if other threads
    were inside gRPC during the fork.
    """

    def __init__(self) -> None:
        self._busy = False
        self._unusable = False
        if hasattr(os, "register_at_fork"):  # where there are forks
            os.register_at_fork(before=self._look, after_in_child=self._remember)

    def _look(self) -> None:
        # Threads in a call, or reading a stream; and the thread that polls for event loops.
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        me = threading.get_ident()
        self._busy = any(
            frame.f_globals.get("__name__", "").startswith("grpc.")
            or "(_poll_wrapper)" in names.get(ident, "")
            for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, and made for this
            if ident != me
        )

    def _remember(self) -> None:
        self._unusable = self._unusable or self._busy

    def check(self) -> None:
        """Raise `Forked` if gRPC is unusable in this process."""
        if self._unusable:
            raise Forked(
                "other threads (or an event loop) were using gRPC when this process was forked, so it cannot "
                "use gRPC: fork before connecting, or start processes by `spawn`"
            )


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
        return failed(ApiError.DEADLINE_PASSED, f"{address} timed out")
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
    return failed(ApiError.UNAVAILABLE, message, begun=begun)
