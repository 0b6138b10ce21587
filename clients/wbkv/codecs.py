"""Codecs: they encode values as bytes, and decode them.

`using` selects one for a client, a snapshot or an open transaction: `client.using(codecs.JSON)`, or one for
each prefix of keys: `client.using({"user/": codecs.json_of(User), "visits/": codecs.INTEGER})`. The longest
prefix decides, and "" stands for all other keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, get_origin

from wbkv.data import Entry

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A value that JSON can represent."""


class Codec(Protocol[V]):
    """Converts values to bytes and back."""

    def encode(self, value: V, /) -> bytes:
        """Encode a value. Raises TypeError or ValueError for a value that the codec does not support."""

    def decode(self, raw: bytes, /) -> V:
        """Decode bytes. Raises ValueError for bytes that the codec cannot have encoded."""


class AnyCodec(Protocol[V_co]):
    """A codec of some of the types that a client with several codecs returns."""

    def encode(self, value: Any, /) -> bytes:
        """Encode a value, as `Codec` does."""

    def decode(self, raw: bytes, /) -> V_co:
        """Decode bytes, as `Codec` does."""


Codecs: TypeAlias = Codec[V] | Mapping[str, AnyCodec[V]]
"""A codec, or codecs by prefixes of keys. Annotate the client to name the types:
`shop: wbkv.Client[User | int] = client.using({"user/": json_of(User), "visits/": INTEGER})`.
"""


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


def json_of(kind: type[V]) -> Codec[V]:
    """Return the codec for values of a type, as JSON: a dataclass, a msgspec Struct, a pydantic model, or
    anything else that msgspec converts, such as `list[User]`, a TypedDict or `datetime`. What is stored is
    checked when it is decoded.

    It needs the package msgspec; for pydantic models, pydantic itself instead.
    """
    if isinstance(kind, type) and hasattr(kind, "model_validate_json"):
        return _Model(kind)
    return _Struct(kind)


class _Typed(Generic[V]):
    """A codec of one type."""

    def __init__(self, kind: type[V]) -> None:
        self._kind = kind
        self._class: type = get_origin(kind) or kind

    def __repr__(self) -> str:
        return f"codecs.json_of({getattr(self._kind, '__name__', self._kind)})"

    def _check(self, value: object) -> None:
        if isinstance(self._class, type) and not isinstance(value, self._class):
            raise TypeError(f"a value must be {self._class.__name__}, not {type(value).__name__}")


class _Model(_Typed[V]):
    """Uses the methods of a pydantic model."""

    def encode(self, value: V, /) -> bytes:
        self._check(value)
        model: Any = value
        text: str = model.model_dump_json()
        return text.encode()

    def decode(self, raw: bytes, /) -> V:
        model: Any = self._kind
        found: V = model.model_validate_json(raw)  # its ValidationError is a ValueError
        return found


class _Struct(_Typed[V]):
    """Uses msgspec."""

    def __init__(self, kind: type[V]) -> None:
        super().__init__(kind)
        try:
            import msgspec
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"{self!r} needs the package msgspec: pip install msgspec", name="msgspec"
            ) from None
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(kind).decode
        self._wrong = msgspec.MsgspecError

    def encode(self, value: V, /) -> bytes:
        self._check(value)
        return self._encode(value)

    def decode(self, raw: bytes, /) -> V:
        try:
            return self._decode(raw)
        except self._wrong as error:
            raise ValueError(str(error)) from None


_ORDERED: Final = (BYTES, TEXT)
"""Codecs whose bytes have the order of the values. Numbers do not: "100" comes before "30"."""


class Values(Generic[V]):
    """A codec whose errors name the key, with a fast path for bytes; or codecs by prefixes of keys."""

    def __init__(self, given: Codecs[V]) -> None:
        self.codec = given if not isinstance(given, Mapping) else _ByPrefix(given)
        self.plain = self.codec is BYTES
        self.ordered = self.codec in _ORDERED

    def _at(self, key: bytes) -> Codec[Any]:
        """Return the codec of a key."""
        codec = self.codec
        return codec.at(key) if isinstance(codec, _ByPrefix) else codec

    def encode(self, key: bytes, value: object) -> bytes:
        """Encode a caller's value."""
        if self.plain and type(value) is bytes:
            return value
        codec = self._at(key)
        try:
            raw: object = codec.encode(value)  # codecs reject other types
        except TypeError as error:
            raise TypeError(f"the value of {key!r}: {error}") from error
        except ValueError as error:
            raise ValueError(f"the value of {key!r}: {error}") from error
        if not isinstance(raw, bytes):
            raise TypeError(f"the codec encoded the value of {key!r} as {type(raw).__name__}, not bytes")
        return raw

    def decode(self, key: bytes, raw: bytes) -> V:
        """Decode a stored value."""
        codec = self._at(key)
        try:
            found: V = codec.decode(raw)
        except ValueError as error:
            raise ValueError(f"the codec cannot decode the value of {key!r}: {error}") from error
        return found

    def entry(self, entry: Entry[bytes]) -> Entry[V]:
        """Decode an entry."""
        return Entry(entry.key, self.decode(entry.key, entry.value), *entry[2:])


class _ByPrefix:
    """Codecs by prefixes of keys."""

    def __init__(self, codecs: Mapping[str, AnyCodec[object]]) -> None:
        if not codecs:
            raise ValueError("codecs by prefix: there is none")
        self._codecs = sorted(
            ((prefix.encode(), codec) for prefix, codec in codecs.items()), key=lambda each: -len(each[0])
        )

    def __repr__(self) -> str:
        return repr({prefix.decode(): codec for prefix, codec in self._codecs})

    def at(self, key: bytes) -> Codec[Any]:
        """Return the codec of the longest prefix of a key."""
        for prefix, codec in self._codecs:
            if key.startswith(prefix):
                return codec
        known = ", ".join(repr(prefix.decode()) for prefix, _ in self._codecs)
        raise ValueError(f'there is no codec for the key {key!r}, only for {known}; "" stands for all others')
