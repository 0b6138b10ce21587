"""Records to bytes and back, and which of them still matter.

A batch is all that one commit of the log has for one group. `log.proto` says what is in it: for each kind of
record a packed column of numbers, and tables of what repeats, as between nodes (`wire`).

A delivery nearly always follows the acceptance of the same message, and then the log has its payload. Such a
delivery is written without, and read with what was known *before its batch*: writer and reader must hold the
same `Fold` at that point. Everything else of a record comes back as it was.

Reading trusts nothing: whatever the bytes are, they become records, or a `StorageError`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, islice
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError
from wbkv_proto.log_pb2 import (
    ACCEPTED,
    CONFIGURED,
    DECIDED,
    DELIVERED,
    DROPPED,
    JOINED,
    LEARNED,
    PROMISED,
    VOTED,
    Batch,
)

from kvstore.layout import StorageError
from multicast.durable import (
    Accepted,
    Configured,
    Dropped,
    Durable,
    Joined,
    Learned,
    Promised,
    Record,
    Voted,
)
from multicast.errors import InvalidArgument
from multicast.membership import Membership
from multicast.messages import ClockUpdate, Delivery, EntryState, LocalTimestamp, Value
from multicast.types import (
    GROUPS_MAX,
    NO_BALLOT,
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    ReplicaId,
    Timestamp,
    time_of,
)

T = TypeVar("T")

NUMBER_MAX: Final = 2**63 - 1
"""The largest number in a record, but for client ids, incarnations and digests, which have 64 bits."""

Word: TypeAlias = LocalTimestamp | Delivery | EntryState
"""What a record says of a message. All of these have its destinations, payload and `ack_below`."""


class Fold:
    """Which of a log's records still matter: the last word on each message and each group's members, and the
    rest in three numbers.

    It amounts to the `Durable` of the same records, but makes no entries: most messages are dropped before
    anybody asks for them.
    """

    __slots__ = ("ballot", "cballot", "clock", "memberships", "words")

    def __init__(self) -> None:
        self.ballot = self.cballot = NO_BALLOT
        self.clock = 0
        self.memberships: dict[GroupId, Membership] = {}
        self.words: dict[MessageId, Word] = {}

    def apply(self, records: Iterable[Record]) -> None:
        """Fold some more, as `Durable.apply` does."""
        words = self.words
        for record in records:
            if type(record) is Accepted:
                if record.clock > self.clock:
                    self.clock = record.clock
                for state in _accepted(record):
                    if not _decided(words.get(state.mid)):
                        words[state.mid] = state
            elif type(record) is Delivery:
                words[record.mid] = record
            else:
                self._seldom(record)
                words = self.words

    def _seldom(self, record: Record) -> None:
        words = self.words
        match record:
            case Dropped(mids):
                for mid in mids:
                    words.pop(mid, None)
            case Voted(value):
                if isinstance(value, LocalTimestamp):
                    self.clock = max(self.clock, time_of(value.local_ts))
                    if not _decided(words.get(value.mid)):
                        words[value.mid] = value
                else:
                    self.clock = max(self.clock, time_of(value.global_ts))
            case Learned(entry):
                words[entry.mid] = entry
            case Promised(ballot):
                self.ballot = ballot
            case Configured(membership):
                self.memberships[membership.group] = membership
            case Joined(ballot, clock, entries):
                self.ballot = self.cballot = ballot
                self.clock = max(self.clock, clock)
                self.words = {entry.mid: entry for entry in entries}
            case _:
                raise TypeError(f"{type(record).__name__} is no record")

    def records(self) -> list[Record]:
        """Records that amount to the same, with nothing superfluous."""
        kept: list[Record] = [Configured(membership) for membership in self.memberships.values()]
        kept += Joined(self.cballot, self.clock, ()), Promised(self.ballot)
        for word in self.words.values():
            if isinstance(word, Delivery):
                kept.append(word)
            elif isinstance(word, LocalTimestamp):
                kept.append(Voted(word))
            else:
                kept.append(Learned(word))
        return kept

    def durable(self) -> Durable:
        """What a replica restarts from."""
        durable = Durable()
        durable.apply(self.records())
        return durable


def _accepted(record: Accepted) -> Iterator[EntryState]:
    """What the record says of each message."""
    count = len(record.mids)
    columns = (
        record.mids, [record.dest] * count, record.payloads, record.ack_below,
        [Phase.ACCEPTED] * count, record.local_ts, [NO_TIMESTAMP] * count,
    )  # fmt: skip
    return map(_new_state, zip(*columns, strict=True))


def _decided(word: Word | None) -> bool:
    """Whether accepting the message again changes nothing."""
    if word is None:
        return False
    return type(word) is Delivery or (type(word) is EntryState and word.phase is Phase.COMMITTED)


# Writing. Every message passes here at every replica, at least twice: the two kinds of record that it always
# makes are written in one loop, without a call each.


def encode(records: Iterable[Record], known: Mapping[MessageId, Word]) -> bytes:
    """One batch. `known` is what was folded of the batches before it."""
    w = _Writer()
    kinds, accepted, decided = bytearray(), w.columns["accepted"], w.columns["decided"]
    accepted_run = w.columns["accepted_run"]
    clients, dests, payloads, recent = w.clients, w.dests, w.payloads, w.recent
    for record in records:
        if type(record) is Accepted:
            accepted += dests[record.dest], record.clock, len(record.mids), len(payloads)
            payloads += record.payloads
            for (client, sequence, digest), local_ts, ack_below in zip(
                record.mids, record.local_ts, record.ack_below, strict=True
            ):
                accepted_run += clients[client], sequence, digest, local_ts, ack_below
            recent.update(zip(record.mids, _accepted(record), strict=True))
            kinds.append(ACCEPTED)
        elif type(record) is Delivery:
            mid, payload = record.mid, record.payload
            word = recent.get(mid) or known.get(mid)
            if (
                word is not None
                and word.payload == payload
                and word.ack_below == record.ack_below
                and word.dest == record.dest
            ):
                client, sequence, digest = mid
                decided += (
                    clients[client], sequence, digest,
                    record.local_ts, record.global_ts, record.previous_ts, int(record.mismatch),
                )  # fmt: skip
                kinds.append(DECIDED)
            else:
                kinds.append(_put_delivery(w, record))
        else:
            try:
                put = _PUT[type(record)]
            except KeyError:
                raise TypeError(f"{type(record).__name__} is no record") from None
            kinds.append(put(w, record))
    return w.finish(bytes(kinds))


class _Writer:
    """The columns of a batch that is being written, and for each table the index that a thing has there."""

    __slots__ = ("ballots", "clients", "columns", "dests", "payloads", "recent")

    def __init__(self) -> None:
        self.columns: dict[str, list[int]] = defaultdict(list)
        # What is new to a table gets the next index, and no Python code is run for it.
        self.clients: dict[ClientId, int] = defaultdict(count().__next__)
        self.dests: dict[Destinations, int] = defaultdict(count().__next__)
        self.ballots: dict[Ballot, int] = defaultdict(count(1).__next__, {NO_BALLOT: 0})
        self.payloads: list[bytes] = []
        self.recent: dict[MessageId, Word] = {}
        """What this batch has said of messages so far."""

    def mid(self, mid: MessageId) -> tuple[int, int, int]:
        """A message id, as it is in a row."""
        client, sequence, digest = mid
        return self.clients[client], sequence, digest

    def payload(self, payload: bytes) -> int:
        """The index of a payload, plus one."""
        self.payloads.append(payload)
        return len(self.payloads)

    def entry(self, entry: EntryState) -> tuple[int, ...]:
        """A row of what is known of a message."""
        mid, dest, payload, ack_below, phase, local_ts, global_ts = entry
        place = self.dests[dest], self.payload(payload) - 1
        return *self.mid(mid), *place, ack_below, phase, local_ts, global_ts

    def finish(self, kinds: bytes) -> bytes:
        """The batch. Replicas are the last of its tables, since ballots refer to them."""
        batch = Batch()
        batch.kinds = kinds
        for column, numbers in self.columns.items():
            getattr(batch, column).extend(numbers)
        batch.clients.extend(self.clients)
        batch.payloads.extend(self.payloads)
        for dest in self.dests:
            batch.destinations.extend((len(dest), *dest))
        if len(self.ballots) > 1:
            replicas: dict[ReplicaId, int] = defaultdict(count().__next__)
            for ballot in islice(self.ballots, 1, None):
                batch.ballots.extend((ballot.number, replicas[ballot.leader], ballot.configuration))
            batch.replicas.extend(chain.from_iterable(replicas))
        return batch.SerializeToString()


def _put_delivery(w: _Writer, d: Delivery) -> int:
    row = *w.mid(d.mid), w.dests[d.dest], w.payload(d.payload) - 1, d.ack_below
    w.columns["delivered"] += (*row, d.local_ts, d.global_ts, d.previous_ts, int(d.mismatch))
    return DELIVERED


def _put_voted(w: _Writer, record: Voted) -> int:
    value = record.value
    if isinstance(value, ClockUpdate):
        w.columns["voted"] += (*w.mid(value.mid), value.global_ts, 0, 0, 0)
    else:
        mid, dest, payload, ack_below, local_ts = value
        w.columns["voted"] += (*w.mid(mid), local_ts, w.payload(payload), w.dests[dest], ack_below)
        w.recent[mid] = value
    return VOTED


def _put_dropped(w: _Writer, record: Dropped) -> int:
    clients, mids = w.clients, w.columns["dropped_mids"]
    w.columns["dropped"].append(len(record.mids))
    for client, sequence, digest in record.mids:
        mids += clients[client], sequence, digest
    return DROPPED


def _put_learned(w: _Writer, record: Learned) -> int:
    w.columns["learned"] += w.entry(record.entry)
    return LEARNED


def _put_promised(w: _Writer, record: Promised) -> int:
    w.columns["promised"].append(w.ballots[record.ballot])
    return PROMISED


def _put_joined(w: _Writer, record: Joined) -> int:
    w.columns["joined"] += w.ballots[record.ballot], record.clock, len(record.entries)
    for entry in record.entries:
        w.columns["joined_entries"] += w.entry(entry)
    return JOINED


def _put_configured(w: _Writer, record: Configured) -> int:
    w.columns["configured"].append(w.payload(record.membership.encode()) - 1)
    return CONFIGURED


_PUT: Final[dict[type, Callable[[_Writer, Any], int]]] = {
    Configured: _put_configured,
    Voted: _put_voted,
    Dropped: _put_dropped,
    Learned: _put_learned,
    Promised: _put_promised,
    Joined: _put_joined,
}


# Reading. Whatever is an index is used as one, and `decode` catches it if it is out of range; numbers from
# outside are never negative.


def decode(data: bytes, known: Mapping[MessageId, Word], where: str) -> list[Record]:
    """What `encode` was given. `known` is what was folded of the batches before it.

    Raises `StorageError`, which says where this was, for anything that is not a batch.
    """
    try:
        batch = Batch.FromString(data)
    except DecodeError as error:
        raise StorageError(f"{where}: not a batch of records: {error}") from None
    reader = _Reader(batch, where)
    try:
        return reader.records(known)
    except IndexError:
        raise reader.wrong("an index, a group, a phase or a flag is out of range") from None


_Decided: TypeAlias = tuple[MessageId, Timestamp, Timestamp, Timestamp, int]
"""A delivery without what is known of its message."""


class _Reader:
    """A batch that is being read, and its tables."""

    __slots__ = ("ballots", "batch", "clients", "dests", "payloads", "reading", "where")

    def __init__(self, batch: Batch, where: str) -> None:
        self.batch = batch
        self.where = where
        self.reading = ""
        """The table or the kind of record that is being read."""
        self.clients = batch.clients[:]
        self.payloads = batch.payloads[:]
        self.ballots = [NO_BALLOT]
        self.dests: list[Destinations] = []

    def wrong(self, what: str) -> StorageError:
        """What is wrong where."""
        return StorageError(f"{self.where}: {self.reading}: {what}")

    def records(self, known: Mapping[MessageId, Word]) -> list[Record]:
        """All that the batch has."""
        self._tables()
        kinds = self.batch.kinds
        of_kind: dict[int, Iterator[Record | _Decided]] = {}
        for kind in sorted(set(kinds)):
            self.reading = "kinds"
            if kind not in _TAKE:
                raise self.wrong(f"there is no kind of record {kind}")
            self.reading, take = _TAKE[kind]
            found = take(self)
            if len(found) != kinds.count(kind):
                raise self.wrong(f"{len(found)} rows for {kinds.count(kind)} records")
            of_kind[kind] = iter(found)
        self.reading = "decided"
        records: list[Record] = []
        recent: dict[MessageId, Word] = {}
        for kind in kinds:
            record = next(of_kind[kind])
            if isinstance(record, tuple) and not isinstance(record, Delivery):
                word = recent.get(record[0]) or known.get(record[0])
                if word is None or word.payload is None:
                    raise self.wrong(f"nothing is known of the message {record[0]}")
                record = _delivery(record, word.dest, word.payload, word.ack_below)
            elif isinstance(record, Accepted):
                recent.update(zip(record.mids, _accepted(record), strict=True))
            elif isinstance(record, Voted) and isinstance(record.value, LocalTimestamp):
                recent[record.value.mid] = record.value
            records.append(record)
        return records

    def _tables(self) -> None:
        self.reading = "replicas"
        replicas = []
        for group, number, incarnation in self.rows("replicas", 3, 2**64 - 1):
            if number > NUMBER_MAX:
                raise self.wrong(f"{number} is above {NUMBER_MAX}")
            replicas.append(ReplicaId(_GROUPS[group], number, incarnation))
        self.reading = "ballots"
        for number, leader, configuration in self.rows("ballots", 3):
            self.ballots.append(Ballot(number, replicas[leader], configuration))
        self.reading = "destinations"
        rest = iter(self.numbers("destinations"))
        for length in rest:
            dest = tuple([_GROUPS[group] for group in islice(rest, length)])
            if len(dest) != length:
                raise self.wrong(f"{len(dest)} follow, not {length}")
            self.dests.append(dest)

    def numbers(self, column: str, limit: int = NUMBER_MAX) -> list[Any]:
        """A column, which has no number above the limit."""
        numbers: list[Any] = getattr(self.batch, column)[:]
        if numbers and max(numbers) > limit:
            raise self.wrong(f"{max(numbers)} is above {limit}")
        return numbers

    def rows(self, column: str, width: int, limit: int = NUMBER_MAX) -> Iterator[tuple[Any, ...]]:
        """A column, in rows of this width."""
        numbers = self.numbers(column, limit)
        if len(numbers) % width:
            raise self.wrong(f"{len(numbers)} numbers are not rows of {width}")
        return zip(*[iter(numbers)] * width, strict=True)

    def messages(self, column: str, width: int) -> Iterator[tuple[Any, ...]]:
        """A column whose rows begin with a message id: the id, and the rest of the row."""
        clients = self.clients
        for client, sequence, digest, *rest in self.rows(column, width + 3, 2**64 - 1):
            if sequence > NUMBER_MAX or (rest and max(rest) > NUMBER_MAX):
                raise self.wrong(f"{max((sequence, *rest))} is above {NUMBER_MAX}")
            yield _new_mid((clients[client], sequence, digest)), *rest

    def cut(self, items: Sequence[T], lengths: Sequence[int]) -> list[tuple[T, ...]]:
        """Pieces of these lengths, which must be all there is."""
        if sum(lengths) != len(items):
            raise self.wrong(f"there are {len(items)}, but lengths add up to {sum(lengths)}")
        rest = iter(items)
        return [tuple(islice(rest, length)) for length in lengths]


_GROUPS: Final = tuple(map(GroupId, range(GROUPS_MAX)))
_FLAGS: Final = (False, True)
_PHASES: Final = tuple(Phase)

_new_mid: Final[Callable[[tuple[Any, ...]], MessageId]] = partial(tuple.__new__, MessageId)
_new_state: Final[Callable[[tuple[Any, ...]], EntryState]] = partial(tuple.__new__, EntryState)
"""As `_make`, in half the time: no Python code is run."""


def _delivery(row: _Decided, dest: Destinations, payload: bytes, ack_below: int) -> Delivery:
    mid, local_ts, global_ts, previous_ts, mismatch = row
    return Delivery(mid, dest, payload, ack_below, local_ts, global_ts, previous_ts, _FLAGS[mismatch])


def _take_accepted(r: _Reader) -> list[Accepted]:
    rows = list(r.rows("accepted", 4))
    runs = r.cut(list(r.messages("accepted_run", 2)), [length for _, _, length, _ in rows])
    found = []
    for (dest, clock, length, first), run in zip(rows, runs, strict=True):
        payloads = tuple(r.payloads[first : first + length])
        if len(payloads) != length:
            raise r.wrong(f"{len(payloads)} payloads for a run of {length}")
        mids, local_ts, ack_below = zip(*run, strict=True) if run else ((), (), ())
        found.append(Accepted(r.dests[dest], mids, local_ts, payloads, ack_below, clock))
    return found


def _take_decided(r: _Reader) -> list[_Decided]:
    return [(mid, lts, gts, previous, flag) for mid, lts, gts, previous, flag in r.messages("decided", 4)]


def _take_delivered(r: _Reader) -> list[Delivery]:
    return [
        _delivery((mid, lts, gts, previous, flag), r.dests[dest], r.payloads[payload], ack_below)
        for mid, dest, payload, ack_below, lts, gts, previous, flag in r.messages("delivered", 7)
    ]


def _take_voted(r: _Reader) -> list[Voted]:
    found = []
    for mid, ts, payload, dest, ack_below in r.messages("voted", 4):
        if payload:
            value: Value = LocalTimestamp(mid, r.dests[dest], r.payloads[payload - 1], ack_below, ts)
        elif dest or ack_below:
            raise r.wrong("a payload is missing")
        else:
            value = ClockUpdate(mid, ts)
        found.append(Voted(value))
    return found


def _take_dropped(r: _Reader) -> list[Dropped]:
    mids = [mid for (mid,) in r.messages("dropped_mids", 0)]
    return [Dropped(each) for each in r.cut(mids, r.numbers("dropped"))]


def _entries(r: _Reader, column: str) -> list[EntryState]:
    return [
        EntryState(mid, r.dests[dest], r.payloads[payload], ack_below, _PHASES[phase], lts, gts)
        for mid, dest, payload, ack_below, phase, lts, gts in r.messages(column, 6)
    ]


def _take_learned(r: _Reader) -> list[Learned]:
    return [Learned(entry) for entry in _entries(r, "learned")]


def _take_promised(r: _Reader) -> list[Promised]:
    return [Promised(r.ballots[ballot]) for ballot in r.numbers("promised")]


def _take_joined(r: _Reader) -> list[Joined]:
    rows = list(r.rows("joined", 3))
    entries = r.cut(_entries(r, "joined_entries"), [length for _, _, length in rows])
    return [
        Joined(r.ballots[ballot], clock, each) for (ballot, clock, _), each in zip(rows, entries, strict=True)
    ]


def _take_configured(r: _Reader) -> list[Configured]:
    try:
        return [Configured(Membership.decode(r.payloads[payload])) for payload in r.numbers("configured")]
    except InvalidArgument as error:
        raise r.wrong(str(error)) from None


_TAKE: Final[dict[int, tuple[str, Callable[[_Reader], Sequence[Record | _Decided]]]]] = {
    CONFIGURED: ("configured", _take_configured),
    ACCEPTED: ("accepted", _take_accepted),
    DECIDED: ("decided", _take_decided),
    DELIVERED: ("delivered", _take_delivered),
    VOTED: ("voted", _take_voted),
    DROPPED: ("dropped", _take_dropped),
    LEARNED: ("learned", _take_learned),
    PROMISED: ("promised", _take_promised),
    JOINED: ("joined", _take_joined),
}
