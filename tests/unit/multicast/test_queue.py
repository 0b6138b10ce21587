"""The delivery queue against a model that looks at every message each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from multicast.queue import DeliveryQueue
from multicast.types import GroupId, Timestamp, timestamp
from tests.unit.multicast.replicas import EXAMPLES

HERE = GroupId(1)


@dataclass
class Model:
    """Line 22 as written: deliver m if no message that is not committed has a lower local timestamp."""

    uncommitted: dict[Timestamp, str] = field(default_factory=dict)
    committed: list[tuple[Timestamp, str]] = field(default_factory=list)

    def pop(self) -> str | None:
        for global_ts, item in self.committed:
            first = all(global_ts <= other for other, _ in self.committed)
            if first and all(local_ts > global_ts for local_ts in self.uncommitted):
                self.committed.remove((global_ts, item))
                return item
        return None


class QueueAgainstModel(RuleBasedStateMachine):
    """Arbitrary interleavings of proposals, commits and deliveries, as a leader may do them."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: DeliveryQueue[str] = DeliveryQueue()
        self.model = Model()
        self.times = 0
        self.taken: set[Timestamp] = set()
        self.delivered: list[Timestamp] = []
        self.place: dict[str, Timestamp] = {}

    def fresh(self) -> Timestamp:
        self.times += 1
        return timestamp(self.times, HERE)

    @rule(gap=st.integers(0, 3))
    def propose(self, gap: int) -> None:
        self.times += gap
        local_ts = self.fresh()
        self.queue.propose(local_ts, f"m{local_ts}")
        self.model.uncommitted[local_ts] = f"m{local_ts}"

    @precondition(lambda self: self.model.uncommitted)
    @rule(data=st.data(), ahead=st.integers(-1, 6), group=st.sampled_from([0, 2]))
    def commit(self, data: st.DataObject, ahead: int, group: int) -> None:
        local_ts = data.draw(st.sampled_from(sorted(self.model.uncommitted)))
        global_ts = local_ts
        if ahead >= 0:
            # Another group's proposal was higher.
            global_ts = timestamp((local_ts >> 10) + ahead + 1, GroupId(group))
        while global_ts in self.taken:
            global_ts = Timestamp(global_ts + 1024)
        self.taken.add(global_ts)
        item = self.model.uncommitted.pop(local_ts)
        self.place[item] = global_ts
        self.queue.commit(local_ts, global_ts)
        self.model.committed.append((global_ts, item))

    @rule(ahead=st.integers(0, 9))
    def recover_committed(self, ahead: int) -> None:
        self.times += 1
        global_ts = timestamp(self.times + ahead, GroupId(3))
        if global_ts not in self.taken:
            self.taken.add(global_ts)
            item = f"r{global_ts}"
            self.place[item] = global_ts
            self.queue.add_committed(global_ts, item)
            self.model.committed.append((global_ts, item))

    @rule()
    def pop(self) -> None:
        assert self.queue.pop() == self.model.pop()

    @rule()
    def clear(self) -> None:
        self.queue.clear()
        self.model = Model()

    @invariant()
    def same_contents(self) -> None:
        assert len(self.queue) == len(self.model.uncommitted) + len(self.model.committed)
        assert list(self.queue.uncommitted()) == [item for _, item in sorted(self.model.uncommitted.items())]


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = EXAMPLES


@EXAMPLES
@given(st.permutations(range(1, 9)), st.lists(st.integers(0, 7), min_size=8, max_size=8), st.data())
def test_the_order_of_commits_does_not_change_the_order_of_deliveries(
    order: list[int], lifts: list[int], data: st.DataObject
) -> None:
    queue: DeliveryQueue[int] = DeliveryQueue()
    places: dict[int, Timestamp] = {}
    for number in range(1, 9):
        queue.propose(timestamp(number, HERE), number)
        # Unique, for the message's number is the group of the highest proposal.
        lift = lifts[number - 1]
        places[number] = timestamp(number + lift, GroupId(10 + number)) if lift else timestamp(number, HERE)
    delivered: list[int] = []
    for number in order:
        queue.commit(timestamp(number, HERE), places[number])
        if data.draw(st.booleans()):
            while (item := queue.pop()) is not None:
                delivered.append(item)
    while (item := queue.pop()) is not None:
        delivered.append(item)
    assert delivered == sorted(places, key=lambda number: places[number])
    assert len(queue) == 0


def test_a_committed_message_waits_for_a_lower_proposal() -> None:
    queue: DeliveryQueue[str] = DeliveryQueue()
    queue.propose(timestamp(1, HERE), "low")
    queue.propose(timestamp(2, HERE), "high")
    queue.commit(timestamp(2, HERE), timestamp(2, HERE))
    assert queue.pop() is None
    queue.commit(timestamp(1, HERE), timestamp(5, GroupId(2)))
    assert [queue.pop(), queue.pop(), queue.pop()] == ["high", "low", None]


def test_a_proposal_between_local_and_global_timestamp_holds_the_message_back() -> None:
    queue: DeliveryQueue[str] = DeliveryQueue()
    queue.propose(timestamp(1, HERE), "first")
    queue.propose(timestamp(3, HERE), "between")
    queue.commit(timestamp(1, HERE), timestamp(7, GroupId(2)))
    assert queue.pop() is None
    queue.commit(timestamp(3, HERE), timestamp(9, GroupId(2)))
    assert [queue.pop(), queue.pop()] == ["first", "between"]


def test_what_is_proposed_above_the_global_timestamp_does_not_hold_it_back() -> None:
    queue: DeliveryQueue[str] = DeliveryQueue()
    queue.propose(timestamp(1, HERE), "first")
    queue.commit(timestamp(1, HERE), timestamp(7, GroupId(2)))
    queue.propose(timestamp(8, HERE), "later")
    assert queue.pop() == "first"
    assert queue.pop() is None


def test_two_messages_with_one_global_timestamp_go_in_the_order_in_which_they_were_committed() -> None:
    """No correct leader gives one local timestamp to two messages; one that does stops no other replica."""
    queue: DeliveryQueue[object] = DeliveryQueue()
    first, second, third = object(), object(), object()
    queue.propose(timestamp(1, HERE), first)
    queue.propose(timestamp(2, HERE), second)
    queue.commit(timestamp(2, HERE), timestamp(7, GroupId(2)))
    queue.commit(timestamp(1, HERE), timestamp(7, GroupId(2)))
    queue.add_committed(timestamp(7, GroupId(2)), third)
    assert [queue.pop() for _ in range(3)] == [second, first, third]
