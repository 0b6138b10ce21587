"""Records to bytes and back, and which of them still matter.

A batch is all that one commit of the log has for one group: an array of records in MessagePack (`formats`).
Whoever changes a record's class, or `_KINDS`, changes the format, and `layout.FORMAT` with it.

A delivery nearly always follows the acceptance of the same message, and says the same of it. Such a delivery
is written without what it repeats, and read with what is known at that point. So whoever writes or reads a
batch folds it, record by record, and both must begin with the same `Fold`.

Reading trusts nothing: whatever the bytes are, they become records, or a `StorageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from kvstore.storage.errors import StorageError
from kvstore.wire.schema import ERRORS, FormatError, kinds_of
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
from multicast.membership import Membership
from multicast.messages import Delivery, EntryState
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Timestamp,
    expand_dests,
)

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
            case Accepted(dests, mids, local_ts, payloads, ack_below, clock):
                proposals = zip(expand_dests(dests, len(mids)), payloads, ack_below, local_ts, strict=True)
                self._accept(mids, proposals, clock)
            case Delivery(mid):
                words[mid] = record
            case Dropped(mids):
                for mid in mids:
                    words.pop(mid, None)
            case Voted(local, clock):
                self._accept(local.mids, zip(*local[1:], strict=True), clock)
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


# Bytes


class _Decided(NamedTuple):
    """Deliveries that follow each other, without what was accepted of their messages."""

    mids: tuple[MessageId, ...]
    previous_ts: Timestamp
    """Of the first of them."""
    global_ts: tuple[Timestamp, ...]
    mismatches: tuple[bool, ...]


def encode(records: Iterable[Record], fold: Fold) -> bytes:
    """One batch, which is folded too. If this raises, part of it may have been."""
    rows: list[Any] = []
    for kind, run in groupby(records, type):
        if kind is Delivery:
            rows += _decide(list(run), fold)  # type: ignore[arg-type]  # all of this type
            continue
        put = _RECORDS.put.get(kind)
        if put is None:
            raise TypeError(f"{kind.__name__} is no record")
        for record in run:
            fold.apply(record)
            rows.append(put(record))
    return _write(rows)


def _decide(run: Sequence[Delivery], fold: Fold) -> list[Any]:
    """One row, if they follow each other, and say of all messages what was accepted; else one for each."""
    mids, *proposals, global_ts, previous_ts, mismatches = zip(*run, strict=True)
    accepted = list(map(fold.words.get, mids)) == list(zip(*proposals, strict=True))
    if len(run) > 1 and not (accepted and previous_ts[1:] == global_ts[:-1]):
        return [row for delivery in run for row in _decide((delivery,), fold)]
    fold.deliver(mids, run)
    record = _Decided(mids, previous_ts[0], global_ts, mismatches) if accepted else run[0]
    return [_RECORDS.put[type(record)](record)]


def decode(data: bytes, fold: Fold, where: str) -> list[Record]:
    """What `encode` was given, with the same fold; it is folded here too.

    Raises `StorageError`, which says where this was, for anything that is not a batch; then part of it may
    have been folded.
    """
    records: list[Record] = []
    try:
        for row in _read(data):
            record = _RECORDS.take[type(row)](row)
            if isinstance(record, _Decided):
                run = _deliveries(record, fold)
                fold.deliver(record.mids, run)
                records += run
            else:
                fold.apply(record)
                records.append(record)
    except ERRORS as error:
        raise StorageError(f"{where}: not a batch of records: {error}") from None
    return records


def _deliveries(decided: _Decided, fold: Fold) -> list[Delivery]:
    previous, run = decided.previous_ts, []
    for mid, global_ts, mismatch in zip(decided.mids, decided.global_ts, decided.mismatches, strict=True):
        word = fold.words.get(mid)
        if word is None or isinstance(word, Delivery | EntryState):
            raise FormatError(f"no acceptance is known of the message {mid}")
        run.append(Delivery(mid, *word, global_ts, previous, mismatch))
        previous = global_ts
    return run


def _check_accepted(record: Accepted) -> None:
    dests = len(expand_dests(record.dests, len(record.mids)))
    lengths = {dests, len(record.mids), len(record.local_ts), len(record.payloads), len(record.ack_below)}
    if len(lengths) > 1:
        raise FormatError(f"an acceptance has columns of {sorted(lengths)}")


def _check_voted(record: Voted) -> None:
    if len(lengths := set(map(len, record.local))) > 1:
        raise FormatError(f"a vote has columns of {sorted(lengths)}")


def _check_decided(decided: _Decided) -> None:
    if not len(decided.mids) == len(decided.global_ts) == len(decided.mismatches) > 0:
        raise FormatError(f"a decision of {len(decided.mids)} messages has columns of other lengths")


TAGS: Final[Mapping[int, type]] = {
    1: Promised,
    2: Joined,
    3: Accepted,
    4: _Decided,
    5: Delivery,
    6: Voted,
    7: Learned,
    8: Dropped,
    9: Configured,
}
"""Tags of records on the disk. A tag is never used for another class: its change needs another
`identity.FORMAT`."""
_RECORDS: Final = kinds_of(TAGS, {Accepted: _check_accepted, Voted: _check_voted, _Decided: _check_decided})
_write: Final = msgspec.msgpack.Encoder().encode
_read: Final[Callable[[bytes], list[Any]]] = msgspec.msgpack.Decoder(
    list[_RECORDS.raw]  # type: ignore[name-defined]  # made at run time
).decode
