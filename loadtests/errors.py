"""Errors of a load test, and violations by the store that it tests."""

from __future__ import annotations


class LoadTestError(Exception):
    """A scenario, shape, option or cluster that cannot be used. The message says which, and why."""


class Violation(Exception):
    """The store has returned something impossible. The run fails, whatever else happens."""
