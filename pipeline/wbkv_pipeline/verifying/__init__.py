"""Checks of traces: did replicas deliver, and clients read, what atomic multicast and the store promise?

Each check is a function from DataFrames to a DataFrame of offending rows. docs/verify.md defines the checks.
"""

from wbkv_pipeline.verifying.findings import FINDING
from wbkv_pipeline.verifying.verifier import CHECKS, Check, CheckedCounts, Rules, Verdict, verified

__all__ = ["CHECKS", "FINDING", "Check", "CheckedCounts", "Rules", "Verdict", "verified"]
