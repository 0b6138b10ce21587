"""Durable marks of groups: files beside the environments, one for each group and kind of mark.

A mark says something of a group's state that must survive a restart, although the state itself cannot say it:
that it is damaged, or where it was copied from. That the file exists is the mark; its text is for people, and
for what a mark of its kind needs. So damage of a mark's bytes does not remove it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kvstore.config.private import open_private
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import sync_directory
from multicast.types import GroupId

ASIDE: Final = "aside"
"""The group's state is damaged: its replica starts without it, until another one is durable."""

COPIED: Final = "copied"
"""The group's state was copied from the member that the text names, and no third one has confirmed it."""

TEXT_MAX: Final = 4096


class GroupMarks:
    """All marks of one kind on a disk."""

    def __init__(self, folder: Path, kind: str) -> None:
        """Read the marks of a disk's folder."""
        self._folder = folder
        self._kind = kind
        self._texts: dict[GroupId, str] = {}
        for file in folder.glob(f"{kind}-*"):
            number = file.name.removeprefix(f"{kind}-")
            if number.isascii() and number.isdecimal():
                with file.open("rb") as opened:
                    text = opened.read(TEXT_MAX).decode(errors="replace")
                self._texts[GroupId(int(number))] = text

    def get(self, group: GroupId) -> str | None:
        """Return the text of a group's mark, if it has one."""
        return self._texts.get(group)

    def put(self, group: GroupId, text: str) -> None:
        """Mark a group. The mark is durable when this returns; only rare events may wait so for a disk."""
        if self._texts.get(group) == text:
            return
        file = self._file(group)
        new = file.with_name(f"new-{file.name}")
        try:
            with open(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as opened:
                opened.write(text.encode()[:TEXT_MAX])
                opened.flush()
                os.fsync(opened.fileno())
            new.replace(file)
            sync_directory(self._folder)
        except OSError as error:
            raise StorageError(f"{file} cannot be written: {error.strerror}") from error
        self._texts[group] = text

    def remove(self, group: GroupId) -> None:
        """Remove a group's mark, if it has one, durably."""
        if self._texts.pop(group, None) is None:
            return
        try:
            self._file(group).unlink(missing_ok=True)
            sync_directory(self._folder)
        except OSError as error:
            raise StorageError(f"{self._file(group)} cannot be removed: {error.strerror}") from error

    def _file(self, group: GroupId) -> Path:
        return self._folder / f"{self._kind}-{group}"
