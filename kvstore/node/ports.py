"""What a node needs of its machine, as small interfaces.

The node itself (`loop`) does no I/O: it runs on these under asyncio, and under the simulator. None of
the calls blocks. What they announce later (a batch is durable, a frame has come) reaches the node as a call
in its own loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from kvstore.config.addresses import NodeId
from kvstore.wire.frames import Envelope
from multicast.durable import Checkpoint, Durable, Record
from multicast.messages import Delivery, Multicast
from multicast.protocol import Protocol as Replica
from multicast.types import ClientId, GroupId, Process, Timestamp


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


Outgoing: TypeAlias = tuple[Process, Sequence[Process], Any]
"""Who says what to whom."""


class Application(Protocol):
    """What delivered messages mean, for all groups of a node: they go in, and what is to be sent comes out.

    What it makes durable is committed lazily, in one commit for all groups. Nothing of a delivery may become
    durable before the log's batch that has its records: `commit` is called with the number of that batch, and
    waits for it. When it is done, the node's `committed` is called, with what each group has executed.
    """

    @property
    def messages(self) -> Collection[type[Any]]:
        """Classes of its own messages: msgspec structs, tagged within `wire.frames.APPLICATION_TAGS`."""

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

    def turn(self, now: float) -> list[Outgoing]:
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
