"""Keys and values as text, with escapes, and as JSON."""

from __future__ import annotations

import base64
import binascii
import os
import re
from typing import Any, Final

_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\", "'": b"'", '"': b'"'}
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.|$)", re.DOTALL)


def escape(data: bytes) -> str:
    """Return bytes as one printable line, which `unescape` converts back."""
    text = data.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def unescape(text: str) -> bytes:
    r"""Return the bytes of a text with escapes: \xHH, \n, \r, \t, \0, \\, \' and \"."""
    parts: list[bytes] = []
    end = 0
    for found in _ESCAPE.finditer(text):
        parts += (_raw(text[end : found.start()]), unescaped(found[1], found.start()))
        end = found.end()
    return b"".join([*parts, _raw(text[end:])])


def unescaped(escape: str, position: int) -> bytes:
    """Return the bytes of an escape, given without its backslash."""
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    if len(escape) == 3:
        return bytes.fromhex(escape[1:])
    raise ValueError(
        f"column {position + 1}: \\{escape} is not an escape; there are \\xHH \\n \\r \\t \\0 \\\\ \\' \\\""
    )


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def argument(text: str, *, escaped: bool = False) -> bytes:
    """Return a key or value from the command line: the shell's bytes, with or without escapes."""
    return unescape(text) if escaped else os.fsencode(text)


def shown(value: bytes) -> str:
    """Return a value for printing: text unchanged, on any number of lines; other bytes with escapes."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return escape(value)
    return text if text.replace("\n", "").replace("\t", "").isprintable() else escape(value)


def to_json(data: bytes) -> str | dict[str, str]:
    """Return bytes for JSON: a string if they are UTF-8, else `{"base64": ...}`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def from_json(found: Any) -> bytes:
    """Return the bytes of a JSON value, as `to_json` wrote it."""
    if isinstance(found, str):
        try:
            return found.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{found!r} contains a lone surrogate") from None
    if isinstance(found, dict) and set(found) == {"base64"} and isinstance(found["base64"], str):
        try:
            return base64.b64decode(found["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"{found['base64']!r} is not base64") from None
    raise ValueError(f'expected a string or {{"base64": "..."}}, found {found!r}')
