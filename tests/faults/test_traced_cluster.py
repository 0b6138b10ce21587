"""Traces of a cluster whose nodes are killed: complete, in order, and in agreement with each other and with
what clients were told.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import wbkv

from kvstore.bare.client import MulticastClient
from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from multicast.protocol import Timing
from multicast.quorum_time import ANCHOR
from multicast.types import GroupId
from tests.faults.harness import PATIENCE_S, CallLoad, until, wait_at_rest

Line: TypeAlias = dict[str, Any]
_MESSAGE = ("gts", "origin", "number", "digest", "destinations", "client", "sequence")


def lines_of(folder: Path, kind: str) -> Iterator[Line]:
    """All whole lines of the files of a kind. Only a last one may be torn."""
    for file in sorted(folder.glob(f"{kind}-*.jsonl")):
        *whole, _ = file.read_text().split("\n")
        yield from map(json.loads, whole)


def what(line: Line) -> tuple[object, ...]:
    """What replicas must agree on."""
    return tuple(json.dumps(line.get(name)) for name in _MESSAGE)


class Deliveries:
    """A checker of what nodes have recorded, in a few lines."""

    def __init__(self, folder: Path) -> None:
        self.runs: dict[tuple[str, int], list[Line]] = defaultdict(list)
        for line in lines_of(folder, "deliveries"):
            self.runs[line["run"], line["group"]].append(line)
        self.order: dict[int, dict[int, tuple[object, ...]]] = defaultdict(dict)
        """Of each group, by revision, whoever has delivered it."""
        for (_, group), lines in self.runs.items():
            for line in self._messages(lines):
                known = self.order[group].setdefault(line["gts"], what(line))
                assert known == what(line), f"group {group} has {known} and {line} at one place"

    def _messages(self, lines: list[Line]) -> list[Line]:
        return [line for line in lines if line["kind"] == "message"]

    def check_runs(self) -> None:
        """Lines are numbered, rise, and leave nothing out."""
        for (run, group), lines in self.runs.items():
            assert [line["position"] for line in lines] == list(range(1, len(lines) + 1)), run
            assert lines[0]["kind"] == "begin"
            kinds = [line["kind"] for line in lines[1:]]
            assert set(kinds) <= {"message", "jump"}, kinds
            stamps = [line["gts"] for line in lines]
            assert stamps == sorted(set(stamps)), f"{run}, group {group}: out of order"
            for before, line in pairwise(lines):
                if line["kind"] == "message":
                    between = [gts for gts in self.order[group] if before["gts"] < gts < line["gts"]]
                    assert not between, f"{run}, group {group} lacks {between} before {line}"

    def check_lives(self) -> None:
        """A run begins nowhere above what the runs before it have recorded."""
        lives: dict[tuple[str, int], int] = {}
        for (_, group), lines in sorted(self.runs.items()):
            node = lines[0]["node"]
            assert lines[0]["gts"] <= lives.get((node, group), 0), f"{node} lacks something before {lines[0]}"
            lives[node, group] = max(lives.get((node, group), 0), lines[-1]["gts"])

    def check_destinations(self) -> None:
        """A message is at the same place in all its groups, in the run of every node that has come so far."""
        for order in self.order.values():
            for gts, found in order.items():
                for group in json.loads(str(found[4])):
                    assert self.order[group].get(gts) == found, f"group {group} has no {found}"


def check_requests(folder: Path, deliveries: Deliveries) -> Mapping[str, int]:
    """What was answered is delivered where the client was told, in the partitions that it says. How often
    each outcome was.
    """
    counts: dict[str, int] = defaultdict(int)
    for line in lines_of(folder, "requests"):
        counts[line["outcome"]] += 1
        if line["outcome"] == "ok" and "client" in line:
            for group in line["partitions"]:
                found = deliveries.order[group][line["revision"]]
                told = (line["partitions"], line["client"], line["sequence"])
                assert tuple(json.loads(str(part)) for part in found[4:]) == told
    asked = {(line.get("client"), line.get("sequence")) for line in lines_of(folder, "requests")}
    for order in deliveries.order.values():
        for found in order.values():
            whose = tuple(json.loads(str(part)) for part in found[5:])
            assert whose == (None, None) or whose in asked, f"nobody has asked for {found}"
    return counts


@contextmanager
def at_work(client: wbkv.Client[bytes]) -> Iterator[CallLoad]:
    """Four threads that transact over several partitions."""

    def transact(rng: random.Random) -> None:
        one, other = (f"key/{rng.randrange(50)}" for _ in range(2))
        client.txn().then(wbkv.get(one), wbkv.put(other, b"x")).commit()
        client.get_many([one, other])

    work = CallLoad(*(partial(transact, random.Random(n)) for n in range(4)), ignored=wbkv.Error)
    try:
        yield work
    finally:
        work.finish()


def test_a_node_that_was_killed_one_that_had_nothing_and_all_at_once(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    cluster = LocalCluster(
        tmp_path / "cluster", 3, 3, durability="os", restart=False, timing=Timing(history=8), trace=traces
    )
    with cluster:
        late = NodeId("n3")
        cluster.kill(late)
        with (
            wbkv.Trace(traces) as trace,
            wbkv.connect(cluster.addresses, timeout=PATIENCE_S, trace=trace, wait=PATIENCE_S) as client,
            at_work(client) as work,
        ):
            work.wait_for(40)
            cluster.start(late)  # it needs the others' state
            work.wait_for(15)
            until(lambda: "took a snapshot" in cluster.log(late).read_text())
            cluster.kill(NodeId("n1"))
            work.wait_for(15)
            cluster.start(NodeId("n1"))
            cluster.wait_ready()
            work.wait_for(15)
            cluster.kill()
            cluster.start()
            work.wait_for(15)
        wait_at_rest(cluster)
    deliveries = Deliveries(traces)
    deliveries.check_runs()
    deliveries.check_lives()
    deliveries.check_destinations()
    counts = check_requests(traces, deliveries)
    assert counts["ok"] > 500
    runs = [lines[0]["node"] for (_, group), lines in deliveries.runs.items() if group == 0]
    assert all(runs.count(node) > 1 for node in cluster.nodes), runs
    jumps = {line["node"] for lines in deliveries.runs.values() for line in lines if line["kind"] == "jump"}
    assert late in jumps
    lasts = {
        (lines[0]["node"], group): lines[-1]["gts"] for (_, group), lines in sorted(deliveries.runs.items())
    }
    assert len({(group, gts) for (_, group), gts in lasts.items()}) == 3, "the groups' replicas end apart"


def test_bare_messages_are_traced_too(tmp_path: Path) -> None:
    traces = tmp_path / "traces"

    async def multicast(cluster: LocalCluster) -> None:
        async with MulticastClient.of(cluster.config) as client:
            for number in range(20):
                dest = [GroupId(0), GroupId(1)] if number % 2 else [GroupId(0)]
                await client.multicast(dest, b"payload %d" % number, PATIENCE_S)

    with LocalCluster(tmp_path / "cluster", 3, 2, application="multicast", trace=traces) as cluster:
        asyncio.run(multicast(cluster))
        wait_at_rest(cluster)
    deliveries = Deliveries(traces)
    deliveries.check_runs()
    deliveries.check_destinations()
    found = [
        what(line)
        for lines in deliveries.runs.values()
        for line in lines
        if line["kind"] == "message" and line["origin"] != ANCHOR - 2**64
    ]
    assert len(found) == 3 * (20 + 10)
    assert {line[5:] for line in found} == {("null", "null")}
