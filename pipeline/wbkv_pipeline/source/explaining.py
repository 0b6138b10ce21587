"""Errors in one line.

An error in a worker process reaches the user as text inside an exception of Spark's. `explained` makes it one
line that begins with `wbkv: `, and `line_of` extracts that line.
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
    """Turn errors of the client into a `PipelineError` of one line, which names the activity."""
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
    elif isinstance(error, wbkv.Error) and not isinstance(error, wbkv.Unavailable):  # it explains itself
        reason = f"{type(error).__name__}: {reason}"
    return f"{doing}: {reason}"


def _hide_traceback() -> None:
    """Have Spark show the line without a traceback. A failing worker reads the variable, then ends."""
    if any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def line_of(error: BaseException) -> str | None:
    """Return our line inside an exception of Spark's, without `wbkv: `; None if there is none."""
    found = _LINE.search(str(error))
    return None if found is None else found.group()[len("wbkv: ") :].strip()
