"""The progress of a streaming query, kept in the store that the query writes to.

Spark repeats a micro-batch after a restart, perhaps days later, unless it knows that all of the batch was
written. All attempts must use one deadline for the ids of their transactions: otherwise the store would have
forgotten the first ids, and would execute the transactions again. So the first task of a batch records the
deadline, and the driver records the batch's completion.
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
    """The last batch that a query has begun."""

    batch: int
    deadline: int
    done: bool = False


class BatchLog:
    """The record of one query's batches."""

    def __init__(self, client: wbkv.Client[bytes], query: str) -> None:
        self._client = client
        self._query = query
        self._key = STREAMS + query

    def begin(self, batch: int, *, rewrite: bool) -> int | None:
        """Return the deadline for all attempts of the batch, or None if the batch is complete.

        Raises `PipelineError` if a later batch has begun, or if the deadline has passed without `rewrite`.
        """
        while True:
            entry = self._client.entry(self._key)
            state = None if entry is None else self._read(entry.value)
            now = self._client.revision()
            if state is not None and state.batch >= batch:
                if state.batch > batch:
                    raise PipelineError(
                        f"wbkv: batch {batch} of the query {self._query} comes after its batch "
                        f"{state.batch}: the checkpoint is stale; begin with a new checkpoint"
                    )
                if state.done:
                    return None
                if now < state.deadline:
                    return state.deadline
                if not rewrite:
                    raise PipelineError(
                        f"wbkv: batch {batch} of the query {self._query} began about a day ago, or "
                        "earlier: which of its rows were written is no longer known; "
                        "the option rewrite=true writes all of them, over later values"
                    )
            begun = BatchState(batch, wbkv.later(now, DEADLINE_S))
            if self._replace(entry, begun):
                return begun.deadline

    def finish(self, batch: int) -> None:
        """Record that all of the batch is written."""
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
                f"wbkv: the key {self._key} does not hold a streaming query's progress: {value[:80]!r}"
            ) from None

    def _replace(self, old: wbkv.Entry[bytes] | None, state: BatchState) -> bool:
        """Write the state, and return True, unless another task has replaced the old one first."""
        key = self._key
        same = wbkv.absent(key) if old is None else wbkv.mod_revision(key) == old.mod_revision
        written = (
            self._client.txn().when(same).then(wbkv.put(key, json.dumps(asdict(state)).encode())).commit()
        )
        return written.succeeded
