from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Consistency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSISTENCY_UNSPECIFIED: _ClassVar[Consistency]
    STRICT: _ClassVar[Consistency]
    SERIALIZABLE: _ClassVar[Consistency]

class Operator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATOR_UNSPECIFIED: _ClassVar[Operator]
    EQUAL: _ClassVar[Operator]
    NOT_EQUAL: _ClassVar[Operator]
    LESS: _ClassVar[Operator]
    GREATER: _ClassVar[Operator]
    LESS_EQUAL: _ClassVar[Operator]
    GREATER_EQUAL: _ClassVar[Operator]
    STARTS_WITH: _ClassVar[Operator]

class Shape(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHAPE_UNSPECIFIED: _ClassVar[Shape]
    ENTRIES: _ClassVar[Shape]
    KEYS: _ClassVar[Shape]
    COUNT: _ClassVar[Shape]

class Fault(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAULT_UNSPECIFIED: _ClassVar[Fault]
    OVERFLOW: _ClassVar[Fault]
    NOT_A_NUMBER: _ClassVar[Fault]
    VALUE_TOO_LARGE: _ClassVar[Fault]
    COMPACTED: _ClassVar[Fault]
    FUTURE_REVISION: _ClassVar[Fault]
    TOO_MANY_ROWS: _ClassVar[Fault]
    BELOW_FLOOR: _ClassVar[Fault]
    ABOVE_CEILING: _ClassVar[Fault]
CONSISTENCY_UNSPECIFIED: Consistency
STRICT: Consistency
SERIALIZABLE: Consistency
OPERATOR_UNSPECIFIED: Operator
EQUAL: Operator
NOT_EQUAL: Operator
LESS: Operator
GREATER: Operator
LESS_EQUAL: Operator
GREATER_EQUAL: Operator
STARTS_WITH: Operator
SHAPE_UNSPECIFIED: Shape
ENTRIES: Shape
KEYS: Shape
COUNT: Shape
FAULT_UNSPECIFIED: Fault
OVERFLOW: Fault
NOT_A_NUMBER: Fault
VALUE_TOO_LARGE: Fault
COMPACTED: Fault
FUTURE_REVISION: Fault
TOO_MANY_ROWS: Fault
BELOW_FLOOR: Fault
ABOVE_CEILING: Fault

class Header(_message.Message):
    __slots__ = ("revision", "transaction_revision", "cluster", "node")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_REVISION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    transaction_revision: int
    cluster: str
    node: str
    def __init__(self, revision: _Optional[int] = ..., transaction_revision: _Optional[int] = ..., cluster: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class RequestId(_message.Message):
    __slots__ = ("client", "sequence", "ack_below", "deadline")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACK_BELOW_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    client: int
    sequence: int
    ack_below: int
    deadline: int
    def __init__(self, client: _Optional[int] = ..., sequence: _Optional[int] = ..., ack_below: _Optional[int] = ..., deadline: _Optional[int] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("prefix", "interval")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    prefix: bytes
    interval: Interval
    def __init__(self, prefix: _Optional[bytes] = ..., interval: _Optional[_Union[Interval, _Mapping]] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: bytes
    end: bytes
    def __init__(self, start: _Optional[bytes] = ..., end: _Optional[bytes] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("key", "value", "create_revision", "mod_revision", "version")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    MOD_REVISION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., create_revision: _Optional[int] = ..., mod_revision: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class TxnRequest(_message.Message):
    __slots__ = ("conditions", "then", "otherwise", "id", "min_revision", "consistency", "revision", "reservation", "allow_failures")
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    OTHERWISE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FAILURES_FIELD_NUMBER: _ClassVar[int]
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    then: _containers.RepeatedCompositeFieldContainer[Operation]
    otherwise: _containers.RepeatedCompositeFieldContainer[Operation]
    id: RequestId
    min_revision: int
    consistency: Consistency
    revision: int
    reservation: int
    allow_failures: bool
    def __init__(self, conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., then: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., otherwise: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., id: _Optional[_Union[RequestId, _Mapping]] = ..., min_revision: _Optional[int] = ..., consistency: _Optional[_Union[Consistency, str]] = ..., revision: _Optional[int] = ..., reservation: _Optional[int] = ..., allow_failures: _Optional[bool] = ...) -> None: ...

class TxnResponse(_message.Message):
    __slots__ = ("header", "succeeded", "unmet", "results")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    UNMET_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    header: Header
    succeeded: bool
    unmet: _containers.RepeatedCompositeFieldContainer[Unmet]
    results: _containers.RepeatedCompositeFieldContainer[OperationResult]
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., succeeded: _Optional[bool] = ..., unmet: _Optional[_Iterable[_Union[Unmet, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[OperationResult, _Mapping]]] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("compare", "unchanged", "any", "all")
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    ANY_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    compare: Compare
    unchanged: Unchanged
    any: Conditions
    all: Conditions
    def __init__(self, compare: _Optional[_Union[Compare, _Mapping]] = ..., unchanged: _Optional[_Union[Unchanged, _Mapping]] = ..., any: _Optional[_Union[Conditions, _Mapping]] = ..., all: _Optional[_Union[Conditions, _Mapping]] = ...) -> None: ...

class Conditions(_message.Message):
    __slots__ = ("conditions",)
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    def __init__(self, conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ...) -> None: ...

class Compare(_message.Message):
    __slots__ = ("key", "operator", "value", "exists", "version", "create_revision", "mod_revision", "number")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    MOD_REVISION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    operator: Operator
    value: bytes
    exists: bool
    version: int
    create_revision: int
    mod_revision: int
    number: int
    def __init__(self, key: _Optional[bytes] = ..., operator: _Optional[_Union[Operator, str]] = ..., value: _Optional[bytes] = ..., exists: _Optional[bool] = ..., version: _Optional[int] = ..., create_revision: _Optional[int] = ..., mod_revision: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Unchanged(_message.Message):
    __slots__ = ("range", "since")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    range: Range
    since: int
    def __init__(self, range: _Optional[_Union[Range, _Mapping]] = ..., since: _Optional[int] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("get", "scan", "put", "delete", "delete_range", "append", "swap", "add", "min", "max")
    GET_FIELD_NUMBER: _ClassVar[int]
    SCAN_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    DELETE_RANGE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    SWAP_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    get: Get
    scan: Scan
    put: Put
    delete: Delete
    delete_range: DeleteRange
    append: Append
    swap: Put
    add: Calculate
    min: Calculate
    max: Calculate
    def __init__(self, get: _Optional[_Union[Get, _Mapping]] = ..., scan: _Optional[_Union[Scan, _Mapping]] = ..., put: _Optional[_Union[Put, _Mapping]] = ..., delete: _Optional[_Union[Delete, _Mapping]] = ..., delete_range: _Optional[_Union[DeleteRange, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., swap: _Optional[_Union[Put, _Mapping]] = ..., add: _Optional[_Union[Calculate, _Mapping]] = ..., min: _Optional[_Union[Calculate, _Mapping]] = ..., max: _Optional[_Union[Calculate, _Mapping]] = ...) -> None: ...

class Get(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class Put(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class Delete(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class DeleteRange(_message.Message):
    __slots__ = ("range", "limit")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    range: Range
    limit: int
    def __init__(self, range: _Optional[_Union[Range, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class Calculate(_message.Message):
    __slots__ = ("key", "operand", "floor", "ceiling")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERAND_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    CEILING_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    operand: int
    floor: int
    ceiling: int
    def __init__(self, key: _Optional[bytes] = ..., operand: _Optional[int] = ..., floor: _Optional[int] = ..., ceiling: _Optional[int] = ...) -> None: ...

class Scan(_message.Message):
    __slots__ = ("range", "limit", "limit_bytes", "reverse", "shape")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    range: Range
    limit: int
    limit_bytes: int
    reverse: bool
    shape: Shape
    def __init__(self, range: _Optional[_Union[Range, _Mapping]] = ..., limit: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., reverse: _Optional[bool] = ..., shape: _Optional[_Union[Shape, str]] = ...) -> None: ...

class Unmet(_message.Message):
    __slots__ = ("condition", "fault")
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    condition: int
    fault: Fault
    def __init__(self, condition: _Optional[int] = ..., fault: _Optional[_Union[Fault, str]] = ...) -> None: ...

class OperationResult(_message.Message):
    __slots__ = ("got", "scanned", "written", "deleted", "number", "failed")
    GOT_FIELD_NUMBER: _ClassVar[int]
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    got: Got
    scanned: Scanned
    written: Written
    deleted: Deleted
    number: Number
    failed: Failed
    def __init__(self, got: _Optional[_Union[Got, _Mapping]] = ..., scanned: _Optional[_Union[Scanned, _Mapping]] = ..., written: _Optional[_Union[Written, _Mapping]] = ..., deleted: _Optional[_Union[Deleted, _Mapping]] = ..., number: _Optional[_Union[Number, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ...) -> None: ...

class Got(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: Entry
    def __init__(self, entry: _Optional[_Union[Entry, _Mapping]] = ...) -> None: ...

class Scanned(_message.Message):
    __slots__ = ("entries", "count", "more")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    count: int
    more: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., count: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

class Written(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Deleted(_message.Message):
    __slots__ = ("count", "resume")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    count: int
    resume: bytes
    def __init__(self, count: _Optional[int] = ..., resume: _Optional[bytes] = ...) -> None: ...

class Number(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("fault",)
    FAULT_FIELD_NUMBER: _ClassVar[int]
    fault: Fault
    def __init__(self, fault: _Optional[_Union[Fault, str]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("key", "consistency", "revision", "min_revision")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    consistency: Consistency
    revision: int
    min_revision: int
    def __init__(self, key: _Optional[bytes] = ..., consistency: _Optional[_Union[Consistency, str]] = ..., revision: _Optional[int] = ..., min_revision: _Optional[int] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("header", "entry")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    header: Header
    entry: Entry
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("key", "value", "id", "min_revision")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    id: RequestId
    min_revision: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., id: _Optional[_Union[RequestId, _Mapping]] = ..., min_revision: _Optional[int] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: Header
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("key", "range", "limit", "id", "min_revision")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    range: Range
    limit: int
    id: RequestId
    min_revision: int
    def __init__(self, key: _Optional[bytes] = ..., range: _Optional[_Union[Range, _Mapping]] = ..., limit: _Optional[int] = ..., id: _Optional[_Union[RequestId, _Mapping]] = ..., min_revision: _Optional[int] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("header", "count", "resume")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    header: Header
    count: int
    resume: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., count: _Optional[int] = ..., resume: _Optional[bytes] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("range", "limit", "limit_bytes", "reverse", "shape", "page_bytes", "columns", "consistency", "revision", "min_revision", "partitions")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    range: Range
    limit: int
    limit_bytes: int
    reverse: bool
    shape: Shape
    page_bytes: int
    columns: bool
    consistency: Consistency
    revision: int
    min_revision: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, range: _Optional[_Union[Range, _Mapping]] = ..., limit: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., reverse: _Optional[bool] = ..., shape: _Optional[_Union[Shape, str]] = ..., page_bytes: _Optional[int] = ..., columns: _Optional[bool] = ..., consistency: _Optional[_Union[Consistency, str]] = ..., revision: _Optional[int] = ..., min_revision: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class ScanResponse(_message.Message):
    __slots__ = ("header", "entries", "count", "more", "columns", "resume")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    header: Header
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    count: int
    more: bool
    columns: Columns
    resume: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., count: _Optional[int] = ..., more: _Optional[bool] = ..., columns: _Optional[_Union[Columns, _Mapping]] = ..., resume: _Optional[bytes] = ...) -> None: ...

class Columns(_message.Message):
    __slots__ = ("keys", "key_ends", "values", "value_ends", "create_revisions", "mod_revisions", "versions")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_ENDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_ENDS_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISIONS_FIELD_NUMBER: _ClassVar[int]
    MOD_REVISIONS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    key_ends: bytes
    values: bytes
    value_ends: bytes
    create_revisions: bytes
    mod_revisions: bytes
    versions: bytes
    def __init__(self, keys: _Optional[bytes] = ..., key_ends: _Optional[bytes] = ..., values: _Optional[bytes] = ..., value_ends: _Optional[bytes] = ..., create_revisions: _Optional[bytes] = ..., mod_revisions: _Optional[bytes] = ..., versions: _Optional[bytes] = ...) -> None: ...

class SplitsRequest(_message.Message):
    __slots__ = ("range", "pieces", "partitions")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    range: Range
    pieces: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, range: _Optional[_Union[Range, _Mapping]] = ..., pieces: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class SplitsResponse(_message.Message):
    __slots__ = ("header", "splits")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    header: Header
    splits: _containers.RepeatedCompositeFieldContainer[Split]
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., splits: _Optional[_Iterable[_Union[Split, _Mapping]]] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("partition", "keys", "count")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    keys: Interval
    count: int
    def __init__(self, partition: _Optional[int] = ..., keys: _Optional[_Union[Interval, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("ttl_ms", "name", "revision")
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ttl_ms: int
    name: str
    revision: int
    def __init__(self, ttl_ms: _Optional[int] = ..., name: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("header", "name", "revision", "ttl_ms")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    header: Header
    name: str
    revision: int
    ttl_ms: int
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., name: _Optional[str] = ..., revision: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class ReleaseSnapshotRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ReleaseSnapshotResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: Header
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ...) -> None: ...

class CompactRequest(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class CompactResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: Header
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("ranges", "after", "progress_ms", "until", "partitions")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    after: int
    progress_ms: int
    until: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., after: _Optional[int] = ..., progress_ms: _Optional[int] = ..., until: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("header", "revision", "transactions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    header: Header
    revision: int
    transactions: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., revision: _Optional[int] = ..., transactions: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("revision", "events", "continued", "continuation")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    continued: bool
    continuation: bool
    def __init__(self, revision: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., continued: _Optional[bool] = ..., continuation: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("key", "value", "create_revision", "version")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    create_revision: int
    version: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., create_revision: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("name", "keys", "ranges", "ttl_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    name: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    ttl_ms: int
    def __init__(self, name: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: Header
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ...) -> None: ...
