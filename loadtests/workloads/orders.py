"""A wholesale supplier's orders, after TPC-C: warehouses, each in one partition, that supply each other.

Every key of a warehouse has its tag, so a warehouse is in one partition; warehouses alternate over them.
An order with lines from a remote warehouse, and a payment of a remote customer, touch several partitions in
one transaction. The rows are fewer and shorter than TPC-C's; the five transactions and their weights are the
same. `books` has the final checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final

import wbkv

from loadtests.checking import bounded
from loadtests.errors import LoadTestError, Violation
from loadtests.workloads.base import Parameters, Put, Tally, Workload
from loadtests.workloads.books import Books, amount, stocked

_REFILL: Final = 10
"""A stock that falls below this is refilled by `_FILLED`."""
_FILLED: Final = 91
_RECENT: Final = 20
"""How many orders stock-level reads."""
_TAGS_TRIED: Final = 10_000
_UNUSED_PERCENT: Final = 1
"""Percentage of orders for an item that does not exist, which are rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersParameters(Parameters):
    """The parameters of a supplier. `keys` is the number of items."""

    warehouses: int = bounded(6, 1, 10_000)
    districts: int = bounded(4, 1, 100)
    """Per warehouse."""
    customers: int = bounded(30, 1, 10_000)
    """Per district."""
    lines: int = bounded(10, 1, 15)
    """Most lines of an order, which has at least half as many."""


class Orders(Workload[OrdersParameters]):
    """The workload `orders`."""

    PARAMETERS: ClassVar[type[Parameters]] = OrdersParameters
    OPERATIONS: ClassVar[tuple[str, ...]] = (
        "new-order", "payment", "order-status", "delivery", "stock-level",
    )  # fmt: skip

    def __init__(self, client: wbkv.Client[bytes], prefix: str, parameters: OrdersParameters) -> None:
        super().__init__(client, prefix, parameters)
        if parameters.multi_partition and min(parameters.warehouses, len(self.partitions)) < 2:
            raise LoadTestError(
                f"multi_partition = {parameters.multi_partition:g} needs two warehouses and two partitions: "
                f"there are {parameters.warehouses} and {len(self.partitions)}"
            )
        self._tags = list(self._make_tags())
        self._homes = [
            client.partition_of(self._row(warehouse, "")) for warehouse in range(parameters.warehouses)
        ]

    def _make_tags(self) -> Iterator[str]:
        """Yield a tag for each warehouse, so that warehouses alternate over partitions."""
        number = 0
        for warehouse in range(self.parameters.warehouses):
            wanted = self.partitions[warehouse % len(self.partitions)]
            for _ in range(_TAGS_TRIED):
                tag = f"{self.prefix}{{w{number}}}/"
                number += 1
                if self.client.partition_of(tag) == wanted:
                    yield tag
                    break
            else:
                raise LoadTestError(
                    f"none of {_TAGS_TRIED} tags is in partition {wanted}: keys must be partitioned by hash"
                )

    def _row(self, warehouse: int, row: str) -> str:
        return self._tags[warehouse] + row

    def load(self) -> None:
        """Fill the warehouses. All counters begin at 0, the value of an absent key."""
        self.write_all(self._stock())

    def _stock(self) -> Iterator[Put]:
        for warehouse in range(self.parameters.warehouses):
            for item in range(self.parameters.keys):
                yield self._row(warehouse, f"stock/{item:06d}"), b"100 0"

    def _far(self, rng: Random, warehouse: int) -> int:
        """Return a warehouse of another partition."""
        home = self._homes[warehouse]
        return rng.choice([other for other, partition in enumerate(self._homes) if partition != home])

    def _some(self, rng: Random) -> tuple[int, int, str]:
        """Choose a warehouse, one of its districts, and a customer, by the name of its row."""
        parameters = self.parameters
        district = rng.randrange(parameters.districts)
        customer = f"customer/{district:02d}/{rng.randrange(parameters.customers):05d}/"
        return rng.randrange(parameters.warehouses), district, customer

    # The five transactions

    def new_order(self, rng: Random) -> bool:
        """Order items, mostly of the same warehouse: assign a number, write the order, reduce the stock."""
        parameters = self.parameters
        warehouse, district, customer = self._some(rng)
        count = min(rng.randint((parameters.lines + 1) // 2, parameters.lines), parameters.keys)
        items: dict[int, None] = {}
        while len(items) < count:
            items[self.ranks.draw(rng, parameters.keys)] = None
            if rng.random() < 0.1:  # with a heavy skew, the distribution hardly ever yields another item
                items[rng.randrange(parameters.keys)] = None
        suppliers = [warehouse] * len(items)
        if self.crosses(rng):
            suppliers[0] = self._far(rng, warehouse)
        lines = [
            (supplier, self._row(supplier, f"stock/{item:06d}"), rng.randint(1, 10), rng.randint(1, 100))
            for supplier, item in zip(suppliers, items, strict=True)
        ]
        order = {"customer": customer, "lines": lines, "carrier": 0, "data": self.payload(rng).decode()}
        unused = rng.random() * 100 < _UNUSED_PERCENT
        return _order(self.client, self._tags[warehouse], district, order, unused=unused)

    def payment(self, rng: Random) -> None:
        """A customer, perhaps of a remote warehouse, pays in a district: in one request."""
        warehouse, district, customer = self._some(rng)
        home = self._far(rng, warehouse) if self.crosses(rng) else warehouse
        amount = rng.randint(1, 5_000)
        result = self.client.txn().then(
            wbkv.add(self._row(warehouse, "paid"), amount),
            wbkv.add(self._row(warehouse, f"district/{district:02d}/paid"), amount),
            wbkv.add(self._row(home, f"{customer}paid"), amount),
            wbkv.add(self._row(home, f"{customer}balance"), -amount),
        ).commit()  # fmt: skip
        if any(isinstance(each, wbkv.Failed) for each in result.results):
            raise Violation(f"a sum is not a number: {result.results}")

    def order_status(self, rng: Random) -> None:
        """Read a customer's balance and last order."""
        warehouse, _, customer = self._some(rng)
        last = _status(self.client, self._row(warehouse, customer))
        if last is not None and json.loads(last)["customer"] != customer:
            raise Violation(f"the last order of {customer} is {last!r}")

    def delivery(self, rng: Random) -> bool:
        """Deliver the oldest new order of a district."""
        warehouse, district, _ = self._some(rng)
        return _deliver(self.client, self._tags[warehouse], district, rng.randint(1, 10))

    def stock_level(self, rng: Random) -> None:
        """Read the stock of the items that were ordered last in a district."""
        warehouse, district, _ = self._some(rng)
        orders = self._row(warehouse, f"order/{district:02d}/")
        found = list(self.client.scan(orders, limit=_RECENT, reverse=True))
        wanted = {
            line[1] for entry in found for line in json.loads(entry.value)["lines"] if line[0] == warehouse
        }
        if wanted and None in self.client.get_many(sorted(wanted)):
            raise Violation(f"an item of {orders} has no stock")

    # Invariants

    def check(self, tally: Tally) -> list[str]:
        """Check all books at one revision."""
        found = Books(self.snapshot(), self.prefix)
        wrong = found.wrong()
        least = tally.ok["new-order"]
        most = least + tally.unknown["new-order"]
        if not least <= found.orders <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            wrong.append(f"there are {found.orders} orders, and {wanted} were acknowledged")
        return wrong


@wbkv.transactional
def _order(
    tx: wbkv.Transaction[bytes], home: str, district: int, order: dict[str, Any], *, unused: bool
) -> bool:
    lines = order["lines"]
    counter = f"{home}district/{district:02d}/orders"
    last, *stocks = tx.get_many([counter, *(line[1] for line in lines)])
    if unused:
        return False  # nothing was written, so there is nothing to roll back
    number = int(last or 0) + 1
    for (_, key, quantity, _), value in zip(lines, stocks, strict=True):
        there, taken = stocked(value)
        there -= quantity
        tx.put(key, b"%d %d" % (there + _FILLED if there < _REFILL else there, taken + quantity))
    name = f"{district:02d}/{number:09d}"
    tx.put(counter, b"%d" % number)
    tx.put(f"{home}order/{name}", json.dumps(order, separators=(",", ":")).encode())
    tx.put(f"{home}new/{name}", b"")
    tx.put(f"{home}{order['customer']}last", name.encode())
    return True


@wbkv.transactional
def _status(tx: wbkv.Transaction[bytes], customer: str) -> bytes | None:
    _, last = tx.get_many([f"{customer}balance", f"{customer}last"])
    home = customer[: customer.index("}/") + 2]
    return None if last is None else tx.get(f"{home}order/{last.decode()}")


@wbkv.transactional
def _deliver(tx: wbkv.Transaction[bytes], home: str, district: int, carrier: int) -> bool:
    oldest = next(iter(tx.scan(f"{home}new/{district:02d}/", limit=1)), None)
    if oldest is None:
        return False
    key = f"{home}order/{oldest.name.removeprefix(f'{home}new/')}"
    order = json.loads(tx.get(key) or b"{}")
    order["carrier"] = carrier
    tx.delete(oldest.key)
    tx.put(key, json.dumps(order, separators=(",", ":")).encode())
    tx.add(f"{home}{order['customer']}balance", amount(order))
    return True
