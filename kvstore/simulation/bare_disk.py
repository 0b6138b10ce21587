"""The disks of a simulated node that runs bare multicast: a log, and a state that commits behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kvstore.node.loop import COMMIT_S
from multicast.delivered import DeliveredIds
from multicast.durable import Checkpoint, Durable, Record
from multicast.messages import Delivery
from multicast.sim.checkers import Violation
from multicast.sim.host import Commit, execute
from multicast.types import NO_TIMESTAMP, GroupId, MessageId, Timestamp

if TYPE_CHECKING:
    from kvstore.simulation.nodes import SimMachine


class SimLog:
    """A log whose batches become durable in order, each after a delay; a crash loses the others."""

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine
        self.groups: dict[GroupId, Durable] = {}
        self._pending: deque[tuple[int, Mapping[GroupId, Sequence[Record]]]] = deque()
        self._count = 0
        self._syncing = False
        self.durable = 0
        self.staged = self._count_staged = self._count_pieces = 0
        self.decided: dict[tuple[GroupId, MessageId], int] = {}
        """In which batch of this life a delivery is."""

    def load(self, group: GroupId) -> Durable:
        """What survived."""
        return self.groups.setdefault(group, Durable())

    def write(self, records: Mapping[GroupId, Sequence[Record]]) -> int:
        """Gather a batch; a sync takes all that is gathered when it begins."""
        self._count += 1
        self._pending.append((self._count, records))
        for group, batch in records.items():
            self.decided |= {(group, r.mid): self._count for r in batch if isinstance(r, Delivery)}
        self._sync()
        return self._count

    def distrust(self, reason: str) -> None:
        """The machine gets a new disk."""
        self._machine.forgot(reason)

    # Records have payloads whole; the production log is tested on its own.

    referred: Container[int] = ()

    def stage(self) -> int:
        """Return a number."""
        self._count_staged += 1
        return self._count_staged

    def stage_piece(self, stage: int, data: bytes) -> int:
        """Pieces become durable in order."""
        self._count_pieces += 1
        self._machine.later(self._machine.disk_delay(), self._piece_synced, self._count_pieces)
        return self._count_pieces

    def _piece_synced(self, number: int) -> None:
        self.staged = max(self.staged, number)
        self._machine.durable(self.durable)

    def refer(self, stage: int, payload: bytes) -> None:
        """Records do not refer to anything."""

    def unstage(self, stage: int) -> None:
        """Nothing is kept."""

    def _sync(self) -> None:
        if not self._syncing and self._pending:
            self._syncing = True
            self._machine.later(self._machine.disk_delay(), self._synced, len(self._pending))

    def _synced(self, count: int) -> None:
        self._syncing = False
        number = 0
        for _ in range(count):
            number, records = self._pending.popleft()
            for group, batch in records.items():
                self.groups.setdefault(group, Durable()).apply(batch)
        self.durable = number
        self._sync()
        self._machine.durable(number)

    def crash(self) -> None:
        """What was not synced is gone."""
        self._pending.clear()
        self._syncing = False


class SimState:
    """A plain log per group, as application, committed lazily behind the log."""

    kept = 0
    """How many of the last deliveries it can send. The rest is only in snapshots."""

    def __init__(self, machine: SimMachine, pieces: dict[bytes, tuple[Delivery, ...]]) -> None:
        self._machine = machine
        self.pieces = pieces
        """What is in the pieces of all snapshots of this run."""
        self.logs: dict[GroupId, list[Delivery]] = {}
        self.commits: dict[GroupId, Commit] = {}
        self._executed: dict[GroupId, Timestamp] = {}
        self._positions: dict[tuple[GroupId, MessageId], Timestamp] = {}
        self._installed: dict[GroupId, int] = {}
        """How many of a group's deliveries came with a snapshot, in this life."""
        self._waiting: tuple[int, dict[GroupId, Commit]] | None = None
        self._former: dict[GroupId, list[Delivery]] = {}
        """What the disk has of groups that were dropped, until it is replaced."""

    def load(self, group: GroupId) -> Checkpoint:
        """As last committed."""
        return Checkpoint() if group in self._former else self.commit_of(group).checkpoint

    def commit_of(self, group: GroupId) -> Commit:
        """What was last committed."""
        return self.commits.setdefault(group, Commit())

    def count(self, group: GroupId) -> int:
        """Return the number of deliveries."""
        return len(self.logs.get(group, ()))

    def apply(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Append deliveries."""
        self.logs.setdefault(group, []).extend(deliveries)
        self._positions.update({(group, delivery.mid): delivery.global_ts for delivery in deliveries})

    def position(self, group: GroupId, mid: MessageId) -> Timestamp:
        """Return a message's position in the order."""
        return self._positions.get((group, mid), NO_TIMESTAMP)

    def deliveries(self, group: GroupId, after: Timestamp, count: int, size: int) -> Sequence[Delivery]:
        """Return recent deliveries after a position."""
        log = self.logs.get(group, [])
        return [delivery for delivery in log[len(log) - self.kept :] if delivery.global_ts > after][:count]

    def commit(self, positions: Mapping[GroupId, Timestamp], after: int) -> None:
        """Commit all that was applied, once the log has it."""
        commits = {}
        for group, position in positions.items():
            log = self.logs.get(group, [])
            self._check(group, log, after)
            delivered = DeliveredIds()
            for delivery in log:
                delivered.add(delivery.mid, delivery.ack_below)
            self._execute(group)
            commits[group] = Commit(Checkpoint(position, delivered, executed=self._executed[group]), len(log))
        self._waiting = (after, commits)
        self.log_durable(self._machine.durable_number)

    def _execute(self, group: GroupId) -> None:
        known = self._executed.get(group, NO_TIMESTAMP)
        self._executed[group] = execute(self.logs.get(group, []), known, self._machine.late)

    def _check(self, group: GroupId, log: Sequence[Delivery], after: int) -> None:
        """The contract's strictest clause: the log gets a delivery before the state may commit it."""
        known = 0 if group in self._former else self.commit_of(group).length
        since = max(known, self._installed.get(group, 0))
        for delivery in log[since:]:
            if self._machine.log.decided.get((group, delivery.mid), after + 1) > after:
                raise Violation("Contract", f"{self._machine.me} commits {delivery.mid} ahead of its log")

    def log_durable(self, number: int) -> None:
        """The log's batches up to this one are durable."""
        if self._waiting is not None and self._waiting[0] <= number:
            commits, self._waiting = self._waiting[1], None
            self._machine.later(self._machine.disk_delay(), self._committed, commits)

    def _committed(self, commits: dict[GroupId, Commit]) -> None:
        for group, commit in commits.items():
            if self._former.pop(group, None) is None:
                known = self.commit_of(group).checkpoint.executed
                commit.checkpoint.executed = max(commit.checkpoint.executed, known)
        self.commits.update(commits)
        self._machine.committed({group: commit.checkpoint.executed for group, commit in commits.items()})

    def catch_up(self) -> None:
        """Now and then, more of what is durable is executed, and that is durable too."""
        for group, commit in self.commits.items():
            if group in self._former:
                continue
            self._execute(group)
            executed = min(self._executed[group], commit.checkpoint.position)
            if executed > commit.checkpoint.executed:
                commit.checkpoint.executed = executed
                self._machine.executed(group, executed)
        self._machine.later(COMMIT_S, self.catch_up)

    def began(self) -> None:
        """A new life."""
        self._machine.later(COMMIT_S, self.catch_up)

    def crash(self) -> None:
        """Go back to what was committed."""
        self._waiting = None
        self._installed.clear()
        self.logs.update(self._former)
        self._former.clear()
        for group, log in self.logs.items():
            commit = self.commit_of(group)
            del log[commit.length :]
            self._executed[group] = commit.checkpoint.executed
        self._positions = {(group, d.mid): d.global_ts for group, log in self.logs.items() for d in log}

    def drop(self, group: GroupId, reason: str = "") -> None:
        """Forget a group's log, of a replica that begins anew; a crash brings back what was committed."""
        if group not in self._machine.begun:
            raise Violation("Contract", f"{self._machine.me} drops the sound state of group {group}")
        self._former[group] = self.logs.get(group, [])
        self.logs[group] = []
        self._executed[group] = NO_TIMESTAMP
        self._installed.pop(group, None)

    def snapshot(self, group: GroupId) -> Iterator[bytes]:
        """The whole log; its pieces are what `install` finds it by."""
        kept = tuple(self.logs.get(group, ()))
        tokens = []
        for start in range(0, len(kept), 10):
            tokens.append(f"{self._machine.me} {len(self.pieces)}".encode())
            self.pieces[tokens[-1]] = kept[start : start + 10]
        return iter(tokens)

    def install(self, group: GroupId, pieces: Iterable[bytes], checkpoint: Checkpoint) -> None:
        """Replace the log."""
        self.logs[group] = log = [delivery for piece in pieces for delivery in self.pieces[piece]]
        self._installed[group] = len(log)
        self._executed[group] = checkpoint.executed
        self._positions.update({(group, delivery.mid): delivery.global_ts for delivery in log})
