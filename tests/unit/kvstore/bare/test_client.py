"""The client of bare multicast, and three nodes that answer at once."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvstore.bare.client import MulticastClient
from kvstore.config.addresses import Address, NodeId
from kvstore.wire.connection import LinkLimits
from kvstore.wire.frames import Envelope
from multicast.client import Reply
from multicast.errors import InvalidArgument
from multicast.messages import Deliver, Hint, Multicast
from multicast.topology import Topology
from multicast.types import NO_BALLOT, Ballot, ClientId, GroupId, MessageId, ReplicaId, Timestamp
from tests.unit.kvstore.wire.harness import (
    CLIENT,
    CLUSTER,
    G0,
    G1,
    HASH,
    N1,
    N2,
    N3,
    QUICK,
    SECRET,
    Node,
    nodes,
    replica,
    until,
)

TOPOLOGY = Topology({g: [ReplicaId(g, n, 0) for n in (1, 2, 3)] for g in (G0, G1)})

LEADER = {G0: N1, G1: N2}


class Groups:
    """Three nodes that answer at once: a stand-in for ordering. Each group has a leader, if any."""

    def __init__(self, members: list[Node]) -> None:
        self.nodes = {node.me: node for node in members}
        self.leader: dict[GroupId, NodeId | None] = dict(LEADER)
        self.hints: dict[GroupId, Ballot] = {}
        """What others than the leader say."""
        self.positions: dict[tuple[GroupId, MessageId], Timestamp] = {}
        for node in members:
            node.heard = lambda node=node: self.answer(node)  # type: ignore[misc]  # bound early

    def answer(self, node: Node) -> None:
        _, envelopes = node.requests[-1]
        answers: list[Envelope] = []
        for client, receiver, messages in envelopes:
            assert isinstance(receiver, ReplicaId)
            group = receiver.group
            for message in messages:
                assert isinstance(message, Multicast)
                if self.leader[group] == node.me:
                    position = self.positions.setdefault(
                        (group, message.mid), Timestamp(len(self.positions) + 1)
                    )
                    answers.append((receiver, client, [Reply((message.mid,), group, (position,))]))
                elif group in self.hints:
                    answers.append((receiver, client, [Hint(group, self.hints[group])]))
        node.transport.answer(answers)

    def directory(self) -> dict[ReplicaId, tuple[NodeId, Address]]:
        return {
            replica(name, group): (name, node.address)
            for name, node in self.nodes.items()
            for group in (G0, G1)
        }

    def client(self, **options: Any) -> MulticastClient:
        usual: dict[str, Any] = {"limits": QUICK, "retry_s": 0.02, "client": CLIENT}
        return MulticastClient(CLUSTER, HASH, TOPOLOGY, self.directory(), SECRET, **(usual | options))


@asynccontextmanager
async def groups(limits: LinkLimits = QUICK) -> Any:
    async with nodes(N1, N2, N3, limits=limits) as members:
        yield Groups(members)


async def test_a_client_gets_the_position_in_each_group() -> None:
    async with groups() as service, service.client() as client:
        one = await client.multicast([G0], b"one")
        call = client.multicast([G1, G0], b"both", timeout_s=3600.0)
        timer = next(iter(client._deadlines.values()))
        both = await call
        assert timer.cancelled()
        assert set(one) == {G0}
        assert set(both) == {G0, G1}
        positions = {(G0, 1): one[G0]} | {(g, 2): ts for g, ts in both.items()}
        assert positions == {(g, mid.sequence): ts for (g, mid), ts in service.positions.items()}
        assert client.in_flight == 0


async def test_a_clients_turn_is_one_frame_for_each_node() -> None:
    async with groups() as service, service.client(retry_s=60.0) as client:
        for _ in range(3):
            calls = [client.multicast([G0, G1] if n % 2 else [G0], b"%d" % n) for n in range(500)]
            assert len(await asyncio.gather(*calls)) == 500
        assert [len(service.nodes[n].requests) for n in (N1, N2, N3)] == [3, 3, 0]
        messages = [m.mid.sequence for _, [e] in service.nodes[N1].requests for m in e[2]]
        assert messages == list(range(1, 1501))


async def test_a_client_can_be_far_from_a_node_both_ways() -> None:
    async with groups() as service, service.client(retry_s=60.0, delays_s={N1: 0.05}) as client:
        loop = asyncio.get_running_loop()
        far, heard, ended = service.nodes[N1], list[float](), list[int]()
        answer = far.heard

        def hear() -> None:
            heard.append(loop.time())
            answer()

        far.heard = hear
        started, calls = loop.time(), []
        for value in range(20):
            calls.append(client.multicast([G0], b"far %d" % value))
            calls[-1].add_done_callback(lambda _, value=value: ended.append(value))
            await asyncio.sleep(0)
        await client.multicast([G1], b"near")
        if loop.time() - started < 0.09:  # else this machine was busy, and they may have come
            assert not ended
        await asyncio.gather(*calls)
        assert heard[0] - started >= 0.045
        assert loop.time() - heard[-1] >= 0.045
        assert ended == list(range(20))
        sent = [message.mid.sequence for _, [e] in far.requests for message in e[2]]
        assert sent == list(range(1, 21))


async def test_what_comes_from_far_away_is_lost_with_its_connection() -> None:
    async with groups() as service, service.client(retry_s=0.5, delays_s={N1: 0.05}) as client:
        call = client.multicast([G0], b"x")
        await until(lambda: service.nodes[N1].requests)
        connection = client._links[N1]._connection
        assert connection is not None
        await until(lambda: connection._coming.bytes)
        connection.abort()
        await connection.lost
        assert not connection._coming.bytes
        assert not call.done()
        await call  # it is sent again, in time


@pytest.mark.parametrize("delay_s", [-0.1, float("inf"), float("nan")])
def test_a_clients_delays_are_checked(delay_s: float) -> None:
    directory = {replica(n, g): (n, ("127.0.0.1", 9)) for n in (N1, N2, N3) for g in (G0, G1)}
    with pytest.raises(InvalidArgument, match=r"delays_s: .* to n2 is not a time"):
        MulticastClient(CLUSTER, HASH, TOPOLOGY, directory, SECRET, delays_s={N2: delay_s})


async def test_a_client_follows_hints() -> None:
    async with groups() as service, service.client(retry_s=60.0) as client:
        service.leader[G0] = N3
        service.hints[G0] = Ballot(4, replica(N3), 0)
        await client.multicast([G0, G1], b"hinted")
        await client.multicast([G0], b"at once")
        assert len(service.nodes[N1].requests) == 1
        assert len(service.nodes[N3].requests) == 2


async def test_a_client_asks_all_replicas_when_its_leader_is_gone() -> None:
    async with groups() as service, service.client() as client:
        await client.multicast([G0], b"before")
        await service.nodes[N1].transport.close()
        service.leader[G0] = N2
        assert set(await client.multicast([G0, G1], b"after")) == {G0, G1}


async def test_a_client_finds_the_next_leader_of_a_node_that_is_gone() -> None:
    """The client does not wait until each message is due to be repeated."""
    async with groups() as service, service.client() as client:
        await service.nodes[N1].transport.close()
        await until(lambda: not client.statistics()[N1]["connected"])
        calls = [client.multicast([G0], payload) for payload in (b"one", b"two")]
        for pending in client._sender.pending.values():
            pending.asked_at = float("inf")
        await until(lambda: service.nodes[N2].requests and service.nodes[N3].requests)
        service.leader[G0] = N2
        service.hints[G0] = Ballot(2, replica(N2), 0)
        assert [set(each) for each in await asyncio.gather(*calls)] == [{G0}, {G0}]


@pytest.mark.parametrize("due", [False, True])
async def test_a_client_sends_to_a_leader_that_has_come_back_at_once(*, due: bool) -> None:
    """Whether or not its messages are due to be repeated."""
    async with groups() as service, service.client() as client:
        old = service.nodes[N1]
        await old.transport.close()
        if not due:
            await until(lambda: not client.statistics()[N1]["connected"])
        calls = [client.multicast([G0], payload) for payload in (b"one", b"two")]
        if due:
            await until(lambda: client.statistics()[N1]["dropped"])
        else:
            for pending in client._sender.pending.values():
                pending.asked_at = float("inf")
        again = Node(N1, old.peers, port=old.address[1])
        again.heard = lambda: service.answer(again)
        await again.start()
        assert [set(each) for each in await asyncio.gather(*calls)] == [{G0}, {G0}]
        await again.transport.close()


async def test_a_timeout_names_the_groups_that_have_not_answered() -> None:
    async with groups() as service, service.client() as client:
        service.leader[G1] = None
        with pytest.raises(TimeoutError, match=r"message 1 was not answered by group 1 within 0\.2 s"):
            await client.multicast([G0, G1], b"half", timeout_s=0.2)
        service.leader[G0] = None
        with pytest.raises(TimeoutError, match="groups 0, 1 within"):
            await client.multicast([G0, G1], b"none", timeout_s=0.01)
        assert client.in_flight == 2
        # The client keeps asking: without an answer, neither it nor the groups could forget the messages.
        service.leader = dict(LEADER)
        await until(lambda: client.in_flight == 0)
        assert client.late == 2
        assert await client.multicast([G0, G1], b"third", timeout_s=60)
        assert service.nodes[N1].requests[-1][1][0][2][0].ack_below == 3


async def test_giving_up_waiting_is_harmless() -> None:
    async with groups() as service, service.client() as client:
        service.leader[G0] = None
        call = client.multicast([G0], b"cancelled", timeout_s=0.01)
        call.cancel()
        await until(lambda: client.statistics()[N1]["frames_out"] > 2)
        service.leader[G0] = N1
        await until(lambda: client.in_flight == 0)


async def test_closing_a_client_ends_what_waits() -> None:
    async with groups() as service:
        service.leader[G1] = None
        client = service.client()
        with pytest.raises(ConnectionError, match="never started"):
            client.multicast([G0], b"early")
        await client.start()
        call = client.multicast([G0, G1], b"waits", timeout_s=100.0)
        await until(lambda: service.positions)
        await client.close()
        with pytest.raises(ConnectionError, match="group"):
            await call
        with pytest.raises(ConnectionError, match="closed"):
            client.multicast([G0], b"late")


async def test_a_rejected_client_gets_the_reason() -> None:
    async with groups() as service:
        wrong = MulticastClient("another", HASH, TOPOLOGY, service.directory(), SECRET, limits=QUICK)
        with pytest.raises(ConnectionError, match=r"n1: rejected by the peer: .*'another'"):
            await wrong.start()
    with pytest.raises(ConnectionError, match="cannot connect"):
        await service.client().start()


async def test_a_client_needs_only_some_of_the_nodes() -> None:
    async with groups() as service:
        await service.nodes[N3].transport.close()
        async with service.client() as client:
            assert await client.multicast([G0, G1], b"two are enough")
            assert not client.statistics()[N3]["connected"]


STRANGE: dict[str, list[Envelope]] = {
    "not for us": [(replica(N1), ClientId(1), [Hint(G0, NO_BALLOT)])],
    "not for clients": [(replica(N1), CLIENT, [Deliver(NO_BALLOT, Timestamp(0), ())])],
    "an unknown group": [(replica(N1), CLIENT, [Hint(GroupId(9), Ballot(1, replica(N1, GroupId(9)), 0))])],
    "a ballot of an unknown replica": [(replica(N1), CLIENT, [Hint(G0, Ballot(1, ReplicaId(G0, 9, 0), 0))])],
}


@pytest.mark.parametrize("case", STRANGE)
async def test_a_client_disconnects_from_nodes_that_send_bad_frames(case: str) -> None:
    async with groups() as service, service.client() as client:
        service.leader[G0] = None
        call = client.multicast([G0], b"asked")
        node = service.nodes[N1]
        await until(lambda: node.requests)
        node.transport._acceptor.clients[CLIENT].send(STRANGE[case])
        await until(lambda: client.statistics()[N1]["bad_frames"] == 1)
        service.leader[G0] = N1
        assert await call


async def test_clients_are_checked_before_anything_is_sent() -> None:
    async with groups() as service, service.client() as client:
        with pytest.raises(InvalidArgument, match="group 7"):
            client.multicast([GroupId(7)], b"")
        with pytest.raises(InvalidArgument, match="does not fit a frame"):
            client.multicast([G0], bytes(QUICK.frame))
        directory = service.directory()
        del directory[replica(N2, G1)]
        with pytest.raises(InvalidArgument, match="g1r2"):
            MulticastClient(CLUSTER, HASH, TOPOLOGY, directory, SECRET)


def test_clients_have_ids_of_their_own() -> None:
    directory = {replica(n, g): (n, ("127.0.0.1", 9)) for n in (N1, N2, N3) for g in (G0, G1)}
    clients = [MulticastClient(CLUSTER, HASH, TOPOLOGY, directory, SECRET) for _ in range(2)]
    assert clients[0].client != clients[1].client
