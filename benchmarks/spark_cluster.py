"""Check jobs on a Spark cluster of real executor processes that lack our packages: code is shipped to them.

Two executors (`local-cluster`), with a Python that has pyarrow and else nothing; a store of one node. Says
how long each job took, the start of Spark included.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark
import wbkv
import wbkv.testing
import wbkv_pipeline.jobs

WBKV = str(Path(sys.executable).with_name("wbkv"))
MASTER = "local-cluster[2,1,1024]"
SMALL = ("--config", "spark.driver.memory=1g", "--config", "spark.executor.memory=512m")
ROWS = 1000


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        wbkv.testing.running_cluster(1, 3, durability="os") as store,
        store.connect() as client,
    ):
        top = Path(folder)
        (top / "elsewhere").mkdir()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "PYSPARK_PYTHON": str(bare_python(top / "bare")),
            "WBKV_ENDPOINTS": ",".join(store.addresses),
        }
        client.txn().then(*(wbkv.put(f"key/{number}", b"value") for number in range(ROWS))).commit()

        def run(what: str, status: int, *command: str) -> str:
            started = time.perf_counter()
            done = subprocess.run(  # noqa: S603 - our own command
                command, cwd=top / "elsewhere", env=environment, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == status, f"{what}: status {done.returncode}\n{done.stdout}{done.stderr}"
            print(f"{what}: as expected, in {time.perf_counter() - started:.0f} s")
            return done.stdout + done.stderr

        job = (WBKV, "pipeline")
        said = run("executors without grpcio", 2, *job, "export", f"{top}/x", "--master", MASTER, *SMALL)
        assert "lack grpcio, protobuf: give --ship-packages, or install" in said, said
        ship = ("--master", MASTER, "--ship-packages", *SMALL)
        assert f"exported {ROWS:,} rows" in run("export", 0, *job, "export", f"{top}/backup", *ship)
        client.delete(wbkv.prefix("key/"))
        run("import", 0, *job, "import", f"{top}/backup", *ship)
        assert client.count(wbkv.prefix("key/")) == ROWS

        submit = str(Path(pyspark.__path__[0], "bin", "spark-submit"))
        diff = str(Path(wbkv_pipeline.jobs.__path__[0], "diff.py"))
        environment["PYSPARK_PYTHON"] = sys.executable
        said = run(
            "diff by spark-submit", 0, submit, "--master", "local[2]", "--driver-memory", "1g", diff,
            f"{top}/backup", "@now", "--ignore-revisions",
        )  # fmt: skip
        assert "no differences" in said, said


def clean() -> None:
    """Spark keeps the folders of such executors in its own."""
    shutil.rmtree(Path(pyspark.__path__[0], "work"), ignore_errors=True)


def bare_python(folder: Path) -> Path:
    """A Python with pyarrow, which executors need for Spark itself."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)  # noqa: S603 - ours
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("pyarrow", "numpy"):
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.submodule_search_locations
        top = Path(found.submodule_search_locations[0])
        for part in top.parent.glob(f"{name}*"):
            if part.suffix != ".dist-info":
                (packages / part.name).symlink_to(part)
    return folder / "bin" / "python"


if __name__ == "__main__":
    try:
        main()
    finally:
        clean()
