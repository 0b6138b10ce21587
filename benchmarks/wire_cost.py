"""What the wire format costs: CPU time to write and read a message, and its bytes, by how many share a frame.

A frame is that of a busy leader to a node with replicas of two groups: it proposes some messages to both of
them, acknowledges as many and delivers as many. Costs are per message that is proposed.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from kvstore.wire.frames import ORDERING_CODEC, Envelope
from multicast.messages import Accept, AcceptAck, Deliver
from multicast.types import Ballot, ClientId, GroupId, MessageId, ReplicaId, Timestamp, timestamp

OURS, THEIRS = GroupId(0), GroupId(1)
LEADER, FOLLOWER, OTHER_LEADER = ReplicaId(OURS, 0, 0), ReplicaId(OURS, 1, 0), ReplicaId(THEIRS, 1, 0)
BALLOT, OTHER_BALLOT = Ballot(3, LEADER, 0), Ballot(4, OTHER_LEADER, 0)
CLIENTS = 16


class Traffic:
    """Messages as they come after a while: clocks and sequence numbers are not small any more."""

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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payload", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    traffic = Traffic(arguments.payload)
    report: dict[str, Any] = {}
    for count in (1, 8, 64):
        envelopes = traffic.frame(count)
        data = ORDERING_CODEC.encode(envelopes)
        if ORDERING_CODEC.decode(data) != envelopes:
            raise SystemExit("what was decoded is not what was encoded")
        writing = cost(ORDERING_CODEC.encode, envelopes, count, arguments.rounds)
        reading = cost(ORDERING_CODEC.decode, data, count, arguments.rounds)
        report[str(count)] = {
            "encode_us": round(statistics.median(writing), 2),
            "encode_best_us": round(min(writing), 2),
            "decode_us": round(statistics.median(reading), 2),
            "decode_best_us": round(min(reading), 2),
            "bytes": round(len(data) / count, 1),
        }
    alone, together = (
        ORDERING_CODEC.size_of(traffic.accept(1)),
        ORDERING_CODEC.size_of(traffic.accept(64)) / 64,
    )
    report["accept_bytes"] = {"alone": alone, "in_a_run_of_64": round(together, 1)}
    if arguments.json:
        print(json.dumps(report))
        return
    print("us of CPU per message, median (best), and bytes")
    for count in (1, 8, 64):
        row = report[str(count)]
        written = f"encode {row['encode_us']:5.1f} ({row['encode_best_us']:5.1f})"
        read = f"decode {row['decode_us']:5.1f} ({row['decode_best_us']:5.1f})"
        print(f"frame of {count:2}:  {written}  {read}  {row['bytes']:6.1f} bytes")
    alone, together = report["accept_bytes"].values()
    print(f"an ACCEPT takes {alone} bytes alone, {together} in a run of 64")


if __name__ == "__main__":
    main()
