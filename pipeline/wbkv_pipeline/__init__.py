"""The data pipeline: the store's data in Spark, in bulk and as a stream, and evidence that it is in order.

`session()` gives a Spark session in which `spark.read.format("wbkv")` works (docs/pipeline.md). The jobs are
run by `wbkv pipeline NAME`, or by spark-submit. Only the client's SDK is used: where Spark runs, no server
needs to be installed.
"""

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.session import session

__all__ = ["PipelineError", "session"]
