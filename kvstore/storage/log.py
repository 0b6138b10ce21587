"""The log: the durable records behind acknowledgements."""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import lmdb

from kvstore.config.checks import Durability
from kvstore.storage import checksum, keys
from kvstore.storage.environment import Environment, OnFailure, Puts, Transaction, Usage
from kvstore.storage.errors import DamagedLog, DamagedRow, LostDisk, StorageError
from kvstore.storage.identity import Identity, mark_rolled_back
from kvstore.storage.keys import LOG_BASES, LOG_DATABASES, LOG_ROWS, LOG_STAGED, META
from kvstore.storage.records import Payloads, decode, encode, payload_bytes
from multicast.durable import Durable, Record
from multicast.errors import InvariantBroken
from multicast.types import GROUPS_MAX, GroupId

FOLD_BYTES: Final = 4 << 20
"""Rows of a group beyond this, and beyond four times the size of its base, are folded into a new base."""

ROW_BYTES: Final = 512
"""The least that a row counts for: many small rows take long to load."""

SLICE: Final = 200
"""Folded rows that one commit deletes."""

AT_ONCE_BYTES: Final[Mapping[Durability, int]] = {"fsync": 4 << 10, "os": 64 << 10}
"""The largest commit that the loop makes, if it may wait. A small commit gains nothing from the thread, which
costs as much as the commit itself; a large one does, while the disk syncs."""

COMMIT_BYTES: Final = 4 << 20
"""Bytes of payloads that end a commit."""

PIECES: Final = 8
"""Commits of batches that pieces of staged payloads wait for, at most."""

SLOW_S: Final = 0.005
PATIENCE_S: Final = 1.0
"""After a commit in the loop that takes SLOW_S, the thread makes all commits for PATIENCE_S."""


@dataclass(slots=True)
class _Rows:
    """The rows of a group: what they amount to, and their size."""

    fold: Durable = field(default_factory=Durable)
    base_bytes: int = 0
    row_bytes: int = 0
    """Of the rows after the base, each at least `ROW_BYTES`."""
    last: int = 0
    """The number of the last row, or of the base if none follows it."""
    stages: set[int] = field(default_factory=set)
    """Staged payloads that the base and the rows refer to."""
    loaded: int = 0
    """The number of rows that were loaded, with the base."""


_ROWS_SEED: Final = checksum.seed_of(LOG_ROWS, b"")


def log_seed(key: bytes, previous: int) -> int:
    """Return the seed of a row's checksum, which stands for the number of the row before it too.

    So a row that is missing is noticed, unless it was the last.
    """
    return zlib.crc32(keys.NUMBER.pack(previous), zlib.crc32(key, _ROWS_SEED))


class LmdbLog:
    """The log of all groups of a node. See `kvstore.node.ports.Log`.

    One commit writes one row for a group. Now and then the rows of a group are folded into an equivalent one,
    its base, so that the log grows with the messages in flight, not with all that were ever delivered. A base
    is written at once, which stalls the loop for some ten milliseconds per megabyte in flight. The rows that
    it replaces are deleted in slices.
    """

    def __init__(
        self, path: Path, identity: Identity, on_durable: Callable[[int], None], on_failure: OnFailure
    ) -> None:
        self._env = Environment(path, LOG_DATABASES, identity, on_failure)
        self._on_durable = on_durable
        self._at_once_bytes = AT_ONCE_BYTES[identity.durability]
        self._slow_until = 0.0
        self._groups: dict[GroupId, _Rows] = {}
        self._gathered: deque[tuple[int, Mapping[GroupId, Sequence[Record]]]] = deque()
        self._loaded: dict[GroupId, Durable] = {}
        """What `load` has read, until the next write."""
        self._folded: dict[GroupId, int] = {}
        """Rows up to this number may be deleted."""
        self._starting = 0
        """Bytes of the commit under way."""
        self.staged = self._staging = self._pieces_taken = 0
        """Numbers of the last durable piece, of the last that a commit has, and of the last."""
        self._pieces: deque[tuple[int, int, int, bytes]] = deque()
        """Pieces that wait: number, payload, index, bytes."""
        self._passed = 0
        """Commits of batches since the first of them waits."""
        self._lengths: dict[int, list[int]] = {}
        """By payload, the number of its pieces and its bytes."""
        self._loose: set[int] = set()
        """Payloads that are deleted when nothing refers to them."""
        self._doomed: dict[int, None] = {}
        """Payloads that the next commit deletes."""
        self._last_stage = 0
        self._payloads = Payloads(self._read_staged)
        self._unread: set[GroupId] = set()
        """Groups on the disk that have not been loaded: they may refer to any payload."""
        self._strays: list[bytes] = []
        """Keys of rows that no group can have."""
        self.damaged: dict[GroupId, str] = {}
        """What is wrong with the records of groups that cannot be used."""
        try:
            self._number = self._started = self.durable = self._last()
            self._find_staged()
            for group in sorted({*self._found, *identity.begun} - {*self.damaged}):
                self._check(group, identity)
            self._find_misplaced()
        except (DamagedRow, lmdb.Error) as error:
            self._env.close()
            raise DamagedLog(f"{path} cannot be read: {error}") from error
        except StorageError:
            self._env.close()
            raise

    def _last(self) -> int:
        """Return the highest number on the disk, and note the groups that have rows.

        Rows are listed, not searched for: a single changed key can mislead searches for other groups' rows,
        but not a walk from one row to the next.
        """
        highest = 0
        self._found: set[GroupId] = set()
        self._listed: Counter[GroupId] = Counter()
        """By group, the number of rows that are to be loaded, with the base."""
        self._suspects = False
        """Whether there are rows that may be the last ones of other groups."""
        for key, value in self._all(LOG_BASES):
            group = keys.group_of_key(key, f"{self._env.path}, bases")
            self._found.add(group)
            self._listed[group] += 1
            seed = checksum.seed_of(LOG_BASES, key)
            try:
                number, _ = checksum.unseal_base(value, self._where(group, "base"), seed)
            except DamagedRow as error:
                self.damaged[group] = str(error)
                self._find_owner_of_base(key, value)
                continue
            highest = max(highest, number)
            self._folded[group] = number
            self._unread.add(group)
        for key, _ in self._all(LOG_ROWS):
            group = GroupId(int.from_bytes(key[:2], "big"))
            number = keys.number_of_key(key, self._where(group, "rows"))
            if group >= GROUPS_MAX:
                self._suspects = True  # the group that misses it is damaged, or has it as its last row
                self._strays.append(key)
                continue
            self._unread.add(group)
            self._found.add(group)
            highest = max(highest, number)
            if number > self._folded.get(group, 0):
                self._listed[group] += 1
            else:
                self._suspects = True
        return highest

    def _all(self, database: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return all rows of a database, one after the other. Raises `DamagedRow` if some cannot be found."""
        transaction, count = self._env.read(), 0
        for pair in transaction.cursor(self._env[database]):
            count += 1
            yield pair
        entries = transaction.stat(self._env[database])["entries"]
        if count != entries:
            where = f"{self._env.path}, {database.decode()}"
            raise DamagedRow(f"{where}: there are {count} rows, but LMDB has counted {entries}")

    def _find_owner_of_base(self, key: bytes, value: bytes) -> None:
        """Note the group whose base is found, with a changed key, as another group's."""
        for group in map(GroupId, range(GROUPS_MAX)):
            own = keys.group_key(group)
            if own != key and checksum.is_sealed(value, checksum.seed_of(LOG_BASES, own)):
                self.damaged[group] = f"{self._where(group, 'base')}: it has the key {key.hex()}"

    def _find_staged(self) -> None:
        """Find the payloads on the disk, which are deleted unless some record refers to them."""
        where = f"{self._env.path}, staged"
        for key, value in self._env.read().cursor(self._env[LOG_STAGED]):
            length = self._lengths.setdefault(keys.stage_of_key(key, where), [0, 0])
            length[0] += 1
            length[1] += len(value)
        self._loose.update(self._lengths)
        self._last_stage = max(self._lengths, default=0)

    def _where(self, group: GroupId, what: str) -> str:
        return f"{self._env.path}, group {group}, {what}"

    def _check(self, group: GroupId, identity: Identity) -> None:
        """Note a group whose records are damaged, or are of an earlier beginning of its replica."""
        key = keys.begun_key(group)
        try:
            value = self._env.read().get(key, db=self._env[META])
            where = self._where(group, "beginning")
            begun = 0 if value is None else checksum.unseal_number(value, where, checksum.seed_of(META, key))
            if begun == identity.begun.get(group, 0):
                self.load(group)
                if (loaded := self._groups[group].loaded) != (listed := self._listed[group]):
                    self.damaged[group] = f"{self._where(group, 'rows')}: {loaded} of {listed} are found"
            else:
                self.damaged[group] = (
                    f"{where}: its records are of {begun}, not {identity.begun.get(group, 0)}"
                )
        except (DamagedLog, DamagedRow, lmdb.Error) as error:
            self.damaged[group] = str(error)

    def _find_misplaced(self) -> None:
        """Note groups whose last row is found, with a changed key, among another group's rows: among those
        of a damaged group, or those that a base has replaced.

        That of any other row is missed by the row after it.
        """
        if not (self.damaged or self._suspects):
            return
        sound = {group: rows.last for group, rows in self._groups.items() if group not in self.damaged}
        sound |= {group: 0 for group in map(GroupId, range(GROUPS_MAX)) if group not in self._found}
        bases = dict(self._folded)
        before: dict[GroupId, int] = {}
        for key, value in self._all(LOG_ROWS):
            group, number = GroupId(int.from_bytes(key[:2], "big")), keys.NUMBER.unpack(key[2:])[0]
            if group in sound and number > bases.get(group, 0):
                continue
            if group in before and checksum.is_sealed(value, log_seed(key, before[group])):
                before[group] = number  # it follows the one before it
                continue
            owner = self._owner(key, value, sound)
            if owner is None:
                before[group] = number
            else:
                self.damaged[owner] = f"{self._where(owner, 'rows')}: its last row has the key {key.hex()}"
        if self._strays and not self.damaged:
            raise DamagedRow(f"{self._env.path}, rows: no group has the key {self._strays[0].hex()}")

    def _owner(self, key: bytes, value: bytes, sound: Mapping[GroupId, int]) -> GroupId | None:
        """Return the group whose last row this was, under another key."""
        for group, last in sound.items():
            own = keys.group_key(group) + key[2:]
            if own != key and checksum.is_sealed(value, log_seed(own, last)):
                return group
        return None

    def load(self, group: GroupId) -> Durable:
        """Return what the durable records of a group amount to. They are read once, until the next write.

        Raises `DamagedLog` if they are damaged; and `StorageError` if they are as they were written, but make
        no sense: that is a bug, not a disk, and the same at other members.
        """
        if group in self.damaged:
            raise DamagedLog(self.damaged[group], {group: self.damaged[group]})
        if group not in self._loaded:
            try:
                rows = self._load(group)
            except (DamagedRow, lmdb.Error) as error:
                raise DamagedLog(str(error), {group: str(error)}) from error
            self._groups.setdefault(group, rows)
            self._release()
            self._loaded[group] = rows.fold.copy()
        return self._loaded[group]

    def bases(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the keys and values of bases that amount to all records of the groups that are sound."""
        for group in sorted(self._found - {*self.damaged}):
            self.load(group)
            rows = self._groups[group]
            key = keys.group_key(group)
            data = encode(rows.fold.copy().records(), Durable())
            yield key, checksum.seal_base(rows.last, data, checksum.seed_of(LOG_BASES, key))

    def _load(self, group: GroupId) -> _Rows:
        rows = _Rows()
        fold = rows.fold
        base = 0
        where = self._where(group, "base")
        try:
            transaction = self._env.read()
            prefix = keys.group_key(group)
            value = transaction.get(prefix, db=self._env[LOG_BASES])
            if value is not None:
                rows.base_bytes = len(value)
                rows.loaded += 1
                base, data = checksum.unseal_base(value, where, checksum.seed_of(LOG_BASES, prefix))
                decode(data, fold, where, self._payloads, rows.stages)
            rows.last = base
            cursor = transaction.cursor(self._env[LOG_ROWS])
            found = cursor.set_range(keys.row_key(group, base + 1))
            while found and cursor.key().startswith(prefix):
                key, value = cursor.item()
                number = keys.number_of_key(key, self._where(group, "rows"))
                where = self._where(group, f"row {number}")
                record = checksum.unseal(value, where, log_seed(key, rows.last))
                decode(record, fold, where, self._payloads, rows.stages)
                rows.last = number
                rows.loaded += 1
                rows.row_bytes += max(len(value), ROW_BYTES)
                found = cursor.next()
        except InvariantBroken as error:
            raise StorageError(f"{where}: {error}") from error
        return rows

    # Staged payloads

    def stage(self) -> int:
        """Return the number of a payload that is about to be written in pieces."""
        self._last_stage += 1
        self._lengths[self._last_stage] = [0, 0]
        return self._last_stage

    def stage_piece(self, stage: int, data: bytes) -> int:
        """Queue the next piece of a payload; return its number."""
        self._env.check()
        self._pieces_taken += 1
        length = self._lengths[stage]
        self._pieces.append((self._pieces_taken, stage, length[0], data))
        length[0] += 1
        length[1] += len(data)
        return self._pieces_taken

    def refer(self, stage: int, payload: bytes) -> None:
        """From now on records refer to the pieces for this very object."""
        self._payloads.add(stage, payload)

    @property
    def referred(self) -> Container[int]:
        """The identities of objects that records refer to."""
        return self._payloads.numbers

    def unstage(self, stage: int) -> None:
        """Delete the pieces as soon as no record refers to them."""
        self._loose.add(stage)
        self._release()

    def _release(self) -> None:
        """Doom the payloads that no row refers to, and that no later one will.

        A queued record is encoded later, and has such a payload whole.
        """
        if not self._loose or not self._unread <= self._groups.keys():
            return
        used = {stage for rows in self._groups.values() for stage in rows.stages}
        used.update(stage for _, stage, _, _ in self._pieces)
        for stage in sorted(self._loose - used):
            self._loose.discard(stage)
            self._payloads.remove(stage)
            self._doomed[stage] = None
            del self._lengths[stage]

    def _read_staged(self, stage: int) -> bytes:
        where = f"{self._env.path}, staged payload {stage}"
        pieces = []
        transaction, (count, _) = self._env.read(), self._lengths.get(stage, (0, 0))
        for index in range(count):
            key = keys.piece_key(stage, index)
            value = transaction.get(key, db=self._env[LOG_STAGED])
            if value is None:
                raise DamagedRow(f"{where}: piece {index} of {count} is missing")
            pieces.append(checksum.unseal(value, where, checksum.seed_of(LOG_STAGED, key)))
        if not pieces:
            raise DamagedRow(f"{where}: it is missing")
        return b"".join(pieces)

    def write(self, records: Mapping[GroupId, Sequence[Record]]) -> int:
        """Gather a batch, for the next commit that `pump` begins. Return its number."""
        self._env.check()
        self._loaded.clear()
        self._number += 1
        self._gathered.append((self._number, records))
        return self._number

    def pump(self, *, may_wait: bool = False) -> bool:
        """Begin a commit of the gathered batches, if none is under way. Called at the end of each turn.

        If the caller may wait, small commits are made at once. Return whether `durable` has advanced.
        """
        env, before, staged = self._env, self.durable, self.staged
        env.check()
        if before == self._number and not (self._pieces or env.busy):
            return False
        while True:
            if env.busy:
                while self._advance() if may_wait else env.advance():
                    pass
                if env.busy:
                    return False
            self.durable, self.staged = self._started, self._staging
            if self._pieces and (self._started == self._number or self._passed >= PIECES):
                self._start_piece()
            elif self._started != self._number:
                self._start()
            else:
                return self.durable > before or self.staged > staged

    def _advance(self) -> bool:
        began = time.monotonic()
        at_once = self._starting <= self._at_once_bytes and began >= self._slow_until
        more = self._env.advance(at_once=at_once)
        now = time.monotonic()
        if at_once and now - began > SLOW_S:
            self._slow_until = now + PATIENCE_S
        return more

    def _start_piece(self) -> None:
        """Begin a commit of one piece: a small batch that comes meanwhile waits for no more."""
        self._passed = 0
        self._slow_until = time.monotonic() + PATIENCE_S  # the disk is busy: the loop must not wait for it
        number, stage, index, data = self._pieces.popleft()
        key = keys.piece_key(stage, index)
        row = LOG_STAGED, key, checksum.seal(data, checksum.seed_of(LOG_STAGED, key))
        self._staging = number
        self._starting = len(data)
        self._commit_rows([row], partial(self._piece_done, number))

    def _commit_rows(self, rows: Sequence[tuple[bytes, bytes, bytes]], then: Callable[[bool], None]) -> None:
        self._release()
        doomed, self._doomed = tuple(self._doomed), {}
        self._env.start(partial(self._puts, rows, doomed), then)

    def _piece_done(self, number: int, whole: bool) -> None:  # noqa: FBT001 - an outcome
        """Report a commit of a piece, in the thread."""
        if whole:
            self.staged = number
        self._on_durable(self.durable)

    def _start(self) -> None:
        if self._pieces:
            self._passed += 1
        number, gathered = self._take()
        try:
            rows = [self._row(group, number, records) for group, records in gathered.items()]
        except BaseException as error:  # some groups may have been folded, but none is written
            self._env.fail(error)
            raise
        self._started = number
        self._starting = sum(len(value) for _, _, value in rows)
        self._commit_rows(rows, partial(self._done, number))

    def _take(self) -> tuple[int, Mapping[GroupId, Sequence[Record]]]:
        """Return the records of the next commit, and the number of its last batch.

        A commit has all gathered batches, but ends behind a large one: the loop writes a commit in one go.
        """
        if len(self._gathered) == 1:
            return self._gathered.popleft()
        number, size = self._started, 0
        taken: dict[GroupId, list[Record]] = {}
        while self._gathered and size < COMMIT_BYTES:
            number, records = self._gathered.popleft()
            for group, batch in records.items():
                taken.setdefault(group, []).extend(batch)
                size += payload_bytes(batch, self._payloads.numbers)
        return number, taken

    def _row(self, group: GroupId, number: int, records: Sequence[Record]) -> tuple[bytes, bytes, bytes]:
        """Return a database, a key and a value: a row of these records, or a new base."""
        rows = self._groups.get(group)
        if rows is None:
            rows = self._groups[group] = self._load(group)
        used: set[int] = set()
        data = encode(records, rows.fold, self._payloads, used)
        rows.stages |= used
        rows.row_bytes += max(len(data) + checksum.SEAL_BYTES, ROW_BYTES)
        rows.row_bytes += sum(self._lengths[stage][1] for stage in used)
        previous, rows.last = rows.last, number
        if rows.row_bytes <= max(FOLD_BYTES, 4 * rows.base_bytes):
            key = keys.row_key(group, number)
            return LOG_ROWS, key, checksum.seal(data, log_seed(key, previous))
        key = keys.group_key(group)
        seed = checksum.seed_of(LOG_BASES, key)
        rows.stages.clear()
        records = rows.fold.records()
        base = checksum.seal_base(number, encode(records, Durable(), self._payloads, rows.stages), seed)
        rows.base_bytes, rows.row_bytes = len(base), 0
        self._folded[group] = number
        return LOG_BASES, key, base

    def _puts(
        self, rows: Sequence[tuple[bytes, bytes, bytes]], doomed: Iterable[int], transaction: Transaction
    ) -> Puts:
        for database, key, value in rows:
            transaction.put(key, value, db=self._env[database])
        yield len(rows)
        for stage in doomed:
            with transaction.cursor(self._env[LOG_STAGED]) as cursor:
                found = cursor.set_range(keys.piece_key(stage, 0))
                while found and keys.stage_of_key(cursor.key(), "staged") == stage:
                    cursor.delete()
                    found = bool(cursor.key())
        left = SLICE
        for group, number in list(self._folded.items()):
            last = keys.row_key(group, number)
            with transaction.cursor(self._env[LOG_ROWS]) as cursor:
                found = cursor.set_range(keys.group_key(group))
                while found and left and cursor.key() <= last:
                    cursor.delete()
                    found = bool(cursor.key())
                    left -= 1
            if left:
                del self._folded[group]
        yield SLICE - left

    def _done(self, number: int, whole: bool) -> None:  # noqa: FBT001 - an outcome
        """Report a commit, in the thread. The next `pump` repeats one that did not fit into the map."""
        self._on_durable(number if whole else self.durable)

    def distrust(self, reason: str) -> None:
        """Fail, and mark the disk as lost: no process opens it again as it is. Waits for the disk."""
        mark_rolled_back(self._env.path.parent, reason)
        self._env.fail(LostDisk(reason))

    def usage(self) -> Usage:
        """Return what of the file is in use."""
        return self._env.usage()

    @property
    def stalled(self) -> bool:
        """Whether a commit finds no space; it is repeated until there is."""
        return self._env.stalled

    def close(self) -> bool:
        """Write the gathered batches, and close. Waits for the disk. Return whether all are durable."""
        while not self._env.failed:
            self._env.wait()
            try:
                self.pump()
            except StorageError:
                break
            if self._env.stalled:
                break
            if not self._env.busy:
                self.durable = self._number
                break
        return self._env.close()
