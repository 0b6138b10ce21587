"""The wire format between nodes: frames of protocol messages, to bytes and back.

A frame carries what one node has for another in one turn of its loop, between any of their processes.
`peer.proto` says what is in it: for each kind of message a packed column of numbers, and tables of what
repeats. No protobuf object is made for a message: writing one appends a row to plain lists (`_put_*`), and
reading makes all messages of a kind at once, field by field (`_KINDS`).

Reading trusts nothing. Whatever the bytes are, they become what a node may have sent, or a `WireError`.
Memory goes by what the bytes contain, never by a number that they claim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count, islice
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError
from wbkv_proto.peer_pb2 import Frame, Kind

from multicast.client import Reply
from multicast.messages import (
    Accept,
    AcceptAck,
    CatchUp,
    ClockUpdate,
    Deliver,
    Deliveries,
    Delivery,
    EntryState,
    Executed,
    Heartbeat,
    HeartbeatAck,
    Hint,
    LocalTimestamp,
    Message,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Part,
    Phase2a,
    Phase2b,
    PreVote,
    PreVoteAck,
    Propose,
    Value,
)
from multicast.types import (
    GROUPS_MAX,
    NO_BALLOT,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
)

NUMBER_MAX: Final = 2**63 - 1
"""The largest number on the wire, but for client ids, incarnations and digests, which have 64 bits."""

T = TypeVar("T")

Envelope: TypeAlias = tuple[Process, Process, Sequence[Message | Reply]]
"""Sender, receiver, and what the one says to the other, in order."""


class WireError(ValueError):
    """Bytes that no correct node sends: the connection they came by is not worth keeping."""


def encode(envelopes: Iterable[Envelope]) -> bytes:
    """One frame with all these messages. Raises `TypeError` or `ValueError` for what has no place in one."""
    writer = _Writer()
    kinds = bytearray()
    for sender, receiver, messages in envelopes:
        writer.columns["envelopes"] += writer.process(sender), writer.process(receiver), len(messages)
        for message in messages:
            try:
                kind, put = _PUT[type(message)]
            except KeyError:
                raise TypeError(f"there is no wire format for {type(message).__name__}") from None
            kinds.append(kind)
            put(writer, message)
    return writer.finish(bytes(kinds))


def decode(data: bytes) -> list[Envelope]:
    """What `encode` was given; within it, equal ballots are one object, and so are equal destinations.

    Raises `WireError` for anything that is not a frame. What nothing in a frame refers to is ignored, as
    protobuf does with fields it does not know.
    """
    try:
        frame = Frame.FromString(data)
    except DecodeError as error:
        raise WireError(f"not a frame: {error}") from None
    reader = _Reader(frame)
    kinds = frame.kinds
    of_kind: dict[int, Iterator[Message | Reply]] = {}
    for kind in set(kinds):
        rows = _KINDS.get(kind)
        if rows is None:
            raise WireError(f"unknown kind of message {kind}")
        messages = rows.take(reader)
        if len(messages) != kinds.count(kind):
            raise WireError(f"{rows.column}: {len(messages)} rows for {kinds.count(kind)} messages")
        of_kind[kind] = iter(messages)
    in_order = [next(of_kind[kind]) for kind in kinds]
    senders, receivers, lengths = _ENVELOPES.take(reader)
    return list(zip(senders, receivers, _cut(in_order, lengths, list, "messages"), strict=True))


def size_of(message: Message | Reply) -> int:
    """Bytes of a frame that carries this message only, from one replica to another."""
    return len(encode([(_SOMEBODY, _SOMEBODY_ELSE, (message,))]))


_SOMEBODY: Final = ReplicaId(GroupId(0), 0, 0)
_SOMEBODY_ELSE: Final = ReplicaId(GroupId(0), 1, 0)


# Writing


class _Writer:
    """The columns of a frame that is being written, and for each table the index that a thing has there."""

    __slots__ = ("ballots", "clients", "columns", "dests", "mids", "payloads", "replicas")

    def __init__(self) -> None:
        self.columns: dict[str, list[int]] = defaultdict(list)
        # What is new to a table gets the next index, and no Python code is run for it.
        self.mids: dict[MessageId, int] = defaultdict(count().__next__)
        self.dests: dict[Destinations, int] = defaultdict(count().__next__)
        self.ballots: dict[Ballot, int] = defaultdict(count(1).__next__, {NO_BALLOT: 0})
        self.payloads: dict[bytes | None, int] = defaultdict(count(1).__next__, {None: 0})
        self.replicas: dict[ReplicaId, int] = defaultdict(count().__next__)
        self.clients: dict[ClientId, int] = defaultdict(count().__next__)

    def process(self, process: Process) -> int:
        """Replicas are even, clients odd."""
        if isinstance(process, ReplicaId):
            return self.replicas[process] * 2
        return self.clients[process] * 2 + 1

    def finish(self, kinds: bytes) -> bytes:
        """The frame. Clients and replicas are the last of its tables, since the others refer to them."""
        clients, replicas = self.clients, self.replicas
        frame = Frame(kinds=kinds)
        for column, numbers in self.columns.items():
            getattr(frame, column).extend(numbers)
        mids: list[int] = []
        for mid in self.mids:
            mids += clients[mid.client], mid.sequence
        frame.mids.extend(mids)
        frame.digests.extend([mid.digest for mid in self.mids])
        ballots: list[int] = []
        for ballot in islice(self.ballots, 1, None):
            ballots += ballot.number, replicas[ballot.leader], ballot.configuration
        frame.ballots.extend(ballots)
        dests: list[int] = []
        for dest in self.dests:
            dests += len(dest), *dest
        frame.destinations.extend(dests)
        frame.payloads.extend([payload for payload in self.payloads if payload is not None])
        frame.clients.extend(clients)
        frame.replicas.extend(chain.from_iterable(replicas))
        return frame.SerializeToString()


def _put_multicast(w: _Writer, m: Multicast) -> None:
    w.columns["multicasts"] += w.mids[m.mid], w.dests[m.dest], w.payloads[m.payload], m.ack_below


def _put_accept(w: _Writer, m: Accept) -> None:
    payload = w.payloads[m.payload]
    row = w.mids[m.mid], w.dests[m.dest], m.group, w.ballots[m.ballot], m.local_ts, payload, m.ack_below
    w.columns["accepts"] += row


def _put_accept_ack(w: _Writer, m: AcceptAck) -> None:
    mids, ballots = w.mids, w.ballots
    w.columns["accept_acks"] += len(m.mids), m.group, len(m.ballots)
    w.columns["accept_ack_mids"] += [mids[mid] for mid in m.mids]
    w.columns["accept_ack_ballots"] += [ballots[ballot] for ballot in m.ballots]


def _put_deliver(w: _Writer, m: Deliver) -> None:
    w.columns["delivers"] += w.ballots[m.ballot], m.previous_ts, len(m.run)
    mids, run = w.mids, w.columns["deliver_runs"]
    for mid, local_ts, global_ts in m.run:
        run += mids[mid], local_ts, global_ts


def _put_new_leader(w: _Writer, m: NewLeader) -> None:
    w.columns["new_leaders"].append(w.ballots[m.ballot])


def _put_new_leader_ack(w: _Writer, m: NewLeaderAck) -> None:
    part = m.part.transfer, m.part.index, m.part.count
    row = w.ballots[m.ballot], w.ballots[m.cballot], m.clock, m.executed, *part, len(m.entries)
    w.columns["new_leader_acks"] += row
    w.columns["new_leader_ack_entries"] += _entry_rows(w, m.entries)


def _put_new_state(w: _Writer, m: NewState) -> None:
    part = m.part.transfer, m.part.index, m.part.count
    w.columns["new_states"] += w.ballots[m.ballot], m.clock, *part, len(m.entries)
    w.columns["new_state_entries"] += _entry_rows(w, m.entries)


def _entry_rows(w: _Writer, entries: Iterable[EntryState]) -> list[int]:
    rows: list[int] = []
    for mid, dest, payload, ack_below, phase, local_ts, global_ts in entries:
        rows += w.mids[mid], w.dests[dest], w.payloads[payload], ack_below, phase, local_ts, global_ts
    return rows


def _put_new_state_ack(w: _Writer, m: NewStateAck) -> None:
    w.columns["new_state_acks"].append(w.ballots[m.ballot])


def _put_phase_2a(w: _Writer, m: Phase2a) -> None:
    w.columns["phase_2as"] += w.ballots[m.ballot], len(m.values)
    mids, values = w.mids, w.columns["phase_2a_values"]
    for value in m.values:
        if isinstance(value, ClockUpdate):
            values += mids[value.mid], value.global_ts, 0, 0, 0
        else:
            mid, dest, payload, ack_below, local_ts = value
            values += mids[mid], local_ts, w.payloads[payload], w.dests[dest], ack_below


def _put_phase_2b(w: _Writer, m: Phase2b) -> None:
    w.columns["phase_2bs"] += w.ballots[m.ballot], len(m.instances)
    mids, instances = w.mids, w.columns["phase_2b_instances"]
    for mid, ts in m.instances:
        instances += mids[mid], ts


def _put_propose(w: _Writer, m: Propose) -> None:
    row = w.mids[m.mid], w.dests[m.dest], m.group, w.ballots[m.ballot], m.local_ts, int(m.decided)
    w.columns["proposes"] += row


def _put_hint(w: _Writer, m: Hint) -> None:
    w.columns["hints"] += m.group, w.ballots[m.ballot]


def _put_heartbeat(w: _Writer, m: Heartbeat) -> None:
    w.columns["heartbeats"] += w.ballots[m.ballot], m.last_delivered, len(m.executed)
    w.columns["heartbeat_executed"] += chain.from_iterable(m.executed)


def _put_heartbeat_ack(w: _Writer, m: HeartbeatAck) -> None:
    w.columns["heartbeat_acks"] += w.ballots[m.ballot], w.ballots[m.cballot], m.executed


def _put_pre_vote(w: _Writer, m: PreVote) -> None:
    w.columns["pre_votes"].append(w.ballots[m.ballot])


def _put_pre_vote_ack(w: _Writer, m: PreVoteAck) -> None:
    w.columns["pre_vote_acks"].append(w.ballots[m.ballot])


def _put_catch_up(w: _Writer, m: CatchUp) -> None:
    w.columns["catch_ups"].append(m.after)


def _put_deliveries(w: _Writer, m: Deliveries) -> None:
    w.columns["deliveries"] += len(m.deliveries), m.last_delivered
    runs = w.columns["deliveries_runs"]
    for d in m.deliveries:
        runs += w.mids[d.mid], w.dests[d.dest], w.payloads[d.payload], d.ack_below
        runs += d.local_ts, d.global_ts, d.previous_ts, int(d.mismatch)


def _put_executed(w: _Writer, m: Executed) -> None:
    w.columns["executed"] += m.group, m.watermark, int(m.reply_wanted)


def _put_reply(w: _Writer, m: Reply) -> None:
    w.columns["replies"] += w.mids[m.mid], m.group, m.global_ts


_PUT: Final[dict[type, tuple[int, Callable[[_Writer, Any], None]]]] = {
    Multicast: (Kind.MULTICAST, _put_multicast),
    Accept: (Kind.ACCEPT, _put_accept),
    AcceptAck: (Kind.ACCEPT_ACK, _put_accept_ack),
    Deliver: (Kind.DELIVER, _put_deliver),
    NewLeader: (Kind.NEW_LEADER, _put_new_leader),
    NewLeaderAck: (Kind.NEW_LEADER_ACK, _put_new_leader_ack),
    NewState: (Kind.NEW_STATE, _put_new_state),
    NewStateAck: (Kind.NEW_STATE_ACK, _put_new_state_ack),
    Phase2a: (Kind.PHASE_2A, _put_phase_2a),
    Phase2b: (Kind.PHASE_2B, _put_phase_2b),
    Propose: (Kind.PROPOSE, _put_propose),
    Hint: (Kind.HINT, _put_hint),
    Heartbeat: (Kind.HEARTBEAT, _put_heartbeat),
    HeartbeatAck: (Kind.HEARTBEAT_ACK, _put_heartbeat_ack),
    PreVote: (Kind.PRE_VOTE, _put_pre_vote),
    PreVoteAck: (Kind.PRE_VOTE_ACK, _put_pre_vote_ack),
    CatchUp: (Kind.CATCH_UP, _put_catch_up),
    Deliveries: (Kind.DELIVERIES, _put_deliveries),
    Executed: (Kind.EXECUTED, _put_executed),
    Reply: (Kind.REPLY, _put_reply),
}


# Reading. Numbers from outside are `Any`, until they have been checked.


class _Reader:
    """A frame that is being read, and its tables."""

    __slots__ = ("ballots", "clients", "dests", "frame", "mids", "payloads", "replicas")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.clients: Sequence[Any] = frame.clients[:]
        self.replicas: list[ReplicaId] = _REPLICAS.take(self)
        self.ballots: list[Ballot] = [NO_BALLOT, *_BALLOTS.take(self)]
        self.dests = _destinations(frame.destinations[:])
        self.payloads: list[bytes | None] = [None, *frame.payloads[:]]
        clients, sequences = _MIDS.take(self)
        digests = frame.digests[:]
        if len(digests) != len(sequences):
            raise WireError(f"digests: {len(digests)} for {len(sequences)} mids")
        self.mids = list(map(_new_mid, zip(clients, sequences, digests, strict=True)))


_new_mid: Final[Callable[[tuple[Any, ...]], MessageId]] = partial(tuple.__new__, MessageId)
"""As `MessageId._make`, in half the time: no Python code is run."""


def _destinations(numbers: Iterable[Any]) -> list[Destinations]:
    dests = []
    rest = iter(numbers)
    for length in rest:
        if length > GROUPS_MAX:
            raise WireError(f"destinations: {length}, but there are at most {GROUPS_MAX} groups")
        dest = tuple(islice(rest, length))
        if len(dest) != length:
            raise WireError(f"destinations: {len(dest)} follow, not {length}")
        if dest and max(dest) >= GROUPS_MAX:
            raise WireError(f"destinations: {max(dest)} is above {GROUPS_MAX - 1}")
        dests.append(dest)
    return dests


def _look_up(table: Sequence[Any], indices: Iterable[int]) -> list[Any]:
    try:
        return list(map(table.__getitem__, indices))
    except IndexError:
        raise WireError(f"an index is outside its table of {len(table)}") from None


def _cut(items: Sequence[Any], lengths: Sequence[int], into: Callable[[Any], T], name: str) -> list[T]:
    """Pieces of these lengths, which must be all there is."""
    if sum(lengths) != len(items):
        raise WireError(f"{name}: there are {len(items)}, but lengths add up to {sum(lengths)}")
    rest = iter(items)
    return [into(islice(rest, length)) for length in lengths]


Columns: TypeAlias = Iterator[Sequence[Any]]
Field: TypeAlias = Callable[[_Reader, Columns], Sequence[Any]]
"""Takes the next column, or as many as it needs, and gives what the numbers in it stand for."""


class _Rows:
    """A column of the frame, with a row of so many numbers for each thing of a kind."""

    __slots__ = ("column", "fields", "make", "slices", "width")

    def __init__(self, column: str, width: int, make: Callable[..., Iterable[Any]], *fields: Field) -> None:
        self.column = column
        self.width = width
        self.slices = [slice(at, None, width) for at in range(width)]
        self.make = make
        self.fields = fields

    def take(self, reader: _Reader) -> list[Any]:
        """All of them: a call for each field, not for each thing."""
        numbers = getattr(reader.frame, self.column)[:]
        if len(numbers) % self.width:
            raise WireError(f"{self.column}: {len(numbers)} numbers are not rows of {self.width}")
        columns = map(numbers.__getitem__, self.slices)
        try:
            return list(self.make(*[field(reader, columns) for field in self.fields]))
        except WireError as error:
            raise WireError(f"{self.column}: {error}") from None


def _each(cls: Callable[..., Any]) -> Callable[..., Iterable[Any]]:
    return partial(map, cls)


def _unmade(*columns: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return columns


# Fields


def _number64(_: _Reader, columns: Columns) -> Sequence[Any]:
    return next(columns)


def _up_to(limit: int) -> Field:
    def take(_: _Reader, columns: Columns) -> Sequence[Any]:
        column = next(columns)
        if column and max(column) > limit:
            raise WireError(f"{max(column)} is above {limit}")
        return column

    return take


def _one_of(values: Sequence[Any]) -> Field:
    return lambda _, columns: _look_up(values, next(columns))


def _from(table: str) -> Field:
    table_of = attrgetter(table)
    return lambda reader, columns: _look_up(table_of(reader), next(columns))


def _tuple_of(rows: _Rows) -> Field:
    """A tuple: its length in the message's row, its items in rows of their own."""
    return lambda reader, columns: _cut(rows.take(reader), next(columns), tuple, rows.column)


_number: Final = _up_to(NUMBER_MAX)
_ts: Final = _number
_group: Final = _up_to(GROUPS_MAX - 1)
_flag: Final = _one_of((False, True))
_phase: Final = _one_of(tuple(Phase))
_client: Final = _from("clients")
_replica: Final = _from("replicas")
_ballot: Final = _from("ballots")
_dest: Final = _from("dests")
_mid: Final = _from("mids")
_payload_or_none: Final = _from("payloads")


def _payload(reader: _Reader, columns: Columns) -> Sequence[Any]:
    payloads = _payload_or_none(reader, columns)
    if None in payloads:
        raise WireError("a payload is missing")
    return payloads


def _process(reader: _Reader, columns: Columns) -> Sequence[Process]:
    clients, replicas = reader.clients, reader.replicas
    try:
        return [clients[n >> 1] if n & 1 else replicas[n >> 1] for n in next(columns)]
    except IndexError:
        raise WireError("a process is not in the tables") from None


def _part(reader: _Reader, columns: Columns) -> Sequence[Part]:
    transfers, indices, counts = (_number(reader, columns) for _ in range(3))
    return list(map(Part, transfers, indices, counts))


def _value(reader: _Reader, columns: Columns) -> Sequence[Value]:
    """Without a payload it is a clock update, whose other fields are 0."""
    fields = (field(reader, columns) for field in (_mid, _ts, _payload_or_none, _number, _number))
    values: list[Value] = []
    for mid, ts, payload, dest, ack_below in zip(*fields, strict=True):
        if payload is not None:
            if dest >= len(reader.dests):
                raise WireError(f"an index is outside its table of {len(reader.dests)}")
            values.append(LocalTimestamp(mid, reader.dests[dest], payload, ack_below, ts))
        elif dest or ack_below:
            raise WireError("a payload is missing")
        else:
            values.append(ClockUpdate(mid, ts))
    return values


# Tables, tuples and messages: the width of a row, what it becomes, and its fields, in the order of the class


_REPLICAS: Final = _Rows("replicas", 3, _each(ReplicaId), _group, _number, _number64)
_BALLOTS: Final = _Rows("ballots", 3, _each(Ballot), _number, _replica, _number)
_MIDS: Final = _Rows("mids", 2, _unmade, _client, _number)
_ENVELOPES: Final = _Rows("envelopes", 3, _unmade, _process, _process, _number)

_ENTRY: Final = (_each(EntryState), _mid, _dest, _payload, _number, _phase, _ts, _ts)
_promised: Final = _tuple_of(_Rows("new_leader_ack_entries", 7, *_ENTRY))
_entries: Final = _tuple_of(_Rows("new_state_entries", 7, *_ENTRY))
_mids: Final = _tuple_of(_Rows("accept_ack_mids", 1, iter, _mid))
_vector: Final = _tuple_of(_Rows("accept_ack_ballots", 1, iter, _ballot))
_run: Final = _tuple_of(_Rows("deliver_runs", 3, zip, _mid, _ts, _ts))
_values: Final = _tuple_of(_Rows("phase_2a_values", 5, iter, _value))
_instances: Final = _tuple_of(_Rows("phase_2b_instances", 2, zip, _mid, _ts))
_watermarks: Final = _tuple_of(_Rows("heartbeat_executed", 2, zip, _group, _ts))
_DELIVERY: Final = (_each(Delivery), _mid, _dest, _payload, _number, _ts, _ts, _ts, _flag)
_deliveries: Final = _tuple_of(_Rows("deliveries_runs", 8, *_DELIVERY))


def _kind(column: str, cls: Callable[..., Any], width: int, *fields: Field) -> _Rows:
    return _Rows(column, width, _each(cls), *fields)


_KINDS: Final[dict[int, _Rows]] = {
    Kind.MULTICAST: _kind("multicasts", Multicast, 4, _mid, _dest, _payload, _number),
    Kind.ACCEPT: _kind("accepts", Accept, 7, _mid, _dest, _group, _ballot, _ts, _payload_or_none, _number),
    Kind.ACCEPT_ACK: _kind("accept_acks", AcceptAck, 3, _mids, _group, _vector),
    Kind.DELIVER: _kind("delivers", Deliver, 3, _ballot, _ts, _run),
    Kind.NEW_LEADER: _kind("new_leaders", NewLeader, 1, _ballot),
    Kind.NEW_LEADER_ACK: _kind(
        "new_leader_acks", NewLeaderAck, 8, _ballot, _ballot, _number, _ts, _part, _promised
    ),
    Kind.NEW_STATE: _kind("new_states", NewState, 6, _ballot, _number, _part, _entries),
    Kind.NEW_STATE_ACK: _kind("new_state_acks", NewStateAck, 1, _ballot),
    Kind.PHASE_2A: _kind("phase_2as", Phase2a, 2, _ballot, _values),
    Kind.PHASE_2B: _kind("phase_2bs", Phase2b, 2, _ballot, _instances),
    Kind.PROPOSE: _kind("proposes", Propose, 6, _mid, _dest, _group, _ballot, _ts, _flag),
    Kind.HINT: _kind("hints", Hint, 2, _group, _ballot),
    Kind.HEARTBEAT: _kind("heartbeats", Heartbeat, 3, _ballot, _ts, _watermarks),
    Kind.HEARTBEAT_ACK: _kind("heartbeat_acks", HeartbeatAck, 3, _ballot, _ballot, _ts),
    Kind.PRE_VOTE: _kind("pre_votes", PreVote, 1, _ballot),
    Kind.PRE_VOTE_ACK: _kind("pre_vote_acks", PreVoteAck, 1, _ballot),
    Kind.CATCH_UP: _kind("catch_ups", CatchUp, 1, _ts),
    Kind.DELIVERIES: _kind("deliveries", Deliveries, 2, _deliveries, _ts),
    Kind.EXECUTED: _kind("executed", Executed, 3, _group, _ts, _flag),
    Kind.REPLY: _kind("replies", Reply, 3, _mid, _group, _ts),
}
