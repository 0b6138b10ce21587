"""`wbkv pipeline NAME`: run a job; and what a job given to spark-submit begins with.

Neither PySpark nor a job is loaded before it is wanted, so that other commands start as fast as ever.
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
    "report": "tables, plots and a page of what load tests and benchmarks measured",
    "verify": "check from traces that everything was delivered, and read, in one order",
}
"""The jobs, and what they say of themselves."""

EPILOG: Final = """\
jobs:
{jobs}

`wbkv pipeline JOB --help` says more of one. Java 17 or later is needed.

exit status:
  0    done
  1    found something: differences, violations
  2    bad usage or bad input, or the job failed; what is wrong is said in one line
"""


class Job(Protocol):
    """What a module of `wbkv_pipeline.jobs` has."""

    help: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, arguments: argparse.Namespace, spark: SparkSession) -> int:
        """Do it; the result is the exit status."""


class PipelineCommand:
    """Jobs on Spark."""

    help = "run a job on Spark: " + ", ".join(JOBS)

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments. Those of the job are its own."""
        rows = (f"  {name:10} {about}" for name, about in JOBS.items())
        parser.epilog = EPILOG.format(jobs="\n".join(rows))
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument("job", metavar="JOB", nargs=argparse.PARSER, help="which, and its arguments")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the job."""
        name, *rest = arguments.job
        if name not in JOBS:
            hint = did_you_mean(name, JOBS) or f"; there are {', '.join(JOBS)}"
            raise ValueError(f"there is no job {name!r}{hint}")
        return execute(name, cast(Job, importlib.import_module(f"wbkv_pipeline.jobs.{name}")), rest)


def submit(module: ModuleType | None = None) -> int:
    """What a job's file does when it is the program that spark-submit runs."""
    main = sys.modules["__main__"] if module is None else module
    return execute(Path(main.__file__ or "").stem, cast(Job, main), sys.argv[1:])


def execute(name: str, job: Job, argv: Sequence[str]) -> int:
    """Run a job with these arguments. What goes wrong is said in one line."""
    prog = f"wbkv pipeline {name}"
    parser = Parser(prog=prog, description=job.help)
    job.configure(parser)
    add_spark(parser)
    arguments = parser.parse(argv)
    try:
        return _run(prog, job, arguments)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - Spark and Py4J raise many kinds, all of them for a person here
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
        spark.sparkContext.setLogLevel("OFF")  # else a failed task is a page of Java before our line
    if not shipping.is_local(spark.sparkContext.master):
        shipping.check(spark)
    return job.run(arguments, spark)


def add_store(parser: argparse.ArgumentParser) -> None:
    """The options of jobs that speak to a cluster and print a result."""
    parser.add_argument(
        "-e",
        "--endpoints",
        metavar="HOST:PORT,...",
        help="where the cluster is: any of its nodes ($WBKV_ENDPOINTS, or 127.0.0.1:7400 to 7402)",
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def add_spark(parser: argparse.ArgumentParser) -> None:
    """The options of all jobs."""
    group = parser.add_argument_group("Spark")
    add = group.add_argument
    add("--master", metavar="URL", help="where to run: local[4], spark://HOST:PORT, yarn, ... (local[*])")
    add("--config", action="append", default=[], type=setting, metavar="KEY=VALUE", help="of Spark's")
    add(
        "--ship-packages",
        action="store_true",
        help="send grpcio and protobuf along, for executors that are like this machine and do not have them",
    )
    add("--verbose", action="store_true", help="Spark's own messages, and where an error comes from")


def setting(text: str) -> str:
    """Parse one of Spark's settings."""
    if not text.partition("=")[0].startswith("spark.") or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not like spark.some.name=value")
    return text


def in_one_line(error: BaseException) -> str:
    """What a person needs to know of an error, out of pages of Java and Python."""
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
