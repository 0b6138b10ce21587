"""Report errors to clients: a gRPC status for people, a `wbkv.v1.Error` for programs.

A client learns what it can do about an error and nothing of what happened inside: an unexpected exception is
logged here, once, and reported as "internal error".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from wbkv_proto.v1.error_pb2 import Error, Failure, Leader, Limit

from kvstore.api.convert import FAULT
from kvstore.api.ports import Topology
from kvstore.http2.status import Status
from kvstore.store.errors import (
    Compacted,
    DeadlinePassed,
    FutureRevision,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    Overloaded,
    Pinned,
    RequestExpired,
    RequestForgotten,
    RequestMismatch,
    StoreError,
    TransactionAborted,
    Unavailable,
    WindowFull,
    WrongPartition,
)

logger = logging.getLogger(__name__)

METADATA: Final = "wbkv-error-bin"
MESSAGE_MAX: Final = 512
"""Characters of a message. Trailing metadata must fit into the 8 KiB that every client takes."""
LEADERS_MAX: Final = 32
FAILURES_MAX: Final = 64


class ResponseTooLarge(StoreError):
    """A transaction was executed, but its results are too large to be sent."""

    def __init__(self, limit: int, revision: int = 0) -> None:
        executed = f"the transaction was executed at revision {revision}, but its" if revision else "the"
        super().__init__(f"{executed} results exceed the limit of {limit} bytes (response_bytes)")
        self.name = "response_bytes"
        self.value = limit
        self.revision = revision


class UnknownService(InvalidRequest):
    """The health of an unknown service was asked for."""


class ApiError(NamedTuple):
    """How an exception is reported: its kind, its gRPC status, and whether a retry can help."""

    kind: Error.Kind
    status: Status
    retryable: bool = False
    same_id: bool = False


ERROR_MAP: Final[Mapping[type[BaseException], ApiError]] = {
    InvalidRequest: ApiError(Error.INVALID_REQUEST, Status.INVALID_ARGUMENT),
    LimitExceeded: ApiError(Error.LIMIT_EXCEEDED, Status.INVALID_ARGUMENT),
    UnknownService: ApiError(Error.INVALID_REQUEST, Status.NOT_FOUND),
    Unavailable: ApiError(Error.UNAVAILABLE, Status.UNAVAILABLE, retryable=True, same_id=True),
    WrongPartition: ApiError(Error.UNAVAILABLE, Status.UNAVAILABLE, retryable=True, same_id=True),
    Overloaded: ApiError(Error.OVERLOADED, Status.RESOURCE_EXHAUSTED, retryable=True),
    OutcomeUnknown: ApiError(Error.OUTCOME_UNKNOWN, Status.UNKNOWN, retryable=True, same_id=True),
    DeadlinePassed: ApiError(Error.DEADLINE_PASSED, Status.DEADLINE_EXCEEDED, retryable=True, same_id=True),
    Compacted: ApiError(Error.COMPACTED, Status.OUT_OF_RANGE),
    FutureRevision: ApiError(Error.FUTURE_REVISION, Status.OUT_OF_RANGE),
    Pinned: ApiError(Error.PINNED, Status.FAILED_PRECONDITION),
    RequestMismatch: ApiError(Error.REQUEST_MISMATCH, Status.ALREADY_EXISTS),
    RequestExpired: ApiError(Error.REQUEST_EXPIRED, Status.FAILED_PRECONDITION),
    RequestForgotten: ApiError(Error.REQUEST_FORGOTTEN, Status.FAILED_PRECONDITION),
    WindowFull: ApiError(Error.WINDOW_FULL, Status.RESOURCE_EXHAUSTED),
    TransactionAborted: ApiError(Error.OPERATION_FAILED, Status.FAILED_PRECONDITION),
    ResponseTooLarge: ApiError(Error.RESPONSE_TOO_LARGE, Status.RESOURCE_EXHAUSTED),
}
_INTERNAL: Final = ApiError(Error.INTERNAL, Status.INTERNAL)


def to_error(error: BaseException, topology: Callable[[], Topology]) -> Error:
    """Return the error as a client may know it. An unexpected one is logged."""
    for kind in type(error).__mro__:
        if kind in ERROR_MAP:
            report, message = ERROR_MAP[kind], str(error)
            break
    else:
        logger.error("a request failed", exc_info=error)
        report, message = _INTERNAL, "internal error"
    if len(message) > MESSAGE_MAX:
        message = message[:MESSAGE_MAX] + "..."
    found = Error(
        kind=report.kind,
        message=message,
        code=report.status,
        retryable=report.retryable,
        same_id=report.same_id,
    )
    if isinstance(error, Compacted):
        found.revision = error.floor
    elif isinstance(error, RequestExpired):
        found.revision = error.revision
    elif isinstance(error, LimitExceeded | ResponseTooLarge):
        found.limit.CopyFrom(Limit(name=error.name, value=error.value))
        if isinstance(error, ResponseTooLarge):
            found.revision = error.revision
    elif isinstance(error, TransactionAborted):
        found.revision = error.revision
        found.failures.extend(
            Failure(operation=each.operation, fault=FAULT[each.fault], otherwise=not error.in_then)
            for each in error.failures[:FAILURES_MAX]
        )
    elif isinstance(error, Unavailable):
        found.leaders.extend(_leaders(topology()))
    return found


def _leaders(topology: Topology) -> list[Leader]:
    known = [
        Leader(partition=partition, node=facts.leader, address=topology.addresses.get(facts.leader, ""))
        for partition, facts in sorted(topology.partitions.items())
        if facts.leader is not None
    ]
    return known[:LEADERS_MAX]
