"""The disk format of records: encode a batch of them, and decode it.

A batch is all that one commit of the log has for one group: an array of records in MessagePack
(`wire.schema`). A change of a record's class or of `TAGS` is a change of the format, and needs another
`identity.FORMAT`.

A delivery nearly always follows the acceptance of the same message, and repeats its fields. Such a delivery
is written without these fields, and read with what is known at that point. So the writer and the reader of a
batch fold it, record by record, and must begin with equal folds (`multicast.durable.Durable`). A large
payload that the fold already has is left out likewise, and so is one that is staged: the log has it apart.

Decoding trusts nothing: any bytes become records, or raise `StorageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from kvstore.storage.errors import DamagedRow, StorageError
from kvstore.wire.schema import ERRORS, FormatError, kinds_of
from multicast.durable import (
    Accepted,
    Configured,
    Counted,
    Dropped,
    Durable,
    Joined,
    Learned,
    Promised,
    Record,
    Remembered,
    Reported,
    Voted,
)
from multicast.messages import Delivery, EntryState
from multicast.types import (
    MessageId,
    Timestamp,
    expand_dests,
)


class _Decided(NamedTuple):
    """Deliveries that follow each other, without what was accepted of their messages."""

    mids: tuple[MessageId, ...]
    previous_ts: Timestamp
    """Of the first of them."""
    global_ts: tuple[Timestamp, ...]
    mismatches: tuple[bool, ...]


class _Known(NamedTuple):
    """Messages of the record that follows whose payloads are left out: they are as the fold has them."""

    mids: tuple[MessageId, ...]


class _Staged(NamedTuple):
    """Messages of the record that follows whose payloads are staged, with numbers and lengths of these."""

    mids: tuple[MessageId, ...]
    stages: tuple[int, ...]
    lengths: tuple[int, ...]


class Payloads:
    """The staged payloads of a log: those that its records refer to in place of having them."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        """`read` reads one from the disk."""
        self._read = read
        self.numbers: dict[int, int] = {}
        """By the identity of the bytes object."""
        self._objects: dict[int, bytes] = {}

    def add(self, stage: int, payload: bytes) -> None:
        """Refer to this object by this number."""
        self._objects[stage] = payload
        self.numbers[id(payload)] = stage

    def remove(self, stage: int) -> None:
        """Do not refer to it any more."""
        payload = self._objects.pop(stage, None)
        if payload is not None:
            del self.numbers[id(payload)]

    def get(self, stage: int) -> bytes:
        """Return the payload, one object as long as it is not removed."""
        payload = self._objects.get(stage)
        if payload is None:
            payload = self._read(stage)
            self.add(stage, payload)
        return payload


LARGE_BYTES: Final = 4 << 10
"""Payloads of at least this size are not written again."""

_WITH_PAYLOADS: Final = frozenset((Accepted, Joined, Voted))


def encode(
    records: Iterable[Record], fold: Durable, staged: Payloads | None = None, used: set[int] | None = None
) -> bytes:
    """One batch, which is folded too. If this raises, part of it may have been.

    With `staged`, records refer to these payloads; `used` gets the numbers of those that they refer to.
    """
    rows: list[Any] = []
    for kind, run in groupby(records, type):
        if kind is Delivery:
            rows += _decide(list(run), fold)  # type: ignore[arg-type]  # all of this type
            continue
        put = _RECORDS.put.get(kind)
        if put is None:
            raise TypeError(f"{kind.__name__} is not a record")
        batch = list(run)
        if kind in _WITH_PAYLOADS and payload_bytes(batch) >= LARGE_BYTES:
            for record in batch:
                rows += _once(record, put, fold, staged, used)
                fold.apply((record,))
            continue
        fold.apply(batch)
        rows += map(put, batch)
    return _write(rows)


def _once(
    record: Any, put: Callable[[Any], Any], fold: Durable, staged: Payloads | None, used: set[int] | None
) -> list[Any]:
    """Return the rows of a record, without large payloads that the fold already has: an election accepts a
    message again, and must not cost as much as the message did.
    """
    known = [
        mid
        for mid, payload in _payloads_of(record)
        if len(payload) >= LARGE_BYTES and _payload_in(fold, mid) == payload
    ]
    stages: dict[MessageId, int] = {}
    if staged is not None and staged.numbers:
        numbers = staged.numbers
        stages = {
            mid: numbers[id(payload)]
            for mid, payload in _payloads_of(record)
            if id(payload) in numbers and mid not in known
        }
    if not (known or stages):
        return [put(record)]
    rows = []
    if known:
        rows.append(_RECORDS.put[_Known](_Known(tuple(known))))
    if stages:
        lengths = [len(payload) for mid, payload in _payloads_of(record) if mid in stages]
        rows.append(_RECORDS.put[_Staged](_Staged(tuple(stages), tuple(stages.values()), tuple(lengths))))
        if used is not None:
            used.update(stages.values())
    return [*rows, put(_with_payloads(record, dict.fromkeys((*known, *stages), b"")))]


def _payload_in(fold: Durable, mid: MessageId) -> bytes | None:
    last = fold.latest.get(mid)
    if last is None:
        return None
    return last.payload if isinstance(last, Delivery | EntryState) else last[1]


def _payloads_of(record: Any) -> Iterable[tuple[MessageId, bytes]]:
    if isinstance(record, Joined):
        return [(entry.mid, entry.payload) for entry in record.entries]
    columns = record if isinstance(record, Accepted) else record.local
    return zip(columns.mids, columns.payloads, strict=True)


def _with_payloads(record: Any, payloads: Mapping[MessageId, bytes]) -> Any:
    """Return the record with these payloads instead of its own."""
    found = [payloads.get(mid, payload) for mid, payload in _payloads_of(record)]
    if isinstance(record, Joined):
        pairs = zip(record.entries, found, strict=True)
        return replace(record, entries=tuple([entry._replace(payload=each) for entry, each in pairs]))
    if isinstance(record, Accepted):
        return replace(record, payloads=tuple(found))
    return replace(record, local=record.local._replace(payloads=tuple(found)))


def payload_bytes(records: Iterable[Record], referred: Container[int] = ()) -> int:
    """Return the bytes of all payloads in these records, which tell how large their encoding is; except for
    objects with these identities.
    """
    total = 0
    for record in records:
        if type(record) is Delivery:
            continue
        if isinstance(record, Accepted):
            if referred:
                total += sum([len(each) for each in record.payloads if id(each) not in referred])
            else:
                total += sum(map(len, record.payloads))
        elif isinstance(record, Voted):
            total += sum(map(len, record.local.payloads))
        elif isinstance(record, Joined):
            total += sum([len(entry.payload) for entry in record.entries])
    return total


def _decide(run: Sequence[Delivery], fold: Durable) -> list[Any]:
    """One row, if they follow each other, and say of all messages what was accepted; else one for each."""
    if len(run) == 1:
        (only,) = run
        mid, *proposal, at, previous, mismatch = only
        known = fold.latest.get(mid)
        fold.latest[mid] = only
        if known != tuple(proposal):
            return [_RECORDS.put[Delivery](only)]
        return [_RECORDS.put[_Decided](_Decided((mid,), previous, (at,), (mismatch,)))]
    mids, *proposals, global_ts, previous_ts, mismatches = zip(*run, strict=True)
    accepted = list(map(fold.latest.get, mids)) == list(zip(*proposals, strict=True))
    if not (accepted and previous_ts[1:] == global_ts[:-1]):
        return [row for delivery in run for row in _decide((delivery,), fold)]
    fold.deliver(mids, run)
    return [_RECORDS.put[_Decided](_Decided(mids, previous_ts[0], global_ts, mismatches))]


def decode(
    data: bytes, fold: Durable, where: str, staged: Payloads | None = None, used: set[int] | None = None
) -> list[Record]:
    """What `encode` was given, with the same fold; it is folded here too.

    Raises `StorageError`, which says where this was, for anything that is not a batch, and `DamagedRow` if it
    refers to staged payloads that are not whole; then part of it may have been folded.
    """
    records: list[Record] = []
    known: dict[MessageId, bytes] = {}
    try:
        for row in _read(data):
            record = _RECORDS.take[type(row)](row)
            if isinstance(record, _Known):
                if known:
                    raise FormatError("payloads are known twice")
                known = {mid: _known_payload(fold, mid) for mid in record.mids}
                continue
            if isinstance(record, _Staged):
                if staged is None or not known.keys().isdisjoint(record.mids):
                    raise FormatError("payloads are staged that are not expected")
                found = [staged.get(stage) for stage in record.stages]
                if list(map(len, found)) != list(record.lengths):  # the last pieces are missing
                    raise DamagedRow(f"{where}: staged payloads {record.stages} have other lengths")
                known |= dict(zip(record.mids, found, strict=True))
                if used is not None:
                    used.update(record.stages)
                continue
            if known:
                record = _restored(record, known)
                known = {}
            if isinstance(record, _Decided):
                run = _deliveries(record, fold)
                fold.deliver(record.mids, run)
                records += run
            else:
                fold.apply((record,))
                records.append(record)
        if known:
            raise FormatError("known payloads are followed by nothing")
    except ERRORS as error:
        raise StorageError(f"{where}: not a batch of records: {error}") from None
    return records


def _known_payload(fold: Durable, mid: MessageId) -> bytes:
    payload = _payload_in(fold, mid)
    if payload is None:
        raise FormatError(f"the payload of message {mid} is not known")
    return payload


def _restored(record: Any, known: Mapping[MessageId, bytes]) -> Any:
    """Return the record with the payloads that it was written without."""
    if type(record) not in _WITH_PAYLOADS or not known.keys() <= {mid for mid, _ in _payloads_of(record)}:
        raise FormatError(f"known payloads are followed by another {type(record).__name__}")
    return _with_payloads(record, known)


def _deliveries(decided: _Decided, fold: Durable) -> list[Delivery]:
    previous, run = decided.previous_ts, []
    for mid, global_ts, mismatch in zip(decided.mids, decided.global_ts, decided.mismatches, strict=True):
        last = fold.latest.get(mid)
        if last is None or isinstance(last, Delivery | EntryState):
            raise FormatError(f"message {mid} was not accepted")
        run.append(Delivery(mid, *last, global_ts, previous, mismatch))
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


def _check_staged(staged: _Staged) -> None:
    lengths = {len(set(staged.mids)), len(staged.mids), len(staged.stages), len(staged.lengths)}
    if len(lengths) > 1 or lengths == {0}:
        raise FormatError(f"{len(staged.mids)} messages have {len(staged.stages)} staged payloads")


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
    10: _Known,
    11: Reported,
    12: Counted,
    13: Remembered,
    60: _Staged,
}
"""Tags of records on the disk. A tag is never used for another class: its change needs another
`identity.FORMAT`."""
_RECORDS: Final = kinds_of(
    TAGS, {Accepted: _check_accepted, Voted: _check_voted, _Decided: _check_decided, _Staged: _check_staged}
)
_write: Final = msgspec.msgpack.Encoder().encode
_read: Final[Callable[[bytes], list[Any]]] = msgspec.msgpack.Decoder(
    list[_RECORDS.raw]  # type: ignore[name-defined]  # made at run time
).decode
