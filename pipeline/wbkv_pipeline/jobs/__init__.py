"""The jobs: thin main programs over functions of DataFrames, for `wbkv pipeline NAME` and spark-submit.

A job has `help`, `configure(parser)` and `run(arguments, spark)`, which returns the exit status: 0 done, 1 if
the job has found something, 2 for bad input. To add a job, add a module, and its line in `command.JOBS`.
"""
