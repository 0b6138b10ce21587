"""The interface of every ordering protocol. The package's docstring states the contract of a host."""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from multicast.durable import Checkpoint, Durable, Record
from multicast.errors import InvalidArgument
from multicast.membership import Membership
from multicast.messages import Delivery, Message, Multicast
from multicast.quorum_time import WallClock
from multicast.topology import Topology
from multicast.types import NO_TIMESTAMP, Ballot, Destinations, MessageId, Process, ReplicaId, Timestamp

Send: TypeAlias = tuple[Sequence[Process], Message]
"""One message to one or more receivers."""


class Ready:
    """What the host is to do, since it last drained `ready`. See the contract in the package's docstring."""

    __slots__ = ("deliver", "duplicates", "learned", "persist", "promise", "send", "transfers", "wake_at")

    def __init__(self) -> None:
        self.persist: list[Record] = []
        self.send: list[Send] = []
        self.promise: list[Send] = []
        self.deliver: list[Delivery] = []
        self.duplicates: list[tuple[Process, Multicast]] = []
        """Messages that were multicast again after this group had delivered them, each with its sender."""
        self.transfers: list[tuple[ReplicaId, Timestamp, int]] = []
        """Replicas of this group that are behind everything retained here, each with its last delivery.

        Such a replica needs a snapshot, taken after `deliver` of the same `Ready`; or `Deliveries`, if the
        application still has all that follow. It may be named again while either is on its way.
        """
        self.learned: list[Membership] = []
        """New memberships of this or another group: hosts must know where to send."""
        self.wake_at = 0.0

    def __bool__(self) -> bool:
        return bool(
            self.persist
            or self.send
            or self.promise
            or self.deliver
            or self.duplicates
            or self.transfers
            or self.learned
        )


@dataclass(frozen=True, slots=True)
class Timing:
    """Time-outs, in seconds, and the bounds of what one message may carry."""

    heartbeat_s: float = 0.1
    election_s: float = 0.4
    """The shortest time without a leader before a member stands; the longest is twice this."""
    retry_s: float = 0.25
    """The shortest time that a message stays uncommitted before it is multicast again."""
    give_back_s: float = 20.0
    """How long the preferred leader must have been healthy before another leader hands over to it."""
    orphan_s: float = 5.0
    """How long proposals of other groups are kept for a message this group has not seen."""
    part_entries: int = 256
    part_bytes: int = 1 << 20
    """Bounds of one piece of a state, of one run of deliveries, and of one frame's worth of either."""
    history: int = 1024
    """Deliveries kept, beyond what the protocol needs, for replicas that are a little behind."""
    history_bytes: int = 16 << 20
    """The limit of these deliveries' payloads together."""
    anchor_s: float = 300.0
    """How often a leader with a hybrid clock moves its group's anchor (`quorum_time`)."""
    clock_step_s: float = 30 * 86400.0
    """How far quorum time may be ahead of the anchor, plus the time since that was delivered."""
    waiting: int = 4096
    """MULTICASTs held while the group has no leader; further ones are answered with a hint."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) >= (0 if name == "history" else 1e-9):  # NaN is refused too
                raise InvalidArgument(f"{name} must be positive, not {getattr(self, name)}")
        if self.heartbeat_s * 2 > self.election_s:
            raise InvalidArgument(
                f"election_s ({self.election_s}) must be at least twice heartbeat_s ({self.heartbeat_s})"
            )


@dataclass(slots=True)
class Start:
    """What a replica starts from: its id, its address, and what its disk has kept."""

    me: ReplicaId
    """If it is in no configuration, it asks to replace the member with its number."""
    topology: Topology
    """All groups in their first configurations."""
    rng: random.Random
    """Must not repeat, after a restart of a replica, the numbers that it gave before."""
    now: float
    timing: Timing = field(default_factory=Timing)
    durable: Durable = field(default_factory=Durable)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    address: str = ""
    """The address of this replica, for processes that do not know it yet."""
    evicts: ReplicaId | None = None
    """A member that it is to replace although that member is healthy."""
    wall: WallClock | None = None
    """Returns the time of day, which may be wrong and may jump. With it, clocks are hybrid: local timestamps
    follow quorum time (`quorum_time`), in ticks of 100 microseconds, unless the clock is ahead of it. Without
    it they are logical, as in the paper."""
    trusts_log: bool = True
    """Whether the host knows that `durable` is what this replica has left. If it does not (the disk may be an
    old copy), the replica takes part only when a quorum remembers no more than its log (`process.memories`).
    """


def _does_not_know(_: Multicast) -> bool:
    return False


class Protocol(abc.ABC):
    """One replica of one group, under some ordering protocol."""

    me: ReplicaId

    knows_digest: Callable[[Multicast], bool] = staticmethod(_does_not_know)
    """Tells whether the host has already compared the digest in a large message's id with its content."""

    @abc.abstractmethod
    def __init__(self, start: Start) -> None: ...

    @classmethod
    def check_topology(cls, topology: Topology) -> None:
        """Raise `InvalidArgument` if the protocol does not support groups of these sizes."""
        return

    def step(self, sender: Process, message: Message, now: float) -> None:
        """Handle one message. Raises `PeerViolation` or `InvalidArgument`, and then changes nothing."""
        self.receive(sender, (message,), now)

    @abc.abstractmethod
    def receive(self, sender: Process, messages: Iterable[Message], now: float) -> None:
        """Handle messages that arrived together. If one raises, those before it have been handled."""

    @abc.abstractmethod
    def tick(self, now: float) -> None:
        """Let time pass: heartbeats, elections, retries, garbage collection."""

    @abc.abstractmethod
    def ready(self) -> Ready:
        """Drain what the host is to do."""

    @abc.abstractmethod
    def executed(self, watermark: Timestamp) -> None:
        """Report that the effects of everything delivered up to here are durable in the application."""

    @abc.abstractmethod
    def checkpoint(self) -> Checkpoint:
        """Return the ordering side of a snapshot taken now, at the last delivery: drain `ready` first.

        Its `executed` is what is durable here; an application that has executed more may raise it.
        """

    @abc.abstractmethod
    def takes(self, checkpoint: Checkpoint) -> bool:
        """Return whether `install` would accept the checkpoint.

        It must have delivered more than this replica, and executed no less than this replica has reported;
        and this replica must not lead.
        """

    @abc.abstractmethod
    def install(self, checkpoint: Checkpoint, now: float) -> bool:
        """Jump to a snapshot's position. Return False, with nothing changed, unless `takes` accepts it.

        Report (`executed`) what the snapshot has executed once it is durable here, no sooner; and report
        nothing of an earlier state that becomes durable in between.
        """

    @abc.abstractmethod
    def awaits(self, source: ReplicaId, number: int, now: float) -> bool:
        """Return whether this replica has asked that one, a moment ago, for a snapshot of this number.

        A host installs no other snapshot.
        """

    @abc.abstractmethod
    def raise_clock(self, time: int) -> None:
        """Let the next local timestamps be above this time. A restart may forget this.

        Always safe; but a clock never falls again, so hosts bound what they let others ask for.
        """

    @property
    @abc.abstractmethod
    def reading_ballot(self) -> Ballot | None:
        """The ballot this replica leads, if it has delivered all that it took over when it began to lead.

        Then, once a quorum of `readers` has confirmed, each after a read arrived here, that it is in this
        ballot (`is_in_ballot`), everything that any leader of the group delivered before the read arrived is
        delivered here.
        """

    @abc.abstractmethod
    def is_in_ballot(self, ballot: Ballot) -> bool:
        """Return whether this replica leads or follows in the ballot, and has promised no higher one."""

    @property
    @abc.abstractmethod
    def readers(self) -> tuple[Sequence[ReplicaId], int]:
        """The members of this replica's current ballot, and the size of a quorum of them."""

    @abc.abstractmethod
    def retained_groups(self) -> list[tuple[Timestamp, Destinations]]:
        """Return delivered, not yet collected messages to several groups, with these groups, in order."""

    @abc.abstractmethod
    def nominate(self, now: float) -> None:
        """Try to lead, as leader selection wants. Always safe; useful only without a leader."""

    @abc.abstractmethod
    def hand_over(self, now: float, heirs: Collection[ReplicaId] | None = None) -> bool:
        """Ask another member to lead, if this one does; it leads on until another member does.

        With `heirs`, one of these that has executed what a quorum has; otherwise one of all, but of those in
        `avoided` only if there is no other. Return False if there is no member to ask.
        """

    @abc.abstractmethod
    def unfinished(self) -> list[MessageId]:
        """Return the messages of which this replica holds any state: none, once all destinations are done."""

    @abc.abstractmethod
    def status_of(self) -> dict[str, Any]:
        """Return, for people: status, ballot number, leader (a replica or None), clock, number of entries."""

    def time_of_day(self) -> dict[str, Any]:
        """Return, for people, what a leader with a hybrid clock knows of the time of day; nothing
        otherwise.
        """
        return {}

    def accept_time(self, now: float) -> bool:
        """Let timestamps follow the time of day, however far that is ahead: an operator has confirmed it.

        Return whether this replica leads, and its group orders that.
        """
        return False

    avoided: Collection[ReplicaId] = ()
    """Members that are worse connected than this one, as its host knows: it does not hand over to them
    although they are preferred."""

    is_restoring = False
    """Whether this process has lost part of its state, and takes part in nothing until it is restored."""

    forgot: str = ""
    """If other members remember more of this process than its log does: what they remember. Such a process
    may have forgotten promises, and takes part in nothing for ever. Its host replaces its disk."""

    @property
    def is_due(self) -> bool:
        """Whether `ready` may have anything that a process waits for. No process waits for what a follower
        delivers; but it is not to wait for long.
        """
        return True

    @property
    def queued(self) -> int:
        """The number of messages that this replica, as its group's leader, has yet to deliver."""
        return 0

    @property
    def reported(self) -> Timestamp:
        """The position up to which this process may have reported everything as executed."""
        return NO_TIMESTAMP

    @property
    @abc.abstractmethod
    def is_leader(self) -> bool:
        """Whether this replica leads its group."""

    @property
    def answers_clients(self) -> bool:
        """Whether this replica is among the first of its group to deliver, and so should answer clients."""
        return self.is_leader
