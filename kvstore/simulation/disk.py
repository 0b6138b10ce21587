"""A store's disk in memory: commits copy everything, and a crash goes back to the last one."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec

from kvstore.machine.codec import TABLES
from kvstore.machine.ordered import MemoryMap
from kvstore.simulation.nodes import SimMachine
from kvstore.storage.errors import BadSnapshot, DamagedRow
from kvstore.storage.ports import GroupCheckpoint, Origin
from multicast.durable import Checkpoint
from multicast.messages import Delivery
from multicast.sim.checkers import Violation
from multicast.sim.host import Commit
from multicast.types import NO_TIMESTAMP, GroupId, Timestamp

Maps: TypeAlias = dict[str, MemoryMap[Any, Any]]


class SimMap(MemoryMap[Any, Any]):
    """A map whose rows can be replaced as a whole, for all that hold the map. Some of them may be bad."""

    __slots__ = ("bad",)

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[Any] = set()
        """Keys whose rows are damaged: to read one is noticed."""
        self.get = self._checked

    def _checked(self, key: Any, default: Any = None) -> Any:
        self._check(key)
        return self._rows.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        """Give a key a value."""
        self.bad.discard(key)
        super().put(key, value)

    insert = put

    def delete(self, key: Any) -> None:
        """Remove a key, if it is there."""
        self.bad.discard(key)
        super().delete(key)

    def items(self, start: Any, end: Any, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """A range."""
        for key, value in super().items(start, end, reverse=reverse):
            self._check(key)
            yield key, value

    def _check(self, key: Any) -> None:
        if key in self.bad:
            raise DamagedRow(f"the row of {key!r} is damaged")

    def look_at_all(self) -> None:
        """Notice a bad row."""
        for key in self.bad:
            self._check(key)

    def replace(self, rows: MemoryMap[Any, Any]) -> None:
        """Replace all rows by these."""
        self.bad.clear()
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
    bad: dict[str, set[Any]] = field(default_factory=dict)
    """By table, the keys of damaged rows."""


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

    map_type: type[SimMap] = SimMap
    damaged_tables: Collection[str] = tuple(TABLES)

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
        self._dropped: dict[GroupId, list[Delivery]] = {}
        """Groups whose state is damaged, until a commit has another; and the deliveries that led to it."""
        self._aside: set[GroupId] = set()
        """Groups whose state is marked as damaged: a restart does not forget it."""
        self._origins: dict[GroupId, Origin] = {}
        self._changed: set[GroupId] = set()
        """Groups with a value that was changed silently."""
        self._waiting: tuple[int, dict[GroupId, StoreCommit]] | None = None
        self.asked: dict[GroupId, StoreCommit] = {}
        """What the last commit was asked for."""
        self.changes = 0
        """How many values were changed silently."""
        self.snapshots = self.caught_up = 0
        """How often other replicas caught up: by snapshots, or by deliveries."""

    def commit_of(self, group: GroupId) -> StoreCommit:
        """What was last committed."""
        return self.commits.setdefault(group, StoreCommit())

    # Reading

    def load(self, group: GroupId) -> Checkpoint:
        """The ordering side, as last committed."""
        if group in self._dropped:
            return Checkpoint()
        if group in self._aside:
            raise DamagedRow(f"group {group} was set aside before a restart")
        found = self.commit_of(group).checkpoint
        return replace(found, delivered=found.delivered.copy())

    def open(self, group: GroupId) -> tuple[GroupCheckpoint | None, Mapping[str, Any]]:
        """As last committed, with maps that have all that was put since."""
        maps = self.maps.get(group)
        if maps is None:
            maps = self.maps[group] = {name: self.map_type() for name in TABLES}
        return None if group in self._dropped else self.commit_of(group).saved, maps

    def count(self, group: GroupId) -> int:
        """Return the number of deliveries."""
        return len(self.logs.get(group, ()))

    def last_change(self, group: GroupId) -> int:
        """The last revision of the group's history."""
        return max((revision for revision, _ in self.maps[group]["history"].rows()), default=0)

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
            bad = {name: set(each.bad) for name, each in self.maps[group].items()}
            commits[group] = StoreCommit(saved.checkpoint, len(log), saved, maps, ring, bad)
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
        for group, commit in commits.items():
            if group in self._dropped and commit is not self.asked.get(group):
                continue
            self._dropped.pop(group, None)
            self._aside.discard(group)
        self.commits.update(commits)
        self._machine.committed({group: commit.checkpoint.executed for group, commit in commits.items()})

    def began(self) -> None:
        """A new life."""

    def crash(self) -> None:
        """Go back to what was committed."""
        self._waiting = None
        self._installed.clear()
        self.logs.update(self._dropped)
        self._dropped.clear()
        for group in {**self.logs, **self.maps}:
            commit = self.commit_of(group)
            del self.logs.setdefault(group, [])[commit.length :]
            self._rings[group] = commit.ring
            for name, each in self.open(group)[1].items():
                each.replace(commit.maps[name])
                each.bad |= commit.bad.get(name, set())

    # Damage

    def damage(self, rng: random.Random) -> bool:
        """Damage a row of what is committed. Return whether there was one."""
        rows = [
            (group, name, key)
            for group, commit in sorted(self.commits.items())
            if group not in self._dropped
            for name, each in commit.maps.items()
            if name in self.damaged_tables
            for key in each._rows  # noqa: SLF001 - of this module
        ]
        if not rows:
            return False
        group, name, key = rng.choice(rows)
        self.commits[group].bad.setdefault(name, set()).add(key)
        current = self.maps[group][name]
        if current._rows.get(key) == self.commits[group].maps[name].get(key):  # noqa: SLF001 - of this module
            current.bad.add(key)
        return True

    def origin(self, group: GroupId) -> Origin | None:
        """Return where the group's state was copied from."""
        return self._origins.get(group)

    def note_origin(self, group: GroupId, origin: Origin | None) -> None:
        """Note that the group's state is about to be a copy, or that it is confirmed. A crash keeps it."""
        if origin is None:
            self._origins.pop(group, None)
        else:
            self._origins[group] = origin

    def change(self, rng: random.Random) -> bool:
        """Change a value of what is committed and in use, in a way that no checksum shows."""
        rows = [
            (group, key)
            for group, maps in sorted(self.maps.items())
            if group not in self._dropped
            for key, found in sorted(maps["latest"].rows())
            if found.value is not None and self.commit_of(group).maps["latest"].get(key) == found
        ]
        if not rows:
            return False
        group, key = rng.choice(rows)
        found: Any = self.maps[group]["latest"].get(key)
        changed = msgspec.structs.replace(found, value=found.value + b"?")
        self.maps[group]["latest"].put(key, changed)
        self.commits[group].maps["latest"].put(key, changed)
        self._changed.add(group)
        self.changes += 1
        return True

    def rows(self) -> int:
        """Return how many rows there are."""
        return sum(len(each.rows()) for maps in self.maps.values() for each in maps.values())

    def check_rows(self, group: GroupId) -> Iterator[int]:
        """Look at all rows, table by table."""
        for each in self.maps[group].values():
            each.look_at_all()
            yield len(each.rows())

    def is_damaged(self) -> bool:
        """Whether the disk has damaged rows, or lacks a state that was damaged."""
        committed = any(keys for commit in self.commits.values() for keys in commit.bad.values())
        bad = any(each.bad for maps in self.maps.values() for each in maps.values())
        return committed or bad or bool(self._dropped or self._aside or self._changed)

    def drop(self, group: GroupId, reason: str = "") -> None:
        """Forget a group's state; a crash brings back what was committed."""
        sound = group not in self._aside | self._changed | self._machine.begun
        if sound and not any(each.bad for each in self.maps[group].values()):
            raise Violation("Contract", f"{self._machine.me} drops the sound state of group {group}")
        self._aside.add(group)
        self._dropped.setdefault(group, self.logs.get(group, []))
        self.asked = {other: commit for other, commit in self.asked.items() if other != group}
        self._rings.pop(group, None)
        self._installed.pop(group, None)
        self.logs[group] = []
        for each in self.maps[group].values():
            each.replace(MemoryMap())

    # Snapshots

    def snapshot(self, group: GroupId, saved: GroupCheckpoint) -> Iterator[bytes]:
        """Everything as of now; its pieces are what `install` finds it by."""
        self.snapshots += 1
        for each in self.maps[group].values():
            for key in each.bad:
                each.get(key)
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
        self._changed.discard(group)
        self.logs[group] = list(parts[-1].log)
        self._rings[group] = self._installed[group] = len(parts[-1].log)
        return parts[-1].saved
