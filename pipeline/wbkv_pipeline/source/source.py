"""The data source `wbkv`: what Spark asks for readers and writers."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
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
    """A reader that cannot be."""

    def __init__(self, error: PipelineError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Say why."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Say why."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Say why."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Say why."""
        raise self._error


class WbkvSource(DataSource):
    """Made once for a DataFrame that is loaded, and once for each write, in a worker of the driver's.

    Spark pickles what it has made for a DataFrame, and that copy is used whenever the DataFrame is. So what
    is decided before that holds for good: the revision that the DataFrame is as of.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        with explained("reading options"):
            self._options = parse(options)
        self._pin: Pin | None = None

    @classmethod
    def name(cls) -> str:
        """As in `spark.read.format("wbkv")`."""
        return "wbkv"

    def schema(self) -> StructType:
        """Asked for by `load`, unless the user gives a schema."""
        self._take()
        return SCHEMA

    def __getstate__(self) -> dict[str, Any]:
        self._take()  # with a schema of the user's, nothing else was called
        return self.__dict__

    def _take(self) -> None:
        """Settle on a revision, if this can be for reading a snapshot."""
        if self._pin is None and self._options.fits("read"):
            self._pin = Pin.take(self._options)

    def reader(self, schema: StructType) -> SnapshotReader:
        """For `spark.read`."""
        with explained("reading"):
            self._options.check_use("read")
            assert self._pin is not None
            return SnapshotReader(schema, self._options, self._pin)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
        """For `df.write`."""
        with explained("writing"):
            self._options.check_use("write")
            return BatchWriter(schema, self._options, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """For `spark.readStream`. What is raised here Spark loses, so it is raised when a reader is used."""
        try:
            with explained("reading a stream"):
                self._options.check_use("readStream")
                return ChangesReader(schema, self._options, None if self._pin is None else self._pin.name)
        except PipelineError as error:
            return _RefusingReader(error)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802 - Spark's
        """For `df.writeStream`."""
        with explained("writing a stream"):
            self._options.check_use("writeStream")
            return StreamWriter(schema, self._options, overwrite=overwrite)
