"""The language of `wbkv txn`: what is written can be read, and what cannot be read is pointed at."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wbkv import operations
from wbkv.cli import scriptjson
from wbkv.cli.language import NUMBER_MAX, ScriptError, parse
from wbkv.cli.script import (
    COUNTED,
    NUMBERS,
    OPERATORS,
    VALUED,
    Script,
    ScriptCombined,
    ScriptCondition,
    ScriptOperation,
    one,
    word,
)
from wbkv.data import EVERYTHING, KeyRange, between, prefix

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=300)

LONG = """
# Pay, if both have an account.
when exists(alice)
 and version(bob) > 0   # and bob too
then
  add alice -30
  add bob 30; get alice

otherwise
  get alice
"""


def test_conditions_then_and_otherwise() -> None:
    conditions = "when exists(alice) and version(bob) > 0"
    script = parse(f"{conditions} then add alice -30; add bob 30; get alice otherwise get alice")
    assert script == Script(
        (ScriptCondition("exists", b"alice"), ScriptCondition("version", b"bob", ">", 0)),
        (
            ScriptOperation("add", b"alice", -30),
            ScriptOperation("add", b"bob", 30),
            ScriptOperation("get", b"alice"),
        ),
        (ScriptOperation("get", b"alice"),),
    )
    assert parse(LONG) == script


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("absent(k)", ScriptCondition("absent", b"k")),
        ("value(k) == v", ScriptCondition("value", b"k", "==", b"v")),
        ('value("a b") != "x;\\x00"', ScriptCondition("value", b"a b", "!=", b"x;\0")),
        ('value(k) < "30"', ScriptCondition("value", b"k", "<", b"30")),
        ("value(k) < m", ScriptCondition("value", b"k", "<", b"m")),
        ("mod_revision(k)==17", ScriptCondition("mod_revision", b"k", "==", 17)),
        ("create_revision( k ) > 3", ScriptCondition("create_revision", b"k", ">", 3)),
        ("unchanged(prefix(user/)) since 9", ScriptCondition("unchanged", prefix("user/"), None, 9)),
        ("unchanged(k) since 9", ScriptCondition("unchanged", one(b"k"), None, 9)),
        ("exists(prefix)", ScriptCondition("exists", b"prefix")),
        ("exists('then')", ScriptCondition("exists", b"then")),
        ("number(k) >= -7", ScriptCondition("number", b"k", ">=", -7)),
        ('value(k) <= "30"', ScriptCondition("value", b"k", "<=", b"30")),
        ("value(k) starts_with 30", ScriptCondition("value", b"k", "starts_with", b"30")),
        (
            "any(exists(a), all(absent(b),\n version(a) <= 3))",
            ScriptCombined(
                "any",
                (
                    ScriptCondition("exists", b"a"),
                    ScriptCombined(
                        "all", (ScriptCondition("absent", b"b"), ScriptCondition("version", b"a", "<=", 3))
                    ),
                ),
            ),
        ),
    ],
)
def test_every_condition(text: str, condition: ScriptCondition | ScriptCombined) -> None:
    assert parse(f"when {text}") == Script((condition,), (), ())
    assert parse(f"when {text} otherwise get k").otherwise == (ScriptOperation("get", b"k"),)


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("get user/1", ScriptOperation("get", b"user/1")),
        ("put k v", ScriptOperation("put", b"k", b"v")),
        ("put k ''", ScriptOperation("put", b"k", b"")),
        ("put put get", ScriptOperation("put", b"put", b"get")),
        ("put grüße 'schöne \"Grüße\"'", ScriptOperation("put", "grüße".encode(), 'schöne "Grüße"'.encode())),
        ("del k", ScriptOperation("del", b"k")),
        ("del everything", ScriptOperation("del", b"everything")),
        ("del everything()", ScriptOperation("del", EVERYTHING)),
        ("swap k v", ScriptOperation("swap", b"k", b"v")),
        ("add k -3 floor 0", ScriptOperation("add", b"k", -3, floor=0)),
        ("add k 3 ceiling 9 floor -9", ScriptOperation("add", b"k", 3, floor=-9, ceiling=9)),
        ("append log line", ScriptOperation("append", b"log", b"line")),
        ("min k -9223372036854775808", ScriptOperation("min", b"k", -NUMBER_MAX - 1)),
        ("max k 9223372036854775807", ScriptOperation("max", b"k", NUMBER_MAX)),
        ("scan prefix(u) limit 3 reverse", ScriptOperation("scan", prefix("u"), limit=3, reverse=True)),
        ("scan between(a, m) reverse", ScriptOperation("scan", between("a", "m"), reverse=True)),
        ("scan between(a)", ScriptOperation("scan", between("a", None))),
    ],
)
def test_every_operation(text: str, operation: ScriptOperation) -> None:
    assert parse(text) == Script((), (operation,), ())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "column 1: expected when or an operation (get, put, .*, scan), found the end"),
        ("when value(a) > 30 then get a", "column 17: values are compared as bytes"),
        ("gte alice", "column 1: expected when or an operation .*, found gte: did you mean get?"),
        ("get a; delete b", "column 8: expected .*, found delete: did you mean del?"),
        ("if exists(a)", "column 1: .*found if: did you mean when?"),
        ("set a b", "column 1: .*found set: did you mean put?"),
        ("when exist(a)", "column 6: expected a condition .*, found exist: did you mean exists?"),
        ("when exists a", "column 13: expected ( after exists, found a"),
        ("when exists(a then get a", "column 15: expected ) after the key, found then"),
        ("when value(alice) >= 30 then get a", "column 22: values are compared as bytes, .* number(...)"),
        ("when version(a) = 1", "column 17: expected ==, !=, <, >, <= or >=, found ="),
        ("when number(a) starts_with 1", "column 16: expected ==, !=, <, >, <= or >=, found starts_with"),
        ("when number(a) > x", "column 18: expected a number, found x"),
        ("when any() then get a", "column 10: expected a condition .*, found )"),
        ("when any(exists(a)", "column 19: expected ) or , after a condition of any, found the end"),
        ("add a 1 floor 0 floor 1", "column 17: floor is repeated"),
        ("add a 1 floor", "column 14: expected the floor, found the end"),
        ("min a 1 floor 0", "column 9: expected ; or the end after min a 1, found floor"),
        ("when version(a) == one", "column 20: expected a number, found one"),
        ("when version(a) == -1", "column 20: -1 must be from 0 to 9223372036854775807"),
        ("when exists(a) exists(b)", "column 16: expected and, then, otherwise or the end, found exists"),
        ("when exists(a) than get a", "column 16: .*found than: did you mean then?"),
        ("when exists(a) then", "column 20: expected an operation .*, found the end"),
        ("when exists(a) then get a otherwise", "column 36: expected an operation .*, found the end"),
        ("when exists(a) then get a else get b", "column 27: expected ; or the end after get a, found else"),
        ("when unchanged(a) 9", "column 19: expected since and a revision, found 9"),
        ("get a otherwise get b", "column 7: otherwise needs when"),
        ("get", "column 4: expected a key, found the end"),
        ("get then", 'column 5: expected a key (as a word of its own it needs quotes: "then"), found then'),
        ("put a", "column 6: expected a value, found the end"),
        ("put a b c", "column 9: expected ; or the end after put a b, found c"),
        ("add a 99999999999999999999", "column 7: 99999999999999999999 must be from -9223372036854775808"),
        ("add a 1.5", "column 7: expected a number, found 1.5"),
        (
            "scan user/",
            "column 6: expected a range: prefix(user/), between(a, m) or everything(), found user/",
        ),
        (
            "scan prefx(user/)",
            "column 6: expected a range (prefix, between, everything), found prefx: did you",
        ),
        ("scan between(m, a)", "column 14: the range from b'm' to b'a' is empty"),
        ("scan prefix(a) limit 0", "column 22: 0 must be from 1"),
        ("scan prefix(a) reverse reverse", "column 24: reverse is repeated"),
        ("put a 'b", "column 7: the quote ' is never closed"),
        ("put a 'b\\q'", "column 7: in 'b\\q', column 2: \\q is not an escape"),
        ("put a \x07", r"column 7: '\\x07' needs quotes"),
        ("get a\nget b\nput c", "line 3, column 6: expected a value, found the end"),
        ("put a\nb", "line 1, column 6: expected a value, found the end of the line"),
    ],
)
def test_what_is_wrong_is_pointed_at(text: str, complaint: str) -> None:
    pattern = ".*".join(map(re.escape, complaint.replace(r"\\x", r"\x").split(".*")))
    with pytest.raises(ScriptError, match=f"^{pattern}") as caught:
        parse(text)
    line, mark = caught.value.pointer.split("\n")
    assert mark.index("^") == 1 + caught.value.column
    assert len(line) <= 72


def test_conditions_may_be_nested_to_a_depth() -> None:
    assert parse("when " + "all(" * 8 + "exists(a)" + ")" * 8).conditions
    with pytest.raises(ScriptError, match="column 38: conditions are nested deeper than 8: flatten them"):
        parse("when " + "all(" * 9 + "exists(a)" + ")" * 9)


def test_the_pointer_shows_the_place_in_a_long_line() -> None:
    with pytest.raises(ScriptError) as caught:
        parse("; ".join(["get a"] * 100) + "; gat a; " + "; ".join(["get a"] * 100))
    line, mark = caught.value.pointer.split("\n")
    assert line[mark.index("^") :].startswith("gat a")


KEYS = st.one_of(
    st.binary(min_size=1, max_size=5),
    st.text(min_size=1, max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [b"when", b"then", b"and", b"otherwise", b"prefix", b"limit", b"#", b"a b", b"\\", b"'\""]
    ),
)


@st.composite
def intervals(draw: st.DrawFn) -> KeyRange:
    first, second = sorted((draw(KEYS), draw(KEYS)))
    return between(first, second if second > first else None)


RANGES = st.one_of(st.just(EVERYTHING), KEYS.map(prefix), KEYS.map(one), intervals())
SIGNED = st.integers(-NUMBER_MAX - 1, NUMBER_MAX)
UNSIGNED = st.integers(0, NUMBER_MAX)
SIGNS = st.sampled_from(sorted(OPERATORS))
VALUES = st.one_of(KEYS, st.just(b""))
CONDITIONS = st.one_of(
    st.builds(ScriptCondition, st.sampled_from(["exists", "absent"]), KEYS),
    st.builds(ScriptCondition, st.just("value"), KEYS, st.one_of(SIGNS, st.just("starts_with")), VALUES),
    st.builds(ScriptCondition, st.sampled_from(sorted(NUMBERS)), KEYS, SIGNS, UNSIGNED),
    st.builds(ScriptCondition, st.just("number"), KEYS, SIGNS, SIGNED),
    st.builds(ScriptCondition, st.just("unchanged"), RANGES, st.none(), UNSIGNED),
)
FORMULAS: st.SearchStrategy[ScriptCondition | ScriptCombined] = st.recursive(
    CONDITIONS,
    lambda inner: st.builds(
        ScriptCombined, st.sampled_from(["any", "all"]), st.lists(inner, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=6,
)
OPERATIONS = st.one_of(
    st.builds(ScriptOperation, st.just("get"), KEYS),
    st.builds(ScriptOperation, st.sampled_from(VALUED), KEYS, VALUES),
    st.builds(ScriptOperation, st.sampled_from(COUNTED), KEYS, SIGNED),
    st.builds(
        ScriptOperation,
        st.just("add"),
        KEYS,
        SIGNED,
        floor=st.none() | st.integers(-9, 0),
        ceiling=st.none() | st.integers(0, 9),
    ),
    st.builds(ScriptOperation, st.just("del"), st.one_of(KEYS, RANGES)),
    st.builds(ScriptOperation, st.just("scan"), RANGES, limit=st.integers(0, 9), reverse=st.booleans()),
)
SOME = st.lists(OPERATIONS, max_size=3).map(tuple)
SCRIPTS = st.one_of(
    st.builds(Script, st.lists(FORMULAS, min_size=1, max_size=3).map(tuple), SOME, SOME),
    st.builds(Script, st.just(()), st.lists(OPERATIONS, min_size=1, max_size=3).map(tuple), st.just(())),
)


@EXAMPLES
@given(SCRIPTS)
def test_what_is_written_can_be_read(script: Script) -> None:
    assert parse(str(script)) == script


@EXAMPLES
@given(SCRIPTS)
def test_every_script_is_one_for_the_client(script: Script) -> None:
    for condition in script.conditions:
        assert isinstance(condition.lower(), operations.Condition)
    for operation in script.then + script.otherwise:
        assert isinstance(operation.lower(), operations.Operation)


@EXAMPLES
@given(SCRIPTS, st.data())
def test_a_damaged_script_is_read_or_pointed_at(script: Script, data: st.DataObject) -> None:
    text = str(script)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    damaged = text[:start] + data.draw(st.text(max_size=3)) + text[end:]
    read_or_pointed_at(damaged)


FRAGMENTS = [
    "when ", "any(", "exists(a)", "then ", "get ", "put ", "a ",
    "(", ")", ",", ";", "==", ">=", "'", '"', "\\", "#", "\n", "9 ",
]  # fmt: skip


@EXAMPLES
@given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)))
def test_garbage_is_read_or_pointed_at(text: str) -> None:
    read_or_pointed_at(text)


def read_or_pointed_at(text: str) -> None:
    try:
        script = parse(text)
    except ScriptError as error:
        where, said = error.position, str(error)
    else:
        assert parse(str(script)) == script
        return
    assert 0 <= where <= len(text)
    assert re.match(r"(line \d+, )?column \d+: ", said)


def test_words_are_quoted_only_where_they_must_be() -> None:
    assert [word(data) for data in (b"user/1", b"a b", b"then", b"", b"\xff", b'"', b"30")] == [
        "user/1", '"a b"', '"then"', '""', '"\\xff"', '"\\""', "30",
    ]  # fmt: skip


# JSON


def test_json_says_the_same() -> None:
    assert scriptjson.parse(
        """{"when": [["exists", "alice"], ["version", "bob", ">", 0], ["number", "n", ">=", -1],
                     ["any", ["absent", "a"], ["all", ["value", "v", "starts_with", "x"]]],
                     ["value", "k", "==", {"base64": "/w=="}],
                     ["unchanged", {"prefix": "user/"}, 17], ["unchanged", "k", 17]],
            "then": [["add", "alice", -30], ["put", "k", ""], ["del", {"between": ["a", "m"]}],
                     ["scan", {"everything": true}, {"limit": 3, "reverse": true}],
                     ["scan", {"between": ["a"]}], ["add", "n", 1, {"floor": 0, "ceiling": 9}],
                     ["swap", "k", "v"]],
            "otherwise": [["get", {"base64": "AA=="}], ["append", "log", "x"], ["del", "k"]]}"""
    ) == parse(
        """when exists(alice) and version(bob) > 0 and number(n) >= -1
            and any(absent(a), all(value(v) starts_with x)) and value(k) == "\\xff"
            and unchanged(prefix(user/)) since 17 and unchanged(k) since 17
           then add alice -30; put k ''; del between(a, m); scan everything() limit 3 reverse; scan between(a)
            add n 1 floor 0 ceiling 9; swap k v
           otherwise get "\\x00"; append log x; del k"""
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected an object"),
        ("{}", "the transaction does nothing"),
        ('{"otherwise": [["get", "a"]]}', '"otherwise" needs "when"'),
        ('{"than": []}', 'there is no "than" in a transaction: did you mean then?'),
        ('{"then": 3}', "then: expected a list, found 3"),
        ('{"then": [["get", "a"], "get b"]}', "then[1]: expected a list of a name and a key, found 'get b'"),
        ('{"then": [["gte", "a"]]}', 'then[0]: "gte" is not an operation: did you mean get?'),
        ('{"then": [["get", 3]]}', 'then[0]: expected a string or {"base64": "..."}, found 3'),
        ('{"then": [["get", {"base64": "?"}]]}', "then[0]: '?' is not base64"),
        ('{"then": [["get", "\\ud800"]]}', "then[0]: '\\ud800' contains a lone surrogate"),
        ('{"then": [["get", "a", "b"]]}', 'then[0]: expected a key, found ["a", "b"]'),
        ('{"then": [["put", "a"]]}', "then[0]: expected a key and a value"),
        ('{"then": [["add", "a", true]]}', "then[0]: expected a number from -9223372036854775808 "),
        ('{"then": [["add", "a", 9223372036854775808]]}', "then[0]: expected a number from"),
        ('{"then": [["scan", "a"]]}', 'then[0]: expected a range like {"prefix": "user/"}, found \'a\''),
        ('{"then": [["scan", {"prefix": "a"}, {"limt": 3}]]}', 'then[0]: expected {"limit": NUMBER'),
        ('{"then": [["scan", {"prefix": "a"}, {}, 3]]}', "then[0]: expected a range and options"),
        ('{"then": [["scan", {"prefix": "a"}, {"reverse": 1}]]}', "then[0]: reverse must be true or false"),
        ('{"then": [["scan", {"suffix": "a"}]]}', 'then[0]: expected {"prefix": KEY}, '),
        ('{"then": [["scan", {"between": ["m", "a"]}]]}', "then[0]: the range from b'm' to b'a' is empty"),
        ('{"when": [["exist", "a"]]}', 'when[0]: "exist" is not a condition: did you mean exists?'),
        ('{"when": [["exists", "a", 1]]}', "when[0]: expected a key"),
        ('{"when": [["version", "a", "=", 1]]}', "when[0]: '=' is not one of ==, !=, <, >, <=, >="),
        ('{"when": [["version", "a", [], 1]]}', "when[0]: [] is not one of ==, !=, <, >"),
        ('{"when": [["any", "exists"]]}', "when[0]: any: expected a condition, found 'exists'"),
        (
            '{"when": [' + '["all", ' * 9 + '["exists", "a"]' + "]" * 9 + "]}",
            "when[0]: conditions are nested",
        ),
        ('{"then": [["add", "a", 1, {"flor": 1}]]}', 'then[0]: expected {"floor": NUMBER'),
        ('{"then": [["add", "a", 1, {}, 1]]}', "then[0]: expected a key, a number and bounds"),
        ('{"then": [["get", "a"]], "allow_failures": 1}', "allow_failures must be true or false, not 1"),
        ('{"when": [["version", "a", "==", "1"]]}', "when[0]: expected a number from 0 to"),
        ('{"when": [["unchanged", "a"]]}', "when[0]: expected keys and a revision"),
    ],
)
def test_bad_json_is_named(text: str, complaint: str) -> None:
    with pytest.raises(scriptjson.ScriptJsonError, match=f"^{re.escape(complaint)}"):
        scriptjson.parse(text)


def test_the_json_may_allow_failures() -> None:
    assert scriptjson.parse('{"then": [["get", "a"]], "allow_failures": true}').allow_failures
    assert not scriptjson.parse('{"then": [["get", "a"]]}').allow_failures
