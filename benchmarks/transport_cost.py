"""What a frame costs between two nodes: round trips and frames per second over loopback, and CPU per frame.

Two processes, each with a transport. One keeps some ACCEPTs in flight, the other answers each with an
ACCEPT_ACK. Each message is a frame; or, `by turn`, all of one turn of the loop are one, as with nodes. Frames
are those of both directions, and CPU is that of both processes: wire format and system calls included.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from kvstore.config.addresses import Address, NodeId
from kvstore.wire.frames import ORDERING_CODEC, Envelope
from kvstore.wire.transport import Transport
from multicast.messages import Accept, AcceptAck, Message
from multicast.types import Ballot, ClientId, GroupId, MessageId, Process, ReplicaId, timestamp

A, B = NodeId("a"), NodeId("b")
GROUP = GroupId(0)
REPLICAS = {A: ReplicaId(GROUP, 0, 0), B: ReplicaId(GROUP, 1, 0)}
BALLOT = Ballot(3, REPLICAS[A], 0)
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def lives_on(node: NodeId, process: Process) -> bool:
    return process == REPLICAS[node]


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def accept(sequence: int, payload: bytes) -> Message:
    mid = MessageId(ClientId(7), sequence, 0xABCDEF0123456789)
    at = timestamp(1_000_000 + sequence, GROUP)
    return Accept(((GROUP,),), GROUP, BALLOT, (mid,), (at,), (payload,), (sequence,))


class Side:
    """One process: `a` asks, `b` answers."""

    def __init__(self, me: NodeId, pipe: Connection, arguments: argparse.Namespace) -> None:
        self.me = me
        self.pipe = pipe
        self.arguments = arguments
        self.other = B if me == A else A
        self.peers: dict[NodeId, Address] = {A: ("", 0), B: ("", 0)}
        self.transport = Transport(
            me, "benchmark", b"", self.peers,
            codec=ORDERING_CODEC,
            on_frame=self.answered if me == A else self.asked, on_client=lambda *_: None, lives_on=lives_on,
        )  # fmt: skip
        self.payload = bytes(arguments.payload)
        self.left = self.unanswered = self.sequence = 0
        self.done = asyncio.Event()
        self.by_turn = False
        self.outgoing: list[Message] = []

    def asked(self, node: NodeId, envelopes: list[Envelope], size: int) -> None:
        for _, _, messages in envelopes:
            for message in messages:
                if isinstance(message, Accept):
                    self.send(AcceptAck(message.mids, GROUP, (BALLOT,)))

    def answered(self, node: NodeId, envelopes: list[Envelope], size: int) -> None:
        for _, _, messages in envelopes:
            for _ in messages:
                self.unanswered -= 1
                if self.left:
                    self.ask()
        if not self.unanswered:
            self.done.set()

    def ask(self) -> None:
        self.left -= 1
        self.unanswered += 1
        self.sequence += 1
        self.send(accept(self.sequence, self.payload))

    def send(self, message: Message) -> None:
        self.outgoing.append(message)
        if not self.by_turn:
            self.flush()
        elif len(self.outgoing) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self.transport.send(self.other, [(REPLICAS[self.me], REPLICAS[self.other], self.outgoing)])
        self.outgoing = []

    async def told(self) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, self.pipe.recv)

    async def run(self) -> dict[str, Any]:
        self.peers[self.me] = await self.transport.listen()
        self.pipe.send(self.peers[self.me])
        self.peers[self.other] = tuple(await self.told())
        self.transport.dial()
        while not self.transport.statistics()["peers"][self.other]["sends"]:
            await asyncio.sleep(0.01)
        self.pipe.send("ready")
        await self.told()
        report: dict[str, Any] = {}
        if self.me == A:
            for in_flight, by_turn in ((1, False), (64, False), (64, True)):
                name = f"{in_flight} in flight, " + ("by turn" if by_turn else "a frame each")
                report[name] = await self.rounds(in_flight, by_turn=by_turn)
            self.pipe.send(None)
        else:
            while (by_turn := await self.told()) is not None:
                self.by_turn = by_turn
                self.pipe.send(cpu())
        await self.transport.close()
        return report

    def frames(self) -> int:
        counts = self.transport.statistics()["peers"][B]
        return int(counts["frames_in"] + counts["frames_out"])

    async def rounds(self, in_flight: int, *, by_turn: bool) -> dict[str, float]:
        rates, frame_rates, costs = [], [], []
        self.by_turn = by_turn
        for _ in range(self.arguments.rounds):
            gc.collect()
            self.pipe.send(by_turn)
            used, frames = cpu() + await self.told(), self.frames()
            start = time.perf_counter()
            self.left = self.arguments.messages
            self.done.clear()
            for _ in range(in_flight):
                self.ask()
            await self.done.wait()
            took, frames = time.perf_counter() - start, self.frames() - frames
            self.pipe.send(by_turn)
            used = cpu() + await self.told() - used
            rates.append(self.arguments.messages / took)
            frame_rates.append(frames / took)
            costs.append(used / frames * 1e6)
        return {
            "round_trips_per_s": round(statistics.median(rates)),
            "best_round_trips_per_s": round(max(rates)),
            "frames_per_s": round(statistics.median(frame_rates)),
            "cpu_us_per_frame": round(statistics.median(costs), 1),
            "best_cpu_us_per_frame": round(min(costs), 1),
        }


def side(me: NodeId, pipe: Connection, arguments: argparse.Namespace) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=LOOPS[arguments.loop]) as runner:

        async def main() -> dict[str, Any]:
            return await Side(me, pipe, arguments).run()

        return runner.run(main())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=LOOPS, default="uvloop")
    parser.add_argument("--payload", type=int, default=20)
    parser.add_argument("--messages", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(
        target=side, args=(B, theirs, arguments), daemon=True
    )
    other.start()
    report = side(A, ours, arguments)
    other.join()
    if arguments.json:
        print(json.dumps(report))
        return
    for name, figures in report.items():
        trips, best, frames, cost, best_cost = figures.values()
        print(
            f"{name:26} {trips:6} round trips/s (best {best:6}), {frames:6} frames/s,"
            f" {cost:5.1f} us of CPU per frame (best {best_cost:5.1f})"
        )


if __name__ == "__main__":
    main()
