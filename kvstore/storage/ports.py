"""Ports: the disk that an application needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from multicast.durable import Checkpoint
from multicast.messages import Delivery
from multicast.types import GroupId, MessageId, ReplicaId, Timestamp


class GroupCheckpoint(NamedTuple):
    """The durable state of a group beside its maps."""

    checkpoint: Checkpoint
    """The ordering side, without entries."""
    machine_state: bytes
    """The machine's state beside its maps, encoded."""


class Origin(NamedTuple):
    """Where a replica's state was copied from."""

    source: ReplicaId
    position: Timestamp


class StoreDisk(Protocol):
    """The store's disk: maps of each group, committed lazily, in one commit for all. See `Application`.

    A put is visible to reads at once, and durable with the next commit.
    """

    def load(self, group: GroupId) -> Checkpoint:
        """Return the ordering side, as last committed."""

    def open(self, group: GroupId) -> tuple[GroupCheckpoint | None, Mapping[str, Any]]:
        """Return the checkpoint last committed or installed, and the maps by their names."""

    def count(self, group: GroupId) -> int:
        """Return the number of messages that the group has delivered."""

    def remember(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Keep the last deliveries, for replicas that fall behind."""

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """Return the remembered deliveries after a position; none if they do not go back that far."""

    def oldest(self, group: GroupId) -> Timestamp:
        """Return the lowest position after which `deliveries` has everything."""

    def commit(self, checkpoints: Mapping[GroupId, GroupCheckpoint], after: int) -> None:
        """Commit everything put so far, and these, once the log's batch `after` is durable. When it is done,
        the node's `committed` is called with the executed positions of the checkpoints.
        """

    def drop(self, group: GroupId, reason: str = "") -> None:
        """Forget the group's state, which is damaged. The disk keeps what it has until the next commit, which
        must have a whole state. Until then `load` and `open` raise `DamagedRow` after a restart.
        """

    def check_rows(self, group: GroupId) -> Iterator[int]:
        """Check all rows of the group that are on the disk, in bounded steps that yield their number of rows.
        Raises `DamagedRow`. Nothing is held between two steps, and the group goes on.
        """

    def origin(self, group: GroupId) -> Origin | None:
        """Return the member that the group's state was copied from and the position, unless confirmed."""

    def note_origin(self, group: GroupId, origin: Origin | None) -> None:
        """Note, durably, that the group's state is about to be a copy; or, with None, that it is as good as
        one that is not.
        """

    def rows(self) -> int:
        """Return about how many rows `check_rows` finds, of all groups."""

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
        """Return position and delivered ids, as last committed."""

    def count(self, group: GroupId) -> int:
        """Return the number of messages that the group has delivered, committed or not."""

    def apply(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Apply deliveries, in order: visible to reads at once, durable with the next commit."""

    def position(self, group: GroupId, mid: MessageId) -> Timestamp:
        """Return the position at which the group delivered the message, to answer a repeated request."""

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """Return deliveries after a position: at most `count`, and at most `size` bytes (but at least one).
        Empty if there are no more, or if they are not known any more.
        """

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        """Commit everything applied so far to these groups, which are at these positions, once the log's
        batch `after` is durable. When it is done, the node's `committed(positions)` is called.
        """

    def drop(self, group: GroupId, reason: str = "") -> None:
        """Forget the group's state, which is damaged."""

    def snapshot(self, group: GroupId) -> Iterator[bytes]:
        """Return the group's state at the time of this call, in bounded pieces, while the group goes on."""

    def install(self, group: GroupId, pieces: Iterable[bytes], checkpoint: Checkpoint) -> None:
        """Replace the group's state by a snapshot; durable with the next commit, as a whole."""
