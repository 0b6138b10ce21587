from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Run(_message.Message):
    __slots__ = ("previous_ts", "clients", "destinations", "client", "dest", "sequence", "digest", "ack_below", "local_ts", "global_ts", "payload", "mismatches")
    PREVIOUS_TS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    DEST_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ACK_BELOW_FIELD_NUMBER: _ClassVar[int]
    LOCAL_TS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_TS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MISMATCHES_FIELD_NUMBER: _ClassVar[int]
    previous_ts: int
    clients: _containers.RepeatedScalarFieldContainer[int]
    destinations: _containers.RepeatedScalarFieldContainer[int]
    client: _containers.RepeatedScalarFieldContainer[int]
    dest: _containers.RepeatedScalarFieldContainer[int]
    sequence: _containers.RepeatedScalarFieldContainer[int]
    digest: _containers.RepeatedScalarFieldContainer[int]
    ack_below: _containers.RepeatedScalarFieldContainer[int]
    local_ts: _containers.RepeatedScalarFieldContainer[int]
    global_ts: _containers.RepeatedScalarFieldContainer[int]
    payload: _containers.RepeatedScalarFieldContainer[bytes]
    mismatches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, previous_ts: _Optional[int] = ..., clients: _Optional[_Iterable[int]] = ..., destinations: _Optional[_Iterable[int]] = ..., client: _Optional[_Iterable[int]] = ..., dest: _Optional[_Iterable[int]] = ..., sequence: _Optional[_Iterable[int]] = ..., digest: _Optional[_Iterable[int]] = ..., ack_below: _Optional[_Iterable[int]] = ..., local_ts: _Optional[_Iterable[int]] = ..., global_ts: _Optional[_Iterable[int]] = ..., payload: _Optional[_Iterable[bytes]] = ..., mismatches: _Optional[_Iterable[int]] = ...) -> None: ...

class SnapshotHead(_message.Message):
    __slots__ = ("position", "clients", "places", "digests")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    position: int
    clients: _containers.RepeatedScalarFieldContainer[int]
    places: _containers.RepeatedScalarFieldContainer[int]
    digests: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, position: _Optional[int] = ..., clients: _Optional[_Iterable[int]] = ..., places: _Optional[_Iterable[int]] = ..., digests: _Optional[_Iterable[int]] = ...) -> None: ...
