"""Messages between nodes, beside those of the ordering protocols: snapshots, relays, staged payloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kvstore.config.addresses import NodeId
from multicast.types import ClientId, Destinations, GroupId

NODE: Final = ClientId(0)
"""The node itself as sender and receiver of `Reach`. No process has this id."""

RELAY: Final = ClientId(2**64 - 1)
"""The node itself as receiver of `Relayed`, so that pings need not wait behind large frames."""


STAGE: Final = ClientId(2**64 - 2)
"""The node itself as receiver of staged payloads, so that nothing else waits behind these."""


@dataclass(slots=True)
class SnapshotPiece:
    """One piece of a snapshot."""

    transfer: int
    index: int
    ordering: bool
    """Whether the piece belongs to the checkpoint, or to the application's state."""
    last: bool
    data: bytes


@dataclass(slots=True)
class SnapshotAck:
    """Acknowledges a piece, and asks for the next."""

    transfer: int
    index: int


class Hearing(NamedTuple):
    """Which nodes a node does not hear, and which leaders and nodes it does not reach.

    A node reaches another if frames pass in both directions, directly or relayed.
    """

    node: NodeId
    life: int
    """A random number of the process: another life has another."""
    number: int
    """Grows within a life: a higher number is newer."""
    deaf: tuple[tuple[NodeId, int], ...]
    """The nodes whose frames do not arrive directly, each with the epoch under which they may be relayed."""
    leads: tuple[GroupId, ...] = ()
    """The groups whose leaders are on this node."""
    missed: tuple[GroupId, ...] = ()
    """The groups of which it reaches no leader."""
    apart: tuple[NodeId, ...] = ()
    """The nodes that it does not reach, whether they are up or not."""
    reached: int = 0
    """How many it reaches."""


@dataclass(slots=True)
class Reach:
    """Sent to every peer, once per heartbeat: which nodes the sender does not hear, and what it was told by
    nodes that it hears.
    """

    own: Hearing
    others: tuple[Hearing, ...]


@dataclass(slots=True)
class Relayed:
    """A frame on its way through a third node, which passes it on unread."""

    origin: NodeId
    target: NodeId
    epoch: int
    """The target's number for the origin: see `kvstore.node.relay`."""
    life: int
    period: int
    """The origin's count of changes between direct and relayed frames to the target; odd if relayed."""
    number: int
    """Of the frame within the life."""
    frame: bytes


@dataclass(slots=True)
class Period:
    """In front of direct messages of one process to another, if frames to their node were ever relayed: the
    period that they belong to.
    """

    life: int
    period: int


@dataclass(slots=True)
class StagePiece:
    """A piece of a payload that is staged: see `kvstore.node.staging`."""

    transfer: int
    """The source's number of the payload."""
    index: int
    size: int
    """Of the whole payload."""
    dest: Destinations
    data: bytes


@dataclass(slots=True)
class StageAck:
    """The sender's log has this many pieces of a payload, or it takes none."""

    transfer: int
    pieces: int
    name: bytes
    """The name of the payload, once it is whole."""
    refused: bool


@dataclass(slots=True)
class Holders:
    """These nodes have staged a payload, each says."""

    name: bytes
    nodes: tuple[NodeId, ...]


@dataclass(slots=True)
class Unstaged:
    """The sender does not have a payload that a message named."""

    name: bytes


@dataclass(slots=True)
class ByName:
    """A message with names of staged payloads in place of these."""

    names: tuple[tuple[int, bytes], ...]
    """By the index of the payload in the message."""
    frame: bytes
    """A frame of this message only."""
