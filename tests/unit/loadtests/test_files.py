"""Scenarios, shapes and command lines of load tests: errors are named before anything starts."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from loadtests import __main__ as command
from loadtests.errors import LoadTestError
from loadtests.running import Run, ScenarioResult
from loadtests.scenario import known, read_scenario
from loadtests.shape import FOLDER as SHAPES
from loadtests.shape import read_shape

BANK = """
workload = "bank"
[parameters]
keys = 10
[mix]
transfer = 1
"""


def test_every_scenario_and_shape_of_ours_can_be_read() -> None:
    assert {*known()} == {"bank", "orders", *(f"ycsb-{letter}" for letter in "abcdef")}
    found = [read_scenario(name) for name in known()]
    assert all(each.about and each.mix for each in found)
    assert {each.workload.__name__ for each in found} == {"Bank", "Orders", "Ycsb"}
    assert all(read_shape(path.stem).stages for path in SHAPES.glob("*.toml"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("workload = ", "Invalid value"),
        (BANK.replace('"bank"', '"bnk"'), "workload must be one of bank, ycsb, orders, not 'bnk'"),
        (BANK.replace("keys", "kys"), "unknown name 'kys'; did you mean 'keys'?"),
        (BANK.replace("keys = 10", "warehouses = 2"), "unknown name 'warehouses'; there are keys"),
        (BANK.replace("10", "0"), "keys must be at least 1, not 0"),
        (BANK.replace("10", "true"), "keys must be a whole number, not True"),
        (BANK.replace("keys = 10", "multi_partition = 101"), "multi_partition must be at most 100, not 101"),
        (BANK.replace("keys = 10", "skew = 'much'"), "skew must be a number, not 'much'"),
        (BANK.replace("keys = 10", "skew = nan"), "skew must be a number, not nan"),
        (BANK.replace("keys = 10", "distribution = 'zipf'"), "distribution must be one of zipfian, uniform"),
        (BANK.replace("keys = 10", "think_time = [2, 1]"), "think_time must be a number of seconds, or"),
        (BANK.replace("transfer", "transfers"), "unknown name 'transfers'; did you mean 'transfer'?"),
        (BANK.replace("transfer = 1", "transfer = -1"), "transfer must be a weight from 0 on, not -1"),
        (BANK.replace("transfer = 1", "transfer = 0"), r"\[mix\] needs some of transfer"),
        ("mix = 1" + BANK.replace("[mix]\ntransfer = 1", ""), "mix must be a table"),
        ("shap = 'ramp'" + BANK, "unknown name 'shap'; did you mean 'shape'?"),
        ("shape = 'rmp'" + BANK, "there is no 'rmp' in shapes, only ramp, spike, steps"),
    ],
)
def test_a_bad_scenario_is_refused_by_its_name(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(BANK)
    assert read_scenario(str(path)).parameters.keys == 10
    path.write_text(text)
    with pytest.raises(LoadTestError, match=complaint) as refused:
        read_scenario(str(path))
    assert "mine.toml" in str(refused.value) or "shapes" in str(refused.value)


def test_what_is_set_on_the_command_line_counts_more() -> None:
    found = read_scenario(
        "ycsb-a", ["value_size=7", "distribution=uniform", "think_time=[0.5, 1]", "mix.update=0"]
    )
    parameters = found.parameters
    assert (parameters.value_size, parameters.distribution, parameters.think_time) == (7, "uniform", (0.5, 1))
    assert found.mix == {"read": 50, "update": 0}
    for bad, complaint in (
        ("value_size", "--set value_size is not of the form KEY=VALUE"),
        ("valu_size=1", "--set valu_size=1: unknown name 'valu_size'; did you mean 'value_size'"),
        ("mix.reed=1", "--set mix.reed=1: .*unknown name 'reed'; did you mean 'read'"),
        ("keys=many", "--set keys=many: keys must be a whole number, not 'many'"),
    ):
        with pytest.raises(LoadTestError, match=complaint):
            read_scenario("ycsb-a", [bad])


def test_shapes_have_any_length_and_height() -> None:
    ramp, spike = read_shape("ramp"), read_shape("spike")
    assert [ramp.users_at(at, 100, 10) for at in (0, 2, 4, 8, 9.9)] == [1, 25, 50, 100, 100]
    assert ramp.users_at(10, 100, 10) is None
    assert [spike.users_at(at, 50, 100) for at in (0, 39, 40, 59, 60, 99)] == [10, 10, 50, 50, 10, 10]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "stages must be"),
        ("[[stages]]\nlevel = 2", "stage 1: level must be at most 1"),
        ("[[stages]]\n[[stages]]\ntime = 0", "stage 2: time must be at least 0.001"),
        ("[[stages]]\njump = 1", "stage 1: jump must be true or false"),
        ("[[stages]]\nheight = 1", "stage 1: unknown name 'height'"),
    ],
)
def test_a_bad_shape_is_refused_by_its_name(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text)
    with pytest.raises(LoadTestError, match=f"odd.toml: {complaint}"):
        read_shape(str(path))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["bnk"], "there is no 'bnk' in scenarios, only bank, orders"),
        (["bank", "--set", "keys=0"], "--set keys=0: keys must be at least 1, not 0"),
        (["bank", "--shape", "no.toml"], "no.toml: .*No such file"),
        ([], "name one or more scenarios: "),
        (["bank", "orders", "--web"], "--web needs exactly one scenario"),
        (["bank", "--web", "8089"], "--web 8089 is not of the form HOST:PORT"),
        (["bank", "--users", "0"], "'0' is not a whole number from 1 to"),
        (["bank", "--endpoints", "a:1", "--kill-after", "1"], "--kill-after needs a new cluster"),
        (["bank", "--no-traces", "--report"], "--no-traces"),
        (["bank", "--max-failures", "x"], "'x' is not a number from 0 to 100"),
    ],
)
def test_a_bad_command_line_starts_nothing(
    given: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):
        assert command.main(given) == 2
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr().err
    assert re.search(complaint, said), said


def test_a_run_fails_if_anything_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ScenarioResult(read_scenario("bank"), "loadtest/x/bank/")
    monkeypatch.setattr(Run, "results", lambda run: (each for each in [found]))
    given = ["bank", "--output", str(tmp_path), "--endpoints", "127.0.0.1:1"]
    assert command.main(given) == 0
    found.wrong.append("all accounts together have 1, not 2")
    assert command.main(given) == 1
    said = capsys.readouterr().out
    assert "bank: WRONG: all accounts together have 1, not 2" in said
    assert "wbkv del --prefix loadtest/" in said
