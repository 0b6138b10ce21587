"""The interfaces that a node needs from its machine, and those of its observers.

The node itself (`loop`) does no I/O: it runs on these interfaces under asyncio and under the simulator. No
call blocks. Later events (a batch is durable, a frame arrived) reach the node as calls in its own loop.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

from kvstore.config.addresses import NodeId
from kvstore.storage.errors import DamagedRow
from kvstore.wire.frames import Envelope
from multicast.durable import Checkpoint, Durable, Record
from multicast.membership import Membership
from multicast.messages import Delivery, Multicast
from multicast.protocol import Protocol as Replica
from multicast.types import ClientId, GroupId, Process, ReplicaId, Timestamp


class Clock(Protocol):
    """A monotonic clock with an arbitrary zero."""

    def now(self) -> float:
        """Return the time in seconds."""


class Network(Protocol):
    """Links to other nodes and to clients: FIFO while a connection lasts; messages may be lost."""

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        """Send all of one turn's messages to one node, in order. A queue that grows too long is dropped."""

    def answer(self, envelopes: Iterable[Envelope]) -> None:
        """Send to clients, on the connections they last used; drop messages to disconnected clients."""

    @property
    def peers(self) -> Collection[NodeId]:
        """The other nodes to which there are links, connected or not."""

    def backlog(self, node: NodeId) -> int:
        """Return the unsent bytes of the link to a node."""

    def behind(self, node: NodeId) -> int:
        """Return how often a node has told that this one reads too slowly, and that it has dropped what was
        queued.
        """


class Log(Protocol):
    """The log that promises wait for: batches become durable in the order in which they were written."""

    def load(self, group: GroupId) -> Durable:
        """Return the state that the durable records of a group add up to."""

    @property
    def durable(self) -> int:
        """The number of the last batch that is durable and that `load` takes into account."""

    def write(self, records: Mapping[GroupId, Sequence[Record]]) -> int:
        """Queue a batch; return its number. Once durable, the log calls the node's `durable(number)`."""

    def distrust(self, reason: str) -> None:
        """Take no more batches, in this life and all later ones: the log was rolled back, and may lack
        promises. The node stops, and returns with a new disk.
        """

    # Staged payloads: see `kvstore.node.staging`

    def stage(self) -> int:
        """Return the number of a payload that is about to be written in pieces."""

    def stage_piece(self, stage: int, data: bytes) -> int:
        """Queue the next piece of a payload, which waits behind batches; return the piece's number. Once
        durable, the log calls the node's `durable` with the number of the last durable batch.
        """

    @property
    def staged(self) -> int:
        """The number of the last durable piece."""

    def refer(self, stage: int, payload: bytes) -> None:
        """From now on records refer to the pieces for this very object, which they amount to. They are
        durable.
        """

    @property
    def referred(self) -> Container[int]:
        """The identities of these objects."""

    def unstage(self, stage: int) -> None:
        """Let the log delete the pieces, as soon as no record refers to them."""


Outgoing: TypeAlias = tuple[Process, Sequence[Process], Any]
"""An outgoing message: its sender, its receivers, and the message."""


class Application(Protocol):
    """The meaning of delivered messages, for all groups of a node: deliveries go in, messages come out.

    The application commits its state lazily, in one commit for all groups. No effect of a delivery may become
    durable before the log's batch with its records: `commit` gets the number of that batch, and waits for it.
    Once the commit is durable, it calls the node's `committed` with what each group has executed.
    """

    @property
    def messages(self) -> Collection[type[Any]]:
        """Classes of its own messages: msgspec structs, tagged within `wire.frames.APPLICATION_TAGS`."""

    @property
    def unhurried(self) -> Collection[type[Any]]:
        """Those of them that no process waits for: they may stay on a node for some milliseconds."""

    @property
    def processes(self) -> Sequence[ClientId]:
        """Its own processes, which send and receive messages."""

    @property
    def wake_at(self) -> float:
        """When `turn` is due, if nothing happens before."""

    @property
    def damaged(self) -> MutableMapping[GroupId, DamagedRow]:
        """Groups whose state was found damaged in `turn` or `commit`, until the node has handled it.

        Calls that concern one group only raise the error.
        """

    def load(self, group: GroupId) -> Checkpoint:
        """Return the durable ordering state of a group."""

    def drop(self, group: GroupId, reason: str = "") -> None:
        """Forget the group's replica, and its state, which is damaged: `load` returns an empty one.

        If the process ends before another state is durable, `load` raises `DamagedRow` in the next.
        """

    def executed(self, group: GroupId) -> Timestamp:
        """Return the position up to which everything is executed, committed or not."""

    def host(self, replica: Replica) -> None:
        """Note the group's replica, which has started from that checkpoint."""

    def deliver(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Apply deliveries, in order."""

    def repeat(self, group: GroupId, asked: Sequence[tuple[ClientId, Multicast]]) -> None:
        """Answer retries of messages that were already delivered: their clients have missed the answers."""

    def receive(self, receiver: Process, sender: Process, messages: Sequence[Any]) -> bool:
        """Handle messages of its own classes, or to one of its own processes. Return whether a process may
        wait for what `turn` does with them.
        """

    def under_way(self, now: float) -> int:
        """Return how many answers its own processes wait for, of groups that have answered lately."""

    def turn(self, now: float) -> list[Outgoing]:
        """Return and remove the messages to send."""

    def work(self, now: float) -> bool:
        """Do a slice of work that may wait, once the messages of a turn have left. Return whether the next
        turn is due at once.
        """

    def unsaved(self, group: GroupId) -> bool:
        """Return whether there is anything to commit besides deliveries."""

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        """Commit everything delivered so far to these groups, which are at these positions, once the log's
        batch `after` is durable.
        """

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """Return retained deliveries that follow the position: at most `count`, and at most `size` bytes (but
        at least one). Empty if there are none, or if they are no longer retained.
        """

    def snapshot(self, group: GroupId) -> Iterator[bytes]:
        """Return the group's state at the time of this call, in bounded pieces; deliveries may go on."""

    def install(
        self, group: GroupId, pieces: Iterable[bytes], checkpoint: Checkpoint, source: ReplicaId
    ) -> None:
        """Replace the group's state by a snapshot of another member; durable with the next commit, as a
        whole.
        """

    def status(self, group: GroupId) -> Mapping[str, Any]:
        """Return the group's part of the status output."""


class Observer(Protocol):
    """A checker that watches the replicas of a node."""

    def sent(self, replica: ReplicaId, receivers: Sequence[Process], message: object) -> None:
        """Note that a replica's message leaves it."""

    def delivered(self, replica: ReplicaId, delivery: Delivery) -> None:
        """Note that a replica's application got a message."""

    def installed(self, replica: ReplicaId) -> None:
        """Note that a snapshot replaced the state of a replica's application."""

    def set_aside(self, replica: ReplicaId) -> None:
        """Note that a replica has stopped, since its state is damaged."""

    def brought_back(self, replica: ReplicaId) -> None:
        """Note that this replica has started again, from its log."""

    def learned(self, replica: ReplicaId, membership: Membership) -> None:
        """Note that a replica has learned the members of a group."""


class DeliveryObserver(Protocol):
    """A recorder of a node's deliveries: see `kvstore.node.recorder`."""

    def began(self, group: GroupId, position: Timestamp) -> None:
        """Note that the group's replica has started, with everything up to this position."""

    def delivered(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Note the group's next deliveries."""

    def jumped(self, group: GroupId, position: Timestamp) -> None:
        """Note that the group's replica has installed a snapshot, which is at this position."""

    def write(self) -> None:
        """Write all notes: the state that the deliveries led to is about to be committed."""
