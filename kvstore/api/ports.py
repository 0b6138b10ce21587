"""What the API needs of a node: `kvstore.store.service.Service`, and facts about the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kvstore.machine.placement import Placement
from kvstore.machine.request import Limits, Range, ReadOperation, Transaction
from kvstore.store.service import Batch, Committed, Consistency, Identity, Snapshot, SnapshotPart, Split


class PartitionFacts(NamedTuple):
    """A partition, as a node sees it."""

    leader: str | None
    """The name of the leader's node, if it is known."""
    members: tuple[str, ...]
    here: bool = False
    """Whether this node has a replica of it."""
    caught_up: bool = True
    """Whether that replica has caught up."""
    leads: bool = False
    """Whether it leads."""
    revision: int = 0
    """It has executed everything up to here."""


class Topology(NamedTuple):
    """Where nodes and partitions are."""

    addresses: Mapping[str, str]
    """Of the nodes' APIs, by name; empty if a node has none."""
    partitions: Mapping[int, PartitionFacts]
    placement: Placement
    revision: int = 0
    """What revisions are like now, as far as the node knows."""


class Facts(NamedTuple):
    """What a node says of itself and of others, whenever it is asked."""

    topology: Callable[[], Topology]
    status: Callable[[], Mapping[str, Any]]
    """For people, as JSON."""


class Service(Protocol):
    """One node's store, for valid requests. Awaitables may be futures: a session needs no task for these."""

    @property
    def limits(self) -> Limits:
        """The limits of requests."""

    def transact(
        self,
        transaction: Transaction,
        *,
        identity: Identity | None = None,
        min_revision: int = 0,
        reservation: int = 0,
        timeout_s: float,
    ) -> Awaitable[Committed]:
        """Execute a transaction. `reservation` is the name of its client's reservation, or 0."""

    def reserve(self, name: int, keys: Sequence[bytes], ranges: Sequence[Range], ttl_s: float) -> None:
        """Delay writes of these keys by others, for a while; without a time, end that."""

    def read(
        self,
        operations: tuple[ReadOperation, ...],
        *,
        consistency: Consistency = Consistency.STRICT,
        revision: int = 0,
        min_revision: int = 0,
        timeout_s: float,
    ) -> Awaitable[Committed]:
        """Read without a position in the order."""

    def scan(
        self,
        asked: Range,
        *,
        revision: int = 0,
        consistency: Consistency = Consistency.STRICT,
        min_revision: int = 0,
        limit: int = 0,
        reverse: bool = False,
        keys_only: bool = False,
        partitions: Sequence[int] = (),
        timeout_s: float,
    ) -> AsyncIterator[SnapshotPart]:
        """All of a range, or what some partitions have of it, at one revision, in the order of keys. The
        time-out is for each part.
        """

    async def splits(
        self, asked: Range, pieces: int, *, partitions: Sequence[int] = (), timeout_s: float
    ) -> Sequence[Split]:
        """Pieces of a range, each of one partition, of about equally many keys."""

    async def snapshot(self, *, name: str, ttl_s: float, revision: int = 0, timeout_s: float) -> Snapshot:
        """A revision that has everything completed so far, kept for a while."""

    async def release(self, name: str, *, timeout_s: float) -> None:
        """Release a snapshot."""

    async def compact(self, revision: int, *, timeout_s: float) -> None:
        """Compact: forget what no read at this revision or above needs."""

    def watch(
        self,
        *,
        after: int,
        ranges: tuple[Range, ...],
        partitions: Sequence[int] = (),
        until: int = 0,
        progress_s: float,
    ) -> AsyncIterator[Batch]:
        """All transactions after a revision that change anything in these ranges."""
