"""A worker's connection to the store."""

from __future__ import annotations

from typing import Final

import wbkv

from wbkv_pipeline.source.options import SourceOptions

TIMEOUT_S: Final = 30.0
"""For a call with all its attempts. A group has another leader within a second, or a few if it is busy."""

DEADLINE_S: Final = 23 * 3600.0
"""How long an id keeps a transaction from being executed again: the store's day, with an hour to spare."""


WAIT_S: Final = 10.0
"""How long to look for a node in the middle of a job, where all may be busy. At `load()` that is an error at
once.
"""


def connect(options: SourceOptions, *, wait_s: float = WAIT_S) -> wbkv.Client[bytes]:
    """A client, to be closed after use."""
    return wbkv.connect(options.endpoints, timeout=TIMEOUT_S, wait=wait_s)
