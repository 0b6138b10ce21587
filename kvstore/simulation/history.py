"""What simulated clients asked for, when, and what they were told: the facts that `checks` judges.

Calls are recorded where they leave a client and where answers reach it, below all of its logic: each attempt
of a read is a call, and all attempts of a write are one, by its id. Above the client's logic, `operations`
say which calls served one call of a user's, and how that ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from kvstore.machine.request import Range, ReadOperation, Transaction
from kvstore.machine.results import Failure, KeyValue
from kvstore.store.gateway import Identity


@dataclass(frozen=True, slots=True)
class Transact:
    """Execute a transaction, once."""

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class StrictCall:
    """Read keys and ranges, all as of now."""

    operations: tuple[ReadOperation, ...]


@dataclass(frozen=True, slots=True)
class ReadAtCall:
    """Read keys and ranges at a revision; without one, at some recent revision of any replica's."""

    operations: tuple[ReadOperation, ...]
    revision: int = 0


@dataclass(frozen=True, slots=True)
class ScanCall:
    """Scan a range, page by page, all at one revision: a strict one, or a given one."""

    range: Range
    limit: int = 0
    reverse: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A revision at which these ranges can be read as if that were done now, in all groups at once."""

    ranges: tuple[Range, ...]


class Pages(NamedTuple):
    """The outcome of a scan."""

    revision: int
    entries: tuple[KeyValue, ...]
    whole: bool
    """Whether the scan has come to its end."""


class AbortedCall(NamedTuple):
    """The outcome of a transaction that was aborted, since writes could not be performed."""

    revision: int
    in_then: bool
    """Whether these are of `then`."""
    failures: tuple[Failure, ...]


Asked: TypeAlias = Transact | StrictCall | ReadAtCall | ScanCall | Cut


@dataclass(slots=True)
class Call:
    """One call of one client."""

    number: int
    client: int
    asked: Asked
    invoked: float
    identity: Identity | None = None
    min_revision: int = 0
    """A revision that it carries: one that the client has seen, or one that it has invented."""
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
class UserOperation:
    """One call of a user's, and the writes that it has made of it."""

    what: str
    writes: list[Call] = field(default_factory=list)
    not_executed: bool = False
    """Whether the user was told that nothing was executed."""
    asking: object = None
    """The request of the SDK that was made last; its retries are the same object."""
    asked_at: float = 0.0
    """When it was first made: a user's call may make several, one after another."""


@dataclass(slots=True)
class Interactive:
    """An interactive transaction that has committed: what its function had read then."""

    revision: int
    reads: dict[bytes, tuple[bytes, int] | None]
    """Values and the revisions that wrote them."""
    ranges: list[tuple[Range, tuple[tuple[bytes, bytes], ...]]] = field(default_factory=list)
    """Whole ranges, and the keys and values found there."""


@dataclass(slots=True)
class Watched:
    """What one watch has returned."""

    after: int
    upto: int
    transactions: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)

    @property
    def found(self) -> tuple[tuple[int, tuple[Any, ...]], ...]:
        """All transactions, in the order in which they came."""
        return tuple(self.transactions)


@dataclass(slots=True)
class History:
    """All calls of a run."""

    calls: list[Call] = field(default_factory=list)
    operations: list[UserOperation] = field(default_factory=list)
    interactive: list[Interactive] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    _writes: dict[tuple[int, int], Call] = field(default_factory=dict)

    def invoke(self, client: int, asked: Asked, now: float, identity: Identity | None = None) -> Call:
        """A call begins."""
        call = Call(len(self.calls), client, asked, now, identity)
        self.calls.append(call)
        return call

    def write(self, asked: Transact, now: float, identity: Identity) -> Call:
        """A write begins, or is repeated under its id."""
        call = self._writes.get((identity.client, identity.sequence))
        if call is None:
            call = self.invoke(identity.client, asked, now, identity)
            self._writes[identity.client, identity.sequence] = call
        call.attempts += 1
        return call
