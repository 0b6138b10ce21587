"""Files that only their owner may read: all that a node writes, whatever the process's umask.

Files have mode 0600, folders 0700. Folders of earlier versions are tightened when a node or a cluster opens
them.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_OTHERS: Final = 0o077


def open_private(path: Path | str, flags: int) -> int:
    """Open a file, which is created, or left, with mode 0600; return its descriptor."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
    try:
        if os.fstat(descriptor).st_mode & _OTHERS:
            os.fchmod(descriptor, FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_private(folder: Path) -> None:
    """Create a folder, and missing ones above it, with mode 0700. An existing one stays as it is."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(FOLDER_MODE, exist_ok=True)
        each.chmod(FOLDER_MODE)


def tighten(folder: Path, inside: Iterable[Path]) -> None:
    """Take other users' access from a folder of an earlier version, and from what is inside; log it."""
    changed = [each for each in (folder, *inside) if _close(each)]
    if changed:
        logger.info("%s: took other users' access from %d files and folders", folder, len(changed))


def warn_if_readable(file: Path) -> None:
    """Log a warning if every user of this machine may read a file with a secret, which is an operator's."""
    mode = file.stat().st_mode
    if mode & 0o007:
        logger.warning(
            "%s has the cluster's secret, and its mode (%o) gives every user access: run `chmod 600 %s`",
            file, stat.S_IMODE(mode), file,
        )  # fmt: skip


def _close(path: Path) -> bool:
    """Take other users' access from one file or folder; return whether there was any."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or not mode & _OTHERS:
            return False
        path.chmod(FOLDER_MODE if stat.S_ISDIR(mode) else FILE_MODE)
    except FileNotFoundError:
        return False
    except PermissionError as error:
        logger.warning("%s: other users have access (mode %o), and it cannot be taken: %s", path, mode, error)
        return False
    return True
