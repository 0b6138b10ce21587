"""What goes wrong in a way that a person can do something about."""

from __future__ import annotations


class PipelineError(Exception):
    """Says in one line what is wrong, and what to do."""
