"""What can be wrong with a load test, as opposed to the store that it tests."""

from __future__ import annotations


class LoadTestError(Exception):
    """A scenario, shape, option or cluster that cannot be used. The message says which, and why."""


class Violation(Exception):
    """The store has shown something that cannot be: the run fails, whatever else happens."""
