"""Traces of crashes: whether a node's last process crashed, or was ended from outside.

LMDB ends a process that reads damaged pages, by an assertion or a signal. Such a death counts
(`storage.lives`), and after several of them the next start checks all pages, which takes long. A process
that is killed, by an operator, by the kernel for lack of memory, or with its machine, says nothing of damage.

So a node keeps a file open into which a fatal signal writes a stack trace. An orderly end removes the file.
If the next process finds it empty, the last one was ended from outside, and that death does not count.
"""

from __future__ import annotations

import faulthandler
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore.config.private import open_private
from kvstore.storage import lives

logger = logging.getLogger(__name__)


@contextmanager
def crash_trace(file: Path, disk: Path) -> Iterator[None]:
    """Let a crash of this process write its stacks to the file. Judge the last process by the file."""
    last = file.read_bytes() if file.exists() else None
    if last == b"":
        lives.forgive(disk)
    elif last:
        logger.critical("this node's last process crashed:\n%s", last.decode(errors="replace").rstrip())
    with open(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as trace:
        faulthandler.enable(trace)
        try:
            yield
        finally:
            faulthandler.disable()
            file.unlink(missing_ok=True)
