"""Messages that leave a node: one frame for each other node, and what may wait for the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from kvstore.config.addresses import NodeId
from kvstore.node.outbox import LINGER_S, Outbox
from kvstore.wire.frames import Envelope
from multicast.messages import Deliver, HandOver, Heartbeat
from multicast.types import NO_TIMESTAMP, Ballot, GroupId, ReplicaId, Timestamp

ME, NEAR, FAR = NodeId("me"), NodeId("near"), NodeId("far")
LEADER = ReplicaId(GroupId(0), 0, 1)
FOLLOWERS = ReplicaId(GroupId(0), 1, 2), ReplicaId(GroupId(0), 2, 3)
OTHER = ReplicaId(GroupId(1), 0, 1)
NODES = dict(zip((LEADER, *FOLLOWERS), (ME, NEAR, FAR), strict=True))
BALLOT = Ballot(1, LEADER, 0)
HEARTBEAT = Heartbeat(BALLOT, NO_TIMESTAMP, ())


class Links:
    """The frames that were sent, by node."""

    def __init__(self) -> None:
        self.sent: list[tuple[NodeId, list[tuple[ReplicaId, list[Any]]]]] = []

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        self.sent.append((node, [(sender, list(messages)) for sender, _, messages in envelopes]))  # type: ignore[misc]  # replicas only

    def take(self) -> list[tuple[NodeId, list[tuple[ReplicaId, list[Any]]]]]:
        sent, self.sent = self.sent, []
        return sent


class Application:
    processes = ()
    unhurried = ()


@pytest.fixture
def outbox() -> Outbox:
    application: Any = Application()
    return Outbox(ME, {LEADER, OTHER}, application, NODES.get, None)


def deliver(position: int) -> Deliver:
    return Deliver(BALLOT, Timestamp(position - 1), ())


def flush(outbox: Outbox, now: float, pieces: Iterable[tuple[ReplicaId, ReplicaId, Any]] = ()) -> Any:
    links: Any = Links()
    outbox.flush(links, pieces, now)
    return links.take()


def test_a_delivery_stays_until_its_time_is_over(outbox: Outbox) -> None:
    outbox.add(LEADER, [((FOLLOWERS[0],), deliver(1))])
    assert flush(outbox, 5.0) == []
    assert outbox.wake_at == 5.0 + LINGER_S
    outbox.add(LEADER, [((FOLLOWERS[0],), deliver(2))])
    assert flush(outbox, 5.0 + LINGER_S / 2) == []
    assert outbox.wake_at == 5.0 + LINGER_S, "the first has waited since then"
    assert flush(outbox, 5.0 + LINGER_S) == [(NEAR, [(LEADER, [deliver(1), deliver(2)])])]
    assert outbox.wake_at == float("inf")
    assert flush(outbox, 6.0) == []


def test_the_next_message_takes_it_along_in_order(outbox: Outbox) -> None:
    outbox.add(LEADER, [(FOLLOWERS, deliver(1))])
    assert flush(outbox, 5.0) == []
    outbox.add(LEADER, [((FOLLOWERS[0],), HEARTBEAT)])
    assert flush(outbox, 5.001) == [(NEAR, [(LEADER, [deliver(1), HEARTBEAT])])]
    outbox.add(OTHER, [((FOLLOWERS[1],), HandOver(BALLOT))])
    outbox.add(LEADER, [((FOLLOWERS[1],), deliver(2))])
    assert flush(outbox, 5.002) == [(FAR, [(LEADER, [deliver(1), deliver(2)]), (OTHER, [HandOver(BALLOT)])])]
    assert outbox.wake_at == float("inf")


def test_so_does_a_piece_of_a_snapshot(outbox: Outbox) -> None:
    outbox.add(LEADER, [(FOLLOWERS, deliver(1))])
    assert flush(outbox, 5.0, [(OTHER, FOLLOWERS[1], "piece")]) == [
        (FAR, [(LEADER, [deliver(1)]), (OTHER, ["piece"])])
    ]
    assert flush(outbox, 5.0 + LINGER_S) == [(NEAR, [(LEADER, [deliver(1)])])]


def test_what_others_wait_for_leaves_at_once(outbox: Outbox) -> None:
    outbox.add(LEADER, [((FOLLOWERS[0],), HEARTBEAT)])
    assert flush(outbox, 5.0) == [(NEAR, [(LEADER, [HEARTBEAT])])]
    assert outbox.wake_at == float("inf")
