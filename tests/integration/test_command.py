"""The `wbkv` command, run as users run it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from wbkv.cli import main as command

from multicast import PROTOCOLS
from multicast.sim import Outcome, Scenario, Simulation
from multicast.sim.checkers import Checker


def wbkv(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own command
        [str(Path(sys.executable).with_name("wbkv")), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The same in this process: starting one takes longer than most of what it does."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            status = command.main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        output = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, output.out, output.err)

    return run


def test_a_campaign_as_json() -> None:
    size = "--groups 3 --replicas 3 --messages 40 --seeds 0:4"
    done = wbkv(*f"sim --protocol whitebox {size} --faults all --json".split())
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["runs"] == 4
    assert report["violations"] == 0
    assert report["failures"] == []
    assert report["delivered"] >= 4 * 40


@pytest.mark.parametrize("faults", ["none", "crash", "partition", "loss"])
def test_every_kind_of_fault(faults: str) -> None:
    done = wbkv("sim", "--messages", "20", "--seeds", "3:5", "--faults", faults)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"faults: {faults}" in done.stdout
    assert "0 violations" in done.stdout


def test_violations_are_reported_and_set_the_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wbkv_sim import command as sim

    def broken(scenario: Scenario, seed: int) -> Outcome:
        return Outcome(seed, violation="Ordering: upside down" if seed == 1 else None)

    monkeypatch.setattr(sim, "simulate", broken)
    assert command.main(["sim", "--seeds", "0:3", "--jobs", "1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["violations"] == 1
    assert report["failures"][0]["seed"] == 1
    assert report["failures"][0]["what"] == "Ordering: upside down"
    assert "--seed 1 --trace" in report["failures"][0]["replay"]
    assert command.main(["sim", "--seeds", "0:3", "--jobs", "1"]) == 1
    assert "seed 1: Ordering: upside down" in capsys.readouterr().out


def test_a_trace_names_the_papers_messages() -> None:
    done = wbkv("sim", "--seed", "1", "--trace")
    assert done.returncode == 0
    for name in ("MULTICAST", "ACCEPT", "ACCEPT_ACK", "DELIVER", "NEWLEADER", "NEW_STATE"):
        assert re.search(rf"\b{name}\b", done.stdout), name
    assert done.stdout == wbkv("sim", "--seed", "1", "--trace").stdout


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_has_traces_and_diagrams(protocol: str, tmp_path: Path, run: Run) -> None:
    picture = tmp_path / "flow.svg"
    done = run("sim", "--protocol", protocol, "--seed", "1", "--trace", "--diagram", str(picture))
    assert done.returncode == 0, done.stderr
    message = {"whitebox": "ACCEPT", "fastcast": "speculative", "ftskeen": "2A clock", "skeen": "PROPOSE"}
    assert re.search(rf"\b{message[protocol]}\b", done.stdout)
    assert "?" not in done.stdout
    root = ET.parse(picture).getroot()  # noqa: S314 - we have just made it
    assert root.tag.endswith("svg")
    groups = f"3 groups of {1 if protocol == 'skeen' else 3}"
    assert any(f"{protocol}, {groups}" in (element.text or "") for element in root.iter())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_runs_without_further_options(protocol: str) -> None:
    done = wbkv("sim", "--protocol", protocol, "--seeds", "0:2", "--messages", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"2 of 2 runs, 3 groups of {1 if protocol == 'skeen' else 3}, faults: all" in done.stdout


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("faults", ["none", "all"])
def test_the_command_to_repeat_a_run_shows_that_run(
    protocol: str, faults: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wbkv_sim import command as sim

    ran: list[tuple[Scenario, int]] = []

    def broken(scenario: Scenario, seed: int) -> Outcome:
        ran.append((scenario, seed))
        return Outcome(seed, violation="Ordering: upside down")

    class Watched(Simulation):
        def __init__(self, scenario: Scenario, seed: int, observers: Sequence[Checker] = ()) -> None:
            ran.append((scenario, seed))
            super().__init__(scenario, seed, observers)

    monkeypatch.setattr(sim, "simulate", broken)
    monkeypatch.setattr(sim, "Simulation", Watched)
    size = f"--groups 2 --replicas {1 if protocol == 'skeen' else 5} --messages 9 --clients 2"
    assert command.main(f"sim --protocol {protocol} --faults {faults} {size} --seeds 7 --jobs 1".split()) == 1
    (again,) = re.findall(r"^see it: wbkv (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert command.main(shlex.split(again)) == 0
    (campaigned, shown) = ran
    assert shown == campaigned


def test_the_demonstration_shows_one_order(run: Run) -> None:
    done = run("sim", "--demo")
    assert done.returncode == 0
    assert done.stdout.count("the same order") == 4
    assert "DIFFERENT" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("sim --replicas 2", "2 members"),
        ("sim --protocol skeen --replicas 3", "^wbkv sim: Skeen's protocol needs groups of one process"),
        (
            "sim --protocol skeen --replicas 3 --seed 1 --trace",
            "^wbkv sim: Skeen's protocol needs groups of one",
        ),
        ("sim --groups 0", "must be at least 1"),
        ("sim --groups 2000", "1000|1023|1024"),
        ("sim --seeds 5:3", "'5:3' is an empty range"),
        ("sim --seeds five", "'five' is not a seed"),
        ("sim --faults gremlins", "gremlins"),
        ("sim --protocol raft", "raft"),
        ("sim --trace", "give its --seed"),
        ("sim --seed 1 --diagram /nowhere/at/all.svg", "/nowhere/at/all.svg"),
        ("frobnicate", "frobnicate"),
    ],
)
def test_bad_arguments_are_named(arguments: str, names: str, run: Run) -> None:
    done = run(*arguments.split())
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.search(names, done.stderr)
    assert "Traceback" not in done.stderr


def test_a_process_that_is_given_bad_arguments_ends_with_that_status() -> None:
    done = wbkv("sim", "--replicas", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"wbkv sim: .*2 members.*\n", done.stderr)


def test_a_protocol_that_refuses_the_groups_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wbkv_sim import command as sim

    def never(*_: object) -> None:
        raise AssertionError("something was run")

    monkeypatch.setattr(sim, "simulate", never)
    monkeypatch.setattr(sim, "outcomes", never)
    monkeypatch.setattr(sim, "Simulation", never)
    for shown in ("", " --seed 1 --trace"):
        assert command.main(f"sim --protocol skeen --replicas 3{shown}".split()) == 2
        assert "but group 0 has 3" in capsys.readouterr().err


def test_delays_as_json(run: Run) -> None:
    done = run("bench", "delays", "--json", "--grid", "1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == ["whitebox", "fastcast", "ftskeen", "skeen"]
    assert report["whitebox"] == {
        "collision_free": {"leader": 3, "follower": 4},
        "failure_free": {"leader": 5, "follower": 6},
    }
    assert report["skeen"]["failure_free"] == {"leader": 4, "follower": None}


def test_delays_as_a_table(run: Run) -> None:
    done = run("bench", "delays", "--grid", "1", "--variants")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:] if line}
    assert rows["ftskeen"][:4] == ["6δ", "7δ", "12δ", "13δ"]
    assert rows["fastcast-eager"][:4] == ["4δ", "5δ", "6δ", "7δ"]


def test_theorem_4(run: Run) -> None:
    done = run("bench", "theorem4", "--grid", "1", "--json")
    assert done.returncode == 0, done.stderr
    for it in json.loads(done.stdout).values():
        assert it["holds"]
        assert it["failure_free"] == it["clock_update"] + it["collision_free"]


def test_delays_with_hybrid_clocks(run: Run) -> None:
    done = run("bench", "delays", "--grid", "1", "--json", "--clock", "hybrid", "--skew", "0.5")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["whitebox"]["failure_free"] == {"leader": 4.5, "follower": 5.5}
    done = run("bench", "theorem4", "--skew", "0.5")
    assert done.returncode != 0
    assert "--skew needs --clock hybrid" in done.stderr


def test_convoy(run: Run) -> None:
    options = ("--rates", "0.01,4", "--workload", "uneven", "--messages", "20", "--seeds", "2")
    done = run("bench", "convoy", "--json", "--protocols", "skeen,whitebox", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report["protocols"]) == ["skeen", "whitebox"]
    it = report["protocols"]["whitebox"]
    assert (it["collision_free"]["leader"], it["failure_free"]["leader"]) == (3, 5)
    rare, often = it["points"]
    assert (rare["rate"], rare["messages"], often["rate"]) == (0.01, 40, 4.0)
    assert 3 <= rare["leader"]["mean"] < often["leader"]["mean"] < often["leader"]["max"] <= 5
    assert often["follower"]["p50"] > 4


def test_convoy_as_a_table(run: Run) -> None:
    done = run("bench", "convoy", "--protocols", "whitebox", "--rates", "0.001", "--messages", "5")
    assert done.returncode == 0, done.stderr
    head, _, row, *_ = done.stdout.splitlines()
    assert head == "whitebox: 3δ alone, 5δ at worst at leaders; 4δ and 6δ at followers"
    assert row.split()[:7] == ["0.001", "3.000", "±", "0.000", "3.00", "3.00", "3.00"]
    done = run("bench", "convoy", "--rates", "1,0")
    assert done.returncode == 2
    assert "rate must be from 0.0001 to 100 messages per δ, not 0" in done.stderr


def test_messages_and_bytes(run: Run) -> None:
    done = run("bench", "messages", "--json", "--payload", "500")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["whitebox"]["10"]["messages"] == 610
    assert report["ftskeen"]["2"]["bytes"] > 6 * 500  # two MULTICASTs, and four followers
    table = run("bench", "messages").stdout
    assert "whitebox (groups of 3)  7  26  100  222  392  610" in table


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["delays", "--grid", "0"], "must be at least 1"),
        (["delays", "--replicas", "4"], "needs an odd number"),
        (["messages", "--payload", "x"], "'x' is not a number"),
        (["speed"], "invalid choice: 'speed'"),
        ([], "required"),
    ],
)
def test_bad_arguments_of_bench(arguments: list[str], complaint: str, run: Run) -> None:
    done = run("bench", *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not done.stdout
