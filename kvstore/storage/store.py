"""The state of a store: its tables, the checkpoints of its groups, and the last deliveries.

Tables are `StoredMap`s: a put is seen at once, and on the disk after a commit. A commit has all puts of a
group at the time it was requested, and its checkpoint as of then: a crash leaves exactly one commit of each
group. Those of several groups may be of different requests, as if the groups were on different nodes. The
last deliveries are kept for replicas that missed some, as many as `RING_BYTES` has room for; a replica that
has missed more gets a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakSet

import lmdb

from kvstore.machine.ordered import OrderedMap, Table
from kvstore.storage import checksum, lazy
from kvstore.storage.checkpoint_format import read_stream, seal_checkpoint, unseal_checkpoint
from kvstore.storage.checksum import seed_of
from kvstore.storage.delivery_snapshot import PIECE_BYTES
from kvstore.storage.environment import OnFailure, Puts, Transaction
from kvstore.storage.errors import BadSnapshot, DamagedRow, StorageError
from kvstore.storage.identity import Identity
from kvstore.storage.keys import (
    STATE_DELIVERIES,
    STORE_CHECKPOINTS,
    STORE_DATABASES,
    STORE_NODES,
    STORE_RINGS,
    group_key,
    number_of_key,
    run_key,
    table_name,
)
from kvstore.storage.lazy import LazyState, OnCommitted
from kvstore.storage.maps import Layer, StoredMap, combine
from kvstore.storage.marks import ASIDE, COPIED, GroupMarks
from kvstore.storage.ports import GroupCheckpoint, Origin
from kvstore.storage.rows import LmdbRows, MemoryRows
from kvstore.storage.run_format import unseal_run
from kvstore.storage.runs import Runs, check_chain, cut, pieces, row_of
from kvstore.storage.views import TablesView
from multicast.durable import Checkpoint
from multicast.errors import InvariantBroken
from multicast.messages import Delivery
from multicast.types import NO_TIMESTAMP, GroupId, ReplicaId, Timestamp

RING_BYTES: Final = 64 << 20
"""Bytes of deliveries that a group keeps."""

ROW_BYTES: Final = 512
"""The least that a run of deliveries counts for."""

RING_PAYLOAD: Final = 1 << 20
"""The ring begins anew behind a delivery with a payload of this size: every destination's ring would have it
once more, and such deliveries fill a ring soon anyway. A replica that was away for so long that no other has
the delivery in memory gets a snapshot."""

STEP_BYTES: Final = 256 << 10
"""Bytes of rows that are encoded at once: more would stall the loop."""

CHECK_ROWS: Final = 256
"""Rows that one step of a check reads."""

SORTED: Final = 4096
"""Keys sorted at once: neighbours are cheaper to put, but sorting all keys would stall the loop."""

_Map: TypeAlias = StoredMap[Any, Any]
_Layers: TypeAlias = dict[str, list[Layer[Any, Any]]]
"""By table, the oldest first."""


class _Ring(NamedTuple):
    """The range of deliveries on the disk."""

    oldest: Timestamp = NO_TIMESTAMP
    """The disk has all deliveries after this position."""
    size: int = 0


class _Installed(NamedTuple):
    """What replaces the whole state of a group: a snapshot, or nothing if it was dropped."""

    position: Timestamp
    tables: dict[str, MemoryRows]
    suspect: bool = False
    """Whether the rows that it replaces may be damaged, and out of order."""


@dataclass(slots=True)
class _PendingRows:
    """The changes of one group in a commit."""

    executed: Timestamp
    position: Timestamp
    checkpoint: bytes
    layers: _Layers
    deliveries: list[Delivery]
    installed: _Installed | None
    ring: _Ring = field(default_factory=_Ring)
    """The ring after this commit."""

    @property
    def size(self) -> int:
        """About how many bytes it writes: not more than the payloads that led to it, in most cases."""
        return sum([len(delivery.payload) for delivery in self.deliveries])

    def add(self, later: _PendingRows) -> _PendingRows:
        """Return both changes as one."""
        if later.installed is not None:
            return later
        layers = {name: self.layers.get(name, []) + later.layers.get(name, []) for name in self.layers}
        return _PendingRows(
            later.executed,
            later.position,
            later.checkpoint,
            layers,
            self.deliveries + later.deliveries,
            self.installed,
        )


@dataclass(slots=True)
class _GroupTables:
    """One group: its maps, and deliveries not yet committed."""

    maps: dict[str, _Map]
    rows: dict[str, LmdbRows]
    checkpoint_seed: int
    """Of the checksum of the group's checkpoint."""
    position: Timestamp
    """The position of the last delivery."""
    count: int
    """The number of deliveries up to `position`."""
    committed: Timestamp
    """Deliveries up to this position are on the disk, as far back as the ring goes."""
    ring: _Ring
    deliveries: list[Delivery] = field(default_factory=list)
    """The deliveries after `committed`."""
    requested: int = 0
    """The number of `deliveries` in commits that were requested already."""
    layers: _Layers = field(default_factory=dict)
    """Frozen layers that are not yet part of a requested commit."""
    installed: _Installed | None = None
    """The last installed snapshot, until it is on the disk."""
    suspect: bool = False
    """Whether the group's rows on the disk may be damaged, until they are replaced."""
    fresh: bool = False
    """Whether `installed` is not yet part of a requested commit."""
    views: WeakSet[TablesView] = field(default_factory=WeakSet)

    def freeze(self) -> None:
        """Freeze the top layers: what was put until now never changes again."""
        for name, each in self.maps.items():
            layer = each.freeze()
            if layer is not None:
                self.layers.setdefault(name, []).append(layer)

    def take(self, checkpoint: GroupCheckpoint) -> _PendingRows:
        """Return the changes for the next commit."""
        self.freeze()
        change = _PendingRows(
            checkpoint.checkpoint.executed,
            self.position,
            seal_checkpoint(checkpoint, self.count, self.checkpoint_seed),
            {name: self.layers.get(name, []) for name in self.maps},
            self.deliveries[self.requested :],
            self.installed if self.fresh else None,
        )
        self.layers = {}
        self.requested, self.fresh = len(self.deliveries), False
        return change

    def done(self, change: _PendingRows) -> None:
        """Forget changes that are on the disk."""
        self.ring = change.ring
        for name, layers in change.layers.items():
            self.maps[name].drop(layers)
        if change.installed is not None:
            for name, rows in change.installed.tables.items():
                self.maps[name].rebase(rows, self.rows[name])
        if self.installed is change.installed:
            if change.installed is not None:
                self.suspect = False
            self.installed = None
            written = len(change.deliveries)
            self.committed = change.position
            del self.deliveries[:written]
            self.requested -= written


class StoreState(LazyState[_PendingRows]):
    """The state of all groups of a node's store."""

    def __init__(
        self,
        path: Path,
        identity: Identity,
        on_committed: OnCommitted,
        on_failure: OnFailure,
        tables: Mapping[str, Table[Any, Any]],
    ) -> None:
        names = [table_name(name) for name in tables]
        super().__init__(path, STORE_DATABASES, identity, on_committed, on_failure, names)
        self._tables = tables
        self._groups: dict[GroupId, _GroupTables] = {}
        self._aside = GroupMarks(path.parent, ASIDE)
        self._copied = GroupMarks(path.parent, COPIED)

    # Reading

    def open(self, group: GroupId) -> tuple[GroupCheckpoint | None, Mapping[str, OrderedMap[Any, Any]]]:
        """Return the checkpoint last committed, if any, and the maps by the names of their tables.

        There is none while an installed snapshot, which `install` has returned the checkpoint of, or a drop
        is not on the disk.
        """
        checkpoint, _ = self._checkpoint(group)
        return checkpoint, self._group(group).maps

    def load(self, group: GroupId) -> Checkpoint:
        """Return the ordering side, as last committed. It is empty once that is dropped or replaced."""
        checkpoint, _ = self._checkpoint(group)
        return Checkpoint() if checkpoint is None else checkpoint.checkpoint

    def _checkpoint(self, group: GroupId) -> tuple[GroupCheckpoint | None, int]:
        known = self._groups.get(group)
        if known is not None and known.installed is not None:
            return None, 0  # the disk's is of the state that is replaced, and may be damaged
        reason = self._aside.get(group)
        if reason is not None:
            raise DamagedRow(f"{self._where(group, 'state')}: was set aside before a restart: {reason}")
        key = group_key(group)
        value = self._get(group, key, STORE_CHECKPOINTS)
        if value is None:
            return None, 0
        return unseal_checkpoint(value, self._where(group, "checkpoint"), seed_of(STORE_CHECKPOINTS, key))

    def _get(self, group: GroupId, key: bytes, database: bytes) -> bytes | None:
        try:
            return self._env.read().get(key, db=self._env[database])
        except lmdb.Error as error:
            raise self._unread(group, error) from error

    def _unread(self, group: GroupId, error: lmdb.Error) -> StorageError:
        """Return what an error of LMDB means: that its pages are damaged, unless the disk is closed."""
        self._env.check()
        return DamagedRow(f"{self._where(group, 'state')}: {error}")

    def _group(self, group: GroupId) -> _GroupTables:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = self._load(group)
        return found

    def _load(self, group: GroupId) -> _GroupTables:
        checkpoint, count = self._checkpoint(group)
        position = NO_TIMESTAMP if checkpoint is None else checkpoint.checkpoint.position
        return self._tables_of(group, position, count, self._ring(group))

    def _ring(self, group: GroupId) -> _Ring:
        key = group_key(group)
        value = self._get(group, key, STORE_RINGS)
        if value is None:
            return _Ring()
        where = self._where(group, "ring")
        return _Ring(*checksum.unseal_position(value, where, seed_of(STORE_RINGS, key)))

    def _tables_of(self, group: GroupId, position: Timestamp, count: int, ring: _Ring) -> _GroupTables:
        key = group_key(group)
        rows = {name: LmdbRows(self._env, table_name(name), group) for name in self._tables}
        maps = {
            name: StoredMap(table, rows[name], self._where(group, name), seed_of(table_name(name), key))
            for name, table in self._tables.items()
        }
        return _GroupTables(maps, rows, seed_of(STORE_CHECKPOINTS, key), position, count, position, ring)

    def count(self, group: GroupId) -> int:
        """Return the number of messages that the group has delivered."""
        return self._group(group).count

    def oldest(self, group: GroupId) -> Timestamp:
        """Return the lowest position after which `deliveries` has everything."""
        known = self._group(group)
        return known.ring.oldest if known.installed is None else known.installed.position

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: float = inf) -> list[Delivery]:
        """Return the group's deliveries after a position, in order: at most `count`, and at most `size` bytes
        (but at least one). Empty if the ring does not go back that far.
        """
        known = self._group(group)
        if after < self.oldest(group):
            return []
        try:
            return Runs(self._env, group).select(after, known.committed, known.deliveries, count, size)
        except lmdb.Error as error:
            raise self._unread(group, error) from error

    # Checking

    def origin(self, group: GroupId) -> Origin | None:
        """Return where the group's state was copied from, unless it is confirmed."""
        text = self._copied.get(group)
        if text is None:
            return None
        try:
            number, incarnation, position = map(int, text.split())
        except ValueError:  # damaged: it is a copy of an unknown member
            number, incarnation, position = 0, 0, 0
        return Origin(ReplicaId(group, number, incarnation), Timestamp(position))

    def note_origin(self, group: GroupId, origin: Origin | None) -> None:
        """Note, durably, that the group's state is about to be a copy; or that it is confirmed."""
        if origin is None:
            self._copied.remove(group)
        else:
            source, position = origin
            self._copied.put(group, f"{source.number} {source.incarnation} {position}")

    def rows(self) -> int:
        """Return about how many rows there are, of all groups."""
        transaction = self._env.read()
        names = [*map(table_name, self._tables), STATE_DELIVERIES, STORE_NODES]
        return sum(transaction.stat(self._env[name])["entries"] for name in names)

    def check_rows(self, group: GroupId) -> Iterator[int]:
        """Check all rows of the group on the disk: checksums, decoding and order. Raises `DamagedRow`.

        Steps of at most `CHECK_ROWS` rows or `rows.CHUNK_BYTES` bytes, unless a single row has more. A state
        that is about to be replaced is not looked at.
        """
        known = self._group(group)
        try:
            for name, each in known.maps.items():
                start, more = b"", True
                while more and known.installed is None:
                    found, more = known.rows[name].chunk(start, None, CHECK_ROWS)
                    for key, stored in found:
                        each.check(key, stored)
                    start = found[-1][0] + b"\0" if found else start
                    yield len(found)
            if known.installed is None:
                self._checkpoint(group)
                self._ring(group)
                yield 2
            after = NO_TIMESTAMP
            while known.installed is None:
                upto = known.committed
                last, value = next(Runs(self._env, group).rows(after, upto), (upto, None))
                if value is None:
                    break
                unseal_run(value, group, last, self._where(group, f"deliveries up to {last}"))
                after = last
                yield 1
        except lmdb.Error as error:
            raise self._unread(group, error) from error

    # Writing

    def remember(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Keep deliveries, in order, for replicas that miss them."""
        self._env.check()
        known = self._group(group)
        known.position = check_chain(group, known.position, deliveries)
        known.deliveries += deliveries
        known.count += len(deliveries)

    def commit(self, checkpoints: Mapping[GroupId, GroupCheckpoint], after: int) -> None:
        """Commit the puts and deliveries of these groups, once the log's batch `after` is durable."""
        self._env.check()
        for group, checkpoint in checkpoints.items():
            wanted, position = checkpoint.checkpoint.position, self._group(group).position
            if wanted != position:
                raise InvariantBroken(f"group {group} is to be committed at {wanted}, but is at {position}")
        self._request(
            after, {group: self._group(group).take(checkpoint) for group, checkpoint in checkpoints.items()}
        )

    def _puts(self, group: GroupId, change: _PendingRows, transaction: Transaction) -> Puts:
        known = self._groups[group]
        if change.installed is not None:
            yield from self._replace(group, change.installed, transaction)
        for name, layers in change.layers.items():
            if layers:
                yield from self._put_table(known, name, combine(layers), transaction)
        yield from self._put_ring(group, change, transaction)
        transaction.put(group_key(group), change.checkpoint, db=self._env[STORE_CHECKPOINTS])
        yield 1

    def _put_table(
        self, known: _GroupTables, name: str, layer: Layer[Any, Any], transaction: Transaction
    ) -> Puts:
        each, rows = known.maps[name], known.rows[name]
        rest = iter(layer.rows)
        length = 1
        while keys := sorted(islice(rest, SORTED)):
            start = 0
            while part := keys[start : start + length]:
                start += len(part)
                puts, deletes = each.encode(layer, part)
                size = sum([len(value) for _, value in puts])
                length = max(1, min(lazy.SLICE, len(part) * STEP_BYTES // (size + 1)))
                for view in known.views:
                    for key, _ in puts:
                        view.save(name, key, rows)
                    for key in deletes:
                        view.save(name, key, rows)
                rows.put(transaction, puts)
                for key in deletes:
                    rows.delete(transaction, key)
                yield max(len(part), lazy.SLICE * size // STEP_BYTES)

    def _put_ring(self, group: GroupId, change: _PendingRows, transaction: Transaction) -> Puts:
        """Put deliveries, and delete the oldest beyond `RING_BYTES`."""
        oldest, size = self._groups[group].ring
        if change.installed is not None:
            oldest, size = change.installed.position, 0
        deliveries = change.deliveries
        large = [index for index, each in enumerate(deliveries) if len(each.payload) >= RING_PAYLOAD]
        if large:
            oldest, size = deliveries[large[-1]].global_ts, 0
            deliveries = deliveries[large[-1] + 1 :]
            yield from self._clear_ring(group, transaction)
        for run in cut(deliveries):
            last, value = row_of(group, run)
            transaction.put(run_key(group, last), value, db=self._env[STATE_DELIVERIES])
            size += max(len(value), ROW_BYTES)
            yield len(run)
        where = self._where(group, "deliveries")
        with transaction.cursor(self._env[STATE_DELIVERIES]) as cursor:
            while size > RING_BYTES and cursor.set_range(group_key(group)):
                size -= max(len(cursor.value()), ROW_BYTES)
                oldest = Timestamp(number_of_key(cursor.key(), where))
                cursor.delete()
                yield 1
        change.ring = _Ring(oldest, size)
        key = group_key(group)
        value = checksum.seal_position(oldest, size, seed_of(STORE_RINGS, key))
        transaction.put(key, value, db=self._env[STORE_RINGS])

    def _clear_ring(self, group: GroupId, transaction: Transaction) -> Puts:
        """Delete all deliveries."""
        prefix = group_key(group)
        with transaction.cursor(self._env[STATE_DELIVERIES]) as cursor:
            while cursor.set_range(prefix) and cursor.key().startswith(prefix):
                cursor.delete()
                yield 1

    def _replace(self, group: GroupId, installed: _Installed, transaction: Transaction) -> Puts:
        """Delete all rows of the group, and put those of the snapshot."""
        for name, rows in self._groups[group].rows.items():
            if installed.suspect:
                yield from rows.clear(transaction)
            while not installed.suspect and (found := rows.first(transaction, lazy.SLICE)):
                for key, _ in found:
                    rows.delete(transaction, key)
                yield len(found)
            new = installed.tables[name]
            for start in range(0, len(new.keys), lazy.SLICE):
                part = slice(start, start + lazy.SLICE)
                rows.put(transaction, list(zip(new.keys[part], new.values[part], strict=True)))
                yield lazy.SLICE
        prefix = group_key(group)
        with transaction.cursor(self._env[STATE_DELIVERIES]) as cursor:
            found_run = cursor.first() if installed.suspect else cursor.set_range(prefix)
            while found_run:
                if cursor.key().startswith(prefix):
                    found_run = cursor.delete()
                elif installed.suspect:
                    found_run = cursor.next()
                else:
                    break
                yield 1

    def _finish(self, group: GroupId, change: _PendingRows) -> None:
        known = self._groups[group]
        known.done(change)
        if not known.suspect:
            self._aside.remove(group)

    # Snapshots

    def snapshot(self, group: GroupId, checkpoint: GroupCheckpoint) -> Iterator[bytes]:
        """Return the group's state at the time of this call, with this checkpoint, in pieces."""
        known = self._group(group)
        known.freeze()
        view = TablesView(seal_checkpoint(checkpoint, known.count), known.maps)
        known.views.add(view)
        return pieces(view.frames(), PIECE_BYTES)

    def install(
        self, group: GroupId, snapshot: Iterable[bytes], position: Timestamp | None = None
    ) -> GroupCheckpoint:
        """Replace the group's state by a snapshot; durable with the next commit, as a whole.

        The maps stay the same objects. Snapshots of the replaced state are given up.
        """
        self._env.check()
        where = f"the snapshot of group {group}"
        known = self._group(group)
        checkpoint, count, found = read_stream(snapshot, self._tables, where)
        if position not in (None, checkpoint.checkpoint.position):
            raise BadSnapshot(f"{where} is of {checkpoint.checkpoint.position}, its checkpoint of {position}")
        for name, (keys, values) in found.items():
            each = known.maps[name]
            try:
                for key, value in zip(keys, values, strict=True):
                    each.check(key, value)
            except StorageError as error:
                raise BadSnapshot(f"{where}: {error}") from error
        tables = {name: MemoryRows(keys, values) for name, (keys, values) in found.items()}
        position = checkpoint.checkpoint.position
        self._reset(known, _Installed(position, tables, suspect=known.suspect), count)
        return checkpoint

    def drop(self, group: GroupId, reason: str = "") -> None:
        """Forget the group's state, which is damaged. The disk keeps it until a commit replaces it whole.

        That it is damaged is durable first: otherwise a restart would take part with it again.
        """
        self._env.check()
        self._aside.put(group, reason or "damaged")
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = self._tables_of(group, NO_TIMESTAMP, 0, _Ring())
        known.suspect = True
        tables = {name: MemoryRows([], []) for name in self._tables}
        self._reset(known, _Installed(NO_TIMESTAMP, tables, suspect=True), 0)

    def _reset(self, known: _GroupTables, installed: _Installed, count: int) -> None:
        for name, rows in installed.tables.items():
            known.maps[name].replace(rows)
        for view in known.views:
            view.give_up()
        known.installed, known.fresh = installed, True
        known.layers = {}
        known.position = known.committed = installed.position
        known.count = count
        known.deliveries, known.requested = [], 0
