"""Keys, ranges, codecs, operations and conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import wbkv
from hypothesis import given
from hypothesis import strategies as st
from wbkv import codecs
from wbkv.codecs import Values
from wbkv.data import keys_bytes
from wbkv.operations import checked, result_of
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.machine.request import Range
from tests.unit.wbkv.model import ModelLink, ModelStore


@given(start=st.binary(max_size=4), key=st.binary(max_size=6))
def test_a_prefix_has_just_the_keys_that_begin_with_it(start: bytes, key: bytes) -> None:
    found = wbkv.prefix(start)
    assert (key in found) == key.startswith(start)
    assert (found.start, found.end) == tuple(Range.of_prefix(start))


def test_prefixes_of_the_highest_bytes() -> None:
    assert wbkv.prefix(b"\xff\xff") == wbkv.KeyRange(b"\xff\xff", None)
    assert wbkv.prefix(b"a\xff") == wbkv.KeyRange(b"a\xff", b"b")
    assert wbkv.prefix("") == wbkv.EVERYTHING
    assert wbkv.EVERYTHING.message() == kv.Range(prefix=b"")
    assert wbkv.prefix(b"\xff").message() == kv.Range(interval=kv.Interval(start=b"\xff"))


def test_ranges() -> None:
    found = wbkv.between("b", "d")
    assert [key for key in ("a", "b", "c", "d") if key in found] == ["b", "c"]
    assert b"zz" in wbkv.between("b", None)
    assert 5 not in found
    assert found == wbkv.KeyRange(b"b", b"d")
    assert hash(found) == hash(wbkv.KeyRange(b"b", b"d"))
    assert found != wbkv.prefix("b")
    assert repr(found) == "KeyRange(b'b', b'd')"
    for start, end in (("b", "b"), ("c", "b"), ("b", "")):
        with pytest.raises(ValueError, match="empty"):
            wbkv.between(start, end)


@pytest.mark.parametrize("wrong", [5, None, 1.5, ["a"], wbkv.EVERYTHING])
def test_keys_that_are_none(wrong: Any) -> None:
    for make in (wbkv.get, wbkv.exists, wbkv.version, wbkv.add):
        with pytest.raises(TypeError, match="a key must be str or bytes"):
            make(wrong)


def test_keys() -> None:
    class Name(str):
        __slots__ = ()

    for key in ("é", "é".encode(), Name("é"), bytearray("é".encode()), memoryview("é".encode())):
        assert wbkv.get(key).key == "é".encode()  # type: ignore[arg-type]  # more than it says
    with pytest.raises(ValueError, match="surrogates"):
        wbkv.get("\ud800")


# Codecs


@pytest.mark.parametrize(
    ("codec", "value", "raw"),
    [
        (codecs.BYTES, b"\0\xff", b"\0\xff"), (codecs.TEXT, "é", "é".encode()),
        (codecs.INTEGER, -12, b"-12"), (codecs.INTEGER, -(2**63), b"%d" % -(2**63)),
        (codecs.JSON, {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
    ],
)  # fmt: skip
def test_codecs(codec: codecs.Codec[Any], value: Any, raw: bytes) -> None:
    assert codec.encode(value) == raw
    assert codec.decode(raw) == value


@pytest.mark.parametrize(
    ("codec", "value", "error"),
    [
        (codecs.BYTES, "text", TypeError), (codecs.BYTES, 5, TypeError), (codecs.BYTES, None, TypeError),
        (codecs.TEXT, b"x", TypeError), (codecs.TEXT, "\ud800", ValueError),
        (codecs.INTEGER, "5", TypeError), (codecs.INTEGER, 1.0, TypeError),
        (codecs.JSON, {1, 2}, TypeError), (codecs.JSON, float("nan"), ValueError),
        (codecs.JSON, "\ud800", ValueError),
    ],
)  # fmt: skip
def test_values_that_a_codec_cannot_write(
    link: ModelLink, client: wbkv.Client[bytes], codec: codecs.Codec[Any], value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="the value of b'key'"):
        client.using(codec).put("key", value)
    assert not link.asked


@pytest.mark.parametrize(
    ("codec", "raw"),
    [(codecs.TEXT, b"\xff"), (codecs.INTEGER, b"x"), (codecs.JSON, b"{"), (codecs.JSON, b"\xff")],
)
def test_bytes_that_a_codec_cannot_read(
    link: ModelLink, client: wbkv.Client[bytes], codec: codecs.Codec[Any], raw: bytes
) -> None:
    link.store.put(b"key", raw)
    with pytest.raises(ValueError, match="the value of b'key'"):
        client.using(codec).get("key")


def test_a_codec_that_makes_no_bytes(client: wbkv.Client[bytes]) -> None:
    class Wrong:
        def encode(self, value: str, /) -> bytes:
            return value  # type: ignore[return-value]  # that is the test

        def decode(self, raw: bytes, /) -> str:
            return ""

    with pytest.raises(TypeError, match="encoded the value of b'key' as str, not bytes"):
        client.using(Wrong()).put("key", "x")


# Operations and conditions


def filled(operation: wbkv.Operation) -> kv.Operation:
    message = kv.Operation()
    operation.fill(message, Values(codecs.TEXT))
    return message


def test_operations() -> None:
    keys = kv.Range(interval=kv.Interval(start=b"a", end=b"b"))
    assert filled(wbkv.get("a")) == kv.Operation(get=kv.Get(key=b"a"))
    assert filled(wbkv.put("a", "é")) == kv.Operation(put=kv.Put(key=b"a", value="é".encode()))
    assert filled(wbkv.append("a", "x")) == kv.Operation(append=kv.Append(key=b"a", value=b"x"))
    assert filled(wbkv.delete("a")) == kv.Operation(delete=kv.Delete(key=b"a"))
    assert filled(wbkv.delete(wbkv.prefix("a"))) == kv.Operation(delete_range=kv.DeleteRange(range=keys))
    assert filled(wbkv.add("a", -3)) == kv.Operation(add=kv.Calculate(key=b"a", operand=-3))
    assert filled(wbkv.minimum("a", 1)) == kv.Operation(min=kv.Calculate(key=b"a", operand=1))
    assert filled(wbkv.maximum("a", 1)) == kv.Operation(max=kv.Calculate(key=b"a", operand=1))
    scan = kv.Scan(range=keys, limit=3, reverse=True)
    assert filled(wbkv.scan("a", limit=3, reverse=True)) == kv.Operation(scan=scan)
    assert [op.writes for op in (wbkv.get("a"), wbkv.scan("a"), wbkv.put("a", ""))] == [False, False, True]


@pytest.mark.parametrize("wrong", [2**63, -(2**63) - 1, 1.5, "1", None])
def test_numbers_that_do_not_fit(wrong: Any) -> None:
    for make in (wbkv.add, wbkv.minimum, wbkv.maximum):
        with pytest.raises(ValueError, match="64-bit"):
            make("a", wrong)


def compare(
    condition: wbkv.Condition, codec: codecs.Codec[Any] = codecs.INTEGER
) -> tuple[bytes, int, str | None, Any]:
    message = kv.Condition()
    condition.fill(message, Values(codec))
    kind = message.compare.WhichOneof("operand")
    return message.compare.key, message.compare.operator, kind, getattr(message.compare, kind or "")


def test_conditions() -> None:
    assert compare(wbkv.value("a") == 5) == (b"a", kv.EQUAL, "value", b"5")
    assert compare(wbkv.value("a") != 5) == (b"a", kv.NOT_EQUAL, "value", b"5")
    for codec, operand in ((codecs.BYTES, b"5"), (codecs.TEXT, "5")):
        assert compare(wbkv.value("a") < operand, codec) == (b"a", kv.LESS, "value", b"5")
        assert compare(wbkv.value("a") > operand, codec) == (b"a", kv.GREATER, "value", b"5")
    assert compare(wbkv.version("a") == 0) == (b"a", kv.EQUAL, "version", 0)
    assert compare(wbkv.mod_revision("a") > 7) == (b"a", kv.GREATER, "mod_revision", 7)
    assert compare(wbkv.create_revision("a") < 7) == (b"a", kv.LESS, "create_revision", 7)
    assert compare(wbkv.exists("a")) == (b"a", kv.EQUAL, "exists", True)
    assert compare(wbkv.absent("a")) == (b"a", kv.EQUAL, "exists", False)
    message = kv.Condition()
    wbkv.unchanged("a", since=9).fill(message, Values(codecs.BYTES))
    assert message.unchanged == kv.Unchanged(range=wbkv.prefix("a").message(), since=9)
    assert repr(wbkv.version("a") == 3) == "version(b'a') == 3"


@pytest.mark.parametrize("codec", [codecs.INTEGER, codecs.JSON])
def test_values_whose_bytes_have_another_order_are_not_put_in_it(codec: codecs.Codec[Any]) -> None:
    for condition in (wbkv.value("a") < 30, wbkv.value("a") > 30):
        with pytest.raises(TypeError, match="compared as bytes"):
            condition.fill(kv.Condition(), Values(codec))


def test_what_belongs_elsewhere_in_a_transaction_is_refused() -> None:
    for misplaced, wanted in (
        (wbkv.exists("a"), wbkv.Operation),
        (wbkv.get("a"), wbkv.Condition),
        ("put", wbkv.Operation),
    ):
        with pytest.raises(TypeError, match=f"is not a wbkv {wanted.__name__.lower()}"):
            checked((misplaced,), wanted)  # type: ignore[type-var]  # that is the point
    with pytest.raises(TypeError, match="the one key 'abc'"):
        keys_bytes("abc")
    with pytest.raises(ValueError, match="64-bit numbers"):
        codecs.INTEGER.encode(2**63)


def test_conditions_that_are_none() -> None:
    with pytest.raises(TypeError, match="not a truth value"):
        assert wbkv.version("a") == 3
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match="version"):
            wbkv.version("a") == wrong  # noqa: B015 - it raises
        with pytest.raises(ValueError, match="since"):
            wbkv.unchanged("a", since=wrong)
    with pytest.raises(TypeError, match="is an int, not comparable"):
        wbkv.version("a") == "3"  # noqa: B015 - it raises


def test_results() -> None:
    entry = kv.Entry(key=b"a", value=b"5", create_revision=1, mod_revision=2, version=3)
    plain = wbkv.Entry(b"a", 5, 1, 2, 3)
    values = Values(codecs.INTEGER)
    for message, expected in (
        (kv.OperationResult(got=kv.Got(entry=entry)), plain),
        (kv.OperationResult(got=kv.Got()), None),
        (kv.OperationResult(written=kv.Written()), None),
        (kv.OperationResult(deleted=kv.Deleted(count=4)), 4),
        (kv.OperationResult(number=kv.Number(value=-4)), -4),
        (
            kv.OperationResult(scanned=kv.Scanned(entries=[entry], count=9, more=True)),
            wbkv.Scanned((plain,), 9, more=True),
        ),
        (kv.OperationResult(failed=kv.Failed(fault=kv.OVERFLOW)), wbkv.Failed("overflow")),
        (kv.OperationResult(), wbkv.Failed("unknown fault")),
    ):
        assert result_of(message, values) == expected
    assert plain.name == "a"


def test_a_single_operation_that_fails_is_raised(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    link.store.put(b"n", b"x")
    with pytest.raises(wbkv.OperationFailed) as found:
        client.add("n")
    assert found.value.fault == "not a number"


def test_a_transaction_with_an_operation_that_fails_writes_nothing(
    link: ModelLink, client: wbkv.Client[bytes]
) -> None:
    link.store.put(b"n", b"x")
    operations = (wbkv.put("m", b""), wbkv.add("n", 1), wbkv.add("low", -1, floor=0))
    with pytest.raises(wbkv.OperationFailed) as found:
        client.txn().then(*operations).commit()
    assert found.value.failures == (
        wbkv.Failure(1, b"n", "not a number", otherwise=False),
        wbkv.Failure(2, b"low", "below floor", otherwise=False),
    )
    assert str(found.value) == (
        "operation 1 of then, add(b'n', 1): not a number; operation 2 of then, "
        "add(b'low', -1, floor=0): below floor. Nothing was written"
    )
    assert client.get("m") is None
    with pytest.raises(wbkv.OperationFailed) as of_otherwise:
        client.txn().when(wbkv.exists("m")).otherwise(*operations).commit()
    assert of_otherwise.value.failures[0] == wbkv.Failure(1, b"n", "not a number", otherwise=True)
    alone = client.txn(allow_failures=True).then(*operations).commit()
    assert alone.results == (None, wbkv.Failed("not a number"), wbkv.Failed("below floor"))
    assert client.get("m") == b""


def test_calls_that_depend_on_what_is_there(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    assert client.swap("a", b"1") is None
    assert client.swap("a", b"2") == b"1"
    assert client.put_if_absent("a", b"3") is False
    assert client.put_if_absent("b", b"3") is True
    assert client.compare_and_set("a", b"1", b"4") is False
    assert client.compare_and_set("a", b"2", b"4") is True
    assert client.get_many(["a", "b"]) == [b"4", b"3"]
    assert client.add("n", 5, ceiling=5) == 5
    for bounds, reason in (({"ceiling": 5}, "above ceiling"), ({"floor": 7}, "below floor")):
        with pytest.raises(wbkv.OperationFailed, match=reason):
            client.counter("n").add(1, **bounds)
        with pytest.raises(wbkv.OperationFailed, match=reason), client.transaction() as tx:
            tx.add("n", 1, **bounds)
    assert client.get("n") == b"5"


@pytest.mark.parametrize(
    ("holds", "condition"),
    [
        (True, wbkv.number("n") >= 7), (True, wbkv.number("n") <= 7), (False, wbkv.number("n") < 7),
        (True, wbkv.number("n") != 8), (False, wbkv.number("n") == 8), (True, wbkv.number("n") > -1),
        (False, wbkv.number("none") != 8), (False, wbkv.number("w") != 8), (True, wbkv.version("n") <= 1),
        (True, wbkv.value("w").starts_with(b"wo")), (False, wbkv.value("none").starts_with(b"")),
        (True, wbkv.value("w") >= b"word"), (False, wbkv.value("w") <= b"wor"),
        (True, wbkv.any_of(wbkv.exists("none"), wbkv.exists("n"))),
        (False, wbkv.any_of(wbkv.exists("none"), wbkv.all_of(wbkv.exists("n"), wbkv.absent("w")))),
    ],
    ids=repr,
)  # fmt: skip
def test_conditions_on_values(
    link: ModelLink,
    client: wbkv.Client[bytes],
    holds: bool,  # noqa: FBT001 - a case
    condition: wbkv.Condition,
) -> None:
    link.store.put(b"n", b"7")
    link.store.put(b"w", b"word")
    assert client.txn().when(condition).then(wbkv.get("n")).commit().succeeded is holds


ANY: Any = wbkv
"""What callers without types may pass."""


def nested(depth: int) -> wbkv.Condition:
    condition = wbkv.exists("a")
    for _ in range(depth):
        condition = wbkv.all_of(condition)
    return condition


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: ANY.number("n") >= "5", TypeError, "the number of b'n' is an int, not comparable with '5'"),
        (lambda: ANY.number("n") >= None, TypeError, "not comparable with None"),
        (lambda: wbkv.number("n") >= 1 << 63, ValueError, "must be a number from -2^63 to 2^63 - 1, not 9"),
        (lambda: wbkv.version("n") <= -1, ValueError, "must be a number from 0 to 2^63 - 1, not -1"),
        (lambda: ANY.add("n", None), ValueError, "must be a signed 64-bit number, not None"),
        (lambda: ANY.add("n", 1, floor="0"), ValueError, "floor for b'n' must be a signed 64-bit number"),
        (lambda: wbkv.add("n", 1, floor=3, ceiling=2), ValueError, "floor 3 for b'n' is above the ceiling 2"),
        (lambda: nested(9), ValueError, "nested 9 deep, and at most 8: flatten them"),
        (wbkv.any_of, ValueError, "any_of needs at least one condition; leave it out"),
        (wbkv.all_of, ValueError, "all_of needs at least one condition"),
        (lambda: ANY.any_of(wbkv.get("a")), TypeError, "is not a wbkv condition"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_it_is_sent(
    make: Callable[[], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        make()
    assert said in str(caught.value)


def test_a_comparison_with_none_is_refused(client: wbkv.Client[bytes]) -> None:
    with pytest.raises(ValueError, match="use put_if_absent"):
        client.compare_and_set("a", None, b"")  # type: ignore[arg-type]  # as untyped callers may


def test_conditions_and_operations_show_what_they_are() -> None:
    either = wbkv.any_of(wbkv.number("n") >= 1, wbkv.all_of(wbkv.value("v").starts_with(b"x"), nested(1)))
    assert repr(either) == (
        "any_of(number(b'n') >= 1, all_of(value(b'v').starts_with(b'x'), all_of(exists(b'a') == True)))"
    )
    assert repr(nested(8)).count("all_of") == 8


def test_one_transaction(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    store: ModelStore = link.store
    store.put(b"a", b"1")
    txn = client.txn().when(wbkv.exists("a"), wbkv.absent("b")).then(wbkv.get("a"), wbkv.put("b", b"2"))
    result = txn.otherwise(wbkv.get("b")).commit()
    assert (result.succeeded, result.unmet) == (True, ())
    assert result.results == (wbkv.Entry(b"a", b"1", 110, 110, 1), None)
    assert result.revision == store.revision
    again = txn.commit()
    assert (again.succeeded, again.unmet) == (False, (1,))
    assert again.results == (wbkv.Entry(b"b", b"2", 120, 120, 1),)
