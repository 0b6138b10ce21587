"""Flow control of one direction of a link, without I/O: lanes, slices, references and epochs.

`outflow.Outflow` turns the messages of each turn into frames; `inflow.Inflow` turns the frames of its peer
into messages. Between them is any transport that keeps the order of frames and may stop at any time. This
module has what both agree on: the kinds of frames, and the limits.

- A small frame is sent as it is: that is nearly all there is, and costs one comparison.
- A *blob* is a large payload of a message, or a whole message that is large otherwise. Blobs travel in
  slices, which take turns with small frames, and with the blobs of other senders. So a large message delays
  others by a slice, not by its length.
- A *lane* is the queue of one pair of sender and receiver. A message waits in its lane until the peer has all
  slices of the blobs that it needs, and what follows in the lane waits behind it. So messages of one pair
  arrive in the order in which they were sent; messages of other pairs pass.
- A payload travels once. Later messages with the same payload, whatever their kind and their pair, refer to
  the blob that the peer has. The sender alone decides what the peer keeps, and tells it what to forget: both
  always agree, and a reference to an unknown blob is an error of the peer.
- A *state* of a group, NEWLEADER_ACK or NEW_STATE, is as large as the group's unfinished messages, and is
  queued at once. It does not count in the bound of the queue: else one above the bound would never arrive,
  and the group would never have a leader again. One is queued at a time for each pair.
- An *epoch* ends when the queue is dropped because the peer does not read fast enough. The next one begins
  with a frame of its own when the peer reads again: then half blobs and references are void. What was
  dropped is the end of what was sent, so to both sides it is as if a connection had been lost and replaced.

Memory is bounded on both sides: `FlowLimits`. The sender knows what the peer holds, and begins no blob that
would exceed its bound.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec

from multicast.errors import InvalidArgument

COUNT_MAX: Final = 1 << 16
"""Blobs that a peer may have at a time."""

PLAIN: Final = 0x92
"""The first byte of a frame of messages: a MessagePack array of two. All others are of the kinds below."""
SLICE: Final = 1
"""The next bytes of a blob: number, length of the blob, bytes."""
REFERRING: Final = 2
"""A frame of messages of one pair, some of whose payloads are blobs: `References`, and the frame."""
WHOLE: Final = 3
"""The blob with this number is a frame of messages; it is not referred to again."""
FORGET: Final = 4
"""Blobs that are not referred to again."""
EPOCH: Final = 5
"""A new epoch, with its number: the peer has no blobs."""

SLICE_HEADER: Final = struct.Struct(">BQQ")
NUMBER: Final = struct.Struct(">BQ")

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
References: TypeAlias = list[tuple[_Number, _Number, _Number]]
"""Which payloads are blobs: index of the message, index of the payload in it, number of the blob."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits of one direction of a link, in bytes."""

    inline: int = 16 << 10
    """Frames up to this are sent as they are, whatever is in them."""
    payload: int = 4 << 10
    """Larger payloads in larger frames become blobs."""
    whole: int = 256 << 10
    """The largest frame of messages that is not sent in slices."""
    slice: int = 64 << 10
    message: int = 32 << 20
    """The largest blob, and so the largest message."""
    queue: int = 64 << 20
    """What may be queued, but for states. Beyond it, the peer is behind, and its queue is dropped."""
    kept: int = 24 << 20
    """Blobs that the peer keeps because messages may refer to them again."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name} must be positive, not {getattr(self, name)}")
        if self.queue < self.message:
            raise InvalidArgument(f"queue ({self.queue}) must have room for a message ({self.message})")

    @property
    def held(self) -> int:
        """What a peer may make this side hold: blobs that are kept, on their way, or not forgotten yet."""
        return self.queue + self.kept + self.message

    @property
    def ahead(self) -> int:
        """What it may hold when a blob begins out of turn.

        The rest is for the blobs of the oldest message, which leaves then, and makes room.
        """
        return self.kept + self.message


read_references: Final = msgspec.msgpack.Decoder(tuple[References, bytes]).decode
write_references: Final = msgspec.msgpack.Encoder().encode
