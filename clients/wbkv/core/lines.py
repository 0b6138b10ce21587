"""A file that gets whole lines, some at a time: what histories and traces are written to."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, Final

from wbkv.errors import Forked

BUFFER_BYTES: Final = 64 << 10


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
        self._pid = os.getpid()
        self._buffer = bytearray()

    def check(self) -> None:
        """Raise `Forked` in another process."""
        if os.getpid() != self._pid:
            raise Forked(f"a {self._what} does not go with a process into its fork: record another one there")

    def add(self, line: str) -> None:
        """Write it, sooner or later."""
        self.check()
        self._buffer += line.encode()
        self._buffer += b"\n"
        if len(self._buffer) >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet."""
        if os.getpid() == self._pid and self._buffer:
            self._file.write(self._buffer)
            self._file.flush()
            self._buffer.clear()

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        if self._own:
            self._file.close()
