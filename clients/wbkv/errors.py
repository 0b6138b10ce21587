"""Errors of the client. `retry_safe` says whether repeating the call is safe.

The client has already retried within the call's time limit, under the same request id. An error that reaches
the caller is one that retrying did not resolve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

FAULTS: Final[dict[int, str]] = {
    kv.OVERFLOW: "overflow",
    kv.NOT_A_NUMBER: "not a number",
    kv.VALUE_TOO_LARGE: "value too large",
    kv.COMPACTED: "compacted",
    kv.FUTURE_REVISION: "future revision",
    kv.TOO_MANY_ROWS: "too many rows",
    kv.BELOW_FLOOR: "below floor",
    kv.ABOVE_CEILING: "above ceiling",
}
"""The faults of operations, as users see them."""


class Error(Exception):
    """The base class of all errors of this package."""

    retry_safe: bool = False
    """Whether the call may be repeated without the risk that it is executed twice."""


class InvalidRequest(Error, ValueError):
    """The request is invalid and was not executed: a permanent error. The message says why."""


class LimitExceeded(InvalidRequest):
    """A limit of the cluster is exceeded. Nothing was executed."""


class FutureRevision(InvalidRequest):
    """The revision is in the future."""


class Aborted(Error):
    """Another transaction has changed what this one has read. Nothing was written: run it again."""

    retry_safe = True


class Unavailable(Error):
    """No node could be reached, or none could serve the request. Nothing was executed."""

    retry_safe = True


class DeadlineExceeded(Error, TimeoutError):
    """A request that changes nothing timed out."""

    retry_safe = True


class OutcomeUnknown(Error):
    """A write timed out: it may have been executed, or may yet be.

    Repeating the call could execute it twice. Read first, or make the write a transaction whose conditions
    no longer hold once it was executed.
    """


class RequestExpired(Error):
    """A write under a `RequestId` arrived after its deadline, and was not executed. An earlier attempt may
    have been.
    """


class RequestMismatch(Error):
    """The `RequestId` was already used for another write. This one was not executed."""


class Compacted(Error):
    """History below `revision` was compacted. After a watch: scan again, and watch after that revision."""

    def __init__(self, message: str, revision: int = 0) -> None:
        super().__init__(message)
        self.revision = revision
        """The oldest readable revision; 0 if it is unknown."""


class Pinned(Error):
    """A snapshot keeps an older revision, which prevents this compaction until the snapshot ends."""

    retry_safe = True


class Failure(NamedTuple):
    """An operation that could not be performed."""

    operation: int
    """Its index, from 0, among the operations of `then`, or of `otherwise`."""
    key: bytes
    """Its key, or the first key of its range."""
    reason: str
    """`not a number`, `overflow`, `below floor`, `above ceiling`, `value too large` or `too many rows`."""
    otherwise: bool
    """Whether it is an operation of `otherwise`: a condition did not hold."""


class OperationFailed(Error):
    """An operation could not be performed, so its transaction was aborted: nothing was written, in any
    partition.

    A retry fails again unless another transaction changes the data.
    """

    retry_safe = True

    def __init__(self, message: str, failures: Sequence[Failure]) -> None:
        super().__init__(message)
        self.failures = tuple(failures)
        """All operations that could not be performed; of very many, the first ones."""

    @property
    def fault(self) -> str:
        """The reason of the first failure."""
        return self.failures[0].reason if self.failures else "unknown"


class ResponseTooLarge(Error):
    """The request was executed, at `revision` if it wrote, but its results are too large to be sent."""

    def __init__(self, message: str, revision: int = 0) -> None:
        super().__init__(message)
        self.revision = revision


class ServerError(Error):
    """An internal error of the server; see its log. A write may have been executed."""


class ClientClosed(Error):
    """The client was closed before or during the call. A write may have been executed."""


class Forked(Error):
    """A resource of the parent process cannot be used in its fork: an embedded store, an asyncio client, an
    open transaction, watch, scan or batch; any client, if other threads were making calls during the fork.
    """


class LockLost(Error):
    """The lock was not renewed in time; another holder may have it by now."""


_ERRORS: Final[dict[int, type[Error]]] = {
    ApiError.INVALID_REQUEST: InvalidRequest,
    ApiError.LIMIT_EXCEEDED: LimitExceeded,
    ApiError.UNAVAILABLE: Unavailable,
    ApiError.OVERLOADED: Unavailable,
    ApiError.WINDOW_FULL: Unavailable,
    ApiError.OUTCOME_UNKNOWN: OutcomeUnknown,
    ApiError.DEADLINE_PASSED: DeadlineExceeded,
    ApiError.FUTURE_REVISION: FutureRevision,
    ApiError.PINNED: Pinned,
    ApiError.REQUEST_MISMATCH: RequestMismatch,
    # Only a repetition can be expired or forgotten: an earlier attempt may have been executed.
    ApiError.REQUEST_EXPIRED: OutcomeUnknown,
    ApiError.REQUEST_FORGOTTEN: OutcomeUnknown,
}


def error_of(error: ApiError) -> Error:
    """Return the exception for an error that a node returned."""
    if error.kind == ApiError.COMPACTED:
        return Compacted(error.message, error.revision)
    if error.kind == ApiError.RESPONSE_TOO_LARGE:
        return ResponseTooLarge(error.message, error.revision)
    if error.kind == ApiError.OPERATION_FAILED:
        unknown = "unknown fault"
        found = [Failure(f.operation, b"", FAULTS.get(f.fault, unknown), f.otherwise) for f in error.failures]
        return OperationFailed(error.message, found)
    return _ERRORS.get(error.kind, ServerError)(error.message)
