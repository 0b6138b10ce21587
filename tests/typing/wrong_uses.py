"""What a type checker must refuse: if it does not, it finds an ignored error that is none. It is not run."""

from __future__ import annotations

import wbkv
from wbkv import aio


@wbkv.transactional
def write(tx: wbkv.Transaction[bytes], key: str) -> None:
    tx.put(key, b"")


@wbkv.transactional
async def write_async(tx: aio.Transaction[bytes], key: str) -> None:
    tx.put(key, b"")


def wrong(
    client: wbkv.Client[bytes],
    text: wbkv.Client[str],
    twin: aio.Client[bytes],
    items: wbkv.Table[int],
) -> None:
    client.put("a", "text")  # type: ignore[arg-type]  # it is bytes
    client.put(5, b"")  # type: ignore[arg-type]  # no key
    client.get("a", consistency="eventual")  # type: ignore[call-overload]  # no such level
    client.delete(["a"])  # type: ignore[arg-type]  # one key or a range
    client.get("a").upper()  # type: ignore[union-attr]  # it may be None
    client.txn().when("a")  # type: ignore[arg-type]  # no condition
    client.txn().then(wbkv.exists("a"))  # type: ignore[arg-type]  # no operation
    client.scan("a", "b")  # type: ignore[call-arg]  # by name only
    write(text, "a")  # type: ignore[arg-type]  # another codec
    write(client, 5)  # type: ignore[arg-type]  # the function's own parameters
    write(twin, "a")  # type: ignore[arg-type]  # of the other kind
    write_async(client, "a")  # type: ignore[arg-type, unused-coroutine]  # likewise
    with client.transaction() as tx:
        tx.using(wbkv.codecs.INTEGER).put("a", "3")  # type: ignore[arg-type]  # it is a number there
        tx.using(wbkv.codecs.INTEGER).get("a").bit_length()  # type: ignore[union-attr]  # it may be None
        tx.delete("a", limit=3)  # type: ignore[call-arg]  # all or nothing
        items.put(tx, "1", "a bolt")  # type: ignore[arg-type]  # a row of another type
    client.using(wbkv.codecs.TEXT).get("a", 0) + 1  # type: ignore[operator]  # it may be a text
    client.using(wbkv.codecs.json_of(3))  # type: ignore[arg-type]  # no type
    aio.connect().get("a")  # type: ignore[attr-defined]  # not awaited
    with aio.connect():  # type: ignore[attr-defined]  # without async
        pass
    with twin:  # type: ignore[attr-defined]  # likewise
        pass
    list(twin.scan("a"))  # type: ignore[call-overload]  # likewise
    wbkv.version("a") < "3"  # type: ignore[operator]  # noqa: B015 - a number
