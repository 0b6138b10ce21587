"""`wbkv pipeline`: its jobs, its bad usage, and its errors."""

from __future__ import annotations

import argparse
import importlib
import io
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import wbkv
from wbkv.cli import main as wbkv_command
from wbkv_pipeline import command, progress, shipping
from wbkv_pipeline.errors import PipelineError

from tests.unit.wbkv.cli.client_only import client_only


def test_help_has_a_line_for_each_job(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        wbkv_command.main(["pipeline", "--help"])
    said = capsys.readouterr().out
    for name, about in command.JOBS.items():
        assert f"  {name:10} {about}\n" in said


@pytest.mark.parametrize("name", ["diff", "export", "import"])
def test_a_job_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    job: Any = importlib.import_module(f"wbkv_pipeline.jobs.{name}")
    assert job.help == command.JOBS[name]
    with pytest.raises(SystemExit):
        wbkv_command.main(["pipeline", name, "--help"])
    said = capsys.readouterr().out
    assert said.startswith(f"usage: wbkv pipeline {name} ")
    for option in ("--master", "--config", "--ship-packages", "--endpoints", "--json"):
        assert option in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("exprt x", "wbkv pipeline: there is no job 'exprt': did you mean export?\n"),
        ("xyzzy", "wbkv pipeline: there is no job 'xyzzy'; there are diff, export, import"),
        ("export", "wbkv pipeline export: error: the following arguments are required: FOLDER\n"),
        ("export x --mastr y", "unrecognized arguments: --mastr y: did you mean --master?\n"),
        ("export x --config a=b", "argument --config: 'a=b' is not of the form spark.some.name=value\n"),
        ("export x --config spark.a", "argument --config: 'spark.a' is not of the form spark.some"),
        ("import x --format xml", "argument --format: invalid choice: 'xml'"),
        ("", "the following arguments are required: JOB"),
    ],
)
def test_bad_usage_is_named(arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = wbkv_command.main(["pipeline", *arguments.split()])
    except SystemExit as ended:
        status = int(str(ended.code))
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert complaint in said.err


def test_without_pyspark_a_line_says_what_to_install() -> None:
    done = client_only("pipeline", "export", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "wbkv: pipeline needs pyspark, which is not installed: pip install 'wbkv[pipeline]'\n"
    )


def test_nothing_of_spark_is_loaded_before_a_job_runs() -> None:
    code = (
        "import sys; from wbkv.cli.main import load, full_parser\n"
        "load('pipeline'); full_parser()\n"
        "for name in ('diff', 'export', 'import'): __import__(f'wbkv_pipeline.jobs.{name}')\n"
        "print(*(name for name in sys.modules if name.split('.')[0] in ('pyspark', 'pyarrow', 'matplotlib')))"
    )
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "\n"


class JavaFailure(Exception):
    """Like Py4J's, of an exception that has a cause."""

    def __init__(self) -> None:
        super().__init__("An error occurred while calling o1.load.\n: java.lang.Outer\n\tat x.y(Z.java:1)")
        cause = SimpleNamespace(getCause=lambda: None, toString=lambda: "java.io.IOException: no space left")
        self.java_exception = SimpleNamespace(getCause=lambda: cause)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PipelineError("no such thing"), "no such thing"),
        (wbkv.Unavailable("no node answers"), "no node answers"),
        (
            RuntimeError("[X] failed\n  File x\nwbkv_pipeline.errors.PipelineError: wbkv: null key\n\tat y"),
            "null key",
        ),
        (JavaFailure(), "java.io.IOException: no space left"),
        (RuntimeError("\n first\nsecond"), "first"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_an_error_becomes_one_line(error: Exception, line: str) -> None:
    assert command.in_one_line(error) == line


def test_a_job_that_fails_ends_with_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise PipelineError("it is broken")

    monkeypatch.setattr(command, "_run", fail)
    job: Any = SimpleNamespace(help="", configure=lambda _: None)
    assert command.execute("x", job, []) == 2
    assert capsys.readouterr().err == "wbkv pipeline x: it is broken\n"
    assert command.execute("x", job, ["--verbose"]) == 2
    assert "Traceback" in capsys.readouterr().err


STAGES = {1: (1, 4), 2: (2, 4), 3: None}
TRACKER: Any = SimpleNamespace(  # of one job; a stage of it has been forgotten
    getActiveJobsIds=lambda: [7],
    getJobInfo=lambda _: SimpleNamespace(stageIds=list(STAGES)),
    getStageInfo=lambda stage: (
        SimpleNamespace(numCompletedTasks=known[0], numTasks=known[1]) if (known := STAGES[stage]) else None
    ),
)


def test_progress_says_each_step_and_what_came_of_it() -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: TRACKER))
    out = io.StringIO()
    with progress.step(spark, "counting", out) as step:
        assert out.getvalue() == "counting\n"
        step.rows = 3
    assert out.getvalue().startswith("counting\ncounting: 3 rows in ")
    assert progress.tasks(TRACKER) == (3, 8)
    assert progress.summary(step, 2.0) == "3 rows in 2.0 s, 2 rows/s"
    with pytest.raises(PipelineError), progress.step(spark, "failing", out):
        raise PipelineError("no")
    assert out.getvalue().endswith("failing\n")


def test_our_code_travels_without_what_is_installed(tmp_path: Any) -> None:
    shipping.collect(tmp_path / "ours")
    assert {path.name for path in (tmp_path / "ours").iterdir()} == set(shipping.OURS)
    shipping.collect(tmp_path / "all", shipping.NATIVE)
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path / 'all')!r}]\n"
        "import wbkv, grpc, google.protobuf, typing_extensions\n"
        "print(*(module.__file__ for module in (wbkv, grpc, google.protobuf)), sep='\\n')"
    )
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert all(line.startswith(str(tmp_path / "all")) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("yarn", False),
        (None, False),
    ],
)
def test_what_is_local_needs_nothing_to_travel(*, master: str | None, local: bool) -> None:
    assert shipping.is_local(master) is local


def test_settings_of_sparks_may_have_equal_signs() -> None:
    parser = argparse.ArgumentParser()
    command.add_spark(parser)
    given = parser.parse_args(["--config", "spark.driver.extraJavaOptions=-Da=b"])
    assert given.config == ["spark.driver.extraJavaOptions=-Da=b"]
