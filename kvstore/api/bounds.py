"""How large the reply to a request can become, by the limits alone: what is reserved before it begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.machine.operations import ENTRY_BYTES, RESULTS_BYTES
from kvstore.machine.request import Limits

REPLY_BYTES: Final = 512
"""Of a reply beside its results."""


class Bounds:
    """The bounds under some limits."""

    __slots__ = ("_entry", "_limits", "_most")

    def __init__(self, limits: Limits, partitions: int, response_bytes: int) -> None:
        self._limits = limits
        self._entry = limits.key_bytes + limits.value_bytes + ENTRY_BYTES
        self._most = min(partitions * (RESULTS_BYTES + self._entry), response_bytes) + REPLY_BYTES

    def of(self, kind: str, message: Any) -> int:
        """Return the bound of the reply to a `txn`, `get`, `put` or `delete`."""
        if kind == "get":
            return self._entry + REPLY_BYTES
        if kind == "txn":
            then, otherwise, conditions = message.then, message.otherwise, len(message.conditions)
            if len(then) + len(otherwise) + conditions > self._limits.operations:
                return REPLY_BYTES  # it is rejected
            results = self._results(then)
            if otherwise:
                results = max(results, self._results(otherwise))
            return min(results + conditions * 16 + REPLY_BYTES, self._most)
        if kind == "delete":
            return self._limits.key_bytes + REPLY_BYTES  # where it ended, if that is told
        return REPLY_BYTES

    def _results(self, operations: Iterable[kv.Operation]) -> int:
        size = 0
        for operation in operations:
            kind = operation.WhichOneof("operation")
            if kind in ("get", "swap"):
                size += self._entry
            elif kind == "scan" and operation.scan.shape != kv.COUNT:
                scan = operation.scan
                asked = scan.limit_bytes or self._limits.scan_bytes
                count = scan.limit or RESULTS_BYTES // ENTRY_BYTES
                size += min(asked + count * ENTRY_BYTES, RESULTS_BYTES) + self._entry
            elif kind == "delete_range":
                size += self._limits.key_bytes + ENTRY_BYTES  # where it ended
            else:
                size += ENTRY_BYTES
        return size
