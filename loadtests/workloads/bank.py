"""A bank: money moves between accounts of all partitions, and its total stays the same.

An account is two keys with one tag, so they are in one partition: its balance, and a memo of `value_size`
bytes about the last transfer. A transfer over several partitions takes from one and gives to others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import wbkv

from loadtests.checking import bounded
from loadtests.errors import Violation
from loadtests.workloads.base import Parameters, Put, Tally, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BankParameters(Parameters):
    """The parameters of a bank."""

    balance: int = bounded(1_000, 0, 10**12)
    """The initial balance of every account."""


class Bank(Workload[BankParameters]):
    """The workload `bank`."""

    PARAMETERS: ClassVar[type[Parameters]] = BankParameters
    OPERATIONS: ClassVar[tuple[str, ...]] = ("transfer", "checked-transfer", "balance", "audit")

    def __init__(self, client: wbkv.Client[bytes], prefix: str, parameters: BankParameters) -> None:
        super().__init__(client, prefix, parameters)
        self._accounts = self.keyspace(self._account, parameters.keys)
        self._accounts.check(parameters.spread, parameters.multi_partition)

    def _account(self, number: int) -> str:
        return f"{self.prefix}account/{{{number:08d}}}"

    def _memo(self, account: str) -> str:
        return f"{self.prefix}memo/{account[-10:]}"

    def load(self) -> None:
        """Open the accounts."""
        self.write_all(self._opened())

    def _opened(self) -> Iterator[Put]:
        balance = b"%d" % self.parameters.balance
        for number in range(self.parameters.keys):
            yield self._account(number), balance

    def _chosen(self, rng: Random) -> list[str]:
        size = self.parameters.spread
        numbers = self._accounts.choose(rng, self.ranks, size, crossing=self.crosses(rng))
        rng.shuffle(numbers)
        return [self._account(number) for number in numbers]

    def transfer(self, rng: Random) -> None:
        """Move money from one account to others, in one request. The balance may become negative."""
        source, *targets = self._chosen(rng)
        amount = rng.randint(1, 100)
        moves = [wbkv.add(source, -amount * len(targets)), *(wbkv.add(target, amount) for target in targets)]
        if self.parameters.value_size:
            moves.append(wbkv.put(self._memo(source), self.payload(rng)))
        result = self.client.txn().then(*moves).commit()
        if any(isinstance(each, wbkv.Failed) for each in result.results):
            raise Violation(f"a balance is not a number: {result.results}")

    def checked_transfer(self, rng: Random) -> bool:
        """Move money if the balance suffices, as an interactive transaction."""
        accounts, amount, memo = self._chosen(rng), rng.randint(1, 100), self.payload(rng)
        return _move(self.client, accounts, amount, (self._memo(accounts[0]), memo) if memo else None)

    def balance(self, rng: Random) -> None:
        """Read the balances of as many accounts as a transfer has."""
        accounts = self._chosen(rng)
        found = self.client.get_many(accounts)
        if None in found:
            raise Violation(f"accounts are missing: {accounts} are {found}")

    def audit(self, rng: Random) -> None:
        """Check the total of all accounts at one revision."""
        if wrong := self._missing(self.client.scan(f"{self.prefix}account/")):
            raise Violation(wrong)

    def _missing(self, found: Iterator[wbkv.Entry[bytes]]) -> str:
        balances = [int(entry.value) for entry in found]
        count, total = self.parameters.keys, self.parameters.keys * self.parameters.balance
        if len(balances) != count:
            return f"there are {len(balances)} accounts, not {count}"
        return "" if sum(balances) == total else f"all accounts together have {sum(balances)}, not {total}"

    def check(self, tally: Tally) -> list[str]:
        """Check that no money was lost, whatever the outcome of transfers with an unknown outcome."""
        with self.client.snapshot(timeout=60.0) as moment:
            wrong = self._missing(moment.scan(f"{self.prefix}account/", timeout=60.0))
        return [wrong] if wrong else []


@wbkv.transactional
def _move(
    tx: wbkv.Transaction[bytes], accounts: list[str], amount: int, memo: tuple[str, bytes] | None
) -> bool:
    balances = [int(value or 0) for value in tx.get_many(accounts)]
    out = amount * (len(accounts) - 1)
    if balances[0] < out:
        return False
    tx.put(accounts[0], b"%d" % (balances[0] - out))
    for account, balance in zip(accounts[1:], balances[1:], strict=True):
        tx.put(account, b"%d" % (balance + amount))
    if memo:
        tx.put(*memo)
    return True
