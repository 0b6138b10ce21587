"""The jobs: thin mains over functions of DataFrames, run by `wbkv pipeline NAME` or by spark-submit.

A job has `help`, `configure(parser)` and `run(arguments, spark)`, whose result is the exit status: 0 fine,
1 a finding, 2 bad input.
"""
