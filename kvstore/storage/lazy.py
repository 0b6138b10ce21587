"""Lazy commits of a state: slice by slice, and never before the log."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from kvstore.storage.environment import Environment, OnFailure, Puts, Transaction, Usage
from kvstore.storage.errors import DamagedRow, StorageError
from kvstore.storage.identity import Identity
from multicast.types import GroupId, Timestamp

SLICE: Final = 200
"""Deliveries, puts and deletes of one `pump`."""

ALONE_BYTES: Final = 1 << 20
"""Changes of this size are committed one group at a time, so that the log's small commits need not wait for
all of them on the same disk."""

OnCommitted: TypeAlias = Callable[[Mapping[GroupId, Timestamp]], None]


class PendingCommit(Protocol):
    """The changes of one group in a commit."""

    executed: Timestamp
    """The position that `on_committed` gets."""

    @property
    def size(self) -> int:
        """About how many bytes the change writes."""

    def add(self: C, later: C) -> C:
        """Return both changes as one."""


C = TypeVar("C", bound=PendingCommit)


class LazyState(Generic[C]):
    """A state whose requested commits wait until the log is durable up to their batch. One transaction then
    does all that are ready.
    """

    def __init__(
        self,
        path: Path,
        databases: Iterable[bytes],
        identity: Identity,
        on_committed: OnCommitted,
        on_failure: OnFailure,
        tables: Iterable[bytes] = (),
    ) -> None:
        self._env = Environment(path, databases, identity, on_failure, tables)
        self._on_committed = on_committed
        self._requests: deque[tuple[int, dict[GroupId, C]]] = deque()
        self._writing: dict[GroupId, C] | None = None
        self._putting: GroupId | None = None
        """The group whose change is being written."""
        self.damaged: dict[GroupId, DamagedRow] = {}
        """Groups whose rows were found damaged by a commit, until the caller takes them."""
        self._durable = 0
        self._rest: list[dict[GroupId, C]] = []
        """Parts of the commit under way that follow, in transactions of their own."""
        self._executed: dict[GroupId, Timestamp] = {}
        """The positions of the whole commit under way."""
        self.on_part: Callable[[], None] | None = None
        """Called in the thread when a part of a commit is durable, and the next is due; without it, commits
        have one part."""

    def _where(self, group: GroupId, what: str) -> str:
        return f"{self._env.path}, group {group}, {what}"

    @abstractmethod
    def _puts(self, group: GroupId, change: C, transaction: Transaction) -> Puts:
        """Write a change. May be called again, for another transaction."""

    @abstractmethod
    def _finish(self, group: GroupId, change: C) -> None:
        """Forget a change that is durable and visible to reads."""

    def _request(self, after: int, changes: dict[GroupId, C]) -> None:
        self._requests.append((after, changes))

    def log_durable(self, number: int) -> None:
        """Note that the log's batches up to this one are durable."""
        self._durable = max(self._durable, number)

    def pump(self) -> bool:
        """Do a slice of the commits that are ready. Return whether there is more to do at once."""
        try:
            if self._env.advance(SLICE):
                return True
        except DamagedRow as error:
            self._leave_out(error)
            return True
        if self._env.busy:
            return False
        if self._writing is not None:
            for group, change in self._writing.items():
                self._finish(group, change)
            self._writing = None
        if self._rest:
            self._begin(self._rest.pop(0))
            return True
        changes: dict[GroupId, C] = {}
        while self._requests and self._requests[0][0] <= self._durable:
            _, later = self._requests.popleft()
            for group, change in later.items():
                changes[group] = changes[group].add(change) if group in changes else change
        if not changes:
            return False
        self._executed = {group: change.executed for group, change in changes.items()}
        if self.on_part is not None:
            sizes = {group: change.size for group, change in changes.items()}
            if sum(sizes.values()) >= ALONE_BYTES:
                self._rest = [{group: changes.pop(group)} for group in sorted(sizes, key=sizes.__getitem__)]
                changes = self._rest.pop(0)
        self._begin(changes)
        return True

    def _begin(self, changes: dict[GroupId, C]) -> None:
        """Begin a transaction of these groups. All of a group is in one: groups of a node are as independent
        as groups of different nodes.
        """
        self._writing = changes
        last = not self._rest
        self._env.start(partial(self._all_puts, changes), partial(self._done, self._executed, last=last))

    def _all_puts(self, changes: Mapping[GroupId, C], transaction: Transaction) -> Puts:
        for group, change in changes.items():
            self._putting = group
            yield from self._puts(group, change, transaction)

    def _leave_out(self, error: DamagedRow) -> None:
        """Commit without the group whose rows are damaged: its state is to be restored as a whole."""
        group, changes = self._putting, self._writing or {}
        assert group is not None
        self.damaged[group] = error
        for _, later in self._requests:
            later.pop(group, None)
        self._executed.pop(group, None)
        self._begin({other: change for other, change in changes.items() if other != group})

    def _done(self, executed: Mapping[GroupId, Timestamp], whole: bool, *, last: bool) -> None:  # noqa: FBT001 - an outcome
        """Report a commit, in the thread. The next `pump` repeats one that did not fit into the map."""
        if whole and last:
            self._on_committed(dict(executed))
        elif self.on_part is not None:
            self.on_part()

    def usage(self) -> Usage:
        """Return what of the file is in use."""
        return self._env.usage()

    @property
    def unreadable(self) -> bool:
        """Whether LMDB has failed, and not for want of space: its pages may be damaged."""
        return self._env.failed and not self._env.stalled

    @property
    def stalled(self) -> bool:
        """Whether a commit finds no space; it is repeated until there is."""
        return self._env.stalled

    def close(self) -> bool:
        """Do the commits that are ready, and close. Return whether all of them are durable."""
        while not self._env.failed:
            self._env.wait()
            try:
                while self.pump():
                    pass
            except StorageError:
                break
            if self._env.stalled or not self._env.busy:
                break
        return self._env.close()
