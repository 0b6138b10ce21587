"""A file that gets whole lines, some at a time: what histories and traces are written to."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Final

from wbkv.core.forks import at_fork
from wbkv.errors import Forked

BUFFER_BYTES: Final = 64 << 10
"""About how much is kept before it is written."""


class Lines:
    """It belongs to the process that has made it. Whoever uses it from several threads has a lock."""

    def __init__(self, file: str | os.PathLike[str] | BinaryIO, what: str) -> None:
        """A path is overwritten, a binary file is left open. `what` it is, for errors."""
        if isinstance(file, io.TextIOBase):
            raise TypeError(f"the {what} needs a binary file, or a path")
        self._own = isinstance(file, str | os.PathLike)
        self._file: BinaryIO
        if isinstance(file, str | os.PathLike):
            self._file = open(file, "wb")  # noqa: SIM115 - `close` closes it
        else:
            self._file = file
        self._what = what
        self.foreign = False
        """Whether this process is a fork of the one that has made it."""
        self._waiting: list[str] = []
        self._size = 0
        at_fork(self)

    def forked(self) -> None:
        """The parent writes them."""
        self.foreign = True

    def check(self) -> None:
        """Raise `Forked` in another process."""
        if self.foreign:
            raise Forked(f"a {self._what} does not go with a process into its fork: record another one there")

    def add(self, line: str) -> None:
        """Write it, sooner or later."""
        self.check()
        self._waiting.append(line)
        self._size += len(line)
        if self._size >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet."""
        if self._waiting and not self.foreign:
            self._waiting.append("")
            self._file.write("\n".join(self._waiting).encode())
            self._file.flush()
            self._waiting.clear()
            self._size = 0

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        if self._own:
            self._file.close()
