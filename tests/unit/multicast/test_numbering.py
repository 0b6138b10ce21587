"""The numbering of a client's requests: the ordering library's, and the SDK's, which may not import it.

Both follow one model: a request carries the lowest number without a definite result, and a client whose
oldest such request is a window behind goes on as a new client.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wbkv.core import identity
from wbkv.core.environment import SYSTEM
from wbkv_proto.v1 import kv_pb2 as kv

from multicast.numbering import Numbering
from multicast.types import ClientId

WINDOW = 5


class OfLibrary:
    """`Numbering` as the store's gateway uses it."""

    def __init__(self) -> None:
        self._numbering = Numbering(ClientId(1))

    def take(self) -> tuple[int, int, int, Callable[[], None]]:
        if self._numbering.is_full(WINDOW):
            self._numbering = Numbering(ClientId(self._numbering.client + 1))
        numbering = self._numbering
        sequence = numbering.take()
        return numbering.client, sequence, numbering.ack_below, lambda: numbering.done(sequence)


class OfSdk:
    """`wbkv.core.identity.Identity`."""

    def __init__(self) -> None:
        self._identity = identity.Identity(SYSTEM)

    def take(self) -> tuple[int, int, int, Callable[[], None]]:
        message = kv.RequestId()
        signed = self._identity.sign(message)
        return (
            message.client, message.sequence, message.ack_below, lambda: self._identity.done(signed)
        )  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _small_window() -> object:
    patch = pytest.MonkeyPatch()
    patch.setattr(identity, "WINDOW", WINDOW)
    yield
    patch.undo()


@pytest.mark.parametrize("kind", [OfLibrary, OfSdk])
@given(st.lists(st.none() | st.integers(0, 30), max_size=60))
def test_numbers_follow_the_model(kind: type[OfLibrary | OfSdk], steps: list[int | None]) -> None:
    """A step takes a number, or gives a request that is under way its result."""
    numbers, done_of = kind(), dict[tuple[int, int], Callable[[], None]]()
    clients: list[int] = []
    open_: set[int] = set()  # of the newest client
    last = 0
    for step in steps:
        if step is not None:
            if done_of:
                client, sequence = list(done_of)[step % len(done_of)]
                done_of.pop((client, sequence))()
                if client == clients[-1]:
                    open_.remove(sequence)
            continue
        client, sequence, ack_below, done = numbers.take()
        if not clients or last + 1 >= min(open_, default=last + 1) + WINDOW:
            assert client not in clients
            clients.append(client)
            open_, last = set(), 0
        last += 1
        open_.add(last)
        assert (client, sequence, ack_below) == (clients[-1], last, min(open_))
        done_of[client, sequence] = done
