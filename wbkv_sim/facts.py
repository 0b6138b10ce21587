"""Messages of the API as the facts that the checkers know: requests, and what clients are told."""

from __future__ import annotations

from typing import Any, Final

from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

from kvstore.api.convert import FAULT, Reader, identity_of, range_of
from kvstore.machine.request import Delete, DeleteRange, Get, Limits, Put, ReadOperation, Transaction
from kvstore.machine.results import (
    WRITTEN,
    Deleted,
    Failed,
    Failure,
    Fault,
    Got,
    KeyValue,
    Number,
    OperationResult,
    Scanned,
    Unmet,
)
from kvstore.simulation.history import AbortedCall, Asked, ReadAtCall, StrictCall, Transact
from kvstore.store.gateway import Committed, Identity
from kvstore.store.questions import Values

_FAULTS: Final[dict[int, Fault]] = {number: fault for fault, number in FAULT.items()}
_READER: Final = Reader(Limits())


def asked_of(request: Any) -> tuple[Asked, Identity | None]:
    """Return what a request asks for, and its id."""
    if isinstance(request, kv.GetRequest):
        return _read((Get(request.key),), request), None
    if isinstance(request, kv.PutRequest):
        return Transact(Transaction(then=(Put(request.key, request.value),))), identity_of(request)
    if isinstance(request, kv.DeleteRequest):
        whole = request.WhichOneof("target") == "range"
        delete = DeleteRange(range_of(request.range), request.limit) if whole else Delete(request.key)
        return Transact(Transaction(then=(delete,))), identity_of(request)
    transaction = _READER.transaction(request)
    identity = identity_of(request)
    if identity is not None or transaction.conditions:
        return Transact(transaction), identity
    reads = tuple(operation for operation in transaction.then if isinstance(operation, ReadOperation))
    return _read(reads, request), None


def _read(operations: tuple[ReadOperation, ...], request: kv.GetRequest | kv.TxnRequest) -> Asked:
    if request.revision or request.consistency == kv.SERIALIZABLE:
        return ReadAtCall(operations, request.revision)
    return StrictCall(operations)


def told_by(asked: Asked, response: Any) -> Committed | Values:
    """Return what a response says of what was asked for."""
    header = response.header
    if not isinstance(asked, Transact):
        return Values(header.revision, _results(response))
    unmet = tuple(Unmet(each.condition, _FAULTS.get(each.fault)) for each in getattr(response, "unmet", ()))
    succeeded = getattr(response, "succeeded", True)
    return Committed(header.transaction_revision, header.revision, succeeded, unmet, _results(response))


def aborted_by(error: ApiError) -> AbortedCall:
    """Return what an error says of a transaction that was aborted."""
    failures = tuple(Failure(each.operation, _FAULTS[each.fault]) for each in error.failures)
    return AbortedCall(error.revision, not any(each.otherwise for each in error.failures), failures)


def _results(response: Any) -> tuple[OperationResult, ...]:
    if isinstance(response, kv.GetResponse):
        return (Got(entry_of(response.entry) if response.HasField("entry") else None),)
    if isinstance(response, kv.PutResponse):
        return (WRITTEN,)
    if isinstance(response, kv.DeleteResponse):
        return (Deleted(response.count, response.resume),)
    return tuple(map(_result, response.results))


def _result(message: kv.OperationResult) -> OperationResult:
    match message.WhichOneof("result"):
        case "got":
            return Got(entry_of(message.got.entry) if message.got.HasField("entry") else None)
        case "written":
            return WRITTEN
        case "number":
            return Number(message.number.value)
        case "deleted":
            return Deleted(message.deleted.count, message.deleted.resume)
        case "scanned":
            found = message.scanned
            return Scanned(tuple(map(entry_of, found.entries)), found.count, found.more)
        case "failed":
            return Failed(_FAULTS[message.failed.fault])
        case other:
            raise TypeError(f"the result {other!r} is not known")


def entry_of(entry: Any) -> KeyValue:
    """Return an entry of a message, or of the SDK."""
    return KeyValue(entry.key, entry.value, entry.create_revision, entry.mod_revision, entry.version)
