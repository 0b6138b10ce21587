from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RecordKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECORD_KIND_UNSPECIFIED: _ClassVar[RecordKind]
    PROMISED: _ClassVar[RecordKind]
    JOINED: _ClassVar[RecordKind]
    ACCEPTED: _ClassVar[RecordKind]
    VOTED: _ClassVar[RecordKind]
    DELIVERED: _ClassVar[RecordKind]
    DECIDED: _ClassVar[RecordKind]
    LEARNED: _ClassVar[RecordKind]
    DROPPED: _ClassVar[RecordKind]
    CONFIGURED: _ClassVar[RecordKind]
RECORD_KIND_UNSPECIFIED: RecordKind
PROMISED: RecordKind
JOINED: RecordKind
ACCEPTED: RecordKind
VOTED: RecordKind
DELIVERED: RecordKind
DECIDED: RecordKind
LEARNED: RecordKind
DROPPED: RecordKind
CONFIGURED: RecordKind

class Batch(_message.Message):
    __slots__ = ("kinds", "clients", "replicas", "ballots", "destinations", "payloads", "clients_of", "sequences", "digests", "accepted", "accepted_local_ts", "accepted_ack_below", "decided", "decided_global_ts", "decided_mismatches", "delivered", "voted", "dropped", "learned", "promised", "joined", "joined_entries", "configured")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    BALLOTS_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_OF_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_LOCAL_TS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_ACK_BELOW_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_GLOBAL_TS_FIELD_NUMBER: _ClassVar[int]
    DECIDED_MISMATCHES_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    VOTED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    JOINED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    kinds: bytes
    clients: _containers.RepeatedScalarFieldContainer[int]
    replicas: _containers.RepeatedScalarFieldContainer[int]
    ballots: _containers.RepeatedScalarFieldContainer[int]
    destinations: _containers.RepeatedScalarFieldContainer[int]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    clients_of: _containers.RepeatedScalarFieldContainer[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    digests: _containers.RepeatedScalarFieldContainer[int]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    accepted_local_ts: _containers.RepeatedScalarFieldContainer[int]
    accepted_ack_below: _containers.RepeatedScalarFieldContainer[int]
    decided: _containers.RepeatedScalarFieldContainer[int]
    decided_global_ts: _containers.RepeatedScalarFieldContainer[int]
    decided_mismatches: _containers.RepeatedScalarFieldContainer[int]
    delivered: _containers.RepeatedScalarFieldContainer[int]
    voted: _containers.RepeatedScalarFieldContainer[int]
    dropped: _containers.RepeatedScalarFieldContainer[int]
    learned: _containers.RepeatedScalarFieldContainer[int]
    promised: _containers.RepeatedScalarFieldContainer[int]
    joined: _containers.RepeatedScalarFieldContainer[int]
    joined_entries: _containers.RepeatedScalarFieldContainer[int]
    configured: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kinds: _Optional[bytes] = ..., clients: _Optional[_Iterable[int]] = ..., replicas: _Optional[_Iterable[int]] = ..., ballots: _Optional[_Iterable[int]] = ..., destinations: _Optional[_Iterable[int]] = ..., payloads: _Optional[_Iterable[bytes]] = ..., clients_of: _Optional[_Iterable[int]] = ..., sequences: _Optional[_Iterable[int]] = ..., digests: _Optional[_Iterable[int]] = ..., accepted: _Optional[_Iterable[int]] = ..., accepted_local_ts: _Optional[_Iterable[int]] = ..., accepted_ack_below: _Optional[_Iterable[int]] = ..., decided: _Optional[_Iterable[int]] = ..., decided_global_ts: _Optional[_Iterable[int]] = ..., decided_mismatches: _Optional[_Iterable[int]] = ..., delivered: _Optional[_Iterable[int]] = ..., voted: _Optional[_Iterable[int]] = ..., dropped: _Optional[_Iterable[int]] = ..., learned: _Optional[_Iterable[int]] = ..., promised: _Optional[_Iterable[int]] = ..., joined: _Optional[_Iterable[int]] = ..., joined_entries: _Optional[_Iterable[int]] = ..., configured: _Optional[_Iterable[int]] = ...) -> None: ...

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
