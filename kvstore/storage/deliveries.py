"""The state of bare multicast: every delivery, and the position of each message in the order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from pathlib import Path
from typing import Final

from kvstore.storage import checksum, delivery_snapshot, keys
from kvstore.storage.delivery_snapshot import PIECE_BYTES, Ids
from kvstore.storage.environment import OnFailure, Puts, Transaction
from kvstore.storage.errors import BadSnapshot
from kvstore.storage.identity import Identity
from kvstore.storage.keys import (
    DELIVERIES_DATABASES,
    STATE_CLIENTS,
    STATE_DELIVERIES,
    STATE_ORDER,
    STATE_POSITIONS,
)
from kvstore.storage.lazy import LazyState, OnCommitted
from kvstore.storage.runs import Runs, check_chain, cut, pieces, row_of, rows_from
from multicast.delivered import DeliveredIds
from multicast.durable import Checkpoint
from multicast.errors import InvariantBroken
from multicast.messages import Delivery
from multicast.types import NO_TIMESTAMP, ClientId, GroupId, MessageId, Timestamp

POSITIONS_SLICE: Final = 1024
"""Deliveries that `_Positions` takes in at once, at most: more would stall the loop."""


class _Client:
    __slots__ = ("above", "low")

    def __init__(self, low: int) -> None:
        self.low = low
        self.above: dict[int, list[tuple[int, Timestamp]]] = {}
        """By sequence number: digests and positions."""


class _Positions:
    """`DeliveredIds` with the position of each delivery, and the changes since the last commit."""

    __slots__ = ("_clients", "changed_lows", "changed_positions")

    def __init__(self, ids: Ids = ()) -> None:  # type: ignore[assignment]  # an empty one of any type
        self._clients: dict[ClientId, _Client] = {}
        self.changed_positions: dict[MessageId, Timestamp | None] = {}
        """Positions to put, and None for ids to delete."""
        self.changed_lows: dict[ClientId, int] = {}
        for client, low, above in ids:
            known = self._clients[client] = _Client(low)
            for sequence, digest, position in sorted(above, key=lambda row: row[2]):
                known.above.setdefault(sequence, []).append((digest, position))

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Add deliveries, as `DeliveredIds.add` does. Ids below their client's last watermark are not kept.

        So watermarks come first, and most deliveries of a long run cost next to nothing.
        """
        lows: dict[ClientId, int] = {}
        for delivery in deliveries:
            client = delivery.mid.client
            if delivery.ack_below > lows.get(client, -1):
                lows[client] = delivery.ack_below
        clients, changed = self._clients, self.changed_positions
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
        """Forget ids below the new watermark."""
        above = known.above
        passed: Iterable[int] = range(known.low, low)
        if low - known.low > len(above):
            passed = [sequence for sequence in above if sequence < low]
        changed = self.changed_positions
        for sequence in passed:
            for digest, _ in above.pop(sequence, ()):
                mid = MessageId(client, sequence, digest)
                if changed.pop(mid, None) is None:
                    changed[mid] = None
        known.low = self.changed_lows[client] = low

    def position(self, mid: MessageId) -> Timestamp:
        """Return the position of the message; `NO_TIMESTAMP` if it is not known, or not any more."""
        known = self._clients.get(mid.client)
        if known is not None:
            for digest, position in known.above.get(mid.sequence, ()):
                if digest == mid.digest:
                    return position
        return NO_TIMESTAMP

    def ids(self) -> Ids:
        """Return all ids, in a fixed order."""
        found = []
        for client, known in sorted(self._clients.items()):
            above = sorted(known.above.items())
            found.append((client, known.low, [(s, *delivery) for s, each in above for delivery in each]))
        return found

    def delivered(self) -> DeliveredIds:
        """Return the ids without their positions."""
        delivered = DeliveredIds()
        for client, low, above in self.ids():
            if low:
                delivered.add(MessageId(client, low - 1, 0), low)
            for sequence, digest, _ in above:
                delivered.add(MessageId(client, sequence, digest), 0)
        return delivered

    def take(self) -> tuple[dict[MessageId, Timestamp | None], dict[ClientId, int]]:
        """Return the changes since the last call, for a commit."""
        changed = self.changed_positions, self.changed_lows
        self.changed_positions, self.changed_lows = {}, {}
        return changed


@dataclass(slots=True)
class _PendingDeliveries:
    """The changes of one group in a commit."""

    executed: Timestamp
    """The position, since what is delivered is executed."""
    count: int
    deliveries: list[Delivery]
    positions: dict[MessageId, Timestamp | None]
    lows: dict[ClientId, int]
    installed: int
    replace: bool
    """Whether all older rows are deleted first."""

    @property
    def size(self) -> int:
        """About how many bytes it writes."""
        return sum([len(delivery.payload) for delivery in self.deliveries])

    def add(self, later: _PendingDeliveries) -> _PendingDeliveries:
        """Return both changes as one."""
        if later.replace:
            return later
        deliveries, positions = self.deliveries + later.deliveries, self.positions | later.positions
        lows = self.lows | later.lows
        return _PendingDeliveries(
            later.executed, later.count, deliveries, positions, lows, later.installed, self.replace
        )


@dataclass(slots=True)
class _GroupDeliveries:
    """One group: its position, its delivered ids, and deliveries not yet committed."""

    position: Timestamp
    """The position of the last delivery that was applied."""
    count: int
    """The number of deliveries up to `position`."""
    positions: _Positions
    committed: Timestamp
    """Deliveries up to here are on the disk."""
    deliveries: list[Delivery] = field(default_factory=list)
    """The deliveries after `committed`."""
    counted: int = 0
    """The number of `deliveries` that `positions` has."""
    requested: int = 0
    """The number of `deliveries` in commits that were requested already."""
    installed: int = 0
    """The number of snapshots that were installed."""
    replace: bool = False
    """Whether the last snapshot is not yet part of a requested commit."""

    def current_positions(self) -> _Positions:
        """Return the positions, up to date. Reads are rare, so many deliveries are added at once."""
        if self.counted < len(self.deliveries):
            self.positions.add(self.deliveries[self.counted :])
            self.counted = len(self.deliveries)
        return self.positions

    def add(self, deliveries: Sequence[Delivery], position: Timestamp) -> None:
        """Add deliveries, up to a position."""
        self.deliveries += deliveries
        self.count += len(deliveries)
        self.position = position
        if len(self.deliveries) - self.counted >= POSITIONS_SLICE:
            self.current_positions()

    def take(self) -> _PendingDeliveries:
        """Return the changes for the next commit."""
        changed = self.current_positions().take()
        deliveries = self.deliveries[self.requested :]
        change = _PendingDeliveries(
            self.position, self.count, deliveries, *changed, self.installed, self.replace
        )
        self.requested, self.replace = len(self.deliveries), False
        return change

    def done(self, change: _PendingDeliveries) -> None:
        """Forget changes that are durable."""
        if change.installed == self.installed:
            written = len(change.deliveries)
            self.committed = change.executed
            del self.deliveries[:written]
            self.counted -= written
            self.requested -= written


class LmdbState(LazyState[_PendingDeliveries]):
    """The state of bare multicast, which keeps every delivery. See `kvstore.storage.ports.DeliveryDisk`.

    Delivered ids are kept as positions of deliveries and a low watermark for each client, so that a commit
    writes only what has changed. They follow from the deliveries, as those of a `Checkpoint` do.
    """

    def __init__(
        self, path: Path, identity: Identity, on_committed: OnCommitted, on_failure: OnFailure
    ) -> None:
        super().__init__(path, DELIVERIES_DATABASES, identity, on_committed, on_failure)
        self._groups: dict[GroupId, _GroupDeliveries] = {}

    # Reading

    def load(self, group: GroupId) -> Checkpoint:
        """Return the position and delivered ids, as last committed."""
        known = self._groups.get(group)
        if known is not None and known.replace:
            return Checkpoint(known.position, known.current_positions().delivered())
        found = self._load(group)
        self._groups.setdefault(group, found)
        return Checkpoint(found.position, found.positions.delivered())

    def _group(self, group: GroupId) -> _GroupDeliveries:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = self._load(group)
        return found

    def _load(self, group: GroupId) -> _GroupDeliveries:
        position, count = NO_TIMESTAMP, 0
        transaction = self._env.read()
        prefix = keys.group_key(group)
        value = transaction.get(prefix, db=self._env[STATE_POSITIONS])
        if value is not None:
            seed = checksum.seed_of(STATE_POSITIONS, prefix)
            position, count = checksum.unseal_position(value, self._where(group, "position"), seed)
        where = self._where(group, "clients")
        clients: dict[ClientId, tuple[int, list[tuple[int, int, Timestamp]]]] = {}
        for key, value in rows_from(self._env, transaction, STATE_CLIENTS, prefix):
            client = ClientId(keys.number_of_key(key, where))
            seed = checksum.seed_of(STATE_CLIENTS, key)
            clients[client] = (checksum.unseal_number(value, where, seed), [])
        where = self._where(group, "order")
        for key, value in rows_from(self._env, transaction, STATE_ORDER, prefix):
            client, sequence, digest = keys.mid_of_key(key, where)
            at = Timestamp(checksum.unseal_number(value, where, checksum.seed_of(STATE_ORDER, key)))
            clients.setdefault(client, (0, []))[1].append((sequence, digest, at))
        positions = _Positions([(client, low, above) for client, (low, above) in clients.items()])
        return _GroupDeliveries(position, count, positions, position)

    def position(self, group: GroupId, mid: MessageId) -> Timestamp:
        """Return the message's position; `NO_TIMESTAMP` once the client has acknowledged the answer."""
        return self._group(group).current_positions().position(mid)

    def count(self, group: GroupId) -> int:
        """Return the number of messages that the group has delivered."""
        return self._group(group).count

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: float = inf) -> list[Delivery]:
        """Return the group's deliveries after a position, in order: at most `count`, and at most `size` bytes
        (but at least one).
        """
        known = self._group(group)
        return Runs(self._env, group).select(after, known.committed, known.deliveries, count, size)

    # Writing

    def apply(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Apply deliveries, in order."""
        self._env.check()
        known = self._group(group)
        position = check_chain(group, known.position, deliveries)
        known.add(deliveries, position)

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        """Commit what was applied to these groups, once the log's batch `after` is durable."""
        self._env.check()
        for group, wanted in positions.items():
            position = self._group(group).position
            if wanted != position:
                raise InvariantBroken(f"group {group} is to be committed at {wanted}, but is at {position}")
        self._request(after, {group: self._group(group).take() for group in positions})

    def _puts(self, group: GroupId, change: _PendingDeliveries, transaction: Transaction) -> Puts:
        if change.replace:
            yield from self._clear(group, transaction)
        for run in cut(change.deliveries):
            last, value = row_of(group, run)
            transaction.put(keys.run_key(group, last), value, db=self._env[STATE_DELIVERIES])
            yield len(run)
        for mid, at in change.positions.items():
            key = keys.delivery_key(group, mid)
            if at is None:
                transaction.delete(key, db=self._env[STATE_ORDER])
            else:
                value = checksum.seal_number(at, checksum.seed_of(STATE_ORDER, key))
                transaction.put(key, value, db=self._env[STATE_ORDER])
            yield 1
        for client, low in change.lows.items():
            key = keys.client_key(group, client)
            value = checksum.seal_number(low, checksum.seed_of(STATE_CLIENTS, key))
            transaction.put(key, value, db=self._env[STATE_CLIENTS])
            yield 1
        key = keys.group_key(group)
        value = checksum.seal_position(change.executed, change.count, checksum.seed_of(STATE_POSITIONS, key))
        transaction.put(key, value, db=self._env[STATE_POSITIONS])
        yield 1

    def _finish(self, group: GroupId, change: _PendingDeliveries) -> None:
        self._groups[group].done(change)

    def _clear(self, group: GroupId, transaction: Transaction) -> Puts:
        prefix = keys.group_key(group)
        for database in (STATE_DELIVERIES, STATE_ORDER, STATE_CLIENTS):
            with transaction.cursor(self._env[database]) as cursor:
                found = cursor.set_range(prefix)
                while found and cursor.key().startswith(prefix):
                    found = cursor.delete()
                    yield 1

    # Snapshots

    def drop(self, group: GroupId, reason: str = "") -> None:
        """Forget the group's deliveries, which are damaged; the next commit replaces them."""
        self._env.check()
        known = self._groups.get(group)
        installed = 1 if known is None else known.installed + 1
        self._groups[group] = _GroupDeliveries(
            NO_TIMESTAMP, 0, _Positions(), NO_TIMESTAMP, installed=installed, replace=True
        )

    def snapshot(self, group: GroupId) -> Iterator[bytes]:
        """Return the group's state at the time of this call, in pieces.

        A delivery never changes, and up to a position all replicas have the same ones. So pieces are read on
        demand, regardless of what is applied, committed or installed meanwhile.
        """
        known = self._group(group)
        head = delivery_snapshot.snapshot_head(known.position, known.current_positions().ids())
        parts = self._parts(group, head, known.committed, list(known.deliveries))
        return pieces(parts, PIECE_BYTES)

    def _parts(
        self, group: GroupId, head: bytes, committed: Timestamp, deliveries: list[Delivery]
    ) -> Iterator[bytes]:
        yield head
        stored = Runs(self._env, group).rows(NO_TIMESTAMP, committed)
        for last, value in chain(stored, (row_of(group, run) for run in cut(deliveries))):
            yield delivery_snapshot.snapshot_row(last, value)

    def install(self, group: GroupId, snapshot: Iterable[bytes], checkpoint: Checkpoint) -> None:
        """Replace the group's state by a snapshot; durable with the next commit, as a whole."""
        self._env.check()
        where = f"the snapshot of group {group}"
        position, ids, deliveries = delivery_snapshot.read_snapshot(snapshot, group, where)
        positions = _Positions(ids)
        if position != checkpoint.position:
            raise BadSnapshot(f"{where} is of {position}, but its checkpoint of {checkpoint.position}")
        if positions.delivered() != checkpoint.delivered:
            raise BadSnapshot(f"{where} has other delivered ids than its checkpoint")
        for client, low, above in ids:
            positions.changed_lows[client] = low
            for sequence, digest, at in above:
                positions.changed_positions[MessageId(client, sequence, digest)] = at
        count = len(deliveries)
        installed = self._group(group).installed + 1
        self._groups[group] = _GroupDeliveries(
            position, count, positions, NO_TIMESTAMP, deliveries, count, 0, installed, replace=True
        )
