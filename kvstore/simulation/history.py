"""The calls of simulated clients, when they were made, and their answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvstore.machine.commands import Command
from kvstore.machine.request import Range, ReadOperation, Transaction
from kvstore.store.gateway import Identity
from multicast.types import GroupId


@dataclass(frozen=True, slots=True)
class Think:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Transact:
    """Execute a transaction, once."""

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class StrictCall:
    """Read keys of one group, as of now."""

    group: GroupId
    operations: tuple[ReadOperation, ...]


@dataclass(frozen=True, slots=True)
class ReadAtCall:
    """Read keys of one group at a revision; without one, at some recent revision of any replica's."""

    group: GroupId
    operations: tuple[ReadOperation, ...]
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A revision at which these ranges can be read as if that were done now, in all groups at once."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class OrderCall:
    """Housekeeping of one group, at a position above a revision."""

    group: GroupId
    command: Command
    at_least: int = 0


Asked: TypeAlias = Transact | StrictCall | ReadAtCall | Cut | OrderCall


@dataclass(slots=True)
class Call:
    """One call of one client."""

    number: int
    client: int
    asked: Asked
    invoked: float
    identity: Identity | None = None
    returned: float | None = None
    """None if the client gave up or died: the outcome is unknown."""
    outcome: Any = None
    attempts: int = 0
    more: list[Any] = field(default_factory=list)
    """Answers to other attempts, and to later repetitions of the call."""

    def __str__(self) -> str:
        when = f"{self.invoked:.4f}-" + ("" if self.returned is None else f"{self.returned:.4f}")
        return f"call {self.number} of {self.client:x} at {when}: {self.asked} -> {self.outcome}"


@dataclass(slots=True)
class History:
    """All calls of a run."""

    calls: list[Call] = field(default_factory=list)

    def invoke(self, client: int, asked: Asked, now: float, identity: Identity | None = None) -> Call:
        """A call begins."""
        call = Call(len(self.calls), client, asked, now, identity)
        self.calls.append(call)
        return call
