"""Starts Spark sessions for this project: on a suitable Java, without noise, with our code for executors."""

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
    # The data source receives the filters of a query.
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
    # For few cores: streams keep one state for each of these.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
}
NOISE: Final = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j|Setting default log level"
    rb"|To adjust logging level|.*WARN NativeCodeLoader"
)
"""Lines that Spark writes at each start."""

CONTEXT_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""They write each error of a query, which is raised anyway, to the standard error with Java's stack."""


def session(
    master: str | None = None,
    *,
    name: str = "wbkv",
    config: Mapping[str, str] | None = None,
    ship_packages: bool = False,
) -> SparkSession:
    """Return the active session, or start one at this master (`local[*]`).

    `config` has settings of Spark, which override ours. The master of spark-submit, or of an active session,
    overrides `master`. Our code travels to executors on other machines; with `ship_packages`, grpcio and
    protobuf do, too: see `wbkv_pipeline.shipping`.
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
    if travels and settings["spark.archives"] != travels["spark.archives"]:  # the user has archives, too
        settings["spark.archives"] += f",{travels['spark.archives']}"
    if not submitted:
        from wbkv_pipeline import java  # `python -m wbkv_pipeline.java` warns if it is loaded already

        java.use()
        _start(settings)
    return kind.builder.config(map=settings).getOrCreate()


def _submitted() -> dict[str, str]:
    """Return the settings of spark-submit, which override our defaults."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - only then SparkConf has Java's settings
    return dict(SparkConf().getAll())


def _pyspark() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"the pipeline needs {error.name}, which is not installed: pip install 'wbkv[pipeline]'"
        ) from None
    from pyspark.logger import PySparkLogger

    for logger in CONTEXT_LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    return SparkSession


def _start(settings: Mapping[str, str]) -> None:
    """Start Java and a Spark context, without the noise."""
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
    """Copy lines that Java writes to our standard error, except the noise."""
    with open(source, "rb") as lines:
        for line in lines:
            if not NOISE.match(line):
                os.write(2, line)
