"""One small history for each anomaly."""

from __future__ import annotations

from typing import Any

from tests.unit.wbkv.checker.brute import Transaction


def at_once(*operations: str, outcomes: dict[int, str] | None = None) -> list[Transaction]:
    """Transactions of different processes, all at the same time."""
    return [
        Transaction(number, 10 + number, 90 + number, (outcomes or {}).get(number, "ok"), parse(text))
        for number, text in enumerate(operations)
    ]


def first_and_then(first: str, then: str, *others: str, process: bool) -> list[Transaction]:
    """Two transactions one after the other, of one process or of two, and others at the same time as both."""
    return [
        Transaction(0, 10, 40, "ok", parse(first)),
        Transaction(0 if process else 1, 60, 90, "ok", parse(then)),
        *(Transaction(2 + number, 5, 95, "ok", parse(text)) for number, text in enumerate(others)),
    ]


def in_both_orders(cases: dict[str, tuple[str, ...]]) -> dict[str, list[Transaction]]:
    """The cases in the order of one process, and of real time."""
    return {
        f"{name}-{'process' if process else 'realtime'}": first_and_then(*operations, process=process)
        for process in (True, False)
        for name, operations in cases.items()
    }


def parse(text: str) -> list[list[Any]]:
    """'a x 1' appends, 'w x 1' writes, 'r x 1,2' and 'r x []' read lists, 'r x =1' and 'r x =' registers."""
    operations: list[list[Any]] = []
    for part in text.split("; "):
        function, key, value = part.split(" ")
        if function != "r":
            operations.append([{"a": "append", "w": "w"}[function], key, int(value)])
        elif value.startswith("="):
            operations.append(["r", key, int(value[1:]) if value[1:] else None])
        else:
            operations.append(["r", key, [] if value == "[]" else [int(item) for item in value.split(",")]])
    return operations


LISTS = {
    "internal": at_once("a x 1; r x []"),
    "duplicate-elements": at_once("a x 1", "r x 1,1"),
    "incompatible-order": at_once("a x 1", "a x 2", "r x 1,2", "r x 2,1"),
    "unwritten": at_once("r x 9"),
    "G1a": at_once("a x 1", "r x 1", outcomes={0: "fail"}),
    "G1b": at_once("a x 1; a x 2", "r x 1"),
    "G0": at_once("a x 1; a y 1", "a x 2; a y 2", "r x 1,2", "r y 2,1"),
    "G1c": at_once("a x 1; r y 1", "a y 1; r x 1"),
    "lost-update": at_once("r x []; a x 1", "r x []; a x 2", "r x 1,2"),
    "G-single": at_once("a x 1; a y 1", "r x 1; r y []"),
    "G-nonadjacent": at_once("a x 1", "a y 1", "r x 1; r y []", "r x []; r y 1"),
    "write-skew": at_once("r x []; a y 1", "r y []; a x 1"),
    "G2-item": at_once("r x []; a y 1", "r y []; a z 1", "r z []; a x 1"),
    **in_both_orders(
        {
            "G0": ("a x 1", "a x 2", "r x 2,1"),
            "G1c": ("r x 1", "a x 1"),
            "G-single": ("a x 1", "r x []"),
            "G-nonadjacent": ("a y 1", "r x []", "a x 1; a z 1", "r z 1; r y []"),
            "G2-item": ("a y 1", "r x []", "a x 1; r y []"),
        }
    ),
}
REGISTERS = {
    "internal": at_once("w x 1; r x ="),
    "unwritten": at_once("r x =9"),
    "G1a": at_once("w x 1", "r x =1", outcomes={0: "fail"}),
    "G1b": at_once("w x 1; w x 2", "r x =1"),
    "G1c": at_once("w x 1; r y =1", "w y 1; r x =1"),
    "lost-update": at_once("r x =; w x 1", "r x =; w x 2"),
    "G-single": at_once("w x 1; w y 1", "r x =1; r y ="),
    "G-nonadjacent": at_once("w x 1", "w y 1", "r x =1; r y =", "r x =; r y =1"),
    "write-skew": at_once("r x =; w y 1", "r y =; w x 1"),
    "G2-item": at_once("r x =; w y 1", "r y =; w z 1", "r z =; w x 1"),
    **in_both_orders(
        {
            "G1c": ("r x =1", "w x 1"),
            "G-single": ("w x 1", "r x ="),
            "G-nonadjacent": ("w y 1", "r x =", "w x 1; w z 1", "r z =1; r y ="),
            "G2-item": ("w y 1", "r x =", "w x 1; r y ="),
        }
    ),
}
WITH_READS = {
    "G0": at_once("r x =; w x 1; r y =2; w y 3", "r x =1; w x 2; w y 2"),
    **in_both_orders({"G0": ("r x =2; w x 1", "w x 2")}),
}
"""Registers whose writes are ordered by reads, so that the same transactions are on a cycle of reads, too."""
