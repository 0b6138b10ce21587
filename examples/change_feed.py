"""A change feed: a consumer adds up all orders, crashes now and then, and counts each exactly once.

It stores its position in the same transaction as the effect of a change: both or neither. After a crash, it
continues after the last change that it has counted. At its first start, it adds up the existing orders at one
revision, and follows the changes above that revision: no order is missed between the two.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

import wbkv

ORDERS, TOTALS, POSITION = "feed/orders/", "feed/totals/", "feed/position"
CUSTOMERS = ("alice", "bob", "carol")


class Crash(Exception):
    """A crash of the consumer's process."""


def position(feed: wbkv.Client[int]) -> int:
    """Return where to continue. At the first start, add up the existing orders, and begin after them."""
    saved = feed.get(POSITION)
    if saved is not None:
        return saved
    orders = feed.scan(ORDERS)
    totals: Counter[str] = Counter()
    for order in orders:
        totals[customer_of(order.key)] += order.value
    begun = (
        feed.txn()
        .when(wbkv.absent(POSITION))
        .then(
            *(wbkv.put(TOTALS + customer, total) for customer, total in totals.items()),
            wbkv.put(POSITION, orders.revision),
        )
        .commit()
    )
    assert begun.succeeded, "there are two consumers"
    print(f"began with {sum(totals.values())} in all, at revision {orders.revision}")
    return orders.revision


def consume(feed: wbkv.Client[int], last: Future[int], steps: Iterator[int], crashes: set[int]) -> None:
    """Count all changes up to the last order. Crash before the steps in `crashes`, or after negated ones."""
    here = position(feed)
    print(f"consumes changes after revision {here}")
    with feed.watch(ORDERS, after=here) as changes:
        while not (last.done() and here >= last.result()):
            change = changes.next(timeout=0.5)
            if change is None:
                continue
            step = next(steps)
            if step in crashes:
                raise Crash(f"before change {step} was counted")
            account(feed, here, change)
            here = change.revision
            if -step in crashes:
                raise Crash(f"after change {step} was counted")


def account(feed: wbkv.Client[int], here: int, change: wbkv.Change[int]) -> None:
    """Add a change to the totals and advance the position, both or neither."""
    amounts: Counter[str] = Counter()
    for event in change.events:
        if event.value is not None:
            amounts[customer_of(event.key)] += event.value
    done = (
        feed.txn()
        .when(wbkv.value(POSITION) == here)
        .then(
            *(wbkv.add(TOTALS + customer, amount) for customer, amount in amounts.items()),
            wbkv.put(POSITION, change.revision),
        )
        .commit()
    )
    assert done.succeeded, "another consumer has advanced from our position"


def produce(feed: wbkv.Client[int], orders: list[dict[str, int]]) -> int:
    """Place orders, some of several customers at once. Returns the revision of the last."""
    revision = 0
    for number, placed in enumerate(orders):
        puts = [wbkv.put(f"{ORDERS}{customer}/{number}", amount) for customer, amount in placed.items()]
        revision = feed.txn().then(*puts).commit().revision
    return revision


def customer_of(key: bytes) -> str:
    """Return the customer of a key feed/orders/CUSTOMER/NUMBER."""
    return key.decode().split("/")[2]


def main(feed: wbkv.Client[int]) -> None:
    """Run a consumer that follows a producer and crashes twice, and compare the totals."""
    feed.delete(wbkv.prefix("feed/"))
    feed.put(f"{ORDERS}alice/before", 5)
    position(feed)  # the consumer's first start, before there is anything to follow
    rng = random.Random(7)
    orders = [
        {name: rng.randint(1, 50) for name in rng.sample(CUSTOMERS, rng.randint(1, 2))} for _ in range(24)
    ]

    with ThreadPoolExecutor() as threads:
        last = threads.submit(produce, feed, orders)
        steps, crashed = count(1), 0
        while True:
            try:
                consume(feed, last, steps, crashes={4, -9})
                break
            except Crash as crash:
                print(f"crashed {crash}")
                crashed += 1
    assert crashed == 2

    sold = sum(map(Counter, orders), Counter({"alice": 5}))
    totals = {entry.name.removeprefix(TOTALS): entry.value for entry in feed.scan(TOTALS)}
    assert totals == sold, f"{totals} were counted, {sold} sold"
    for customer, total in totals.items():
        print(f"{customer:6} {total:4}")
    print(f"{sum(totals.values())} in all: nothing missed, nothing counted twice")


if __name__ == "__main__":
    start = wbkv.open if sys.argv[1:] == ["--embedded"] else wbkv.connect
    with start(codec=wbkv.codecs.INTEGER) as store:
        main(store)
