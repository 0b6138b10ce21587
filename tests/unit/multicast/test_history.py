"""The chain of recent deliveries against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multicast.history import DeliveryHistory
from multicast.messages import Delivery
from multicast.types import NO_TIMESTAMP, ClientId, GroupId, MessageId, Timestamp
from tests.unit.multicast.replicas import EXAMPLES


def chain(sizes: list[int], start: Timestamp = NO_TIMESTAMP) -> list[Delivery]:
    found, previous = [], start
    for number, size in enumerate(sizes, 1):
        at = Timestamp(previous + 1 + number % 3)
        mid = MessageId(ClientId(1), number, 0)
        found.append(Delivery(mid, (GroupId(0),), bytes(size), 1, at, at, previous, mismatch=False))
        previous = at
    return found


def obvious(kept: list[Delivery], position: int, count: int, size: int) -> list[Delivery]:
    at = next((index for index, delivery in enumerate(kept) if delivery.previous_ts == position), None)
    if at is None:
        return []
    most = min(count, len(kept) - at)
    fitting = [n for n in range(2, most + 1) if sum(len(d.payload) for d in kept[at : at + n]) <= size]
    return kept[at : at + max([min(1, most), *fitting])]


@EXAMPLES
@given(
    st.lists(st.integers(0, 20), max_size=20),
    st.integers(0, 12),
    st.integers(0, 90),
    st.integers(1, 8),
    st.integers(1, 60),
    st.integers(0, 50),
)
def test_same_answers_as_a_list(
    sizes: list[int], capacity: int, bytes_max: int, count: int, size: int, start: int
) -> None:
    history, deliveries = DeliveryHistory(capacity, bytes_max), chain(sizes, Timestamp(start))
    kept: list[Delivery] = []
    for delivery in deliveries:
        history.extend([delivery])
        kept = [*kept, delivery][-capacity:] if capacity else []
        while sum(len(each.payload) for each in kept) > bytes_max:
            kept = kept[1:]
        assert len(history) == len(kept)
    for position in range(start + 4 * len(sizes) + 2):
        found = history.after(Timestamp(position), count, size)
        assert list(found) == obvious(kept, position, count, size)


def test_a_single_delivery_above_the_bound_still_comes() -> None:
    history = DeliveryHistory(10, 1000)
    deliveries = chain([500, 1])
    for delivery in deliveries:
        history.extend([delivery])
    assert history.after(NO_TIMESTAMP, 10, 100) == (deliveries[0],)


def test_nothing_follows_the_newest() -> None:
    history, (delivery,) = DeliveryHistory(10, 1000), chain([1])
    history.extend([delivery])
    assert history.after(delivery.global_ts, 10, 100) == ()


def test_what_was_dropped_is_not_bridged() -> None:
    history, deliveries = DeliveryHistory(2, 1000), chain([1, 1, 1, 1])
    for delivery in deliveries:
        history.extend([delivery])
    assert history.after(NO_TIMESTAMP, 10, 100) == ()
    assert history.after(deliveries[0].global_ts, 10, 100) == ()
    assert history.after(deliveries[1].global_ts, 10, 100) == tuple(deliveries[2:])
