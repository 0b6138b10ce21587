"""Workloads on an embedded store: invariants hold, and violations are found."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import wbkv

from loadtests.errors import LoadTestError, Violation
from loadtests.scenario import known, read_scenario
from loadtests.workloads.base import Workload

SMALL = ("keys=40", "value_size=20")


@pytest.fixture(scope="module")
def store() -> Iterator[wbkv.Client[bytes]]:
    with wbkv.open(partitions=3) as client:
        yield client


@pytest.fixture
def client(store: wbkv.Client[bytes]) -> wbkv.Client[bytes]:
    store.delete(wbkv.EVERYTHING)
    return store


def loaded(client: wbkv.Client[bytes], name: str, *overrides: str) -> Workload[Any]:
    scenario = read_scenario(name, [*SMALL, *overrides])
    workload: Workload[Any] = scenario.workload(client, f"run/{name}/", scenario.parameters)
    workload.load()
    return workload


def perform(workload: Workload[Any], *names: str, times: int = 5) -> None:
    rng = Random(1)
    for _ in range(times):
        for name in names:
            workload.perform(name, rng)


@pytest.mark.parametrize("name", known())
def test_all_operations_at_once_leave_nothing_wrong(name: str, client: wbkv.Client[bytes]) -> None:
    workload = loaded(client, name, "multi_partition=50")
    threads = [threading.Thread(target=perform, args=(workload, *read_scenario(name).mix)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally = workload.tally
    assert (tally.failed, tally.unknown, tally.violations) == ({}, {}, [])
    assert sum((tally.ok + tally.refused).values()) == 15 * len(read_scenario(name).mix)
    assert workload.check(tally) == []


def test_as_many_operations_cross_partitions_as_asked_for(tmp_path: Path) -> None:
    """As their traces say: of operations in one message, each a line."""
    operations = {"bank": "transfer", "ycsb-f": "read", "orders": "payment"}
    with wbkv.Trace(tmp_path) as trace, wbkv.open(partitions=3, trace=trace) as client:
        for name, operation in operations.items():
            for percent in (0, 40, 100):
                workload = loaded(client, name, f"multi_partition={percent}")
                with wbkv.scenario(f"{name} {percent}"):
                    perform(workload, operation, times=40)
    (path,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name in operations:
        for percent, least, most in ((0, 0, 0), (40, 8, 24), (100, 40, 40)):
            counts = [len(line["partitions"]) for line in lines if line["scenario"] == f"{name} {percent}"]
            assert set(counts) <= {1, 2}
            assert least <= counts.count(2) <= most, (name, percent)


def test_missing_money_is_found(client: wbkv.Client[bytes]) -> None:
    bank = loaded(client, "bank")
    perform(bank, "transfer", "audit")
    stolen = next(iter(client.keys("run/bank/account/")))
    client.add(stolen, -7)
    assert bank.check(bank.tally) == ["all accounts together have 39993, not 40000"]
    with pytest.raises(Violation, match="39993"):
        perform(bank, "audit")
    assert bank.tally.violations == ["audit: all accounts together have 39993, not 40000"]
    client.add(stolen, 7)
    assert bank.check(bank.tally) == []
    client.delete(stolen)
    assert bank.check(bank.tally) == ["there are 39 accounts, not 40"]


def test_a_transfer_that_ended_up_half_is_found(
    client: wbkv.Client[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer with an unknown outcome must not lose money."""
    bank = loaded(client, "bank")

    def half(txn: wbkv.Txn[bytes], **options: Any) -> wbkv.TxnResult[bytes]:
        first = txn._then[0]
        client.add(first.key, -1)
        raise wbkv.OutcomeUnknown("it was lost on the way")

    with monkeypatch.context() as patched:
        patched.setattr(wbkv.Txn, "commit", half)
        with pytest.raises(wbkv.OutcomeUnknown):
            perform(bank, "transfer")
    assert bank.tally.unknown == {"transfer": 1}
    assert bank.tally.errors == {"transfer: OutcomeUnknown": 1}
    assert bank.check(bank.tally) == ["all accounts together have 39999, not 40000"]


def test_accounts_refuse_what_they_do_not_have(client: wbkv.Client[bytes]) -> None:
    bank = loaded(client, "bank", "balance=0")
    perform(bank, "checked-transfer")
    assert (bank.tally.ok, bank.tally.refused) == ({}, {"checked-transfer": 5})
    assert bank.check(bank.tally) == []


def test_records_that_are_lost_or_wrong_are_found(client: wbkv.Client[bytes]) -> None:
    ycsb = loaded(client, "ycsb-d")
    perform(ycsb, "insert", "read")
    assert ycsb.check(ycsb.tally) == []
    first, second, *_ = client.keys("run/ycsb-d/user/")
    client.delete(first)
    assert ycsb.check(ycsb.tally) == ["there are 44 records, not 45"]
    ycsb.tally.ok["insert"] -= 1
    ycsb.tally.unknown["insert"] += 1
    assert ycsb.check(ycsb.tally) == [], "one whose outcome is unknown may be missing"
    number = (client.get(second) or b"").partition(b":")[0].decode()
    for wrong in (f"{number}:short", f"0:{'x' * 20}"):
        client.put(second, wrong.encode())
        (problem,) = ycsb.check(ycsb.tally)
        assert problem.endswith(f"is b'{wrong}'")
    client.delete(wbkv.prefix("run/ycsb-d/user/"))
    with pytest.raises(Violation, match="is None"):
        perform(ycsb, "read")


def row(workload: Workload[Any], kind: str) -> bytes:
    """The first existing key of a kind."""
    return next(key for key in workload.client.keys(workload.prefix) if f"}}/{kind}".encode() in key)


def test_books_without_a_row_are_wrong(client: wbkv.Client[bytes]) -> None:
    orders = loaded(client, "orders", "warehouses=3", "districts=1", "customers=2", "keys=10")
    perform(orders, "new-order", "payment", "delivery", times=12)
    assert orders.check(orders.tally) == []
    for kind, complaint in (
        ("paid", r"\{w\d+\} has payments of 0, its districts of \d+"),
        ("district/00/paid", r"\{w\d+\} has payments of \d+, its districts of 0"),
        ("district/00/orders", "orders, and counts to 0"),
        ("customer/00/00000/paid", "all warehouses have payments of"),
        ("customer/00/00000/balance", "has a balance of 0, not"),
        ("order/", "orders, and counts to"),
        ("new/", "is not delivered, but no new order"),
        ("stock/", "has given 0, and orders have"),
    ):
        key = row(orders, kind)
        value = client.get(key)
        assert value is not None
        client.delete(key)
        wrong = orders.check(orders.tally)
        assert any(re.search(complaint, each) for each in wrong), (kind, wrong)
        client.put(key, value)
    assert orders.check(orders.tally) == []


def test_orders_without_an_acknowledgement_are_found(client: wbkv.Client[bytes]) -> None:
    orders = loaded(client, "orders")
    perform(orders, "new-order")
    orders.tally.ok["new-order"] -= 2
    count = orders.tally.ok["new-order"]
    assert orders.check(orders.tally) == [f"there are {count + 2} orders, and {count} were acknowledged"]
    orders.tally.unknown["new-order"] += 2
    assert orders.check(orders.tally) == []


def test_warehouses_go_round_all_partitions(client: wbkv.Client[bytes]) -> None:
    orders = loaded(client, "orders", "warehouses=6", "keys=1")
    homes = {key.split(b"/")[2]: client.partition_of(key) for key in client.keys(orders.prefix)}
    assert sorted(homes.values()) == [0, 0, 1, 1, 2, 2]


def test_a_store_that_a_scenario_does_not_fit_is_refused() -> None:
    with wbkv.open(partitions=1) as client:
        for name in ("bank", "orders"):
            with pytest.raises(LoadTestError, match="partitions"):
                loaded(client, name)
            loaded(client, name, "multi_partition=0")
