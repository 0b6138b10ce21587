"""The language of `wbkv txn`.

    script     = "when" condition {"and" condition} ["then" operations] ["otherwise" operations]
               | operations
    condition  = "value" "(" KEY ")" (operator | "starts_with") VALUE
               | ("number" | "version" | "mod_revision" | "create_revision") "(" KEY ")" operator NUMBER
               | "exists" "(" KEY ")"  |  "absent" "(" KEY ")"
               | "unchanged" "(" (KEY | range) ")" "since" REVISION
               | ("any" | "all") "(" condition {"," condition} ")"
    operator   = "==" | "!=" | "<" | ">" | "<=" | ">="
    operations = operation {(";" | newline) operation}
    operation  = "get" KEY | ("put" | "swap" | "append") KEY VALUE | "del" (KEY | range)
               | "add" KEY NUMBER {"floor" NUMBER | "ceiling" NUMBER}  |  ("min" | "max") KEY NUMBER
               | "scan" range {"limit" NUMBER | "reverse"}
    range      = "prefix" "(" KEY ")" | "between" "(" KEY ["," KEY] ")" | "everything" "(" ")"

Keys and values are words, or quoted strings with escapes as in `text.unescape`. Of the keywords, only `when`,
`and`, `then` and `otherwise` need quotes. `#` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from wbkv.cli.hints import did_you_mean
from wbkv.cli.script import (
    BOUNDS,
    COMBINED,
    COUNTED,
    NUMBERS,
    OPERATIONS,
    OPERATORS,
    RANGES,
    SPECIAL,
    STARTS_WITH,
    STRUCTURE,
    SUBJECTS,
    VALUED,
    Script,
    ScriptCombined,
    ScriptCondition,
    ScriptOperation,
    is_number,
    one,
)
from wbkv.cli.text import unescape
from wbkv.data import EVERYTHING, KeyRange, between, prefix
from wbkv.operations import DEPTH

NUMBER_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}")
_MARK: Final = re.compile(r"==|!=|<=|>=|[()<>;,=!\n]")
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_SHOWN: Final = 70


class ScriptError(ValueError):
    """A syntax error: the message says where and what."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        self.position = position
        line = text.count("\n", 0, position) + 1
        begin = text.rfind("\n", 0, position) + 1
        self.column = position - begin + 1
        where = f"line {line}, column {self.column}" if "\n" in text.strip() else f"column {self.column}"
        super().__init__(f"{where}: {problem}")
        start = max(begin, position - _SHOWN // 2)
        shown = text[start : start + _SHOWN].split("\n")[0]
        plain = "".join(c if c.isprintable() else " " for c in shown)
        self.pointer = f"  {plain}\n  {' ' * (position - start)}^"
        """The line of the error, with a mark below the position."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a quoted string, a mark, or the end."""

    kind: str
    text: str
    position: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        return "the end of the line" if self.text == "\n" else f"{self.text}"

    def is_word(self, *texts: str) -> bool:
        """Return whether the token is one of these words, without quotes."""
        return self.kind == "word" and self.text in texts

    def is_mark(self, *texts: str) -> bool:
        """Return whether the token is one of these marks."""
        return self.kind == "mark" and self.text in texts


def tokens(text: str) -> Iterator[Token]:
    """Split a script into tokens."""
    position = 0
    while position < len(text):
        character = text[position]
        if character == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif character != "\n" and character.isspace():
            position += 1
        elif character in "'\"":
            found = _QUOTED.match(text, position)
            if found is None:
                raise ScriptError(text, position, f"the quote {character} is never closed")
            yield Token("string", found[0], position)
            position = found.end()
        elif mark := _MARK.match(text, position):
            yield Token("mark", mark[0], position)
            position = mark.end()
        else:
            end = position
            while end < len(text) and text[end] not in SPECIAL and text[end].isprintable():
                end += 1
            if end == position:
                raise ScriptError(text, position, f"{character!r} needs quotes")
            yield Token("word", text[position:end], position)
            position = end
    yield Token("end", "", len(text))


def parse(text: str) -> Script:
    """Parse a script. Raises `ScriptError`."""
    return _Parser(text).script()


class _Parser:
    """A recursive-descent parser."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(tokens(text))
        self._index = 0

    @property
    def _next(self) -> Token:
        return self._tokens[self._index]

    def _take(self) -> Token:
        token = self._next
        self._index += token.kind != "end"
        return token

    def _error(self, token: Token, problem: str) -> ScriptError:
        return ScriptError(self._text, token.position, problem)

    def _unexpected(self, token: Token, expected: str, known: Collection[str] = ()) -> ScriptError:
        hint = did_you_mean(token.text, known) if token.kind == "word" else ""
        return self._error(token, f"expected {expected}, found {token}{hint}")

    def _skip(self, *marks: str) -> None:
        while self._next.is_mark(*marks):
            self._take()

    def _expect(self, mark: str, why: str) -> None:
        token = self._take()
        if not token.is_mark(mark):
            raise self._unexpected(token, f"{mark} {why}")

    def script(self) -> Script:
        """Parse the whole script."""
        self._skip("\n", ";")
        if not self._next.is_word("when"):
            always = self._operations("when or an operation", ("when", *OPERATIONS))
            if self._next.kind != "end":
                raise self._error(self._next, "otherwise needs when")
            return Script((), always, ())
        self._take()
        conditions = self._conditions()
        then: tuple[ScriptOperation, ...] = ()
        otherwise: tuple[ScriptOperation, ...] = ()
        if self._next.is_word("then"):
            self._take()
            then = self._operations("an operation", OPERATIONS)
        elif not self._next.is_word("otherwise") and self._next.kind != "end":
            raise self._unexpected(
                self._next, "and, then, otherwise or the end", ("and", "then", "otherwise")
            )
        if self._next.is_word("otherwise"):
            self._take()
            otherwise = self._operations("an operation", OPERATIONS)
        if self._next.kind != "end":
            raise self._unexpected(self._next, "the end")
        return Script(conditions, then, otherwise)

    def _conditions(self) -> tuple[ScriptCondition | ScriptCombined, ...]:
        found: list[ScriptCondition | ScriptCombined] = []
        while True:
            self._skip("\n")
            found.append(self._condition())
            self._skip("\n")
            if not self._next.is_word("and"):
                return tuple(found)
            self._take()

    def _condition(self, depth: int = 1) -> ScriptCondition | ScriptCombined:
        subject = self._take()
        if not subject.is_word(*SUBJECTS):
            raise self._unexpected(subject, f"a condition ({', '.join(SUBJECTS)})", SUBJECTS)
        self._expect("(", f"after {subject}")
        if subject.is_word(*COMBINED):
            return self._combined(subject, depth)
        if subject.text == "unchanged":
            keys = self._keys()
            self._expect(")", "after the keys")
            since = self._take()
            if not since.is_word("since"):
                raise self._unexpected(since, "since and a revision", ("since",))
            keys = keys if isinstance(keys, KeyRange) else one(keys)
            return ScriptCondition("unchanged", keys, None, self._number("a revision", least=0))
        key = self._bytes("a key")
        self._expect(")", "after the key")
        if subject.is_word("exists", "absent"):
            return ScriptCondition(subject.text, key)
        compared = self._take()
        if not (compared.is_mark(*OPERATORS) or (subject.is_word("value") and compared.is_word(STARTS_WITH))):
            raise self._unexpected(compared, "==, !=, <, >, <= or >=")
        if subject.is_word(*NUMBERS):
            least = NUMBERS[subject.text]
            return ScriptCondition(subject.text, key, compared.text, self._number("a number", least=least))
        operand = self._next
        if compared.is_mark("<", ">", "<=", ">=") and operand.kind == "word" and is_number(operand.text):
            raise self._error(
                operand,
                "values are compared as bytes, so 100 is below 30: compare number(...), or quote "
                f"{operand.text} if you mean bytes",
            )
        return ScriptCondition(subject.text, key, compared.text, self._bytes("a value"))

    def _combined(self, kind: Token, depth: int) -> ScriptCombined:
        if depth > DEPTH:
            raise self._error(kind, f"conditions are nested deeper than {DEPTH}: flatten them")
        found = []
        while True:
            self._skip("\n")
            found.append(self._condition(depth + 1))
            self._skip("\n")
            if not self._next.is_mark(","):
                break
            self._take()
        self._expect(")", f"or , after a condition of {kind}")
        return ScriptCombined(kind.text, tuple(found))

    def _operations(self, expected: str, known: Collection[str]) -> tuple[ScriptOperation, ...]:
        found: list[ScriptOperation] = []
        self._skip("\n", ";")
        while not (found and (self._next.kind == "end" or self._next.is_word("otherwise"))):
            found.append(self._operation(expected, known))
            if self._next.kind != "end" and not self._next.is_word("otherwise"):
                if not self._next.is_mark("\n", ";"):
                    raise self._unexpected(self._next, f"; or the end after {found[-1]}")
                self._skip("\n", ";")
        return tuple(found)

    def _operation(self, expected: str, known: Collection[str]) -> ScriptOperation:
        verb = self._take()
        name = verb.text
        if not verb.is_word(*OPERATIONS):
            raise self._unexpected(verb, f"{expected} ({', '.join(OPERATIONS)})", known)
        if name == "scan":
            return self._scan()
        if name == "del":
            return ScriptOperation(name, self._keys())
        key = self._bytes("a key")
        if name in VALUED:
            return ScriptOperation(name, key, self._bytes("a value"))
        if name == "add":
            return self._add(key)
        if name in COUNTED:
            return ScriptOperation(name, key, self._number("a number", least=-NUMBER_MAX - 1))
        return ScriptOperation(name, key)

    def _add(self, key: bytes) -> ScriptOperation:
        amount = self._number("a number", least=-NUMBER_MAX - 1)
        bounds: dict[str, int] = {}
        while self._next.is_word(*BOUNDS):
            bound = self._take()
            if bound.text in bounds:
                raise self._error(bound, f"{bound} is repeated")
            bounds[bound.text] = self._number(f"the {bound}", least=-NUMBER_MAX - 1)
        return ScriptOperation("add", key, amount, floor=bounds.get("floor"), ceiling=bounds.get("ceiling"))

    def _scan(self) -> ScriptOperation:
        first = self._next
        keys = self._keys()
        if not isinstance(keys, KeyRange):
            raise self._unexpected(first, "a range: prefix(user/), between(a, m) or everything()")
        limit, reverse = 0, False
        while self._next.is_word("limit", "reverse"):
            option = self._take()
            if option.is_word("limit") and not limit:
                limit = self._number("how many keys", least=1)
            elif option.is_word("reverse") and not reverse:
                reverse = True
            else:
                raise self._error(option, f"{option} is repeated")
        return ScriptOperation("scan", keys, limit=limit, reverse=reverse)

    def _keys(self) -> bytes | KeyRange:
        """Parse a key or a range."""
        name = self._next
        if name.kind != "word" or not self._tokens[self._index + 1].is_mark("("):
            return self._bytes("a key or a range")
        self._take()
        if name.text not in RANGES:
            raise self._unexpected(name, f"a range ({', '.join(RANGES)})", RANGES)
        self._expect("(", f"after {name}")
        keys = EVERYTHING
        if name.text == "prefix":
            keys = prefix(self._bytes("the beginning of keys"))
        elif name.text == "between":
            keys = self._between(self._next)
        self._expect(")", "after the range")
        return keys

    def _between(self, first: Token) -> KeyRange:
        start, end = self._bytes("the first key"), None
        if self._next.is_mark(","):
            self._take()
            end = self._bytes("the key behind the last")
        try:
            return between(start, end)
        except ValueError as error:
            raise self._error(first, str(error)) from None

    def _bytes(self, expected: str) -> bytes:
        token = self._take()
        if token.kind == "word" and token.text not in STRUCTURE:
            return token.text.encode()
        if token.kind != "string":
            quotes = f' (as a word of its own it needs quotes: "{token}")' if token.kind == "word" else ""
            raise self._unexpected(token, f"{expected}{quotes}")
        try:
            return unescape(token.text[1:-1])
        except ValueError as error:
            raise self._error(token, f"in {token}, {error}") from None

    def _number(self, expected: str, *, least: int) -> int:
        token = self._take()
        if token.kind != "word" or not _NUMBER.fullmatch(token.text):
            raise self._unexpected(token, expected)
        number = int(token.text)
        if not least <= number <= NUMBER_MAX:
            raise self._error(token, f"{token} must be from {least} to {NUMBER_MAX}")
        return number
