"""Validates data from files and command lines. Errors name the file and the key."""

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
    """Declare a field of a data class with its default and its bounds."""
    metadata = {"least": least, "most": most, "one_of": tuple(one_of)}
    return dataclasses.field(default=default, metadata=metadata)


def toml_file(path: Path) -> dict[str, Any]:
    """Parse a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise LoadTestError(f"{path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise LoadTestError(f"{path}: {error}") from error


def reject_unknown(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `LoadTestError` for an unknown name, which is probably misspelt."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise LoadTestError(f"{where}: unknown name {name!r}; {hint}")


def filled(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a data class of values. Raises `LoadTestError` if a name, type or bound is wrong."""
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
    """Parse `KEY=VALUE` of a command line. VALUE is TOML, or a bare word, which is a text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise LoadTestError(f"--set {text} is not of the form KEY=VALUE")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
