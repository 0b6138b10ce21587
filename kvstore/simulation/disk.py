"""A store's disk in memory: commits copy everything, and a crash goes back to the last one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

from kvstore.machine.codec import TABLES
from kvstore.machine.ordered import MemoryMap
from kvstore.simulation.nodes import SimMachine
from kvstore.storage.errors import BadSnapshot
from kvstore.storage.ports import GroupCheckpoint
from multicast.durable import Checkpoint
from multicast.messages import Delivery
from multicast.sim.checkers import Violation
from multicast.sim.host import Commit
from multicast.types import NO_TIMESTAMP, GroupId, Timestamp

Maps: TypeAlias = dict[str, MemoryMap[Any, Any]]


class SimMap(MemoryMap[Any, Any]):
    """A map whose rows can be replaced as a whole, for all that hold the map."""

    def replace(self, rows: MemoryMap[Any, Any]) -> None:
        """Replace all rows by these."""
        for key in list(self._rows):
            self.delete(key)
        for key, value in rows._rows.items():  # noqa: SLF001 - of the same kind
            self.put(key, value)


def _copy(maps: Mapping[str, MemoryMap[Any, Any]]) -> Maps:
    return {name: each.copy() for name, each in maps.items()}


@dataclass(slots=True)
class StoreCommit(Commit):
    """A group as last committed."""

    saved: GroupCheckpoint | None = None
    maps: Maps = field(default_factory=lambda: {name: MemoryMap() for name in TABLES})
    ring: int = 0
    """The index of the first delivery that it can still send."""


@dataclass(slots=True)
class SimSnapshot:
    """What is in a piece of a snapshot: a table, or what goes with the tables."""

    table: str = ""
    rows: MemoryMap[Any, Any] | None = None
    saved: GroupCheckpoint | None = None
    log: tuple[Delivery, ...] = ()


class SimStoreDisk:
    """See `kvstore.storage.ports.StoreDisk`. Deliveries are all kept, only the last are sent."""

    ring = 8
    """How many deliveries it can send to replicas that missed some. The rest is only in snapshots."""

    def __init__(self, machine: SimMachine, pieces: dict[bytes, SimSnapshot]) -> None:
        self._machine = machine
        self._pieces = pieces
        """What is in the pieces of all snapshots of this run."""
        self.logs: dict[GroupId, list[Delivery]] = {}
        self.maps: dict[GroupId, dict[str, SimMap]] = {}
        self.commits: dict[GroupId, StoreCommit] = {}
        self._rings: dict[GroupId, int] = {}
        self._installed: dict[GroupId, int] = {}
        """How many of a group's deliveries came with a snapshot, in this life."""
        self._waiting: tuple[int, dict[GroupId, StoreCommit]] | None = None
        self.asked: dict[GroupId, StoreCommit] = {}
        """What the last commit was asked for."""
        self.snapshots = self.caught_up = 0
        """How often other replicas caught up: by snapshots, or by deliveries."""

    def commit_of(self, group: GroupId) -> StoreCommit:
        """What was last committed."""
        return self.commits.setdefault(group, StoreCommit())

    # Reading

    def load(self, group: GroupId) -> Checkpoint:
        """The ordering side, as last committed."""
        found = self.commit_of(group).checkpoint
        return replace(found, delivered=found.delivered.copy())

    def open(self, group: GroupId) -> tuple[GroupCheckpoint | None, Mapping[str, Any]]:
        """As last committed, with maps that have all that was put since."""
        maps = self.maps.get(group)
        if maps is None:
            maps = self.maps[group] = {name: SimMap() for name in TABLES}
        return self.commit_of(group).saved, maps

    def count(self, group: GroupId) -> int:
        """Return the number of deliveries."""
        return len(self.logs.get(group, ()))

    def last_change(self, group: GroupId) -> int:
        """The last revision of the group's history."""
        rows = self.maps[group]["history"].items(0, None, reverse=True)
        return next((revision for revision, _ in rows), 0)

    def oldest(self, group: GroupId) -> Timestamp:
        """Return the position before the first delivery that is kept."""
        first = self._first(group)
        return self.logs[group][first - 1].global_ts if first else NO_TIMESTAMP

    def _first(self, group: GroupId) -> int:
        return max(self._rings.get(group, 0), self.count(group) - self.ring)

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """Return recent deliveries after a position."""
        if after < self.oldest(group):
            return []
        kept = self.logs.get(group, [])[self._first(group) :]
        found = [delivery for delivery in kept if delivery.global_ts > after][:count]
        self.caught_up += bool(found)
        return found

    # Writing

    def remember(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Append deliveries."""
        log = self.logs.setdefault(group, [])
        for before, after in pairwise([*log[-1:], *deliveries]):
            if before.global_ts >= after.global_ts:
                raise Violation("Contract", f"{self._machine.me} gets {after.mid} after a later delivery")
        log.extend(deliveries)

    def commit(self, checkpoints: Mapping[GroupId, GroupCheckpoint], after: int) -> None:
        """Commit all rows and these checkpoints, once the log has the same deliveries."""
        commits = {}
        for group, saved in checkpoints.items():
            log = self.logs.get(group, [])
            position = log[-1].global_ts if log else NO_TIMESTAMP
            if position not in (None, saved.checkpoint.position):
                raise Violation("Contract", f"{self._machine.me} commits {saved.checkpoint} at {position}")
            self._check(group, log, after)
            maps = _copy(self.open(group)[1])
            ring = self._first(group)
            commits[group] = StoreCommit(saved.checkpoint, len(log), saved, maps, ring)
        if self._waiting is not None:
            raise Violation("Contract", f"{self._machine.me} commits while it commits")
        self._waiting, self.asked = (after, commits), commits
        self.log_durable(self._machine.durable_number)

    def _check(self, group: GroupId, log: Sequence[Delivery], after: int) -> None:
        """The contract's strictest clause: the log gets a delivery before the state may commit it."""
        since = max(self.commit_of(group).length, self._installed.get(group, 0))
        for delivery in log[since:]:
            if self._machine.log.decided.get((group, delivery.mid), after + 1) > after:
                raise Violation("Contract", f"{self._machine.me} commits {delivery.mid} ahead of its log")

    def log_durable(self, number: int) -> None:
        """The log's batches up to this one are durable."""
        if self._waiting is not None and self._waiting[0] <= number:
            commits, self._waiting = self._waiting[1], None
            self._machine.later(self._machine.disk_delay(), self._committed, commits)

    def _committed(self, commits: dict[GroupId, StoreCommit]) -> None:
        self.commits.update(commits)
        self._machine.committed({group: commit.checkpoint.executed for group, commit in commits.items()})

    def began(self) -> None:
        """A new life."""

    def crash(self) -> None:
        """Go back to what was committed."""
        self._waiting = None
        self._installed.clear()
        for group in {**self.logs, **self.maps}:
            commit = self.commit_of(group)
            del self.logs.setdefault(group, [])[commit.length :]
            self._rings[group] = commit.ring
            for name, each in self.open(group)[1].items():
                each.replace(commit.maps[name])

    # Snapshots

    def snapshot(self, group: GroupId, saved: GroupCheckpoint) -> Iterator[bytes]:
        """Everything as of now; its pieces are what `install` finds it by."""
        self.snapshots += 1
        parts = [SimSnapshot(name, each) for name, each in _copy(self.open(group)[1]).items()]
        parts.append(SimSnapshot(saved=saved, log=tuple(self.logs.get(group, ()))))
        tokens = []
        for part in parts:
            tokens.append(f"{self._machine.me} {len(self._pieces)}".encode())
            self._pieces[tokens[-1]] = part
        return iter(tokens)

    def install(
        self, group: GroupId, snapshot: Iterable[bytes], position: Timestamp | None = None
    ) -> GroupCheckpoint:
        """Replace everything."""
        parts = [self._pieces[token] for token in snapshot]
        if not parts or parts[-1].saved is None:
            raise BadSnapshot(f"the snapshot of group {group} has no end")
        if position not in (None, parts[-1].saved.checkpoint.position):
            raise BadSnapshot(f"the snapshot of group {group} is not of {position}")
        maps = self.open(group)[1]
        for part in parts[:-1]:
            maps[part.table].replace(part.rows)
        self.logs[group] = list(parts[-1].log)
        self._rings[group] = self._installed[group] = len(parts[-1].log)
        return parts[-1].saved
