"""Staging between three nodes without I/O: what is spread, what is refused, and what is forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvstore.config.addresses import NodeId
from kvstore.node.staging import Staging, StagingLimits
from kvstore.wire.frames import ORDERING_CODEC, Envelope
from kvstore.wire.messages import ByName, Holders, StageAck, StagePiece
from multicast.errors import PeerViolation
from multicast.messages import Accept, Delivery, Multicast
from multicast.types import (
    LARGE_BYTES,
    Ballot,
    ClientId,
    GroupId,
    MessageId,
    ReplicaId,
    Timestamp,
    digest_of,
)

G0, G1 = GroupId(0), GroupId(1)
DEST = (G0, G1)
NODES = [NodeId(f"n{number}") for number in range(3)]
MEMBERS = [ReplicaId(group, number, 0) for group in DEST for number in range(3)]
PAYLOAD = bytes(range(256)) * (LARGE_BYTES // 256) + b"end"
LIMITS = StagingLimits(piece=LARGE_BYTES // 4, window=2, held=3 * LARGE_BYTES, payload=2 * LARGE_BYTES)


class MemoryLog:
    """Pieces are durable when a test says so."""

    referred: Container[int] = ()
    durable = 0

    def __init__(self) -> None:
        self.stages = self.pieces = self.staged = 0
        self.objects: dict[int, bytes] = {}
        self.unstaged: list[int] = []

    def stage(self) -> int:
        self.stages += 1
        return self.stages

    def stage_piece(self, stage: int, data: bytes) -> int:
        self.pieces += 1
        return self.pieces

    def refer(self, stage: int, payload: bytes) -> None:
        self.objects[stage] = payload

    def unstage(self, stage: int) -> None:
        self.unstaged.append(stage)


class Net:
    """Three nodes, and the messages between them."""

    def __init__(self, limits: StagingLimits = LIMITS) -> None:
        self.now = 0.0
        self.queue: deque[tuple[NodeId, NodeId, Any]] = deque()
        self.dead: set[NodeId] = set()
        self.logs = {node: MemoryLog() for node in NODES}
        self.nodes = {node: self.life(node, limits) for node in NODES}
        self.digests: list[int] = []
        self.sent = 0

    def life(self, node: NodeId, limits: StagingLimits = LIMITS) -> Staging:
        def node_of(replica: ReplicaId) -> NodeId:
            return NODES[replica.number]

        return Staging(
            node, Port(self, node), ORDERING_CODEC, self.logs[node], node_of, lambda _: True, 0, limits  # type: ignore[arg-type]  # no batches
        )  # fmt: skip

    def stage(self, payload: bytes = PAYLOAD) -> None:
        self.nodes[NODES[0]].stage(payload, DEST, MEMBERS, self.digests.append, self.now)
        self.run()

    def run(self) -> None:
        """All messages arrive, and all pieces become durable, until nothing happens."""
        busy = True
        while busy:
            busy = bool(self.queue)
            while self.queue:
                sender, receiver, message = self.queue.popleft()
                if receiver not in self.dead:
                    self.nodes[receiver].receive(sender, message, self.now)
            for node in NODES:
                if node not in self.dead and self.logs[node].staged < self.logs[node].pieces:
                    self.logs[node].staged = self.logs[node].pieces
                    self.nodes[node].durable(self.now)
                    busy = True

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for node in NODES:
            if node not in self.dead:
                self.nodes[node].tick(self.now)
        self.run()

    def send(self, one: int, other: int, message: Any) -> Any | None:
        """A message from node to node, as its receiver finds it."""
        envelope = MEMBERS[one], MEMBERS[other], [message]
        [(_, _, [sent])] = self.nodes[NODES[one]].by_name(NODES[other], [envelope])
        self.sent = len(ORDERING_CODEC.encode([(MEMBERS[one], MEMBERS[other], [sent])]))
        found = self.nodes[NODES[other]].resolve(NODES[one], sent) if isinstance(sent, ByName) else sent
        self.run()
        return found


class Port:
    def __init__(self, net: Net, me: NodeId) -> None:
        self._net = net
        self._me = me
        self.peers = [node for node in NODES if node != me]

    def send(self, node: NodeId, envelopes: Sequence[Envelope]) -> None:
        [(_, _, [message])] = ORDERING_CODEC.decode(ORDERING_CODEC.encode(envelopes))
        self._net.queue.append((self._me, node, message))

    def answer(self, envelopes: object) -> None: ...

    def backlog(self, node: NodeId) -> int:
        return 0


def mid_of(payload: bytes = PAYLOAD) -> MessageId:
    return MessageId(ClientId(1), 1, digest_of(DEST, payload))


def accept(payload: bytes) -> Accept:
    return Accept(
        (DEST,), G0, Ballot(1, MEMBERS[0], 0), (mid_of(),), (Timestamp(1),), (payload,), (0,)
    )  # fmt: skip


def payload_at(net: Net, number: int) -> bytes:
    [payload] = net.logs[NODES[number]].objects.values()
    return payload


def delivery(payload: bytes) -> Delivery:
    return Delivery(mid_of(), DEST, payload, 0, Timestamp(1), Timestamp(1), Timestamp(0), False)  # noqa: FBT003 - its fields


def test_all_nodes_have_the_payload_before_the_message_is_ordered() -> None:
    net = Net()
    net.stage()
    assert net.digests == [digest_of(DEST, PAYLOAD)]
    for number in range(3):
        assert payload_at(net, number) == PAYLOAD
        message = Multicast(mid_of(), DEST, payload_at(net, number), 0)
        assert net.nodes[NODES[number]].knows(message)
        assert not net.nodes[NODES[number]].knows(message._replace(mid=mid_of(b"other")))
        assert not net.nodes[NODES[number]].knows(message._replace(dest=(G0,)))
    assert payload_at(net, 0) is PAYLOAD


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (2, 1)])
def test_a_payload_that_the_receiver_has_travels_as_its_name(one: int, other: int) -> None:
    net = Net()
    net.stage()
    found = net.send(one, other, accept(payload_at(net, one)))
    assert found == accept(PAYLOAD)
    assert found.payloads[0] is payload_at(net, other)
    assert net.sent < 500


def test_pieces_wait_for_the_receivers_disk() -> None:
    net = Net()
    net.nodes[NODES[0]].stage(PAYLOAD, DEST, MEMBERS, net.digests.append, 0.0)
    assert [message.index for _, node, message in net.queue if node == NODES[1]] == [0, 1]
    for sender, receiver, message in [*net.queue]:
        net.nodes[receiver].receive(sender, message, 0.0)
    assert not [message for _, _, message in net.queue if isinstance(message, StageAck)]


def test_a_dead_node_is_given_up_and_then_left_out() -> None:
    net = Net()
    net.dead.add(NODES[2])
    net.stage()
    assert not net.digests
    net.tick(LIMITS.patience_s)
    assert net.digests == [digest_of(DEST, PAYLOAD)]
    assert net.send(0, 1, accept(PAYLOAD)) == accept(PAYLOAD)
    assert net.sent < 500
    net.send(0, 2, accept(PAYLOAD))
    assert net.sent > len(PAYLOAD)
    net.stage(PAYLOAD + b"2")
    assert len(net.digests) == 2, "it waits for nothing while the node is silent"
    net.dead.clear()
    net.tick(LIMITS.silent_s)
    net.stage(PAYLOAD + b"3")
    assert {*net.logs[NODES[2]].objects.values()} == {PAYLOAD + b"3"}


def test_a_dead_node_is_given_up_although_other_payloads_are_under_way() -> None:
    """What others stage meanwhile must not put off the moment of giving up."""
    net = Net(replace(LIMITS, held=100 * LARGE_BYTES))
    net.dead.add(NODES[2])
    net.stage()
    source = net.nodes[NODES[0]]
    for number in range(20):
        net.now += LIMITS.patience_s / 5
        source.receive(NODES[1], StagePiece(number, 0, LARGE_BYTES, DEST, b"x"), net.now)
        if source.wake_at <= net.now:
            source.tick(net.now)
    assert net.digests == [digest_of(DEST, PAYLOAD)]


def test_a_node_that_says_the_same_again_makes_no_progress() -> None:
    net = Net()
    net.dead.add(NODES[2])
    net.stage()
    source = net.nodes[NODES[0]]
    for _ in range(4):
        net.now += LIMITS.patience_s / 3
        source.receive(NODES[2], StageAck(1, 0, b"", refused=False), net.now)
    net.tick(0.0)
    assert net.digests == [digest_of(DEST, PAYLOAD)]


def test_a_node_that_restarts_has_nothing_and_says_so() -> None:
    net = Net()
    net.stage()
    net.nodes[NODES[1]] = net.life(NODES[1])
    assert net.send(0, 1, accept(PAYLOAD)) is None, "the message is lost, as on a link"
    assert net.send(0, 1, accept(PAYLOAD)) == accept(PAYLOAD)
    assert net.sent > len(PAYLOAD)


def test_a_node_says_all_that_it_does_not_have_at_once() -> None:
    """Else a state would be lost as often as it has payloads, and its group have no leader for so long."""
    net = Net()
    payloads = [PAYLOAD, PAYLOAD[:-1]]
    for payload in payloads:
        net.stage(payload)
    net.nodes[NODES[1]] = net.life(NODES[1])
    both = Accept(
        (DEST,), G0, Ballot(1, MEMBERS[0], 0), (mid_of(), mid_of(payloads[1])), (Timestamp(1), Timestamp(2)),
        tuple(payloads), (0, 0),
    )  # fmt: skip
    assert net.send(0, 1, both) is None
    assert net.send(0, 1, both) == both


def test_a_node_refuses_what_exceeds_its_room_and_the_rest_goes_on() -> None:
    net = Net()
    net.nodes[NODES[1]].held = LIMITS.held - 10
    net.stage()
    assert net.digests == [digest_of(DEST, PAYLOAD)]
    assert not net.logs[NODES[1]].pieces
    assert net.send(0, 2, accept(PAYLOAD)) == accept(PAYLOAD)
    assert net.sent < 500
    net.send(0, 1, accept(PAYLOAD))
    assert net.sent > len(PAYLOAD)


def test_room_is_free_again_after_the_last_delivery() -> None:
    net = Net()
    net.stage()
    for number, node in enumerate(net.nodes.values()):
        assert node.held == len(PAYLOAD)
        node.delivered(G0, [delivery(payload_at(net, number))])
        assert node.held
        node.delivered(G1, [delivery(payload_at(net, number))])
        assert (node.active, node.held) == (False, 0)
        assert net.logs[NODES[number]].unstaged == [1]


def test_a_payload_that_is_never_delivered_expires() -> None:
    net = Net()
    net.stage()
    net.tick(LIMITS.expire_s)
    assert [node.held for node in net.nodes.values()] == [0, 0, 0]
    assert all(log.unstaged for log in net.logs.values())


def test_half_a_payload_of_a_dead_source_expires() -> None:
    net = Net()
    net.nodes[NODES[0]].stage(PAYLOAD, DEST, MEMBERS, net.digests.append, 0.0)
    net.dead.add(NODES[0])
    net.run()
    assert net.nodes[NODES[1]].held == len(PAYLOAD)
    net.tick(LIMITS.expire_s)
    assert net.nodes[NODES[1]].held == 0


def test_a_lost_piece_ends_the_transfer_and_nothing_is_mixed() -> None:
    net = Net()
    net.nodes[NODES[0]].stage(PAYLOAD, DEST, MEMBERS, net.digests.append, 0.0)
    lost = next(each for each in net.queue if each[1] == NODES[1])
    net.queue.remove(lost)
    net.run()
    net.tick(LIMITS.patience_s)
    assert net.digests
    assert not net.logs[NODES[1]].objects
    assert net.nodes[NODES[1]].held == 0


def test_a_payload_of_the_largest_size_is_not_staged_beyond_it() -> None:
    net = Net()
    net.stage(bytes(LIMITS.payload + 1))
    assert net.digests == [digest_of(DEST, bytes(LIMITS.payload + 1))]
    assert not any(log.pieces for log in net.logs.values())


def test_many_small_payloads_take_no_more_than_their_room() -> None:
    """Each costs more than its bytes."""
    net = Net()
    for number in range(100):
        net.nodes[NODES[1]].receive(NODES[0], StagePiece(number, 0, 2, DEST, b"x"), 0.0)
    assert net.logs[NODES[1]].stages == LIMITS.held // (LIMITS.piece // 4)
    net.tick(LIMITS.expire_s)
    assert net.nodes[NODES[1]].held == 0


@pytest.mark.parametrize(
    "message",
    [
        StagePiece(1, 0, LIMITS.payload + 1, DEST, b"x"),
        StagePiece(1, 0, 0, DEST, b"x"),
        StagePiece(1, 0, 1, DEST, b"too long"),
        StagePiece(1, 0, 1, DEST, b""),
        StagePiece(1, 0, 1, DEST, b"x"),
    ],
)
def test_nonsense_is_a_violation_and_reserves_nothing(message: StagePiece) -> None:
    net = Net()
    with pytest.raises(PeerViolation):
        net.nodes[NODES[1]].receive(NODES[0], message, 0.0)
    assert net.nodes[NODES[1]].held == 0


def test_acknowledgements_of_what_was_not_sent_are_a_violation() -> None:
    net = Net()
    net.nodes[NODES[0]].stage(PAYLOAD, DEST, MEMBERS, net.digests.append, 0.0)
    with pytest.raises(PeerViolation):
        net.nodes[NODES[0]].receive(NODES[1], StageAck(1, 3, b"", refused=False), 0.0)


def test_a_false_name_holds_nothing() -> None:
    net = Net()
    net.nodes[NODES[0]].stage(PAYLOAD, DEST, MEMBERS, net.digests.append, 0.0)
    net.nodes[NODES[0]].receive(NODES[1], StageAck(1, 2, bytes(32), refused=False), 0.0)
    net.dead.add(NODES[1])
    net.run()
    assert net.digests
    net.send(0, 1, accept(PAYLOAD))
    assert net.sent > len(PAYLOAD)


@pytest.mark.parametrize(
    "message",
    [
        ByName((), ORDERING_CODEC.encode([(MEMBERS[0], MEMBERS[1], [accept(b"")])])),
        ByName(((1, b"name"),), ORDERING_CODEC.encode([(MEMBERS[0], MEMBERS[1], [accept(b"")])])),
        ByName(((0, b"name"),), ORDERING_CODEC.encode([(MEMBERS[0], MEMBERS[1], [Holders(b"", ())])])),
        ByName(((0, b"name"),), ORDERING_CODEC.encode([])),
        ByName(((0, b"name"),), b"nonsense"),
    ],
)
def test_names_that_no_correct_node_sends_are_a_violation(message: ByName) -> None:
    net = Net()
    with pytest.raises(PeerViolation):
        net.nodes[NODES[1]].resolve(NODES[0], message)
