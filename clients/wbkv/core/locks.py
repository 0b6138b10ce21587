"""Locks with fencing tokens, on nothing but transactions.

A lock is a key. Whoever creates it holds the lock, and the revision that created it is the *token*: it
rises from holder to holder. The holder writes the key again and again. A waiter that has seen no such write
for as long as the holder promised to make one, by its own clock, removes and creates the key in one
transaction. Clocks decide only how long a dead holder is in the way: what a token protects is safe whatever
they do, since `create_revision(key) == token` can be a condition of every transaction made under the lock.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from typing import Any, Final

from wbkv.codecs import BYTES
from wbkv.core.effects import Plan, Wait
from wbkv.core.requests import Requests
from wbkv.data import Entry, Key, TxnResult, key_bytes
from wbkv.errors import DeadlineExceeded, LockLost, OutcomeUnknown, Unavailable
from wbkv.operations import Condition, Operation, absent, create_revision, delete, get, mod_revision, put

POLL_S: Final = 0.1
"""How often a waiter looks, about."""

RENEWALS: Final = 3
"""How often a holder renews its lock within the time that it promised."""


class Holding:
    """One holder's, or waiter's, side of a lock."""

    def __init__(self, requests: Requests[bytes], name: Key, ttl_s: float) -> None:
        if not ttl_s > 0:
            raise ValueError(f"the ttl must be positive, not {ttl_s!r}")
        self._requests = requests
        self.key = key_bytes(name)
        self.ttl_s = ttl_s
        self._value = b""
        self.token = 0
        """0: it is not held."""
        self._safe_until = 0.0
        self._seen: tuple[int, float] | None = None
        """The last write of another holder, and when it was first seen."""

    @property
    def lost(self) -> bool:
        """Whether somebody else may hold it by now."""
        return bool(self.token) and time.monotonic() >= self._safe_until

    def condition(self) -> Condition:
        """That this holder still has it."""
        if not self.token:
            raise LockLost(f"the lock {self.key!r} is not held")
        return create_revision(self.key) == self.token

    def acquire(self, timeout_s: float | None) -> Plan[bool]:
        """Wait for it."""
        if self.token and not self.lost:
            raise ValueError(f"the lock {self.key!r} is held already")
        self.token = 0
        self._value = json.dumps({"owner": secrets.token_hex(16), "ttl": self.ttl_s}).encode()
        self._seen = None
        until = None if timeout_s is None else time.monotonic() + timeout_s
        unsure = False
        while True:
            try:
                if (yield from self._try()):
                    return True
            except OutcomeUnknown:
                if unsure:
                    raise
                unsure = True  # another look tells, as the value is this holder's own
                continue
            unsure = False
            pause = POLL_S * random.uniform(0.5, 1.5)
            if until is not None and time.monotonic() + pause >= until:
                return False
            yield Wait(pause)

    def _try(self) -> Plan[bool]:
        """Take it if it is free, or if its holder has been silent for too long."""
        asked = time.monotonic()
        result = yield from self._write((absent(self.key),), put(self.key, self._value))
        if result.succeeded:
            return self._taken(result.revision, asked)
        holder = result.results[0]
        if not isinstance(holder, Entry):
            return False
        asked = time.monotonic()
        if holder.value == self._value:
            # An attempt without an answer was executed. When, nobody knows: so it is renewed.
            mine = create_revision(self.key) == holder.create_revision
            result = yield from self._write((mine,), put(self.key, self._value))
            return result.succeeded and self._taken(holder.create_revision, asked)
        if self._seen is None or self._seen[0] != holder.mod_revision:
            self._seen = holder.mod_revision, asked
        elif asked - self._seen[1] >= _ttl_of(holder.value, self.ttl_s):
            still = mod_revision(self.key) == holder.mod_revision
            result = yield from self._write((still,), delete(self.key), put(self.key, self._value))
            return result.succeeded and self._taken(result.revision, asked)
        return False

    def _write(self, conditions: tuple[Condition, ...], *then: Operation) -> Plan[TxnResult[bytes]]:
        return self._requests.transact(conditions, then, (get(self.key),), None)

    def _taken(self, token: int, asked: float) -> bool:
        self.token = token
        self._safe_until = asked + self.ttl_s
        return True

    def renew(self) -> Plan[bool]:
        """Say that the holder is there. Whether it still holds the lock."""
        asked = time.monotonic()
        left = self._safe_until - asked
        if left <= 0:
            return False
        token = self.token
        try:
            result = yield from self._requests.transact(
                (self.condition(),), (put(self.key, self._value),), (), left
            )
        except (Unavailable, DeadlineExceeded):
            return not self.lost
        if self.token == token:  # else it was released meanwhile, and may be held anew
            self._safe_until = asked + self.ttl_s if result.succeeded else 0.0
        return result.succeeded

    def release(self) -> Plan[bool]:
        """Give it up. Whether it was still held."""
        if not self.token:
            return False
        condition = self.condition()
        try:
            result = yield from self._requests.transact((condition,), (delete(self.key),), (), None)
        finally:
            self.token = 0
        return result.succeeded


def raw(requests: Requests[Any]) -> Requests[bytes]:
    """The same calls, with bytes as values."""
    return Requests(requests.calls, BYTES, "strict")


def _ttl_of(value: bytes, usual_s: float) -> float:
    """How long the holder may be silent."""
    try:
        ttl_s = float(json.loads(value)["ttl"])
    except (ValueError, KeyError, TypeError):
        return usual_s
    return ttl_s if ttl_s > 0 else usual_s
