"""Registers: a read shows one value, so the order of a key's versions must be inferred.

Four things are sure, and nothing else is used:

- Before all writes a key is absent.
- A transaction that read one version and wrote another put its own right behind what it read. Versions tied
  together like that form a *block*, in which nothing else can stand.
- Whatever one transaction saw or wrote of a key before another began came before what the other saw or
  wrote: so real time orders blocks (only where real time counts).
- Revisions, where they are recorded; what follows from them is told apart (`revisions.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from wbkv.checker.dependencies import BY_REVISION, BY_TIME, RW, WR, WW, Dependencies, Predecessor, Successor
from wbkv.checker.history import (
    FAIL,
    NEVER,
    NOTHING,
    ODD,
    OK,
    READ,
    UNKNOWN,
    HistoryColumns,
    Operation,
    called,
    show,
)
from wbkv.checker.model import Model
from wbkv.checker.updates import Updates


class Registers(Model):
    """The reads of each register, and the dependencies that follow from them."""

    name = "register"
    write = "w"
    written = "a value"

    def shown(self, key: int, value: int) -> object:
        """Return the result of a read."""
        return None if value == NOTHING else self._history.values[value]

    def observe(self, transaction: int, operations: list[Operation]) -> None:
        """Record a transaction with its results."""
        history = self._history
        known: dict[int, int] = {}
        outside: dict[int, int] = {}
        last: dict[int, int] = {}
        for function, name, value in operations:
            key = self._key(name)
            if function == "w":
                self._add_write(transaction, key, value, last)
                known[key] = last[key]
                continue
            seen = NOTHING if value is None else history.value_number(key, self._scalar(value))
            if known.setdefault(key, seen) != seen:
                expected = show(self.shown(key, known[key]))
                text = f"read {show(value)} from {show(name)}, which must be {expected} by its own operations"
                history.find("internal", f"{called(transaction)} {text}", transaction)
                history.odd[history.add_operation(READ, key, ODD)] = value
                continue
            history.add_operation(READ, key, seen)
            if key not in last:
                outside[key] = seen
        self._end(transaction, last, outside)

    def infer(self, dependencies: Dependencies) -> bytearray:
        """Infer all dependencies. Return which transactions were executed."""
        history = self._history
        happened = bytearray(status == OK for status in history.status)
        found = []
        for key in range(len(self._reads)):
            readers: dict[int, list[int]] = {}
            updates = Updates()
            for transaction, value, writes in zip(*self._reads[key], strict=True):
                if self._is_spoiled(transaction, key, value, happened):
                    continue
                readers.setdefault(value, []).append(transaction)
                if writes:
                    updates.add(value, transaction)
            found.append((readers, updates))
        for key, (readers, updates) in enumerate(found):
            _Key(history, key, readers, updates, happened).infer(dependencies)
            updates.report(history, key)
        return happened

    def _is_spoiled(self, transaction: int, key: int, value: int, happened: bytearray) -> bool:
        """Return whether a read is impossible in any serial execution. It is reported at once."""
        if value == NOTHING:
            return False
        history = self._history
        writer = history.writer[value]
        text = f"{called(transaction)} read {show(history.values[value])} from {show(history.keys[key])}"
        if writer == NOTHING:
            history.find("unwritten", f"{text}, which nobody wrote", transaction)
        elif writer == transaction:
            history.find("internal", f"{text} before it wrote that itself", transaction)
        elif history.status[writer] == FAIL:
            text = f"{text}, which {called(writer)} wrote, but {called(writer)} failed"
            history.find("G1a", text, transaction, writer)
        else:
            if history.status[writer] == UNKNOWN:
                happened[writer] = 1
            if history.final[value]:
                return False
            text = f"{text}, which was not the last that {called(writer)} wrote to it"
            history.find("G1b", text, transaction, writer)
        return True


class _Key:
    """The order of one key's versions, as far as it is certain."""

    def __init__(
        self,
        history: HistoryColumns,
        key: int,
        readers: dict[int, list[int]],
        updates: Updates,
        happened: bytearray,
    ) -> None:
        self._history = history
        self._key = key
        self._readers = readers
        self._final: dict[int, int] = {}
        """By transaction: the last version that it wrote."""
        for number in history.numbers[key].values():
            writer = history.writer[number]
            if writer != NOTHING and happened[writer] and history.final[number]:
                self._final[writer] = number
        self._next = {
            version: self._final[transaction]
            for version, transaction in updates.first()
            if transaction in self._final
        }
        follows = set(self._next.values())
        self._first = self._block(NOTHING)
        self._blocks = [self._block(number) for number in self._final.values() if number not in follows]

    def _block(self, version: int) -> list[int]:
        block = [version]
        while (version := self._next.get(version, NOTHING)) != NOTHING:
            block.append(version)
        return block

    def infer(self, to: Dependencies) -> None:
        """Add edges by values and by real time."""
        writer, key = self._history.writer, self._key
        for version, transactions in self._readers.items():
            if version != NOTHING:
                for transaction in transactions:
                    to.add(WR, writer[version], transaction, key, version, NOTHING)
        for version, following in self._next.items():
            to.join(self._predecessors(version), [Successor(writer[following], following)], key)
        heads = [Successor(writer[block[0]], block[0]) for block in self._blocks]
        to.join(self._predecessors(self._first[-1]), heads, key)
        if len(self._blocks) > 1:
            self._infer_by_time(to)
        self._infer_by_revision(to)

    def _predecessors(self, version: int) -> list[Predecessor]:
        """Return the predecessors of the versions after this one: its writer and its readers."""
        predecessors = [Predecessor(RW, reader, version) for reader in self._readers.get(version, ())]
        if version != NOTHING:
            predecessors.append(Predecessor(WW, self._history.writer[version], version))
        return predecessors

    def _infer_by_time(self, to: Dependencies) -> None:
        """A block precedes another if a transaction that knew it ended before one began that knew the other.

        If both precede each other, one of the two is kept, that of the block which was known first: the
        contradiction shows in the graph all the same, by the real time of those who knew the blocks. What
        follows by way of a third block is left out.
        """
        zones = [self._zone(block) for block in self._blocks]
        by_start = sorted(range(len(zones)), key=lambda index: zones[index][0])
        starts = [zones[index][0] for index in by_start]
        for index, (start, end) in enumerate(zones):
            successors: list[Successor] = []
            bound = NEVER
            for position in range(bisect_right(starts, end), len(by_start)):
                other = by_start[position]
                other_start, other_end = zones[other]
                if other_start > bound:
                    break
                if other == index or (other_end < start and (other_end, other) < (end, index)):
                    continue
                bound = min(bound, other_end)
                head = self._blocks[other][0]
                successors.append(Successor(self._history.writer[head], head))
            if successors:
                to.join(self._predecessors(self._blocks[index][-1]), successors, self._key, BY_TIME)

    def _infer_by_revision(self, to: Dependencies) -> None:
        """Add the order of versions that have a revision."""
        revision = self._history.revision
        known = sorted(
            (revision[t], t, version) for t, version in self._final.items() if revision[t] != NOTHING
        )
        for (_, _, version), (_, transaction, following) in pairwise(known):
            to.join(self._predecessors(version), [Successor(transaction, following)], self._key, BY_REVISION)

    def _zone(self, block: list[int]) -> tuple[int, int]:
        """Return the last beginning and the first end of the transactions that read or wrote the block."""
        history = self._history
        known = [history.writer[version] for version in block]
        for version in block:
            known += self._readers.get(version, ())
        return max(history.start[t] for t in known), min(history.end[t] for t in known)
