"""The data pipeline: the store's data in Spark, in bulk and as a stream, and checks of recorded runs.

`session()` returns a Spark session in which `spark.read.format("wbkv")` works (docs/pipeline.md).
`wbkv pipeline NAME` or spark-submit runs the jobs. The pipeline uses only the client's SDK: Spark's machines
need no server.

- `source/`: the data source `wbkv`; its options are the fields of `source.options.SourceOptions`
- `jobs/`: the jobs, over `exporting`, `importing`, `diffing`, `verifying/` and `reporting/`
- `session`, `java`, `shipping`: how Spark starts, and what travels to its executors
"""

from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.session import session

__all__ = ["PipelineError", "session"]
