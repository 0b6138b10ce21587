"""`wbkv pipeline NAME`: runs a job. A job given to spark-submit begins here, too.

Neither PySpark nor a job is loaded before it is used, so that other commands start quickly.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Protocol, cast

import wbkv
from wbkv.cli.hints import did_you_mean
from wbkv.cli.main import Parser

from wbkv_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if find_spec("pyspark") is None:
    raise ModuleNotFoundError("the pipeline needs pyspark: install wbkv[pipeline]", name="pyspark")

JOBS: Final = {
    "diff": "compare two states of a store: exports, revisions, clusters",
    "export": "write a snapshot of a cluster to Parquet files, with a manifest and checksums",
    "import": "write an export, or Parquet, CSV or JSON files, into a cluster; can be resumed",
    "report": "write tables, plots and a page of what load tests and benchmarks measured",
    "verify": "check from traces that everything was delivered, and read, in one order",
}
"""The jobs, by name, and their help."""

EPILOG: Final = """\
jobs:
{jobs}

`wbkv pipeline JOB --help` describes a job. Jobs need Java 17 or later.

exit status:
  0    done
  1    the job has found something: differences, violations
  2    bad usage or bad input, or the job failed; one line on standard error says why
"""


class Job(Protocol):
    """The interface of a module of `wbkv_pipeline.jobs`."""

    help: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, arguments: argparse.Namespace, spark: SparkSession) -> int:
        """Run the job, and return the exit status."""


class PipelineCommand:
    """The command `wbkv pipeline`."""

    help = "run a job on Spark: " + ", ".join(JOBS)

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments. A job declares its own."""
        rows = (f"  {name:10} {about}" for name, about in JOBS.items())
        parser.epilog = EPILOG.format(jobs="\n".join(rows))
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument("job", metavar="JOB", nargs=argparse.PARSER, help="the job, and its arguments")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the job."""
        name, *rest = arguments.job
        if name not in JOBS:
            hint = did_you_mean(name, JOBS) or f"; there are {', '.join(JOBS)}"
            raise ValueError(f"there is no job {name!r}{hint}")
        return execute(name, cast(Job, importlib.import_module(f"wbkv_pipeline.jobs.{name}")), rest)


def submit(module: ModuleType | None = None) -> int:
    """Run the job whose file is the main program, as under spark-submit. Return the exit status."""
    main = sys.modules["__main__"] if module is None else module
    return execute(Path(main.__file__ or "").stem, cast(Job, main), sys.argv[1:])


def execute(name: str, job: Job, argv: Sequence[str]) -> int:
    """Run a job with these arguments, and return the exit status. An error becomes one line."""
    prog = f"wbkv pipeline {name}"
    parser = Parser(prog=prog, description=job.help)
    job.configure(parser)
    add_spark(parser)
    arguments = parser.parse(argv)
    try:
        return _run(prog, job, arguments)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - Spark and Py4J raise many kinds, and all end the job
        if arguments.verbose:
            traceback.print_exc()
        sys.stderr.write(f"{prog}: {in_one_line(error)}\n")
        return 2


def _run(prog: str, job: Job, arguments: argparse.Namespace) -> int:
    from wbkv_pipeline import shipping
    from wbkv_pipeline.session import session

    config = dict(setting.split("=", 1) for setting in arguments.config)
    spark = session(arguments.master, name=prog, config=config, ship_packages=arguments.ship_packages)
    if not arguments.verbose:
        spark.sparkContext.setLogLevel("OFF")  # else a failed task logs a page of Java before our line
    if not shipping.is_local(spark.sparkContext.master):
        shipping.check(spark)
    return job.run(arguments, spark)


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the options of jobs that use a cluster and print a result."""
    parser.add_argument(
        "-e",
        "--endpoints",
        metavar="HOST:PORT,...",
        help="addresses of the cluster's nodes, or some of them ($WBKV_ENDPOINTS, or 127.0.0.1:7400 to 7402)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Add the options that all jobs have."""
    group = parser.add_argument_group("Spark")
    add = group.add_argument
    add("--master", metavar="URL", help="Spark's master: local[4], spark://HOST:PORT, yarn, ... (local[*])")
    add("--config", action="append", default=[], type=setting, metavar="KEY=VALUE", help="a setting of Spark")
    add(
        "--ship-packages",
        action="store_true",
        help="send grpcio and protobuf to executors that lack them, and have this machine's platform",
    )
    add("--verbose", action="store_true", help="show Spark's messages, and the traceback of an error")


def setting(text: str) -> str:
    """Check the form of a setting of Spark."""
    if not text.partition("=")[0].startswith("spark.") or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form spark.some.name=value")
    return text


def in_one_line(error: BaseException) -> str:
    """Return the line of an error that a user needs, out of pages of Java and Python."""
    if isinstance(error, PipelineError | wbkv.Error | ValueError):
        return _first_line(str(error))
    from wbkv_pipeline.source import line_of

    ours = line_of(error)
    if ours is not None:  # raised in a task
        return ours
    java = getattr(error, "java_exception", None)
    if java is not None:
        while java.getCause() is not None:
            java = java.getCause()
        return _first_line(str(java.toString()))
    return _first_line(str(error)) or type(error).__name__


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


command = PipelineCommand()
