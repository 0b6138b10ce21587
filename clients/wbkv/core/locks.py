"""Locks with fencing tokens, on nothing but transactions.

A lock is a key. The client that creates the key holds the lock, and the revision that created it is the
*token*: it increases from holder to holder. The holder renews the lock by writing the key. A waiter that has
seen no such write for the holder's time to live, by the waiter's own clock, removes and creates the key in
one transaction. Clocks decide only how long a dead holder blocks the others. What a token protects is safe
whatever the clocks do, since `create_revision(key) == token` can be a condition of every transaction made
under the lock.
"""

from __future__ import annotations

import json
from typing import Any, Final

from wbkv.codecs import BYTES
from wbkv.core.effects import Plan, Wait
from wbkv.core.requests import Requests
from wbkv.data import Entry, Key, TxnResult, key_bytes
from wbkv.errors import DeadlineExceeded, LockLost, OutcomeUnknown, Unavailable
from wbkv.operations import Condition, Operation, absent, create_revision, delete, get, mod_revision, put

POLL_S: Final = 0.1
"""About how often a waiter looks."""

RENEWALS: Final = 3
"""How often a holder renews its lock within the time to live."""


class Holding:
    """A lock, as its holder or a waiter sees it."""

    def __init__(self, requests: Requests[bytes], name: Key, ttl_s: float) -> None:
        if not ttl_s > 0:
            raise ValueError(f"the ttl must be a positive number of seconds, not {ttl_s!r}")
        self._requests = requests
        self._now, self._rng = requests.calls.environment
        self.key = key_bytes(name)
        self.ttl_s = ttl_s
        self._value = b""
        self.token = 0
        """0: the lock is not held."""
        self._safe_until = 0.0
        self._seen: tuple[int, float] | None = None
        """The last write of another holder, and when it was first seen."""

    @property
    def lost(self) -> bool:
        """Whether another holder may have the lock by now."""
        return bool(self.token) and self._now() >= self._safe_until

    def condition(self) -> Condition:
        """Return the condition that this holder still has the lock."""
        if not self.token:
            raise LockLost(f"the lock {self.key!r} is not held: it was released, or never acquired")
        return create_revision(self.key) == self.token

    def acquire(self, timeout_s: float | None) -> Plan[bool]:
        """Wait for the lock. The result is whether it is held."""
        if self.token and not self.lost:
            raise ValueError(f"the lock {self.key!r} is held already")
        self.token = 0
        self._value = json.dumps({"owner": self._rng.randbytes(16).hex(), "ttl": self.ttl_s}).encode()
        self._seen = None
        until = None if timeout_s is None else self._now() + timeout_s
        unsure = False
        while True:
            try:
                if (yield from self._try()):
                    return True
            except OutcomeUnknown:
                if unsure:
                    raise
                unsure = True  # the next read resolves it, as the value identifies this holder
                continue
            unsure = False
            pause = POLL_S * self._rng.uniform(0.5, 1.5)
            if until is not None and self._now() + pause >= until:
                return False
            yield Wait(pause)

    def _try(self) -> Plan[bool]:
        """Take the lock if it is free, or if its holder has not renewed it in time."""
        asked = self._now()
        result = yield from self._write((absent(self.key),), put(self.key, self._value))
        if result.succeeded:
            return self._taken(result.revision, asked)
        holder = result.results[0]
        if not isinstance(holder, Entry):
            return False
        asked = self._now()
        if holder.value == self._value:
            # An attempt without an answer was executed, at an unknown time: so the lock is renewed.
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
        """Hold the lock from when it was asked for. An answer that took longer than that comes too late: the
        next attempt finds the lock to be this holder's, and renews it.
        """
        self._safe_until = asked + self.ttl_s
        if self._now() >= self._safe_until:
            return False
        self.token = token
        return True

    def renew(self) -> Plan[bool]:
        """Renew the lock. The result is whether it is still held.

        An answer that arrives when the lock already counts as lost does not bring it back: its user may have
        acted on that.
        """
        asked = self._now()
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
        if self.token != token:  # the lock was released meanwhile, and may be held again
            return False
        held = result.succeeded and not self.lost
        self._safe_until = asked + self.ttl_s if held else 0.0
        return held

    def release(self) -> Plan[bool]:
        """Release the lock. The result is whether it was still held."""
        condition = self.condition()
        try:
            result = yield from self._requests.transact((condition,), (delete(self.key),), (), None)
        finally:
            self.token = 0
        return result.succeeded


def raw(requests: Requests[Any]) -> Requests[bytes]:
    """Return the same requests with bytes as values."""
    return Requests(requests.calls, BYTES, "strict")


def _ttl_of(value: bytes, usual_s: float) -> float:
    """Return the time to live that the holder has written."""
    try:
        ttl_s = float(json.loads(value)["ttl"])
    except (ValueError, KeyError, TypeError):
        return usual_s
    return ttl_s if ttl_s > 0 else usual_s
