"""Where the time of a transaction goes: by process and layer, and as a time line of a lone one.

Three real nodes, which fsync, and the clients of `benchmarks.etcd`. CPU time comes from samples that every
process takes of itself, system time and other threads from the kernel; the figures are of one call, in
microseconds. Idle is when a process's event loop did not run: nothing to do, or no core to do it on. The time
line has another run, in which nodes note what they do: it is the call that is nearest to the medians of all.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison.measuring import Clients, Round, clients
from benchmarks.comparison.rows import ROWS
from benchmarks.comparison.systems import System, wbkv
from benchmarks.comparison.table import text
from benchmarks.etcd import plan
from benchmarks.load import LoadError
from benchmarks.profiling import processes
from benchmarks.profiling.dumps import Dumps
from benchmarks.profiling.names import CALLS, line_name, name_of
from benchmarks.profiling.shares import functions_us, rows, spent_us, summed
from benchmarks.profiling.timeline import time_line, together
from benchmarks.record import Benchmark, Figure
from kvstore.local.supervise import ClusterError

CLIENTS: Final = 2
Parts = dict[str, dict[str, float]]
"""By process: the time of a call, by layer."""


class Watched:
    """A store and clients that are watched by a module of `profiling`."""

    def __init__(self, dumps: Dumps, system: System, load: Clients) -> None:
        self._dumps = dumps
        self._load = load
        self.names = {pid: name for name, pid in system.pids.items()}
        self.names |= {pid: f"c{number + 1}" for number, pid in enumerate(load.pids)}

    def measure(self, row: str, level: int, sizes: Any) -> tuple[Round, float, list[dict[str, Any]]]:
        """Run a load. Return its figures, the seconds it took, and what processes said at both its ends."""
        said: list[dict[str, Any]] = []
        at: list[float] = []

        def look() -> None:
            at.append(time.monotonic())
            found = self._dumps.collect(self.names)
            said.append({self.names[pid]: each for pid, each in found.items()})

        done = self._load.measure(row, level, sizes.warm_up, sizes.seconds, look)
        return done, at[1] - at[0], said


@contextlib.contextmanager
def watched(nodes: str, client: str, count: int) -> Iterator[Watched]:
    """Start nodes and clients that are watched by these modules."""
    with tempfile.TemporaryDirectory(prefix="profile-") as made:
        folder = Path(made)
        with (
            wbkv(processes.node(nodes, folder)) as system,
            clients(system, count, processes.client(client, folder)) as load,
        ):
            yield Watched(Dumps(folder), system, load)


def measure_layers(asked: list[str], levels: list[int], sizes: Any) -> Iterator[Figure]:
    """CPU time by process and layer, for each row and level."""
    parts: defaultdict[tuple[str, int], list[Parts]] = defaultdict(list)
    speeds: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    functions: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for _ in range(sizes.rounds):
        with watched("sampler", "sampler", CLIENTS) as store:
            for row in asked:
                for level in levels:
                    done, wall_s, (before, after) = store.measure(row, level, sizes)
                    found = {name: spent_us(before[name], after[name], wall_s, done.calls) for name in after}
                    parts[row, level].append(found)
                    speeds[row, level].append(done.per_second)
                    for name in after:
                        kind = "client" if name.startswith("c") else "node"
                        top = functions_us(before[name], after[name], done.calls)
                        functions[row, level].update({f"{kind} {each}": us for each, us in top.items()})
    for (row, level), rounds in parts.items():
        median = _median(rounds)
        speed = statistics.median(speeds[row, level])
        print(f"\n{ROWS[row]}, {level} in flight: {speed:,.0f} /s")
        print(text(rows(median)))
        for function, us in functions[row, level].most_common(sizes.functions):
            print(f"  {us / sizes.rounds:8,.1f}  {function}")
        for whose in ("nodes", "clients"):
            sums = [
                summed([each for name, each in found.items() if name.startswith("c") == (whose == "clients")])
                for found in rounds
            ]
            for layer in dict.fromkeys(layer for each in sums for layer in each):
                samples = [each.get(layer, 0.0) for each in sums]
                yield Figure.of(name_of(row, level, whose, layer), "µs", samples)
        yield Figure.of(name_of(row, level, "nodes", CALLS), "/s", speeds[row, level])


def _median(rounds: list[Parts]) -> Parts:
    """The medians over rounds."""
    layers = {name: dict.fromkeys(layer for found in rounds for layer in found[name]) for name in rounds[0]}
    return {
        name: {layer: statistics.median(found[name].get(layer, 0.0) for found in rounds) for layer in its}
        for name, its in layers.items()
    }


def measure_lines(asked: list[str], sizes: Any) -> Iterator[Figure]:
    """The time line of a lone call, for each row."""
    with watched("events", "calls", 1) as store:
        for row in asked:
            done, _, (_, said) = store.measure(row, 1, sizes)
            client = said.pop("c1")
            found = time_line(said, client)
            if not found.calls:
                raise LoadError(f"{row}: no call of which it is clear which node was its gateway")
            events = together(found.typical())
            about = f"one of {len(found.calls)} calls, whose p50 is {done.p50_ms:.2f} ms"
            print(f"\n{ROWS[row]}, 1 in flight: {about}")
            print(text([[f"{at_ms:7.3f} ms", where, what] for at_ms, where, what in events]))
            for at_ms, where, what in events:
                yield Figure.of(line_name(row, where, what), "ms", [at_ms])


def measure(sizes: Any) -> Iterator[Figure]:
    """Print tables and time lines; yield their figures."""
    asked, levels = plan(sizes)
    try:
        yield from measure_layers(asked, levels, sizes)
        yield from measure_lines(asked, sizes)
    except (ClusterError, LoadError) as error:
        raise SystemExit(str(error)) from error


BENCHMARK = Benchmark(
    "profile", "profile", __doc__, measure,
    {
        "rows": ("two,two-session", "two,two-session"), "in_flight": ("1,10,100,400", "1,100"),
        "seconds": (3.0, 1.0), "warm_up": (0.5, 0.3), "rounds": (3, 1), "functions": (0, 0),
    },
    prints=False,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()
