"""Transactions and strict reads as futures: they end by an answer, an error, or in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvstore.machine import Limits, Placement
from kvstore.machine.request import Get, Put, Transaction
from kvstore.machine.results import Got
from kvstore.store.errors import DeadlinePassed, OutcomeUnknown, Overloaded
from kvstore.store.questions import Values
from kvstore.store.service import Committed, Service
from multicast.types import GroupId


class StillGateway:
    """A gateway from which nothing comes by itself."""

    limits = Limits()
    placement = Placement.evenly([GroupId(0)])

    def __init__(self) -> None:
        self.waiting: dict[int, Callable[[Any], None]] = {}

    def knows(self, revision: int) -> bool:
        return True

    def transact(self, transaction: Transaction, done: Callable[[Any], None], **more: object) -> None:
        self.waiting[len(self.waiting)] = done

    def ask(self, group: GroupId, question: object, done: Callable[[Any], None], **more: object) -> int:
        number = len(self.waiting)
        self.waiting[number] = done
        return number

    def forget(self, number: int) -> None:
        self.waiting.pop(number, None)


def service() -> tuple[Service, StillGateway]:
    still: Any = StillGateway()
    return Service(still, lambda: None), still


def test_a_strict_read_ends_by_its_answer() -> None:
    async def test() -> None:
        store, gateway = service()
        reading = store.read((Get(b"k"),), timeout_s=1000)
        gateway.waiting[0](Values(7, (Got(None),)))
        assert await reading == Committed(7, 7, succeeded=True, unmet=(), results=(Got(None),))
        await asyncio.sleep(0)
        assert not gateway.waiting

    asyncio.run(test())


def test_a_strict_read_ends_by_an_error() -> None:
    async def test() -> None:
        store, gateway = service()
        reading = store.read((Get(b"k"),), timeout_s=1000)
        gateway.waiting[0](Overloaded("too many"))
        with pytest.raises(Overloaded):
            await reading
        await asyncio.sleep(0)
        assert not gateway.waiting

    asyncio.run(test())


def test_a_strict_read_ends_in_time_or_when_nobody_waits() -> None:
    async def test() -> None:
        store, gateway = service()
        with pytest.raises(DeadlinePassed):
            await store.read((Get(b"k"),), timeout_s=0.01)
        assert not gateway.waiting
        reading = asyncio.ensure_future(store.read((Get(b"k"),), timeout_s=1000))
        assert gateway.waiting
        reading.cancel()
        await asyncio.sleep(0)
        assert not gateway.waiting

    asyncio.run(test())


@pytest.mark.parametrize(
    ("operation", "error"), [(Put(b"k", b""), OutcomeUnknown), (Get(b"k"), DeadlinePassed)]
)
def test_a_transaction_without_an_answer(operation: Get | Put, error: type[Exception]) -> None:
    async def test() -> None:
        store, gateway = service()
        with pytest.raises(error):
            await store.transact(Transaction(then=(operation,)), timeout_s=0.01)
        gateway.waiting[0](Committed(7, 7, succeeded=True, unmet=(), results=()))

    asyncio.run(test())
