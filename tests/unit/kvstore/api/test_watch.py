"""How a watch's batches become messages."""

from __future__ import annotations

import asyncio

from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.api.kv import KV, PAGE_BYTES
from kvstore.api.methods import ApiContext, Encoded, Options
from kvstore.store.questions import Event
from kvstore.store.service import Batch, Piece
from tests.unit.kvstore.api.harness import Served, run
from tests.unit.kvstore.api.memory import MemoryService


def event(number: int, size: int) -> Event:
    return Event(b"%d" % number, b"v" * size, 1, 1)


def test_a_watch_from_now_on_pins_nothing() -> None:
    async def test(served: Served) -> None:
        watch = served.kv.Watch(kv.WatchRequest(ranges=[kv.Range(prefix=b"")], progress_ms=50))
        await watch.read()
        assert not served.service.machine.pins

    run(test)


def batch(revision: int, *transactions: tuple[int, list[Event]]) -> Batch:
    return Batch(revision, tuple(Piece(each, tuple(events)) for each, events in transactions))


def message_of(encoded: Encoded) -> kv.WatchResponse:
    return kv.WatchResponse.FromString(encoded.raw)


def sent(found: Batch, after: int = 0) -> list[tuple[int, list[tuple[int, int, bool]]]]:
    async def messages() -> list[tuple[int, list[tuple[int, int, bool]]]]:
        service = MemoryService()
        servicer = KV(
            ApiContext(service, service.facts_of_node, Options("c", "n", response_bytes=8 * PAGE_BYTES))
        )
        return [
            (m.revision, [(c.revision, len(c.events), c.continued) for c in m.transactions])
            for m in map(message_of, servicer._changes(after, found))
        ]

    return asyncio.run(messages())


def test_a_batch_without_changes_is_a_mark() -> None:
    assert sent(batch(9)) == [(9, [])]


def test_small_transactions_share_a_message() -> None:
    assert sent(batch(9, (3, [event(1, 10)]), (5, [event(1, 10), event(2, 10)]))) == [
        (9, [(3, 1, False), (5, 2, False)])
    ]


def test_a_message_that_is_full_says_how_far_it_goes() -> None:
    third = PAGE_BYTES // 3
    assert sent(batch(9, *((i, [event(1, third)]) for i in range(3, 8)))) == [
        (4, [(3, 1, False), (4, 1, False)]),
        (6, [(5, 1, False), (6, 1, False)]),
        (9, [(7, 1, False)]),
    ]


def test_a_large_transaction_is_alone_and_whole() -> None:
    large = [event(i, PAGE_BYTES) for i in range(3)]
    assert sent(batch(9, (3, [event(1, 10)]), (5, large), (6, [event(1, 10)]))) == [
        (3, [(3, 1, False)]),
        (5, [(5, 3, False)]),
        (9, [(6, 1, False)]),
    ]


def test_only_a_transaction_too_large_for_any_message_is_split() -> None:
    huge = [event(i, PAGE_BYTES) for i in range(7)]
    assert sent(batch(9, (5, huge)), after=2) == [
        (2, [(5, 3, True)]),
        (2, [(5, 3, True)]),
        (9, [(5, 1, False)]),
    ]
