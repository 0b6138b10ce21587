"""One LMDB environment, and the thread that commits its transactions."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeAlias

import lmdb

from kvstore.config.checks import Durability
from kvstore.config.private import FILE_MODE, make_private
from kvstore.storage.errors import DamagedRow, StorageError
from kvstore.storage.identity import Identity, check_incarnation
from kvstore.storage.keys import INCARNATION, META
from kvstore.storage.meta_page import DATA
from kvstore.storage.space import free_bytes

MAP_BYTES: Final = 64 << 20
"""The first size of an environment's map, which is doubled when it is full."""

DATABASES_MAX: Final = 32

META_PAGES: Final = 2
"""Pages at the beginning of a file that name the last two commits."""

STALLED_S: Final = 0.5
"""How soon a transaction that found no space is repeated."""

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)

SHORT_BYTES: Final = 4 << 20
"""With less free space than this, a commit that fails is one that found no space."""

SIZE_S: Final = 1.0
"""How often the length of the file is looked at."""

Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Puts: TypeAlias = Generator[int, None, None]
Steps: TypeAlias = Callable[[Transaction], Puts]
"""Fills a transaction, in steps that yield their number of puts. May be called again, for another one."""

OnFailure: TypeAlias = Callable[[StorageError], None]


def _commit(transaction: Transaction) -> None:
    """Commit: the only call that waits for a disk. Tests replace it by a slow or failing one."""
    transaction.commit()


class Usage(NamedTuple):
    """What of an environment's file is in use, as last committed."""

    used: int
    """Bytes of pages that hold anything."""
    free: int
    """Bytes of pages that later writes use again. The file does not shrink by itself: see `reclamation`."""

    @property
    def file(self) -> int:
        """The length of the file."""
        return self.used + self.free


@dataclass(slots=True)
class _Job:
    """A transaction under way."""

    steps: Steps
    then: Callable[[bool], None]
    """Called in the thread, with True after a commit, with False if it needs a larger map."""
    filling: tuple[Transaction, Puts] | None = None
    """The transaction and its steps, while the loop fills it."""
    finished: bool = False
    full: bool = False
    """Whether it did not fit into the map, or found no space."""
    again_at: float = 0.0
    """When to try again, after it found no space."""


class Environment:
    """An LMDB environment: one write transaction at a time, begun in the loop and committed in a thread, or
    in the loop on request.

    The environment is opened without LMDB's locks, since a thread owns the write lock that it acquires. LMDB
    then requires a single writer, and no reader older than the last commit when a write transaction begins.
    So all reads share one reader, which ends before the next write transaction begins. While the thread
    commits, it may be writing the page that a new reader reads first; reads then use a reader that began
    before. A commit becomes visible when `advance` finds it done.
    """

    def __init__(
        self,
        path: Path,
        databases: Iterable[bytes],
        identity: Identity,
        on_failure: OnFailure,
        tables: Iterable[bytes] = (),
    ) -> None:
        """Open the environment. The databases must exist; missing tables are created."""
        self.path = path
        self._file = str(path / DATA)
        self._size = 0
        """The length of the file when it was last looked at."""
        self._size_at = 0.0
        self._on_failure = on_failure
        self._env = open_environment(path, identity.durability, create=False)
        try:
            self._databases = {name: self._env.open_db(name, create=False) for name in databases}
            with self._env.begin() as transaction:
                value = transaction.get(INCARNATION, b"", db=self._databases[META])
            check_incarnation(path, identity, value)
            self._databases.update({name: self._env.open_db(name) for name in tables})
        except lmdb.Error as error:
            self._env.close()
            raise DamagedRow(f"{path} is not a valid environment: {error}") from error
        except StorageError:
            self._env.close()
            raise
        self._failure: StorageError | None = None
        self.stalled = False
        """Whether the transaction under way found no space, and is repeated until there is."""
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
        """Raise `StorageError` if the disk has failed, is closed, or is being closed by another thread."""
        if self._closer is not None and self._closer != threading.get_ident():
            raise StorageError(f"{self.path} is closed")
        if self._failure is not None:
            raise StorageError(str(self._failure)) from self._failure

    @property
    def failed(self) -> bool:
        """Whether the disk has failed: it accepts no more writes."""
        return self._failure is not None

    @property
    def busy(self) -> bool:
        """Whether a transaction is under way."""
        return self._job is not None

    def read(self) -> Transaction:
        """Return the reader of what is committed. It must not be kept beyond this turn of the loop."""
        self.check()
        if self._reader is None:
            self._reader = self._env.begin()
        return self._reader

    def usage(self) -> Usage:
        """Return what of the file is in use. It takes no longer for a larger file."""
        return usage_of(self._file, self._env, self.read(), self._databases.values())

    def start(self, steps: Steps, then: Callable[[bool], None]) -> None:
        """Begin a transaction, which `advance` fills."""
        self._check_size()
        self._job = _Job(steps, then)
        self._begin(self._job)

    def advance(self, puts: int | None = None, *, at_once: bool = False) -> bool:
        """Do `puts` puts, or all, of the transaction under way. Return whether the loop has more to do.

        Raises `DamagedRow`, and gives the transaction up, if its steps do.
        With `at_once` the loop commits, not the thread, and no callback is called.
        """
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
                self.stalled = False
                return False
            if job.again_at:
                if time.monotonic() < job.again_at:
                    return False
                job.again_at = 0.0
            else:
                self._grow()
            self._begin(job)
        try:
            return self._fill(job, puts, at_once=at_once)
        except lmdb.MapFullError:
            self._abort(job)
            self._grow()
            self._begin(job)
            return True
        except DamagedRow:
            self._abort(job)
            self._job = None
            raise
        except BaseException as error:  # of any kind: half a transaction must not be committed
            self._abort(job)
            if self._stall(job, error):
                return False
            self.fail(error)
            if isinstance(error, lmdb.Error):
                self.check()
            raise

    def _check_size(self) -> None:
        """Fail if the file has become shorter: to read what is gone would be a signal, not an error."""
        now = time.monotonic()
        if now < self._size_at:
            return
        self._size_at = now + SIZE_S
        size = os.stat(self._file).st_size
        if size < self._size:
            self.fail(OSError(f"its file was truncated from {self._size} to {size} bytes while in use"))
            self.check()
        self._size = size

    def _begin(self, job: _Job) -> None:
        self._end_reader()
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
            steps.close()  # closes its cursors, before their transaction
            transaction.abort()

    def _fill(self, job: _Job, puts: int | None, *, at_once: bool) -> bool:
        assert job.filling is not None
        transaction, steps = job.filling
        done = 0
        for count in steps:
            done += count
            if puts is not None and done >= puts:
                return True
        if at_once:
            return self._commit_here(job, transaction)
        self.read()
        job.filling = None
        self._idle.clear()
        self._jobs.put((job, transaction))
        return False

    def _commit_here(self, job: _Job, transaction: Transaction) -> bool:
        job.filling = None
        try:
            _commit(transaction)
        except lmdb.MapFullError:
            job.finished = job.full = True  # repeated by `advance`, in a larger map
            return True
        except (lmdb.Error, OSError) as error:
            if self._stall(job, error):
                return False
            self.fail(error)
            self.check()
        self._job = None
        self.stalled = False
        self._end_reader()
        return False

    def _stall(self, job: _Job, error: BaseException) -> bool:
        """Repeat a transaction later, if it found no space. Return whether it did.

        Nothing of it is there then: LMDB names the pages of a transaction last, in a page that exists. Reads
        go on. LMDB reports a write that did not fit as a whole as EIO.
        """
        code = getattr(error, "code", None)
        if code not in NO_SPACE and not (code == errno.EIO and free_bytes(self.path) < SHORT_BYTES):
            return False
        job.again_at = time.monotonic() + STALLED_S
        job.finished = job.full = self.stalled = True
        return True

    def _end_reader(self) -> None:
        if self._reader is not None:
            self._reader.abort()
            self._reader = None

    def _grow(self) -> None:
        """Double the map. No transaction may be open, neither a writer nor a reader."""
        self._end_reader()
        try:
            self._env.set_mapsize(2 * self._env.info()["map_size"])
        except lmdb.Error as error:
            self.fail(error)
            self.check()

    def _work(self) -> None:
        """Commit transactions, in the thread."""
        while (found := self._jobs.get()) is not None:
            job, transaction = found
            try:
                _commit(transaction)
            except lmdb.MapFullError:
                job.full = True
            except (lmdb.Error, OSError) as error:
                if not self._stall(job, error):
                    self.fail(error)
                    self._idle.set()
                    continue
            job.finished = True
            self._idle.set()
            if self._closer is None:
                job.then(not job.full)

    def fail(self, error: BaseException) -> None:
        """Accept no more writes, and call `on_failure`, once. May be called in any thread."""
        if self._failure is None:
            failure = StorageError(f"{self.path} has failed: {error}")
            failure.__cause__ = error
            self._failure = failure
            if self._closer is None:
                self._on_failure(failure)

    def wait(self) -> None:
        """Wait until the thread is idle, to close: from now on calls of other threads and callbacks end."""
        self._closer = threading.get_ident()
        self._idle.wait()

    def close(self) -> bool:
        """Close, and return whether all commits are durable. A transaction not yet in the thread is lost."""
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
        whole = not (self.failed or self.stalled)
        self._failure = self._failure or StorageError(f"{self.path} is closed")
        return whole


def usage_of(
    file: str, env: lmdb.Environment, transaction: Transaction, databases: Iterable[lmdb._Database]
) -> Usage:
    """Return what of an environment's file is in use."""
    main = env.stat()
    pages = META_PAGES
    for stat in (main, *map(transaction.stat, databases)):
        pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    used = pages * main["psize"]
    return Usage(used, max(os.stat(file).st_size - used, 0))


def open_environment(path: Path, durability: Durability, *, create: bool) -> lmdb.Environment:
    """Open LMDB without a writable map, in which a write to a full disk would be a signal, not an error."""
    sync = durability == "fsync"
    data = path / DATA
    size = data.stat().st_size if data.exists() else 0
    try:
        if create:
            make_private(path)
        return lmdb.open(
            str(path),
            mode=FILE_MODE,
            map_size=max(MAP_BYTES, 2 * size),
            max_dbs=DATABASES_MAX,
            create=create,
            lock=False,
            sync=sync,
            metasync=sync,
        )
    except lmdb.Error as error:
        raise StorageError(f"{path} cannot be opened: {error}") from error
