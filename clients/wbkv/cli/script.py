"""The syntax tree of a transaction of `wbkv txn`.

`str` of a script is its text again. `language` and `scriptjson` parse scripts.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from wbkv import operations
from wbkv.cli.text import escape
from wbkv.data import EVERYTHING, KeyRange, prefix

NUMBERS: Final[dict[str, int]] = {
    "number": -(2**63), "version": 0, "mod_revision": 0, "create_revision": 0,
}  # fmt: skip
"""Subjects that are compared with numbers, and the lowest of these."""
COMBINED: Final = ("any", "all")
SUBJECTS: Final = ("value", *NUMBERS, "exists", "absent", "unchanged", *COMBINED)
OPERATIONS: Final = ("get", "put", "swap", "del", "append", "add", "min", "max", "scan")
VALUED: Final = ("put", "swap", "append")
COUNTED: Final = ("add", "min", "max")
BOUNDS: Final = ("floor", "ceiling")
STARTS_WITH: Final = "starts_with"
RANGES: Final = ("prefix", "between", "everything")
STRUCTURE: Final = ("when", "and", "then", "otherwise")
OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
    "<=": operator.le, ">=": operator.ge,
}  # fmt: skip

SPECIAL: Final = frozenset(" \"'();,<>=!#\\")
"""Characters that need quotes."""


@dataclass(frozen=True, slots=True)
class ScriptCondition:
    """A condition of a script."""

    subject: str
    """One of `SUBJECTS`."""
    target: bytes | KeyRange
    operator: str | None = None
    operand: bytes | int | None = None
    """The value compared with; for `unchanged`, the revision."""

    def __str__(self) -> str:
        if isinstance(self.target, KeyRange):
            return f"unchanged({_range(self.target, one_key=True)}) since {_operand(self.operand)}"
        words = f"{self.subject}({word(self.target)})"
        if self.operator is None:
            return words
        operand = _operand(self.operand)
        if self.subject == "value" and self.operator[0] in "<>" and is_number(operand):
            operand = f'"{operand}"'
        return f"{words} {self.operator} {operand}"

    def lower(self) -> operations.Condition:
        """Convert it to the client's type."""
        if isinstance(self.target, KeyRange):
            assert isinstance(self.operand, int)
            return operations.unchanged(self.target, since=self.operand)
        made: Any = getattr(operations, self.subject)(self.target)
        lowered: operations.Condition = made
        if self.operator == STARTS_WITH:
            lowered = made.starts_with(self.operand)
        elif self.operator is not None:
            lowered = OPERATORS[self.operator](made, self.operand)
        return lowered


@dataclass(frozen=True, slots=True)
class ScriptCombined:
    """Conditions of which any holds, or all do."""

    kind: str
    """One of `COMBINED`."""
    conditions: tuple[ScriptCondition | ScriptCombined, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.conditions))})"

    def lower(self) -> operations.Condition:
        """Convert it to the client's type."""
        combine = operations.any_of if self.kind == "any" else operations.all_of
        return combine(*(condition.lower() for condition in self.conditions))


@dataclass(frozen=True, slots=True)
class ScriptOperation:
    """An operation of a script."""

    name: str
    """One of `OPERATIONS`."""
    target: bytes | KeyRange
    operand: bytes | int | None = None
    limit: int = 0
    reverse: bool = False
    floor: int | None = None
    ceiling: int | None = None

    def __str__(self) -> str:
        target = _range(self.target) if isinstance(self.target, KeyRange) else word(self.target)
        words = [self.name, target]
        if self.operand is not None:
            words.append(_operand(self.operand))
        words += [f"{name} {bound}" for name in BOUNDS if (bound := getattr(self, name)) is not None]
        if self.limit:
            words.append(f"limit {self.limit}")
        if self.reverse:
            words.append("reverse")
        return " ".join(words)

    def lower(self) -> operations.Operation:
        """Convert it to the client's type."""
        if self.name == "scan":
            return operations.scan(self.target, limit=self.limit, reverse=self.reverse)
        if self.name == "add":
            assert isinstance(self.target, bytes)
            assert isinstance(self.operand, int)
            return operations.add(self.target, self.operand, floor=self.floor, ceiling=self.ceiling)
        name = {"del": "delete", "min": "minimum", "max": "maximum"}.get(self.name, self.name)
        operands = () if self.operand is None else (self.operand,)
        lowered: operations.Operation = getattr(operations, name)(self.target, *operands)
        return lowered


@dataclass(frozen=True, slots=True)
class Script:
    """A transaction. If all conditions hold, `then` is executed, else `otherwise`."""

    conditions: tuple[ScriptCondition | ScriptCombined, ...]
    then: tuple[ScriptOperation, ...]
    otherwise: tuple[ScriptOperation, ...]
    allow_failures: bool = False
    """Whether an operation that cannot be performed fails alone. The text does not have it: it is an option
    of the command, and a member of the JSON.
    """

    def __str__(self) -> str:
        then, otherwise = "; ".join(map(str, self.then)), "; ".join(map(str, self.otherwise))
        if not self.conditions:
            return then
        words = "when " + " and ".join(map(str, self.conditions))
        return words + (f" then {then}" if then else "") + (f" otherwise {otherwise}" if otherwise else "")


def word(data: bytes) -> str:
    """Return a key or value as text, quoted where necessary."""
    text = escape(data)
    if text and text.isprintable() and SPECIAL.isdisjoint(text) and text not in STRUCTURE:
        return text
    return '"' + text.replace('"', '\\"') + '"'


def is_number(text: str) -> bool:
    """Return whether a reader would take it for a number."""
    return re.fullmatch(r"[-+]?[0-9.]*[0-9][0-9.]*", text) is not None


def one(key: bytes) -> KeyRange:
    """Return the range of just this key."""
    return KeyRange(key, key + b"\0")


def _operand(operand: bytes | int | None) -> str:
    return word(operand) if isinstance(operand, bytes) else str(operand)


def _range(keys: KeyRange, *, one_key: bool = False) -> str:
    if keys == EVERYTHING:
        return "everything()"
    if one_key and keys == one(keys.start):
        return word(keys.start)
    if keys == prefix(keys.start):
        return f"prefix({word(keys.start)})"
    end = "" if keys.end is None else f", {word(keys.end)}"
    return f"between({word(keys.start)}{end})"
