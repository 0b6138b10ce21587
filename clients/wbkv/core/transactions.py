"""Interactive transactions: read, think, write, and commit if nothing that was read has changed.

Reads are strict, each at its own moment, and remembered; writes are buffered until the commit. The commit is
one ordered transaction: the conditions that every key read still has its revision, and that no range read
has changed since; and the writes, the removals of ranges first. So a transaction that commits is strictly
serializable, phantoms included, and one that does not has written nothing. A transaction that read once and
wrote nothing needs no commit.

A transaction that conflicts again and again reserves what it has read before it is retried: all nodes then
delay other clients' writes of these keys for a moment. What commits does not depend on that.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from wbkv_proto.v1 import kv_pb2 as kv

from wbkv import codecs
from wbkv.codecs import Values
from wbkv.core.calls import backoff, time_of
from wbkv.core.effects import Emit, Plan, Wait, mapped, nothing
from wbkv.core.environment import Environment
from wbkv.core.requests import Requests, check_limit
from wbkv.core.routing import Router
from wbkv.core.streams import Page
from wbkv.data import Entry, Key, KeyRange, Keys, V, key_bytes, keys_bytes, range_of
from wbkv.errors import FAULTS, Aborted, Error, Forked
from wbkv.operations import (
    INT64_MAX,
    INT64_MIN,
    Calculate,
    Condition,
    Delete,
    DeleteRange,
    Operation,
    Put,
    Unchanged,
    operation_failed,
)

D = TypeVar("D")

NAMED: Final = 3
"""How many keys an error names."""

AT_ONCE: Final = 4
"""Of so many conflicts, all but the last are followed by a retry without a pause."""

CONFLICT_TRIES: Final = 3
"""After so many pauses they stop growing: a transaction that waits long while others go on starves."""

RESERVE_AFTER: Final = 6
"""After so many conflicts, a transaction reserves what it has read before the next attempt."""

RESERVE_AFTER_S: Final = 0.5
"""And not before: short transactions that conflict come through by retrying."""

NAME_BITS: Final = 10
"""Random bits of a reservation's name, below the revision that the client has seen."""

RESERVE_S: Final = 2.0
"""The longest time of a reservation that nodes accept."""

STALE: Final = "the transaction's reads were not consistent"

TRIED: Final = "has already tried to commit"
COMMITTED: Final = "was committed"

_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
"""The store's format of numbers."""


class Attempt:
    """One run of a transaction. It keeps values as bytes: `values` converts those of a call."""

    def __init__(self, requests: Requests[Any], timeout_s: float | None) -> None:
        self._requests = requests
        self._raw = requests.using(codecs.BYTES, "strict")
        self._timeout_s = None if timeout_s is None else time_of(timeout_s, timeout_s)
        self._pid = os.getpid()
        self._read: dict[bytes, Entry[bytes] | None] = {}
        self._ranges: list[_Protected] = []
        self._removed: list[KeyRange] = []
        """Ranges to be removed, before the writes."""
        self._writes: dict[bytes, bytes | None] = {}
        """None: the key is to be removed."""
        self._trips = 0
        """The number of requests to the store."""
        self._returned: dict[bytes, Entry[bytes] | None] = {}
        """What the aborted commit before this attempt returned: all as of one revision, and recent."""
        self._reservation = 0
        """The name under which what this attempt reads is reserved, or 0."""
        self.ended = ""
        """How the attempt has ended; empty if it has not."""
        self.revision = 0
        """The revision of the commit, if the transaction wrote."""

    @property
    def state(self) -> str:
        """How far the attempt has come, in words."""
        read = f"{len(self._read)} keys and {len(self._ranges)} ranges read"
        written = f"{len(self._writes)} keys written"
        removed = f", {len(self._removed)} ranges removed" if self._removed else ""
        return f"{self.ended or 'open'}, {read}, {written}{removed}"

    def _check_open(self) -> None:
        if self.ended:
            raise Error(f"the transaction {self.ended}: begin another one")
        if self._pid != os.getpid():
            raise Forked("a transaction of the parent process cannot be used in its fork: begin another one")

    # Reads

    def entries(self, values: Values[V], keys: Iterable[Key]) -> Plan[list[Entry[V] | None]]:
        """Read keys; those that were not read before in one request."""
        self._check_open()
        raws = keys_bytes(keys)
        yield from self._fetch(raws)
        found = map(self._seen, raws)
        return [None if entry is None else values.entry(entry) for entry in found]

    def _fetch(self, keys: Iterable[bytes]) -> Plan[None]:
        missing = [key for key in dict.fromkeys(keys) if not self._is_written(key) and key not in self._read]
        for key in [key for key in missing if key in self._returned]:
            self._read[key] = self._returned[key]
            missing.remove(key)
        if not missing:
            return
        self._trips += 1
        if len(missing) == 1:
            found = [(yield from self._raw.entry(missing[0], 0, None, self._timeout_s))]
        else:
            found = yield from self._raw.entries(missing, 0, None, self._timeout_s)
        for key, entry in zip(missing, found, strict=True):
            self._read.setdefault(key, entry)  # another task may have read it meanwhile, and used that

    def entry(self, values: Values[V], key: Key) -> Plan[Entry[V] | None]:
        """Read one key."""
        found = yield from self.entries(values, (key,))
        return found[0]

    def get(self, values: Values[V], key: Key, default: D) -> Plan[V | D]:
        """Read one value."""
        found = yield from self.entries(values, (key,))
        return default if found[0] is None else found[0].value

    def get_many(self, values: Values[V], keys: Iterable[Key], default: D) -> Plan[list[V | D]]:
        """Read several values."""
        found = yield from self.entries(values, keys)
        return [default if entry is None else entry.value for entry in found]

    def _is_written(self, key: bytes) -> bool:
        return key in self._writes or any(key in keys for keys in self._removed)

    def _seen(self, key: bytes) -> Entry[bytes] | None:
        """Return a key with the writes of this transaction."""
        if self._is_written(key):
            return _written(key, self._writes.get(key))
        return self._read[key]

    def scan(
        self, values: Values[V], keys: Keys, after: Key | None, limit: int, *, reverse: bool
    ) -> Plan[None]:
        """Emit lists of entries, at least as many as the limit allows."""
        rows = self.rows(keys, after, limit, reverse=reverse)
        return rows if values.plain else mapped(rows, lambda page: [values.entry(entry) for entry in page])

    def rows(
        self, keys: Keys, after: Key | None, limit: int, *, reverse: bool, shape: kv.Shape = kv.ENTRIES
    ) -> Plan[None]:
        """Emit lists of entries with bytes, or without values. The part of the range that was read is
        protected from changes before the commit.
        """
        self._check_open()
        check_limit(limit)
        asked = range_of(keys)
        if after is not None:
            rest = self._raw.calls.router.beyond(asked, key_bytes(after), reverse=reverse)
            if rest is None:
                return nothing()
            asked = rest
        removed = [keys for keys in self._removed if keys.overlaps(asked)]
        mine = {key: value for key, value in self._writes.items() if key in asked}
        enough = limit + len(mine) if limit and not removed else 0
        pages = self._raw.scan(
            asked, limit=enough, reverse=reverse, shape=shape,
            revision=0, consistency=None, timeout_s=self._timeout_s,
        )  # fmt: skip
        return self._overlaid(pages, asked, enough, mine, removed, reverse=reverse)

    def _overlaid(
        self,
        pages: Plan[None],
        asked: KeyRange,
        enough: int,
        mine: dict[bytes, bytes | None],
        removed: Sequence[KeyRange],
        *,
        reverse: bool,
    ) -> Plan[None]:
        """Emit the pages with the writes that this transaction had made when the scan began. `enough` is how
        many entries of the store were asked for; 0: all.
        """
        written = deque(sorted(mine, reverse=reverse))
        protected = _Protected(asked)
        seen = 0

        def take(page: Page) -> list[Entry[bytes]]:
            nonlocal seen
            entries = self._raw.page_entries(page)
            seen += len(entries)
            last = entries[-1].key if entries else None
            protected.came(page.revision, last, self._raw.calls.router, reverse=reverse)
            found: list[Entry[bytes] | None] = [
                entry
                for entry in entries
                if entry.key not in mine and not any(entry.key in keys for keys in removed)
            ]
            while written and last is not None and (written[0] >= last if reverse else written[0] <= last):
                key = written.popleft()
                found.append(_written(key, mine[key]))
            return sorted(filter(None, found), key=_key_of, reverse=reverse)

        self._check_open()
        self._trips += 1
        self._ranges.append(protected)
        yield from mapped(pages, take)
        if not enough or seen < enough:
            protected.whole()
        yield Emit([entry for key in written if (entry := _written(key, mine[key])) is not None])

    # Writes

    def put(self, values: Values[V], key: Key, value: V) -> None:
        """Buffer a write."""
        self._check_open()
        raw = key_bytes(key)
        self._writes[raw] = values.encode(raw, value)

    def delete(self, keys: Key | KeyRange) -> None:
        """Buffer the removal of a key, or of a range with what this transaction has written there."""
        self._check_open()
        if isinstance(keys, KeyRange):
            self._removed.append(keys)
            self._writes = {key: value for key, value in self._writes.items() if key not in keys}
        else:
            self._writes[key_bytes(keys)] = None

    def add(self, key: Key, amount: int, floor: int | None, ceiling: int | None) -> Plan[int]:
        """Read a number, and buffer the sum."""
        operation = Calculate("add", key_bytes(key), amount, floor, ceiling)  # raises if one is invalid
        raw = operation.key
        base = yield from self._base(raw)
        stored = 0 if base is None else int(base) if _NUMBER.fullmatch(base) else INT64_MAX + 1
        if not INT64_MIN <= stored <= INT64_MAX:
            raise operation_failed(raw, FAULTS[kv.NOT_A_NUMBER])
        number = stored + amount
        reason = operation.bounded(number)
        if reason is not None:
            raise operation_failed(raw, reason)
        self._writes[raw] = b"%d" % number
        return number

    def append(self, values: Values[V], key: Key, value: V) -> Plan[int]:
        """Read a value, and buffer a longer one."""
        raw = key_bytes(key)
        more = values.encode(raw, value)
        base = yield from self._base(raw)
        longer = self._writes[raw] = (base or b"") + more
        return len(longer)

    def _base(self, key: bytes) -> Plan[bytes | None]:
        """Return the bytes of a key, with the writes of this transaction."""
        self._check_open()
        yield from self._fetch([key])
        entry = self._seen(key)
        return None if entry is None else entry.value

    # The end

    def commit(self) -> Plan[None]:
        """Commit all writes, or raise `Aborted`."""
        self._check_open()
        self.ended = TRIED
        writes: list[Operation] = [
            *(DeleteRange(keys) for keys in self._removed),
            *(Delete(key) if value is None else Put(key, value) for key, value in self._writes.items()),
        ]
        if writes or self._trips > 1:
            result = yield from self._raw.commit(
                self._read, self._conditions(), writes, self._timeout_s, self._reservation
            )
            if not result.succeeded:
                self.ended = "was aborted"
                entries = [entry for entry in result.results if entry is None or isinstance(entry, Entry)]
                if len(entries) == len(self._read):
                    self._returned = dict(zip(self._read, entries, strict=True))
                raise Aborted(self._why(result.unmet))
            self.revision = result.revision if writes else 0
        self.ended = COMMITTED

    def next(self, timeout_s: float | None) -> Attempt:
        """Return the next attempt after an aborted one. It uses the values that the abort returned."""
        attempt = Attempt(self._requests, timeout_s)
        if self._returned:
            attempt._returned = self._returned
            attempt._trips = 1
        return attempt

    def reserved_next(self, patience: Patience) -> Plan[Attempt]:
        """Return the next attempt, which reads anew, with what this one has read reserved for it."""
        name = patience.reserve(self._requests.calls.seen)
        ranges = [part.range for part in self._ranges]
        yield from self._raw.reserve(name, self._read, ranges, patience.reserve_s)
        attempt = Attempt(self._requests, patience.left_s)
        attempt._reservation = name
        return attempt

    def release(self, patience: Patience) -> Plan[None]:
        """End the reservation, if there is one."""
        if patience.reservation:
            yield from self._raw.reserve(patience.reservation, (), (), 0.0)

    def holds(self) -> Plan[bool]:
        """Return whether all reads are consistent as of one revision. After a commit they were, although its
        own writes have changed the keys since.
        """
        if self._trips <= 1 or self.ended in (TRIED, COMMITTED):
            return True
        result = yield from self._raw.transact(self._conditions(), (), (), self._timeout_s)
        return result.succeeded

    def roll_back(self) -> None:
        """End the attempt without writing."""
        if self.ended == COMMITTED:
            raise Error("the transaction was committed: it cannot be rolled back")
        self.ended = self.ended or "was rolled back"

    def _conditions(self) -> list[Condition]:
        keys = [
            Condition(key, "mod_revision", kv.EQUAL, 0 if entry is None else entry.mod_revision)
            for key, entry in self._read.items()
        ]
        return [*keys, *(Unchanged(part.range, part.revision) for part in self._ranges if part.revision)]

    def _why(self, unmet: Iterable[int]) -> str:
        names = [repr(key) for key in self._read]
        names += [repr(part.range) for part in self._ranges if part.revision]
        changed = [names[index] for index in unmet]
        others = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        return f"another transaction has changed {', '.join(changed[:NAMED])}{others}: retry this one"


def _written(key: bytes, value: bytes | None) -> Entry[bytes] | None:
    """Return a key that a transaction has written. It has no revision yet."""
    return None if value is None else Entry(key, value, 0, 0, 0)


class _Protected:
    """The part of a range that a scan has read, and its revision."""

    def __init__(self, asked: KeyRange) -> None:
        self._asked = asked
        self.range = asked
        self.revision = 0
        """0: nothing was read yet."""

    def came(self, revision: int, last: bytes | None, router: Router, *, reverse: bool) -> None:
        """Record a page, up to the key `last`."""
        self.revision = revision
        if last is not None:
            start, end = self._asked.start, self._asked.end
            self.range = KeyRange(last, end) if reverse else KeyRange(start, router.after(last))

    def whole(self) -> None:
        """Record that the whole range was read."""
        self.range = self._asked


def _key_of(entry: Entry[bytes]) -> bytes:
    return entry.key


class Patience:
    """The time limit of a transaction's attempts, and the pauses between them."""

    def __init__(self, timeout_s: float | None, usual_s: float, environment: Environment) -> None:
        self._timeout_s = time_of(timeout_s, usual_s)
        self._environment = environment
        self._now = environment.now
        self._start = self._began = self._now()
        self._deadline = self._start + self._timeout_s
        self._tries = 0
        self._lasted_s = 0.0
        """How long the last attempt took."""
        self.reservation = 0
        """The name of the transaction's reservation, or 0."""

    @property
    def starves(self) -> bool:
        """Whether the transaction should reserve what it reads."""
        return self._tries >= RESERVE_AFTER and self._now() - self._start >= RESERVE_AFTER_S

    def reserve(self, seen: int) -> int:
        """Return the reservation's name. The older the transaction, the lower: it then goes first."""
        if not self.reservation:
            self.reservation = (seen << NAME_BITS) + 2 + self._environment.rng.randrange((1 << NAME_BITS) - 2)
        return self.reservation

    @property
    def reserve_s(self) -> float:
        """How long to reserve keys: for an attempt like the last one, and some more."""
        return min(2 * self._lasted_s + 0.1, RESERVE_S)

    @property
    def left_s(self) -> float:
        """The time left for the next attempt."""
        return max(self._deadline - self._now(), 0.001)

    def pause(self, conflict: Aborted) -> float:
        """Return the pause after a conflict. Raises `Aborted` if no time is left.

        Mostly it is 0: the aborted transaction knows the current values, and can commit with one more message
        while others still read. Every `AT_ONCE` conflicts, transactions that only disturb each other pause.
        """
        self._tries += 1
        now = self._now()
        self._lasted_s = now - self._began
        pause = 0.0
        if self._tries % AT_ONCE == 0:
            pause = backoff(min(self._tries // AT_ONCE, CONFLICT_TRIES), self._environment)
        self._began = now + pause
        if self._began >= self._deadline:
            raise Aborted(
                f"still in conflict after {self._tries} attempts in {self._timeout_s:g} s: {conflict}"
            ) from conflict
        return pause


def pause(seconds: float) -> Plan[None]:
    """Let some time pass."""
    yield Wait(seconds)
