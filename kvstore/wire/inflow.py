"""The receiving side of a link's flow control: frames go in, messages come out. See `flow`."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from kvstore.wire.flow import (
    COUNT_MAX,
    EPOCH,
    FORGET,
    PLAIN,
    REFERRING,
    SLICE,
    SLICE_HEADER,
    WHOLE,
    FlowLimits,
    read_references,
)
from kvstore.wire.frames import Envelope, FrameCodec, WireError
from kvstore.wire.payloads import payloads_of, with_payloads


class Inflow:
    """The receiving side: frames go in, messages come out. It trusts nothing that the peer sends."""

    def __init__(self, codec: FrameCodec, limits: FlowLimits | None = None) -> None:
        self.limits = limits or FlowLimits()
        self.held = 0
        """Bytes of all blobs, as announced."""
        self.epoch = 0
        self.size = 0
        """Bytes of the messages that `receive` has returned last, with the blobs they refer to."""
        self._codec = codec
        self._parts: dict[int, tuple[int, bytearray]] = {}
        """Blobs that are not here entirely: their length, and what has arrived."""
        self._blobs: dict[int, bytes] = {}

    def receive(self, frame: bytes) -> list[Envelope]:
        """Return the messages of a frame. Raises `WireError` for a frame that no correct node sends."""
        kind = frame[0]
        if kind == PLAIN:
            self.size = len(frame)
            return self._codec.decode(frame)
        self.size = 0
        if kind == SLICE:
            self._slice(frame)
        elif kind == REFERRING:
            return self._refer(frame)
        elif kind == WHOLE:
            [number] = _numbers(frame)
            return self._codec.decode(self._take(number))
        elif kind == FORGET:
            for number in _numbers(frame):
                self._take(number)
        elif kind == EPOCH:
            [number] = _numbers(frame)
            if number <= self.epoch:
                raise WireError(f"epoch {number} follows epoch {self.epoch}")
            self.epoch = number
            self.held = 0
            self._parts.clear()
            self._blobs.clear()
        else:
            raise WireError(f"unknown kind of frame: {kind}")
        return []

    def _slice(self, frame: bytes) -> None:
        if len(frame) <= SLICE_HEADER.size:
            raise WireError("a slice without bytes")
        _, number, size = SLICE_HEADER.unpack_from(frame)
        known = self._parts.get(number)
        if known is None:
            if number in self._blobs:
                raise WireError(f"a slice of blob {number}, which is complete")
            self._announce(number, size)
            known = self._parts[number] = size, bytearray()
        length, part = known
        part += memoryview(frame)[SLICE_HEADER.size :]
        if size != length or len(part) > length:
            raise WireError(f"blob {number} of {length} bytes has {len(part)}, of {size} announced")
        if len(part) == length:
            del self._parts[number]
            self._blobs[number] = bytes(part)

    def _announce(self, number: int, size: int) -> None:
        limits = self.limits
        if not 0 < size <= limits.message:
            raise WireError(f"blob {number} of {size} bytes exceeds the limit of {limits.message}")
        if self.held + size > limits.held or len(self._parts) + len(self._blobs) >= COUNT_MAX:
            raise WireError(f"blob {number} of {size} bytes; {self.held} bytes of blobs are held already")
        self.held += size

    def _refer(self, frame: bytes) -> list[Envelope]:
        try:
            references, inner = read_references(memoryview(frame)[1:])
        except msgspec.MsgspecError as error:
            raise WireError(f"not a frame with references: {error}") from None
        envelopes = self._codec.decode(inner)
        if len(envelopes) != 1:
            raise WireError(f"a frame with references has messages of {len(envelopes)} pairs")
        [(sender, receiver, messages)] = envelopes
        self.size = len(frame)
        payloads: dict[int, dict[int, bytes]] = {}
        for index, column, number in references:
            blob = self._blobs.get(number)
            if blob is None:
                raise WireError(f"a reference to blob {number}, which is not here")
            if column in payloads.setdefault(index, {}):
                raise WireError("two references for one payload")
            payloads[index][column] = blob
            self.size += len(blob)
        filled = list(messages)
        for index, blobs in payloads.items():
            if not index < len(filled):
                raise WireError(f"a reference for message {index} of {len(filled)}")
            its = payloads_of(filled[index])
            if not max(blobs) < len(its):
                raise WireError(
                    f"a reference for a payload that {type(filled[index]).__name__} does not have"
                )
            filled[index] = with_payloads(filled[index], its, blobs)
        return [(sender, receiver, filled)]

    def _take(self, number: int) -> bytes:
        """Return and forget a blob."""
        blob = self._blobs.pop(number, None)
        if blob is None:
            raise WireError(f"blob {number} is not here")
        self.held -= len(blob)
        self.size = len(blob)
        return blob


def _numbers(frame: bytes) -> Iterator[int]:
    """Return the numbers that follow the kind of a frame. Raises `WireError` if there are none."""
    count, rest = divmod(len(frame) - 1, 8)
    if rest or not count or (frame[0] != FORGET and count != 1):
        raise WireError(f"a frame of kind {frame[0]} has {len(frame)} bytes")
    return iter(struct.unpack_from(f">{count}Q", frame, 1))
