"""The wire format between nodes: encode messages as frames, and decode frames.

A frame carries all messages that one node has for another in one turn of its loop, between any of their
processes. It is MessagePack (`schema`): an array of messages; then, for each pair of sender and receiver, the
indices of the messages that the one sends to the other, in order. A message to several replicas of a node is
in the frame once.

`TAGS` is the format. A change of a message's class or of its tag is a change of the format, and needs another
`PROTOCOL_VERSION`: nodes of different versions reject each other.

Decoding trusts nothing. Any bytes become messages that a node may have sent, or raise `WireError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias, Union

import msgspec

from kvstore.wire.messages import (
    ByName,
    Holders,
    Period,
    Reach,
    Relayed,
    SnapshotAck,
    SnapshotPiece,
    StageAck,
    StagePiece,
    Unstaged,
)
from kvstore.wire.schema import ERRORS, Check, FormatError, RawProcess, kinds_of, put_process, take_process
from multicast.client import MulticastRefused, Reply
from multicast.messages import (
    Accept,
    AcceptAck,
    CatchUp,
    Deliver,
    Deliveries,
    Executed,
    HandOver,
    Heartbeat,
    HeartbeatAck,
    Hint,
    Join,
    Members,
    MembersWanted,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Phase2a,
    Phase2b,
    PreVote,
    PreVoteAck,
    Propose,
    Recall,
    Recalled,
)
from multicast.types import GroupId, Process, ReplicaId, expand_dests

PROTOCOL_VERSION: Final = 9
"""Version of the handshake and of the frames: nodes of different versions reject each other."""

APPLICATION_TAGS: Final = range(1, 16)
"""Tags of an application's messages: msgspec structs that declare their tags themselves."""

TAGS: Final[Mapping[int, type]] = {
    16: Multicast,
    17: Accept,
    18: AcceptAck,
    19: Deliver,
    20: NewLeader,
    21: NewLeaderAck,
    22: NewState,
    23: NewStateAck,
    24: Phase2a,
    25: Phase2b,
    26: Propose,
    27: Hint,
    28: Heartbeat,
    29: HeartbeatAck,
    30: PreVote,
    31: PreVoteAck,
    32: HandOver,
    33: Join,
    34: MembersWanted,
    35: Members,
    36: CatchUp,
    37: Deliveries,
    38: Executed,
    39: Reply,
    40: MulticastRefused,
    41: SnapshotPiece,
    42: SnapshotAck,
    51: Reach,
    52: Relayed,
    53: Period,
    60: StagePiece,
    61: StageAck,
    62: Holders,
    63: Unstaged,
    64: ByName,
    65: Recall,
    66: Recalled,
}
"""Tags of the ordering protocols' and of the node's own messages. A tag is never used for another class."""

Envelope: TypeAlias = tuple[Process, Process, Sequence[Any]]
"""Sender, receiver, and the sender's messages to the receiver, in order."""


class WireError(ValueError):
    """Bytes that no correct node sends: the receiver closes the connection."""


class FrameCodec:
    """Encodes and decodes frames of the messages in `TAGS`, and of those of one application."""

    def __init__(self, application_messages: Iterable[type[Any]] = ()) -> None:
        own = sorted(application_messages, key=_tag_of)
        for message in own:
            if _tag_of(message) not in APPLICATION_TAGS:
                raise TypeError(f"tag {_tag_of(message)!r} of {message.__name__} is not in 1..15")
        self._put = {**_KINDS.put, **dict.fromkeys(own, _same)}
        self._take = {**_KINDS.take, **dict.fromkeys(own, _same)}
        raw: Any = Union[tuple(self._take)]  # noqa: UP007 - made at run time
        self._read: Callable[[bytes], tuple[list[Any], list[tuple[RawProcess, RawProcess, list[int]]]]]
        self._read = msgspec.msgpack.Decoder(
            tuple[list[raw], list[tuple[RawProcess, RawProcess, list[_Index]]]]
        ).decode

    def encode(self, envelopes: Iterable[Envelope]) -> bytes:
        """Return one frame with all these messages. Raises `TypeError` for an object without a tag."""
        put = self._put
        sent: list[Any] = []
        indices: dict[int, int] = {}  # by identity: a message to many receivers is one object
        frame: list[tuple[RawProcess, RawProcess, tuple[int, ...]]] = []
        try:
            for sender, receiver, messages in envelopes:
                run: dict[int, None] = {}
                for message in messages:
                    index = indices.get(id(message))
                    if index is None or index in run:
                        index = indices[id(message)] = len(sent)
                        sent.append(put[type(message)](message))
                    run[index] = None
                frame.append((
                    sender if type(sender) is ReplicaId else put_process(sender),
                    receiver if type(receiver) is ReplicaId else put_process(receiver),
                    tuple(run),
                ))  # fmt: skip
        except KeyError as error:
            raise TypeError(f"{error.args[0].__name__} has no wire format") from None
        return _write((sent, frame))

    def decode(self, data: bytes) -> list[Envelope]:
        """Return what `encode` was given; equal ballots are one object, and so are equal destinations.

        Raises `WireError` for anything that is not a frame.
        """
        take = self._take
        try:
            raw, frame = self._read(data)
            _check_runs(frame)
            sent = [take[type(message)](message) for message in raw]
            return [
                (take_process(sender), take_process(receiver), [sent[index] for index in run])
                for sender, receiver, run in frame
            ]
        except ERRORS as error:
            raise WireError(f"not a frame: {error}") from None
        except IndexError:
            raise WireError("not a frame: it refers to a message that it does not have") from None

    def size_of(self, message: object) -> int:
        """Return the bytes of a frame that carries only this message, from one replica to another."""
        return len(self.encode([(ReplicaId(GroupId(0), 0, 0), ReplicaId(GroupId(0), 1, 0), (message,))]))


def _check_runs(frame: Sequence[tuple[RawProcess, RawProcess, Sequence[int]]]) -> None:
    """Raise if a message is sent twice to the same process: else a small frame could be a lot of work."""
    sends: set[tuple[RawProcess, RawProcess]] = set()
    for sender, receiver, run in frame:
        if (sender, receiver) in sends or len(run) > 1:
            break
        sends.add((sender, receiver))
    else:
        return  # one message for each pair: so it is with few transactions in flight
    every = [(sender, receiver, index) for sender, receiver, run in frame for index in run]
    if len(set(every)) < len(every):
        raise FormatError("it sends the same message twice")


def _tag_of(message: type[Any]) -> Any:
    return message.__struct_config__.tag


def _same(value: Any) -> Any:
    return value


def _check_accept(message: Accept) -> None:
    length = len(message.mids)
    with_payloads = length if message.payloads else 0
    dests = len(expand_dests(message.dests, length))
    lengths = dests, len(message.local_ts), len(message.payloads), len(message.ack_below)
    if lengths != (length, length, with_payloads, with_payloads):
        raise FormatError(f"an ACCEPT of {length} messages has columns of {lengths}")


def _check_propose(message: Propose) -> None:
    _check_columns("a PROPOSE", message.mids, message.dests, message.local_ts, message.decided)


def _check_2a(message: Phase2a) -> None:
    _check_columns("a 2A", *message.local)
    _check_columns("a 2A", *message.clocks)


def _check_2b(message: Phase2b) -> None:
    _check_columns("a 2B", *message.clocks)


def _check_columns(what: str, *columns: Sequence[Any]) -> None:
    if len(lengths := set(map(len, columns))) > 1:
        raise FormatError(f"{what} has columns of {sorted(lengths)}")


def _check_reply(message: Reply) -> None:
    if len(message.mids) != len(message.positions):
        raise FormatError(f"a REPLY has {len(message.positions)} positions of {len(message.mids)} messages")


_CHECKS: Final[Mapping[type, Check]] = {
    Accept: _check_accept,
    Propose: _check_propose,
    Phase2a: _check_2a,
    Phase2b: _check_2b,
    Reply: _check_reply,
}
_KINDS: Final = kinds_of(TAGS, _CHECKS)
_Index: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_write: Final = msgspec.msgpack.Encoder().encode

ORDERING_CODEC: Final = FrameCodec()
"""For frames without messages of an application."""
