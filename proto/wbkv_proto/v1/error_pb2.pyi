from wbkv_proto.v1 import kv_pb2 as _kv_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Error(_message.Message):
    __slots__ = ("kind", "message", "code", "retryable", "same_id", "revision", "limit", "leaders", "failures")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Error.Kind]
        INVALID_REQUEST: _ClassVar[Error.Kind]
        LIMIT_EXCEEDED: _ClassVar[Error.Kind]
        UNAVAILABLE: _ClassVar[Error.Kind]
        OVERLOADED: _ClassVar[Error.Kind]
        OUTCOME_UNKNOWN: _ClassVar[Error.Kind]
        DEADLINE_PASSED: _ClassVar[Error.Kind]
        COMPACTED: _ClassVar[Error.Kind]
        FUTURE_REVISION: _ClassVar[Error.Kind]
        PINNED: _ClassVar[Error.Kind]
        REQUEST_MISMATCH: _ClassVar[Error.Kind]
        REQUEST_EXPIRED: _ClassVar[Error.Kind]
        WINDOW_FULL: _ClassVar[Error.Kind]
        REQUEST_FORGOTTEN: _ClassVar[Error.Kind]
        RESPONSE_TOO_LARGE: _ClassVar[Error.Kind]
        OPERATION_FAILED: _ClassVar[Error.Kind]
        INTERNAL: _ClassVar[Error.Kind]
    KIND_UNSPECIFIED: Error.Kind
    INVALID_REQUEST: Error.Kind
    LIMIT_EXCEEDED: Error.Kind
    UNAVAILABLE: Error.Kind
    OVERLOADED: Error.Kind
    OUTCOME_UNKNOWN: Error.Kind
    DEADLINE_PASSED: Error.Kind
    COMPACTED: Error.Kind
    FUTURE_REVISION: Error.Kind
    PINNED: Error.Kind
    REQUEST_MISMATCH: Error.Kind
    REQUEST_EXPIRED: Error.Kind
    WINDOW_FULL: Error.Kind
    REQUEST_FORGOTTEN: Error.Kind
    RESPONSE_TOO_LARGE: Error.Kind
    OPERATION_FAILED: Error.Kind
    INTERNAL: Error.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    SAME_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    kind: Error.Kind
    message: str
    code: int
    retryable: bool
    same_id: bool
    revision: int
    limit: Limit
    leaders: _containers.RepeatedCompositeFieldContainer[Leader]
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    def __init__(self, kind: _Optional[_Union[Error.Kind, str]] = ..., message: _Optional[str] = ..., code: _Optional[int] = ..., retryable: _Optional[bool] = ..., same_id: _Optional[bool] = ..., revision: _Optional[int] = ..., limit: _Optional[_Union[Limit, _Mapping]] = ..., leaders: _Optional[_Iterable[_Union[Leader, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("operation", "fault", "otherwise")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    OTHERWISE_FIELD_NUMBER: _ClassVar[int]
    operation: int
    fault: _kv_pb2.Fault
    otherwise: bool
    def __init__(self, operation: _Optional[int] = ..., fault: _Optional[_Union[_kv_pb2.Fault, str]] = ..., otherwise: _Optional[bool] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class Leader(_message.Message):
    __slots__ = ("partition", "node", "address")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    node: str
    address: str
    def __init__(self, partition: _Optional[int] = ..., node: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...
