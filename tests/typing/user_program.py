"""A small program of a user: an inventory with rows of a class, numbers, and an index. It is not run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import wbkv
from wbkv import aio, codecs


@dataclass
class Item:
    name: str
    shelf: str


ITEM = codecs.json_of(Item)
ITEMS = wbkv.Table("item/", ITEM, {"item.shelf/": lambda item: item.shelf})


def show(*things: object) -> None: ...


@wbkv.transactional
def store(tx: wbkv.Transaction[bytes], number: str, item: Item, amount: int) -> int:
    if tx.count("item/") > 1_000:
        tx.delete(wbkv.prefix("item/old-"))
    for name, other in ITEMS.find(tx, "item.shelf/", item.shelf, limit=10):
        show(name.decode(), other.name)
    ITEMS.put(tx, number, item)
    amounts = tx.using(codecs.INTEGER)
    return amounts.add(f"amount/{number}", amount)


def several(client: wbkv.Client[bytes]) -> None:
    shop: wbkv.Client[Item | int] = client.using({"item/": ITEM, "amount/": codecs.INTEGER})
    shop.put("item/1", Item("bolt", "A"))
    shop.put("amount/1", 7)
    for entry in shop.scan(wbkv.EVERYTHING, after="item/1"):
        match entry.value:
            case Item(name=name):
                show(name)
            case int() as amount:
                show(amount + 1)


def absent(client: wbkv.Client[bytes]) -> int:
    documents = client.using(codecs.JSON)
    document = documents.get("document", 0.5)
    if document is None:  # a null that is stored
        return 0
    amounts = client.using(codecs.INTEGER)
    return amounts.get("amount/1", 0) + sum(amounts.get_many(["amount/1", "amount/2"], 0))


async def twin(client: aio.Client[bytes]) -> None:
    assert_type(await client.get("a", 3), bytes | int)
    items = aio.Table("item/", ITEM, {"item.shelf/": lambda item: [item.shelf, item.name]})
    async with client.transaction() as tx:
        assert_type(tx.using(ITEM), aio.Transaction[Item])
        assert_type(await tx.count("item/"), int)
        await items.put(tx, "1", Item("bolt", "A"))
        async for name, item in items.find(tx, "item.shelf/", "A"):
            assert_type((name, item), tuple[bytes, Item])
    async with client.snapshot() as moment:
        assert_type(await moment.using(ITEM).get("item/1"), Item | None)


def main() -> None:
    with wbkv.connect(codec=codecs.BYTES) as client:
        show(store(client, "1", Item("bolt", "A"), 7))
        several(client)
        show(absent(client))


if __name__ == "__main__":
    main()
