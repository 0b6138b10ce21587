"""What a node needs of its machine, as small interfaces.

The node itself (`node.py`) does no I/O: it runs on these under asyncio, and under the simulator. None of
the calls blocks. What they announce later (a batch is durable, a frame has come) reaches the node as a call
in its own loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NewType, Protocol, TypeAlias

from kvstore.wire.frames import Envelope
from multicast.durable import Checkpoint, Durable, Record
from multicast.messages import Delivery, Multicast
from multicast.protocol import Protocol as Replica
from multicast.types import ClientId, GroupId, MessageId, Process, Timestamp

NodeId = NewType("NodeId", str)


class Clock(Protocol):
    """Time that never goes back; its zero means nothing."""

    def now(self) -> float:
        """Seconds."""


class Network(Protocol):
    """Links to the other nodes and to clients. FIFO while a connection lasts; what is sent may be lost."""

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """All of one turn's messages to one node, as one frame. A link too far behind is reset."""

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """Messages to clients, by the connections they last spoke on; a client that is gone gets none."""


class Log(Protocol):
    """The disk that promises wait for: batches become durable in the order in which they were written."""

    def load(self, group: GroupId) -> Durable:
        """What the durable records of a group amount to."""

    def write(self, records: Mapping[GroupId, Sequence[Record]]) -> int:
        """Hand over a batch. It gets a number; when it is durable, the node's `durable(number)` is called."""


Said: TypeAlias = tuple[Process, Sequence[Process], Any]
"""Who says what to whom."""


class Application(Protocol):
    """What delivered messages mean, for all groups of a node: they go in, and what is to be sent comes out.

    What it makes durable is committed lazily, in one commit for all groups. Nothing of a delivery may become
    durable before the log's batch that has its records: `commit` is called with the number of that batch, and
    waits for it. When it is done, the node's `committed` is called, with what each group has executed.
    """

    @property
    def processes(self) -> Sequence[ClientId]:
        """Processes of its own, which messages may come from and go to."""

    @property
    def wake_at(self) -> float:
        """When `turn` is due, if nothing happens before."""

    def load(self, group: GroupId) -> Checkpoint:
        """What is durable of a group, on the ordering side."""

    def host(self, replica: Replica) -> None:
        """The group's replica has started from that."""

    def deliver(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Deliveries, in order."""

    def repeat(self, group: GroupId, asked: Sequence[tuple[ClientId, Multicast]]) -> None:
        """Clients multicast these again, after they were delivered: they have missed the answers."""

    def receive(self, receiver: Process, sender: Process, messages: Sequence[Any]) -> None:
        """Messages that are not the ordering protocol's, or are for a process of its own."""

    def turn(self, now: float) -> list[Said]:
        """What is to be sent, at once."""

    def unsaved(self, group: GroupId) -> bool:
        """Whether there is something to commit, even if nothing was delivered since the last time."""

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        """Commit everything delivered so far to these groups, which are at these positions, once the log's
        batch `after` is durable.
        """

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """What follows the position, as far as it is still known: at most so many, and at most so many bytes
        (but at least one). Empty if there is no more, or if it is not known any more.
        """

    def snapshot(self, group: GroupId) -> Iterator[bytes]:
        """The group's whole state at the time of this call, in pieces of bounded size, while it goes on."""

    def install(self, group: GroupId, pieces: Iterable[bytes], checkpoint: Checkpoint) -> None:
        """Replace the group's state by a snapshot; durable with the next commit, as a whole."""

    def status(self, group: GroupId) -> Mapping[str, Any]:
        """For people."""


class Image(NamedTuple):
    """What is to be durable of a group beside its maps."""

    checkpoint: Checkpoint
    """The ordering side, without entries."""
    picture: bytes
    """What the machine knows beside its maps."""


class StoreDisk(Protocol):
    """The store's disk: maps of each group, committed lazily, in one commit for all. See `Application`.

    What is put into a map is seen at once by whoever reads it, and durable with the next commit.
    """

    def load(self, group: GroupId) -> Checkpoint:
        """The ordering side, as last committed."""

    def open(self, group: GroupId) -> tuple[Image | None, Mapping[str, Any]]:
        """What was last committed or installed, and the maps by their names."""

    def count(self, group: GroupId) -> int:
        """How many messages the group has delivered."""

    def remember(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Keep the last deliveries, for replicas that fall behind."""

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """Of these, those after a position. Empty if there are none, or if it is not known any more."""

    def oldest(self, group: GroupId) -> Timestamp:
        """The lowest position for which `deliveries` knows everything after it."""

    def commit(self, images: Mapping[GroupId, Image], after: int) -> None:
        """Commit everything put so far, and these, once the log's batch `after` is durable. When it is done,
        the node's `committed` is called with what the images say is executed.
        """

    def snapshot(self, group: GroupId, image: Image) -> Iterator[bytes]:
        """The group at the time of this call, in pieces of bounded size, while it goes on."""

    def install(self, group: GroupId, snapshot: Iterable[bytes], position: Timestamp | None = None) -> Image:
        """Replace all that there is of the group by a snapshot, which must be of this position, if one is
        given. Raises `BadSnapshot`, and then changes nothing.
        """


class State(Protocol):
    """The disk of an application that only keeps what was delivered. See `Application`, and `sequencing`."""

    def load(self, group: GroupId) -> Checkpoint:
        """Position and delivered ids, as last committed."""

    def count(self, group: GroupId) -> int:
        """How many messages the group has delivered, those included that were not committed yet."""

    def apply(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Deliveries, in order. Visible to reads at once, durable with the next commit."""

    def place(self, group: GroupId, mid: MessageId) -> Timestamp:
        """Where the group delivered the message: what a repeated request is answered with."""

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
