"""What the API needs of a node."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, NamedTuple, Protocol

from kvstore.machine.placement import Placement
from kvstore.machine.request import Get, Limits, Range, Scan, Transaction
from kvstore.machine.results import Entry, OperationResult, Unmet


class StoreError(Exception):
    """Why a request was not answered as it was meant."""


class InvalidRequest(StoreError):
    """It can never be executed."""


class LimitExceeded(InvalidRequest):
    """Something is too large."""

    def __init__(self, message: str, name: str, value: int) -> None:
        super().__init__(message)
        self.name = name
        self.value = value


class Unavailable(StoreError):
    """Not executed, or safe to repeat under the same id."""


class Overloaded(StoreError):
    """Not begun."""


class OutcomeUnknown(StoreError):
    """It may have been executed, or may yet be."""


class DeadlinePassed(StoreError):
    """The call's time is over."""


class Compacted(StoreError):
    """Below the floor."""

    def __init__(self, message: str, floor: int) -> None:
        super().__init__(message)
        self.floor = floor


class FutureRevision(StoreError):
    """A revision that is not in the past."""


class Pinned(StoreError):
    """A snapshot holds an older revision."""


class RequestMismatch(StoreError):
    """The id has been used for another request."""


class RequestExpired(StoreError):
    """Ordered after its deadline."""


class WindowFull(StoreError):
    """Too many requests of the client are not acknowledged."""


class Identity(NamedTuple):
    """A client's request id."""

    client: int
    sequence: int
    ack_below: int
    deadline: int


class Committed(NamedTuple):
    """What became of a transaction or a read."""

    revision: int
    complete: int
    succeeded: bool
    unmet: tuple[Unmet, ...]
    results: tuple[OperationResult, ...]


class Consistency(enum.Enum):
    """How up to date a read must be."""

    STRICT = "strict"
    SERIALIZABLE = "serializable"


class Page(NamedTuple):
    """A part of a scan."""

    revision: int
    entries: tuple[Entry, ...]


class Snapshot(NamedTuple):
    """A revision that stays readable."""

    name: str
    revision: int
    expires_s: float


class Event(NamedTuple):
    """What became of a key."""

    key: bytes
    value: bytes | None
    create_revision: int
    version: int


class Batch(NamedTuple):
    """A part of a watch: everything up to the revision was sent."""

    revision: int
    transactions: list[tuple[int, list[Event]]]


class PartitionFacts(NamedTuple):
    """A partition, as a node sees it."""

    leader: str | None
    members: tuple[str, ...]
    caught_up: bool
    """Whether this node has a replica of it that has executed what it had missed."""
    leads: bool
    """Whether that replica leads."""
    revision: int
    """Executed up to here."""


class Topology(NamedTuple):
    """Where things are."""

    addresses: Mapping[str, str]
    """Of the nodes' APIs, by name."""
    partitions: Mapping[int, PartitionFacts]
    placement: Placement


class Service(Protocol):
    """One node. Futures are better than coroutines here: a session then needs no task for each request."""

    limits: Limits

    def transact(
        self,
        transaction: Transaction,
        *,
        identity: Identity | None = None,
        min_revision: int = 0,
        timeout_s: float,
    ) -> Awaitable[Committed]:
        """Order and execute a transaction."""

    def read(
        self,
        operations: tuple[Get | Scan, ...],
        *,
        consistency: Consistency = Consistency.STRICT,
        revision: int = 0,
        min_revision: int = 0,
        timeout_s: float,
    ) -> Awaitable[Committed]:
        """Read without a place in the order."""

    def scan(
        self,
        range: Range,  # noqa: A002 - what it is
        *,
        revision: int = 0,
        consistency: Consistency = Consistency.STRICT,
        limit: int = 0,
        reverse: bool = False,
        keys_only: bool = False,
        page_bytes: int = 1 << 20,
        timeout_s: float,
    ) -> AsyncIterator[Page]:
        """All pages of all groups, at one revision, merged in the order of keys."""

    async def snapshot(self, *, ttl_s: float, timeout_s: float) -> Snapshot:
        """Take a snapshot."""

    async def release(self, name: str, timeout_s: float) -> None:
        """End a snapshot."""

    async def compact(self, revision: int, *, timeout_s: float) -> None:
        """Drop old versions."""

    def watch(self, *, after: int, ranges: tuple[Range, ...], progress_s: float) -> AsyncIterator[Batch]:
        """Follow changes."""

    def topology(self) -> Topology:
        """Where things are."""

    def status(self) -> Mapping[str, Any]:
        """How the node is."""
