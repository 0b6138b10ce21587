"""Relayed frames: in order, never twice, from the node that they say, through one node at most."""

from __future__ import annotations

import itertools
import logging
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.config.addresses import NodeId
from kvstore.config.checks import MESSAGE_BYTES_MAX
from kvstore.node import relay
from kvstore.node.reach import DEAF_TICKS, HOLD_TICKS, HOLD_TICKS_MAX, STABLE, Reachability
from kvstore.node.relay import Relays, _Origin, _Route
from kvstore.wire.connection import LinkLimits
from kvstore.wire.frames import ORDERING_CODEC, Envelope
from kvstore.wire.inflow import Inflow
from kvstore.wire.messages import NODE, Hearing, Period, Reach, Relayed, SnapshotAck, SnapshotPiece
from kvstore.wire.outflow import Outflow
from multicast.errors import PeerViolation
from multicast.messages import Multicast
from multicast.types import ClientId, GroupId, MessageId, ReplicaId
from tests.campaigns import CAMPAIGN
from tests.unit.kvstore.node.relay_net import RelayNet, random_run

N0, N1, N2, N3 = (NodeId(f"n{number}") for number in range(4))
SEEDS = 400 if CAMPAIGN else 40


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvstore.node.relay")


def net_of(nodes: int = 3, *cuts: tuple[NodeId, NodeId]) -> RelayNet:
    """Nodes that have heard each other before some links were cut."""
    net = RelayNet(nodes)
    net.settle(DEAF_TICKS + 2)
    net.cut.update(cuts)
    return net


# What holds always


@settings(deadline=None, derandomize=True, max_examples=SEEDS)
@given(st.integers(2, 4), st.randoms(use_true_random=True), st.integers(0, 1000))
def test_frames_arrive_in_order_whatever_happens(nodes: int, rng: random.Random, seed: int) -> None:
    """`Station` compares each frame with the one before, also of an earlier life of its sender."""
    random_run(RelayNet(nodes, seed), rng, 600)


@settings(deadline=None, derandomize=True, max_examples=SEEDS // 2)
@given(st.integers(3, 5), st.integers(0, 10_000))
def test_every_pair_that_a_relay_connects_is_served(nodes: int, seed: int) -> None:
    """Whatever happened before, and with any links cut, as soon as links stay as they are."""
    rng = random.Random(seed)
    net = RelayNet(nodes, seed)
    random_run(net, rng, 400)
    for station in net.stations.values():
        station.room = True
    net.settle(20)
    net.everyone_speaks()
    for source, target in itertools.permutations(net.names, 2):
        if net.is_served(source, target):
            assert net.reaches(source, target), f"{source} does not reach {target}, with {net.cut} cut"


# Mutants


class RelaysTwice(Relays):
    """A relay passes a frame on as it sends its own: perhaps through another relay, and so on."""

    def _forward(self, node: NodeId, message: Relayed) -> None:
        self.send(message.target, [(NODE, NODE, (message,))])


class ForgetsTheEpoch(Relays):
    """The last life whose frame arrives counts as the newest."""

    def _is_next(self, name: NodeId, message: Relayed) -> bool:
        origin = self._origin(name)
        if message.life != origin.life:
            origin.begin(message.life, relayed=False)
        return super()._is_next(name, _with_epoch(message, origin))


def _with_epoch(message: Relayed, origin: _Origin) -> Relayed:
    return Relayed(
        message.origin, message.target, origin.epoch, message.life, message.period, message.number,
        message.frame,
    )  # fmt: skip


class ForgetsTheNumber(Relays):
    """What was overtaken at another relay counts all the same."""

    def _is_next(self, name: NodeId, message: Relayed) -> bool:
        self._origin(name).number = 0
        return super()._is_next(name, message)


class ForgetsThePeriod(Relays):
    """Direct frames count, however long they took."""

    def _untagged(self, origin: _Origin, envelope: Envelope) -> Envelope | None:
        sender, receiver, messages = envelope
        return sender, receiver, [message for message in messages if not isinstance(message, Period)]


class StaysInItsPeriod(Relays):
    """The way changes without a new period."""

    def _travel_by(self, target: NodeId, route: _Route, relay: NodeId, epoch: int) -> None:
        super()._travel_by(target, route, relay, epoch)
        route.period = 1

    def _travel_directly(self, target: NodeId, route: _Route) -> None:
        super()._travel_directly(target, route)
        route.period = 1


@pytest.mark.parametrize("mutant", [ForgetsTheEpoch, ForgetsTheNumber, ForgetsThePeriod, StaysInItsPeriod])
def test_mutants_that_lose_the_order_are_caught(mutant: type[Relays]) -> None:
    for seed in range(300):
        try:
            random_run(RelayNet(4, seed, mutant), random.Random(seed), 1500)
        except AssertionError:
            return
    pytest.fail(f"{mutant.__name__} came through")


# One hop


def test_a_frame_goes_through_one_node() -> None:
    net = net_of(3, (N0, N1), (N1, N0))
    net.settle(DEAF_TICKS + 3)
    assert net.reaches(N0, N1)
    assert net.reaches(N1, N0)
    assert net.stations[N0].relays.status()["through"] == {N1: N2}
    assert net.stations[N2].relays.counts.forwarded == 2
    assert net.stations[N1].relays.status()["unheard"] == [N0]


def two_relays_apart(relays: type[Relays]) -> RelayNet:
    """Nodes in a row: the first and the last have no neighbour in common."""
    net = RelayNet(4, 0, relays)
    net.settle(DEAF_TICKS + 2)
    for one, other in ((N0, N2), (N0, N3), (N1, N3)):
        net.cut.update(((one, other), (other, one)))
    net.settle(DEAF_TICKS + 6)
    for link in net.links:
        net.links[link].clear()
    # A stale or mistaken origin asks a node for a frame to one that the node itself does not reach.
    relayed = Relayed(N0, N3, 1, 1, 1, 1, b"")
    net.stations[N1].relays.receive(N0, [(NODE, NODE, (relayed,))])
    return net


def carried(net: RelayNet) -> list[tuple[NodeId, NodeId]]:
    """The links on which a relayed frame is."""
    found = []
    for link, frames in net.links.items():
        for frame in frames:
            for _, _, messages in ORDERING_CODEC.decode(frame):
                found += [link for message in messages if isinstance(message, Relayed)]
    return found


def test_a_relay_sends_to_the_target_itself_or_not_at_all() -> None:
    assert carried(two_relays_apart(Relays)) == [(N1, N3)]
    assert carried(two_relays_apart(RelaysTwice)) == [(N1, N2)], "the mutant shows what is forbidden"


# Who may send what


def relayed(origin: NodeId, target: NodeId, sender: Any, epoch: int = 1) -> list[Envelope]:
    frame = ORDERING_CODEC.encode([(sender, ReplicaId(GroupId(0), 0, 1), [SnapshotAck(1, 1)])])
    return [(NODE, NODE, (Relayed(origin, target, epoch, 7, 1, 1, frame),))]


def test_a_node_relays_only_for_its_peer_itself() -> None:
    net = net_of()
    with pytest.raises(PeerViolation, match="n1 wants a frame of 'n0' relayed"):
        net.stations[N2].relays.receive(N1, relayed(N0, N1, ReplicaId(GroupId(0), 0, 1)))
    assert not net.stations[N2].relays.counts.forwarded


def test_a_node_relays_only_to_nodes_that_it_knows() -> None:
    net = net_of()
    assert net.stations[N2].relays.receive(N0, relayed(N0, NodeId("n9"), ClientId(1))) is None
    assert net.stations[N2].relays.counts.dropped == 1


@pytest.mark.parametrize(
    ("origin", "sender"),
    [
        ("n1", ReplicaId(GroupId(0), 2, 1)),
        ("n1", NODE),
        ("n2", ReplicaId(GroupId(0), 2, 1)),
        ("n0", ReplicaId(GroupId(0), 0, 1)),
        ("n9", ReplicaId(GroupId(0), 9, 1)),
    ],
)
def test_a_target_takes_only_frames_of_processes_on_their_origin(origin: str, sender: Any) -> None:
    net = net_of()
    target = net.stations[N0].relays
    epoch = target._origin(NodeId(origin)).epoch
    target._origin(NodeId(origin)).life = 7
    with pytest.raises(PeerViolation, match="relayed a frame of"):
        target.receive(N2, relayed(NodeId(origin), N0, sender, epoch))
    assert not target.counts.received


class RelaysForStrangers(Relays):
    """A relay does not compare the origin with its peer."""

    def _forward(self, node: NodeId, message: Relayed) -> None:
        super()._forward(message.origin, message)


def test_a_relay_for_strangers_is_caught() -> None:
    net = RelayNet(3, 0, RelaysForStrangers)
    net.stations[N2].relays.receive(N1, relayed(N0, N1, ReplicaId(GroupId(0), 0, 1)))
    assert carried(net) == [(N2, N1)], "the mutant shows what is forbidden"


def test_what_only_nodes_say_is_checked() -> None:
    target = net_of().stations[N0].relays
    with pytest.raises(PeerViolation, match="tells what 'n2' hears"):
        target.receive(N1, [(NODE, NODE, (Reach(Hearing(N2, 1, 1, ()), ()),))])
    with pytest.raises(PeerViolation, match="sent SnapshotAck to this node itself"):
        target.receive(N1, [(NODE, NODE, (SnapshotAck(1, 1),))])
    epoch, target._origin(N2).life = target._origin(N2).epoch, 7
    with pytest.raises(PeerViolation, match="relayed a frame of n2: not a frame"):
        target.receive(N1, [(NODE, NODE, (Relayed(N2, N0, epoch, 7, 1, 1, b"?"),))])


# Lives


def test_a_life_that_ended_long_ago_does_not_displace_a_relayed_one() -> None:
    """What the first life has sent directly arrives when the second has long been relayed."""
    net = RelayNet(3)
    net.cut.add((N0, N1))
    net.settle(2)
    net.restart(N0)
    net.settle(2 * DEAF_TICKS)
    assert net.reaches(N0, N1)
    assert net.stations[N1].relays.counts.received
    net.cut.clear()
    net.settle(3)
    for _ in range(2 * HOLD_TICKS):
        net.settle(1)
        assert net.reaches(N0, N1)
        assert net.reaches(N1, N0)


def test_what_a_dead_life_has_sent_directly_does_not_follow_what_the_next_has_relayed() -> None:
    """Not even if nothing else of the first life has ever arrived."""
    net = RelayNet(3)
    net.settle(1)
    net.restart(N0)
    net.cut.add((N0, N1))
    net.links[N0, N1].popleft()  # the connection is accepted, and nothing on it arrives for now
    net.stations[N1].relays.connected(N0)
    net.stations[N0].speak(N1)
    net.restart(N0)
    net.settle(2 * DEAF_TICKS)
    net.everyone_speaks()
    assert net.reaches(N0, N1)
    net.cut.clear()
    net.settle(3)
    assert net.reaches(N0, N1)


# Bounds


def test_a_relay_without_room_drops() -> None:
    net = net_of(3, (N0, N1))
    net.settle(DEAF_TICKS + 3)
    net.stations[N2].room = False
    assert not net.reaches(N0, N1)
    assert net.stations[N2].relays.counts.dropped == 1
    net.stations[N2].room = True
    assert net.reaches(N0, N1)


def test_small_frames_pass_when_large_ones_do_not() -> None:
    """Up to a bound, at the relay and at the origin."""
    net = net_of(3, (N0, N1))
    net.settle(DEAF_TICKS + 3)
    me, target = net.stations[N0].replica, net.stations[N1].replica
    large: list[Envelope] = [
        (me, target, [SnapshotPiece(1, 2, ordering=False, last=False, data=bytes(relay.SMALL + 1))])
    ]
    for name in (N2, N0):
        station = net.stations[name]
        station.unsent = relay.BACKLOG_MAX - relay.SMALL
        dropped = station.relays.counts.dropped
        assert net.reaches(N0, N1)
        net.stations[N0].relays.send(N1, large)
        net.settle(1)
        assert station.relays.counts.dropped == dropped + 1
        assert net.reaches(N0, N1)
        station.unsent = relay.SMALL_BACKLOG_MAX
        assert not net.reaches(N0, N1)
        station.unsent = None
    limits = LinkLimits()
    assert limits.buffer > relay.SMALL_BACKLOG_MAX + relay.FRAME_MAX // 4


def test_the_largest_message_is_relayed_in_slices() -> None:
    """As on a direct link: a relayed frame is a message to the flow of each of the two links."""
    payload = bytes(MESSAGE_BYTES_MAX)
    message = Multicast(MessageId(ClientId(5), 1, 0), (GroupId(0),), payload, 0)
    net = net_of(3, (N0, N1))
    net.settle(DEAF_TICKS + 3)
    me, target = net.stations[N0].replica, net.stations[N1].replica
    flows = {link: (Outflow(ORDERING_CODEC, LinkLimits().flow), Inflow(ORDERING_CODEC, LinkLimits().flow))
             for link in ((N0, N2), (N2, N1))}  # fmt: skip
    net.stations[N0].relays.send(N1, [(me, target, [message])])
    taken: Any = None
    for link, (out, into) in flows.items():
        [frame] = net.links[link]
        net.links[link].clear()
        out.send(ORDERING_CODEC.decode(frame))
        slices = 0
        while (data := out.next()) is not None:
            assert len(data) < LinkLimits().frame
            slices += 1
            if envelopes := into.receive(data):
                taken = net.stations[link[1]].relays.receive(link[0], envelopes)
        assert slices > 100
        assert not out.behind
    origin, [(_, _, [found])] = taken
    assert (origin, len(found.payload)) == (N0, MESSAGE_BYTES_MAX)


def test_a_large_frame_is_relayed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(3, (N0, N1))
    net.settle(DEAF_TICKS + 3)
    me, target = net.stations[N0].replica, net.stations[N1].replica
    monkeypatch.setattr(relay, "FRAME_MAX", 30)
    many: list[Envelope] = [(me, target, [SnapshotAck(1, number) for number in range(90, 100)])]
    net.stations[N0].relays.send(N1, many)
    assert net.stations[N0].relays.counts.sent > 1
    net.settle(1)
    assert net.stations[N1].received[N0] == [(1, number) for number in range(90, 100)]
    monkeypatch.setattr(relay, "FRAME_MAX", 1)
    assert not net.reaches(N0, N1)
    assert net.stations[N0].relays.counts.dropped == 1


# Which way


def test_one_direction_is_relayed_if_one_is_cut() -> None:
    net = net_of(3, (N0, N1))
    net.settle(DEAF_TICKS + 3)
    assert net.stations[N0].relays.status()["through"] == {N1: N2}
    assert net.stations[N1].relays.status()["through"] == {}
    assert net.reaches(N0, N1)
    assert net.reaches(N1, N0)


def test_links_in_a_ring_suffice() -> None:
    net = net_of(3, (N1, N0), (N2, N1), (N0, N2))
    net.settle(DEAF_TICKS + 3)
    for source, target in itertools.permutations(net.names, 2):
        assert net.reaches(source, target)


def test_a_link_that_works_again_is_used_again(caplog: pytest.LogCaptureFixture) -> None:
    net = net_of(3, (N0, N1))
    net.settle(DEAF_TICKS + 3)
    assert net.reaches(N0, N1)
    net.cut.clear()
    net.settle(HOLD_TICKS + 2)
    assert net.stations[N0].relays.status()["through"] == {}
    sent = net.stations[N0].relays.counts.sent
    assert net.reaches(N0, N1)
    assert net.stations[N0].relays.counts.sent == sent
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "n1 does not hear this node: frames to it go through n2 (logged once)",
        "frames to n1 go directly again",
    ]


def test_a_link_that_comes_and_goes_stays_relayed(caplog: pytest.LogCaptureFixture) -> None:
    """Each time for longer; and the log says it once."""
    net = net_of()
    ways = []
    for _ in range(40):
        for cut in (True, False):
            (net.cut.add if cut else net.cut.discard)((N0, N1))
            for _ in range(2 * HOLD_TICKS):
                net.settle(1)
                net.reaches(N0, N1)
                ways.append(bool(net.stations[N0].relays.status()["through"]))
    changes = sum(one != other for one, other in itertools.pairwise(ways))
    assert changes < 20, "40 times without a longer hold is 80 changes"
    assert all(ways[-200:])
    assert sum("(logged once)" in record.getMessage() for record in caplog.records) == 1
    net.cut.clear()
    net.settle(HOLD_TICKS_MAX + STABLE * HOLD_TICKS_MAX)
    assert net.stations[N1].relays.reach._links[N0].hold == HOLD_TICKS


def test_the_next_relay_is_taken_when_one_dies() -> None:
    net = net_of(4, (N0, N1))
    net.settle(DEAF_TICKS + 3)
    [first] = net.stations[N0].relays.status()["through"].values()
    assert net.reaches(N0, N1)
    net.cut.update((first, other) for other in net.names if other != first)
    net.settle(DEAF_TICKS + 3)
    [second] = net.stations[N0].relays.status()["through"].values()
    assert {first, second} == {N2, N3}
    assert net.reaches(N0, N1)


def test_a_node_that_restarts_is_not_relayed() -> None:
    """It is listed as unheard while it is down, but what it hears of that is of its former life."""
    net = net_of()
    for _ in range(2 * DEAF_TICKS):
        for node in (N1, N2):
            net.tick(node)
        for link in net.links:
            if N0 not in link:
                net.arrive(link)
    assert net.stations[N1].relays.status()["unheard"] == [N0]
    net.restart(N0)
    for _ in range(10):
        net.settle(1)
        assert all(not station.relays.status()["through"] for station in net.stations.values())
    assert net.reaches(N0, N1)
    assert net.stations[N1].relays.status()["unheard"] == []


def test_a_restarted_origin_is_relayed_under_another_epoch() -> None:
    """Frames of its former life that were still on their way do not count any more."""
    net = net_of(3, (N0, N1), (N1, N0))
    net.settle(DEAF_TICKS + 3)
    assert net.reaches(N0, N1)
    net.stations[N0].speak(N1)
    late = net.links[N0, N2].pop()
    net.restart(N0)
    net.settle(DEAF_TICKS + 6)
    net.everyone_speaks()
    assert net.reaches(N0, N1)
    overtaken = net.stations[N1].relays.counts.overtaken
    net.stations[N2].hear(N0, late)
    net.settle(1)
    assert net.stations[N1].relays.counts.overtaken == overtaken + 1
    assert net.reaches(N0, N1)


def test_a_node_alone_says_nothing() -> None:
    net = RelayNet(1)
    net.tick(N0)
    assert net.stations[N0].relays.status() == {
        "unheard": [], "through": {}, "sent": 0, "received": 0, "forwarded": 0, "dropped": 0, "overtaken": 0,
    }  # fmt: skip


def test_periods_are_those_of_a_pair_of_processes() -> None:
    """Large messages wait in the lane of their pair on a link, and messages of other pairs pass them: also
    those of a later period.
    """
    net = net_of(3, (N1, N0))
    net.settle(DEAF_TICKS + 3)
    assert net.reaches(N1, N0)
    target, life = net.stations[N0].relays, net.stations[N1].relays._life
    here = net.stations[N0].replica
    one, other = net.stations[N1].replica, ClientId(5)
    ack = SnapshotAck(1, 1)
    assert target.receive(N1, [(one, here, [ack])]) is None, "it is of period 0"
    assert target.receive(N1, [(one, here, [Period(life, 2), ack])]) == (N1, [(one, here, [ack])])
    assert target.receive(N1, [(other, here, [ack])]) is None, "it has waited in its lane"
    assert target.receive(N1, [(one, here, [ack])]) == (N1, [(one, here, [ack])]), "the rest of a message"
    assert target.receive(N1, [(other, here, [Period(life, 2), ack])]) == (N1, [(other, here, [ack])])
    assert target.receive(N1, [(one, here, [Period(life + 1, 2), ack])]) is None, "of a life not heard of"


def test_messages_to_the_node_itself_come_one_by_one() -> None:
    target = net_of().stations[N0].relays
    with pytest.raises(PeerViolation, match="sent 2 messages to this node itself at once"):
        target.receive(N1, [(NODE, NODE, (SnapshotAck(1, 1), SnapshotAck(1, 2)))])


def test_a_frame_may_have_several_envelopes_of_one_pair() -> None:
    """Pieces of snapshots come last in a frame, apart from other messages of the same two replicas."""
    net = net_of(3, (N0, N1))
    net.settle(DEAF_TICKS + 3)
    assert net.reaches(N0, N1)
    net.cut.clear()
    net.settle(HOLD_TICKS + 2)
    me, target = net.stations[N0].replica, net.stations[N1].replica
    net.stations[N0].relays.send(N1, [(me, target, [SnapshotAck(1, 98)]), (me, target, [SnapshotAck(1, 99)])])
    net.settle(1)
    assert net.stations[N1].received[N0][-2:] == [(1, 98), (1, 99)]


def test_a_node_passes_on_what_it_is_told_as_it_was_said() -> None:
    """A node that does not hear another passes on that a third does not either: the other hears it, and must
    know.
    """
    cuts = [(0, 1), (1, 0), (0, 3), (3, 0), (0, 2), (4, 2), (2, 4), (3, 2), (2, 3)]
    net = net_of(5, *((NodeId(f"n{one}"), NodeId(f"n{other}")) for one, other in cuts))
    net.settle(DEAF_TICKS + HOLD_TICKS)
    for _ in range(20):
        net.settle(1)
        assert net.reaches(N0, N1)
        assert net.reaches(N1, N0)


def test_a_node_that_is_no_peer_any_more_leads_nothing() -> None:
    n0, n1, n2 = map(NodeId, ("n0", "n1", "n2"))
    peers = [n1, n2]
    group = GroupId(4)
    reach = Reachability(n0, 1, lambda _: 1, lambda: peers, (group,))
    for node, leads in ((n1, (group,)), (n2, ())):
        reach.heard(node)
        reach.learn(node, Reach(Hearing(node, 7, 1, (), leads, (), (), 2), ()))
    assert reach.own().missed == ()
    peers.remove(n1)
    assert reach.own().missed == (group,), "another leads it now, or nobody does"
