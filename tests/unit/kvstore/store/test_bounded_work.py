"""No request makes a replica look at more than a slice of rows in one step of its loop, whatever it asks for.

Steps are calls of a partition; rows are counted by the maps that hold them, those of history by the changes
that are decoded with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvstore.machine import Machine, MachineState, MemoryMap, Store
from kvstore.machine.codec import decode_result
from kvstore.machine.placement import WRITES
from kvstore.machine.request import (
    Compare,
    Delete,
    DeleteRange,
    Get,
    Operator,
    Put,
    Range,
    ReadOperation,
    Scan,
    Shape,
    Subject,
    Transaction,
    Unchanged,
)
from kvstore.machine.results import Deleted, Failed, Fault, Got, Outcome, Scanned, Unmet
from kvstore.machine.slices import AT_ONCE_ROWS, RUN_ROWS, SLICE_ROWS
from kvstore.machine.versions import Version
from kvstore.store.messages import Answer, BallotCheck, Query, Results
from kvstore.store.partition import Partition
from kvstore.store.questions import (
    Changes,
    Entries,
    Feed,
    Page,
    ReadAt,
    Response,
    Sample,
    StrictRead,
    Values,
)  # fmt: skip
from kvstore.store.reads import FEED_AT_ONCE, STALE_S
from kvstore.store.share import PAUSE_S, Share
from multicast.types import ClientId, timestamp
from tests.unit.kvstore.store.test_partition import GATEWAY, PLACEMENT, A, Leader, delivery

KEYS = 4 * SLICE_ROWS
BATCH = 500
OTHER_GATEWAY = ClientId(GATEWAY + 1)
MOST = SLICE_ROWS + SLICE_ROWS // 4
"""A step ends soon after its slice: with the row that used it up, and what writes cost."""
ALL = Range(b"", b"m")


def cost(row: Any) -> int:
    """Rows that a row stands for: a row of history for its changes, a large value for its bytes."""
    if isinstance(row, tuple):
        return 1 + len(row) // 8
    return 1 + len(row.value or b"") // 4096 if isinstance(row, Version) else 1


class CountedMap(MemoryMap[Any, Any]):
    """A map that counts the rows that are looked at, and the changes in those of history."""

    looked_at = 0

    def __init__(self) -> None:
        super().__init__()
        found = self.get

        def get(key: Any, default: Any = None) -> Any:
            row = found(key, default)
            self.looked_at += cost(row)
            return row

        self.get = get

    def items(self, start: Any, end: Any | None, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        for row in super().items(start, end, reverse=reverse):
            self.looked_at += cost(row[1]) if isinstance(row[1], Version) else 1
            yield row


class Loaded:
    """A partition with many keys, that leads and is alone in its group."""

    def __init__(self, keys: int = KEYS) -> None:
        self.latest, self.history = CountedMap(), CountedMap()
        replica: Any = Leader(A)
        replica.readers = (replica.me,), 1
        replica.others = ()
        store = Store(latest=self.latest, history=self.history)
        self.partition = Partition(replica, Machine(A, store, MachineState(PLACEMENT)), share=Share())
        self.time, self.now = 1, 0.0
        self.order(Transaction(then=(Put(b"a", b"old"),)))
        self.before = timestamp(self.time, A)
        for first in range(0, keys, BATCH):
            batch = range(first, first + BATCH)
            self.order(Transaction(then=tuple(Put(b"k%07d" % number, b"v") for number in batch)))
        self.steps: list[int] = []

    def step(self, handler: Any, *arguments: Any) -> Any:
        """One step of the loop. Its rows are counted."""
        self.latest.looked_at = self.history.looked_at = 0
        found = handler(*arguments)
        if hasattr(self, "steps"):
            self.steps.append(self.latest.looked_at + self.history.looked_at)
        return found

    def turn(self) -> Any:
        """The next turn, when long transactions may go on."""
        self.now += PAUSE_S
        self.step(self.partition.work, self.now)
        return self.step(self.partition.turn, self.now)

    def order(self, transaction: Transaction) -> tuple[Outcome, int]:
        """Order a transaction. Returns its outcome, and how many turns that took."""
        self.time += 1
        self.step(self.partition.deliver, [delivery(self.time, transaction, (A,))])
        for turns in range(1000):
            for _, _, message in self.turn():
                if isinstance(message, Results):
                    outcome = decode_result(message.results[0])
                    assert isinstance(outcome, Outcome)
                    return outcome, turns
        raise AssertionError("there is no result")

    def ask(self, question: Any) -> Response:
        """Ask a question, and wait for the answer."""
        self.step(self.partition.receive, GATEWAY, Query(1, question), self.now)
        for _ in range(1000):
            for _, _, message in self.turn():
                assert not isinstance(message, BallotCheck)
                if isinstance(message, Answer):
                    return message.response
        raise AssertionError("there is no answer")


@pytest.fixture(scope="module")
def _loaded() -> Loaded:
    return Loaded()


@pytest.fixture
def loaded(_loaded: Loaded) -> Loaded:
    _loaded.steps.clear()
    return _loaded


COUNT = Scan(ALL, shape=Shape.COUNT)


@pytest.mark.parametrize("count", [1, 14])
def test_counts_in_a_transaction(loaded: Loaded, count: int) -> None:
    outcome, turns = loaded.order(Transaction(then=(Put(b"l", b""), *[COUNT] * count)))
    found = [result.count for _, result in outcome.results if isinstance(result, Scanned)]
    assert found == [KEYS + 1 + 1] * count
    assert max(loaded.steps) <= MOST
    assert turns >= count * KEYS // RUN_ROWS - 1
    loaded.order(Transaction(then=(Delete(b"l"),)))


def test_a_condition_on_a_range(loaded: Loaded) -> None:
    for since, unmet in ((loaded.partition.machine.watermark, ()), (loaded.before, (Unmet(0),))):
        outcome, _ = loaded.order(Transaction((Unchanged(ALL, since),), (Get(b"a"),), (Get(b"a"),)))
        assert outcome.unmet == unmet
    assert max(loaded.steps) <= MOST


def test_others_are_executed_meanwhile(loaded: Loaded) -> None:
    partition, first = loaded.partition, loaded.time + 1
    before = partition.machine.watermark
    asked = [
        Transaction(then=(Put(b"l", b""), Scan(Range(b"k", b"l"), shape=Shape.COUNT))),
        Transaction(then=(Get(b"l"),)),
        Transaction(then=(Put(b"b", b""),)),
    ]
    loaded.step(partition.deliver, [delivery(first + i, each, (A,)) for i, each in enumerate(asked)])
    loaded.time += len(asked)
    answered: list[int] = []
    while len(answered) < len(asked):
        for _, _, message in loaded.turn():
            if isinstance(message, Results):
                answered += [mid.sequence - first for mid in message.mids]
        assert (partition.machine.watermark == before) is (0 not in answered), "it is not passed"
    assert answered == [2, 0, 1], "the second one reads what the first one writes"
    assert max(loaded.steps) <= MOST
    loaded.order(Transaction(then=(Delete(b"l"), Delete(b"b"))))


def test_a_delete_of_a_range() -> None:
    loaded = Loaded(2 * SLICE_ROWS)
    loaded.steps.clear()
    outcome, turns = loaded.order(Transaction(then=(DeleteRange(ALL),)))
    assert outcome.results == ((0, Deleted(2 * SLICE_ROWS + 1)),)
    assert turns >= 1
    assert max(loaded.steps) <= MOST, "the last step writes, and looks at nothing"


def test_many_writes() -> None:
    """Their old versions are looked at in slices."""
    loaded = Loaded()
    loaded.steps.clear()
    puts = tuple(Put(b"k%07d" % number, b"new") for number in range(KEYS))
    assert len(puts) > WRITES
    outcome, turns = loaded.order(Transaction(then=puts))
    assert len(outcome.results) == KEYS
    assert turns >= 1.5 * KEYS // SLICE_ROWS - 1
    assert max(loaded.steps) <= MOST
    assert loaded.partition.machine.versions.get(b"k0000007") is not None


def test_a_put_of_a_range_that_is_counted_is_answered_at_once(loaded: Loaded) -> None:
    partition, time = loaded.partition, loaded.time
    loaded.time += 30
    counts = Transaction(then=(COUNT,) * 14)
    loaded.step(partition.deliver, [delivery(time + 1 + i, counts, (A,)) for i in range(10)])
    for number in range(10):
        put = Transaction(then=(Put(b"k0000001", b"%d" % number), Put(b"k%dnew" % number, b"")))
        loaded.step(partition.deliver, [delivery(time + 11 + number, put, (A,))])
        answered = [message for _, _, message in loaded.turn() if isinstance(message, Results)]
        assert [mid.sequence for message in answered for mid in message.mids] == [time + 11 + number]
    assert partition.machine.waiting == 10
    while partition.machine.waiting:
        loaded.turn()
    assert max(loaded.steps) <= MOST


def test_a_page_of_the_past(loaded: Loaded) -> None:
    """Nearly all keys are newer: a page ends after so many rows, although it has found nothing."""
    found: list[bytes] = []
    page = Page(Scan(ALL), loaded.before)
    for _ in range(1000):
        response = loaded.ask(page)
        assert isinstance(response, Entries)
        found += [entry.key for entry in response.entries]
        if response.resume is None:
            break
        page = Page(Scan(Range(response.resume, ALL.end)), loaded.before)
    assert found == [b"a"]
    assert max(loaded.steps) <= MOST
    assert sum(loaded.steps) <= 2 * KEYS, "history is not read for keys that did not exist"


@pytest.mark.parametrize("operations", [(COUNT,), (COUNT,) * 25, (Scan(ALL, limit_bytes=8 << 20),)])
def test_reads_that_are_too_long_for_a_step(loaded: Loaded, operations: tuple[ReadOperation, ...]) -> None:
    for question in (ReadAt(operations, loaded.before), ReadAt(operations), StrictRead(operations)):
        response = loaded.ask(question)
        assert isinstance(response, Values)
        assert response.results == (), "the asker goes on page by page"
    assert max(loaded.steps) <= MOST


def test_an_old_version_of_a_key_that_is_written_often() -> None:
    loaded = Loaded(0)
    for _ in range(2 * SLICE_ROWS):
        loaded.order(Transaction(then=(Put(b"a", b"new"),)))
    loaded.steps.clear()
    response = loaded.ask(ReadAt((Get(b"a"),), loaded.before))
    assert isinstance(response, Values)
    assert response.results == ()
    page = Page(Scan(Range(b"a", b"b")), loaded.before)
    pages = 0
    while True:
        entries = loaded.ask(page)
        assert isinstance(entries, Entries)
        pages += 1
        if entries.resume is None:
            break
        page = Page(Scan(Range(entries.resume, b"b")), loaded.before, entries.via)
    assert [entry.value for entry in entries.entries] == [b"old"]
    assert pages > 1
    assert max(loaded.steps) <= MOST


def test_many_reads_of_large_values() -> None:
    """A small request for the same megabyte, hundreds of times."""
    loaded = Loaded(0)
    loaded.order(Transaction(then=(Put(b"large", b"v" * (1 << 20)),)))
    gets = (Get(b"large"),) * 500
    loaded.steps.clear()
    outcome, turns = loaded.order(Transaction(then=(Put(b"a", b""), *gets)))
    found = [result for _, result in outcome.results[1:]]
    assert isinstance(found[0], Got)
    assert found[-1] == Failed(Fault.VALUE_TOO_LARGE)
    compare = Compare(b"large", Subject.VALUE, Operator.NOT_EQUAL, b"")
    loaded.order(Transaction((compare,) * 500, (Put(b"a", b""),)))
    for question in (ReadAt(gets), StrictRead(gets)):
        response = loaded.ask(question)
        assert isinstance(response, Values)
        assert 0 < len(response.results) < 10
    assert max(loaded.steps) <= MOST + 257
    assert turns > 10


def test_samples_take_turns(loaded: Loaded) -> None:
    for number in range(5):
        loaded.step(loaded.partition.receive, GATEWAY, Query(number, Sample(ALL, 64, 1 << 15)), loaded.now)
    answers = []
    for _ in range(10):
        found = loaded.turn()
        answers.append(sum(isinstance(message, Answer) for _, _, message in found))
    assert sum(answers) == 5
    assert max(answers) <= 2


def test_slices_leave_time_for_others(loaded: Loaded) -> None:
    """Turns that follow each other at once have one slice together."""
    loaded.time += 1
    loaded.turn()
    loaded.step(loaded.partition.deliver, [delivery(loaded.time, Transaction(then=(COUNT,)), (A,))])
    loaded.now += PAUSE_S
    loaded.steps.clear()
    for _ in range(5):
        loaded.step(loaded.partition.work, loaded.now)
        loaded.step(loaded.partition.turn, loaded.now)
    assert 0 < sum(loaded.steps) <= MOST
    assert loaded.partition.wake_at == loaded.now + PAUSE_S
    while loaded.partition.machine.waiting:
        loaded.turn()


def test_a_restart_does_not_execute_all_at_once(loaded: Loaded) -> None:
    partition = loaded.partition
    loaded.time += 1
    loaded.step(partition.deliver, [delivery(loaded.time, Transaction(then=(COUNT,) * 25), (A,))])
    state = partition.machine.state()
    assert len(state.waiting) == 1
    store = Store(latest=loaded.latest, history=loaded.history)
    machine = loaded.step(Machine, A, store, state)
    while machine.waiting:
        loaded.step(machine.run)
    assert max(loaded.steps) <= MOST
    while partition.machine.waiting:
        loaded.turn()
    assert partition.machine.state().watermark == machine.watermark


def test_what_is_delivered_together_looks_at_few_rows_at_once(loaded: Loaded) -> None:
    """Long work at delivery would be outside of the node's share of it."""
    partition, time = loaded.partition, loaded.time
    loaded.time += 10
    counts = Transaction(then=(COUNT,) * 14)
    loaded.step(partition.deliver, [delivery(time + 1 + i, counts, (A,)) for i in range(10)])
    assert 0 < loaded.steps[-1] <= AT_ONCE_ROWS + 1
    while partition.machine.waiting:
        loaded.turn()


def test_a_turn_does_no_slice(loaded: Loaded) -> None:
    """The messages of a turn leave first: `work` is called after it."""
    partition = loaded.partition
    loaded.time += 1
    loaded.step(partition.deliver, [delivery(loaded.time, Transaction(then=(COUNT,)), (A,))])
    loaded.step(partition.receive, GATEWAY, Query(1, Page(COUNT, loaded.before)), loaded.now)
    loaded.step(partition.receive, GATEWAY, Query(2, Feed(0, (ALL,), 1 << 20, 1.0)), loaded.now)
    for _ in range(5):
        loaded.now += PAUSE_S
        assert loaded.step(partition.turn, loaded.now) == []
        assert loaded.steps[-1] == 0
    kinds = set()
    while partition.has_long_work:
        kinds |= {type(message) for _, _, message in loaded.turn()}
    assert kinds == {Results, Answer}


def test_gateways_that_are_behind_take_turns_with_their_questions_for_changes(loaded: Loaded) -> None:
    """One gateway's watchers of history do not hold up those of another, nor a step."""
    partition = loaded.partition
    history = Feed(0, (ALL,), 1 << 20, 0.0)
    for number in range(8):
        loaded.step(partition.receive, GATEWAY, Query(number, history), loaded.now)
    loaded.step(partition.receive, OTHER_GATEWAY, Query(1, history), loaded.now)
    loaded.steps.clear()
    answered: list[ClientId] = []
    while partition.has_long_work:
        found = [(receivers[0], message) for _, receivers, message in loaded.turn()]
        assert len(found) <= 1, "the first answer uses the slice up"
        for client, message in found:
            assert isinstance(message.response, Changes)
            answered.append(client)
    assert answered == [GATEWAY, OTHER_GATEWAY, *[GATEWAY] * 7]
    assert max(loaded.steps) <= 2 * MOST, "rows of history are decoded as a whole"


def test_a_question_for_changes_that_waits_is_answered_at_once_by_the_first_of_them(loaded: Loaded) -> None:
    partition, after = loaded.partition, loaded.partition.machine.watermark
    for number in range(3):
        loaded.step(partition.receive, GATEWAY, Query(number, Feed(0, (ALL,), 1 << 20, 1.0)), loaded.now)
    loaded.step(partition.receive, OTHER_GATEWAY, Query(1, Feed(after, (ALL,), 1 << 20, 1.0)), loaded.now)
    loaded.time += 1
    puts = tuple(Put(b"k%07d" % number, b"v") for number in range(2 * FEED_AT_ONCE))
    loaded.step(partition.deliver, [delivery(loaded.time, Transaction(then=puts), (A,))])
    while loaded.partition.machine.running:
        partition.machine.run()
    found = loaded.step(partition.turn, loaded.now)
    changes = [message.response for _, (to,), message in found if to == OTHER_GATEWAY]
    assert [len(events) for each in changes for _, events in each.transactions] == [FEED_AT_ONCE]
    while partition.has_long_work:
        loaded.turn()


def test_questions_for_changes_whose_askers_have_asked_elsewhere_are_dropped(loaded: Loaded) -> None:
    for number in range(5):
        question = Query(number, Feed(0, (ALL,), 1 << 20, 1.0))
        loaded.step(loaded.partition.receive, GATEWAY, question, loaded.now)
    loaded.now += STALE_S
    assert loaded.turn() == []
    assert not loaded.partition.has_long_work


def test_watchers_of_the_present_do_not_wait_for_those_of_history(loaded: Loaded) -> None:
    for number in range(8):
        question = Query(number, Feed(0, (ALL,), 1 << 20, 0.0))
        loaded.step(loaded.partition.receive, GATEWAY, question, loaded.now)
    live = Query(8, Feed(loaded.before, (ALL,), 1 << 20, 1.0))
    loaded.step(loaded.partition.receive, GATEWAY, live, loaded.now)
    answered: list[int] = []
    while loaded.partition.has_long_work:
        answered += [message.number for _, _, message in loaded.turn()]
    assert answered == [8, *range(8)]
