"""What the wire format costs: CPU time to write and read a message, and its bytes, by how many share a frame.

A frame is that of a busy leader to a node with replicas of two groups: it proposes some messages to both of
them, acknowledges as many and delivers as many. Costs are per message that is proposed.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.record import Benchmark, Figure
from kvstore.wire.frames import ORDERING_CODEC, Envelope
from multicast.messages import Accept, AcceptAck, Deliver
from multicast.types import Ballot, ClientId, GroupId, MessageId, ReplicaId, Timestamp, timestamp

OURS, THEIRS = GroupId(0), GroupId(1)
LEADER, FOLLOWER, OTHER_LEADER = ReplicaId(OURS, 0, 0), ReplicaId(OURS, 1, 0), ReplicaId(THEIRS, 1, 0)
BALLOT, OTHER_BALLOT = Ballot(3, LEADER, 0), Ballot(4, OTHER_LEADER, 0)
CLIENTS = 16


class Traffic:
    """Messages of a cluster that has run for long: clocks and sequence numbers are not small."""

    def __init__(self, payload: int) -> None:
        self.rng = random.Random(1)
        self.payload = payload
        self.time = 1_000_000
        self.sequence = 50_000

    def mid(self) -> MessageId:
        self.sequence += 1
        return MessageId(ClientId(self.rng.randrange(CLIENTS)), self.sequence, self.rng.getrandbits(64))

    def ts(self) -> Timestamp:
        self.time += 1
        return timestamp(self.time, self.rng.choice((OURS, THEIRS)))

    def mids(self, count: int) -> tuple[MessageId, ...]:
        return tuple(self.mid() for _ in range(count))

    def accept(self, count: int) -> Accept:
        mids, local_ts = self.mids(count), tuple(self.ts() for _ in range(count))
        payloads = tuple(self.rng.randbytes(self.payload) for _ in mids)
        ack_below = tuple(mid.sequence - 100 for mid in mids)
        return Accept(((OURS, THEIRS),), OURS, BALLOT, mids, local_ts, payloads, ack_below)

    def frame(self, count: int) -> list[Envelope]:
        accept = self.accept(count)
        foreign = dataclasses.replace(accept, payloads=(), ack_below=())
        ack = AcceptAck(self.mids(count), OURS, (BALLOT, OTHER_BALLOT))
        deliver = Deliver(BALLOT, self.ts(), tuple((mid, self.ts(), self.ts()) for mid in self.mids(count)))
        return [(LEADER, FOLLOWER, [accept, deliver]), (LEADER, OTHER_LEADER, [foreign, ack])]


def cost(function: Callable[[Any], object], argument: object, messages: int, rounds: int) -> list[float]:
    """CPU microseconds per message, in each round."""
    repeats = max(1, 4096 // messages)
    figures = []
    for _ in range(rounds):
        gc.collect()
        start = time.process_time()
        for _ in range(repeats):
            function(argument)
        figures.append((time.process_time() - start) / repeats / messages * 1e6)
    return figures


def measure(sizes: Any) -> Iterator[Figure]:
    """Frames with one message and with many."""
    traffic = Traffic(20)
    for count in (1, 8, 64):
        envelopes = traffic.frame(count)
        data = ORDERING_CODEC.encode(envelopes)
        if ORDERING_CODEC.decode(data) != envelopes:
            raise SystemExit("what was decoded is not what was encoded")
        name = f"a message in a frame of {count}"
        encoding = cost(ORDERING_CODEC.encode, envelopes, count, sizes.rounds)
        decoding = cost(ORDERING_CODEC.decode, data, count, sizes.rounds)
        yield Figure.of(f"{name}: encode", "µs of CPU", encoding)
        yield Figure.of(f"{name}: decode", "µs of CPU", decoding)
        yield Figure.of(name, "bytes", [len(data) / count])


BENCHMARK = Benchmark("wire_cost", "node", __doc__, measure, {"rounds": (40, 3)})

if __name__ == "__main__":
    BENCHMARK.main()
