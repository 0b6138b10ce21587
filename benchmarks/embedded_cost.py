"""What a store inside a process costs: to open it, one call at a time, many at once, and to have it idle.

CPU time is that of all the process's threads; the best of several rounds, as others use the machine too.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing

from google.protobuf.message import Message
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.api.methods import Unary
from kvstore.embedded.store import Embedded, open_store

CALLS, ROUNDS = 500, 7
WAIT_S = 60.0


async def nothing(request: Message, _: float) -> Message:
    return request


def one_at_a_time(name: str, call: Callable[[int], object]) -> None:
    found = []
    for _ in range(ROUNDS):
        times, began = [], time.process_time()
        for i in range(CALLS):
            at = time.perf_counter()
            call(i)
            times.append(time.perf_counter() - at)
        found.append((statistics.median(times), (time.process_time() - began) / CALLS))
    wall_s, cpu_s = (min(column) for column in zip(*found, strict=True))
    print(f"  {name:<28} p50 {wall_s * 1e6:6.0f} us   CPU {cpu_s * 1e6:6.0f} us")


def at_once(store: Embedded) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        puts = [store.call("Put", put(i), WAIT_S) for i in range(CALLS)]
        for each in puts:
            each.result()
        best = min(best, (time.process_time() - began) / CALLS)
    print(f"  {f'{CALLS} puts at once':<28} CPU {best * 1e6:6.0f} us each")


def put(i: int) -> kv.PutRequest:
    return kv.PutRequest(key=b"key%d" % i, value=b"v" * 20)


def transfer() -> kv.TxnRequest:
    """Between two of three partitions."""
    keys = ((b"account/alice", -1), (b"account/bob", 1))
    return kv.TxnRequest(then=[kv.Operation(add=kv.Calculate(key=key, operand=by)) for key, by in keys])


def measure(store: Embedded) -> None:
    get = kv.GetRequest(key=b"key1")
    crossing, method = store._bridge, Unary(kv.GetRequest, nothing)  # noqa: SLF001 - a part alone
    one_at_a_time("put", lambda i: store.call("Put", put(i), WAIT_S).result())
    one_at_a_time("strict get", lambda _: store.call("Get", get, WAIT_S).result())
    one_at_a_time("transfer over two partitions", lambda _: store.call("Txn", transfer(), WAIT_S).result())
    one_at_a_time("nothing, there and back", lambda _: crossing.call(method, get, WAIT_S).result())
    at_once(store)
    began = time.process_time()
    time.sleep(5)
    print(f"  idle: {(time.process_time() - began) / 5:.1%} of a core")


def main() -> None:
    for durability in ("os", "fsync"):
        with tempfile.TemporaryDirectory() as folder:
            for what in ("new", "again"):
                at = time.perf_counter()
                with closing(open_store(folder, durability=durability)) as store:
                    print(f"{durability}: opened {what} in {(time.perf_counter() - at) * 1e3:.0f} ms")
                    if what == "again":
                        measure(store)


if __name__ == "__main__":
    main()
