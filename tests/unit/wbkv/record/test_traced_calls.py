"""Which line a traced client's call leaves, whatever becomes of it; and the file it is in."""

from __future__ import annotations

import asyncio
import io
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import wbkv
from wbkv import aio, codecs
from wbkv.client import Client
from wbkv.core.effects import Ask, Failure
from wbkv.core.recording import requests_of
from wbkv.core.requests import Requests
from wbkv.core.routing import Placement
from wbkv_proto.v1.error_pb2 import Error as ApiError

from kvstore.machine import placement as server
from kvstore.machine.request import Range
from multicast.types import GroupId
from tests.unit.wbkv.model import Clock, ModelLink, connected, drive, lost, script, told

TOLD = ("outcome", "error", "revision", "exact", "reads", "writes")


def lines_of(file: io.BytesIO | Path) -> list[dict[str, Any]]:
    raw = file.read_bytes() if isinstance(file, Path) else file.getvalue()
    assert not raw or raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def written(*keys: str) -> list[dict[str, Any]]:
    return [{"key": key, "removed": False} for key in keys]


def removed(key: str, **more: str) -> dict[str, Any]:
    return {"key": key, **more, "removed": True}


def read(**seen: int) -> list[dict[str, Any]]:
    return [{"key": key, "revision": revision} for key, revision in seen.items()]


class Traced:
    """An embedded store, and the lines that its calls leave."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        self.trace = wbkv.Trace(self.file, scenario="usual", protocol="whitebox", clients=3)
        self.client = wbkv.open(partitions=3, trace=self.trace)

    def lines(self) -> list[dict[str, Any]]:
        self.trace.flush()
        found = lines_of(self.file)
        self.file.seek(0)
        self.file.truncate()
        return found

    def line(self) -> tuple[object, object, object, object]:
        """Of the only call since the last time: revision, exact, reads, writes."""
        (line,) = self.lines()
        assert (line["outcome"], line.get("error")) == ("ok", None)
        return line["revision"], line["exact"], line["reads"], line["writes"]


@pytest.fixture(scope="module")
def opened() -> Iterator[Traced]:
    traced = Traced()
    with traced.client:
        yield traced


@pytest.fixture
def traced(opened: Traced) -> Traced:
    opened.client.delete(wbkv.EVERYTHING)
    opened.lines()
    return opened


# What a line says


def test_a_line_says_whose_request_when_and_where(traced: Traced) -> None:
    first = traced.client.put("x", b"1")
    second = traced.client.put("y", b"1")
    lines = traced.lines()
    assert [line["revision"] for line in lines] == [first, second]
    for line in lines:
        assert (line["run"], line["scenario"]) == (traced.trace.run, "usual")
        assert (line["protocol"], line["clients"]) == ("whitebox", 3)
        assert 0 < line["end_us"] - line["start_us"] < 60_000_000
    assert lines[0]["end_us"] <= lines[1]["start_us"]
    assert lines[0]["client"] == lines[1]["client"]
    assert lines[0]["sequence"] + 1 == lines[1]["sequence"]
    topology = {entry.id for entry in traced.client.topology().partitions}
    assert all(len(line["partitions"]) == 1 and topology.issuperset(line["partitions"]) for line in lines)


def test_writes_are_exactly_at_their_revision(traced: Traced) -> None:
    client = traced.client
    revision = client.put("x", b"1")
    assert traced.line() == (revision, True, [], written("x"))
    client.add("n", 5)
    assert traced.line()[1:] == (True, [], written("n"))
    client.delete("x")
    assert traced.line()[1:] == (True, [], [removed("x")])
    client.delete("x")
    assert traced.line()[1:] == (True, read(x=0), [])
    client.put(b"\xff", b"")
    assert traced.line()[3] == written("base64:/w==")


def test_ranges_that_are_removed(traced: Traced) -> None:
    client = traced.client
    client.delete(wbkv.prefix("p/"))
    assert traced.line()[2:] == ([], [])
    for keys, shown in (
        (wbkv.prefix("p/"), removed("p/", end="p0")),
        (wbkv.between("p", None), removed("p", end="")),
        (wbkv.EVERYTHING, removed("", end="")),
    ):
        client.put("p/1", b"")
        client.delete(keys)
        last = traced.lines()[-1]
        assert last["writes"] == [shown]
        assert len(last["partitions"]) == 3


def test_what_reads_see_and_where(traced: Traced) -> None:
    client = traced.client
    first = client.put("x", b"1")
    second = client.put("y", b"1")
    traced.lines()
    client.get("x")
    revision, exact, reads, writes = traced.line()
    assert (exact, reads, writes) == (False, read(x=first), [])
    assert isinstance(revision, int)
    client.get_many(["x", "y", "z"])
    assert traced.line()[1:] == (False, read(x=first, y=second, z=0), [])
    client.get("y", revision=first)
    assert traced.line() == (first, True, read(y=0), [])
    client.get_many(["x", "y"], revision=second)
    assert traced.line() == (second, True, read(x=first, y=second), [])
    client.get("x", consistency="serializable")
    assert traced.line()[1:] == (True, read(x=first), [])
    client.txn().then(wbkv.get("x")).commit()
    (line,) = traced.lines()
    assert not {"client", "sequence"} & line.keys()


def test_of_a_transaction_the_branch_that_was_taken(traced: Traced) -> None:
    client = traced.client
    old = client.put("x", b"1")
    traced.lines()

    def commit() -> int:
        txn = client.txn().when(wbkv.absent("y")).then(wbkv.get("x"), wbkv.put("y", b"1"), wbkv.add("n", 1))
        return txn.otherwise(wbkv.get("n"), wbkv.get("z"), wbkv.get("y")).commit().revision

    first = commit()
    assert traced.line() == (first, True, read(y=0, x=old), written("y", "n"))
    second = commit()
    assert traced.line() == (second, True, read(n=first, z=0, y=first), [])
    client.txn().when(wbkv.mod_revision("x") == old, wbkv.version("y") == 1).commit()
    assert traced.line()[1:] == (True, read(x=old), [])


def test_an_aborted_transaction_wrote_nothing(traced: Traced) -> None:
    traced.client.put("text", b"no number")
    traced.lines()
    with pytest.raises(wbkv.OperationFailed):
        traced.client.txn().then(wbkv.put("a", b""), wbkv.add("text", 1)).commit()
    (line,) = traced.lines()
    assert (line["outcome"], line["error"], line["writes"]) == ("failed", "OperationFailed", [])


def test_reads_of_conditions_that_may_not_have_held_are_left_out(traced: Traced) -> None:
    """Of any, one condition may hold and the others not; what a swap has returned is a read."""
    old = traced.client.put("a", b"1")
    traced.lines()
    either = wbkv.any_of(wbkv.mod_revision("b") == 7, wbkv.mod_revision("a") == old)
    both = wbkv.all_of(wbkv.absent("c"))
    traced.client.txn().when(either, both).then(wbkv.swap("a", b"2")).commit()
    (line,) = traced.lines()
    assert {each["key"]: each["revision"] for each in line["reads"]} == {"c": 0, "a": old}
    assert line["writes"] == written("a")


def test_what_a_transaction_has_written_itself_shows_nothing(traced: Traced) -> None:
    client = traced.client
    old = client.put("p/1", b"1")
    client.put("text", b"no number")
    traced.lines()
    client.txn(allow_failures=True).then(
        wbkv.scan("p/"),
        wbkv.put("p/2", b""), wbkv.get("p/2"),
        wbkv.delete(wbkv.prefix("p/")), wbkv.get("p/1"), wbkv.scan("p/"), wbkv.delete("p/2"),
        wbkv.put("p/3", b""), wbkv.delete("p/3"), wbkv.put("p/4", b""),
        wbkv.add("text", 1), wbkv.get("text"), wbkv.delete("none"),
    ).commit()  # fmt: skip
    (line,) = traced.lines()
    seen = {each["key"]: each["revision"] for each in line["reads"]}
    assert seen.keys() == {"p/1", "text", "none"}
    assert (seen["p/1"], seen["none"]) == (old, 0)
    assert line["writes"] == [removed("p/3"), *written("p/4"), removed("p/", end="p0")]


def test_interactive_transactions_leave_their_reads_and_their_commit(traced: Traced) -> None:
    client = traced.client
    old = client.put("x", b"1")
    traced.lines()
    with wbkv.scenario("interactive"), client.transaction() as tx:
        tx.get("x")
        tx.put("y", b"1")
    reading, commit = traced.lines()
    assert {reading["scenario"], commit["scenario"]} == {"interactive"}
    assert (reading["exact"], reading["reads"]) == (False, read(x=old))
    assert (commit["exact"], commit["reads"], commit["writes"]) == (True, read(x=old), written("y"))


def test_streams_and_housekeeping_are_left_out(traced: Traced) -> None:
    client = traced.client
    revision = client.put("x", b"1")
    traced.lines()
    list(client.scan(""))
    client.count("")
    with client.snapshot() as snapshot:
        snapshot.count("")
    with client.watch("x", after=revision):
        client.topology()
    client.status()
    assert traced.lines() == []


# Scenarios


def test_scenarios_belong_to_threads_tasks_and_batches(traced: Traced) -> None:
    client = traced.client

    def named(name: str, key: str) -> None:
        with wbkv.scenario(name):
            client.put(key, b"")

    with wbkv.scenario("outer"):
        thread = threading.Thread(target=client.put, args=("thread", b""))
        thread.start()
        thread.join()
        named("inner", "inner")
        client.put("outer", b"")
        with client.batch() as batch:
            futures = [batch.put("batched", b"")]
            with wbkv.scenario("in batch"):
                futures.append(batch.put("in batch", b""))
            for future in futures:
                future.result()
    with pytest.raises(TypeError, match="7"), wbkv.scenario(7):  # type: ignore[arg-type]  # that is the point
        pass
    found = {line["writes"][0]["key"]: line["scenario"] for line in traced.lines()}
    assert found == {
        "thread": "usual", "inner": "inner", "outer": "outer", "batched": "outer", "in batch": "in batch",
    }  # fmt: skip


def test_an_intended_start_is_that_of_the_first_request(traced: Traced) -> None:
    client = traced.client
    intended = time.monotonic() - 2.5
    with wbkv.scenario("late", intended=intended):
        client.put("x", b"")
        client.put("y", b"")
    with wbkv.scenario("early", intended=time.monotonic() + 1000):
        client.put("z", b"")
    first, *others = traced.lines()
    assert 2_500_000 <= first["start_us"] - first["intended_us"] < 60_000_000
    assert [each["scenario"] for each in others] == ["late", "early"]
    assert all("intended_us" not in each for each in others)
    for bad in ("1", float("nan"), True):
        with (
            pytest.raises(TypeError, match="intended start"),
            wbkv.scenario("x", intended=bad),  # type: ignore[arg-type]  # that is the point
        ):
            pass


def test_tasks_are_traced_alike() -> None:
    file = io.BytesIO()

    async def named(client: aio.Client[bytes], name: str) -> None:
        with wbkv.scenario(name):
            await client.put(name, b"")
            await asyncio.sleep(0)
            await client.get(name)

    async def work() -> None:
        async with aio.open(trace=trace) as client:
            await asyncio.gather(*(named(client, f"task {n}") for n in range(5)))
            waiting = asyncio.create_task(client.put("cancelled", b""))
            while not trace._under_way:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    with wbkv.Trace(file) as trace:
        asyncio.run(work())
    *lines, last = lines_of(file)
    assert len(lines) == 10
    assert all(line["scenario"] == (line["reads"] + line["writes"])[0]["key"] for line in lines)
    assert (last["outcome"], last["error"], last["writes"]) == (
        "unknown", "GeneratorExit", written("cancelled"),
    )  # fmt: skip


# What becomes of a call


class Scripted:
    """A client of a store that does what a test says."""

    def __init__(self, link: ModelLink) -> None:
        self.file = io.BytesIO()
        self.trace = wbkv.Trace(self.file)
        calls = connected(link, timeout_s=5.0)
        calls.trace = self.trace
        self.requests: Requests[bytes] = requests_of(calls, codecs.BYTES, "strict", None)
        self.client = Client(link, self.requests)

    def told(self) -> dict[str, Any]:
        """The last line, without what is always there."""
        self.trace.flush()
        last = lines_of(self.file)[-1]
        return {name: last[name] for name in TOLD if name in last}


@pytest.fixture
def scripted(link: ModelLink) -> Scripted:
    return Scripted(link)


LOST, UNSENT = lost(), lost(begun=False)


@pytest.mark.parametrize(
    ("failures", "outcome", "error"),
    [
        ([told(ApiError.INVALID_REQUEST)], "failed", "InvalidRequest"),
        ([told(ApiError.LIMIT_EXCEEDED)], "failed", "LimitExceeded"),
        ([told(ApiError.REQUEST_MISMATCH)], "failed", "RequestMismatch"),
        ([told(ApiError.OVERLOADED)], "failed", "Unavailable"),
        ([told(ApiError.REQUEST_EXPIRED)], "failed", "Unavailable"),
        ([UNSENT] * 1000, "failed", "Unavailable"),
        ([told(ApiError.OUTCOME_UNKNOWN)], "unknown", "OutcomeUnknown"),
        ([LOST] * 1000, "unknown", "OutcomeUnknown"),
        ([LOST, told(ApiError.INVALID_REQUEST)], "unknown", "OutcomeUnknown"),
        ([told(ApiError.INTERNAL)], "unknown", "ServerError"),
        ([told(ApiError.RESPONSE_TOO_LARGE)], "unknown", "ResponseTooLarge"),
    ],
)
def test_a_write_that_fails_is_failed_only_if_it_certainly_is(
    link: ModelLink, scripted: Scripted, failures: list[Failure], outcome: str, error: str
) -> None:
    link.before = script(*failures)
    txn = scripted.client.txn().when(wbkv.exists("x")).then(wbkv.put("x", b""), wbkv.get("z"))
    with pytest.raises(wbkv.Error):
        txn.otherwise(wbkv.delete("y"), wbkv.delete(wbkv.prefix("y/"))).commit()
    possible = [*written("x"), removed("y"), removed("y/", end="y0")] if outcome == "unknown" else []
    assert scripted.told() == {"outcome": outcome, "error": error, "reads": [], "writes": possible}


@pytest.mark.parametrize(
    ("failures", "outcome", "error"),
    [
        ([LOST] * 1000, "unknown", "DeadlineExceeded"),
        ([UNSENT] * 1000, "failed", "Unavailable"),
        ([told(ApiError.COMPACTED)], "failed", "Compacted"),
    ],
)
def test_a_read_that_fails(
    link: ModelLink, scripted: Scripted, failures: list[Failure], outcome: str, error: str
) -> None:
    link.before = script(*failures)
    with pytest.raises(wbkv.Error):
        scripted.client.get("x")
    assert scripted.told() == {"outcome": outcome, "error": error, "reads": [], "writes": []}


def test_a_call_that_is_repeated_leaves_one_line(link: ModelLink, scripted: Scripted) -> None:
    link.before = script(LOST, None)
    revision = scripted.client.put("x", b"")
    assert scripted.told() == {
        "outcome": "ok", "revision": revision, "exact": True, "reads": [], "writes": written("x"),
    }  # fmt: skip
    assert len(lines_of(scripted.file)) == 1


def test_a_call_that_nobody_waits_for_may_have_been_executed_once_it_was_sent(scripted: Scripted) -> None:
    plan = scripted.requests.put("x", b"", None)
    assert type(plan.send(None)) is Ask
    plan.close()
    assert scripted.told() == {
        "outcome": "unknown", "error": "GeneratorExit", "reads": [], "writes": written("x"),
    }  # fmt: skip
    scripted.requests.put("y", b"", None).close()  # it was never begun
    assert len(lines_of(scripted.file)) == 1
    scripted.requests.calls.router.stale = True
    scripted.requests.calls.router._learned_at = 0.0
    plan = scripted.requests.put("z", b"", None)
    effect = plan.send(None)
    assert isinstance(effect, Ask)
    assert effect.method.name == "Topology"
    plan.close()
    assert scripted.told() == {"outcome": "failed", "error": "GeneratorExit", "reads": [], "writes": []}


def test_a_closed_trace_knows_no_more_of_calls_under_way(link: ModelLink, scripted: Scripted) -> None:
    plan = scripted.requests.put("x", b"", None)
    ask = plan.send(None)
    assert isinstance(ask, Ask)
    scripted.trace.close()
    told = scripted.told()
    assert (told["outcome"], told["error"], told["writes"]) == ("unknown", "TraceClosed", written("x"))
    with pytest.raises(StopIteration):
        plan.send(link.ask(ask))
    assert len(lines_of(scripted.file)) == 1
    with pytest.raises(wbkv.Error, match="closed"):
        scripted.client.put("y", b"")
    assert len(link.asked) == 1, "what cannot be recorded is not sent"


# Partitions


@pytest.mark.parametrize("hashed", [True, False])
def test_the_client_knows_the_partitions_of_ranges_as_the_store_does(*, hashed: bool) -> None:
    groups = tuple(GroupId(n) for n in range(3))
    if hashed:
        theirs = server.Placement.evenly(groups)
    else:
        theirs = server.Placement(1, server.Scheme.ORDERED, (b"", b"b", b"{c}"), groups, groups)
    ours = Placement(hashed, theirs.starts, theirs.owners)
    rng = random.Random(1)
    alphabet = b"ab{}\xff"
    for _ in range(3000):
        start, end = sorted(bytes(rng.choices(alphabet, k=rng.randrange(6))) for _ in range(2))
        keys = rng.choice([wbkv.KeyRange(start, end), wbkv.KeyRange(start, None), wbkv.prefix(start)])
        if keys.end is None or keys.start < keys.end:
            assert ours.partitions_of(keys) == theirs.groups_of_range(Range(keys.start, keys.end)), keys


# The file


def test_a_folder_gets_files_that_nobody_else_writes(tmp_path: Path) -> None:
    tmp_path /= "made/for it"
    first, second = wbkv.Trace(tmp_path, scenario="s"), wbkv.Trace(tmp_path)
    with wbkv.open(trace=first) as client:
        client.put("x", b"")
        assert [path.stat().st_size for path in tmp_path.iterdir()] == [0, 0]
    first.mark("crash", node="n1")
    with wbkv.scenario("other"):
        first.mark("leader", node="n2", group=0)
    requests = {f"requests-{trace.run}.jsonl" for trace in (first, second)}
    assert {path.name for path in tmp_path.iterdir()} == requests | {f"marks-{first.run}.jsonl"}
    assert len(lines_of(tmp_path / f"requests-{first.run}.jsonl")) == 1, "closing the client writes the rest"
    crash, leader = lines_of(tmp_path / f"marks-{first.run}.jsonl")
    assert crash.pop("at_us") <= leader.pop("at_us")
    assert crash == {"name": "crash", "node": "n1", "group": None, "scenario": "s"}
    assert leader == {"name": "leader", "node": "n2", "group": 0, "scenario": "other"}
    for trace in (first, second):
        trace.close()
        trace.close()
    with pytest.raises(wbkv.Error, match="closed"):
        first.mark("late")


@pytest.mark.parametrize("wrong", [{"scenario": None}, {"protocol": 7}, {"clients": "3"}, {"clients": True}])
def test_a_trace_of_nonsense_is_refused_and_makes_no_file(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        wbkv.Trace(tmp_path / "file", **wrong)
    assert not (tmp_path / "file").exists()
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="note"):
        wbkv.Trace(tmp_path / "note.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    with pytest.raises(TypeError, match="binary"):
        wbkv.Trace(io.StringIO())  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError, match="Trace"):
        wbkv.connect("127.0.0.1:1", trace="file")  # type: ignore[call-overload]  # likewise
    with pytest.raises(ValueError, match="no path"):
        wbkv.Trace(io.BytesIO()).mark("crash")


def test_threads_write_whole_lines(tmp_path: Path, scripted: Scripted) -> None:
    with wbkv.Trace(tmp_path / "requests.jsonl") as trace:
        scripted.requests.calls.trace = trace

        def work() -> None:
            for _ in range(200):
                drive(ModelLink(Clock()), scripted.requests.put("k" * 100, b"", None))

        with ThreadPoolExecutor(4) as threads:
            for _ in range(4):
                threads.submit(work)
    assert len(lines_of(tmp_path / "requests.jsonl")) == 800


def test_the_programs_end_writes_the_rest_and_a_fork_nothing(tmp_path: Path) -> None:
    program = """
import os, sys, wbkv
trace = wbkv.Trace(sys.argv[1])
client = wbkv.open(trace=trace)
client.put("x", b"")
if os.fork() == 0:
    try:
        trace.mark("forked")
    except wbkv.Forked:
        sys.exit(0)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
client.put("y", b"")
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program, str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)  # noqa: S603 - it is the program above
    (file,) = tmp_path.iterdir()
    assert [line["writes"][0]["key"] for line in lines_of(file)] == ["x", "y"]
