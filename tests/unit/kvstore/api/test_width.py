"""Messages with absurdly many fields are rejected before they are parsed, and all others are parsed."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import session_pb2 as session
from wbkv_proto.varint import varint

from kvstore.api import width
from kvstore.api.width import FIELDS, check_width
from kvstore.machine import Limits
from kvstore.store.errors import LimitExceeded
from tests.unit.kvstore.api.harness import Served, fails, run


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (kv.TxnRequest, b"\x12\x00" * (FIELDS + 1)),
        (kv.TxnRequest, b"\x22\x00" * (FIELDS + 1)),
        (kv.TxnRequest, b"\xfa\x7f\x00" * (FIELDS + 1)),
        (kv.TxnRequest, b"\x30\x01" * (FIELDS + 1)),
        (kv.TxnRequest, field(2, b"\x0a\x00\x2a\x00" * (FIELDS // 2)) + b"\x12\x00"),
        (kv.TxnRequest, field(1, field(3, field(1, field(3, b"\x0a\x00" * (FIELDS + 1)))))),
        (kv.WatchRequest, field(5, b"\x01" * (2 * FIELDS))),
        (session.SessionRequest, field(1, field(5, b"\x12\x00" * FIELDS))),
        (session.SessionRequest, b"".join(field(1, b"\x2a\x04\x12\x00\x12\x00") for _ in range(FIELDS // 3))),
    ],
    ids=[
        "operations",
        "another kind",
        "unknown",
        "numbers",
        "within",
        "conditions",
        "packed",
        "session",
        "many small",
    ],
)
def test_too_many_fields(kind: type[Message], raw: bytes) -> None:
    with pytest.raises(LimitExceeded, match="131,072 fields"):
        check_width(kind, raw)


def test_the_largest_transaction_and_the_largest_message_of_the_sdk_are_not_too_wide() -> None:
    limits = Limits()
    value = bytes(limits.transaction_bytes // limits.operations - 10)
    operations = [kv.Operation(put=kv.Put(key=b"%08d" % n, value=value)) for n in range(limits.operations)]
    check_width(kv.TxnRequest, kv.TxnRequest(then=operations).SerializeToString())
    small = kv.TxnRequest(then=[kv.Operation(put=kv.Put(key=b"key", value=b"v"))] * 200)
    calls = [session.Call(number=n, txn=small) for n in range(1, 120)]
    message = session.SessionRequest(calls=calls)
    assert message.ByteSize() > 256 << 10
    check_width(session.SessionRequest, message.SerializeToString())


def test_what_is_nested_too_deeply_for_a_parser_is_left_to_it() -> None:
    raw = b"\x0a\x00" * FIELDS
    for _ in range(500):
        raw = field(1, field(3, raw))
    deep = field(1, field(3, raw))
    check_width(kv.TxnRequest, deep)
    with pytest.raises(DecodeError):
        kv.TxnRequest.FromString(deep)


@given(st.binary(max_size=200))
def test_anything_malformed_is_left_to_the_parser(raw: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(width, "FIELDS", 1)
        try:
            check_width(kv.TxnRequest, raw)
        except LimitExceeded:
            return


def test_a_wide_request_is_told_the_limit() -> None:
    async def test(served: Served) -> None:
        call: Any = served.channel.unary_unary("/wbkv.v1.KV/Txn")
        code, error = await fails(call(b"\x12\x00" * (FIELDS + 1)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert (error.limit.name, error.limit.value) == ("fields", FIELDS)

    run(test)
