"""How far a streaming query has written, kept in the store that it writes to.

Spark repeats a micro-batch after a restart, maybe days later, if it cannot know that all of it was written.
All attempts must then use one deadline for the ids of their transactions, or the store would have forgotten
the first ones and execute them again. So the first task of a batch writes the deadline down; and when the
batch is complete, that is written down, too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import wbkv

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.connecting import DEADLINE_S
from wbkv_pipeline.stores import STREAMS


@dataclass(frozen=True, slots=True)
class BatchState:
    """The last batch that was begun."""

    batch: int
    deadline: int
    done: bool = False


class BatchLog:
    """Of one query."""

    def __init__(self, client: wbkv.Client[bytes], query: str) -> None:
        self._client = client
        self._query = query
        self._key = STREAMS + query

    def begin(self, batch: int, *, rewrite: bool) -> int | None:
        """The deadline for all attempts of the batch; None if it is complete."""
        while True:
            entry = self._client.entry(self._key)
            state = None if entry is None else self._read(entry.value)
            now = self._client.revision()
            if state is not None and state.batch >= batch:
                if state.batch > batch:
                    raise PipelineError(
                        f"wbkv: batch {batch} of the query {self._query} comes after its batch "
                        f"{state.batch}: the checkpoint is older than what was written; "
                        "begin with a new checkpoint"
                    )
                if state.done:
                    return None
                if now < state.deadline:
                    return state.deadline
                if not rewrite:
                    raise PipelineError(
                        f"wbkv: batch {batch} of the query {self._query} was begun about a day ago, or "
                        "earlier: which of its rows were written cannot be known any more; "
                        "the option rewrite=true writes all of them, over what was written since"
                    )
            begun = BatchState(batch, wbkv.later(now, DEADLINE_S))
            if self._replace(entry, begun):
                return begun.deadline

    def finish(self, batch: int) -> None:
        """All of the batch is written."""
        while True:
            entry = self._client.entry(self._key)
            state = None if entry is None else self._read(entry.value)
            if state is None or state.batch != batch or state.done:
                return
            if self._replace(entry, BatchState(batch, state.deadline, done=True)):
                return

    def _read(self, value: bytes) -> BatchState:
        try:
            return BatchState(**json.loads(value))
        except (ValueError, TypeError):
            raise PipelineError(
                f"wbkv: the key {self._key} is not what a streaming query writes there: {value[:80]!r}"
            ) from None

    def _replace(self, old: wbkv.Entry[bytes] | None, state: BatchState) -> bool:
        """Unless another task has been faster."""
        key = self._key
        same = wbkv.absent(key) if old is None else wbkv.mod_revision(key) == old.mod_revision
        written = (
            self._client.txn().when(same).then(wbkv.put(key, json.dumps(asdict(state)).encode())).commit()
        )
        return written.succeeded
