"""Inventory: an order takes several items out of stock, all of them or none, and nothing is sold twice.

The items may be in any partitions, and an order is still a single request: its conditions require that the
stock is unchanged since it was read, `then` takes the items and files the order, `otherwise` reads the stock
again. So a customer who was too late gets the new stock in the same answer, and no lock is ever held.
"""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import wbkv

STOCK = {"bolt": 60, "bracket": 10, "hook": 12, "washer": 90}
KITS = {"shelf": {"bracket": 2, "bolt": 8, "washer": 8}, "rail": {"bracket": 1, "hook": 4, "bolt": 4}}
CUSTOMERS = [(f"{number:02}", ("shelf", "rail")[number % 2]) for number in range(16)]


def order(shop: wbkv.Client[Any], customer: str, kit: str) -> bool:
    """Sell a kit. Returns False if the stock of an item is too low."""
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
        found = entries(sale)  # another customer was faster: this is the stock now
    return False


def entries(looked: wbkv.TxnResult[Any]) -> list[wbkv.Entry[Any]]:
    """Return the entries of keys that always exist."""
    return [result for result in looked.results if isinstance(result, wbkv.Entry)]


def main(shop: wbkv.Client[Any]) -> None:
    """Fill the stock, serve all customers at once, and count the stock that is left."""
    shop.delete(wbkv.prefix("shop/"))
    shop.txn().then(*(wbkv.put(f"shop/stock/{item}", amount) for item, amount in STOCK.items())).commit()

    with ThreadPoolExecutor(4) as threads:
        served = list(threads.map(lambda customer: order(shop, *customer), CUSTOMERS))

    # Stock and orders at one revision.
    with shop.snapshot() as moment:
        left = {entry.name.removeprefix("shop/stock/"): entry.value for entry in moment.scan("shop/stock/")}
        sold = Counter(entry.value["kit"] for entry in moment.scan("shop/orders/"))
    assert sold.total() == sum(served), f"{sum(served)} sales, {sold.total()} orders filed"
    for item, amount in STOCK.items():
        taken = sum(KITS[kit].get(item, 0) * count for kit, count in sold.items())
        print(f"{item:8} {amount:3} at first, {taken:3} sold, {left[item]:3} left")
        assert left[item] >= 0, f"{item} is oversold"
        assert left[item] + taken == amount, f"{item}: {left[item]} left and {taken} sold are not {amount}"
    for kit, items in KITS.items():
        assert any(left[item] < amount for item, amount in items.items()), f"a {kit} was rejected needlessly"
    rejected = served.count(False)
    print(f"sold {sold['shelf']} shelves and {sold['rail']} rails; {rejected} customers were rejected")


if __name__ == "__main__":
    start = wbkv.open if sys.argv[1:] == ["--embedded"] else wbkv.connect
    with start(codec=wbkv.codecs.JSON) as store:
        main(store)
