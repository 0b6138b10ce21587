"""Any sequence of calls, while connections break, gives what a dictionary would give."""

from __future__ import annotations

from typing import Any

import wbkv
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from wbkv.core.effects import Ask, Failure, Open
from wbkv.core.requests import Requests

from tests.unit.wbkv.model import Clock, ModelLink, connected, drive, lost

KEY = st.sampled_from([b"a", b"ab", b"b", b"z", b"k" * 16])
VALUE = st.binary(max_size=3)


class Against(RuleBasedStateMachine):
    """A client and a dictionary. One of so many messages is lost: before it is executed, or its answer."""

    @initialize(
        losses=st.lists(st.sampled_from(["", "", "before", "after"]), max_size=60),
        cuts=st.lists(st.integers(0, 3), max_size=20),
        page=st.integers(1, 3),
    )
    def connect(self, losses: list[str], cuts: list[int], page: int) -> None:
        self.link = ModelLink(Clock(), page=page, cuts=cuts)
        coming = iter(losses)
        now = [""]

        def before(asked: Ask | Open) -> Failure | None:
            now[0] = next(coming, "") if isinstance(asked, Ask) else ""
            return lost() if now[0] == "before" else None

        self.link.before = before
        self.link.after = lambda asked: lost() if now[0] == "after" else None
        self.requests = Requests(connected(self.link, 100.0), wbkv.codecs.BYTES, "strict")
        self.expected: dict[bytes, bytes] = {}

    def call(self, plan: Any) -> Any:
        return drive(self.link, plan)

    @rule(key=KEY, value=VALUE)
    def put(self, key: bytes, value: bytes) -> None:
        assert self.call(self.requests.put(key, value, None)) == self.link.store.revision
        self.expected[key] = value

    @rule(key=KEY)
    def delete(self, key: bytes) -> None:
        there = self.expected.pop(key, None)
        assert self.call(self.requests.delete(key, None)) == int(there is not None)

    @rule(start=KEY)
    def delete_range(self, start: bytes) -> None:
        gone = [key for key in self.expected if key.startswith(start)]
        assert self.call(self.requests.delete(wbkv.prefix(start), None)) == len(gone)
        for key in gone:
            del self.expected[key]

    @rule(key=KEY, value=VALUE)
    def append(self, key: bytes, value: bytes) -> None:
        self.expected[key] = self.expected.get(key, b"") + value
        assert self.call(self.requests.number(wbkv.append(key, value), None)) == len(self.expected[key])

    @rule(key=KEY, other=KEY, value=VALUE)
    def swap_if_equal(self, key: bytes, other: bytes, value: bytes) -> None:
        condition, then, otherwise = wbkv.value(key) == value, wbkv.put(other, value), wbkv.get(key)
        result = self.call(self.requests.transact((condition,), (then,), (otherwise,), None))
        assert result.succeeded == (self.expected.get(key) == value)
        if result.succeeded:
            self.expected[other] = value
        else:
            entry = result.results[0]
            assert (entry.value if entry else None) == self.expected.get(key)

    @rule(keys=st.lists(KEY, max_size=4))
    def get_many(self, keys: list[bytes]) -> None:
        found = self.call(self.requests.get_many(keys, None, 0, None, None))
        assert found == [self.expected.get(key) for key in keys]

    @rule(start=KEY, reverse=st.booleans(), limit=st.integers(0, 3))
    def scan(self, start: bytes, reverse: bool, limit: int) -> None:  # noqa: FBT001 - drawn
        scan = wbkv.Client(self.link, self.requests).scan(start, limit=limit, reverse=reverse)
        keys = sorted((key for key in self.expected if key.startswith(start)), reverse=reverse)
        assert [(e.key, e.value) for e in scan] == [(k, self.expected[k]) for k in keys][: limit or None]

    @invariant()
    def nothing_is_open(self) -> None:
        """Every write is acknowledged once it has ended."""
        if hasattr(self, "requests"):
            assert not self.requests.calls._identity._open


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
