"""What can go wrong. Every error says whether doing the same thing again is safe (`retry_safe`).

The client has already repeated what it could within the call's time-out, under the same request id: what
reaches the caller is what remains.
"""

from __future__ import annotations

from typing import Final

from wbkv_proto.v1.error_pb2 import Error as ApiError


class Error(Exception):
    """All errors of this package."""

    retry_safe: bool = False
    """Whether the same call may be made again without any danger of it being executed twice."""


class InvalidRequest(Error, ValueError):
    """The request can never be executed; nothing was. The message says why."""


class LimitExceeded(InvalidRequest):
    """Something is larger than the cluster allows; nothing was executed."""


class FutureRevision(InvalidRequest):
    """A revision that is not in the past."""


class Aborted(Error):
    """What the transaction has read was changed by another one. Nothing was written: run it again."""

    retry_safe = True


class Unavailable(Error):
    """No node could be reached, or none could do it. Nothing was executed."""

    retry_safe = True


class DeadlineExceeded(Error, TimeoutError):
    """There was no answer in time, to something that changes nothing."""

    retry_safe = True


class OutcomeUnknown(Error):
    """There was no answer in time to a write: it may have been executed, or may be yet.

    Making the call again could execute it twice. Read first, or make it a transaction whose conditions do
    not hold any more once it was executed.
    """


class RequestExpired(Error):
    """A write under a `RequestId` came after its deadline. It was not executed now; it may have been
    before.
    """


class RequestMismatch(Error):
    """The `RequestId` has been used for another write. This one was not executed."""


class Compacted(Error):
    """History below `revision` is gone. Of a watch: scan again, and watch after the scan's revision."""

    def __init__(self, message: str, revision: int = 0) -> None:
        super().__init__(message)
        self.revision = revision
        """The oldest revision that can still be read; 0 if it is not known."""


class Pinned(Error):
    """A snapshot holds an older revision, so this one cannot be compacted to, until it has ended."""

    retry_safe = True


class OperationFailed(Error):
    """The operation could not be performed, and wrote nothing: see `fault`."""

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault
        """`overflow`, `not a number` or `value too large`."""


class ResponseTooLarge(Error):
    """Executed, at `revision` if it wrote, but its results are too large to be sent."""

    def __init__(self, message: str, revision: int = 0) -> None:
        super().__init__(message)
        self.revision = revision


class ServerError(Error):
    """A fault of the server's own; its log says more. A write may have been executed."""


class ClientClosed(Error):
    """The client was closed before the call, or while it was under way: a write may have been executed."""


class Forked(Error):
    """An embedded store, an asyncio client, an open transaction, watch, scan or batch does not go with a
    process into its fork; and no client does if other threads were making calls at that moment.
    """


class LockLost(Error):
    """The lock was not renewed in time, and may be somebody else's by now."""


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
    """The exception for an error that a node returned."""
    if error.kind == ApiError.COMPACTED:
        return Compacted(error.message, error.revision)
    if error.kind == ApiError.RESPONSE_TOO_LARGE:
        return ResponseTooLarge(error.message, error.revision)
    return _ERRORS.get(error.kind, ServerError)(error.message)
