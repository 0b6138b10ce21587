"""What a hostile client costs an innocent one: p99 latency as a ratio to a quiet cluster, errors, memory.

Three nodes and three partitions on loopback; `fsync`. The innocent client puts and gets a key every 20 ms by
the SDK, all the time, keys of all partitions in turn. Attacks take turns. Each is a process of its own
(`attackers`), which is killed after some seconds. Before each, the innocent client's p99 is measured anew,
once the cluster is quiet.

An attacker has the scheduler's idle priority: it shares the machine with the nodes, and its own CPU time
would count as a cost of the attack. So the figures are what the attack costs the cluster, as far as the other
processes leave the attacker CPU time (each attacker's is printed): measure on a machine that does nothing
else. *Back within* is the time from the attack's end until ten pairs of calls in a row take less than twice
the quiet p99 each, 60 s at most. `--only NAMES` runs some attacks only: names of functions of `attackers`,
with commas between them; `--write` keeps what several such runs measure together.

*Controls* are not attacks: processes of normal priority that use the machine's cores, or its disk, as much as
the nodes do for an attack, and do not know the store. What they cost the innocent client, an attack costs it
at least, where all nodes and clients share one machine.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import wbkv

from benchmarks import attackers
from benchmarks.attackers import Attack, Target
from benchmarks.load import Plan, running
from benchmarks.load.nodes import cpu_s, memory_mib, pids
from benchmarks.record import Benchmark, Figure
from benchmarks.scan import fill
from kvstore.local.cluster import LocalCluster

PAUSE_S: Final = 0.02
"""Between two pairs of calls of the innocent client."""

KEYS: Final = 8
"""Keys of the innocent client. The SDK asks the leaders of their partitions: every node leads one."""

BACK_S: Final = 60.0
"""How long the cluster may take to be as it was, at most."""

BACK_PAIRS: Final = 10
"""Pairs of calls in a row that must be as fast as they were."""

ON_S: Final = 120.0
"""How long an attack may take to begin."""

P99: Final = "p99 of an innocent client"
COLUMNS: Final = {
    P99: "x", "its p99 before": "ms", "its longest call": "ms", "its errors": "",
    "memory of the largest node": "MiB", "back within": "s",
}  # fmt: skip
"""What is measured of an attack, and in which units."""

SPAWN: Final = multiprocessing.get_context("spawn")


class Call(NamedTuple):
    """A call of the innocent client; times are of the monotonic clock, in seconds."""

    began: float
    took: float
    error: str | None


def call_for_ever(addresses: Sequence[str], calls: Connection) -> None:
    """Put and get every 20 ms, and send what became of each call."""
    with wbkv.connect(addresses, timeout=10.0) as client:
        for number in itertools.count():
            key = f"innocent/{number // 2 % KEYS}"
            error = None
            began = time.monotonic()
            try:
                if number % 2:
                    client.get(key)
                else:
                    client.put(key, b"x")
            except wbkv.Error as found:
                error = repr(found)[:200]
            took = time.monotonic() - began
            calls.send(Call(began, took, error))
            time.sleep(PAUSE_S / 2)


class Innocent:
    """The innocent client, a process of its own, and its calls so far."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._calls: list[Call] = []
        self._incoming, outgoing = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(target=call_for_ever, args=(addresses, outgoing), daemon=True)
        self.process.start()
        outgoing.close()
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        try:
            while True:
                self._calls.append(self._incoming.recv())
        except (EOFError, OSError):
            return

    def calls(self, first: float, last: float) -> list[Call]:
        """Return the calls that began between two times, once all of them have ended."""
        while not self._calls or self._calls[-1].began <= last:
            if not self.process.is_alive():
                raise SystemExit("the innocent client has ended")
            time.sleep(PAUSE_S)
        return [call for call in list(self._calls) if first <= call.began <= last]

    def next_calls(self, count: int) -> list[Call]:
        """Wait for some calls that begin from now on, and return them."""
        began = time.monotonic()
        while len(found := self.calls(began, time.monotonic())) < count:
            time.sleep(PAUSE_S)
        return found


@contextmanager
def innocent_client(cluster: LocalCluster) -> Iterator[Innocent]:
    """An innocent client, killed at the end."""
    found = Innocent(cluster.addresses)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.join()


def back_after(calls: Sequence[Call], since: float, bound: float) -> float | None:
    """Return the seconds from a time until enough calls in a row are within a bound; None if they are not."""
    fast, began = 0, since
    for call in calls:
        if call.took <= bound and call.error is None:
            fast += 1
            if fast == 2 * BACK_PAIRS:
                return began - since
        else:
            fast, began = 0, call.began + call.took
    return None


def wait_until_back(innocent: Innocent, since: float, bound: float) -> float:
    """Wait until the innocent client's calls are within a bound; return when they were, as a time since."""
    while True:
        now = time.monotonic()
        found = back_after(innocent.calls(since, now), since, bound)
        if found is not None or now - since > BACK_S:
            return BACK_S if found is None else found
        time.sleep(PAUSE_S)


def p99(calls: Sequence[Call]) -> float:
    """The 99th percentile of the times of some calls, in seconds."""
    times = [call.took for call in calls]
    return statistics.quantiles([*times, *times], n=100)[98]


def attacks(sizes: Any) -> Iterator[tuple[str, Attack, int]]:
    """All attacks, each with its size."""
    yield "transactions of 7 MiB", attackers.large, 0
    yield f"counts of {sizes.keys:,} keys", attackers.counts, 0
    yield f"conditions on {sizes.keys:,} keys", attackers.unchanged, 0
    yield f"deletes of {sizes.keys:,} keys and the innocent client's", attackers.delete_everything, 0
    yield f"deletes of {sizes.keys:,} keys of others", attackers.delete_others, 0
    yield f"scans before {sizes.keys:,} keys", attackers.past, 0
    yield "400 calls never read", attackers.unread_calls, 0
    yield "100 sessions never read", attackers.unread_sessions, 0
    yield "100 watches never read", attackers.unread_watches, 0
    yield f"{sizes.watches:,} watches", attackers.watches, sizes.watches
    yield f"{sizes.streams:,} idle streams", attackers.idle_streams, sizes.streams
    yield f"watched deletes of {sizes.deleted:,} keys", attackers.deletes, sizes.deleted
    yield "half frames", attackers.half_frames, 0
    yield "random bytes", attackers.garbage, 0
    yield "refused connections", attackers.refused, 0
    yield "control: a third of the time of three processes", attackers.burn, 0
    yield "control: files of three processes", attackers.write_files, 0


def chosen(sizes: Any) -> list[tuple[str, Attack, int]]:
    """The attacks that are asked for."""
    every = {attack.__name__: (what, attack, size) for what, attack, size in attacks(sizes)}
    names = sizes.only.split(",") if sizes.only else list(every)
    if unknown := set(names) - every.keys():
        raise SystemExit(
            f"--only: unknown attack {', '.join(sorted(unknown))}; choose from {', '.join(every)}"
        )
    return [every[name] for name in names]


class Observation(NamedTuple):
    """What one attack did to the innocent client and to the nodes."""

    ratio: float
    quiet_ms: float
    longest_ms: float
    errors: int
    memory_mib: float
    back_s: float

    def __str__(self) -> str:
        return (
            f"p99 x {self.ratio:.2f}, longest {self.longest_ms:.0f} ms, {self.errors} errors, "
            f"{self.memory_mib:.0f} MiB, back within {self.back_s:.1f} s"
        )


def attacked(
    cluster: LocalCluster, innocent: Innocent, sizes: Any, attack: Attack, target: Target
) -> Observation:
    """Measure the innocent client before, during and after an attack."""
    quiet_p99 = p99(innocent.next_calls(sizes.calls))
    on = SPAWN.Event()
    process = SPAWN.Process(target=attackers.run, args=(attack, target, on), daemon=True)
    process.start()
    try:
        if not on.wait(ON_S):
            raise SystemExit(f"{attack.__name__}: the attack has not begun after {ON_S:g} s")
        began, memory = time.monotonic(), 0.0
        while time.monotonic() < began + sizes.seconds:
            time.sleep(0.2)
            memory = max([memory, *map(memory_mib, pids(cluster))])
        ended = time.monotonic()
        used = cpu_s(process.pid or 0)
    finally:
        process.kill()
        process.join()
    calls = innocent.calls(began, ended)
    errors = [call.error for call in calls if call.error is not None]
    back = wait_until_back(innocent, ended, 2 * quiet_p99)
    later = [call.error for call in innocent.calls(ended, time.monotonic()) if call.error is not None]
    longest = max(call.took for call in calls) * 1e3
    found = Observation(
        p99(calls) / quiet_p99, quiet_p99 * 1e3, longest, len(errors) + len(later), memory, back
    )
    name = attack.__name__
    what = f"quiet p99 {quiet_p99 * 1e3:.1f} ms, {len(calls)} calls, attacker's CPU time {used:.1f} s"
    print(f"  {name}: {what}; {found}", flush=True)
    for error in dict.fromkeys((*errors, *later)):
        print(f"  {name}: {error}", flush=True)
    return found


def measure_all(sizes: Any) -> Iterator[Figure]:
    """All attacks in turns, so many times."""
    which = chosen(sizes)
    found: dict[str, list[Observation]] = defaultdict(list)
    with running(Plan(level="store", groups=3, durability="fsync")) as cluster:
        with wbkv.connect(cluster.addresses) as client:
            revision = client.put("first", b"")
        fill(cluster, sizes.keys)
        nodes = [node.address for node in cluster.config.nodes.values()]
        with innocent_client(cluster) as innocent:
            innocent.next_calls(2 * BACK_PAIRS)  # the first calls look for the nodes
            usual = p99(innocent.next_calls(sizes.calls))
            for _ in range(sizes.rounds):
                for what, attack, size in which:
                    wait_until_back(innocent, time.monotonic(), 2 * usual)
                    target = Target(list(cluster.addresses), nodes, revision, size)
                    found[what].append(attacked(cluster, innocent, sizes, attack, target))
    for what, observed in found.items():
        ratios, quiet, longest, errors, memory, back = zip(*observed, strict=True)
        samples = ratios, quiet, longest, errors, memory, back
        for (column, unit), found_of in zip(COLUMNS.items(), samples, strict=True):
            yield Figure.of(f"{what}: {column}", unit, found_of)


def table(figures: Sequence[Figure]) -> Iterator[list[str]]:
    """The figures as rows: an attack each, and a heading."""
    yield ["an innocent client beside ...", *COLUMNS]
    found: dict[str, dict[str, Figure]] = defaultdict(dict)
    for figure in figures:
        what, _, column = figure.name.rpartition(": ")
        found[what][column] = figure
    for what, columns in found.items():
        p99_of = columns[P99]
        yield [
            what,
            f"{p99_of.median} ({p99_of.spread})",
            *(columns[column].median for column in COLUMNS if column != P99),
        ]


BENCHMARK = Benchmark(
    "attacks", "attacks", __doc__, measure_all,
    {
        "keys": (300_000, 20_000), "seconds": (10.0, 3.0), "calls": (400, 400), "watches": (1_000, 200),
        "streams": (9_000, 1_000), "deleted": (250_000, 5_000), "rounds": (3, 1), "only": ("", ""),
    },
    part="only",
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
