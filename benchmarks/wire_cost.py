"""What the wire format costs: CPU time to write and read a message, and its bytes, by how many share a frame.

The mix is that of a busy leader: of eight messages six are ACCEPTs with payloads to two groups, one is an
ACCEPT_ACK and one a DELIVER, each for a run of messages. A frame of one is an ACCEPT.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from kvstore.wire import Envelope, decode, encode, size_of
from multicast.messages import Accept, AcceptAck, Deliver, Message
from multicast.types import Ballot, ClientId, GroupId, MessageId, ReplicaId, Timestamp, timestamp

OURS, THEIRS = GroupId(0), GroupId(1)
LEADER, FOLLOWER, OTHER_LEADER = ReplicaId(OURS, 0, 0), ReplicaId(OURS, 1, 0), ReplicaId(THEIRS, 1, 0)
BALLOT, OTHER_BALLOT = Ballot(3, LEADER, 0), Ballot(4, OTHER_LEADER, 0)
CLIENTS = 16


class Traffic:
    """Messages as they come after a while: clocks and sequence numbers are not small any more."""

    def __init__(self, payload: int, run: int) -> None:
        self.rng = random.Random(1)
        self.payload = payload
        self.run = run
        self.time = 1_000_000
        self.sequence = 50_000

    def mid(self) -> MessageId:
        self.sequence += 1
        return MessageId(ClientId(self.rng.randrange(CLIENTS)), self.sequence, self.rng.getrandbits(64))

    def ts(self) -> Timestamp:
        self.time += 1
        return timestamp(self.time, self.rng.choice((OURS, THEIRS)))

    def accept(self) -> Message:
        mid, dest, payload = self.mid(), (OURS, THEIRS), self.rng.randbytes(self.payload)
        return Accept(mid, dest, OURS, BALLOT, self.ts(), payload, self.sequence - 100)

    def accept_ack(self) -> Message:
        return AcceptAck(tuple(self.mid() for _ in range(self.run)), OURS, (BALLOT, OTHER_BALLOT))

    def deliver(self) -> Message:
        return Deliver(BALLOT, self.ts(), tuple((self.mid(), self.ts(), self.ts()) for _ in range(self.run)))

    def mix(self, count: int) -> list[Message]:
        turn = (*[self.accept] * 3, self.accept_ack, *[self.accept] * 3, self.deliver)
        return [turn[index % len(turn)]() for index in range(count)]


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
    parser.add_argument("--run", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    traffic = Traffic(arguments.payload, arguments.run)
    report: dict[str, Any] = {}
    for count in (1, 8, 64):
        envelopes: list[Envelope] = [(LEADER, FOLLOWER, traffic.mix(count))]
        data = encode(envelopes)
        if decode(data) != envelopes:
            raise SystemExit("what was decoded is not what was encoded")
        writing = cost(encode, envelopes, count, arguments.rounds)
        reading = cost(decode, data, count, arguments.rounds)
        report[str(count)] = {
            "encode_us": round(statistics.median(writing), 2),
            "encode_best_us": round(min(writing), 2),
            "decode_us": round(statistics.median(reading), 2),
            "decode_best_us": round(min(reading), 2),
            "bytes": round(len(data) / count, 1),
        }
    accepts = [traffic.accept() for _ in range(64)]
    together = len(encode([(LEADER, FOLLOWER, accepts)])) / len(accepts)
    report["accept_bytes"] = {"alone": size_of(accepts[0]), "in_a_frame_of_64": round(together, 1)}
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
    print(f"an ACCEPT takes {alone} bytes alone, {together} in a frame of 64 ACCEPTs")


if __name__ == "__main__":
    main()
