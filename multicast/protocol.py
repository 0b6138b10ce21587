"""The interface of every ordering protocol. The package's docstring states the contract of a host."""

from __future__ import annotations

import abc
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from multicast.durable import Checkpoint, Durable, Record
from multicast.errors import InvalidArgument
from multicast.membership import Membership
from multicast.messages import Delivery, Message, Multicast
from multicast.topology import Topology
from multicast.types import Ballot, Destinations, MessageId, Process, ReplicaId, Timestamp

Send: TypeAlias = tuple[Sequence[Process], Message]
"""One message to one or more receivers."""


@dataclass(slots=True)
class Ready:
    """What the host is to do, since it last drained `ready`. See the contract in the package's docstring."""

    persist: list[Record] = field(default_factory=list)
    send: list[Send] = field(default_factory=list)
    promise: list[Send] = field(default_factory=list)
    deliver: list[Delivery] = field(default_factory=list)
    duplicates: list[tuple[Process, Multicast]] = field(default_factory=list)
    """Messages that were multicast again after this group had delivered them, and by whom."""
    transfers: list[tuple[ReplicaId, Timestamp]] = field(default_factory=list)
    """Replicas of this group that are behind everything retained here, and how far each has come.

    They need a snapshot, taken after `deliver` of the same `Ready`; or `Deliveries`, if the application still
    has all that follows. A replica may be named again while either is on its way.
    """
    learned: list[Membership] = field(default_factory=list)
    """Who is in a group, its own or another, as of now: hosts must know where to send."""
    wake_at: float = 0.0

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
    """The shortest time without a leader before anyone stands; the longest is twice this."""
    retry_s: float = 0.25
    """How long a message may stay uncommitted before it is multicast again."""
    give_back_s: float = 20.0
    """How long the member that should lead must have been well before whoever leads instead hands over."""
    orphan_s: float = 5.0
    """How long proposals of other groups are kept for a message this group has not seen."""
    part_entries: int = 256
    part_bytes: int = 1 << 20
    """Bounds of one piece of a state, of one run of deliveries, and of one frame's worth of either."""
    history: int = 1024
    """Deliveries kept, beyond what protocol needs, for replicas that fell behind a little."""
    history_bytes: int = 16 << 20
    """The most that the payloads of these may take."""
    waiting: int = 4096
    """MULTICASTs held while the group has no leader; the rest is answered with a hint."""

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
    """What a replica starts from: who it is, where, and what its disk has kept."""

    me: ReplicaId
    """If no configuration has it, it asks to take the place of the member with its number."""
    topology: Topology
    """Of the first configurations."""
    rng: random.Random
    """Must not repeat in one life of a replica what it gave in an earlier one."""
    now: float
    timing: Timing = field(default_factory=Timing)
    durable: Durable = field(default_factory=Durable)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    address: str = ""
    """Where this replica is to be found, for those who do not know it yet."""
    evicts: ReplicaId | None = None
    """A member whose place it is to take although that one is well."""
    wall_s: float | None = None
    """What to add to `now` for the time of day, in seconds since an epoch that all groups share. With it,
    clocks are hybrid: local timestamps follow the time of day, in ticks of 100 microseconds, unless the clock
    is ahead of that. Without it they are logical, the paper's."""


class Protocol(abc.ABC):
    """One replica of one group, under some ordering protocol."""

    me: ReplicaId

    @abc.abstractmethod
    def __init__(self, start: Start) -> None: ...

    @classmethod
    def check_topology(cls, topology: Topology) -> None:
        """Raise `InvalidArgument` if the protocol does not work with such groups."""
        return

    def step(self, sender: Process, message: Message, now: float) -> None:
        """Handle one message. Raises `PeerViolation` or `InvalidArgument`, and then changes nothing."""
        self.receive(sender, (message,), now)

    @abc.abstractmethod
    def receive(self, sender: Process, messages: Iterable[Message], now: float) -> None:
        """Handle messages that came together. If one raises, those before it have been handled."""

    @abc.abstractmethod
    def tick(self, now: float) -> None:
        """Let time pass: heartbeats, elections, retries, garbage collection."""

    @abc.abstractmethod
    def ready(self) -> Ready:
        """Drain what is to be done."""

    @abc.abstractmethod
    def executed(self, watermark: Timestamp) -> None:
        """The effects of everything delivered up to here are durable in the application."""

    @abc.abstractmethod
    def checkpoint(self) -> Checkpoint:
        """The ordering side of a snapshot taken now, at the last delivery: drain `ready` before it.

        It says `executed` of what is durable here; an application that has executed more may say so.
        """

    @abc.abstractmethod
    def takes(self, checkpoint: Checkpoint) -> bool:
        """Whether `install` would take it: if it has delivered more than was delivered here, and executed no
        less than was reported from here, and this replica does not lead.
        """

    @abc.abstractmethod
    def install(self, checkpoint: Checkpoint, now: float) -> bool:
        """Jump to a snapshot's position. False, and nothing changed, if it is not one that this takes.

        What the snapshot has executed may be reported (`executed`) when it is durable here, no sooner; and
        nothing of a state before it that becomes durable in between.
        """

    @abc.abstractmethod
    def raise_clock(self, time: int) -> None:
        """Let the next local timestamps be above this time. It is no promise: a restart may forget it.

        Always safe; but a clock is never lowered again, so hosts bound what they let others ask for.
        """

    @property
    @abc.abstractmethod
    def reading_ballot(self) -> Ballot | None:
        """The ballot this replica leads, if it has delivered all that it took over when it began to lead.

        Then, once a quorum of `readers` has said, each after a read arrived here, that it stands in this
        ballot, everything that any leader of the group delivered before the read arrived is delivered here.
        """

    @abc.abstractmethod
    def is_in_ballot(self, ballot: Ballot) -> bool:
        """Whether this replica, as leader or follower, is in the ballot and has promised no higher one."""

    @property
    @abc.abstractmethod
    def readers(self) -> tuple[Sequence[ReplicaId], int]:
        """The members of this replica's current ballot, and how many of them are a quorum."""

    @abc.abstractmethod
    def retained_groups(self) -> list[tuple[Timestamp, Destinations]]:
        """Delivered messages of several groups, and which groups, that are not collected yet; in order."""

    @abc.abstractmethod
    def nominate(self, now: float) -> None:
        """Leader selection wants this replica to lead. Safe at any time, wise only without a leader."""

    @abc.abstractmethod
    def hand_over(self, now: float) -> bool:
        """Ask another member to lead, if this one does; it leads on until somebody else does.

        False if there is nobody to ask.
        """

    @abc.abstractmethod
    def unfinished(self) -> list[MessageId]:
        """Messages this replica still holds anything about: nothing, once all destinations are done."""

    @abc.abstractmethod
    def status_of(self) -> dict[str, Any]:
        """For people: status, ballot (its number), leader (a replica or None), clock, entries held."""

    @property
    @abc.abstractmethod
    def is_leader(self) -> bool:
        """Whether this replica leads its group."""

    @property
    def answers_clients(self) -> bool:
        """Whether this replica is among the first of its group to deliver, so that it should tell clients."""
        return self.is_leader
