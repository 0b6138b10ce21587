"""Records to bytes and back, and which of them still matter.

A batch is all that one commit of the log has for one group. `log.proto` says what is in it: for each kind of
record a packed column of numbers, and tables of what repeats, as between nodes (`wire`).

A delivery nearly always follows the acceptance of the same message, and says the same of it. Such a delivery
is written without what it repeats, and read with what is known at that point. So whoever writes or reads a
batch folds it, record by record, and both must begin with the same `Fold`.

Reading trusts nothing: whatever the bytes are, they become records, or a `StorageError`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, compress, count, groupby, islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

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

Proposal: TypeAlias = tuple[Destinations, bytes, int, Timestamp]
"""What the last acceptance says of a message: dest, payload, ack_below, local_ts."""

Word: TypeAlias = Proposal | Delivery | EntryState
"""What the last record says of a message."""


class Fold:
    """Which of a log's records still matter: the last word on each message and each group's members, and the
    rest in three numbers.

    It amounts to the `Durable` of the same records, but makes no entries: most messages are dropped before
    anybody asks for them. Runs of messages are folded without running any Python code for one of them.
    """

    __slots__ = ("ballot", "cballot", "clock", "memberships", "words")

    def __init__(self) -> None:
        self.ballot = self.cballot = NO_BALLOT
        self.clock = 0
        self.memberships: dict[GroupId, Membership] = {}
        self.words: dict[MessageId, Word] = {}

    def deliver(self, mids: Iterable[MessageId], deliveries: Iterable[Delivery]) -> None:
        """Fold deliveries of these messages."""
        self.words.update(zip(mids, deliveries, strict=True))

    def apply(self, record: Record) -> None:
        """Fold one more, as `Durable.apply` does."""
        words = self.words
        match record:
            case Accepted(dest, mids, local_ts, payloads, ack_below, clock):
                proposals = zip([dest] * len(mids), payloads, ack_below, local_ts, strict=True)
                self._accept(mids, proposals, clock)
            case Delivery(mid):
                words[mid] = record
            case Dropped(mids):
                for mid in mids:
                    words.pop(mid, None)
            case Voted(LocalTimestamp(mid, dest, payload, ack_below, at)):
                self._accept((mid,), [(dest, payload, ack_below, at)], time_of(at))
            case Voted(ClockUpdate(_, global_ts)):
                self.clock = max(self.clock, time_of(global_ts))
            case Learned(entry):
                words[entry.mid] = _word(entry)
            case Promised(ballot):
                self.ballot = ballot
            case Configured(membership):
                self.memberships[membership.group] = membership
            case Joined(ballot, clock, entries):
                self.ballot = self.cballot = ballot
                self.clock = max(self.clock, clock)
                self.words = {entry.mid: _word(entry) for entry in entries}
            case _:
                raise TypeError(f"{type(record).__name__} is no record")

    def _accept(self, mids: Sequence[MessageId], proposals: Iterable[Proposal], clock: int) -> None:
        words = self.words
        self.clock = max(self.clock, clock)
        accepted = zip(mids, proposals, strict=True)
        if words.keys().isdisjoint(mids):
            words.update(accepted)
        else:
            for mid, proposal in accepted:
                if not _decided(words.get(mid)):
                    words[mid] = proposal

    def entries(self) -> tuple[EntryState, ...]:
        """The last words on all messages."""
        return tuple([_entry(mid, word) for mid, word in self.words.items()])

    def records(self) -> list[Record]:
        """Records that amount to the same, with nothing superfluous."""
        members = [Configured(membership) for membership in self.memberships.values()]
        return [*members, Joined(self.cballot, self.clock, self.entries()), Promised(self.ballot)]

    def durable(self) -> Durable:
        """What a replica restarts from."""
        durable = Durable()
        durable.apply(self.records())
        return durable


def _decided(word: Word | None) -> bool:
    """Whether accepting the message again changes nothing."""
    return isinstance(word, Delivery) or (isinstance(word, EntryState) and word.phase is Phase.COMMITTED)


def _word(entry: EntryState) -> Word:
    """What is accepted is the same word wherever it comes from: a base then amounts to what it replaces."""
    _, dest, payload, ack_below, phase, local_ts, global_ts = entry
    if phase is Phase.ACCEPTED and global_ts == NO_TIMESTAMP:
        return dest, payload, ack_below, local_ts
    return entry


def _entry(mid: MessageId, word: Word) -> EntryState:
    if isinstance(word, EntryState):
        return word
    if isinstance(word, Delivery):
        local_ts, global_ts = word.local_ts, word.global_ts
        return EntryState(mid, word.dest, word.payload, word.ack_below, Phase.COMMITTED, local_ts, global_ts)
    dest, payload, ack_below, local_ts = word
    return EntryState(mid, dest, payload, ack_below, Phase.ACCEPTED, local_ts, NO_TIMESTAMP)


# Writing. Every message passes here at every replica, at least thrice: accepted, delivered and dropped. So
# what is written of each message is in columns, which are filled without running any Python code for one.


def encode(records: Iterable[Record], fold: Fold) -> bytes:
    """One batch, which is folded too. If this raises, part of it may have been."""
    w = _Writer()
    for kind, group in groupby(records, type):
        if kind is Delivery:
            _put_deliveries(w, list(group), fold)  # type: ignore[arg-type]  # all of this type
            continue
        put = _PUT.get(kind)
        if put is None:
            raise TypeError(f"{kind.__name__} is no record")
        for record in group:
            w.kinds.append(put(w, record))
            fold.apply(record)
    return w.finish()


class _Writer:
    """The columns of a batch that is being written, and for each table the index that a thing has there."""

    __slots__ = ("ballots", "clients", "columns", "dests", "kinds", "mids", "payloads")

    def __init__(self) -> None:
        self.kinds = bytearray()
        self.columns: dict[str, list[int]] = defaultdict(list)
        # What is new to a table gets the next index, and no Python code is run for it.
        self.clients: dict[ClientId, int] = defaultdict(count().__next__)
        self.dests: dict[Destinations, int] = defaultdict(count().__next__)
        self.ballots: dict[Ballot, int] = defaultdict(count(1).__next__, {NO_BALLOT: 0})
        self.payloads: list[bytes] = []
        self.mids: list[MessageId] = []

    def mid(self, mid: MessageId) -> int:
        """The index of a message id."""
        self.mids.append(mid)
        return len(self.mids) - 1

    def payload(self, payload: bytes) -> int:
        """The index of a payload, plus one."""
        self.payloads.append(payload)
        return len(self.payloads)

    def entry(self, entry: EntryState) -> tuple[int, ...]:
        """A row of what is known of a message."""
        mid, dest, payload, ack_below, phase, local_ts, global_ts = entry
        place = self.dests[dest], self.payload(payload) - 1
        return self.mid(mid), *place, ack_below, phase, local_ts, global_ts

    def finish(self) -> bytes:
        """The batch. Clients and replicas are the last of its tables, since the others refer to them."""
        batch = Batch(kinds=bytes(self.kinds))
        for column, numbers in self.columns.items():
            getattr(batch, column).extend(numbers)
        if self.mids:
            clients_of, sequences, digests = zip(*self.mids, strict=True)
            batch.clients_of.extend(map(self.clients.__getitem__, clients_of))
            batch.sequences.extend(sequences)
            batch.digests.extend(digests)
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


def _put_deliveries(w: _Writer, run: Sequence[Delivery], fold: Fold) -> None:
    """As one row, if they follow each other, and say of all messages what was accepted; else one by one."""
    mids, *proposals, global_ts, previous_ts, mismatches = zip(*run, strict=True)
    accepted = list(map(fold.words.get, mids)) == list(zip(*proposals, strict=True))
    if accepted and previous_ts[1:] == global_ts[:-1]:
        column = w.columns["decided_global_ts"]
        w.columns["decided_mismatches"] += compress(count(len(column)), mismatches)
        w.columns["decided"] += len(mids), len(w.mids), previous_ts[0]
        column += global_ts
        w.mids += mids
        w.kinds.append(DECIDED)
    elif len(run) > 1:
        for delivery in run:
            _put_deliveries(w, (delivery,), fold)
        return
    else:
        [d] = run
        row = w.mid(d.mid), w.dests[d.dest], w.payload(d.payload) - 1, d.ack_below
        w.columns["delivered"] += *row, d.local_ts, d.global_ts, d.previous_ts, int(d.mismatch)
        w.kinds.append(DELIVERED)
    fold.deliver(mids, run)


def _put_accepted(w: _Writer, record: Accepted) -> int:
    w.columns["accepted"] += (
        w.dests[record.dest], record.clock, len(record.mids), len(w.mids), len(w.payloads)
    )  # fmt: skip
    w.columns["accepted_local_ts"] += record.local_ts
    w.columns["accepted_ack_below"] += record.ack_below
    w.mids += record.mids
    w.payloads += record.payloads
    return ACCEPTED


def _put_voted(w: _Writer, record: Voted) -> int:
    value = record.value
    if isinstance(value, ClockUpdate):
        w.columns["voted"] += w.mid(value.mid), value.global_ts, 0, 0, 0
    else:
        mid, dest, payload, ack_below, local_ts = value
        w.columns["voted"] += w.mid(mid), local_ts, w.payload(payload), w.dests[dest], ack_below
    return VOTED


def _put_dropped(w: _Writer, record: Dropped) -> int:
    w.columns["dropped"] += len(record.mids), len(w.mids)
    w.mids += record.mids
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
    Accepted: _put_accepted,
    Configured: _put_configured,
    Voted: _put_voted,
    Dropped: _put_dropped,
    Learned: _put_learned,
    Promised: _put_promised,
    Joined: _put_joined,
}


# Reading. Whatever is an index is used as one, and `decode` catches it if it is out of range; numbers from
# outside are never negative.


def decode(data: bytes, fold: Fold, where: str) -> list[Record]:
    """What `encode` was given, with the same fold; it is folded here too.

    Raises `StorageError`, which says where this was, for anything that is not a batch; then part of it may
    have been folded.
    """
    try:
        batch = Batch.FromString(data)
    except DecodeError as error:
        raise StorageError(f"{where}: not a batch of records: {error}") from None
    reader = _Reader(batch, where)
    try:
        return reader.records(fold)
    except IndexError:
        raise reader.wrong("an index, a group, a phase or a flag is out of range") from None


class _Decided(NamedTuple):
    """Deliveries without what was accepted of their messages."""

    mids: Sequence[MessageId]
    global_ts: Sequence[Timestamp]
    previous_ts: Timestamp
    mismatches: Sequence[bool]


class _Reader:
    """A batch that is being read, and its tables."""

    __slots__ = ("ballots", "batch", "dests", "mids", "payloads", "reading", "where")

    def __init__(self, batch: Batch, where: str) -> None:
        self.batch = batch
        self.where = where
        self.reading = ""
        """The table or the kind of record that is being read."""
        self.payloads = batch.payloads[:]
        self.ballots = [NO_BALLOT]
        self.dests: list[Destinations] = []
        self.mids: list[MessageId] = []

    def wrong(self, what: str) -> StorageError:
        """What is wrong where."""
        return StorageError(f"{self.where}: {self.reading}: {what}")

    def records(self, fold: Fold) -> list[Record]:
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
        for kind in kinds:
            record = next(of_kind[kind])
            if isinstance(record, _Decided):
                run = self._deliveries(record, fold)
                fold.deliver(record.mids, run)
                records += run
            else:
                fold.apply(record)
                records.append(record)
        return records

    def _deliveries(self, decided: _Decided, fold: Fold) -> list[Delivery]:
        previous, run = decided.previous_ts, []
        for mid, global_ts, mismatch in zip(decided.mids, decided.global_ts, decided.mismatches, strict=True):
            word = fold.words.get(mid)
            if word is None or isinstance(word, Delivery | EntryState):
                raise self.wrong(f"no acceptance is known of the message {mid}")
            run.append(Delivery(mid, *word, global_ts, previous, mismatch))
            previous = global_ts
        return run

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
        self.reading = "mids"
        clients, sequences = self.batch.clients[:], self.numbers("sequences")
        clients_of, digests = self.numbers("clients_of"), self.batch.digests[:]
        if not len(clients_of) == len(sequences) == len(digests):
            raise self.wrong(f"{len(clients_of)} clients, {len(sequences)} numbers, {len(digests)} digests")
        mids = zip(map(clients.__getitem__, clients_of), sequences, digests, strict=True)
        self.mids = list(map(_new_mid, mids))

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

    def cut(self, items: Sequence[T], lengths: Sequence[int]) -> list[tuple[T, ...]]:
        """Pieces of these lengths, which must be all there is."""
        if sum(lengths) != len(items):
            raise self.wrong(f"there are {len(items)}, but lengths add up to {sum(lengths)}")
        rest = iter(items)
        return [tuple(islice(rest, length)) for length in lengths]

    def run(self, items: Sequence[T], first: int, length: int) -> tuple[T, ...]:
        """So many, beginning with this one."""
        found = tuple(items[first : first + length])
        if len(found) != length:
            raise self.wrong(f"{len(found)} of a run of {length} are there")
        return found


_GROUPS: Final = tuple(map(GroupId, range(GROUPS_MAX)))
_FLAGS: Final = (False, True)
_PHASES: Final = tuple(Phase)

_new_mid: Final[Callable[[tuple[Any, ...]], MessageId]] = partial(tuple.__new__, MessageId)
"""As `_make`, in half the time: no Python code is run."""


def _take_accepted(r: _Reader) -> list[Accepted]:
    rows = list(r.rows("accepted", 5))
    lengths = [length for _, _, length, _, _ in rows]
    local_ts = r.cut(r.numbers("accepted_local_ts"), lengths)
    ack_below = r.cut(r.numbers("accepted_ack_below"), lengths)
    found = []
    for (dest, clock, length, mid, payload), times, below in zip(rows, local_ts, ack_below, strict=True):
        mids, payloads = r.run(r.mids, mid, length), r.run(r.payloads, payload, length)
        found.append(Accepted(r.dests[dest], mids, times, payloads, below, clock))
    return found


def _take_decided(r: _Reader) -> list[_Decided]:
    rows = list(r.rows("decided", 3))
    global_ts = r.numbers("decided_global_ts")
    mismatches = [False] * len(global_ts)
    for index in r.numbers("decided_mismatches"):
        mismatches[index] = True
    lengths = [length for length, _, _ in rows]
    columns = zip(rows, r.cut(global_ts, lengths), r.cut(mismatches, lengths), strict=True)
    return [
        _Decided(r.run(r.mids, mid, length), times, previous_ts, wrong)
        for (length, mid, previous_ts), times, wrong in columns
    ]


def _take_delivered(r: _Reader) -> list[Delivery]:
    return [
        Delivery(r.mids[mid], r.dests[dest], r.payloads[payload], ack_below, lts, gts, previous, _FLAGS[flag])
        for mid, dest, payload, ack_below, lts, gts, previous, flag in r.rows("delivered", 8)
    ]


def _take_voted(r: _Reader) -> list[Voted]:
    found = []
    for mid, ts, payload, dest, ack_below in r.rows("voted", 5):
        if payload:
            value: Value = LocalTimestamp(r.mids[mid], r.dests[dest], r.payloads[payload - 1], ack_below, ts)
        elif dest or ack_below:
            raise r.wrong("a payload is missing")
        else:
            value = ClockUpdate(r.mids[mid], ts)
        found.append(Voted(value))
    return found


def _take_dropped(r: _Reader) -> list[Dropped]:
    rows = list(r.rows("dropped", 2))
    if sum(length for length, _ in rows) > len(r.mids):
        raise r.wrong(f"more than the {len(r.mids)} messages that there are")
    return [Dropped(r.run(r.mids, mid, length)) for length, mid in rows]


def _entries(r: _Reader, column: str) -> list[EntryState]:
    return [
        EntryState(r.mids[mid], r.dests[dest], r.payloads[payload], ack_below, _PHASES[phase], lts, gts)
        for mid, dest, payload, ack_below, phase, lts, gts in r.rows(column, 7)
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
