"""What all of the machine's values are: immutable, compared by content, and read from bytes as they are."""

from __future__ import annotations

import msgspec


class Data(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A value. It holds other values only, never itself, so the garbage collector need not look at it."""
