"""How values become bytes, and back. A client has one; `client.using(codec)` gives one with another."""

from __future__ import annotations

import json
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

V = TypeVar("V")

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What JSON can say."""


class Codec(Protocol[V]):
    """Two functions. `encode` raises TypeError or ValueError for what it has no bytes for."""

    def encode(self, value: V, /) -> bytes:
        """The value as bytes."""

    def decode(self, raw: bytes, /) -> V:
        """The value of bytes. Raises ValueError for bytes that are none of its own."""


class _Bytes:
    def encode(self, value: bytes, /) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise TypeError(f"a value must be bytes, not {type(value).__name__} (or give the client a codec)")

    def decode(self, raw: bytes, /) -> bytes:
        return raw


class _Text:
    def encode(self, value: str, /) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"a value must be str, not {type(value).__name__}")
        return value.encode()

    def decode(self, raw: bytes, /) -> str:
        return raw.decode()


class _Integer:
    def encode(self, value: int, /) -> bytes:
        if not isinstance(value, int):
            raise TypeError(f"a value must be int, not {type(value).__name__}")
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"a number must have 64 bits, as the store counts in, not {value}")
        return b"%d" % value

    def decode(self, raw: bytes, /) -> int:
        return int(raw)


class _Json:
    def encode(self, value: Json, /) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    def decode(self, raw: bytes, /) -> Json:
        found: Json = json.loads(raw)
        return found


BYTES: Final[Codec[bytes]] = _Bytes()
"""As they are: what a client has unless told otherwise."""
TEXT: Final[Codec[str]] = _Text()
"""UTF-8."""
INTEGER: Final[Codec[int]] = _Integer()
"""Decimal digits of a signed 64-bit number: what `add` counts in."""
JSON: Final[Codec[Json]] = _Json()
"""Anything that JSON can say."""


_ORDERED: Final = (BYTES, TEXT)
"""Codecs whose bytes are in the order of what they stand for. Not so of numbers: "100" comes before "30"."""


class Values(Generic[V]):
    """A codec whose mistakes name the key. Bytes take a short cut."""

    def __init__(self, codec: Codec[V]) -> None:
        self.codec = codec
        self.plain = codec is BYTES
        self.ordered = codec in _ORDERED

    def encode(self, key: bytes, value: object) -> bytes:
        """A caller's value."""
        if self.plain and type(value) is bytes:
            return value
        try:
            raw: object = self.codec.encode(value)  # type: ignore[arg-type]  # codecs refuse what is not theirs
        except TypeError as error:
            raise TypeError(f"the value of {key!r}: {error}") from error
        except ValueError as error:
            raise ValueError(f"the value of {key!r}: {error}") from error
        if not isinstance(raw, bytes):
            raise TypeError(f"the codec made {type(raw).__name__} of the value of {key!r}, not bytes")
        return raw

    def decode(self, key: bytes, raw: bytes) -> V:
        """A stored value."""
        try:
            return self.codec.decode(raw)
        except ValueError as error:
            raise ValueError(f"the codec cannot read the value of {key!r}: {error}") from error
