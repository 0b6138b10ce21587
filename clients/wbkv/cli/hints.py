"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

HABITS: Final = {
    "delete": "del", "else": "otherwise", "if": "when", "incr": "add", "increment": "add", "list": "scan",
    "ls": "scan", "maximum": "max", "minimum": "min", "remove": "del", "rm": "del", "set": "put",
    "start": "up", "stop": "down",
}  # fmt: skip
"""Names in other tools, for which similarity of spelling suggests nothing, or the wrong name."""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return a hint for the end of an error message; empty if no known word is similar."""
    import difflib  # loaded only after a mistake

    meant = HABITS.get(word.lower())
    if meant not in known:
        meant = next(iter(difflib.get_close_matches(word.lower(), sorted(known), n=1)), None)
    return f": did you mean {meant}?" if meant else ""
