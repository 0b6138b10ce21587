"""Checks the final state of `orders` by TPC-C's consistency conditions:

- the payments of a warehouse equal those of its districts, and those of all warehouses equal those of all
  customers;
- a district's orders are numbered up to its counter, without a gap;
- exactly the undelivered orders are new orders;
- the quantity taken from a stock equals that of the lines of all orders;
- a customer's balance is the amount of its delivered orders less its payments.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any


def stocked(value: bytes | None) -> tuple[int, int]:
    """Parse the quantity of an item in stock, and the quantity taken in all."""
    there, taken = (value or b"0 0").split()
    return int(there), int(taken)


def amount(order: dict[str, Any]) -> int:
    """Return the price of an order."""
    return sum(quantity * price for _, _, quantity, price in order["lines"])


class Books:
    """The final rows, by kind, and their violations."""

    def __init__(self, rows: dict[str, bytes], prefix: str) -> None:
        self._prefix = prefix
        self._numbers: Counter[tuple[str, ...]] = Counter()
        """By path: ("{w0}", "paid"), ("{w0}", "district/01", "orders"), ..."""
        self._taken: dict[str, int] = {}
        self._orders: dict[str, dict[str, Any]] = {}
        self._new: set[str] = set()
        for name, value in rows.items():
            home, _, row = name.partition("/")
            kind = row.partition("/")[0]
            if kind == "stock":
                self._taken[name] = stocked(value)[1]
            elif kind == "order":
                self._orders[name] = json.loads(value)
            elif kind == "new":
                self._new.add(name.replace("/new/", "/order/", 1))
            elif not row.endswith("/last"):
                self._numbers[home, *row.rsplit("/", 1)] = int(value)
        self.orders = len(self._orders)

    def wrong(self) -> list[str]:
        """Return the violations."""
        return [*self._money(), *self._numbering(), *self._undelivered(), *self._stock(), *self._balances()]

    def _sums(self, kind: str, what: str) -> Counter[str]:
        """Return the sums by warehouse, over its districts or customers."""
        found: Counter[str] = Counter()
        for path, number in self._numbers.items():
            if len(path) == 3 and path[1].startswith(kind) and path[2] == what:
                found[path[0]] += number
        return found

    def _money(self) -> Iterator[str]:
        warehouses = Counter(
            {path[0]: number for path, number in self._numbers.items() if path[1:] == ("paid",)}
        )
        districts = self._sums("district/", "paid")
        for path in sorted(warehouses.keys() | districts.keys()):
            if warehouses[path] != districts[path]:
                yield f"{path} has payments of {warehouses[path]}, its districts of {districts[path]}"
        customers = self._sums("customer/", "paid").total()
        if warehouses.total() != customers:
            yield f"all warehouses have payments of {warehouses.total()}, all customers of {customers}"

    def _numbering(self) -> Iterator[str]:
        numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
        for name in self._orders:
            home, _, district, number = name.split("/")
            numbers[home, district].append(int(number))
        counted = {(path[0], path[1].removeprefix("district/")): number
                   for path, number in self._numbers.items() if path[-1] == "orders"}  # fmt: skip
        for path in sorted(numbers.keys() | counted.keys()):
            last = counted.get(path, 0)
            if sorted(numbers[path]) != list(range(1, last + 1)):
                yield f"district {'/'.join(path)} has {len(numbers[path])} orders, and counts to {last}"

    def _undelivered(self) -> Iterator[str]:
        open_ = {name for name, order in self._orders.items() if not order["carrier"]}
        for name in sorted(open_ ^ self._new):
            yield f"{name} is {'not delivered, but no' if name in open_ else 'delivered, but a'} new order"

    def _stock(self) -> Iterator[str]:
        ordered: Counter[str] = Counter()
        for order in self._orders.values():
            for _, key, quantity, _ in order["lines"]:
                ordered[key.removeprefix(self._prefix)] += quantity
        for name in sorted(self._taken.keys() | ordered.keys()):
            if self._taken.get(name, 0) != ordered[name]:
                yield f"{name} has given {self._taken.get(name, 0)}, and orders have {ordered[name]} of it"

    def _balances(self) -> Iterator[str]:
        wanted: Counter[tuple[str, ...]] = Counter()
        for name, order in self._orders.items():
            if order["carrier"]:
                wanted[name.split("/")[0], order["customer"].rstrip("/")] += amount(order)
        for (home, *rest), number in self._numbers.items():
            if rest[-1] == "paid" and rest[0].startswith("customer/"):
                wanted[home, rest[0]] -= number
        found: dict[tuple[str, ...], int] = {
            path[:2]: number for path, number in self._numbers.items() if path[-1] == "balance"
        }
        for path in sorted(wanted.keys() | found.keys()):
            if wanted[path] != found.get(path, 0):
                yield f"{'/'.join(path)} has a balance of {found.get(path, 0)}, not {wanted[path]}"
