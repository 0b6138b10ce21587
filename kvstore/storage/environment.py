"""One LMDB environment, and the thread that commits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

import lmdb

from kvstore.config.checks import Durability
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import Identity, check_incarnation
from kvstore.storage.keys import INCARNATION, META

MAP_BYTES: Final = 64 << 20
"""What an environment may grow to before its map is doubled."""

DATABASES_MAX: Final = 32

Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Puts: TypeAlias = Generator[int, None, None]
Steps: TypeAlias = Callable[[Transaction], Puts]
"""Fills a transaction; each step says how many puts it was. It may have to begin again, in another one."""

OnFailure: TypeAlias = Callable[[StorageError], None]


def _commit(transaction: Transaction) -> None:
    """The only call that waits for a disk. Tests put something slow or broken in its place."""
    transaction.commit()


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


class Environment:
    """One LMDB environment: one write transaction at a time, begun in the loop and committed in a thread, or
    in the loop if that is wanted.

    It is opened without LMDB's locks, since its lock for writers belongs to the thread that began. That is
    allowed to whoever sees to it that there is one writer, and that no reader is older than the last commit
    when a write transaction begins. So all reads share one reader, which ends before the next write
    transaction begins; and while the thread commits, when it may be writing the very page that a new reader
    looks at first, it is one that was begun before. What a commit did is seen when `advance` finds it done.
    """

    def __init__(
        self,
        path: Path,
        databases: Iterable[bytes],
        identity: Identity,
        on_failure: OnFailure,
        tables: Iterable[bytes] = (),
    ) -> None:
        """The databases must be there; tables are made when they are first asked for."""
        self.path = path
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

    def read(self) -> Transaction:
        """What is committed. Not to be kept beyond this turn of the loop."""
        self.check()
        if self._reader is None:
            self._reader = self._env.begin()
        return self._reader

    def start(self, steps: Steps, then: Callable[[bool], None]) -> None:
        """Begin a transaction, which `advance` fills."""
        self._job = _Job(steps, then)
        self._begin(self._job)

    def advance(self, puts: int | None = None, *, at_once: bool = False) -> bool:
        """Do so many puts, or all, of the transaction under way. Whether there is more for the loop to do.

        With `at_once` it is committed here, and not in the thread: then it is done, and nobody is called.
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
                return False
            self._grow()
            self._begin(job)
        try:
            return self._fill(job, puts, at_once=at_once)
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
            steps.close()  # its cursors go first
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
            job.finished = job.full = True  # it is done again, in a larger map
            return True
        except OSError as error:
            self.fail(error)
            self.check()
        self._job = None
        self._end_reader()
        return False

    def _end_reader(self) -> None:
        if self._reader is not None:
            self._reader.abort()
            self._reader = None

    def _grow(self) -> None:
        """Double the map. No transaction may be open: neither ours nor a reader's."""
        self._end_reader()
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


def open_environment(path: Path, durability: Durability, *, create: bool) -> lmdb.Environment:
    """The map is not written through: a write to a full disk would be a signal then, and not an error."""
    sync = durability == "fsync"
    data = path / "data.mdb"
    size = data.stat().st_size if data.exists() else 0
    try:
        return lmdb.open(
            str(path),
            map_size=max(MAP_BYTES, 2 * size),
            max_dbs=DATABASES_MAX,
            create=create,
            lock=False,
            sync=sync,
            metasync=sync,
        )
    except lmdb.Error as error:
        raise StorageError(f"{path} cannot be opened: {error}") from error
