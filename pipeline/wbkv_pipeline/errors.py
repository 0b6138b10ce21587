"""The pipeline's error."""

from __future__ import annotations


class PipelineError(Exception):
    """An error that a user can act on: one line says what failed, and the remedy."""
