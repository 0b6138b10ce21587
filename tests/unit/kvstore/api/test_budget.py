"""What a node holds for clients that do not read is bounded, and others go on."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1 import session_pb2 as session

from kvstore.api.bounds import REPLY_BYTES, Bounds
from kvstore.api.budget import COPIES, SMALL, Budget, Quota, Reservation
from kvstore.machine import Limits
from kvstore.store.errors import Overloaded
from tests.unit.kvstore.api.deaf import DeafClient
from tests.unit.kvstore.api.harness import Served, every, fails, run, until

TOTAL = 8 << 20
VALUE = 256 << 10
LIMITS = Limits(value_bytes=VALUE)
GET = kv.GetRequest(key=b"k").SerializeToString()


# The budget itself


def test_one_connection_gets_half_and_leaves_room_for_the_next() -> None:
    budget = Budget(1 << 20)
    for connection, most in (("a", 512), ("b", 256), ("c", 128)):
        count = 0
        while budget.reserve_now(connection, 1 << 10) is not None:
            count += 1
        assert count == most
    assert budget.reserve_now("d", 1 << 10) is not None


def test_small_calls_of_idle_connections_get_through_even_then() -> None:
    budget = Budget(1 << 20)
    for connection in range(300):
        while budget.reserve_now(str(connection), 4 << 10) is not None:
            pass
    assert budget.used <= budget.total + budget.total // 8
    assert budget.reserve_now("0", 1) is None


def test_when_a_large_call_gives_up_a_small_one_behind_it_is_let_in() -> None:
    async def test() -> None:
        budget = Budget(1 << 20)
        assert budget.reserve_now("a", 1 << 19) is not None
        assert budget.reserve_now("c", 1 << 18) is not None
        large = asyncio.create_task(budget.reserve("b", 1 << 19, 10.0))
        await asyncio.sleep(0)
        small = asyncio.create_task(budget.reserve("b", 1 << 10, 10.0))
        await asyncio.sleep(0)
        assert not large.done()
        large.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert small.done(), "the others hold what they hold for ever"
        assert small.result().size == 1 << 10

    asyncio.run(test())


def test_waiting_calls_are_let_in_in_order_and_connections_take_turns() -> None:
    async def test() -> None:
        budget = Budget(1 << 20)
        held = budget.reserve_now("a", 1 << 19)
        assert held is not None
        order: list[str] = []

        async def wait(connection: str, name: str) -> None:
            order.append(name)
            room = await budget.reserve(connection, 1 << 19, 10.0)
            order.append("+" + name)
            await asyncio.sleep(0)
            room.release()

        waiting = []
        for connection, name in (("a", "a1"), ("a", "a2"), ("b", "b1")):
            waiting.append(asyncio.create_task(wait(connection, name)))
            await asyncio.sleep(0)
        assert order == ["a1", "a2", "b1", "+b1"]  # b holds nothing: there is room for it
        held.release()
        await asyncio.gather(*waiting)
        assert order[-2:] == ["+a1", "+a2"]
        assert budget.used == 0

    asyncio.run(test())


def test_whoever_waits_too_long_is_told_the_limit() -> None:
    async def test() -> None:
        budget = Budget(1 << 20)
        held = budget.reserve_now("a", 1 << 19)
        assert held is not None
        with pytest.raises(Overloaded, match=r"524,288 bytes of .* \(response_budget_bytes\)"):
            await budget.reserve("a", 1 << 10, 0.01)
        held.release()
        assert (await budget.reserve("a", 1 << 10, 0.01)).size == 1 << 10

    asyncio.run(test())


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_and_nobody_waits_for_ever(seed: int) -> None:
    rng = random.Random(seed)

    async def test() -> None:
        budget = Budget(1 << 20)

        async def call(connection: str) -> None:
            may_refuse = rng.random() < 0.3
            size = rng.choice((1, SMALL, 100_000, 1 << 30))
            try:
                room: Reservation = await budget.reserve(
                    connection, size, rng.choice((0.001, 10.0)), may_refuse=may_refuse
                )
            except Overloaded:
                return
            try:
                assert budget.used + budget.provisional <= budget.total * 5 // 4
                await asyncio.sleep(rng.random() / 500)
                if rng.random() < 0.5:
                    room.settle(room.size // 2)
            except Overloaded:
                assert may_refuse
            finally:
                room.release()
                room.release()

        tasks = [asyncio.create_task(call(rng.choice("abcd"))) for _ in range(300)]
        for task in rng.sample(tasks, 50):
            await asyncio.sleep(0)
            task.cancel()
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert budget.used == 0
        assert not budget._held
        assert budget.provisional == 0
        assert not budget._provisional
        assert not budget._waiting

    asyncio.run(test())


def test_a_quota_names_itself() -> None:
    quota = Quota("watches", 3, 2)
    for connection in "aab":
        quota.take(connection)
    with pytest.raises(Overloaded, match=r"2 watches are open on this connection.*watches_per_connection"):
        quota.take("a")
    with pytest.raises(Overloaded, match=r"3 watches are open at this node, which is the limit \(watches\)"):
        quota.take("c")
    quota.give_back("a")
    quota.take("c")
    assert quota.open == 3


def test_bounds_of_replies() -> None:
    limits = Limits()
    bounds = Bounds(limits, 3, 64 << 20)
    entry = limits.key_bytes + limits.value_bytes
    assert bounds.of("put", kv.PutRequest()) == REPLY_BYTES
    assert bounds.of("get", kv.GetRequest()) >= entry
    get = kv.Operation(get=kv.Get(key=b"k"))
    scan = kv.Operation(scan=kv.Scan(limit_bytes=100, limit=10))
    count = kv.Operation(scan=kv.Scan(shape=kv.COUNT))
    assert bounds.of("txn", kv.TxnRequest(then=[get, get], otherwise=[get] * 3)) >= 3 * entry
    assert bounds.of("txn", kv.TxnRequest(then=[scan])) < 2 * entry
    assert bounds.of("txn", kv.TxnRequest(then=[count] * 10)) < 10_000
    assert bounds.of("txn", kv.TxnRequest(then=[get] * 4096)) <= 3 * (10 << 20)


# The API


async def deaf(served: Served, count: int = 1) -> list[DeafClient]:
    found = [DeafClient(served.address) for _ in range(count)]
    for client in found:
        await client.connect()
    return found


def test_calls_whose_replies_are_never_read() -> None:
    async def test(served: Served) -> None:
        await served.kv.Put(kv.PutRequest(key=b"k", value=b"v" * VALUE))
        budget = served.api.budget
        attackers = await deaf(served, 4)
        for client in attackers:
            for _ in range(100):
                client.call("/wbkv.v1.KV/Get", GET)
        most = 0
        for _ in range(20):
            await served.kv.Put(kv.PutRequest(key=b"other", value=b"v"), timeout=20)
            assert len((await served.kv.Get(kv.GetRequest(key=b"other"), timeout=20)).entry.value) == 1
            most = max(most, budget.used)
        assert TOTAL // 2 < most <= TOTAL + TOTAL // 8
        for client in attackers:
            client.close()
        await until(lambda: budget.used == 0)

    run(test, LIMITS, response_budget_bytes=TOTAL)


def test_sessions_that_are_never_read() -> None:
    async def test(served: Served) -> None:
        await served.kv.Put(kv.PutRequest(key=b"k", value=b"v" * VALUE))
        budget = served.api.budget
        attackers = await deaf(served, 4)
        for client in attackers:
            for _ in range(10):
                calls = [session.Call(number=n, get=kv.GetRequest(key=b"k")) for n in range(1, 101)]
                message = session.SessionRequest(calls=calls).SerializeToString()
                client.call("/wbkv.v1.Session/Open", message, end=False)
        most = 0
        stream = served.session.Open()
        await stream.read()
        for number in range(1, 21):
            put = session.Call(number=number, put=kv.PutRequest(key=b"other", value=b"v"))
            await stream.write(session.SessionRequest(calls=[put]))
            assert (await stream.read()).replies[0].WhichOneof("reply") == "put"
            most = max(most, budget.used)
        assert TOTAL // 2 < most <= TOTAL + TOTAL // 8
        for client in attackers:
            client.close()
        await until(lambda: budget.used == 0)
        assert served.service.under_way == {}

    run(test, LIMITS, response_budget_bytes=TOTAL)


def test_scans_that_are_never_read() -> None:
    async def test(served: Served) -> None:
        for number in range(8):
            await served.kv.Put(kv.PutRequest(key=b"k%d" % number, value=b"v" * VALUE))
        budget = served.api.budget
        (attacker,) = await deaf(served)
        asked = kv.ScanRequest(range=kv.Range(prefix=b"k"), page_bytes=16 << 20).SerializeToString()
        for _ in range(100):
            attacker.call("/wbkv.v1.KV/Scan", asked)
        for _ in range(20):
            await served.kv.Put(kv.PutRequest(key=b"other", value=b"v"), timeout=20)
        assert 0 < budget.used <= TOTAL
        assert served.service.open <= 4
        attacker.close()
        await until(lambda: budget.used == 0)

    run(test, LIMITS, response_budget_bytes=TOTAL)


def test_a_session_goes_on_after_a_call_that_found_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        room = served.api.budget.reserve_now("others", TOTAL // 2)
        more = served.api.budget.reserve_now("more", TOTAL // 4)
        assert room is not None
        assert more is not None
        stream = served.session.Open()
        await stream.read()
        ops = [kv.Operation(get=kv.Get(key=b"k"))] * 16
        large = session.Call(number=1, timeout_ms=20, txn=kv.TxnRequest(then=ops))
        small = session.Call(number=2, put=kv.PutRequest(key=b"k"))
        await stream.write(session.SessionRequest(calls=[large, small]))
        replies: list[session.Reply] = []
        while len(replies) < 2:
            replies += (await stream.read()).replies
        assert [reply.number for reply in replies] == [1, 2]
        assert "response_budget_bytes" in replies[0].error.message
        assert replies[0].error.retryable
        assert replies[1].WhichOneof("reply") == "put"

    run(test, LIMITS, response_budget_bytes=TOTAL)


def test_too_many_streams_are_refused_and_calls_are_not() -> None:
    async def test(served: Served) -> None:
        asked = kv.WatchRequest(ranges=[kv.Range(prefix=b"")])
        watches = [served.kv.Watch(asked) for _ in range(3)]
        for watch in watches:
            await watch.read()
        code, error = await fails(every(served.kv.Watch(asked)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "(watches_per_connection)" in error.message
        assert error.retryable
        sessions = [served.session.Open() for _ in range(2)]
        for each in sessions:
            await each.read()
        code, error = await fails(every(served.session.Open()))
        assert "2 sessions are open at this node" in error.message
        await served.kv.Put(kv.PutRequest(key=b"k"))
        watches[0].cancel()
        await until(lambda: served.api.quotas["watches"].open == 2)
        again = served.kv.Watch(asked)
        await again.read()
        for each in (*watches, *sessions, again):
            each.cancel()
        await until(lambda: not any(quota.open for quota in served.api.quotas.values()))

    run(test, watches_per_connection=3, sessions=2)


def test_copies_are_counted() -> None:
    async def test(served: Served) -> None:
        await served.kv.Put(kv.PutRequest(key=b"k", value=b"v" * VALUE))
        (attacker,) = await deaf(served)
        attacker.call("/wbkv.v1.KV/Get", GET)
        await until(lambda: served.api.budget.used > VALUE)
        await served.kv.Put(kv.PutRequest(key=b"other"))
        assert COPIES * VALUE <= served.api.budget.used < COPIES * VALUE + 1000
        attacker.close()

    run(test, LIMITS)
