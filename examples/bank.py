"""Bank transfers: threads move money between accounts of any partitions, and not a cent is lost.

`transfer` is plain code that reads two balances and writes them. `@wbkv.transactional` makes it a
transaction: it commits if no other transaction has changed what it read, and is retried otherwise. While the
money moves, an auditor adds up all accounts: a snapshot is one revision of all partitions, so the sum is
always the same.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import Future, ThreadPoolExecutor

import wbkv

ACCOUNTS = [f"bank/{name}" for name in ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi")]
DEPOSIT = 100
TELLERS = 4
TRANSFERS = 10  # of each teller


class NotEnough(Exception):
    """The balance of the account is too low."""


@wbkv.transactional(timeout=30.0)
def transfer(tx: wbkv.Transaction[int], source: str, target: str, amount: int) -> None:
    """Move money. An exception aborts the transaction, and nothing is written."""
    balance = tx.get(source) or 0
    if balance < amount:
        raise NotEnough(f"{source} has {balance}, not {amount}")
    tx.put(source, balance - amount)
    tx.put(target, (tx.get(target) or 0) + amount)


def teller(bank: wbkv.Client[int], seed: int) -> int:
    """Move random amounts. Returns the number of successful transfers."""
    rng = random.Random(seed)
    done = 0
    for _ in range(TRANSFERS):
        source, target = rng.sample(ACCOUNTS, 2)
        try:
            transfer(bank, source, target, rng.randint(1, 120))
        except NotEnough:
            continue
        done += 1
    return done


def total(bank: wbkv.Client[int]) -> int:
    """Return the sum of all accounts, at one revision of all partitions."""
    with bank.snapshot() as moment:
        return sum(entry.value for entry in moment.scan("bank/"))


def main(bank: wbkv.Client[int]) -> None:
    """Open the accounts, run all tellers at once, and audit the accounts meanwhile."""
    bank.delete(wbkv.prefix("bank/"))
    bank.txn().then(*(wbkv.put(account, DEPOSIT) for account in ACCOUNTS)).commit()

    expected = DEPOSIT * len(ACCOUNTS)
    with ThreadPoolExecutor() as threads:
        tellers: list[Future[int]] = [threads.submit(teller, bank, seed) for seed in range(TELLERS)]
        audits = 0
        while not all(each.done() for each in tellers) or not audits:
            found = total(bank)
            assert found == expected, f"{found} instead of {expected}: money was made or lost"
            audits += 1
    done = sum(each.result() for each in tellers)

    assert total(bank) == expected
    for entry in bank.scan("bank/"):
        assert entry.value >= 0, f"{entry.key!r} is overdrawn"
        print(f"{entry.name:12} {entry.value:4}   written by {entry.version} transactions")
    rejected = TELLERS * TRANSFERS - done
    print(f"{done} transfers, {rejected} rejected; {expected} in all, in each of {audits} audits")


if __name__ == "__main__":
    start = wbkv.open if sys.argv[1:] == ["--embedded"] else wbkv.connect
    with start(codec=wbkv.codecs.INTEGER) as store:
        main(store)
