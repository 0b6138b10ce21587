"""What gRPC says in headers."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.http2 import grpc
from kvstore.http2.headers import literal
from kvstore.http2.status import Status
from tests.unit.kvstore.http2.bytes import read

FIELDS = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b":authority", b"x")]
TYPE = (b"content-type", b"application/grpc+proto")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"4m", 0.004), (b"5u", 5e-6), (b"6n", 6e-9), (b"0S", 0)],
)
def test_timeouts(text: bytes, seconds: float) -> None:
    found = grpc.head_of([*FIELDS, TYPE, (b"grpc-timeout", text)])
    assert found.timeout_s == pytest.approx(seconds)
    assert (found.path, found.refusal, found.malformed) == ("/a/b", b"", False)


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"123456789S", b"-1S", b"1.5S", b"1s"])
def test_malformed_timeouts(text: bytes) -> None:
    found = grpc.head_of([*FIELDS, TYPE, (b"grpc-timeout", text)])
    assert read(found.refusal)["grpc-status"] == "13"


def test_metadata() -> None:
    pairs = [
        (b"te", b"trailers"),
        (b"grpc-encoding", b"gzip"),
        (b"key", b"value"),
        (b"raw-bin", b"/wA"),
        (b"bad-bin", b"!"),
    ]
    found = grpc.head_of([*FIELDS, TYPE, *pairs])
    assert found.metadata == (("key", b"value"), ("raw-bin", b"\xff\0"))


def decoded(text: str) -> str:
    raw, found = text.encode(), bytearray()
    while raw:
        if raw[:1] == b"%":
            found.append(int(raw[1:3], 16))
            raw = raw[3:]
        else:
            found.append(raw[0])
            raw = raw[1:]
    return found.decode()


@given(st.text())
def test_any_message_can_be_sent(text: str) -> None:
    found = read(grpc.end_block(Status.ABORTED, text, begin=True))
    assert decoded(found.get("grpc-message", "")) == text
    assert found.get("grpc-message", "").isascii()
    assert (found[":status"], found["content-type"], found["grpc-status"]) == (
        "200",
        "application/grpc",
        "10",
    )


@given(st.binary(max_size=500))
def test_literals_are_as_hpack_reads_them(value: bytes) -> None:
    assert hpack.Decoder().decode(literal("some-name", value), raw=True) == [(b"some-name", value)]


def test_binary_metadata_is_written_without_padding() -> None:
    raw = grpc.end_block(Status.OK, trailing=(("a-bin", b"\xff\0"), ("b", b"text")), begin=False)
    assert read(raw) == {"grpc-status": "0", "a-bin": "/wA", "b": "text"}
