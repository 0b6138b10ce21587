"""Interfaces: what an application needs of its disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from multicast.durable import Checkpoint
from multicast.messages import Delivery
from multicast.types import GroupId, MessageId, Timestamp


class GroupCheckpoint(NamedTuple):
    """The durable state of a group beside its maps."""

    checkpoint: Checkpoint
    """The ordering side, without entries."""
    picture: bytes
    """The machine's state beside its maps, encoded."""


class StoreDisk(Protocol):
    """The store's disk: maps of each group, committed lazily, in one commit for all. See `Application`.

    A put is visible to reads at once, and durable with the next commit.
    """

    def load(self, group: GroupId) -> Checkpoint:
        """The ordering side, as last committed."""

    def open(self, group: GroupId) -> tuple[GroupCheckpoint | None, Mapping[str, Any]]:
        """Return the checkpoint last committed or installed, and the maps by their names."""

    def count(self, group: GroupId) -> int:
        """How many messages the group has delivered."""

    def remember(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Keep the last deliveries, for replicas that fall behind."""

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """Return the remembered deliveries after a position; none if not all of them are known any more."""

    def oldest(self, group: GroupId) -> Timestamp:
        """The lowest position for which `deliveries` knows everything after it."""

    def commit(self, checkpoints: Mapping[GroupId, GroupCheckpoint], after: int) -> None:
        """Commit everything put so far, and these, once the log's batch `after` is durable. When it is done,
        the node's `committed` is called with the executed positions of the checkpoints.
        """

    def snapshot(self, group: GroupId, checkpoint: GroupCheckpoint) -> Iterator[bytes]:
        """Return the group's state at the time of this call, in bounded pieces, while the group goes on."""

    def install(
        self, group: GroupId, snapshot: Iterable[bytes], position: Timestamp | None = None
    ) -> GroupCheckpoint:
        """Replace the group's state by a snapshot, which must be at this position, if one is given. Raises
        `BadSnapshot`, and then changes nothing.
        """


class DeliveryDisk(Protocol):
    """The disk of an application that only keeps deliveries. See `Application` and `kvstore.bare`."""

    def load(self, group: GroupId) -> Checkpoint:
        """Position and delivered ids, as last committed."""

    def count(self, group: GroupId) -> int:
        """How many messages the group has delivered, those included that were not committed yet."""

    def apply(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Deliveries, in order. Visible to reads at once, durable with the next commit."""

    def position(self, group: GroupId, mid: MessageId) -> Timestamp:
        """Return the position at which the group delivered the message, to answer a repeated request."""

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """What follows the position, as far as it is still known: at most so many, and at most so many bytes
        (but at least one). Empty if there is no more, or if it is not known any more.
        """

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        """Commit everything applied so far to these groups, which are at these positions, once the log's
        batch `after` is durable. When it is done, the node's `committed(positions)` is called.
        """

    def snapshot(self, group: GroupId) -> Iterator[bytes]:
        """The group's whole state, in pieces of bounded size, while the group goes on.

        It is the state at the time of this call, not when the first piece is asked for.
        """

    def install(self, group: GroupId, pieces: Iterable[bytes], checkpoint: Checkpoint) -> None:
        """Replace the group's state by a snapshot; durable with the next commit, as a whole."""
