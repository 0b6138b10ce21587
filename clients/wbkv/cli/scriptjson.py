"""Transactions as JSON, for programs.

    {"when": [["number", "alice", ">=", 30],
              ["any", ["exists", "bob"], ["unchanged", {"prefix": "user/"}, 17]]],
     "then": [["add", "alice", -30, {"floor": 0}], ["put", "note", "paid"],
              ["scan", {"prefix": "user/"}, {"limit": 10}]],
     "otherwise": [["get", "alice"]], "allow_failures": false}

Keys and values are strings, or `{"base64": "..."}`; ranges are `{"prefix": KEY}`, `{"between": [KEY, KEY]}`
or `{"everything": true}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

from wbkv.cli.hints import did_you_mean
from wbkv.cli.language import NUMBER_MAX
from wbkv.cli.script import (
    BOUNDS,
    COMBINED,
    COUNTED,
    NUMBERS,
    OPERATIONS,
    OPERATORS,
    STARTS_WITH,
    SUBJECTS,
    VALUED,
    Script,
    ScriptCombined,
    ScriptCondition,
    ScriptOperation,
    one,
)
from wbkv.cli.text import from_json
from wbkv.data import EVERYTHING, KeyRange, between, prefix
from wbkv.operations import DEPTH

T = TypeVar("T")


MEMBERS: Final = ("when", "then", "otherwise", "allow_failures")


class ScriptJsonError(ValueError):
    """An invalid script: the message says where and why."""


def parse(text: str) -> Script:
    """Parse a script. Raises `ScriptJsonError`."""
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ScriptJsonError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ScriptJsonError('expected an object with "when", "then" and "otherwise"')
    for name in found:
        if name not in MEMBERS:
            hint = did_you_mean(name, MEMBERS)
            raise ScriptJsonError(f'there is no "{name}" in a transaction{hint}')
    conditions = _each(found, "when", _condition)
    then, otherwise = _each(found, "then", _operation), _each(found, "otherwise", _operation)
    script = Script(conditions, then, otherwise, _flag("allow_failures", found))
    if script.otherwise and not script.conditions:
        raise ScriptJsonError('"otherwise" needs "when"')
    if not script.conditions and not script.then:
        raise ScriptJsonError("the transaction does nothing")
    return script


def _each(found: dict[str, Any], name: str, read: Callable[[str, list[Any]], T]) -> tuple[T, ...]:
    rows = found.get(name, [])
    things: list[T] = []
    if not isinstance(rows, list):
        raise ScriptJsonError(f"{name}: expected a list, found {rows!r}")
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) < 2 or not isinstance(row[0], str):
            raise ScriptJsonError(f"{name}[{index}]: expected a list of a name and a key, found {row!r}")
        try:
            things.append(read(row[0], row[1:]))
        except ValueError as error:
            raise ScriptJsonError(f"{name}[{index}]: {error}") from None
    return tuple(things)


def _flag(name: str, found: dict[str, Any]) -> bool:
    flag = found.get(name, False)
    if not isinstance(flag, bool):
        raise ScriptJsonError(f"{name} must be true or false, not {flag!r}")
    return flag


def _condition(subject: str, row: list[Any], depth: int = 1) -> ScriptCondition | ScriptCombined:
    if subject not in SUBJECTS:
        raise ScriptJsonError(f'"{subject}" is not a condition{did_you_mean(subject, SUBJECTS)}')
    if subject in COMBINED:
        if depth > DEPTH:
            raise ScriptJsonError(f"conditions are nested deeper than {DEPTH}: flatten them")
        for inner in row:
            if not isinstance(inner, list) or len(inner) < 2 or not isinstance(inner[0], str):
                raise ScriptJsonError(f"{subject}: expected a condition, found {inner!r}")
        return ScriptCombined(subject, tuple([_condition(r[0], r[1:], depth + 1) for r in row]))
    if subject == "unchanged":
        _check(row, 2, "keys and a revision")
        keys = _keys(row[0])
        keys = keys if isinstance(keys, KeyRange) else one(keys)
        return ScriptCondition(subject, keys, None, _number(row[1], least=0))
    key = from_json(row[0])
    if subject in ("exists", "absent"):
        _check(row, 1, "a key")
        return ScriptCondition(subject, key)
    _check(row, 3, "a key, an operator and an operand")
    allowed = (*OPERATORS, STARTS_WITH) if subject == "value" else tuple(OPERATORS)
    if row[1] not in allowed:
        raise ScriptJsonError(f"{row[1]!r} is not one of {', '.join(allowed)}")
    operand = _number(row[2], least=NUMBERS[subject]) if subject in NUMBERS else from_json(row[2])
    return ScriptCondition(subject, key, row[1], operand)


def _operation(name: str, row: list[Any]) -> ScriptOperation:
    if name not in OPERATIONS:
        raise ScriptJsonError(f'"{name}" is not an operation{did_you_mean(name, OPERATIONS)}')
    if name == "scan":
        return _scan(row)
    if name == "del":
        _check(row, 1, "a key or a range")
        return ScriptOperation(name, _keys(row[0]))
    key = from_json(row[0])
    if name in VALUED:
        _check(row, 2, "a key and a value")
        return ScriptOperation(name, key, from_json(row[1]))
    if name == "add":
        return _add(key, row)
    if name in COUNTED:
        _check(row, 2, "a key and a number")
        return ScriptOperation(name, key, _number(row[1], least=-NUMBER_MAX - 1))
    _check(row, 1, "a key")
    return ScriptOperation(name, key)


def _add(key: bytes, row: list[Any]) -> ScriptOperation:
    bounds = row[2] if len(row) > 2 else {}
    _check(row, max(2, min(len(row), 3)), "a key, a number and bounds")
    if not isinstance(bounds, dict) or not set(bounds) <= set(BOUNDS):
        raise ScriptJsonError(f'expected {{"floor": NUMBER, "ceiling": NUMBER}}, found {bounds!r}')
    found = {name: _number(bound, least=-NUMBER_MAX - 1) for name, bound in bounds.items()}
    number = _number(row[1], least=-NUMBER_MAX - 1)
    return ScriptOperation("add", key, number, floor=found.get("floor"), ceiling=found.get("ceiling"))


def _scan(row: list[Any]) -> ScriptOperation:
    keys, options = _keys(row[0]), row[1] if len(row) > 1 else {}
    _check(row, max(1, min(len(row), 2)), "a range and options")
    if not isinstance(keys, KeyRange):
        raise ScriptJsonError(f'expected a range like {{"prefix": "user/"}}, found {row[0]!r}')
    if not isinstance(options, dict) or not set(options) <= {"limit", "reverse"}:
        raise ScriptJsonError(f'expected {{"limit": NUMBER, "reverse": true}}, found {options!r}')
    reverse = options.get("reverse", False)
    if not isinstance(reverse, bool):
        raise ScriptJsonError(f"reverse must be true or false, not {reverse!r}")
    return ScriptOperation("scan", keys, limit=_number(options.get("limit", 0), least=0), reverse=reverse)


def _keys(found: Any) -> bytes | KeyRange:
    if not isinstance(found, dict) or "base64" in found:
        return from_json(found)
    if len(found) == 1 and "prefix" in found:
        return prefix(from_json(found["prefix"]))
    if found == {"everything": True}:
        return EVERYTHING
    if len(found) == 1 and isinstance(found.get("between"), list) and 1 <= len(found["between"]) <= 2:
        start, *end = map(from_json, found["between"])
        return between(start, end[0] if end else None)
    raise ScriptJsonError(
        f'expected {{"prefix": KEY}}, {{"between": [KEY, KEY]}} or {{"everything": true}}, found {found!r}'
    )


def _number(found: Any, *, least: int) -> int:
    if type(found) is not int or not least <= found <= NUMBER_MAX:
        raise ScriptJsonError(f"expected a number from {least} to {NUMBER_MAX}, found {found!r}")
    return found


def _check(row: list[Any], length: int, what: str) -> None:
    if len(row) != length:
        raise ScriptJsonError(f"expected {what}, found {json.dumps(row)}")
