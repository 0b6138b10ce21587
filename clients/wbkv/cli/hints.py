"""What somebody may have meant who wrote something that does not exist."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

HABITS: Final = {
    "delete": "del",
    "else": "otherwise",
    "if": "when",
    "incr": "add",
    "increment": "add",
    "list": "scan",
    "ls": "scan",
    "maximum": "max",
    "minimum": "min",
    "remove": "del",
    "rm": "del",
    "set": "put",
    "start": "up",
    "stop": "down",
}
"""What other tools call these things, where the letters alone would suggest nothing or the wrong one."""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """A hint to put behind a complaint: empty if nothing comes near."""
    import difflib  # only who has made a mistake waits for it

    meant = HABITS.get(word.lower())
    if meant not in known:
        meant = next(iter(difflib.get_close_matches(word.lower(), sorted(known), n=1)), None)
    return f": did you mean {meant}?" if meant else ""
