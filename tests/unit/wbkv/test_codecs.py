"""Values of several types: codecs of classes, codecs by prefixes of keys, and JSON's null."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import wbkv
from wbkv import aio, codecs
from wbkv.codecs import Values

from tests.unit.wbkv.cli.client_only import HIDE
from tests.unit.wbkv.model import ModelLink


@dataclasses.dataclass
class Address:
    city: str


@dataclasses.dataclass
class User:
    name: str
    born: datetime.date
    addresses: list[Address] = dataclasses.field(default_factory=list)


class Point(msgspec.Struct):
    x: int
    y: int = 0


ADA = User("Ada", datetime.date(1815, 12, 10), [Address("London")])
ADA_JSON = b'{"name":"Ada","born":"1815-12-10","addresses":[{"city":"London"}]}'


@pytest.mark.parametrize(
    ("kind", "value", "raw"),
    [
        (User, ADA, ADA_JSON), (Point, Point(1), b'{"x":1,"y":0}'),
        (list[Point], [Point(1, 2)], b'[{"x":1,"y":2}]'),
        (dict[str, int], {"a": 1}, b'{"a":1}'), (datetime.date, ADA.born, b'"1815-12-10"'),
    ],
)  # fmt: skip
def test_codecs_of_classes(kind: Any, value: Any, raw: bytes) -> None:
    codec = codecs.json_of(kind)
    assert codec.encode(value) == raw
    assert codec.decode(raw) == value


@pytest.mark.parametrize("raw", [b"{", b'{"name":"Ada"}', b'{"name":1,"born":"1815-12-10"}', b"null"])
def test_what_is_stored_is_checked(link: ModelLink, client: wbkv.Client[bytes], raw: bytes) -> None:
    link.store.put(b"key", raw)
    with pytest.raises(ValueError, match="the codec cannot decode the value of b'key'"):
        client.using(codecs.json_of(User)).get("key")


def test_what_is_written_has_the_type(client: wbkv.Client[bytes]) -> None:
    for wrong in (Point(1), "Ada", None):
        with pytest.raises(TypeError, match="the value of b'key': a value must be User, not "):
            client.using(codecs.json_of(User)).put("key", wrong)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(TypeError, match="a value must be list, not Point"):
        client.using(codecs.json_of(list[Point])).put("key", Point(1))  # type: ignore[arg-type]  # likewise
    assert repr(codecs.json_of(User)) == "codecs.json_of(User)"


def test_pydantic_models() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Item", name=(str, ...), price=(int, 0))
    codec = codecs.json_of(model)
    assert codec.encode(model(name="tea")) == b'{"name":"tea","price":0}'
    assert codec.decode(b'{"name":"tea","price":3}') == model(name="tea", price=3)
    with pytest.raises(ValueError, match="price"):
        codec.decode(b'{"name":"tea","price":"dear"}')
    with pytest.raises(TypeError, match="a value must be Item, not dict"):
        codec.encode({"name": "tea"})


def test_a_package_that_is_missing_is_named() -> None:
    """Codecs of the client alone work without it; pydantic models need no msgspec."""
    code = HIDE.format(["msgspec"]) + (
        "from wbkv import codecs\n"
        "class Model:\n"
        "    def model_dump_json(self): return '{}'\n"
        "    @classmethod\n"
        "    def model_validate_json(cls, raw): return cls()\n"
        "assert codecs.json_of(Model).encode(Model()) == b'{}'\n"
        "assert isinstance(codecs.json_of(Model).decode(b'{}'), Model)\n"
        "assert codecs.JSON.decode(b'[1]') == [1]\n"
        "codecs.json_of(int)\n"
    )
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: codecs.json_of(int) needs the package msgspec: pip install msgspec"
    )


# By prefixes


def test_codecs_by_prefix(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    shop: wbkv.Client[User | int | str] = client.using(
        {"user/": codecs.json_of(User), "user/visits/": codecs.INTEGER, "": codecs.TEXT}
    )
    shop.txn().then(wbkv.put("user/ada", ADA), wbkv.put("user/visits/ada", 3), wbkv.put("note", "x")).commit()
    assert [link.store.at(key)[1] for key in (b"user/ada", b"user/visits/ada")] == [ADA_JSON, b"3"]
    assert shop.get_many(["user/ada", "user/visits/ada", "note"]) == [ADA, 3, "x"]
    assert [entry.value for entry in shop.scan(wbkv.EVERYTHING)] == ["x", ADA, 3]
    with shop.transaction() as tx:
        tx.put("user/visits/ada", 4)
        assert [entry.value for entry in tx.scan("user/")] == [ADA, 4]
    with shop.watch(wbkv.EVERYTHING, after=1) as watch:
        change = watch.next(timeout=1.0)
    assert change is not None
    assert [event.value for event in change.events] == ["x", ADA, 3]
    with pytest.raises(TypeError, match="the value of b'user/visits/ada': a value must be int, not User"):
        shop.put("user/visits/ada", ADA)
    result = shop.txn().when(wbkv.value("user/visits/ada") == 4).then(wbkv.get("user/ada")).commit()
    assert result.results[0] == client.using(codecs.json_of(User)).entry("user/ada")


def test_a_key_without_a_codec(client: wbkv.Client[bytes]) -> None:
    some: wbkv.Client[int | str] = client.using({"n/": codecs.INTEGER, "t/": codecs.TEXT})
    with pytest.raises(
        ValueError, match=r"no codec for the key b'x', only for 'n/', 't/'; \"\" stands for all others"
    ):
        some.put("x", 1)
    with pytest.raises(ValueError, match="there is none"):
        client.using({})
    with pytest.raises(TypeError, match="compared as bytes"):
        some.txn().when(wbkv.value("n/a") < 3).commit()
    assert repr(Values({"n/": codecs.INTEGER}).codec) == "{'n/': codecs.INTEGER}"


def test_snapshots_have_codecs_too(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    link.store.put(b"n", b"3")
    with client.snapshot() as snapshot:
        assert snapshot.using(codecs.INTEGER).get("n") == 3
        assert snapshot.get("no", b"none") == b"none"
        assert snapshot.get_many(["n", "no"], b"none") == [b"3", b"none"]
        assert [entry.key for entry in snapshot.scan("n", after="n")] == []
        assert list(snapshot.keys(wbkv.EVERYTHING, after="o", reverse=True)) == [b"n"]


# Null


def test_a_null_is_not_an_absent_key(
    link: ModelLink, client: wbkv.Client[bytes], aclient: aio.Client[bytes]
) -> None:
    json = client.using(codecs.JSON)
    json.put("null", None)
    assert (json.get("null", "absent"), json.get("no", "absent")) == (None, "absent")
    assert json.get_many(["null", "no"], "absent") == [None, "absent"]
    with json.transaction() as tx:
        assert (tx.get("null", "absent"), tx.get("no", "absent")) == (None, "absent")
        assert tx.get_many(["null", "no"], "absent") == [None, "absent"]
        tx.put("new", None)
        assert tx.get("new", "absent") is None
    entry = json.entry("null")
    assert entry is not None
    assert entry.value is None
    assert json.txn().when(wbkv.value("null") == None).commit().succeeded  # noqa: E711 - a condition
    assert not json.txn().when(wbkv.value("no") == None).commit().succeeded  # noqa: E711 - likewise
    json.delete("null")
    with json.watch("null", after=1) as watch:
        changes = [watch.next(1.0), watch.next(1.0)]
    assert [change.events[0].value for change in changes if change] == [None, None]
    assert [change.events[0].removed for change in changes if change] == [False, True]

    async def main() -> None:
        twin = aclient.using(codecs.JSON)
        assert await twin.get("new", "absent") is None
        assert await twin.get("no", "absent") == "absent"

    asyncio.run(main())


def test_scans_continue(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    for number in range(6):
        link.store.put(b"k%d" % number, b"")
    keys: list[bytes] = []
    while page := list(client.keys("k", after=keys[-1] if keys else None, limit=4)):
        keys += page
    assert keys == [b"k%d" % number for number in range(6)]
    assert [entry.key for entry in client.scan("k", after="k3", reverse=True)] == [b"k2", b"k1", b"k0"]
    assert list(client.keys(wbkv.between("k2", "k4"), after="a")) == [b"k2", b"k3"]
    assert list(client.keys(wbkv.between("k2", "k4"), after="z", reverse=True)) == [b"k3", b"k2"]
    link.asked.clear()
    assert list(client.keys("k", after="z")) == list(client.keys("k", after="a", reverse=True)) == []
    assert not link.asked
