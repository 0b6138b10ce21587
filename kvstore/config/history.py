"""How long a store keeps its history by itself: a time, as in "1d", and a limit of bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvstore.config.checks import ConfigError, show

FOREVER: Final = "forever"
KEEP_HISTORY: Final = "1d"
"""How long new clusters of `wbkv up` and new embedded stores keep history."""

UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

KEEP_MAX_S: Final = 3650 * UNITS_S["d"]

KEEP_BYTES_MIN: Final = 1 << 20

KEEP_KEYS: Final = ("keep_history", "keep_history_bytes")
"""The keys of the configuration's table `store`."""

_TIME, _BYTES = [("store", key) for key in KEEP_KEYS]


@dataclass(frozen=True, slots=True)
class KeepHistory:
    """What leaders keep of their groups' history. Nodes need not agree on it, and it may be changed."""

    seconds: int | None = None
    """None: for ever."""
    bytes: int | None = None
    """The size of a node's state beyond which the oldest history goes earlier. None: there is no limit."""

    def __post_init__(self) -> None:
        if self.seconds is not None and not 1 <= self.seconds <= KEEP_MAX_S:
            most = show_duration(KEEP_MAX_S)
            remedy = 'to keep everything, write "forever"'
            raise ConfigError(f"{self.seconds} s is not in 1s..{most}; {remedy}", _TIME)
        if self.bytes is not None and not KEEP_BYTES_MIN <= self.bytes < 2**63:
            raise ConfigError(
                f"{self.bytes} is not in {KEEP_BYTES_MIN}..2^63-1; leave it out for no limit", _BYTES
            )

    @classmethod
    def read(cls, text: object, size: int | None = None) -> KeepHistory:
        """Return what a text such as "1d" means. Raises `ConfigError`."""
        return cls(parse_duration(text), size)

    @property
    def shown(self) -> str:
        """The time as the configuration has it."""
        return show_duration(self.seconds)


def parse_duration(text: object) -> int | None:
    """Return the seconds of a duration; None for "forever". Raises `ConfigError`."""
    if text == FOREVER:
        return None
    found = re.fullmatch(r"([0-9]{1,12})([smhd])", text) if isinstance(text, str) else None
    if found is None:
        remedy = 'write a whole number and s, m, h or d, such as "90s", "15m", "12h" or "1d", or "forever"'
        raise ConfigError(f"{show(text)} is not a duration; {remedy}", _TIME)
    return int(found[1]) * UNITS_S[found[2]]


def show_duration(seconds: int | None) -> str:
    """Return a duration with the largest unit that divides it."""
    if seconds is None:
        return FOREVER
    unit = next(unit for unit in "dhms" if seconds % UNITS_S[unit] == 0)
    return f"{seconds // UNITS_S[unit]}{unit}"
