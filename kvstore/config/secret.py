"""The cluster's secret: what its nodes and operators know, and strangers do not.

It is made with the cluster, and is in the cluster's file. It authenticates connections to the node port
(`wire/handshake.py`), and is never sent. No text of it appears by accident: its `repr` hides it, it cannot be
pickled, and only `reveal`, for the file, returns it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final, NoReturn

SECRET_BYTES: Final = 32
_TEXT: Final = re.compile(f"[0-9A-Fa-f]{{{2 * SECRET_BYTES}}}")


class Secret:
    """A random key of 256 bits."""

    __slots__ = ("_key",)

    def __init__(self, text: str) -> None:
        """Raises `ValueError`, without the text, unless it is 64 hexadecimal digits."""
        if not _TEXT.fullmatch(text):
            raise ValueError(f"not {2 * SECRET_BYTES} hexadecimal digits")
        self._key = bytes.fromhex(text)

    @classmethod
    def new(cls) -> Secret:
        """Return a random secret."""
        return cls(secrets.token_hex(SECRET_BYTES))

    def reveal(self) -> str:
        """Return the secret as text, for the cluster's file only."""
        return self._key.hex()

    def proof(self, *parts: bytes) -> bytes:
        """Return a proof of knowing the secret, which holds for these parts, in this order, only."""
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.digest()

    def proves(self, proof: bytes, *parts: bytes) -> bool:
        """Return whether this is the proof for these parts. The time it takes tells nothing."""
        return hmac.compare_digest(proof, self.proof(*parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._key, other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a cluster's secret cannot be pickled")
