"""Codecs: they encode values as bytes, and decode them. `client.using(codec)` selects one."""

from __future__ import annotations

import json
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

V = TypeVar("V")

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A value that JSON can represent."""


class Codec(Protocol[V]):
    """Converts values to bytes and back."""

    def encode(self, value: V, /) -> bytes:
        """Encode a value. Raises TypeError or ValueError for a value that the codec does not support."""

    def decode(self, raw: bytes, /) -> V:
        """Decode bytes. Raises ValueError for bytes that the codec cannot have encoded."""


class _Ready:
    def __repr__(self) -> str:
        return f"codecs.{type(self).__name__.strip('_').upper()}"


class _Bytes(_Ready):
    def encode(self, value: bytes, /) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise TypeError(f"a value must be bytes, not {type(value).__name__}; or give the client a codec")

    def decode(self, raw: bytes, /) -> bytes:
        return raw


class _Text(_Ready):
    def encode(self, value: str, /) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"a value must be str, not {type(value).__name__}")
        return value.encode()

    def decode(self, raw: bytes, /) -> str:
        return raw.decode()


class _Integer(_Ready):
    def encode(self, value: int, /) -> bytes:
        if not isinstance(value, int):
            raise TypeError(f"a value must be int, not {type(value).__name__}")
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{value} exceeds the store's signed 64-bit numbers, -2^63 to 2^63 - 1")
        return b"%d" % value

    def decode(self, raw: bytes, /) -> int:
        return int(raw)


class _Json(_Ready):
    def encode(self, value: Json, /) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    def decode(self, raw: bytes, /) -> Json:
        found: Json = json.loads(raw)
        return found


BYTES: Final[Codec[bytes]] = _Bytes()
"""Bytes, unchanged: the default."""
TEXT: Final[Codec[str]] = _Text()
"""Text, as UTF-8."""
INTEGER: Final[Codec[int]] = _Integer()
"""Signed 64-bit numbers, as decimal digits: the format of `add`."""
JSON: Final[Codec[Json]] = _Json()
"""Anything that JSON can represent."""


_ORDERED: Final = (BYTES, TEXT)
"""Codecs whose bytes have the order of the values. Numbers do not: "100" comes before "30"."""


class Values(Generic[V]):
    """A codec whose errors name the key, with a fast path for bytes."""

    def __init__(self, codec: Codec[V]) -> None:
        self.codec = codec
        self.plain = codec is BYTES
        self.ordered = codec in _ORDERED

    def encode(self, key: bytes, value: object) -> bytes:
        """Encode a caller's value."""
        if self.plain and type(value) is bytes:
            return value
        try:
            raw: object = self.codec.encode(value)  # type: ignore[arg-type]  # codecs reject other types
        except TypeError as error:
            raise TypeError(f"the value of {key!r}: {error}") from error
        except ValueError as error:
            raise ValueError(f"the value of {key!r}: {error}") from error
        if not isinstance(raw, bytes):
            raise TypeError(f"the codec encoded the value of {key!r} as {type(raw).__name__}, not bytes")
        return raw

    def decode(self, key: bytes, raw: bytes) -> V:
        """Decode a stored value."""
        try:
            return self.codec.decode(raw)
        except ValueError as error:
            raise ValueError(f"the codec cannot decode the value of {key!r}: {error}") from error
