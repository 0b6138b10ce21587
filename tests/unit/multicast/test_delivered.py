"""Delivered ids against a model that remembers every delivery."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from multicast.delivered import DeliveredIds
from multicast.types import ClientId, MessageId
from tests.unit.multicast.replicas import EXAMPLES

CLIENTS = st.integers(1, 3).map(ClientId)


@dataclass
class Model:
    """All deliveries, in order; every answer scans them."""

    deliveries: list[tuple[MessageId, int]] = field(default_factory=list)

    def low(self, client: int) -> int:
        return max((ack for mid, ack in self.deliveries if mid.client == client), default=0)

    def digests(self, mid: MessageId) -> list[int]:
        """Under which digests this number was delivered while it was above the watermark."""
        found, low = [], 0
        for other, ack in self.deliveries:
            if other.client == mid.client:
                if other.sequence == mid.sequence and other.sequence >= low:
                    found.append(other.digest)
                low = max(low, ack)
        return found

    def contains(self, mid: MessageId) -> bool:
        return mid.sequence < self.low(mid.client) or mid.digest in self.digests(mid)

    def conflicts(self, mid: MessageId) -> bool:
        if mid.sequence < self.low(mid.client):
            return False
        found = self.digests(mid)
        return bool(found) and mid.digest not in found

    def add(self, mid: MessageId, ack_below: int) -> bool:
        mismatch = mid.sequence < self.low(mid.client) or bool(self.digests(mid))
        self.deliveries.append((mid, ack_below))
        return mismatch


@st.composite
def deliveries(draw: st.DrawFn) -> list[tuple[MessageId, int]]:
    """What a group may deliver: numbers in any order, some twice with other contents, growing ack_below."""
    found = []
    for _ in range(draw(st.integers(0, 25))):
        client = draw(CLIENTS)
        sequence = draw(st.integers(1, 12))
        digest = draw(st.integers(0, 2))
        ack_below = draw(st.integers(1, sequence))
        found.append((MessageId(client, sequence, digest), ack_below))
    return found


EVERY_ID = [MessageId(ClientId(c), s, d) for c in range(1, 5) for s in range(14) for d in range(4)]


def fold(items: list[tuple[MessageId, int]]) -> DeliveredIds:
    delivered = DeliveredIds()
    for mid, ack_below in items:
        if mid not in delivered:
            delivered.add(mid, ack_below)
    return delivered


@EXAMPLES
@given(deliveries())
def test_same_answers_as_the_model(items: list[tuple[MessageId, int]]) -> None:
    delivered, model = DeliveredIds(), Model()
    for mid, ack_below in items:
        if mid in delivered:
            # A group orders nothing that it has delivered, unless below the watermark: see the next test.
            assert model.contains(mid)
            continue
        assert not model.contains(mid)
        assert (delivered.find(mid) is False) == model.conflicts(mid)
        assert delivered.add(mid, ack_below) == model.add(mid, ack_below)
        for probe in EVERY_ID:
            assert (probe in delivered) == model.contains(probe), probe
            assert (delivered.find(probe) is False) == model.conflicts(probe), probe


@EXAMPLES
@given(deliveries(), deliveries())
def test_a_number_below_the_watermark_counts_as_delivered_and_is_a_mismatch(
    items: list[tuple[MessageId, int]], late: list[tuple[MessageId, int]]
) -> None:
    delivered, model = fold(items), Model()
    for item in items:
        if not model.contains(item[0]):
            model.add(*item)
    for mid, ack_below in late:
        if mid.sequence < model.low(mid.client):
            assert mid in delivered
            assert delivered.add(mid, ack_below)
            model.add(mid, ack_below)
            assert [p for p in EVERY_ID if p in delivered] == [p for p in EVERY_ID if model.contains(p)]


@EXAMPLES
@given(deliveries(), deliveries())
def test_a_copy_is_independent(
    before: list[tuple[MessageId, int]], after: list[tuple[MessageId, int]]
) -> None:
    original = fold(before)
    rows = list(original.rows())
    copy = original.copy()
    assert copy == original
    for mid, ack_below in after:
        copy.add(mid, ack_below)
    assert list(original.rows()) == rows
    changed = original.copy()
    changed_rows = list(copy.rows())
    for mid, ack_below in after:
        original.add(mid, ack_below)
    assert list(copy.rows()) == changed_rows
    assert list(changed.rows()) == rows
    assert list(original.rows()) == changed_rows


@EXAMPLES
@given(
    st.sets(st.tuples(CLIENTS, st.integers(1, 12)), max_size=12).flatmap(
        lambda ids: st.tuples(st.just(sorted(ids)), st.permutations(sorted(ids)))
    )
)
def test_rows_do_not_tell_in_which_order_ids_were_delivered(
    orders: tuple[list[tuple[ClientId, int]], list[tuple[ClientId, int]]],
) -> None:
    one, other = (fold([(MessageId(c, s, 7), 1) for c, s in order]) for order in orders)
    assert list(one.rows()) == list(other.rows())
    assert one == other


def test_rows_are_sorted_by_client_and_number() -> None:
    delivered = fold([(MessageId(ClientId(c), s, s), 1) for c, s in [(9, 5), (2, 4), (9, 1), (2, 3), (5, 1)]])
    assert list(delivered.rows()) == [
        (2, 1, ((3, (3,)), (4, (4,)))),
        (5, 1, ((1, (1,)),)),
        (9, 1, ((1, (1,)), (5, (5,)))),
    ]


def test_the_watermark_forgets_what_is_below_it() -> None:
    delivered = fold([(MessageId(ClientId(1), s, 0), 1) for s in range(1, 9)])
    delivered.add(MessageId(ClientId(1), 9, 0), 8)
    assert list(delivered.rows()) == [(1, 8, ((8, (0,)), (9, (0,))))]
    # The watermark may jump much further than there are exceptions.
    delivered.add(MessageId(ClientId(1), 10**9, 0), 10**9)
    assert list(delivered.rows()) == [(1, 10**9, ((10**9, (0,)),))]
    assert MessageId(ClientId(1), 10**9 - 1, 55) in delivered


def test_a_watermark_never_falls() -> None:
    delivered = fold([(MessageId(ClientId(1), 5, 0), 5), (MessageId(ClientId(1), 6, 0), 2)])
    assert list(delivered.rows()) == [(1, 5, ((5, (0,)), (6, (0,))))]


def test_a_number_used_for_something_else_is_a_mismatch_and_both_are_remembered() -> None:
    delivered = DeliveredIds()
    first, second = MessageId(ClientId(1), 1, 10), MessageId(ClientId(1), 1, 20)
    assert not delivered.add(first, 1)
    assert second not in delivered
    assert delivered.find(second) is False
    assert delivered.find(first) is not False
    assert delivered.add(second, 1)
    assert first in delivered
    assert second in delivered
    assert delivered.find(second) is not False
    assert delivered.find(MessageId(ClientId(1), 1, 30)) is False


def test_clients_do_not_share_numbers() -> None:
    delivered = fold([(MessageId(ClientId(1), 1, 10), 1)])
    other = MessageId(ClientId(2), 1, 20)
    assert other not in delivered
    assert delivered.find(other) is not False


def test_equality_sees_watermarks_and_digests() -> None:
    one = fold([(MessageId(ClientId(1), 3, 10), 1)])
    assert one != fold([(MessageId(ClientId(1), 3, 11), 1)])
    assert one != fold([(MessageId(ClientId(1), 3, 10), 2)])
    assert one != fold([])
    assert one == fold([(MessageId(ClientId(1), 3, 10), 1)])
