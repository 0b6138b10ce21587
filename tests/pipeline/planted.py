"""One violation of each kind in an otherwise correct trace, and the checks that must find it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from tests.pipeline.trace_maker import WIDTH, Maker, Message, Row, Trace

PLANTED: Final[list[tuple[Callable[[Trace], None], set[str]]]] = []


def plant(*checks: str) -> Callable[[Callable[[Trace], None]], Callable[[Trace], None]]:
    def add(spoil: Callable[[Trace], None]) -> Callable[[Trace], None]:
        PLANTED.append((spoil, set(checks)))
        return spoil

    return add


def scenario(case: int) -> Trace:
    """A trace of two groups and three keys: at each position in the order a request, then two reads."""
    maker = Maker(case, random.Random(case), groups=2, messages=0)
    one, two = maker.trace.groups
    first, second, _ = maker.keys
    both, at = [one, two], maker.case * WIDTH

    def put(*keys: str) -> list[Row]:
        return [{"key": key, "end": None, "removed": False} for key in keys]

    steps: list[tuple[list[int], list[Row], str]] = [
        (both, put(first, second), "ok"),  # 1
        ([one], put(first), "ok"),  # 2
        (both, [{"key": second, "end": None, "removed": True}], "ok"),  # 3
        ([one], put(first), "unknown"),  # 4
        ([two], put(second), "failed"),  # 5
        (both, put(first), "ok"),  # 6
        (both, [{"key": first, "end": second, "removed": True}], "ok"),  # 7
        (both, put(first, second), "ok"),  # 8
        ([two], put(second), "ok"),  # 9
    ]
    for number, (groups, writes, outcome) in enumerate(steps, 1):
        maker.at_us += 1000
        maker.ask(at + 10 * number, groups, writes, outcome, arrives=True)
        maker.read(at + 10 * number, exact=False)
        maker.read(at + 10 * number, exact=True)
    sixth = maker.trace.messages[5]
    maker.trace.messages.append(Message(at + 100, both, sixth.client, sixth.sequence))  # once more
    maker.trace.messages.append(Message(at + 110, [one]))  # housekeeping
    maker.trace.messages.append(Message(at + 120, [two]))
    return maker.finish(quiet=True)


def at(trace: Trace, number: int) -> int:
    return trace.case * WIDTH + 10 * number


def asked(trace: Trace, number: int) -> Row:
    return next(row for row in trace.requests if row["sequence"] == number)


def reads(trace: Trace, number: int, *, exact: bool) -> list[Row]:
    """The reads after a message, key by key."""
    found: list[Row] = next(
        row["reads"]
        for row in trace.requests
        if row["client"] is None and row["revision"] == at(trace, number) and row["exact"] == exact
    )
    return found


def remove(trace: Trace, rows: list[Row]) -> None:
    trace.deliveries = [row for row in trace.deliveries if not any(row is one for one in rows)]


def change(rows: list[Row], **values: Any) -> None:
    for row in rows:
        row.update(values)


# Logs


@plant("positions")
def a_line_is_lost(trace: Trace) -> None:
    remove(trace, trace.copies(at(trace, 3), trace.groups[0])[:1])


@plant("positions")
def a_log_has_no_beginning(trace: Trace) -> None:
    remove(trace, trace.deliveries[:1])


@plant("order")
def a_state_goes_back(trace: Trace) -> None:
    last = trace.log(trace.runs(trace.groups[0])[0], trace.groups[0])[-1]
    jump = {**dict.fromkeys(last), "run": last["run"], "node": last["node"], "group": last["group"]}
    trace.deliveries.append({**jump, "kind": "jump", "position": last["position"] + 1, "gts": at(trace, 2)})


@plant("order", "agreement")
def two_messages_are_exchanged_at_a_replica(trace: Trace) -> None:
    rows = trace.deliveries
    third = rows.index(trace.copies(at(trace, 3), trace.groups[0])[0])
    rows[third - 1], rows[third] = rows[third], rows[third - 1]
    trace.renumber()


@plant("validity")
def a_group_delivers_what_was_not_for_it(trace: Trace) -> None:
    other = trace.groups[1]
    for row in trace.copies(at(trace, 11)):  # housekeeping of the first group
        run = trace.log(row["run"], other)
        index = trace.deliveries.index(run[-1])  # of 12
        trace.deliveries.insert(index, {**row, "group": other})
    trace.renumber()


@plant("integrity")
def a_replica_delivers_twice(trace: Trace) -> None:
    row = trace.copies(at(trace, 3))[0]
    trace.deliveries.insert(trace.deliveries.index(row), dict(row))
    trace.renumber()


@plant("integrity", "timestamps")
def a_group_delivers_twice_at_different_timestamps(trace: Trace) -> None:
    for row in trace.copies(at(trace, 11)):
        trace.deliveries.insert(trace.deliveries.index(row) + 1, {**row, "gts": at(trace, 11) + 1})
    trace.renumber()


@plant("timestamps")
def two_messages_have_one_timestamp(trace: Trace) -> None:
    change(trace.copies(at(trace, 3), trace.groups[1]), number=12345)


@plant("timestamps")
def replicas_differ_in_what_a_message_carries(trace: Trace) -> None:
    change(trace.copies(at(trace, 8))[:1], sequence=999)


@plant("timestamps", "projection")
def groups_differ_in_a_timestamp(trace: Trace) -> None:
    change(trace.copies(at(trace, 10), trace.groups[1]), gts=at(trace, 10) + 1)


@plant("agreement")
def a_replica_misses_a_message(trace: Trace) -> None:
    remove(trace, trace.copies(at(trace, 11))[:1])
    change(trace.copies(at(trace, 10), trace.groups[0])[:1], gts=at(trace, 10))
    last = trace.log(trace.runs(trace.groups[0])[0], trace.groups[0])[-1]
    trace.deliveries.insert(
        trace.deliveries.index(last) + 1,
        {**trace.copies(at(trace, 11))[0], **_whose(last), "gts": at(trace, 13), "number": 99},
    )
    trace.renumber()


def _whose(row: Row) -> Row:
    return {name: row[name] for name in ("run", "node", "group")}


@plant("projection")
def a_group_misses_a_message(trace: Trace) -> None:
    remove(trace, trace.copies(at(trace, 10), trace.groups[1]))
    trace.renumber()


# Requests


@plant("completeness")
def an_acknowledged_request_is_delivered_nowhere(trace: Trace) -> None:
    remove(trace, trace.copies(at(trace, 2)))
    trace.renumber()


@plant("completeness")
def another_message_is_where_a_request_was_acknowledged(trace: Trace) -> None:
    change(trace.copies(at(trace, 2)), client=None, sequence=None)


@plant("validity")
def a_request_has_no_sender(trace: Trace) -> None:
    change(trace.copies(at(trace, 11)), client=5, sequence=1)


@plant("validity")
def a_request_went_elsewhere(trace: Trace) -> None:
    asked(trace, 5)["partitions"] = [trace.groups[0]]


@plant("once")
def a_request_is_acknowledged_at_two_revisions(trace: Trace) -> None:
    again = dict(asked(trace, 6))
    trace.requests.append({**again, "revision": at(trace, 10), "reads": [], "writes": again["writes"]})
    last = trace.requests[-1]
    last["start_us"] = last["end_us"] = trace.requests[-2]["end_us"] + 1


@plant("once")
def a_repetition_takes_effect(trace: Trace) -> None:
    early = dict(trace.messages[5].__dict__)
    for row in trace.copies(at(trace, 3)):  # the sixth was there before it was acknowledged
        row.update(client=early["client"], sequence=early["sequence"])
    third = asked(trace, 3)
    trace.requests.remove(third)
    for request in trace.requests:
        request["reads"] = []


@plant("failed")
def a_read_saw_a_failed_write(trace: Trace) -> None:
    reads(trace, 5, exact=True)[1]["revision"] = at(trace, 5)


# Reads


@plant("reads")
def a_read_at_a_revision_is_stale(trace: Trace) -> None:
    reads(trace, 3, exact=True)[0]["revision"] = at(trace, 1)


@plant("reads")
def a_read_at_a_revision_sees_what_is_above_it(trace: Trace) -> None:
    reads(trace, 1, exact=True)[0]["revision"] = at(trace, 2)


@plant("reads")
def a_transaction_misses_what_was_before_it(trace: Trace) -> None:
    asked(trace, 8)["reads"] = [{"key": f"{trace.case}/k0", "revision": at(trace, 6)}]  # removed by 7


@plant("reads")
def a_key_that_is_there_is_not_found(trace: Trace) -> None:
    reads(trace, 9, exact=True)[0]["revision"] = 0


@plant("reads")
def a_removal_is_shown_as_a_version(trace: Trace) -> None:
    reads(trace, 3, exact=True)[1]["revision"] = at(trace, 3)


@plant("reads")
def a_read_of_now_misses_what_was_acknowledged(trace: Trace) -> None:
    row = next(row for row in trace.requests if row["reads"] is reads(trace, 9, exact=False))
    row["revision"] = at(trace, 1)
    row["reads"][1]["revision"] = at(trace, 8)


@plant("reads")
def a_read_of_now_sees_what_was_written_later(trace: Trace) -> None:
    reads(trace, 8, exact=False)[1]["revision"] = at(trace, 9)


@plant("reads")
def a_version_has_no_writer(trace: Trace) -> None:
    reads(trace, 9, exact=False)[0]["revision"] = at(trace, 9) - 5


# Not violations


@plant()
def nothing_is_wrong(trace: Trace) -> None:
    pass


@plant()
def an_unknown_request_may_not_have_happened(trace: Trace) -> None:
    for number in (4, 5):
        reads(trace, number, exact=True)[0]["revision"] = at(trace, 2)
    asked(trace, 6)["reads"] = [{"key": f"{trace.case}/k0", "revision": at(trace, 2)}]


@plant()
def clocks_of_two_clients_may_differ(trace: Trace) -> None:
    row = next(row for row in trace.requests if row["reads"] is reads(trace, 9, exact=False))
    row["revision"] = at(trace, 1)
    row["reads"][1]["revision"] = at(trace, 8)
    row["run"] = "another"
