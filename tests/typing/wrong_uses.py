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


def wrong(client: wbkv.Client[bytes], text: wbkv.Client[str], twin: aio.Client[bytes]) -> None:
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
    wbkv.version("a") < "3"  # type: ignore[operator]  # noqa: B015 - a number
