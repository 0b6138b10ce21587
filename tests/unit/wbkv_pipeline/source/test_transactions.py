from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)
from wbkv_pipeline.errors import PipelineError
from wbkv_pipeline.source.ids import WINDOW, counted_id, named_id
from wbkv_pipeline.source.options import parse
from wbkv_pipeline.source.rows import Row, Rows, check_columns
from wbkv_pipeline.source.sorting import Sorter
from wbkv_pipeline.source.transactions import Task, WriteTransaction, by_partition, by_txn_id, check_limits

LIMITS = {"key_bytes": 16, "value_bytes": 100, "operations": 5, "transaction_bytes": 300}
TASK = Task(("batch", "job"), 3, 1000)


def gathered(*batches: dict[str, list[Any]], types: dict[str, pa.DataType] | None = None) -> list[Row]:
    """The rows as a task reads them."""
    with Sorter() as sorter:
        rows = Rows(sorter, LIMITS, lambda key: key[-1] % 2)
        for columns in batches:
            arrays = [pa.array(data, (types or {}).get(name)) for name, data in columns.items()]
            rows.add(pa.record_batch(arrays, names=list(columns)))
        return list(rows)


def contents(transaction: WriteTransaction) -> list[tuple[bytes, object]]:
    return [(operation.key, getattr(operation, "value", None)) for operation in transaction.operations]


# Rows


def test_rows_come_by_partition_and_key() -> None:
    assert gathered({"key": [b"b", b"a"], "value": [b"1", None]}, {"key": [b"c"], "value": [b"3"]}) == [
        (0, b"b", b"1"),
        (1, b"a", None),
        (1, b"c", b"3"),
    ]


def test_text_is_bytes_and_a_deleted_rows_value_does_not_count() -> None:
    found = gathered(
        {
            "value": ["x", "y", "z"],
            "delete": [True, False, None],
            "key": ["b", "d", "é"],
            "txn_id": [2, 10, 1],
        },
        types={"value": pa.large_string(), "txn_id": pa.int32()},
    )
    assert found == [(1, "é".encode(), b"z"), (2, b"b", None), (10, b"d", b"y")]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"key": [b"a", None], "value": [b"", b""]}, "key is null, in row 3 of this task"),
        ({"key": [b"a", b""], "value": [b"", b""]}, "key is empty, in row 3 of this task"),
        ({"key": [b"a" * 17], "value": [b""]}, "key exceeds the cluster's limit of 16 bytes .*, in row 2"),
        ({"key": [b"a"], "value": [b"a" * 101]}, "value exceeds the cluster's limit of 100 bytes"),
        ({"key": [b"a"], "value": [b"a"], "txn_id": [None]}, "txn_id is null, in row 2 of this task"),
    ],
)
def test_a_bad_row_is_named(columns: dict[str, list[Any]], line: str) -> None:
    with pytest.raises(PipelineError, match=line):
        gathered({name: [b"a"] for name in columns}, columns, types=dict.fromkeys(columns, pa.binary()))


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found.add(name, kind)
    return found


def test_what_can_be_written() -> None:
    check_columns(schema(value=BinaryType(), key=StringType()))
    check_columns(schema(key=BinaryType(), value=StringType(), txn_id=LongType(), delete=BooleanType()))
    check_columns(schema(key=BinaryType(), value=StringType(), txn_id=StringType()))


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"value": BinaryType()}, "the DataFrame has no column key"),
        ({"key": BinaryType()}, "the DataFrame has no column value .*; null removes the key"),
        (
            {"key": BinaryType(), "value": BinaryType(), "version": LongType()},
            "the column version cannot be written",
        ),
        ({"key": IntegerType(), "value": BinaryType()}, "the column key must be binary or string, not int"),
        (
            {"key": BinaryType(), "value": ArrayType(BinaryType())},
            "value must be binary or string, not array<",
        ),
        ({"key": BinaryType(), "value": BinaryType(), "delete": StringType()}, "delete must be boolean"),
    ],
)
def test_what_cannot_be_written(columns: dict[str, DataType], line: str) -> None:
    with pytest.raises(PipelineError, match=line):
        check_columns(schema(**columns))


# Transactions


def rows(count: int, group: Callable[[int], Any], length: int = 1) -> list[Row]:
    made = [(group(number), b"%03d" % number, b"v" * length) for number in range(count)]
    return sorted(made, key=lambda row: row[:2])


def test_a_transaction_is_of_one_partition_and_bounded() -> None:
    cut = list(by_partition(rows(20, lambda n: n % 2), parse({"batchRows": "4"})))
    assert [(each.group, each.number, len(each.operations)) for each in cut] == [
        (0, 0, 4), (0, 1, 4), (0, 2, 2), (1, 0, 4), (1, 1, 4), (1, 2, 2),
    ]  # fmt: skip
    assert [each.size for each in cut] == [16, 16, 8, 16, 16, 8]
    assert contents(cut[0])[:2] == [(b"000", b"v"), (b"002", b"v")]
    small = list(by_partition(rows(4, lambda _: 0, 10), parse({"batchBytes": "26"})))
    assert [len(each.operations) for each in small] == [2, 2]
    alone = list(by_partition(rows(4, lambda _: 0, 99), parse({"batchBytes": "26"})))
    assert [len(each.operations) for each in alone] == [1, 1, 1, 1]


def test_all_rows_of_an_id_are_one_transaction() -> None:
    cut = list(by_txn_id([(b"x", b"a", b"1"), (b"x", b"b", None), (b"y", b"a", b"2")], LIMITS))
    assert [(each.group, contents(each)) for each in cut] == [
        (b"x", [(b"a", b"1"), (b"b", None)]),
        (b"y", [(b"a", b"2")]),
    ]


@pytest.mark.parametrize(
    ("cut", "line"),
    [
        (
            lambda: by_partition([(0, b"a", b"1"), (0, b"a", b"2")], parse({})),
            "key b'a' occurs twice in a task",
        ),
        (
            lambda: by_partition([(0, b"a", b"1"), (0, b"a", b"2")], parse({"batchRows": "1"})),
            "key b'a' occurs twice in a task",
        ),
        (
            lambda: by_txn_id([(7, b"a", b"1"), (7, b"a", b"2")], LIMITS),
            "b'a' occurs twice in the transaction 7",
        ),
        (
            lambda: by_txn_id(rows(6, lambda _: b"x"), LIMITS),
            "transaction 'x' is too large: .* 5 rows and 300",
        ),
        (lambda: by_txn_id(rows(4, lambda _: b"x", 90), LIMITS), "transaction 'x' is too large"),
    ],
)
def test_what_can_be_no_transaction(cut: Callable[[], Iterator[WriteTransaction]], line: str) -> None:
    with pytest.raises(PipelineError, match=line):
        list(cut())


def test_limits_of_the_cluster() -> None:
    check_limits(parse({"batchRows": "5", "batchBytes": "300"}), LIMITS)
    with pytest.raises(PipelineError, match="batchRows must be at most 5, not 500: the cluster's limit"):
        check_limits(parse({}), LIMITS)
    with pytest.raises(PipelineError, match="batchBytes must be at most 300"):
        check_limits(parse({"batchRows": "5"}), LIMITS)


# Ids


def test_ids_do_not_depend_on_the_order_of_rows() -> None:
    given = [(number % 3, b"%d" % number, b"v") for number in range(50)]
    ids = []
    for seed in range(2):
        Random(seed).shuffle(given)
        cut = by_partition(sorted(given), parse({"batchRows": "4"}))
        ids.append([(TASK.id_of(each), contents(each)) for each in cut])
    assert ids[0] == ids[1]
    assert len({found for found, _ in ids[0]}) == len(ids[0])


def test_ids_tell_jobs_tasks_partitions_and_batches_apart() -> None:
    one = WriteTransaction(0, 0, [], 0)
    tasks = [
        TASK,
        Task(("batch", "other"), 3, 1000),
        Task(("stream", "job", 1), 3, 1000),
        Task(("batch", "job"), 4, 9),
    ]
    ids = {task.id_of(one)[:2] for task in tasks}
    ids |= {TASK.id_of(each)[:2] for each in (WriteTransaction(1, 0, [], 0), WriteTransaction(0, 1, [], 0))}
    assert len(ids) == 6


def test_a_named_transaction_has_its_id_in_all_tasks() -> None:
    named = [WriteTransaction(name, None, [], 0) for name in (b"7", 7, b"x", b"")]
    other = Task(("batch", "job"), 9, 1000)
    assert [TASK.id_of(each) for each in named] == [other.id_of(each) for each in named]
    assert len({TASK.id_of(each) for each in named}) == 4


def test_ids_fit_the_store() -> None:
    ids = [counted_id(5, number, "job") for number in range(3 * WINDOW)]
    ids += [named_id(5, "other", number) for number in range(1000)]
    assert len(set(ids)) == len(ids)
    assert all(0 < found.client < 2**63 and 1 <= found.sequence <= WINDOW for found in ids)
    assert {found.sequence for found in ids[:WINDOW]} == set(range(1, WINDOW + 1))
    assert len({found.client for found in ids[: 3 * WINDOW]}) == 3
    assert {found.deadline for found in ids} == {5}


def test_the_borders_of_a_name_count() -> None:
    assert named_id(5, "ab", "c") != named_id(5, "a", "bc")
    assert named_id(5, "a") != named_id(5, b"a")


def test_ids_stay_what_they_are() -> None:
    """A job that continues with another version of this code must compute the same ids."""
    assert counted_id(5, 4097, "job", 1, 2)[:2] == (4838100734984439386, 2)
    assert named_id(5, "job", b"x")[:2] == (3998411430964143421, 2494)
