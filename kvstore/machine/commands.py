"""What a message may ask of a group's machine: a transaction, or housekeeping.

Housekeeping is decided at its place in the order, by what was delivered before it and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kvstore.machine.placement import Placement
from kvstore.machine.request import Transaction
from multicast.types import ClientId, Destinations, MessageId, Timestamp


@dataclass(frozen=True, slots=True)
class Compact:
    """Drop what no read at this revision or above needs. Refused if a pin is below it."""

    floor: int


@dataclass(frozen=True, slots=True)
class Pin:
    """A snapshot or a watch needs everything from this revision on. The same name moves its pin."""

    name: str
    revision: int


@dataclass(frozen=True, slots=True)
class Unpin:
    """These snapshots and watches have ended, or their time has."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget these clients. To all groups, so that a client's request is refused in all or in none."""

    clients: tuple[ClientId, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing: an idle group moves on by it."""


@dataclass(frozen=True, slots=True)
class ChangePlacement:
    """The next map, from here on. To all groups, those of both maps."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that nobody can read. It has its place in the order, so it has a result."""

    reason: str


Housekeeping: TypeAlias = Compact | Pin | Unpin | Expire | Tick | ChangePlacement | Malformed
Command: TypeAlias = Transaction | Housekeeping


class Delivered(NamedTuple):
    """One message at its place in its group's order."""

    gts: Timestamp
    mid: MessageId
    destinations: Destinations
    ack_below: int
    """The client holds definite results of all its messages numbered below this, from all their groups."""
    command: Command
