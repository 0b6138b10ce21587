"""The wire format between nodes: frames of protocol messages, to bytes and back.

A frame carries what one node has for another in one turn of its loop, between any of their processes.
`peer.proto` says what is in it: for each kind of message a packed column of numbers, and tables of what
repeats. No protobuf object is made for a message: writing one appends a row to plain lists (`_put_*`), and
reading turns the rows of a kind into messages (`_take_*`).

Reading trusts nothing. Whatever the bytes are, they become what a node may have sent, or a `WireError`.
Memory goes by what the bytes contain, never by a number that they claim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count, groupby, islice, repeat
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError
from wbkv_proto.peer_pb2 import Frame, Kind

from kvstore.messages import (
    STORE_MESSAGES,
    SnapshotAck,
    SnapshotPiece,
    StoreMessage,
    decode_store_message,
    encode_store_message,
)
from multicast.client import Refused, Reply
from multicast.errors import InvalidArgument
from multicast.membership import Membership
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
    HandOver,
    Heartbeat,
    HeartbeatAck,
    Hint,
    Join,
    LocalTimestamp,
    Members,
    MembersWanted,
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

Sent: TypeAlias = Message | Reply | Refused | SnapshotPiece | SnapshotAck | StoreMessage
"""Whatever has a wire format."""

Envelope: TypeAlias = tuple[Process, Process, Sequence[Any]]
"""Sender, receiver, and what the one says to the other, in order."""


class WireError(ValueError):
    """Bytes that no correct node sends: the connection they came by is not worth keeping."""


def encode(envelopes: Iterable[Envelope]) -> bytes:
    """One frame with all these messages. Raises `TypeError` or `ValueError` for what has no place in one."""
    writer = _Writer()
    kinds = bytearray()
    for sender, receiver, messages in envelopes:
        writer.columns["envelopes"] += writer.process(sender), writer.process(receiver), len(messages)
        for of, same in groupby(messages, type):
            try:
                kind, put = _PUT[of]
            except KeyError:
                raise TypeError(f"there is no wire format for {of.__name__}") from None
            run = list(same)
            kinds += bytes((kind,)) * len(run)
            put(writer, run)
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
    try:
        return reader.envelopes()
    except IndexError:
        raise WireError(f"{reader.reading}: an index, a group or a flag is out of range") from None


def size_of(message: Sent) -> int:
    """Bytes of a frame that carries this message only, from one replica to another."""
    return len(encode([(_SOMEBODY, _SOMEBODY_ELSE, (message,))]))


_SOMEBODY: Final = ReplicaId(GroupId(0), 0, 0)
_SOMEBODY_ELSE: Final = ReplicaId(GroupId(0), 1, 0)


# Writing


class _Writer:
    """The columns of a frame that is being written, and for each table the index that a thing has there."""

    __slots__ = ("ballots", "clients", "columns", "dests", "mids", "payloads", "replicas", "runs")

    def __init__(self) -> None:
        self.columns: dict[str, list[int]] = defaultdict(list)
        # What is new to a table gets the next index, and no Python code is run for it.
        self.runs: dict[tuple[MessageId, ...], int] = defaultdict(count().__next__)
        self.mids: dict[MessageId, int] = defaultdict(count().__next__)
        self.dests: dict[Destinations, int] = defaultdict(count().__next__)
        self.ballots: dict[Ballot, int] = defaultdict(count(1).__next__, {NO_BALLOT: 0})
        self.payloads: list[bytes] = []
        self.replicas: dict[ReplicaId, int] = defaultdict(count().__next__)
        self.clients: dict[ClientId, int] = defaultdict(count().__next__)

    def payload(self, payload: bytes) -> int:
        """The index of a payload."""
        self.payloads.append(payload)
        return len(self.payloads) - 1

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
        frame.runs.extend(map(len, self.runs))
        mids = list(chain(chain.from_iterable(self.runs), self.mids))
        if mids:
            clients_of, sequences, digests = zip(*mids, strict=True)
            for client, ids in groupby(clients_of):
                frame.clients_of.extend((clients[client], len(list(ids))))
            frame.sequences.extend(sequences)
            frame.digests.extend(digests)
        ballots: list[int] = []
        for ballot in islice(self.ballots, 1, None):
            ballots += ballot.number, replicas[ballot.leader], ballot.configuration
        frame.ballots.extend(ballots)
        dests: list[int] = []
        for dest in self.dests:
            dests += len(dest), *dest
        frame.destinations.extend(dests)
        frame.payloads.extend(self.payloads)
        frame.clients.extend(clients)
        frame.replicas.extend(chain.from_iterable(replicas))
        return frame.SerializeToString()


def _each(put: Callable[[_Writer, Any], None]) -> Callable[[_Writer, Iterable[Any]], None]:
    """One message after the other."""

    def put_each(w: _Writer, messages: Iterable[Any]) -> None:
        for message in messages:
            put(w, message)

    return put_each


def _put_multicasts(w: _Writer, messages: Sequence[Multicast]) -> None:
    mids, dests, payloads, ack_below = zip(*messages, strict=True)
    w.columns["multicasts"].append(w.runs[mids])
    rows = zip(map(w.dests.__getitem__, dests), count(len(w.payloads)), ack_below)
    w.columns["multicast_rows"] += chain.from_iterable(rows)
    w.payloads += payloads


def _put_accept(w: _Writer, m: Accept) -> None:
    length, with_payloads = len(m.mids), bool(m.payloads)
    if len(m.local_ts) != length or {len(m.payloads), len(m.ack_below)} != {length * with_payloads}:
        raise ValueError("an ACCEPT's columns are not of the same length")
    first = len(w.payloads) + 1 if with_payloads else 0
    w.payloads += m.payloads
    w.columns["accept_ack_below"] += m.ack_below
    w.columns["accepts"] += w.dests[m.dest], m.group, w.ballots[m.ballot], w.runs[m.mids], first
    w.columns["accept_local_ts"] += m.local_ts


def _put_accept_ack(w: _Writer, m: AcceptAck) -> None:
    w.columns["accept_acks"] += w.runs[m.mids], m.group, len(m.ballots)
    w.columns["accept_ack_ballots"] += map(w.ballots.__getitem__, m.ballots)


def _put_deliver(w: _Writer, m: Deliver) -> None:
    mids, local_ts, global_ts = zip(*m.run, strict=True) if m.run else ((), (), ())
    w.columns["delivers"] += w.ballots[m.ballot], m.previous_ts, w.runs[mids]
    w.columns["deliver_local_ts"] += local_ts
    w.columns["deliver_global_ts"] += global_ts


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
        rows += w.mids[mid], w.dests[dest], w.payload(payload), ack_below, phase, local_ts, global_ts
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
            values += mids[mid], local_ts, w.payload(payload) + 1, w.dests[dest], ack_below


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
    w.columns["heartbeat_acks"] += w.ballots[m.ballot], w.ballots[m.cballot], m.executed, m.wall_time


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
        runs += w.mids[d.mid], w.dests[d.dest], w.payload(d.payload), d.ack_below
        runs += d.local_ts, d.global_ts, d.previous_ts, int(d.mismatch)


def _put_executed(w: _Writer, m: Executed) -> None:
    w.columns["executed"] += m.group, m.watermark, int(m.reply_wanted)


def _put_reply(w: _Writer, m: Reply) -> None:
    if len(m.mids) != len(m.places):
        raise ValueError("a reply's columns are not of the same length")
    w.columns["replies"] += w.runs[m.mids], m.group
    w.columns["reply_places"] += m.places


def _put_refused(w: _Writer, m: Refused) -> None:
    w.columns["refusals"] += w.mids[m.mid], m.group, w.payload(m.reason.encode())


def _put_hand_over(w: _Writer, m: HandOver) -> None:
    w.columns["hand_overs"].append(w.ballots[m.ballot])


def _put_snapshot_piece(w: _Writer, m: SnapshotPiece) -> None:
    row = m.transfer, m.index, int(m.ordering), int(m.last), w.payload(m.data)
    w.columns["snapshot_pieces"] += row


def _put_snapshot_ack(w: _Writer, m: SnapshotAck) -> None:
    w.columns["snapshot_acks"] += m.transfer, m.index


def _put_join(w: _Writer, m: Join) -> None:
    evicts = 0 if m.evicts is None else w.replicas[m.evicts] + 1
    w.columns["joins"] += w.payload(m.place.encode()), evicts


def _put_members_wanted(w: _Writer, m: MembersWanted) -> None:
    w.columns["members_wanted"].append(m.group)


def _put_members(w: _Writer, m: Members) -> None:
    w.columns["members"].append(w.payload(m.membership.encode()))


def _put_store_message(w: _Writer, m: StoreMessage) -> None:
    w.columns["stores"].append(w.payload(encode_store_message(m)))


_PUT: Final[dict[type, tuple[int, Callable[[_Writer, Sequence[Any]], None]]]] = {
    Multicast: (Kind.MULTICAST, _put_multicasts),
    Accept: (Kind.ACCEPT, _each(_put_accept)),
    AcceptAck: (Kind.ACCEPT_ACK, _each(_put_accept_ack)),
    Deliver: (Kind.DELIVER, _each(_put_deliver)),
    NewLeader: (Kind.NEW_LEADER, _each(_put_new_leader)),
    NewLeaderAck: (Kind.NEW_LEADER_ACK, _each(_put_new_leader_ack)),
    NewState: (Kind.NEW_STATE, _each(_put_new_state)),
    NewStateAck: (Kind.NEW_STATE_ACK, _each(_put_new_state_ack)),
    Phase2a: (Kind.PHASE_2A, _each(_put_phase_2a)),
    Phase2b: (Kind.PHASE_2B, _each(_put_phase_2b)),
    Propose: (Kind.PROPOSE, _each(_put_propose)),
    Hint: (Kind.HINT, _each(_put_hint)),
    Heartbeat: (Kind.HEARTBEAT, _each(_put_heartbeat)),
    HeartbeatAck: (Kind.HEARTBEAT_ACK, _each(_put_heartbeat_ack)),
    PreVote: (Kind.PRE_VOTE, _each(_put_pre_vote)),
    PreVoteAck: (Kind.PRE_VOTE_ACK, _each(_put_pre_vote_ack)),
    CatchUp: (Kind.CATCH_UP, _each(_put_catch_up)),
    Deliveries: (Kind.DELIVERIES, _each(_put_deliveries)),
    Executed: (Kind.EXECUTED, _each(_put_executed)),
    Reply: (Kind.REPLY, _each(_put_reply)),
    HandOver: (Kind.HAND_OVER, _each(_put_hand_over)),
    SnapshotPiece: (Kind.SNAPSHOT_PIECE, _each(_put_snapshot_piece)),
    SnapshotAck: (Kind.SNAPSHOT_ACK, _each(_put_snapshot_ack)),
    Join: (Kind.JOIN, _each(_put_join)),
    MembersWanted: (Kind.MEMBERS_WANTED, _each(_put_members_wanted)),
    Members: (Kind.MEMBERS, _each(_put_members)),
    Refused: (Kind.REFUSED, _each(_put_refused)),
    **dict.fromkeys(STORE_MESSAGES, (Kind.STORE, _each(_put_store_message))),
}


# Reading. Whatever is an index on the wire is used as one, and `decode` catches it if it is out of range;
# numbers from outside are never negative.


class _Reader:
    """A frame that is being read, and its tables."""

    __slots__ = ("ballots", "clients", "dests", "frame", "mids", "payloads", "reading", "replicas", "runs")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.reading = ""
        """The table or the kind of message that is being read."""
        self.clients: list[Any] = frame.clients[:]
        self.payloads = frame.payloads[:]
        self.replicas: list[ReplicaId] = []
        self.ballots = [NO_BALLOT]
        self.dests: list[Destinations] = []
        self.runs: list[tuple[MessageId, ...]] = []
        self.mids: list[MessageId] = []
        """Those that are in no run."""

    def envelopes(self) -> list[Envelope]:
        """All that the frame carries."""
        self._tables()
        kinds = self.frame.kinds
        of_kind: dict[int, Iterator[Sent]] = {}
        for kind in set(kinds):
            if kind not in _TAKE:
                raise WireError(f"unknown kind of message {kind}")
            self.reading, take = _TAKE[kind]
            messages = take(self)
            if len(messages) != kinds.count(kind):
                raise WireError(f"{self.reading}: {len(messages)} rows for {kinds.count(kind)} messages")
            of_kind[kind] = iter(messages)
        in_order = [next(of_kind[kind]) for kind in kinds]
        self.reading = "envelopes"
        rows = list(self.rows("envelopes", 3))
        parts = _cut("messages", in_order, [length for _, _, length in rows])
        return [
            (self._process(sender), self._process(receiver), list(part))
            for (sender, receiver, _), part in zip(rows, parts, strict=True)
        ]

    def _process(self, number: int) -> Process:
        """Replicas are even, clients odd."""
        process: Process = self.clients[number >> 1] if number & 1 else self.replicas[number >> 1]
        return process

    def _tables(self) -> None:
        self.reading = "replicas"
        for group, number, incarnation in self.rows("replicas", 3, 2**64 - 1):
            if number > NUMBER_MAX:
                raise WireError(f"replicas: {number} is above {NUMBER_MAX}")
            self.replicas.append(ReplicaId(_GROUPS[group], number, incarnation))
        self.reading = "ballots"
        for number, leader, configuration in self.rows("ballots", 3):
            ballot = Ballot(number, self.replicas[leader], configuration)
            self.ballots.append(_BALLOTS.setdefault(ballot, ballot))
        if len(_BALLOTS) > BALLOTS_MAX:
            _BALLOTS.clear()
        self.reading = "destinations"
        rest = iter(self.numbers("destinations"))
        for length in rest:
            dest = tuple([_GROUPS[group] for group in islice(rest, length)])
            if len(dest) != length:
                raise WireError(f"destinations: {len(dest)} follow, not {length}")
            self.dests.append(dest)
        self.reading = "mids"
        sequences, digests = self.numbers("sequences"), self.frame.digests[:]
        self.same_length("mids", sequences, digests)
        of = list(self.rows("clients_of", 2))
        total = sum([length for _, length in of])
        if total != len(sequences):
            raise WireError(f"mids: there are {len(sequences)}, but lengths add up to {total}")
        clients = chain.from_iterable([repeat(self.clients[client], length) for client, length in of])
        mids = map(_new_mid, zip(clients, sequences, digests, strict=True))
        self.reading = "runs"
        lengths = self.numbers("runs")
        if sum(lengths) > len(sequences):
            raise WireError(f"runs: there are {len(sequences)} ids, but lengths add up to {sum(lengths)}")
        self.runs = [tuple(islice(mids, length)) for length in lengths]
        self.mids = list(mids)

    def same_length(self, name: str, *columns: Sequence[object]) -> None:
        """Columns that belong together have a number for each thing they are about."""
        lengths = list(map(len, columns))
        if min(lengths) != max(lengths):
            raise WireError(f"{name}: columns of {', '.join(map(str, lengths))} numbers")

    def numbers(self, column: str, limit: int = NUMBER_MAX) -> list[Any]:
        """A column, which has no number above the limit."""
        numbers: list[Any] = getattr(self.frame, column)[:]
        if numbers and max(numbers) > limit:
            raise WireError(f"{column}: {max(numbers)} is above {limit}")
        return numbers

    def rows(self, column: str, width: int, limit: int = NUMBER_MAX) -> Iterator[tuple[Any, ...]]:
        """A column, in rows of this width."""
        numbers = self.numbers(column, limit)
        if len(numbers) % width:
            raise WireError(f"{column}: {len(numbers)} numbers are not rows of {width}")
        return zip(*[iter(numbers)] * width, strict=True)


BALLOTS_MAX: Final = 4096
_BALLOTS: Final[dict[Ballot, Ballot]] = {}
"""Ballots that came lately. Leaders last, so nearly all messages of all frames share a few objects, and the
protocol compares ballots by identity first."""

_GROUPS: Final = tuple(map(GroupId, range(GROUPS_MAX)))
_FLAGS: Final = (False, True)
_PHASES: Final = tuple(Phase)

_new_mid: Final[Callable[[tuple[Any, ...]], MessageId]] = partial(tuple.__new__, MessageId)
_new_multicast: Final[Callable[[tuple[Any, ...]], Multicast]] = partial(tuple.__new__, Multicast)
"""As `_make`, in half the time: no Python code is run."""


def _cut(name: str, items: Sequence[T], lengths: Sequence[int]) -> list[tuple[T, ...]]:
    """Pieces of these lengths, which must be all there is."""
    if sum(lengths) != len(items):
        raise WireError(f"{name}: there are {len(items)}, but lengths add up to {sum(lengths)}")
    rest = iter(items)
    return [tuple(islice(rest, length)) for length in lengths]


def _take_multicasts(r: _Reader) -> list[Multicast]:
    mids = list(chain.from_iterable([r.runs[run] for run in r.numbers("multicasts")]))
    rows = list(r.rows("multicast_rows", 3))
    r.same_length("multicasts", mids, rows)
    dests, payloads, ack_below = zip(*rows, strict=True) if rows else ((), (), ())
    columns = mids, map(r.dests.__getitem__, dests), map(r.payloads.__getitem__, payloads), ack_below
    return list(map(_new_multicast, zip(*columns, strict=True)))


def _take_accepts(r: _Reader) -> list[Accept]:
    rows = list(r.rows("accepts", 5))
    runs = [r.runs[run] for _, _, _, run, _ in rows]
    local_ts = _cut("accept_local_ts", r.numbers("accept_local_ts"), list(map(len, runs)))
    with_payloads = [len(run) for run, (_, _, _, _, first) in zip(runs, rows, strict=True) if first]
    below = iter(_cut("accept_ack_below", r.numbers("accept_ack_below"), with_payloads))
    found = []
    for (dest, group, ballot, _, first), run, times in zip(rows, runs, local_ts, strict=True):
        payloads = tuple(r.payloads[first - 1 : first - 1 + len(run)]) if first else ()
        if first and len(payloads) != len(run):
            raise WireError(f"accepts: {len(payloads)} payloads for {len(run)} messages")
        ack_below = next(below) if first else ()
        found.append(
            Accept(r.dests[dest], _GROUPS[group], r.ballots[ballot], run, times, payloads, ack_below)
        )
    return found


def _take_accept_acks(r: _Reader) -> list[AcceptAck]:
    rows = list(r.rows("accept_acks", 3))
    ballots = list(map(r.ballots.__getitem__, r.numbers("accept_ack_ballots")))
    vectors = _cut("accept_ack_ballots", ballots, [length for _, _, length in rows])
    return [
        AcceptAck(r.runs[run], _GROUPS[group], vector)
        for (run, group, _), vector in zip(rows, vectors, strict=True)
    ]


def _take_delivers(r: _Reader) -> list[Deliver]:
    rows = list(r.rows("delivers", 3))
    runs = [r.runs[run] for _, _, run in rows]
    lengths = list(map(len, runs))
    local_ts = _cut("deliver_local_ts", r.numbers("deliver_local_ts"), lengths)
    global_ts = _cut("deliver_global_ts", r.numbers("deliver_global_ts"), lengths)
    return [
        Deliver(r.ballots[ballot], previous_ts, tuple(zip(*columns, strict=True)))
        for (ballot, previous_ts, _), *columns in zip(rows, runs, local_ts, global_ts, strict=True)
    ]


def _take_new_leaders(r: _Reader) -> list[NewLeader]:
    return [NewLeader(r.ballots[ballot]) for ballot in r.numbers("new_leaders")]


def _take_new_leader_acks(r: _Reader) -> list[NewLeaderAck]:
    rows = list(r.rows("new_leader_acks", 8))
    entries = _cut("new_leader_ack_entries", _entries(r, "new_leader_ack_entries"), [row[-1] for row in rows])
    return [
        NewLeaderAck(
            r.ballots[ballot], r.ballots[cballot], clock, executed, Part(transfer, index, parts), held
        )
        for (ballot, cballot, clock, executed, transfer, index, parts, _), held in zip(
            rows, entries, strict=True
        )
    ]


def _take_new_states(r: _Reader) -> list[NewState]:
    rows = list(r.rows("new_states", 6))
    entries = _cut("new_state_entries", _entries(r, "new_state_entries"), [row[-1] for row in rows])
    return [
        NewState(r.ballots[ballot], clock, Part(transfer, index, parts), held)
        for (ballot, clock, transfer, index, parts, _), held in zip(rows, entries, strict=True)
    ]


def _entries(r: _Reader, column: str) -> list[EntryState]:
    return [
        EntryState(
            r.mids[mid], r.dests[dest], r.payloads[payload], ack_below, _PHASES[phase], local_ts, global_ts
        )
        for mid, dest, payload, ack_below, phase, local_ts, global_ts in r.rows(column, 7)
    ]


def _take_new_state_acks(r: _Reader) -> list[NewStateAck]:
    return [NewStateAck(r.ballots[ballot]) for ballot in r.numbers("new_state_acks")]


def _take_phase_2as(r: _Reader) -> list[Phase2a]:
    rows = list(r.rows("phase_2as", 2))
    found: list[Value] = []
    for mid, ts, payload, dest, ack_below in r.rows("phase_2a_values", 5):
        if payload:
            value = LocalTimestamp(r.mids[mid], r.dests[dest], r.payloads[payload - 1], ack_below, ts)
            found.append(value)
        elif dest or ack_below:
            raise WireError("phase_2a_values: a payload is missing")
        else:
            found.append(ClockUpdate(r.mids[mid], ts))
    values = _cut("phase_2a_values", found, [length for _, length in rows])
    return [Phase2a(r.ballots[ballot], each) for (ballot, _), each in zip(rows, values, strict=True)]


def _take_phase_2bs(r: _Reader) -> list[Phase2b]:
    rows = list(r.rows("phase_2bs", 2))
    found = [(r.mids[mid], ts) for mid, ts in r.rows("phase_2b_instances", 2)]
    instances = _cut("phase_2b_instances", found, [length for _, length in rows])
    return [Phase2b(r.ballots[ballot], each) for (ballot, _), each in zip(rows, instances, strict=True)]


def _take_proposes(r: _Reader) -> list[Propose]:
    return [
        Propose(r.mids[mid], r.dests[dest], _GROUPS[group], r.ballots[ballot], local_ts, _FLAGS[decided])
        for mid, dest, group, ballot, local_ts, decided in r.rows("proposes", 6)
    ]


def _take_hints(r: _Reader) -> list[Hint]:
    return [Hint(_GROUPS[group], r.ballots[ballot]) for group, ballot in r.rows("hints", 2)]


def _take_heartbeats(r: _Reader) -> list[Heartbeat]:
    rows = list(r.rows("heartbeats", 3))
    found = [(_GROUPS[group], watermark) for group, watermark in r.rows("heartbeat_executed", 2)]
    executed = _cut("heartbeat_executed", found, [length for _, _, length in rows])
    return [
        Heartbeat(r.ballots[ballot], last_delivered, each)
        for (ballot, last_delivered, _), each in zip(rows, executed, strict=True)
    ]


def _take_heartbeat_acks(r: _Reader) -> list[HeartbeatAck]:
    return [
        HeartbeatAck(r.ballots[ballot], r.ballots[cballot], executed, wall_time)
        for ballot, cballot, executed, wall_time in r.rows("heartbeat_acks", 4)
    ]


def _take_pre_votes(r: _Reader) -> list[PreVote]:
    return [PreVote(r.ballots[ballot]) for ballot in r.numbers("pre_votes")]


def _take_pre_vote_acks(r: _Reader) -> list[PreVoteAck]:
    return [PreVoteAck(r.ballots[ballot]) for ballot in r.numbers("pre_vote_acks")]


def _take_catch_ups(r: _Reader) -> list[CatchUp]:
    return [CatchUp(after) for after in r.numbers("catch_ups")]


def _take_deliveries(r: _Reader) -> list[Deliveries]:
    rows = list(r.rows("deliveries", 2))
    found = [
        Delivery(
            r.mids[mid], r.dests[dest], r.payloads[payload], ack_below, lts, gts, previous, _FLAGS[mismatch]
        )
        for mid, dest, payload, ack_below, lts, gts, previous, mismatch in r.rows("deliveries_runs", 8)
    ]
    runs = _cut("deliveries_runs", found, [length for length, _ in rows])
    return [Deliveries(run, last_delivered) for run, (_, last_delivered) in zip(runs, rows, strict=True)]


def _take_executed(r: _Reader) -> list[Executed]:
    return [
        Executed(_GROUPS[group], watermark, _FLAGS[reply_wanted])
        for group, watermark, reply_wanted in r.rows("executed", 3)
    ]


def _take_replies(r: _Reader) -> list[Reply]:
    rows = list(r.rows("replies", 2))
    runs = [r.runs[run] for run, _ in rows]
    places = _cut("reply_places", r.numbers("reply_places"), list(map(len, runs)))
    return [Reply(run, _GROUPS[group], at) for run, (_, group), at in zip(runs, rows, places, strict=True)]


def _take_refusals(r: _Reader) -> list[Refused]:
    return [
        Refused(r.mids[mid], _GROUPS[group], r.payloads[reason].decode(errors="replace"))
        for mid, group, reason in r.rows("refusals", 3)
    ]


def _take_hand_overs(r: _Reader) -> list[HandOver]:
    return [HandOver(r.ballots[ballot]) for ballot in r.numbers("hand_overs")]


def _take_snapshot_pieces(r: _Reader) -> list[SnapshotPiece]:
    return [
        SnapshotPiece(transfer, index, _FLAGS[ordering], _FLAGS[last], r.payloads[payload])
        for transfer, index, ordering, last, payload in r.rows("snapshot_pieces", 5)
    ]


def _take_snapshot_acks(r: _Reader) -> list[SnapshotAck]:
    return [SnapshotAck(transfer, index) for transfer, index in r.rows("snapshot_acks", 2)]


def _take_joins(r: _Reader) -> list[Join]:
    try:
        return [
            Join(r.payloads[place].decode(), r.replicas[evicts - 1] if evicts else None)
            for place, evicts in r.rows("joins", 2)
        ]
    except UnicodeDecodeError as error:
        raise WireError(f"joins: {error}") from None


def _take_members_wanted(r: _Reader) -> list[MembersWanted]:
    return [MembersWanted(_GROUPS[group]) for group in r.numbers("members_wanted")]


def _take_members(r: _Reader) -> list[Members]:
    try:
        return [Members(Membership.decode(r.payloads[payload])) for payload in r.numbers("members")]
    except InvalidArgument as error:
        raise WireError(f"members: {error}") from None


def _take_store_messages(r: _Reader) -> list[StoreMessage]:
    try:
        return [decode_store_message(r.payloads[payload]) for payload in r.numbers("stores")]
    except ValueError as error:
        raise WireError(f"stores: {error}") from None


_TAKE: Final[dict[int, tuple[str, Callable[[_Reader], Sequence[Sent]]]]] = {
    Kind.MULTICAST: ("multicasts", _take_multicasts),
    Kind.ACCEPT: ("accepts", _take_accepts),
    Kind.ACCEPT_ACK: ("accept_acks", _take_accept_acks),
    Kind.DELIVER: ("delivers", _take_delivers),
    Kind.NEW_LEADER: ("new_leaders", _take_new_leaders),
    Kind.NEW_LEADER_ACK: ("new_leader_acks", _take_new_leader_acks),
    Kind.NEW_STATE: ("new_states", _take_new_states),
    Kind.NEW_STATE_ACK: ("new_state_acks", _take_new_state_acks),
    Kind.PHASE_2A: ("phase_2as", _take_phase_2as),
    Kind.PHASE_2B: ("phase_2bs", _take_phase_2bs),
    Kind.PROPOSE: ("proposes", _take_proposes),
    Kind.HINT: ("hints", _take_hints),
    Kind.HEARTBEAT: ("heartbeats", _take_heartbeats),
    Kind.HEARTBEAT_ACK: ("heartbeat_acks", _take_heartbeat_acks),
    Kind.PRE_VOTE: ("pre_votes", _take_pre_votes),
    Kind.PRE_VOTE_ACK: ("pre_vote_acks", _take_pre_vote_acks),
    Kind.CATCH_UP: ("catch_ups", _take_catch_ups),
    Kind.DELIVERIES: ("deliveries", _take_deliveries),
    Kind.EXECUTED: ("executed", _take_executed),
    Kind.REPLY: ("replies", _take_replies),
    Kind.HAND_OVER: ("hand_overs", _take_hand_overs),
    Kind.SNAPSHOT_PIECE: ("snapshot_pieces", _take_snapshot_pieces),
    Kind.SNAPSHOT_ACK: ("snapshot_acks", _take_snapshot_acks),
    Kind.JOIN: ("joins", _take_joins),
    Kind.MEMBERS_WANTED: ("members_wanted", _take_members_wanted),
    Kind.MEMBERS: ("members", _take_members),
    Kind.REFUSED: ("refusals", _take_refusals),
    Kind.STORE: ("stores", _take_store_messages),
}
