"""A worker's connection to the store."""

from __future__ import annotations

from typing import Final

import wbkv

from wbkv_pipeline.source.options import SourceOptions

TIMEOUT_S: Final = 30.0
"""Of a call, all attempts included. A group elects a new leader within a second, or a few if it is busy."""

DEADLINE_S: Final = 23 * 3600.0
"""How long an id prevents a second execution: a day in the store, less an hour of margin."""

WAIT_S: Final = 10.0
"""How long a task waits for a node, since all may be busy during a job. `load()` does not wait."""


def connect(options: SourceOptions, *, wait_s: float = WAIT_S) -> wbkv.Client[bytes]:
    """Return a client. The caller closes it."""
    return wbkv.connect(options.endpoints, timeout=TIMEOUT_S, wait=wait_s)
