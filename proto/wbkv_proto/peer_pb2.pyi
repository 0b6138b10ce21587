from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    MULTICAST: _ClassVar[Kind]
    ACCEPT: _ClassVar[Kind]
    ACCEPT_ACK: _ClassVar[Kind]
    DELIVER: _ClassVar[Kind]
    NEW_LEADER: _ClassVar[Kind]
    NEW_LEADER_ACK: _ClassVar[Kind]
    NEW_STATE: _ClassVar[Kind]
    NEW_STATE_ACK: _ClassVar[Kind]
    PHASE_2A: _ClassVar[Kind]
    PHASE_2B: _ClassVar[Kind]
    PROPOSE: _ClassVar[Kind]
    HINT: _ClassVar[Kind]
    HEARTBEAT: _ClassVar[Kind]
    HEARTBEAT_ACK: _ClassVar[Kind]
    PRE_VOTE: _ClassVar[Kind]
    PRE_VOTE_ACK: _ClassVar[Kind]
    CATCH_UP: _ClassVar[Kind]
    DELIVERIES: _ClassVar[Kind]
    EXECUTED: _ClassVar[Kind]
    REPLY: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
MULTICAST: Kind
ACCEPT: Kind
ACCEPT_ACK: Kind
DELIVER: Kind
NEW_LEADER: Kind
NEW_LEADER_ACK: Kind
NEW_STATE: Kind
NEW_STATE_ACK: Kind
PHASE_2A: Kind
PHASE_2B: Kind
PROPOSE: Kind
HINT: Kind
HEARTBEAT: Kind
HEARTBEAT_ACK: Kind
PRE_VOTE: Kind
PRE_VOTE_ACK: Kind
CATCH_UP: Kind
DELIVERIES: Kind
EXECUTED: Kind
REPLY: Kind

class Frame(_message.Message):
    __slots__ = ("kinds", "envelopes", "clients", "replicas", "ballots", "destinations", "payloads", "mids", "digests", "multicasts", "accepts", "accept_acks", "accept_ack_mids", "accept_ack_ballots", "delivers", "deliver_runs", "executed", "replies", "hints", "heartbeats", "heartbeat_executed", "heartbeat_acks", "proposes", "phase_2as", "phase_2a_values", "phase_2bs", "phase_2b_instances", "pre_votes", "pre_vote_acks", "new_leaders", "new_leader_acks", "new_leader_ack_entries", "new_states", "new_state_entries", "new_state_acks", "catch_ups", "deliveries", "deliveries_runs")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    BALLOTS_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    MIDS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    MULTICASTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_ACKS_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_ACK_MIDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_ACK_BALLOTS_FIELD_NUMBER: _ClassVar[int]
    DELIVERS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_RUNS_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEATS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_EXECUTED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ACKS_FIELD_NUMBER: _ClassVar[int]
    PROPOSES_FIELD_NUMBER: _ClassVar[int]
    PHASE_2AS_FIELD_NUMBER: _ClassVar[int]
    PHASE_2A_VALUES_FIELD_NUMBER: _ClassVar[int]
    PHASE_2BS_FIELD_NUMBER: _ClassVar[int]
    PHASE_2B_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTES_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_ACKS_FIELD_NUMBER: _ClassVar[int]
    NEW_LEADERS_FIELD_NUMBER: _ClassVar[int]
    NEW_LEADER_ACKS_FIELD_NUMBER: _ClassVar[int]
    NEW_LEADER_ACK_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEW_STATES_FIELD_NUMBER: _ClassVar[int]
    NEW_STATE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEW_STATE_ACKS_FIELD_NUMBER: _ClassVar[int]
    CATCH_UPS_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_RUNS_FIELD_NUMBER: _ClassVar[int]
    kinds: bytes
    envelopes: _containers.RepeatedScalarFieldContainer[int]
    clients: _containers.RepeatedScalarFieldContainer[int]
    replicas: _containers.RepeatedScalarFieldContainer[int]
    ballots: _containers.RepeatedScalarFieldContainer[int]
    destinations: _containers.RepeatedScalarFieldContainer[int]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    mids: _containers.RepeatedScalarFieldContainer[int]
    digests: _containers.RepeatedScalarFieldContainer[int]
    multicasts: _containers.RepeatedScalarFieldContainer[int]
    accepts: _containers.RepeatedScalarFieldContainer[int]
    accept_acks: _containers.RepeatedScalarFieldContainer[int]
    accept_ack_mids: _containers.RepeatedScalarFieldContainer[int]
    accept_ack_ballots: _containers.RepeatedScalarFieldContainer[int]
    delivers: _containers.RepeatedScalarFieldContainer[int]
    deliver_runs: _containers.RepeatedScalarFieldContainer[int]
    executed: _containers.RepeatedScalarFieldContainer[int]
    replies: _containers.RepeatedScalarFieldContainer[int]
    hints: _containers.RepeatedScalarFieldContainer[int]
    heartbeats: _containers.RepeatedScalarFieldContainer[int]
    heartbeat_executed: _containers.RepeatedScalarFieldContainer[int]
    heartbeat_acks: _containers.RepeatedScalarFieldContainer[int]
    proposes: _containers.RepeatedScalarFieldContainer[int]
    phase_2as: _containers.RepeatedScalarFieldContainer[int]
    phase_2a_values: _containers.RepeatedScalarFieldContainer[int]
    phase_2bs: _containers.RepeatedScalarFieldContainer[int]
    phase_2b_instances: _containers.RepeatedScalarFieldContainer[int]
    pre_votes: _containers.RepeatedScalarFieldContainer[int]
    pre_vote_acks: _containers.RepeatedScalarFieldContainer[int]
    new_leaders: _containers.RepeatedScalarFieldContainer[int]
    new_leader_acks: _containers.RepeatedScalarFieldContainer[int]
    new_leader_ack_entries: _containers.RepeatedScalarFieldContainer[int]
    new_states: _containers.RepeatedScalarFieldContainer[int]
    new_state_entries: _containers.RepeatedScalarFieldContainer[int]
    new_state_acks: _containers.RepeatedScalarFieldContainer[int]
    catch_ups: _containers.RepeatedScalarFieldContainer[int]
    deliveries: _containers.RepeatedScalarFieldContainer[int]
    deliveries_runs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kinds: _Optional[bytes] = ..., envelopes: _Optional[_Iterable[int]] = ..., clients: _Optional[_Iterable[int]] = ..., replicas: _Optional[_Iterable[int]] = ..., ballots: _Optional[_Iterable[int]] = ..., destinations: _Optional[_Iterable[int]] = ..., payloads: _Optional[_Iterable[bytes]] = ..., mids: _Optional[_Iterable[int]] = ..., digests: _Optional[_Iterable[int]] = ..., multicasts: _Optional[_Iterable[int]] = ..., accepts: _Optional[_Iterable[int]] = ..., accept_acks: _Optional[_Iterable[int]] = ..., accept_ack_mids: _Optional[_Iterable[int]] = ..., accept_ack_ballots: _Optional[_Iterable[int]] = ..., delivers: _Optional[_Iterable[int]] = ..., deliver_runs: _Optional[_Iterable[int]] = ..., executed: _Optional[_Iterable[int]] = ..., replies: _Optional[_Iterable[int]] = ..., hints: _Optional[_Iterable[int]] = ..., heartbeats: _Optional[_Iterable[int]] = ..., heartbeat_executed: _Optional[_Iterable[int]] = ..., heartbeat_acks: _Optional[_Iterable[int]] = ..., proposes: _Optional[_Iterable[int]] = ..., phase_2as: _Optional[_Iterable[int]] = ..., phase_2a_values: _Optional[_Iterable[int]] = ..., phase_2bs: _Optional[_Iterable[int]] = ..., phase_2b_instances: _Optional[_Iterable[int]] = ..., pre_votes: _Optional[_Iterable[int]] = ..., pre_vote_acks: _Optional[_Iterable[int]] = ..., new_leaders: _Optional[_Iterable[int]] = ..., new_leader_acks: _Optional[_Iterable[int]] = ..., new_leader_ack_entries: _Optional[_Iterable[int]] = ..., new_states: _Optional[_Iterable[int]] = ..., new_state_entries: _Optional[_Iterable[int]] = ..., new_state_acks: _Optional[_Iterable[int]] = ..., catch_ups: _Optional[_Iterable[int]] = ..., deliveries: _Optional[_Iterable[int]] = ..., deliveries_runs: _Optional[_Iterable[int]] = ...) -> None: ...
