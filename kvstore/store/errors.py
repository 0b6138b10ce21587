"""What can become of a request that is not carried out as asked. Each says whether asking again is safe."""

from __future__ import annotations

from kvstore.machine.placement import Placement
from kvstore.machine.request import InvalidRequest, LimitExceeded

__all__ = [
    "Compacted",
    "DeadlinePassed",
    "FutureRevision",
    "InvalidRequest",
    "LimitExceeded",
    "OutcomeUnknown",
    "Overloaded",
    "Pinned",
    "RequestExpired",
    "RequestForgotten",
    "RequestMismatch",
    "StoreError",
    "Unavailable",
    "WindowFull",
    "WrongPartition",
]


class StoreError(Exception):
    """The request was not carried out, or nobody knows whether it was."""


class Unavailable(StoreError):
    """Nobody could be asked. Nothing has happened; ask again, there or elsewhere."""


class Overloaded(StoreError):
    """Too much is under way here. Nothing has happened; ask again later."""


class DeadlinePassed(StoreError):
    """There was no answer in time, and nothing has changed: what was asked changes nothing."""


class OutcomeUnknown(StoreError):
    """There was no answer in time. The transaction may have been executed, or may be yet; asking again under
    the same request id tells, and cannot execute it twice.
    """


class Compacted(StoreError):
    """The revision is too old."""

    def __init__(self, message: str, floor: int = 0) -> None:
        super().__init__(message)
        self.floor = floor
        """The oldest revision that is left, if it is known."""


class FutureRevision(StoreError):
    """The revision has not come yet."""


class RequestMismatch(StoreError):
    """The request id was used before, for another request. Nothing has happened."""


class RequestExpired(StoreError):
    """The request came after the time that its id was good for. It was not executed now; it may have been
    before.
    """


class RequestForgotten(StoreError):
    """The client has acknowledged the request's result, which is forgotten. It was not executed again."""


class WindowFull(StoreError):
    """The client has too many requests whose results it has not acknowledged. Nothing has happened."""


class Pinned(StoreError):
    """A snapshot or a watch still needs what was to be compacted."""


class WrongPartition(StoreError):
    """The map of partitions keeps changing. Nothing has happened."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(f"the request was not routed by the map of version {placement.version}")
        self.placement = placement
