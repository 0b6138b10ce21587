"""The sending side of a link's flow control: messages go in, frames come out. See `flow`."""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias

from kvstore.wire.flow import (
    EPOCH,
    FORGET,
    NUMBER,
    REFERRING,
    SLICE,
    SLICE_HEADER,
    WHOLE,
    FlowLimits,
    References,
    write_references,
)
from kvstore.wire.frames import Envelope, FrameCodec
from kvstore.wire.payloads import STATES, payloads_of, split_in_two, with_payloads
from multicast.messages import Heartbeat, Multicast, NewState
from multicast.types import NO_TIMESTAMP, Ballot, MessageId, Process

Pair: TypeAlias = tuple[Process, Process]


@dataclass(slots=True, eq=False)
class _Blob:
    number: int
    data: bytes
    source: Process
    named: bool
    """Whether messages refer to it; else it is a frame."""
    free: bool
    """Whether it was queued for a state, and does not count."""
    sent: int = 0
    users: int = 0
    """Queued frames that need it."""
    recent: bool = True
    """Whether a message has referred to it since the last sweep."""
    waiting: dict[Pair, None] = field(default_factory=dict)
    """Lanes whose messages wait for it."""

    @property
    def done(self) -> bool:
        return self.sent == len(self.data)


@dataclass(slots=True, eq=False)
class _State:
    """A state of which pieces are queued."""

    key: tuple[Pair, type]
    ballot: Ballot
    transfer: int
    frames: int = 0
    """How many are."""


@dataclass(slots=True)
class _Item:
    """A frame in a lane."""

    frame: bytes
    blobs: Sequence[_Blob]
    mids: Sequence[MessageId]
    """Messages that it multicasts."""
    number: int
    """Items are queued in the order of their numbers."""
    of: _State | None = None
    """The state of which it is a piece that does not count."""
    state: bool = False
    """Whether it has a NEW_STATE."""


@dataclass(slots=True)
class _Lane:
    items: deque[_Item] = field(default_factory=deque)
    mids: set[MessageId] = field(default_factory=set)
    """MULTICASTs that wait in it: repeats are dropped."""


class Outflow:
    """The sending side: messages go in, frames come out, as fast as the transport takes them."""

    def __init__(self, codec: FrameCodec, limits: FlowLimits | None = None) -> None:
        self.limits = limits or FlowLimits()
        self.queued = 0
        """Bytes of messages that `next` has not returned yet."""
        self.free = 0
        """Those of them that belong to states, and do not count in the bound."""
        self.behind = False
        """Whether the queue was dropped, and nothing is queued until `resume`."""
        self.epoch = 0
        self.dropped = 0
        """Turns whose messages were not sent, and queued frames that were dropped."""
        self.merged = 0
        """MULTICASTs and pieces of states that were not queued since the same one already was."""
        self.too_large = 0
        """Messages that exceed the limit; each ends an epoch."""
        self._encode = codec.encode
        self._inline = self.limits.inline
        self._clear()
        self._number = 0

    def _clear(self) -> None:
        self.queued = self.free = 0
        self._ready: deque[tuple[bytes, int, _State | None]] = deque()
        """Frames that wait for nothing but the transport, with the bytes of the blobs that they release and
        the state of which they are a piece that does not count."""
        self._states: dict[tuple[Pair, type], _State] = {}
        self._lanes: dict[Pair, _Lane] = {}
        """The pairs that have messages waiting for a blob; pairs without any have no lane."""
        self._sources: OrderedDict[Process, deque[_Blob]] = OrderedDict()
        """Blobs that are not sent entirely, by the sender of the first message that needs it."""
        self._known: OrderedDict[bytes, _Blob] = OrderedDict()
        """Payloads that the peer has or is being sent, the most recently used last."""
        self._kept = 0
        """Bytes of those that it has."""
        self._announced = 0
        """Bytes of all blobs that the peer holds or expects: its `held`, once it has read all."""
        self._small = 0
        """Bytes of small frames since the last slice."""

    # Messages

    def send(self, envelopes: Sequence[Envelope]) -> None:
        """Queue one turn's messages."""
        if self.behind:
            self.dropped += 1
            return
        if not (self._lanes or self._known):
            data = self._encode(envelopes)
            if len(data) <= self._inline or (
                len(data) <= self.limits.whole
                and not any(self._is_apart(message) for _, _, messages in envelopes for message in messages)
            ):
                self._enqueue(data)
                return
        self._send_large(envelopes)

    def _send_large(self, envelopes: Sequence[Envelope]) -> None:
        """Queue messages some of which are large, or have to wait in a lane."""
        free: list[Envelope] = []
        for envelope in envelopes:
            sender, receiver, messages = envelope
            if (sender, receiver) in self._lanes or any(map(self._is_apart, messages)):
                self._send_free(free)
                free = []
                self._send_pair(sender, receiver, messages)
            else:
                free.append(envelope)
        self._send_free(free)

    def _send_free(self, envelopes: Sequence[Envelope]) -> None:
        """Queue messages that wait for nothing, as few frames."""
        if not envelopes or self.behind:
            return
        data = self._encode(envelopes)
        if len(data) <= self.limits.whole:
            self._enqueue(data)
        elif halves := split_in_two(envelopes):
            for half in halves:  # the first may have blocked a lane that the second needs
                self._send_large(half)
        else:
            [(sender, receiver, [message])] = envelopes
            self._send_whole((sender, receiver), message, data)

    def _send_whole(self, pair: Pair, message: Any, data: bytes, of: _State | None = None) -> None:
        """Queue a frame of one large message."""
        if len(data) > self.limits.message:
            self.too_large += 1
            self.fall_behind()
            return
        blob = self._new_blob(data, pair[0], free=of is not None)
        frame = NUMBER.pack(WHOLE, blob.number)
        self._put(pair, _Item(frame, (blob,), (), self._next_number(), of, state=type(message) is NewState))

    def _send_pair(self, sender: Process, receiver: Process, messages: Sequence[Any]) -> None:
        """Queue messages of one pair, in order: at the end of its lane, or with references."""
        pair = sender, receiver
        lane = self._lanes.get(pair)
        if lane is not None:
            messages = self._overtake(pair, lane, messages)
        run: list[Any] = []
        for message in messages:
            if type(message) in STATES:
                self._send_run(pair, run)
                run = []
                self._send_state(pair, message)
            else:
                run.append(message)
        self._send_run(pair, run)

    def _send_state(self, pair: Pair, message: Any) -> None:
        """Queue a piece of a state.

        A repeat of a state that is still queued is dropped: its receiver ignores it once it has the first. A
        state of another ballot counts, as the queued one is no longer wanted: if both are too large, the next
        repeat is alone.
        """
        key = pair, type(message)
        state = self._states.get(key)
        if state is None:
            state = _State(key, message.ballot, message.part.transfer)
        elif state.ballot != message.ballot:
            state = None
        elif state.transfer != message.part.transfer:
            self.merged += 1
            return
        self._send_run(pair, [message], state)

    def _send_run(self, pair: Pair, messages: Sequence[Any], of: _State | None = None) -> None:
        if not messages or self.behind:
            return
        sender, receiver = pair
        references: References = []
        blobs: dict[_Blob, None] = {}
        slim = []
        for index, message in enumerate(messages):
            slimmer = self._slim(index, message, sender, references, blobs, free=of is not None)
            if slimmer is None:  # nothing more is queued, not even the blobs of what follows
                return
            slim.append(slimmer)
        data = self._encode([(sender, receiver, slim)])
        pieces = 1 if of is None else messages[0].part.count
        together = len(messages) > 1 and sum(len(blob.data) for blob in blobs) > self.limits.message
        if len(data) > self.limits.whole or together or (pieces > 1 and not references):
            # Small pieces are sent in slices too: there may be many, and other messages are to pass them.
            middle = len(messages) // 2
            if middle:
                self._send_run(pair, messages[:middle])
                self._send_run(pair, messages[middle:])
            else:
                self._send_whole(pair, messages[0], self._encode([(sender, receiver, messages)]), of)
            return
        if references:
            data = bytes([REFERRING]) + write_references((references, data))
        mids = [message.mid for message in messages if type(message) is Multicast]
        state = any(type(message) is NewState for message in messages)
        self._put(pair, _Item(data, list(blobs), mids, self._next_number(), of, state))

    def _overtake(self, pair: Pair, lane: _Lane, messages: Sequence[Any]) -> list[Any]:
        """Return what is to be queued in a lane that is blocked.

        A MULTICAST that already waits there is dropped. Of a heartbeat, a copy that says only that the leader
        is alive goes at once: otherwise a large message over a slow link would depose the leader. It does not
        overtake a NEW_STATE, or its receiver would answer that it is not in the ballot.
        """
        kept = []
        for message in messages:
            if type(message) is Multicast and message.mid in lane.mids:
                self.merged += 1
                continue
            if type(message) is Heartbeat and not any(item.state for item in lane.items):
                alive = Heartbeat(message.ballot, NO_TIMESTAMP, (), alive_only=True)
                data = self._encode([(*pair, [alive])])
                self._enqueue(data)
            kept.append(message)
        return kept

    def _put(self, pair: Pair, item: _Item) -> None:
        """Queue a frame of a pair: in its lane, if that is blocked or the frame has to wait for blobs."""
        self.queued += len(item.frame)
        if item.of is not None:
            self.free += len(item.frame)
            item.of.frames += 1
            self._states[item.of.key] = item.of
        lane = self._lanes.get(pair)
        missing = [blob for blob in item.blobs if not blob.done]
        if lane is None and not missing:
            self._ready.append((item.frame, 0, item.of))  # it is not a WHOLE, whose blob is new
            return
        if lane is None:
            lane = self._lanes[pair] = _Lane()
        lane.items.append(item)
        lane.mids.update(item.mids)
        for blob in item.blobs:
            blob.users += 1
        for blob in missing:
            blob.waiting[pair] = None

    # Blobs

    def _is_apart(self, message: Any) -> bool:
        """Return whether the message has blobs, or is a piece of a state."""
        if type(message) in STATES:
            return True
        payloads = payloads_of(message)
        return bool(payloads) and max(map(len, payloads)) > self.limits.payload

    def _slim(
        self,
        index: int,
        message: Any,
        sender: Process,
        references: References,
        blobs: dict[_Blob, None],
        *,
        free: bool,
    ) -> Any:
        """Return the message without its large payloads, as references; None if one is too large."""
        payloads = payloads_of(message)
        least = self.limits.payload
        empty: dict[int, bytes] = {}
        for column, payload in enumerate(payloads):
            if len(payload) > least:
                if len(payload) > self.limits.message:
                    self.too_large += 1
                    self.fall_behind()
                    return None
                blob = self._blob(payload, sender, free=free)
                blobs[blob] = None
                references.append((index, column, blob.number))
                empty[column] = b""
        return with_payloads(message, payloads, empty) if empty else message

    def _blob(self, payload: bytes, sender: Process, *, free: bool) -> _Blob:
        blob = self._known.get(payload)
        if blob is None:
            blob = self._known[payload] = self._new_blob(payload, sender, named=True, free=free)
        else:
            self._known.move_to_end(blob.data)
            blob.recent = True
        return blob

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _new_blob(self, data: bytes, sender: Process, *, named: bool = False, free: bool) -> _Blob:
        blob = _Blob(self._next_number(), data, sender, named, free)
        self._queue_blob(blob)
        return blob

    def _queue_blob(self, blob: _Blob) -> None:
        self.queued += len(blob.data)
        if blob.free:
            self.free += len(blob.data)
        self._sources.setdefault(blob.source, deque()).append(blob)

    def _sent(self, blob: _Blob) -> None:
        """Release the messages that have waited for this blob."""
        if blob.named:
            self._kept += len(blob.data)
        for pair in blob.waiting:
            lane = self._lanes.get(pair)
            while lane is not None and lane.items and all(each.done for each in lane.items[0].blobs):
                item = lane.items.popleft()
                lane.mids.difference_update(item.mids)
                releases = sum(len(each.data) for each in item.blobs if not each.named)
                self._ready.append((item.frame, releases, item.of))
                for each in item.blobs:
                    each.users -= 1
            if lane is not None and not lane.items:
                del self._lanes[pair]
        blob.waiting.clear()
        if self._kept > self.limits.kept:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        excess = self._kept - self.limits.kept
        oldest = []
        for blob in self._known.values():
            if excess <= 0:
                break
            if blob.done and not blob.users:
                oldest.append(blob)
                excess -= len(blob.data)
        self._forget(oldest)

    def _forget(self, blobs: Sequence[_Blob]) -> None:
        """Forget payloads. All frames that refer to them are in front of the one that says so."""
        for blob in blobs:
            del self._known[blob.data]
            self._kept -= len(blob.data)
        if blobs:
            frame = struct.pack(f">B{len(blobs)}Q", FORGET, *(blob.number for blob in blobs))
            self._enqueue(frame, sum(len(blob.data) for blob in blobs))

    def sweep(self) -> None:
        """Forget payloads that no message has referred to since the last sweep."""
        self._forget([b for b in self._known.values() if b.done and not b.users and not b.recent])
        for blob in self._known.values():
            blob.recent = False

    # Frames

    def _enqueue(self, frame: bytes, releases: int = 0) -> None:
        self._ready.append((frame, releases, None))
        self.queued += len(frame)

    def next(self) -> bytes | None:
        """Return and remove the next frame. Small frames and slices share the transport evenly.

        May fall behind, and return None, if the peer can hold no blob that the messages wait for.
        """
        source = None
        if self._sources and not (self._ready and self._small < self.limits.slice):
            source = self._next_source()
            self._small = 0
        if source is None:
            if not self._ready:
                return None
            data, releases, of = self._ready.popleft()
            self.queued -= len(data)
            self._announced -= releases
            if of is not None:
                self.free -= len(data)
                of.frames -= 1
                if not of.frames:
                    del self._states[of.key]
            if self._sources:
                self._small += len(data)
            return data
        blobs = self._sources[source]
        blob = blobs[0]
        if not blob.sent:
            self._announced += len(blob.data)
        data = blob.data[blob.sent : blob.sent + self.limits.slice]
        blob.sent += len(data)
        self.queued -= len(data)
        if blob.free:
            self.free -= len(data)
        self._sources.move_to_end(source)
        if blob.done:
            blobs.popleft()
            if not blobs:
                del self._sources[source]
            self._sent(blob)
        return SLICE_HEADER.pack(SLICE, blob.number, len(blob.data)) + data

    def _next_source(self) -> Process | None:
        """Return the source of the next slice: of a blob that has begun, or that the peer has room for."""
        for source, blobs in self._sources.items():
            if blobs[0].sent or self._announced + len(blobs[0].data) <= self.limits.ahead:
                return source
        if self._ready:  # what it releases is room
            return None
        return self._make_room()

    def _make_room(self) -> Process | None:
        """Return the source of a blob that the oldest message waits for; what others wait for is sent again.

        Payloads that messages wait with cannot be forgotten else: those of a state, if what follows it in its
        lane refers to all of them. The oldest message leaves in the end, so this ends.
        """
        oldest = min((lane.items[0] for lane in self._lanes.values()), key=attrgetter("number"), default=None)
        needed = () if oldest is None else oldest.blobs
        blob = next((each for each in needed if not each.done), None)
        if blob is None:
            blob = next(iter(self._sources.values()))[0]
        if self._announced + len(blob.data) > self.limits.held:
            self._forget([each for each in self._known.values() if each.done and not each.users])
            if not self._ready:
                self._take_back([each for each in self._known.values() if each.done and each not in needed])
            if not self._ready:
                self.fall_behind()
            return None
        blobs = self._sources[blob.source]
        blobs.remove(blob)
        blobs.appendleft(blob)
        return blob.source

    def _take_back(self, blobs: Sequence[_Blob]) -> None:
        """Forget payloads that messages wait with, and send them again later."""
        self._forget(blobs)
        for blob in blobs:
            blob.sent = 0
            blob.free = True  # it has been counted
            self._known[blob.data] = blob
            self._queue_blob(blob)
        for pair, lane in self._lanes.items():
            for item in lane.items:
                for blob in item.blobs:
                    if not blob.done:
                        blob.waiting[pair] = None

    def fall_behind(self) -> None:
        """Drop the queue: the peer does not read fast enough. Nothing is queued until `resume`."""
        self.dropped += len(self._ready) + sum(len(lane.items) for lane in self._lanes.values())
        self._clear()
        self.behind = True

    def resume(self) -> None:
        """Begin a new epoch, if the queue was dropped: the peer reads again."""
        if self.behind:
            self.behind = False
            self.epoch += 1
            frame = NUMBER.pack(EPOCH, self.epoch)
            self._enqueue(frame)
