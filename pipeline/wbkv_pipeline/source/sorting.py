"""An external sort: rows that exceed the memory limit go to files.

A repeated task gets its rows in another order, since a shuffle yields rows as they arrive. Sorted, they are
the same sequence again, so two attempts make the same transactions.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from heapq import merge
from itertools import chain
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

MEMORY: Final = 64 << 20
_CHUNK: Final = 1024
"""Rows of a file that are in memory at a time."""


class Sorter:
    """Sorts rows by their first two columns. Use it in a `with` block, whose end removes the files."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._memory = memory
        self._batches: list[pa.RecordBatch] = []
        self._size = 0
        self._folder: Path | None = None
        self._files: list[Path] = []
        self._last: pa.Table | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def files(self) -> int:
        """The number of files written."""
        return len(self._files)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. All batches have the same schema. Must not be called after `rows`."""
        if self._last is not None:
            raise RuntimeError("rows cannot be added after rows() was called")
        self._batches.append(batch)
        self._size += batch.get_total_buffer_size()
        if self._size >= self._memory:
            self._spill(self._sorted())

    def _sorted(self) -> pa.Table:
        table = pa.Table.from_batches(self._batches)
        self._batches, self._size = [], 0
        return table.sort_by([(name, "ascending") for name in table.column_names[:2]])

    def _spill(self, table: pa.Table) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="wbkv-sort-"))
        file = self._folder / str(len(self._files))
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=_CHUNK)
        self._files.append(file)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield all rows in order. May be called repeatedly."""
        if self._last is None and self._batches:
            self._last = self._sorted()
        runs = [_of_file(file) for file in self._files]
        if self._last is not None:
            runs.append(_of_batches(iter(self._last.to_batches(max_chunksize=_CHUNK))))
        return runs[0] if len(runs) == 1 else merge(*runs, key=itemgetter(0, 1))


def _of_file(file: Path) -> Iterator[tuple[Any, ...]]:
    # Not a memory map: its pages would count as the task's.
    with pa.OSFile(str(file), "rb") as stored, pa.ipc.open_file(stored) as reader:
        yield from _of_batches(reader.get_batch(number) for number in range(reader.num_record_batches))


def _of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    return chain.from_iterable(
        zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches
    )
