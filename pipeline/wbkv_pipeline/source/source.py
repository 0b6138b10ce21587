"""The data source `wbkv`: makes the readers and writers that Spark asks for."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.arrow import SCHEMA
from wbkv_pipeline.source.explaining import explained
from wbkv_pipeline.source.options import parse
from wbkv_pipeline.source.reading import Pin, SnapshotReader
from wbkv_pipeline.source.stream_writing import StreamWriter
from wbkv_pipeline.source.streaming import ChangesReader
from wbkv_pipeline.source.writing import BatchWriter


class _RefusingReader(DataSourceStreamReader):
    """A stream reader whose every method raises one error."""

    def __init__(self, error: PipelineError) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815 - Spark's


class WbkvSource(DataSource):
    """The source of one loaded DataFrame, or of one write. A worker process of the driver makes it.

    Spark pickles the source of a DataFrame and uses that copy whenever the DataFrame is used. So the revision
    is chosen before pickling: it holds for the DataFrame's whole life.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        with explained("reading options"):
            self._options = parse(options)
        self._pin: Pin | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name in `spark.read.format("wbkv")`."""
        return "wbkv"

    def schema(self) -> StructType:
        """Return the schema. `load` calls this, unless the user gives a schema."""
        self._take()
        return SCHEMA

    def __getstate__(self) -> dict[str, Any]:
        self._take()  # with a schema of the user's, Spark has called nothing else
        return self.__dict__

    def _take(self) -> None:
        """Pin a revision, if the options fit reading a snapshot."""
        if self._pin is None and self._options.fits("read"):
            self._pin = Pin.take(self._options)

    def reader(self, schema: StructType) -> SnapshotReader:
        """Return the reader of `spark.read`."""
        with explained("reading"):
            self._options.check_use("read")
            assert self._pin is not None
            return SnapshotReader(schema, self._options, self._pin)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
        """Return the writer of `df.write`."""
        with explained("writing"):
            self._options.check_use("write")
            return BatchWriter(schema, self._options, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of `readStream`. Spark loses errors raised here: the reader raises them."""
        try:
            with explained("reading a stream"):
                self._options.check_use("readStream")
                return ChangesReader(schema, self._options, None if self._pin is None else self._pin.name)
        except PipelineError as error:
            return _RefusingReader(error)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802 - Spark's
        """Return the writer of `df.writeStream`."""
        with explained("writing a stream"):
            self._options.check_use("writeStream")
            return StreamWriter(schema, self._options, overwrite=overwrite)
