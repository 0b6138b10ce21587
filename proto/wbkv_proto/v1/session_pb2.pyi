from wbkv_proto.v1 import error_pb2 as _error_pb2
from wbkv_proto.v1 import kv_pb2 as _kv_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionRequest(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    def __init__(self, calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("header", "replies")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    header: _kv_pb2.Header
    replies: _containers.RepeatedCompositeFieldContainer[Reply]
    def __init__(self, header: _Optional[_Union[_kv_pb2.Header, _Mapping]] = ..., replies: _Optional[_Iterable[_Union[Reply, _Mapping]]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("number", "timeout_ms", "txn", "get", "put", "delete")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    number: int
    timeout_ms: int
    txn: _kv_pb2.TxnRequest
    get: _kv_pb2.GetRequest
    put: _kv_pb2.PutRequest
    delete: _kv_pb2.DeleteRequest
    def __init__(self, number: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., txn: _Optional[_Union[_kv_pb2.TxnRequest, _Mapping]] = ..., get: _Optional[_Union[_kv_pb2.GetRequest, _Mapping]] = ..., put: _Optional[_Union[_kv_pb2.PutRequest, _Mapping]] = ..., delete: _Optional[_Union[_kv_pb2.DeleteRequest, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("number", "error", "txn", "get", "put", "delete")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    number: int
    error: _error_pb2.Error
    txn: _kv_pb2.TxnResponse
    get: _kv_pb2.GetResponse
    put: _kv_pb2.PutResponse
    delete: _kv_pb2.DeleteResponse
    def __init__(self, number: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., txn: _Optional[_Union[_kv_pb2.TxnResponse, _Mapping]] = ..., get: _Optional[_Union[_kv_pb2.GetResponse, _Mapping]] = ..., put: _Optional[_Union[_kv_pb2.PutResponse, _Mapping]] = ..., delete: _Optional[_Union[_kv_pb2.DeleteResponse, _Mapping]] = ...) -> None: ...
