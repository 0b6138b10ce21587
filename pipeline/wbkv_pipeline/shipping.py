"""Ships code with a job, so that executors need not have it installed.

Our pure-Python packages travel to all executors outside of a local session: in one archive, which Spark
unpacks in each executor's folder, and which is on the path of its Python. Packages with native parts (grpcio,
protobuf) run only on the driver's platform, so they travel on request. Otherwise executors must have them:
`pip install 'wbkv[pipeline]'` there, or a packed environment (docs/pipeline.md). `check` asks the executors
what is missing.
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
"""Distributions, and a module of each, that executors import besides our packages. (A jar on the path has
folders google/protobuf, too, so the module is deeper.)"""
FOLDER: Final = "wbkv_packages"
"""The unpacked archive in an executor's folder."""


def is_local(master: str | None) -> bool:
    """Whether tasks run on this machine with this Python, so that nothing needs to travel."""
    return master is not None and master.startswith("local") and not master.startswith("local-cluster")


def prepare(*, packages: bool) -> dict[str, str]:
    """Pack the archive. Returns the settings with which Spark must start."""
    top = Path(tempfile.mkdtemp(prefix="wbkv-shipping-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    collect(top / FOLDER, NATIVE if packages else ())
    archive = shutil.make_archive(str(top / "wbkv"), "zip", top / FOLDER)
    # Spark plans a data source in processes beside the driver, which may run the executors' Python.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(top / FOLDER), os.environ.get("PYTHONPATH")))
    )
    return {"spark.archives": f"{archive}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def collect(folder: Path, distributions: Iterable[str] = ()) -> None:
    """Copy our packages, and these installed ones, into a folder."""
    for name in OURS:
        source = importlib.import_module(name).__path__[0]
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in distributions:
        for file in files(name) or ():
            path = Path(str(file.locate()))
            if ".." not in file.parts and "__pycache__" not in file.parts and path.is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / file)


def check(spark: SparkSession) -> None:
    """Raise `PipelineError` if executors lack a package, naming it and the remedy."""
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
        "install 'wbkv[pipeline]' there, or send a packed environment (docs/pipeline.md)"
    )


def _probe() -> tuple[str, tuple[str, ...]]:
    """Return an executor's platform, and the distributions that cannot be imported there."""
    missing = []
    for name, module in NEEDED.items():
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(name)
    return _machine(), tuple(missing)


def _machine() -> str:
    return f"Python {sys.version_info[0]}.{sys.version_info[1]}, {platform.system()} {platform.machine()}"
