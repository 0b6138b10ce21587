"""Data from files and command lines, checked: whatever is wrong is named with its file and key."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from loadtests.errors import LoadTestError

T = TypeVar("T")

_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a number of seconds, or [from, to]",
}


def bounded(
    default: Any, least: float | None = None, most: float | None = None, *, one_of: Iterable[str] = ()
) -> Any:
    """A field of a data class, and which values it may have."""
    metadata = {"least": least, "most": most, "one_of": tuple(one_of)}
    return dataclasses.field(default=default, metadata=metadata)


def toml_file(path: Path) -> dict[str, Any]:
    """What is in a file."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise LoadTestError(f"{path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise LoadTestError(f"{path}: {error}") from error


def reject_unknown(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    """A misspelt name would be missed silently."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise LoadTestError(f"{where}: nobody knows {name!r}; {hint}")


def filled(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """A data class, from values whose types and bounds are checked."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # it is one
    reject_unknown(where, values, fields)
    hints = get_type_hints(kind)
    return kind(**{name: _checked(f"{where}: {name}", value, hints[name], fields[name].metadata)
                   for name, value in values.items()})  # fmt: skip


def _checked(where: str, value: Any, hint: Any, bounds: Mapping[str, Any]) -> Any:
    kind = hint if isinstance(hint, type) else tuple
    if kind is tuple:
        ends = value if isinstance(value, list) else [value, value]
        if len(ends) == 2 and all(_is_number(end) for end in ends) and ends[0] <= ends[1]:
            _check_bounds(where, min(ends), bounds)
            _check_bounds(where, max(ends), bounds)
            return (float(ends[0]), float(ends[1]))
    elif kind is float:
        if _is_number(value):
            _check_bounds(where, value, bounds)
            return float(value)
    elif isinstance(value, kind) and not isinstance(value, bool):
        _check_bounds(where, value, bounds)
        return value
    raise LoadTestError(f"{where} must be {_NAMES[kind]}, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_bounds(where: str, value: Any, bounds: Mapping[str, Any]) -> None:
    least, most, one_of = bounds.get("least"), bounds.get("most"), bounds.get("one_of")
    if one_of and value not in one_of:
        raise LoadTestError(f"{where} must be one of {', '.join(one_of)}, not {value!r}")
    if least is not None and value < least:
        raise LoadTestError(f"{where} must be at least {least:g}, not {value!r}")
    if most is not None and value > most:
        raise LoadTestError(f"{where} must be at most {most:g}, not {value!r}")


def override(text: str) -> tuple[str, Any]:
    """`KEY=VALUE` of a command line. Values are those of TOML; a bare word is a text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise LoadTestError(f"--set {text}: KEY=VALUE is needed")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
