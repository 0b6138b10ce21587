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
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = ("wbkv", "wbkv_proto", "pipeline", "pyspark_wbkv")
NATIVE: Final = ("grpcio", "protobuf", "typing_extensions")
NEEDED: Final = ("grpc", "google.protobuf", "pyarrow", "wbkv", "pipeline.source")
FOLDER: Final = "wbkv_packages"
"""Where an executor finds it all."""


def is_local(master: str | None) -> bool:
    """Whether tasks run in this process's own Java, with this Python: nothing needs to travel."""
    return master is not None and master.startswith("local") and not master.startswith("local-cluster")


def settings(*, packages: bool) -> dict[str, str]:
    """What Spark is to be told before it starts."""
    folder = tempfile.mkdtemp(prefix="wbkv-shipping-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = Path(folder, "wbkv.zip")
    pack(archive, NATIVE if packages else ())
    return {"spark.archives": f"{archive}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def pack(archive: Path, distributions: Iterable[str] = ()) -> None:
    """Write our packages, and these installed ones, into an archive."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for name in OURS:
            for path in _sources(name):
                out.write(path, Path(name, path.relative_to(_place(name))))
        for name in distributions:
            for file in files(name) or ():
                path = Path(str(file.locate()))
                inside = ".." not in file.parts and "__pycache__" not in file.parts
                if inside and path.is_file():
                    out.write(path, str(file))


def _place(package: str) -> Path:
    return Path(importlib.import_module(package).__path__[0])


def _sources(package: str) -> Iterator[Path]:
    for path in sorted(_place(package).rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            yield path


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
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    return _machine(), tuple(missing)


def _machine() -> str:
    return f"Python {sys.version_info[0]}.{sys.version_info[1]}, {platform.system()} {platform.machine()}"
