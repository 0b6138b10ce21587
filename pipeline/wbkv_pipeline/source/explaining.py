"""Failures in one line that a person finds.

Whatever goes wrong happens in a worker process and reaches the user as text inside an exception of Spark's:
`explained` makes it one line that begins with `wbkv: `, and `line_of` finds that line again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import wbkv

from wbkv_pipeline.errors import PipelineError

_LINE: Final = re.compile(r"wbkv: [^\n]+")


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn what the client raises into one line, which says what was being done."""
    try:
        yield
    except PipelineError:
        _hide_traceback()
        raise
    except (wbkv.Error, ValueError) as error:
        _hide_traceback()
        raise PipelineError(f"wbkv: {_reason(error, doing)}") from error


def _reason(error: wbkv.Error | ValueError, doing: str) -> str:
    reason = " ".join(str(error).split())
    if isinstance(error, wbkv.Compacted):
        reason = f"that was compacted ({reason})"
    elif isinstance(error, wbkv.Error) and not isinstance(error, wbkv.Unavailable):  # which speaks for itself
        reason = f"{type(error).__name__}: {reason}"
    return f"{doing}: {reason}"


def _hide_traceback() -> None:
    """Let Spark show the line, not the frames above it.

    A worker that fails looks here when it writes down what happened, and then ends.
    """
    if any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def line_of(error: BaseException) -> str | None:
    """The line inside an exception of Spark's, without `wbkv: `; None if it is about something else."""
    found = _LINE.search(str(error))
    return None if found is None else found.group()[len("wbkv: ") :].strip()
