from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    WRONG_VERSION: _ClassVar[Reason]
    WRONG_CLUSTER: _ClassVar[Reason]
    WRONG_TOPOLOGY: _ClassVar[Reason]
    UNKNOWN_NODE: _ClassVar[Reason]
    OWN_ID: _ClassVar[Reason]
    WRONG_NODE: _ClassVar[Reason]
    TOO_MANY_CONNECTIONS: _ClassVar[Reason]
    WRONG_SECRET: _ClassVar[Reason]
    WRONG_INCARNATION: _ClassVar[Reason]
REASON_UNSPECIFIED: Reason
WRONG_VERSION: Reason
WRONG_CLUSTER: Reason
WRONG_TOPOLOGY: Reason
UNKNOWN_NODE: Reason
OWN_ID: Reason
WRONG_NODE: Reason
TOO_MANY_CONNECTIONS: Reason
WRONG_SECRET: Reason
WRONG_INCARNATION: Reason

class Opening(_message.Message):
    __slots__ = ("version", "nonce")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    version: int
    nonce: bytes
    def __init__(self, version: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Introduction(_message.Message):
    __slots__ = ("hello", "proof")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    hello: bytes
    proof: bytes
    def __init__(self, hello: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "cluster", "topology_hash", "node", "client", "to", "incarnation", "address")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_HASH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster: str
    topology_hash: bytes
    node: str
    client: int
    to: str
    incarnation: int
    address: str
    def __init__(self, version: _Optional[int] = ..., cluster: _Optional[str] = ..., topology_hash: _Optional[bytes] = ..., node: _Optional[str] = ..., client: _Optional[int] = ..., to: _Optional[str] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("welcome", "refusal", "challenge")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refusal: Refusal
    challenge: Challenge
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., challenge: _Optional[_Union[Challenge, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "text")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    text: str
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., text: _Optional[str] = ...) -> None: ...
