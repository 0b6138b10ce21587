"""Code that travels with a job, so that executors need not have it.

What is pure Python of ours always travels when executors are not processes of this very machine's session:
in one archive, which Spark unpacks where each executor works, and which is on the path of its Python. What
has native parts (grpcio, protobuf) fits only executors that are like the driver, so it travels on request;
else they must have it: `pip install 'wbkv[pipeline]'` there, or a packed environment (docs/pipeline.md).
`check` asks the executors, and says what is missing.
"""

from __future__ import annotations

import atexit
import importlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wbkv_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = ("wbkv", "wbkv_proto", "wbkv_pipeline", "pyspark_wbkv")
NATIVE: Final = ("grpcio", "protobuf", "typing_extensions")
NEEDED: Final = {"grpcio": "grpc", "protobuf": "google.protobuf.message", "pyarrow": "pyarrow"}
"""What executors import beside what is ours. (A jar on their path has folders google/protobuf, too.)"""
FOLDER: Final = "wbkv_packages"
"""Where an executor finds it all."""


def is_local(master: str | None) -> bool:
    """Whether tasks run in this process's own Java, with this Python: nothing needs to travel."""
    return master is not None and master.startswith("local") and not master.startswith("local-cluster")


def prepare(*, packages: bool) -> dict[str, str]:
    """Pack it all. Returns what Spark is to be told before it starts."""
    top = Path(tempfile.mkdtemp(prefix="wbkv-shipping-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    collect(top / FOLDER, NATIVE if packages else ())
    archive = shutil.make_archive(str(top / "wbkv"), "zip", top / FOLDER)
    # A data source is planned in processes beside the driver, whose Python may be the executors'.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(top / FOLDER), os.environ.get("PYTHONPATH")))
    )
    return {"spark.archives": f"{archive}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def collect(folder: Path, distributions: Iterable[str] = ()) -> None:
    """Copy our packages, and these installed ones, into a folder."""
    for name in OURS:
        shutil.copytree(_place(name), folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in distributions:
        for file in files(name) or ():
            path = Path(str(file.locate()))
            if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / file)


def _place(package: str) -> Path:
    return Path(importlib.import_module(package).__path__[0])


def check(spark: SparkSession) -> None:
    """Ask the executors for what they need. Raises `PipelineError`, which says what is missing."""
    context = spark.sparkContext
    count = max(2, context.defaultParallelism)
    found = context.parallelize(range(count), count).map(lambda _: _probe()).distinct().collect()
    lacking = next((each for each in sorted(found) if each[1]), None)
    if lacking is None:
        return
    machine, missing = lacking
    here = _machine()
    ship = "give --ship-packages, or " if machine == here else f"the driver has {here}, so "
    raise PipelineError(
        f"executors ({machine}) lack {', '.join(missing)}: {ship}"
        "install 'wbkv[pipeline]' there, or send a packed environment along (docs/pipeline.md)"
    )


def _probe() -> tuple[str, tuple[str, ...]]:
    """In an executor: what it is, and what cannot be imported there."""
    missing = []
    for name, module in NEEDED.items():
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(name)
    return _machine(), tuple(missing)


def _machine() -> str:
    return f"Python {sys.version_info[0]}.{sys.version_info[1]}, {platform.system()} {platform.machine()}"
