"""Checks of traces: whether the replicas delivered, and the clients saw, what atomic multicast promises.

Each check is a function of DataFrames to a DataFrame of offending rows; docs/verify.md says what each means.
"""

from wbkv_pipeline.verifying.findings import FINDING
from wbkv_pipeline.verifying.verifier import CHECKS, Check, CheckedCounts, Rules, Verdict, verified

__all__ = ["CHECKS", "FINDING", "Check", "CheckedCounts", "Rules", "Verdict", "verified"]
