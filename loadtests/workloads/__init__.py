"""Workloads: the operations of users, and the invariants that must hold afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from loadtests.workloads.bank import Bank
from loadtests.workloads.base import Workload
from loadtests.workloads.orders import Orders
from loadtests.workloads.ycsb import Ycsb

WORKLOADS: Final[Mapping[str, type[Workload[Any]]]] = {"bank": Bank, "ycsb": Ycsb, "orders": Orders}
