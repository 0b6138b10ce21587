from wbkv_proto.v1 import kv_pb2 as _kv_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopologyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TopologyResponse(_message.Message):
    __slots__ = ("header", "nodes", "partitions", "placement", "limits")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    header: _kv_pb2.Header
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    placement: Placement
    limits: Limits
    def __init__(self, header: _Optional[_Union[_kv_pb2.Header, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("id", "leader", "members")
    ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    id: int
    leader: str
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[int] = ..., leader: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("version", "scheme", "starts", "owners")
    class Scheme(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SCHEME_UNSPECIFIED: _ClassVar[Placement.Scheme]
        HASHED: _ClassVar[Placement.Scheme]
        ORDERED: _ClassVar[Placement.Scheme]
    SCHEME_UNSPECIFIED: Placement.Scheme
    HASHED: Placement.Scheme
    ORDERED: Placement.Scheme
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    scheme: Placement.Scheme
    starts: _containers.RepeatedScalarFieldContainer[bytes]
    owners: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., scheme: _Optional[_Union[Placement.Scheme, str]] = ..., starts: _Optional[_Iterable[bytes]] = ..., owners: _Optional[_Iterable[int]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("key_bytes", "value_bytes", "transaction_bytes", "operations", "scan_bytes", "transaction_rows", "delete_keys", "delete_bytes", "message_bytes", "response_bytes", "session_calls")
    KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    SCAN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ROWS_FIELD_NUMBER: _ClassVar[int]
    DELETE_KEYS_FIELD_NUMBER: _ClassVar[int]
    DELETE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSION_CALLS_FIELD_NUMBER: _ClassVar[int]
    key_bytes: int
    value_bytes: int
    transaction_bytes: int
    operations: int
    scan_bytes: int
    transaction_rows: int
    delete_keys: int
    delete_bytes: int
    message_bytes: int
    response_bytes: int
    session_calls: int
    def __init__(self, key_bytes: _Optional[int] = ..., value_bytes: _Optional[int] = ..., transaction_bytes: _Optional[int] = ..., operations: _Optional[int] = ..., scan_bytes: _Optional[int] = ..., transaction_rows: _Optional[int] = ..., delete_keys: _Optional[int] = ..., delete_bytes: _Optional[int] = ..., message_bytes: _Optional[int] = ..., response_bytes: _Optional[int] = ..., session_calls: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("header", "partitions", "json")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    header: _kv_pb2.Header
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStatus]
    json: str
    def __init__(self, header: _Optional[_Union[_kv_pb2.Header, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionStatus, _Mapping]]] = ..., json: _Optional[str] = ...) -> None: ...

class PartitionStatus(_message.Message):
    __slots__ = ("id", "serving", "leads", "revision")
    ID_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    id: int
    serving: bool
    leads: bool
    revision: int
    def __init__(self, id: _Optional[int] = ..., serving: _Optional[bool] = ..., leads: _Optional[bool] = ..., revision: _Optional[int] = ...) -> None: ...
