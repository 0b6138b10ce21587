"""What traces cost: CPU for a delivery at a node, and for a call of a client, without any network or store.

    python -m benchmarks.trace_cost

For each the least of many short runs: that is what the code takes when nobody else disturbs it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import wbkv
from google.protobuf.message import Message
from wbkv.core.calls import Calls
from wbkv.core.effects import GET, PUT, TXN, Method
from wbkv.core.routing import Placement, Router
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.config.addresses import NodeId
from kvstore.machine.codec import digest_of, encode_request
from kvstore.machine.commands import Request
from kvstore.machine.request import Put, Transaction
from kvstore.node.recorder import DeliveryRecorder
from multicast.messages import Delivery
from multicast.types import ClientId, GroupId, MessageId, Timestamp

RUNS, COUNT = 40, 512
ONE, OTHER = b"account/alice", b"account/bob"
GROUPS = (GroupId(0), GroupId(1))


def least(work: Callable[[], None]) -> float:
    """Microseconds of CPU, of the run that took least, for each of `COUNT`."""
    best = float("inf")
    for _ in range(RUNS):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best / COUNT * 1e6


def deliveries() -> list[Delivery]:
    """Of transactions of two puts, in two groups."""
    transaction = Transaction(then=(Put(ONE, b"x" * 100), Put(OTHER, b"x" * 100)))
    payload = encode_request(Request(2**62 + 5, 7, 1, 2**52, digest_of(transaction), transaction))
    return [
        Delivery(
            MessageId(ClientId(2**62 + 777), n, 2**63 + n), GROUPS, payload, 1,
            Timestamp(n << 20), Timestamp(n << 20), Timestamp((n - 1) << 20), mismatch=False,
        )
        for n in range(1, COUNT + 1)
    ]  # fmt: skip


def at_a_node(folder: Path) -> Iterator[tuple[str, float]]:
    """A delivery, by how many come together."""
    found = deliveries()
    for together in (1, 4, 64):
        recorder = DeliveryRecorder(folder, NodeId("n1"), requests=True)
        recorder.began(GROUPS[0], Timestamp(0))

        def work(recorder: DeliveryRecorder = recorder, together: int = together) -> None:
            for first in range(0, COUNT, together):
                recorder.delivered(GROUPS[0], found[first : first + together])
            recorder.write()

        yield f"a delivery, {together} together", least(work)
        recorder.close()


def calls_of(trace: wbkv.Trace | None) -> Calls:
    """They know the map, for long enough."""
    router = Router(("127.0.0.1:1",))
    router.placement = Placement(hashed=True, starts=(b"\0\0", b"\x15\x55", b"\x2a\xaa"), owners=(0, 1, 2))
    router.stale = False
    router._learned_at = time.monotonic()  # noqa: SLF001 - it is not to be asked for
    return Calls(router, 10.0, trace)


def transfer() -> tuple[Method, Any, Message]:
    """What an interactive transfer commits."""
    request = kv.TxnRequest()
    for key in (ONE, OTHER):
        condition = kv.Compare(key=key, operator=kv.EQUAL, mod_revision=282885939024890)
        request.conditions.add().compare.CopyFrom(condition)
        request.then.add().put.CopyFrom(kv.Put(key=key, value=b"70"))
    results = [kv.OperationResult(written=kv.Written())] * 2
    return TXN, request, kv.TxnResponse(header=HEADER, succeeded=True, results=results)


HEADER = kv.Header(revision=282885939024898, transaction_revision=282885939024899)
ENTRY = kv.Entry(key=ONE, value=b"x" * 100, mod_revision=282885939024890)
CALLS: dict[str, tuple[Method, Any, Message]] = {
    "a get": (
        GET, kv.GetRequest(key=ONE, consistency=kv.STRICT),
        kv.GetResponse(header=kv.Header(revision=282885939024898), entry=ENTRY),
    ),
    "a put": (PUT, kv.PutRequest(key=ONE, value=b"x" * 100), kv.PutResponse(header=HEADER)),
    "a transfer: two conditions, two puts": transfer(),
}  # fmt: skip


def at_a_client(folder: Path) -> Iterator[tuple[str, float, float]]:
    """A call, not traced and traced."""
    with wbkv.Trace(folder) as trace:
        for name, (method, request, answer) in CALLS.items():
            found = []
            for calls in (calls_of(None), calls_of(trace)):
                call: Any = calls.read if method is GET else calls.write

                def work(
                    call: Any = call,
                    method: Method = method,
                    request: Any = request,
                    answer: Message = answer,
                ) -> None:
                    for _ in range(COUNT):
                        if method is not GET:
                            request.ClearField("id")
                        plan = call(method, request, ONE, None)
                        plan.send(None)
                        try:
                            plan.send(answer)
                        except StopIteration:
                            continue

                found.append(least(work))
            yield name, found[0], found[1]


def main() -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        for name, took in at_a_node(Path(folder)):
            print(f"{name}: {took:.1f} us")
        for name, plain, traced in at_a_client(Path(folder)):
            print(f"{name}: {plain:.1f} us, traced {traced:.1f} us: {traced - plain:.1f} us more")


if __name__ == "__main__":
    main()
