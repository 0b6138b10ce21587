"""The clock and the randomness of a client. All logic in `core` takes both from here, as an argument."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple


class Environment(NamedTuple):
    """A clock and a source of randomness. Simulations and tests pass their own."""

    now: Callable[[], float]
    """A monotonic clock, in seconds."""
    rng: random.Random
    """It must not repeat itself in the child of a fork: clients' ids are drawn from it."""


SYSTEM: Final = Environment(time.monotonic, random.SystemRandom())
"""The clock and the randomness of this machine."""
