"""Errors of requests. Each class says whether a retry is safe."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.machine.placement import Placement
from kvstore.machine.request import InvalidRequest, LimitExceeded
from kvstore.machine.results import Failure

__all__ = [
    "Compacted",
    "DeadlinePassed",
    "FutureRevision",
    "InvalidRequest",
    "LimitExceeded",
    "LowSpace",
    "OutcomeUnknown",
    "Overloaded",
    "Pinned",
    "RequestExpired",
    "RequestForgotten",
    "RequestMismatch",
    "StoreError",
    "TransactionAborted",
    "Unavailable",
    "WindowFull",
    "WrongPartition",
]


class StoreError(Exception):
    """The request was not executed, or its outcome is unknown."""


class Unavailable(StoreError):
    """The request reached no replica. Nothing has happened; retry, there or elsewhere."""


class Overloaded(StoreError):
    """Too many requests are in flight. Nothing has happened; retry later."""


class LowSpace(Overloaded):
    """This node's disk has too little space for writes. Nothing has happened; retry at another node."""


class DeadlinePassed(StoreError):
    """A read timed out. Nothing has changed."""


class OutcomeUnknown(StoreError):
    """A write timed out. The transaction may have been executed, or may be yet; a retry under the same
    request id returns its outcome, and cannot execute it twice.
    """


class Compacted(StoreError):
    """The revision is too old."""

    def __init__(self, message: str, floor: int = 0) -> None:
        super().__init__(message)
        self.floor = floor
        """The oldest revision that is left, if it is known."""


class FutureRevision(StoreError):
    """The revision is in the future: no partition has reached it."""


class RequestMismatch(StoreError):
    """The request id was used before, for another request. Nothing has happened."""


class RequestExpired(StoreError):
    """The request arrived after its id's deadline. It was not executed now; it may have been before."""

    def __init__(self, message: str, revision: int = 0) -> None:
        super().__init__(message)
        self.revision = revision
        """A revision after the deadline, if this attempt is known not to have been executed, and never to
        be."""


class RequestForgotten(StoreError):
    """The client has acknowledged the request's result, which is forgotten. It is not executed again."""


class WindowFull(StoreError):
    """The client has too many requests whose results it has not acknowledged. Nothing has happened."""


class TransactionAborted(StoreError):
    """A write of a transaction could not be performed: nothing was written, in any partition. It stays so: a
    retry under the same request id returns the same error.
    """

    def __init__(self, failures: Sequence[Failure], *, in_then: bool, revision: int = 0) -> None:
        branch = "then" if in_then else "otherwise"
        first = failures[0]
        more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
        fault = first.fault.value.replace("_", " ")
        super().__init__(
            f"nothing was written: operation {first.operation} of `{branch}` cannot be performed "
            f"({fault}){more}"
        )
        self.failures = tuple(failures)
        self.in_then = in_then
        self.revision = revision
        """Where it was ordered."""


class Pinned(StoreError):
    """A snapshot or a watch still needs what the compaction would drop."""


class WrongPartition(StoreError):
    """The map of partitions keeps changing. Nothing has happened; retry."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(f"the request was not routed by the map of version {placement.version}")
        self.placement = placement
