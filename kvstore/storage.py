"""A node's disk: the log that promises wait for, and the state that deliveries make, each in LMDB.

Nothing here makes the loop that calls it wait. Both stores gather what they are given; `pump`, at the end of
each turn of the loop, begins a transaction if none is under way, and does its puts in the loop (py-lmdb gives
up the interpreter lock at every put, so that a thread that did them would starve beside a busy loop). Then
one thread for each store commits it, which is the only wait for a disk. What is gathered meanwhile goes with
the next commit. Callbacks come *from those threads*: the receiver passes them on to its loop, which pumps.

A disk that fails (it is full, it gives errors) is not tried again: after a failed sync nobody knows what is
on it. The store says so once to `on_failure`, and then at every call. What was durable is there at the next
start.
"""

from __future__ import annotations

import fcntl
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

import lmdb

from kvstore import layout
from kvstore.layout import (
    DISK,
    INCARNATION,
    LOCK,
    LOG,
    LOG_BASES,
    LOG_DATABASES,
    LOG_ROWS,
    META,
    PIECE_BYTES,
    STATE,
    STATE_CLIENTS,
    STATE_DATABASES,
    STATE_DELIVERIES,
    STATE_PLACES,
    STATE_POSITIONS,
    BadSnapshot,
    Durability,
    Identity,
    Ids,
    Left,
    LostDisk,
    Row,
    StorageError,
)
from kvstore.ports import NodeId
from kvstore.records import Fold, decode, encode
from multicast.delivered import DeliveredIds
from multicast.durable import Checkpoint, Durable, Record
from multicast.errors import InvariantBroken
from multicast.messages import Delivery
from multicast.types import NO_TIMESTAMP, ClientId, GroupId, MessageId, Timestamp

__all__ = [
    "BadSnapshot",
    "Disk",
    "Identity",
    "LmdbLog",
    "LmdbState",
    "LostDisk",
    "StorageError",
    "create",
    "open",
]

MAP_BYTES: Final = 64 << 20
"""What an environment may grow to before its map is doubled."""

FOLD_BYTES: Final = 4 << 20
"""Rows of a group beyond this, and beyond four times what they amount to, are folded into one."""

ROW_BYTES: Final = 512
"""What a row counts for at least: many small ones take long to load."""

SLICE: Final = 200
"""Deliveries, puts and deletes that one `pump` does for the state; folded rows that one commit of the log
deletes."""

RUN_BYTES: Final = 64 << 10
"""Payloads of several deliveries that are kept as one row."""

PLACED_SLICE: Final = 1024
"""Deliveries that the state's places may yet have to hear of: the loop is not to wait while they do."""

Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Puts: TypeAlias = Generator[int, None, None]
Steps: TypeAlias = Callable[[Transaction], Puts]
"""Fills a transaction; each step says how many puts it was. It may have to begin again, in another one."""

OnFailure: TypeAlias = Callable[[StorageError], None]


def _commit(transaction: Transaction) -> None:
    """The only call that waits for a disk. Tests put something slow or broken in its place."""
    transaction.commit()


# An environment and its thread


@dataclass(slots=True)
class _Job:
    """A transaction that is under way."""

    steps: Steps
    then: Callable[[bool], None]
    """Called in the thread, when the commit is done (True), or must be done again in a larger map."""
    filling: tuple[Transaction, Puts] | None = None
    """While it is in the loop's hands."""
    finished: bool = False
    full: bool = False


class _Environment:
    """One LMDB environment: one write transaction at a time, begun in the loop and committed in a thread.

    It is opened without LMDB's locks, since its lock for writers belongs to the thread that began. That is
    allowed to whoever sees to it that there is one writer, and that no reader is older than the last commit
    when a write transaction begins. So a reader lives no longer than a call; and while the thread commits,
    when it may be writing the very page that a new reader looks at first, all use one that was begun before.
    """

    def __init__(
        self, path: Path, databases: Iterable[bytes], identity: Identity, on_failure: OnFailure
    ) -> None:
        self.path = path
        self._on_failure = on_failure
        self._env = _open_environment(path, identity.durability, create=False)
        try:
            self._databases = {name: self._env.open_db(name, create=False) for name in databases}
            with self._env.begin() as transaction:
                value = transaction.get(INCARNATION, b"", db=self._databases[META])
            layout.check_incarnation(path, identity, value)
        except lmdb.Error as error:
            self._env.close()
            raise StorageError(f"{path} is not what it should be: {error}") from error
        except StorageError:
            self._env.close()
            raise
        self._failure: StorageError | None = None
        self._job: _Job | None = None
        self._reader: Transaction | None = None
        self._closer: int | None = None
        self._jobs: SimpleQueue[tuple[_Job, Transaction] | None] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._work, name=f"commit {path}", daemon=True)
        self._thread.start()

    def __getitem__(self, database: bytes) -> lmdb._Database:
        return self._databases[database]

    def check(self) -> None:
        """Raise if the disk has failed, is closed, or is being closed by another thread."""
        if self._closer is not None and self._closer != threading.get_ident():
            raise StorageError(f"{self.path} is closed")
        if self._failure is not None:
            raise StorageError(str(self._failure)) from self._failure

    @property
    def failed(self) -> bool:
        """Whether nothing more can be written."""
        return self._failure is not None

    @property
    def busy(self) -> bool:
        """Whether a transaction is under way."""
        return self._job is not None

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """What is committed. Not to be kept beyond this turn of the loop."""
        self.check()
        if self._reader is not None:
            yield self._reader
        else:
            with self._env.begin() as transaction:
                yield transaction

    def start(self, steps: Steps, then: Callable[[bool], None]) -> None:
        """Begin a transaction, which `advance` fills."""
        self._job = _Job(steps, then)
        self._begin(self._job)

    def advance(self, puts: int | None = None) -> bool:
        """Do so many puts, or all, of the transaction under way. Whether there is more for the loop to do."""
        self.check()
        job = self._job
        if job is None:
            return False
        if job.filling is None:
            if not job.finished:
                return False
            self._end_reader()
            if not job.full:
                self._job = None
                return False
            self._grow()
            self._begin(job)
        try:
            return self._fill(job, puts)
        except lmdb.MapFullError:
            self._abort(job)
            self._grow()
            self._begin(job)
            return True
        except BaseException as error:  # whatever it is, half a transaction must not be committed
            self._abort(job)
            self.fail(error)
            if isinstance(error, lmdb.Error):
                self.check()
            raise

    def _begin(self, job: _Job) -> None:
        try:
            transaction = self._env.begin(write=True)
        except lmdb.Error as error:
            self.fail(error)
            self.check()
            raise
        job.filling = (transaction, job.steps(transaction))
        job.finished = job.full = False

    def _abort(self, job: _Job) -> None:
        if job.filling is not None:
            transaction, steps = job.filling
            job.filling = None
            steps.close()  # its cursors go first
            transaction.abort()

    def _fill(self, job: _Job, puts: int | None) -> bool:
        assert job.filling is not None
        transaction, steps = job.filling
        done = 0
        for count in steps:
            done += count
            if puts is not None and done >= puts:
                return True
        self._reader = self._env.begin()
        job.filling = None
        self._idle.clear()
        self._jobs.put((job, transaction))
        return False

    def _end_reader(self) -> None:
        if self._reader is not None:
            self._reader.abort()
            self._reader = None

    def _grow(self) -> None:
        """Double the map. No transaction may be open: neither ours nor a reader's."""
        try:
            self._env.set_mapsize(2 * self._env.info()["map_size"])
        except lmdb.Error as error:
            self.fail(error)
            self.check()

    def _work(self) -> None:
        """The thread."""
        while (found := self._jobs.get()) is not None:
            job, transaction = found
            try:
                _commit(transaction)
            except lmdb.MapFullError:
                job.full = True
            except (lmdb.Error, OSError) as error:
                self.fail(error)
                self._idle.set()
                continue
            job.finished = True
            self._idle.set()
            if self._closer is None:
                job.then(not job.full)

    def fail(self, error: BaseException) -> None:
        """Nothing more may be written. Whichever thread it is, this is said once."""
        if self._failure is None:
            failure = StorageError(f"{self.path} has failed: {error}")
            failure.__cause__ = error
            self._failure = failure
            if self._closer is None:
                self._on_failure(failure)

    def wait(self) -> None:
        """Until the thread has nothing to do. Only for closing: nobody else gets in, or is told anything."""
        self._closer = threading.get_ident()
        self._idle.wait()

    def close(self) -> bool:
        """Close, and say whether all that was committed is durable. What is not in the thread yet is lost."""
        self.wait()
        self._jobs.put(None)
        self._thread.join()
        if self._job is not None:
            self._abort(self._job)
            self._job = None
        self._end_reader()
        if not self.failed:
            try:
                self._env.sync(True)  # noqa: FBT003 - LMDB calls it `force`
            except lmdb.Error as error:
                self.fail(error)
        self._env.close()
        whole = not self.failed
        self._failure = self._failure or StorageError(f"{self.path} is closed")
        return whole


def _open_environment(path: Path, durability: Durability, *, create: bool) -> lmdb.Environment:
    """The map is not written through: a write to a full disk would be a signal then, and not an error."""
    sync = durability == "fsync"
    data = path / "data.mdb"
    size = data.stat().st_size if data.exists() else 0
    try:
        return lmdb.open(
            str(path),
            map_size=max(MAP_BYTES, 2 * size),
            max_dbs=max(len(LOG_DATABASES), len(STATE_DATABASES)),
            create=create,
            lock=False,
            sync=sync,
            metasync=sync,
        )
    except lmdb.Error as error:
        raise StorageError(f"{path} cannot be opened: {error}") from error


# The log


@dataclass(slots=True)
class _Rows:
    """What the log has of a group."""

    fold: Fold = field(default_factory=Fold)
    base_bytes: int = 0
    row_bytes: int = 0
    """Of the rows after the base, where small ones count for more."""


class LmdbLog:
    """The log of all groups of a node. See `kvstore.ports.Log`.

    All that one commit has for a group is one row. Now and then the rows of a group are folded into one that
    amounts to the same, its base, so that the log grows with what is in flight and not with what was ever
    delivered. A base is written at once: where very much is in flight, that is a stall of some ten
    milliseconds for each megabyte. The rows that it replaces are deleted by and by.
    """

    def __init__(
        self, path: Path, identity: Identity, on_durable: Callable[[int], None], on_failure: OnFailure
    ) -> None:
        self._env = _Environment(path, LOG_DATABASES, identity, on_failure)
        self._on_durable = on_durable
        self._groups: dict[GroupId, _Rows] = {}
        self._gathered: dict[GroupId, list[Record]] = {}
        self._loaded: dict[GroupId, Durable] = {}
        """What was read, until something is written."""
        self._folded: dict[GroupId, int] = {}
        """Rows up to this number may be deleted."""
        try:
            self._number = self._started = self.durable = self._last()
        except StorageError:
            self._env.close()
            raise

    def _last(self) -> int:
        """The highest number on the disk."""
        highest = 0
        with self._env.read() as transaction:
            for key, value in transaction.cursor(self._env[LOG_BASES]):
                group = layout.group_of_key(key, f"{self._env.path}, bases")
                number, _ = layout.unseal_base(value, self._where(group, "base"))
                highest = max(highest, number)
                self._folded[group] = number
            cursor = transaction.cursor(self._env[LOG_ROWS])
            found = cursor.first()
            while found:
                group = layout.group_of_key(cursor.key(), f"{self._env.path}, rows")
                found = cursor.set_range(layout.row_key(GroupId(group + 1), 0))
                if cursor.prev() if found else cursor.last():
                    highest = max(highest, layout.number_of_key(cursor.key(), self._where(group, "rows")))
                found = found and cursor.next()
        return highest

    def _where(self, group: GroupId, what: str) -> str:
        return f"{self._env.path}, group {group}, {what}"

    def load(self, group: GroupId) -> Durable:
        """What the durable records of a group amount to. Until something is written, they are read once."""
        if group not in self._loaded:
            rows = self._load(group)
            self._groups.setdefault(group, rows)
            self._loaded[group] = rows.fold.durable()
        return self._loaded[group]

    def _load(self, group: GroupId) -> _Rows:
        rows = _Rows()
        fold = rows.fold
        base = 0
        where = self._where(group, "base")
        try:
            with self._env.read() as transaction:
                value = transaction.get(layout.group_key(group), db=self._env[LOG_BASES])
                if value is not None:
                    rows.base_bytes = len(value)
                    base, data = layout.unseal_base(value, where)
                    decode(data, fold, where)
                cursor = transaction.cursor(self._env[LOG_ROWS])
                prefix = layout.group_key(group)
                found = cursor.set_range(layout.row_key(group, base + 1))
                while found and cursor.key().startswith(prefix):
                    where = self._where(group, "rows")
                    where = self._where(group, f"row {layout.number_of_key(cursor.key(), where)}")
                    value = cursor.value()
                    decode(layout.unseal(value, where), fold, where)
                    rows.row_bytes += max(len(value), ROW_BYTES)
                    found = cursor.next()
        except InvariantBroken as error:
            raise StorageError(f"{where}: {error}") from error
        return rows

    def write(self, records: Mapping[GroupId, Sequence[Record]]) -> int:
        """Gather a batch, for the next commit that `pump` begins."""
        self._env.check()
        self._loaded.clear()
        for group, batch in records.items():
            self._gathered.setdefault(group, []).extend(batch)
        self._number += 1
        return self._number

    def pump(self) -> None:
        """Begin a commit of what was gathered, if none is under way. For the end of each turn."""
        env = self._env
        while True:
            while env.advance():
                pass
            if env.busy or self._started == self._number:
                return
            self._start()

    def _start(self) -> None:
        number = self._number
        gathered, self._gathered = self._gathered, {}
        try:
            rows = [self._row(group, number, records) for group, records in gathered.items()]
        except BaseException as error:  # some groups may have been folded, but none is written
            self._env.fail(error)
            raise
        self._started = number
        self._env.start(partial(self._puts, rows), partial(self._done, number))

    def _row(self, group: GroupId, number: int, records: Sequence[Record]) -> tuple[bytes, bytes, bytes]:
        """A database, a key and a value: these records, or all that there are."""
        rows = self._groups.get(group)
        if rows is None:
            rows = self._groups[group] = self._load(group)
        value = layout.seal(encode(records, rows.fold))
        rows.row_bytes += max(len(value), ROW_BYTES)
        if rows.row_bytes <= max(FOLD_BYTES, 4 * rows.base_bytes):
            return LOG_ROWS, layout.row_key(group, number), value
        base = layout.seal_base(number, encode(rows.fold.records(), Fold()))
        rows.base_bytes, rows.row_bytes = len(base), 0
        self._folded[group] = number
        return LOG_BASES, layout.group_key(group), base

    def _puts(self, rows: Sequence[tuple[bytes, bytes, bytes]], transaction: Transaction) -> Puts:
        for database, key, value in rows:
            transaction.put(key, value, db=self._env[database])
        yield len(rows)
        left = SLICE
        for group, number in list(self._folded.items()):
            last = layout.row_key(group, number)
            with transaction.cursor(self._env[LOG_ROWS]) as cursor:
                found = cursor.set_range(layout.group_key(group))
                while found and left and cursor.key() <= last:
                    cursor.delete()
                    found = bool(cursor.key())
                    left -= 1
            if left:
                del self._folded[group]
        yield SLICE - left

    def _done(self, number: int, whole: bool) -> None:  # noqa: FBT001 - an outcome
        """In the thread."""
        if whole:
            self.durable = number
        self._on_durable(self.durable)

    def close(self) -> bool:
        """Write what was gathered, and close. Waits for the disk. Whether all of it is durable."""
        while not self._env.failed:
            self._env.wait()
            try:
                self.pump()
            except StorageError:
                break
            if not self._env.busy:
                self.durable = self._number
                break
        return self._env.close()


# The state


class _Client:
    __slots__ = ("above", "low")

    def __init__(self, low: int) -> None:
        self.low = low
        self.above: dict[int, list[tuple[int, Timestamp]]] = {}
        """By sequence number: digests and places."""


class _Places:
    """`DeliveredIds`, with the place of each delivery, and with what has changed since it was last taken."""

    __slots__ = ("_clients", "changed_lows", "changed_places")

    def __init__(self, ids: Ids = ()) -> None:  # type: ignore[assignment]
        self._clients: dict[ClientId, _Client] = {}
        self.changed_places: dict[MessageId, Timestamp | None] = {}
        """What to put, and (None) what to delete."""
        self.changed_lows: dict[ClientId, int] = {}
        for client, low, above in ids:
            known = self._clients[client] = _Client(low)
            for sequence, digest, place in sorted(above, key=lambda row: row[2]):
                known.above.setdefault(sequence, []).append((digest, place))

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """As `DeliveredIds.add` for each: what is below the last watermark of its client is not kept anyway.

        So watermarks come first, and most deliveries of a long run cost next to nothing.
        """
        lows: dict[ClientId, int] = {}
        for delivery in deliveries:
            client = delivery.mid.client
            if delivery.ack_below > lows.get(client, -1):
                lows[client] = delivery.ack_below
        clients, changed = self._clients, self.changed_places
        for client, low in lows.items():
            known = clients.get(client)
            if known is None:
                known = clients[client] = _Client(0)
            if low > known.low:
                self._pass(client, known, low)
            lows[client] = known.low
        for delivery in deliveries:
            client, sequence, digest = mid = delivery.mid
            if sequence >= lows[client]:
                clients[client].above.setdefault(sequence, []).append((digest, delivery.global_ts))
                changed[mid] = delivery.global_ts

    def _pass(self, client: ClientId, known: _Client, low: int) -> None:
        """Forget what is below the new watermark."""
        above = known.above
        passed: Iterable[int] = range(known.low, low)
        if low - known.low > len(above):
            passed = [sequence for sequence in above if sequence < low]
        changed = self.changed_places
        for sequence in passed:
            for digest, _ in above.pop(sequence, ()):
                mid = MessageId(client, sequence, digest)
                if changed.pop(mid, None) is None:
                    changed[mid] = None
        known.low = self.changed_lows[client] = low

    def place(self, mid: MessageId) -> Timestamp:
        """Where the message was delivered; bottom if that is not known, or not any more."""
        known = self._clients.get(mid.client)
        if known is not None:
            for digest, place in known.above.get(mid.sequence, ()):
                if digest == mid.digest:
                    return place
        return NO_TIMESTAMP

    def ids(self) -> Ids:
        """Everything, in a fixed order."""
        found = []
        for client, known in sorted(self._clients.items()):
            above = sorted(known.above.items())
            found.append((client, known.low, [(s, *delivery) for s, each in above for delivery in each]))
        return found

    def delivered(self) -> DeliveredIds:
        """Without the places."""
        delivered = DeliveredIds()
        for client, low, above in self.ids():
            if low:
                delivered.add(MessageId(client, low - 1, 0), low)
            for sequence, digest, _ in above:
                delivered.add(MessageId(client, sequence, digest), 0)
        return delivered

    def take(self) -> tuple[dict[MessageId, Timestamp | None], dict[ClientId, int]]:
        """What has changed, for a commit."""
        changed = self.changed_places, self.changed_lows
        self.changed_places, self.changed_lows = {}, {}
        return changed


@dataclass(slots=True)
class _Change:
    """What a commit does to a group."""

    position: Timestamp
    count: int
    deliveries: list[Delivery]
    places: dict[MessageId, Timestamp | None]
    lows: dict[ClientId, int]
    installed: int
    replace: bool
    """Whether everything that was there goes first."""

    def add(self, later: _Change) -> _Change:
        """Both in one commit."""
        if later.replace:
            return later
        deliveries, places = self.deliveries + later.deliveries, self.places | later.places
        lows = self.lows | later.lows
        return _Change(later.position, later.count, deliveries, places, lows, later.installed, self.replace)


@dataclass(slots=True)
class _Group:
    """What the state has of a group."""

    position: Timestamp
    """Of the last delivery that was applied."""
    count: int
    """How many deliveries that is."""
    places: _Places
    committed: Timestamp
    """Deliveries up to here are on the disk."""
    deliveries: list[Delivery] = field(default_factory=list)
    """Those that follow."""
    placed: int = 0
    """How many of them `places` knows."""
    requested: int = 0
    """How many of them go with a commit that was asked for already."""
    installed: int = 0
    """How many snapshots have replaced it."""
    replace: bool = False
    """Whether the last of them is not yet part of a commit."""

    def settled(self) -> _Places:
        """The places, up to date. Few ask for them, so they hear of many deliveries at once."""
        if self.placed < len(self.deliveries):
            self.places.add(self.deliveries[self.placed :])
            self.placed = len(self.deliveries)
        return self.places

    def add(self, deliveries: Sequence[Delivery], position: Timestamp) -> None:
        """More deliveries, up to a position."""
        self.deliveries += deliveries
        self.count += len(deliveries)
        self.position = position
        if len(self.deliveries) - self.placed >= PLACED_SLICE:
            self.settled()

    def take(self) -> _Change:
        """What the next commit has to do."""
        changed = self.settled().take()
        deliveries = self.deliveries[self.requested :]
        change = _Change(self.position, self.count, deliveries, *changed, self.installed, self.replace)
        self.requested, self.replace = len(self.deliveries), False
        return change

    def done(self, change: _Change) -> None:
        """It is durable."""
        if change.installed == self.installed:
            written = len(change.deliveries)
            self.committed = change.position
            del self.deliveries[:written]
            self.placed -= written
            self.requested -= written


def _runs(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
    """Runs of bounded length, and, but for single deliveries, of bounded size."""
    start = 0
    while start < len(deliveries):
        run = deliveries[start : start + SLICE]
        ends = accumulate([len(delivery.payload) for delivery in run])
        length = max(1, bisect_right(list(ends), RUN_BYTES))
        yield run[:length]
        start += length


def _row(run: Sequence[Delivery]) -> Row:
    return run[-1].global_ts, layout.seal_run(run)


class LmdbState:
    """The state of a plain log, which keeps every delivery. See `kvstore.ports.State`.

    Delivered ids are kept as the places of deliveries and a low watermark for each client, so that a commit
    writes only what has changed. They follow from the deliveries, as those of a `Checkpoint` do.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        on_committed: Callable[[Mapping[GroupId, Timestamp]], None],
        on_failure: OnFailure,
    ) -> None:
        self._env = _Environment(path, STATE_DATABASES, identity, on_failure)
        self._on_committed = on_committed
        self._groups: dict[GroupId, _Group] = {}
        self._requests: deque[tuple[int, dict[GroupId, _Change]]] = deque()
        self._writing: dict[GroupId, _Change] | None = None
        self._durable = 0

    def _where(self, group: GroupId, what: str) -> str:
        return f"{self._env.path}, group {group}, {what}"

    # Reading

    def load(self, group: GroupId) -> Checkpoint:
        """Position and delivered ids, as last committed."""
        found = self._load(group)
        self._groups.setdefault(group, found)
        return Checkpoint(found.position, found.places.delivered())

    def _group(self, group: GroupId) -> _Group:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = self._load(group)
        return found

    def _load(self, group: GroupId) -> _Group:
        position, count = NO_TIMESTAMP, 0
        with self._env.read() as transaction:
            value = transaction.get(layout.group_key(group), db=self._env[STATE_POSITIONS])
            if value is not None:
                position, count = layout.unseal_position(value, self._where(group, "position"))
            where = self._where(group, "clients")
            clients: dict[ClientId, tuple[int, list[tuple[int, int, Timestamp]]]] = {}
            for key, value in self._range(transaction, STATE_CLIENTS, layout.group_key(group)):
                client = ClientId(layout.number_of_key(key, where))
                clients[client] = (layout.unseal_number(value, where), [])
            where = self._where(group, "places")
            for key, value in self._range(transaction, STATE_PLACES, layout.group_key(group)):
                client, sequence, digest = layout.mid_of_key(key, where)
                place = Timestamp(layout.unseal_number(value, where))
                clients.setdefault(client, (0, []))[1].append((sequence, digest, place))
        places = _Places([(client, low, above) for client, (low, above) in clients.items()])
        return _Group(position, count, places, position)

    def _range(
        self, transaction: Transaction, database: bytes, start: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows of the group that the key begins with, from the key on."""
        cursor = transaction.cursor(self._env[database])
        if cursor.set_range(start):
            for key, value in cursor:
                if key[:2] != start[:2]:
                    return
                yield key, value

    def place(self, group: GroupId, mid: MessageId) -> Timestamp:
        """Where the group delivered the message; bottom once the client has acknowledged that it knows."""
        return self._group(group).settled().place(mid)

    def count(self, group: GroupId) -> int:
        """How many messages the group has delivered."""
        return self._group(group).count

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: float = inf) -> list[Delivery]:
        """What the group delivered after this, in order; at most so many, and at most so many bytes (but at
        least one).
        """
        known = self._group(group)
        found: list[Delivery] = []
        for run in chain(self._stored_runs(group, after, known.committed), [known.deliveries]):
            for delivery in run:
                if delivery.global_ts <= after:
                    continue
                size -= len(delivery.payload)
                if len(found) == count or (found and size < 0):
                    return found
                found.append(delivery)
        return found

    def _stored_runs(self, group: GroupId, after: Timestamp, upto: Timestamp) -> Iterator[Sequence[Delivery]]:
        for last, value in self._stored(group, after, upto):
            yield layout.unseal_run(value, last, self._where(group, f"deliveries up to {last}"))

    def _stored(self, group: GroupId, after: Timestamp, upto: Timestamp) -> Iterator[Row]:
        """What is on the disk after the one and up to the other.

        Runs are read one at a time; if a snapshot was installed meanwhile, they are not cut as they were.
        """
        where = self._where(group, "deliveries")
        while after < upto:
            with self._env.read() as transaction:
                rows = self._range(transaction, STATE_DELIVERIES, layout.run_key(group, Timestamp(after + 1)))
                key, value = next(rows, (None, b""))
            if key is None:
                return
            last = Timestamp(layout.number_of_key(key, where))
            if last > upto or layout.run_follows(value, f"{where} up to {last}") < after:
                run = layout.unseal_run(value, last, f"{where} up to {last}")
                last, value = _row([delivery for delivery in run if after < delivery.global_ts <= upto])
            yield last, value
            after = last

    # Writing

    def apply(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Deliveries, in order."""
        self._env.check()
        known = self._group(group)
        position = known.position
        for delivery in deliveries:
            if delivery.previous_ts != position:
                raise InvariantBroken(
                    f"{delivery.mid} follows {delivery.previous_ts}, but group {group} is at {position}"
                )
            position = delivery.global_ts
        known.add(deliveries, position)

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        """Commit what was applied to these groups, once the log's batch `after` is durable."""
        self._env.check()
        for group, wanted in positions.items():
            position = self._group(group).position
            if wanted != position:
                raise InvariantBroken(f"group {group} is to be committed at {wanted}, but is at {position}")
        self._requests.append((after, {group: self._group(group).take() for group in positions}))

    def log_durable(self, number: int) -> None:
        """The log's batches up to this one are durable."""
        self._durable = max(self._durable, number)

    def pump(self) -> bool:
        """Do some of what commits have to do. True if there is more of it to do at once."""
        if self._env.advance(SLICE):
            return True
        if self._env.busy:
            return False
        if self._writing is not None:
            for group, change in self._writing.items():
                self._groups[group].done(change)
            self._writing = None
        changes: dict[GroupId, _Change] = {}
        while self._requests and self._requests[0][0] <= self._durable:
            _, later = self._requests.popleft()
            for group, change in later.items():
                changes[group] = changes[group].add(change) if group in changes else change
        if not changes:
            return False
        self._writing = changes
        positions = {group: change.position for group, change in changes.items()}
        self._env.start(partial(self._puts, changes), partial(self._done, positions))
        return True

    def _puts(self, changes: Mapping[GroupId, _Change], transaction: Transaction) -> Puts:
        for group, change in changes.items():
            if change.replace:
                yield from self._clear(group, transaction)
            for run in _runs(change.deliveries):
                key = layout.run_key(group, run[-1].global_ts)
                transaction.put(key, layout.seal_run(run), db=self._env[STATE_DELIVERIES])
                yield len(run)
            for mid, place in change.places.items():
                key = layout.place_key(group, mid)
                if place is None:
                    transaction.delete(key, db=self._env[STATE_PLACES])
                else:
                    transaction.put(key, layout.seal_number(place), db=self._env[STATE_PLACES])
                yield 1
            for client, low in change.lows.items():
                key = layout.client_key(group, client)
                transaction.put(key, layout.seal_number(low), db=self._env[STATE_CLIENTS])
                yield 1
            position = layout.seal_position(change.position, change.count)
            transaction.put(layout.group_key(group), position, db=self._env[STATE_POSITIONS])
            yield 1

    def _clear(self, group: GroupId, transaction: Transaction) -> Puts:
        prefix = layout.group_key(group)
        for database in (STATE_DELIVERIES, STATE_PLACES, STATE_CLIENTS):
            with transaction.cursor(self._env[database]) as cursor:
                found = cursor.set_range(prefix)
                while found and cursor.key().startswith(prefix):
                    found = cursor.delete()
                    yield 1

    def _done(self, positions: Mapping[GroupId, Timestamp], whole: bool) -> None:  # noqa: FBT001 - an outcome
        """In the thread. What did not fit into the map is done again by the next `pump`."""
        if whole:
            self._on_committed(positions)

    # Snapshots

    def snapshot(self, group: GroupId) -> Iterator[bytes]:
        """The group's state at the time of this call, in pieces.

        A delivery never changes, and up to a position all replicas have the same ones. So pieces are read as
        they are asked for, whatever is applied, committed or installed meanwhile.
        """
        known = self._group(group)
        head = layout.snapshot_head(known.position, known.settled().ids())
        return self._pieces(group, head, known.committed, list(known.deliveries))

    def _pieces(
        self, group: GroupId, head: bytes, committed: Timestamp, deliveries: list[Delivery]
    ) -> Iterator[bytes]:
        piece = bytearray(head)
        for last, value in chain(self._stored(group, NO_TIMESTAMP, committed), map(_row, _runs(deliveries))):
            piece += layout.snapshot_row(last, value)
            while len(piece) >= PIECE_BYTES:
                yield bytes(piece[:PIECE_BYTES])
                del piece[:PIECE_BYTES]
        while piece:
            yield bytes(piece[:PIECE_BYTES])
            del piece[:PIECE_BYTES]

    def install(self, group: GroupId, pieces: Iterable[bytes], checkpoint: Checkpoint) -> None:
        """Replace the group's state by a snapshot; durable with the next commit, as a whole."""
        self._env.check()
        where = f"the snapshot of group {group}"
        position, ids, deliveries = layout.read_snapshot(pieces, where)
        places = _Places(ids)
        if position != checkpoint.position:
            raise BadSnapshot(f"{where} is of {position}, but its checkpoint of {checkpoint.position}")
        if places.delivered() != checkpoint.delivered:
            raise BadSnapshot(f"{where} has other delivered ids than its checkpoint")
        for client, low, above in ids:
            places.changed_lows[client] = low
            for sequence, digest, place in above:
                places.changed_places[MessageId(client, sequence, digest)] = place
        count = len(deliveries)
        installed = self._group(group).installed + 1
        self._groups[group] = _Group(
            position, count, places, NO_TIMESTAMP, deliveries, count, 0, installed, replace=True
        )

    def close(self) -> bool:
        """Do the commits that need not wait for the log any more, and close. Whether all of it is durable."""
        while not self._env.failed:
            self._env.wait()
            try:
                while self.pump():
                    pass
            except StorageError:
                break
            if not self._env.busy:
                break
        return self._env.close()


# The disk


class Disk:
    """A node's disk, in use by this process only."""

    def __init__(self, path: Path, identity: Identity, log: LmdbLog, state: LmdbState, lock: int) -> None:
        self.path = path
        self.identity = identity
        self.log = log
        self.state = state
        self._lock = lock

    def close(self) -> None:
        """Write what was gathered, and leave the disk clean, unless it has failed. Waits for the disk.

        No callback comes any more.
        """
        if self._lock < 0:
            return
        try:
            whole = self.log.close()
            if whole:
                self.state.log_durable(self.log.durable)
            whole = self.state.close() and whole
            if whole:
                layout.write_disk(self.path, self.identity, Left(clean=True, boot=layout.boot_id()))
        finally:
            os.close(self._lock)
            self._lock = -1


def create(path: Path, identity: Identity) -> None:
    """Make a new disk in this directory, which may exist, but must not have one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path} cannot be made: {error.strerror}") from error
    for name in (DISK, LOG, STATE):
        if (path / name).exists():
            raise StorageError(f"{path} has a disk already, or what was left of one: {name}")
    lock = _lock(path)
    try:
        for name, databases in ((LOG, LOG_DATABASES), (STATE, STATE_DATABASES)):
            _create_environment(path / name, databases, identity)
        layout.write_disk(path, identity, Left())
        layout.sync_directory(path.parent)
    finally:
        os.close(lock)


def _create_environment(path: Path, databases: Iterable[bytes], identity: Identity) -> None:
    env = _open_environment(path, "fsync", create=True)
    try:
        for name in databases:
            env.open_db(name)
        with env.begin(write=True) as transaction:
            value = layout.seal_number(identity.incarnation)
            transaction.put(INCARNATION, value, db=env.open_db(META, transaction))
    except lmdb.Error as error:
        raise StorageError(f"{path} cannot be made: {error}") from error
    finally:
        env.close()
    layout.sync_directory(path)


def open(  # noqa: A001 - read as `storage.open`
    path: Path,
    cluster: str,
    node: NodeId,
    *,
    on_durable: Callable[[int], None],
    on_committed: Callable[[Mapping[GroupId, Timestamp]], None],
    on_failure: OnFailure,
) -> Disk:
    """Open a node's disk.

    `on_durable` gets the number of the log's last durable batch, maybe the same one again. `on_committed`
    gets the positions of a commit of the state. `on_failure` is told, once by each store, that it has failed.
    They may be called from any thread.

    Raises `LostDisk` if what the disk promised may be lost, and `StorageError` if it is not this node's, is
    in use, or cannot be read.
    """
    if not path.is_dir():
        raise StorageError(f"{path} has no disk: there is no such directory")
    lock = _lock(path)
    opened: list[LmdbLog | LmdbState] = []
    try:
        identity, left = layout.read_disk(path)
        boot = layout.boot_id()
        layout.check_owner(path, identity, cluster, node)
        layout.check_lost(path, identity, left, boot)
        opened.append(log := LmdbLog(path / LOG, identity, on_durable, on_failure))
        opened.append(state := LmdbState(path / STATE, identity, on_committed, on_failure))
        layout.write_disk(path, identity, Left(clean=False, boot=boot))
    except BaseException:
        for store in opened:
            store.close()
        os.close(lock)
        raise
    return Disk(path, identity, log, state, lock)


def _lock(path: Path) -> int:
    """Keep other processes away from the disk, until this one closes the file or ends."""
    file = path / LOCK
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"{file} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode(errors="replace") or "unknown"
        os.close(lock)
        raise StorageError(f"{path} is in use by process {owner}") from None
    except OSError as error:
        os.close(lock)
        raise StorageError(f"{file} cannot be locked: {error.strerror}") from error
    return lock
