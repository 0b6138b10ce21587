"""Inventory: an order takes several items out of stock, all of them or none, and nothing is sold twice.

The items are in whatever partitions their keys fall into, and an order is still a single request: its
conditions say that the stock is what we have looked at, `then` takes the items and files the order,
`otherwise` looks again. So a customer who was too late learns the new stock from the very answer that says
so, and no lock is ever held.
"""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import wbkv

STOCK = {"bolt": 60, "bracket": 10, "hook": 12, "washer": 90}
KITS = {
    "shelf": {"bracket": 2, "bolt": 8, "washer": 8},
    "rail": {"bracket": 1, "hook": 4, "bolt": 4},
}
CUSTOMERS = [(f"{number:02}", ("shelf", "rail")[number % 2]) for number in range(16)]


def order(shop: wbkv.Client[Any], customer: str, kit: str) -> bool:
    """Sell a kit, or say that there is not enough of something."""
    wanted = {f"shop/stock/{item}": amount for item, amount in KITS[kit].items()}
    look = [wbkv.get(key) for key in wanted]
    found = entries(shop.txn().then(*look).commit())
    while all(entry.value >= wanted[entry.name] for entry in found):
        sale = (
            shop.txn()
            .when(*(wbkv.mod_revision(entry.key) == entry.mod_revision for entry in found))
            .then(
                *(wbkv.add(key, -amount) for key, amount in wanted.items()),
                wbkv.put(f"shop/orders/{customer}", {"kit": kit}),
            )
            .otherwise(*look)
            .commit()
        )
        if sale.succeeded:
            return True
        found = entries(sale)  # somebody was faster: this is what is left
    return False


def entries(looked: wbkv.TxnResult[Any]) -> list[wbkv.Entry[Any]]:
    """What was found of keys that are always there."""
    return [result for result in looked.results if isinstance(result, wbkv.Entry)]


def main(shop: wbkv.Client[Any]) -> None:
    """Fill the shelves, let all customers in at once, and count what is left."""
    shop.delete(wbkv.prefix("shop/"))
    shop.txn().then(*(wbkv.put(f"shop/stock/{item}", amount) for item, amount in STOCK.items())).commit()

    with ThreadPoolExecutor(4) as threads:
        served = list(threads.map(lambda customer: order(shop, *customer), CUSTOMERS))

    # One moment of stock and orders together.
    with shop.snapshot() as moment:
        left = {entry.name.removeprefix("shop/stock/"): entry.value for entry in moment.scan("shop/stock/")}
        sold = Counter(entry.value["kit"] for entry in moment.scan("shop/orders/"))
    assert sold.total() == sum(served), f"{sum(served)} sales, {sold.total()} orders filed"
    for item, amount in STOCK.items():
        taken = sum(KITS[kit].get(item, 0) * count for kit, count in sold.items())
        print(f"{item:8} {amount:3} at first, {taken:3} sold, {left[item]:3} left")
        assert left[item] >= 0, f"{item} is oversold"
        assert left[item] + taken == amount, f"{item}: {left[item]} left and {taken} sold make no {amount}"
    for kit, items in KITS.items():
        assert any(left[item] < amount for item, amount in items.items()), f"a {kit} was refused in vain"
    left_out = served.count(False)
    print(f"sold {sold['shelf']} shelves and {sold['rail']} rails; {left_out} customers left without")


if __name__ == "__main__":
    start = wbkv.open if sys.argv[1:] == ["--embedded"] else wbkv.connect
    with start(codec=wbkv.codecs.JSON) as store:
        main(store)
