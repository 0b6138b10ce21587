"""Makes traces of a store that works, small ones, to be spoilt by tests.

Any number of them fit into one DataFrame: each has groups, runs, clients, keys and timestamps of its own.
"""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass, field
from typing import Any

WIDTH = 1 << 20
"""Timestamps of one trace."""
NODES = 3
Row = dict[str, Any]


@dataclass
class Message:
    """A message, at its position in the order."""

    gts: int
    destinations: list[int]
    client: int | None = None
    sequence: int | None = None


@dataclass
class Trace:
    """The lines of replicas and clients."""

    case: int
    groups: list[int]
    messages: list[Message] = field(default_factory=list)
    deliveries: list[Row] = field(default_factory=list)
    requests: list[Row] = field(default_factory=list)

    def log(self, run: str, group: int) -> list[Row]:
        """The lines of a run and group, in order."""
        return [row for row in self.deliveries if row["run"] == run and row["group"] == group]

    def runs(self, group: int) -> list[str]:
        return list(dict.fromkeys(row["run"] for row in self.deliveries if row["group"] == group))

    def copies(self, gts: int, group: int | None = None) -> list[Row]:
        """The deliveries of a message."""
        return [
            row
            for row in self.deliveries
            if row["gts"] == gts and row["kind"] == "message" and group in (None, row["group"])
        ]

    def renumber(self) -> None:
        """Renumber the lines, so that only the planted violation is wrong."""
        for run, group in {(row["run"], row["group"]) for row in self.deliveries}:
            for position, row in enumerate(self.log(run, group), 1):
                row["position"] = position


def covers(write: Row, key: str) -> bool:
    """Whether the write covers this key. Keys compare by their bytes."""
    start, end, at = (None if text is None else raw(text) for text in (write["key"], write["end"], key))
    assert start is not None
    assert at is not None
    return start == at if end is None else start <= at and (not end or at < end)


def raw(key: str) -> bytes:
    return base64.b64decode(key[7:]) if key.startswith("base64:") else key.encode()


class Maker:
    """A simulated store with a few groups, each key in one of them, and sequential clients."""

    def __init__(self, case: int, rng: random.Random, *, groups: int = 0, messages: int = 12) -> None:
        self.rng = rng
        self.case = case
        count = groups or rng.choice((1, 2, 3))
        self.trace = Trace(case, [case * 10 + n for n in range(1, count + 1)])
        binary = "base64:" + base64.b64encode(f"{case}/k2".encode() + b"\xff").decode()
        self.keys = [f"{case}/k0", f"{case}/k1", binary]
        self.state = dict.fromkeys(self.keys, 0)
        self.at_us = case * 10_000_000
        self.sequence = 0
        for position in range(1, messages + 1):
            self.at_us += 1000
            self._step(case * WIDTH + 10 * position)

    def finish(self, *, quiet: bool = False) -> Trace:
        """Add the logs of the replicas. If `quiet`, no replica restarts or jumps."""
        for group in self.trace.groups:
            for node in range(NODES):
                self._log(group, f"c{self.case}n{node}", quiet=quiet)
        self.trace.renumber()
        return self.trace

    # Clients

    def _step(self, gts: int) -> None:
        rng, trace = self.rng, self.trace
        chance = rng.random()
        repeatable = [message for message in trace.messages if message.client is not None]
        if chance < 0.1:
            trace.messages.append(Message(gts, self._some_groups()))  # housekeeping
        elif chance < 0.25 and repeatable:
            again = rng.choice(repeatable)
            trace.messages.append(Message(gts, again.destinations, again.client, again.sequence))
        else:
            outcome = rng.choices(("ok", "unknown", "failed"), (8, 1, 1))[0]
            self.ask(gts, self._some_groups(), self._some_writes(), outcome)
        if rng.random() < 0.5:
            self.read(gts, exact=False)
        if rng.random() < 0.3:
            self.read(gts, exact=True)

    def _some_groups(self) -> list[int]:
        groups = self.trace.groups
        return sorted(self.rng.sample(groups, self.rng.randint(1, len(groups))))

    def _some_writes(self) -> list[Row]:
        rng = self.rng
        if rng.random() < 0.2:
            low, high = sorted(rng.sample(range(4), 2))
            end = rng.choice((f"{self.case}/k{high}", f"{self.case}/k{high}!"))
            return [{"key": f"{self.case}/k{low}", "end": end, "removed": True}]
        some = [key for key in self.keys if rng.random() < 0.4] or [rng.choice(self.keys)]
        return [{"key": key, "end": None, "removed": rng.random() < 0.25} for key in some]

    def ask(
        self, gts: int, groups: list[int], writes: list[Row], outcome: str = "ok", *, arrives: bool = False
    ) -> Row:
        """A transaction that reads and writes. What failed may have been ordered, and refused there.

        If it does not `arrive` for sure, chance decides whether it does, and then has an effect.
        """
        rng, done = self.rng, outcome == "ok"
        self.sequence += 1
        client = self.case * 100 + 1
        reads = [{"key": key, "revision": self.state[key]} for key in self.keys if rng.random() < 0.5]
        request = self.entry_of(
            outcome=outcome,
            client=client,
            sequence=self.sequence,
            partitions=groups,
            revision=gts if done else None,
            exact=True if done else None,
            reads=reads if done else [],
            writes=[] if outcome == "failed" else writes,
        )
        if done or arrives or rng.random() < 0.7:
            self.trace.messages.append(Message(gts, groups, client, self.sequence))
            if done or (outcome == "unknown" and (arrives or rng.random() < 0.5)):
                self._execute(gts, writes)
        return request

    def _execute(self, gts: int, writes: list[Row]) -> None:
        for write in writes:
            for key in self.keys:
                if covers(write, key):
                    self.state[key] = 0 if write["removed"] else gts

    def read(self, gts: int, *, exact: bool, keys: list[str] | None = None) -> Row:
        """Read right after a message."""
        found = [{"key": key, "revision": self.state[key]} for key in keys or self.keys]
        return self.entry_of(
            outcome="ok", revision=gts, exact=exact, reads=found, partitions=self.trace.groups
        )

    def entry_of(self, **values: Any) -> Row:
        """Add a request that has ended."""
        empty: Row = dict.fromkeys(
            ("client", "sequence", "revision", "exact", "error", "protocol", "clients")
        )
        self.at_us += 100
        times = {"start_us": self.at_us, "end_us": self.at_us + 50, "intended_us": self.at_us - 5_000}
        about: Row = {
            "run": f"c{self.case}client",
            "scenario": "",
            "reads": [],
            "writes": [],
            "partitions": None,
        }
        request = {**empty, **times, **about, **values}
        self.trace.requests.append(request)
        return request

    # Replicas

    def _log(self, group: int, node: str, *, quiet: bool) -> None:
        """Log the runs of a node, which may restart and deliver again, or take over another's state."""
        rng = self.rng
        mine = [message for message in self.trace.messages if group in message.destinations]
        at, has = 0, 0
        for life in range(1 if quiet else rng.choice((1, 1, 2))):
            run = f"{node}-{life}"
            at = rng.randint(0, at)
            has = mine[at - 1].gts if at else self.case * WIDTH
            self._line(run, node, group, "begin", has)
            end = len(mine) if quiet or (not life and rng.random() < 0.6) else rng.randint(at, len(mine))
            while at < end:
                if not quiet and rng.random() < 0.05:
                    at = rng.randint(at, end)
                    has = mine[at - 1].gts if at else has
                    self._line(run, node, group, "jump", has)
                    continue
                self._line(run, node, group, "message", mine[at].gts, mine[at])
                at += 1

    def _line(
        self, run: str, node: str, group: int, kind: str, gts: int, message: Message | None = None
    ) -> None:
        what: Row = dict.fromkeys(("origin", "number", "digest", "destinations", "client", "sequence"))
        if message is not None:
            what = {
                "origin": 7,
                "number": message.gts,
                "digest": -message.gts,
                "destinations": message.destinations,
                "client": message.client,
                "sequence": message.sequence,
            }
        line = {"run": run, "node": node, "group": group, "kind": kind, "position": 0, "gts": gts, **what}
        self.trace.deliveries.append(line)
