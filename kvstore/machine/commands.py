"""What a message may carry for a group's machine: a transaction, or housekeeping; and the request's id.

Housekeeping is decided at its position in the order, by what was delivered before it and nothing else.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from kvstore.machine.data import Data
from kvstore.machine.placement import Placement
from kvstore.machine.request import INT64_MAX, Range, Transaction
from multicast.types import Destinations, MessageId, ReplicaId, Timestamp

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=INT64_MAX)]


class Compact(Data, frozen=True, tag=2):
    """Drop what no read at this revision or above needs. Refused if a pin is below the floor."""

    floor: int


class Pin(Data, frozen=True, tag=3):
    """Keep everything from this revision on, for a snapshot or a watch. The same name moves its pin.

    A pin does not hold back compaction that is delivered above `until`.
    """

    name: str
    revision: int
    until: int


class Unpin(Data, frozen=True, tag=4):
    """Remove these pins."""

    names: tuple[str, ...]


class Expire(Data, frozen=True, tag=5):
    """Forget the sessions whose last deadline is below this revision."""

    before: int


class Tick(Data, frozen=True, tag=6):
    """Change nothing, but move a group on. A read of these ranges at its revision sees what a read at its
    position in the order would see; to the reply gate it is such a read.
    """

    ranges: tuple[Range, ...] = ()


class ChangePlacement(Data, frozen=True, tag=7):
    """The next map of keys to groups, from this position on. Sent to all groups, those of both maps.

    No command sends it yet: it waits for moving data between groups. A map that moves keys is refused.
    """

    placement: Placement


class Malformed(Data, frozen=True, tag=8):
    """A message that cannot be decoded. It has a position in the order, so it has a result."""

    reason: str


class Deviates(Data, frozen=True, tag=9):
    """A replica of this group has other content in a span than a majority has, and is to restore its state.

    See `kvstore.store.comparison`. It changes nothing of the group's content.
    """

    replica: ReplicaId
    copied_at: Natural
    """Which state of that replica: the position of the snapshot that it was copied from, or 0."""
    history: bool
    start: bytes
    end: bytes | None
    revision: Natural


Housekeeping: TypeAlias = Compact | Pin | Unpin | Expire | Tick | ChangePlacement | Deviates
Command: TypeAlias = Transaction | Housekeeping | Malformed
OF_ONE_GROUP: Final = (Compact, Pin, Unpin, Expire, Deviates)
"""Commands that groups may judge differently: each must be sent to one group alone."""


class Request(Data, frozen=True):
    """The content of a message."""

    client: Natural
    """The id of the client whose request it is."""
    sequence: Natural
    """The client's number for it."""
    ack_below: Natural
    """The client holds definite results of all its requests numbered below this, from all their groups."""
    deadline: Natural
    """A revision. Delivered above it, the request has no effect, in any group."""
    digest: Annotated[int, Meta(ge=0)]
    """Of the command: the number is bound to it."""
    command: Command


OWN_BITS: Final = 44


def own_client(gateway: int, count: int) -> int:
    """Return the client id of requests that a gateway numbers itself, since they came without an id. A
    gateway may need several, counted from 1. The low bits are the gateway's, so that `is_own` can tell.
    """
    return (gateway + (count << OWN_BITS)) & INT64_MAX


def is_own(gateway: int, client: int) -> bool:
    """Whether the gateway that multicast a request has numbered it. One in 2^44 ids of clients looks so, too:
    they are random.
    """
    return not (client - gateway) & ((1 << OWN_BITS) - 1)


class Delivered(Data, frozen=True):
    """One message at its position in its group's order."""

    gts: Timestamp
    mid: MessageId
    destinations: Destinations
    request: Request
