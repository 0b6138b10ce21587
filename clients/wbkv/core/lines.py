"""The file of a history or a trace, to which whole lines are written in batches."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Final

from wbkv.core.forks import at_fork
from wbkv.errors import Forked

BUFFER_BYTES: Final = 64 << 10
"""About how many bytes are buffered."""


class Lines:
    """Buffered lines of a file. They belong to the process that opened it; callers lock between threads."""

    def __init__(self, file: str | os.PathLike[str] | BinaryIO, what: str) -> None:
        """Overwrite a path, or write to a binary file, which stays open. Errors call it `what`."""
        if isinstance(file, io.TextIOBase):
            raise TypeError(f"the {what} must be a binary file or a path, not a text file")
        self._own = isinstance(file, str | os.PathLike)
        self._file: BinaryIO
        if isinstance(file, str | os.PathLike):
            self._file = open(file, "wb")  # noqa: SIM115 - `close` closes it
        else:
            self._file = file
        self._what = what
        self.foreign = False
        """Whether this process is a fork of the one that opened the file."""
        self._waiting: list[str] = []
        self._size = 0
        at_fork(self)

    def forked(self) -> None:
        """Leave the file to the parent."""
        self.foreign = True

    def check(self) -> None:
        """Raise `Forked` in the child of a fork."""
        if self.foreign:
            raise Forked(f"a {self._what} of the parent process cannot be used in its fork: open another one")

    def add(self, line: str) -> None:
        """Buffer a line, and flush when the buffer is full."""
        self.check()
        self._waiting.append(line)
        self._size += len(line)
        if self._size >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all buffered lines."""
        if self._waiting and not self.foreign:
            self._waiting.append("")
            self._file.write("\n".join(self._waiting).encode())
            self._file.flush()
            self._waiting.clear()
            self._size = 0

    def close(self) -> None:
        """Flush, and close the file if this object opened it."""
        self.flush()
        if self._own:
            self._file.close()
