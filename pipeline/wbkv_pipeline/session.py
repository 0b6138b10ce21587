"""A Spark session, set up for this project: on the right Java, quiet, and with what travels with the job."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wbkv_pipeline import shipping
from wbkv_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS: Final = {
    # The data source is told which keys a query wants.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL: Final = {
    # Nothing listens beyond this machine.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    # Few cores, and streams keep this many states.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
}
NOISE: Final = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j|Setting default log level"
    rb"|To adjust logging level|.*WARN NativeCodeLoader"
)
"""What Spark says at each start."""

CONTEXT_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""They write each error of a query, which is raised, to the standard error as well, with Java's stack."""


def session(
    master: str | None = None,
    *,
    name: str = "wbkv",
    config: Mapping[str, str] | None = None,
    ship_packages: bool = False,
) -> SparkSession:
    """The session that there is, or a new one at this master (`local[*]`).

    `config`: Spark's own settings; they win over ours. Under spark-submit, and where a session is there
    already, the master is theirs. Our code travels to executors elsewhere; `ship_packages`: grpcio and
    protobuf, too, see `wbkv_pipeline.shipping`.
    """
    kind = _pyspark()
    current = kind.getActiveSession()
    if current is not None:
        for key, value in (config or {}).items():
            if current.conf.isModifiable(key):
                current.conf.set(key, value)
        return current
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    given = _submitted() if submitted else {}
    master = master or given.get("spark.master", "local[*]")
    local = master.startswith("local")
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    travels = {} if shipping.is_local(master) else shipping.prepare(packages=ship_packages)
    settings: dict[str, Any] = {**DEFAULTS, **(LOCAL if local else {}), **travels, "spark.app.name": name}
    settings.update({**given, **(config or {}), "spark.master": master})
    if travels and settings["spark.archives"] != travels["spark.archives"]:  # the user has some, too
        settings["spark.archives"] += f",{travels['spark.archives']}"
    if not submitted:
        from wbkv_pipeline import java  # a program, too: `python -m` wants it not to be loaded yet

        java.use()
        _start(settings)
    return kind.builder.config(map=settings).getOrCreate()


def _submitted() -> dict[str, str]:
    """What spark-submit was told: it wins over our defaults."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - only then SparkConf knows what Java knows
    return dict(SparkConf().getAll())


def _pyspark() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"{error.name} is not installed; the pipeline needs it: pip install 'wbkv[pipeline]'"
        ) from None
    from pyspark.logger import PySparkLogger

    for logger in CONTEXT_LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    return SparkSession


def _start(settings: Mapping[str, str]) -> None:
    """Start Java and a Spark context in it, without the noise."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001 - an earlier session's Java: there can be one only
        return
    conf = SparkConf().setAll(list(settings.items()))
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="spark-stderr", daemon=True).start()
    try:
        gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call] # PySpark's
    finally:
        os.close(writing)
    SparkContext(conf=conf, gateway=gateway)


def _pass_on(source: int) -> None:
    """Copy what Java writes, line by line, to our standard error."""
    with open(source, "rb") as lines:
        for line in lines:
            if not NOISE.match(line):
                os.write(2, line)
