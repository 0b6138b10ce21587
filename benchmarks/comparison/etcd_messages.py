"""The few messages of etcd's gRPC API that the comparison needs, with the fields that it uses.

They are described here instead of in a .proto file, and belong to a pool of their own. Fields of a response
that are not described are skipped by the parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE: Final = "wbkv.benchmarks.etcd"

_KINDS: Final = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}

_MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    "Header": {"member_id": (2, "uint64"), "revision": (3, "int64")},
    "KeyValue": {
        "key": (1, "bytes"), "create_revision": (2, "int64"), "mod_revision": (3, "int64"),
        "version": (4, "int64"), "value": (5, "bytes"),
    },
    "PutRequest": {"key": (1, "bytes"), "value": (2, "bytes")},
    "PutResponse": {"header": (1, "Header")},
    "RangeRequest": {"key": (1, "bytes")},
    "RangeResponse": {"header": (1, "Header"), "kvs": (2, "[KeyValue]"), "count": (4, "int64")},
    "RequestOp": {"request_put": (2, "PutRequest")},
    "ResponseOp": {"response_put": (2, "PutResponse")},
    "TxnRequest": {"success": (2, "[RequestOp]")},
    "TxnResponse": {"header": (1, "Header"), "succeeded": (2, "bool"), "responses": (3, "[ResponseOp]")},
    "StatusRequest": {},
    "StatusResponse": {"header": (1, "Header"), "leader": (4, "uint64")},
}  # fmt: skip
"""Fields by message: number and type. Brackets mean repeated."""


def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name="benchmarks/etcd.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = "LABEL_REPEATED" if kind.startswith("[") else "LABEL_OPTIONAL"
            made = message.field.add(name=field, number=number, label=label)
            if kind in _KINDS:
                made.type = _KINDS[kind]
            else:
                made.type = FieldDescriptorProto.TYPE_MESSAGE
                made.type_name = f".{PACKAGE}.{kind.strip('[]')}"
    pool = DescriptorPool()
    pool.Add(file)
    return pool


_POOL: Final = _pool()


def _class(name: str) -> Any:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


PutRequest: Final = _class("PutRequest")
PutResponse: Final = _class("PutResponse")
RangeRequest: Final = _class("RangeRequest")
RangeResponse: Final = _class("RangeResponse")
RequestOp: Final = _class("RequestOp")
TxnRequest: Final = _class("TxnRequest")
TxnResponse: Final = _class("TxnResponse")
StatusRequest: Final = _class("StatusRequest")
StatusResponse: Final = _class("StatusResponse")

PUT: Final = "/etcdserverpb.KV/Put"
RANGE: Final = "/etcdserverpb.KV/Range"
TXN: Final = "/etcdserverpb.KV/Txn"
STATUS: Final = "/etcdserverpb.Maintenance/Status"
