"""The profile of processes: layers of functions, samples, time lines, and their tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest

from benchmarks.comparison.rows import ROWS
from benchmarks.profiling import events, shares, timeline
from benchmarks.profiling.layers import (
    DISK_THREADS,
    GRPC_THREADS,
    IDLE,
    KERNEL,
    LAYERS,
    LOOP,
    WATCHING,
    layer_of,
    thread_layer,
)
from benchmarks.profiling.names import cpu_table, line_name, lines_table, medians, name_of
from benchmarks.profiling.sampler import RESUME, Sampler
from benchmarks.record import ROOT, Figure, Machine, Result


def code_of(path: str, name: str) -> CodeType:
    return (lambda: None).__code__.replace(co_filename=f"/somewhere/{path}", co_name=name)


@pytest.mark.parametrize(
    ("path", "name", "layer"),
    [
        ("kvstore/store/partition.py", "deliver", "execution"),
        ("kvstore/store/partition.py", "_send_results", "reply"),
        ("kvstore/store/gate.py", "turn", "gate"),
        ("kvstore/store/gateway.py", "transact", "gateway"),
        ("kvstore/store/gateway.py", "_finish", "reply"),
        ("kvstore/api/convert.py", "transaction", "conversions"),
        ("kvstore/api/calls.py", "handle", "gRPC edge"),
        ("kvstore/http2/connection.py", "_parse", "gRPC edge"),
        ("lib/site-packages/grpc/aio/_call.py", "__init__", "gRPC edge"),
        ("kvstore/wire/frames.py", "encode", "frames"),
        ("kvstore/node/loop.py", "turn", "turns"),
        ("multicast/whitebox/normal.py", "_accept", "ordering"),
        ("kvstore/storage/log.py", "write", "log"),
        ("kvstore/storage/maps.py", "get", "execution"),
        ("kvstore/storage/environment.py", "advance", None),
        ("clients/wbkv/links/session.py", "call", "client"),
        ("benchmarks/load/loops.py", "ended", "load generator"),
        ("benchmarks/profiling/dumps.py", "dump", WATCHING),
        ("benchmarks/comparison/client.py", "main", None),
        ("lib/python3.11/asyncio/runners.py", "run", None),
    ],
)
def test_functions_have_layers(path: str, name: str, layer: str | None) -> None:
    assert layer_of(code_of(path, name)) == layer
    assert layer in (*LAYERS, WATCHING, None)


def test_every_module_of_a_node_has_a_layer() -> None:
    shared = {"environment.py", "checksum.py", "keys.py", "space.py"}
    folders = ("multicast", "kvstore/api", "kvstore/store", "kvstore/node", "kvstore/server", "kvstore/wire")
    files = [path for each in folders for path in (ROOT / each).rglob("*.py")]
    files += [path for path in (ROOT / "kvstore/storage").glob("*.py") if path.name not in shared]
    for path in files:
        assert layer_of(code_of(str(path.relative_to(ROOT)), "any")) in LAYERS


def test_threads_have_layers() -> None:
    assert thread_layer("commit /data/n1/log") == DISK_THREADS
    assert thread_layer("Thread-1 (_poll_wrapper)") == thread_layer("C") == GRPC_THREADS


# Samples


def named(function: Callable[..., Any], path: str, name: str) -> Callable[..., Any]:
    function.__code__ = function.__code__.replace(co_filename=f"/somewhere/{path}", co_name=name)
    return function


def test_time_belongs_to_the_innermost_function_with_a_layer() -> None:
    def library() -> FrameType:
        return sys._getframe()

    def execute() -> Any:
        return named(library, "lib/sorted.py", "add")()

    def turn() -> Any:
        return named(execute, "kvstore/machine/machine.py", "_execute")()

    frame = named(turn, "kvstore/node/loop.py", "turn")()
    sampler = Sampler()
    assert sampler.place(frame) == ("execution", "machine.py:_execute")
    assert sampler.place(frame.f_back) == ("execution", "machine.py:_execute")
    assert sampler.place(frame.f_back.f_back) == ("turns", "loop.py:turn")
    assert sampler.place(None) == (LOOP, LOOP)


def generator() -> Iterator[None]:
    yield


def test_the_time_before_a_function_begins_is_its_callers() -> None:
    made: Any = named(generator, "kvstore/wire/connection.py", "data_received")()
    resume = bytes(made.gi_code.co_code).index(RESUME)
    frame: Any = SimpleNamespace(f_code=made.gi_code, f_lasti=resume, f_back=None)
    sampler = Sampler()
    assert sampler.place(frame) == (LOOP, LOOP)
    frame.f_lasti = resume + 2
    assert sampler.place(frame) == ("frames", "connection.py:data_received")
    caller = SimpleNamespace(f_code=code_of("multicast/queue.py", "pop"), f_lasti=-1, f_back=None)
    frame.f_lasti, frame.f_back = resume, caller
    assert sampler.place(frame) == ("ordering", "queue.py:pop")


def counts(user_s: dict[str, float], main: tuple[float, float], **threads: tuple[str, float, float]) -> Any:
    return {"user_s": user_s, "functions": {}, "main": main, "threads": threads}


def test_all_time_of_a_process_is_in_one_layer() -> None:
    before = counts({"log": 1.0, "gate": 5.0}, (6.0, 1.0), a=("commit x", 0.5, 0.25))
    after = counts(
        {"log": 1.3, "gate": 5.1}, (6.5, 1.2), a=("commit x", 0.6, 0.5), b=("C", 0.125, 0.0)
    )  # fmt: skip
    found = shares.spent_us(before, after, 2.0, 100)
    # Samples have 0.4 s, the kernel says 0.5 s.
    expected = {
        "log": 3750.0, "gate": 1250.0, KERNEL: 4500.0, DISK_THREADS: 1000.0, GRPC_THREADS: 1250.0,
        IDLE: 13000.0,
    }  # fmt: skip
    assert found == pytest.approx(expected)
    assert list(found) == [layer for layer in LAYERS if layer in found]
    assert shares.cpu_us(found) == pytest.approx(11750.0)


def test_what_watching_costs_is_left_out() -> None:
    before, after = counts({}, (0.0, 0.0)), counts({WATCHING: 0.25, "log": 0.75}, (1.0, 0.0))
    assert shares.spent_us(before, after, 1.0, 1)["log"] == pytest.approx(750_000.0)
    assert WATCHING not in shares.spent_us(before, after, 1.0, 1)


def test_a_table_has_a_column_for_each_process() -> None:
    table = shares.rows({"n1": {"log": 10.0, IDLE: 7.0}, "c1": {"log": 2.0, "client": 0.2, IDLE: 9.0}})
    assert table == [
        ["µs for each call", "n1", "c1", "all"],
        ["log", "10", "2", "12"],
        ["CPU", "10", "2", "12"],
        ["idle", "7", "9", ""],
    ]


# Time lines


def test_every_point_of_a_time_line_is_a_method() -> None:
    """A method that was renamed is missed here, not in the middle of a measurement."""
    for point in (*events.POINTS, *events.FRAMES, events.CLIENT):
        owner, name = events.method_of(point)
        assert point.name.split(".") == [owner.__name__, name]
    with pytest.raises(AttributeError):
        events.method_of(events.Point("kvstore.node.loop", "Node.no_such_method", ""))


def test_calls_are_noted_with_their_ends() -> None:
    noted = events.Events()

    class Log:
        def write(self, rows: list[int]) -> int:
            return len(rows)

    write = noted.noted(events.Point("", "", "begins", "ends", only_if_given=True))(Log.write)
    assert write(Log(), [1]) == 1
    assert write(Log(), []) == 0
    assert [name for _, name in noted.take()] == ["begins", "ends", "ends"]
    assert noted.take() == []


def test_the_messages_of_a_frame_are_named() -> None:
    assert events._kinds([(0, 1, ["a", "b", 1]), (0, 2, ["c"])]) == "int, 3 str"
    assert list(timeline.split("from n1: 2 Accept, Multicast")) == ["from n1: Accept"] * 2 + [
        "from n1: Multicast"
    ]
    assert list(timeline.split("to n1: Reach")) == []
    assert list(timeline.split("turn begins")) == ["turn begins"]


def test_turns_in_which_nothing_happens_are_left_out() -> None:
    names = ["turn begins", "turn ends", "turn begins", "deliver", "turn ends"]
    kept = timeline.without_idle_turns([(float(at), name) for at, name in enumerate(names)])
    assert [name for _, name in kept] == ["turn begins", "deliver", "turn ends"]


def a_call(at: float, *, slow: float = 0.0, gateway: str = "n1", leader: str = "n2") -> Any:
    """A call that takes 10 s from `at`, and what two of three nodes do for it."""
    client = [(at, "call"), (at + 10 + slow, "answer")]
    first = [(at + 1, "call arrives"), (at + 2, f"to {leader}: 2 Accept, Reach"), (at + 9, "reply leaves")]
    second = [(at + 3 + slow, f"from {gateway}: 2 Accept"), (at + 4 + slow, f"to {gateway}: Results")]
    return client, {gateway: first, leader: second}


def test_a_time_line_is_of_the_call_nearest_to_the_medians() -> None:
    nodes: dict[str, list[Any]] = {"n1": [], "n2": [], "n3": []}
    client: list[Any] = []
    for at, options in (
        (0.0, {"slow": 5.0}), (100.0, {}), (200.0, {"gateway": "n3", "leader": "n1"}), (300.0, {"slow": 0.5}),
    ):  # fmt: skip
        calls, its = a_call(at, **options)
        client += calls
        for node, found in its.items():
            nodes[node] += found
    found = timeline.time_line(nodes, client)
    assert len(found.calls) == 4
    assert timeline.together(found.typical()) == [
        (0.0, "client", "call"),
        (1000.0, "gateway", "call arrives"),
        (2000.0, "gateway", "to leader: Accept, Accept"),
        (3000.0, "leader", "from gateway: Accept, Accept"),
        (4000.0, "leader", "to gateway: Results"),
        (9000.0, "gateway", "reply leaves"),
        (10000.0, "client", "answer"),
    ]


def test_a_call_without_a_clear_gateway_does_not_count() -> None:
    assert timeline.roles_of({"n1": [], "n2": []}) is None
    both = {node: [(0.0, "call arrives")] for node in ("n1", "n2")}
    assert timeline.roles_of(both) is None
    alone = {"n1": [], "n2": [(0.0, "call arrives")], "n3": [(0.0, "to n2: AcceptAck")]}
    assert timeline.roles_of(alone) == {"n2": "gateway", "n1": "follower 1", "n3": "follower 2"}


# Tables of the page


def a_result(commit: str, log: float) -> Result:
    figures = [
        Figure.of(name_of("two", level, whose, layer), "µs", [value, value + 2, value + 1])
        for level in (1, 100)
        for whose, layer, value in (
            ("nodes", "log", log), ("nodes", KERNEL, 10.0), ("nodes", IDLE, 500.0),
            ("clients", "client", 3.0),
        )
    ]  # fmt: skip
    figures.append(Figure.of(line_name("two", "leader", "to gateway: Results"), "ms", [0.25]))
    machine, command = Machine(2, "CPython 3.11.2", "Linux 6.1.0"), "python -m benchmarks.profile"
    return Result("profile", "profile", command, commit, machine, 0.2, "2026-01-02", figures)


def test_the_page_has_the_time_before_and_after_a_change() -> None:
    new = a_result("new", 20.0)
    assert medians(new.figures)["two", 100, "nodes", "log"] == 21.0
    alone = [*cpu_table(new, None)]
    assert "| log | 21.0 | 21.0 |" in alone
    assert "| **CPU of the three nodes** | 32.0 | 32.0 |" in alone
    assert "| CPU of the clients | 4.00 | 4.00 |" in alone
    assert alone[-1].startswith("`python -m benchmarks.profile` (commit new)")
    both = [*cpu_table(new, a_result("old", 40.0))]
    assert "| log | 41.0 → 21.0 | 41.0 → 21.0 |" in both
    assert both[-2].startswith("Before: `python -m benchmarks.profile` (commit old)")
    assert both[-1].startswith("After: ")
    assert [*cpu_table(new, a_result("new", 40.0))] == alone


def test_the_page_has_the_time_line() -> None:
    found = [*lines_table(a_result("new", 1.0))]
    assert found[0].startswith(ROWS["two"].capitalize())
    assert found[1] == "  0.250 ms  leader      to gateway: Results"
