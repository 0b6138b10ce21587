"""How long the store keeps things: history, snapshots, and the results of requests.

Every version and every change stays readable until the floor of its partition rises: because a client
compacts the store (`Service.compact`, `wbkv compact`), or because a leader finds it older than history is
kept (`kvstore.store.compactor`). Snapshots (pins) hold back both for as long as they live.

The result of a request is kept until its client acknowledges it, or its deadline has passed: see
`kvstore.machine.sessions`.
"""

from __future__ import annotations

from typing import Final

from multicast.types import TICKS_PER_S

SNAPSHOT_S: Final = 60.0
"""How long a snapshot lives if its client does not say; also how long the history that a new watch begins
with is kept for it."""

SNAPSHOT_S_MAX: Final = 24 * 3600.0
"""The longest life that a client may give a snapshot."""

REQUEST_TICKS: Final = 10 * 60 * TICKS_PER_S
"""How long a request may be repeated if its client sets no deadline: ten minutes."""

REQUEST_TICKS_MAX: Final = 24 * 3600 * TICKS_PER_S
"""The latest deadline that a client may set: a day ahead. Its session is kept that long."""

EXPIRE_S: Final = 60.0
"""How often a leader looks for sessions whose deadlines have passed, and has their results removed."""
