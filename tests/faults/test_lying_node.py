"""A node of a real cluster says anything that is well-formed: the others go on serving."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import wbkv
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from kvstore.local.folder import started_at
from kvstore.local.status import ask
from kvstore.machine.results import Decision
from kvstore.machine.state import Vote
from kvstore.node.snapshots import encode_checkpoint
from kvstore.store.messages import Votes
from kvstore.wire.messages import SnapshotPiece
from multicast import messages as msg
from multicast.durable import Checkpoint
from multicast.membership import Configuration, Membership
from multicast.types import NUMBER_JUMP, Ballot, ClientId, MessageId, Timestamp
from tests.campaigns import CAMPAIGN
from tests.faults.liar import Grammar, Liar

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    data = tmp_path_factory.mktemp("cluster") / "data"
    with LocalCluster(data, 3, 2, durability="os", restart=False) as running:
        running.wait_serving()
        running.stop(N3)
        yield running


def test_the_attacks_that_were_found_cost_their_connection_only(cluster: LocalCluster) -> None:
    """Contradictory votes stopped all nodes; a ballot of 2^63 - 1 ended elections; a forged MEMBERS made
    outsiders the members of a group; an unasked snapshot and a HANDOVER erased acknowledged keys.
    """
    config = cluster.config
    with wbkv.connect([config.nodes[node].api or "" for node in (N1, N2)]) as client:
        revision = max(client.put(f"kept {n}", b"v") for n in range(40))
        ahead = Timestamp(revision + (1 << 40))
        empty = encode_checkpoint(Checkpoint(position=ahead, executed=ahead))
        for node in (N1, N2):
            liar = Liar(config, N3, node)
            for group in config.groups:
                members = config.members(group)
                own, target = members[2], next(m for m in members if config.node_of(m) == node)
                ballot = Ballot(2**63 - 1, own, 0)
                outsiders = [m._replace(incarnation=7 + m.number) for m in members]
                mid = MessageId(ClientId(1), 1, 1)
                for message in (
                    *(Votes((Vote(ahead, mid, group, yes=yes),)) for yes in (True, False)),
                    *(Votes((), ((ahead, decision),)) for decision in (Decision.OTHERWISE, Decision.THEN)),
                    msg.NewLeader(ballot), msg.PreVote(ballot), msg.Hint(group, ballot),
                    msg.Members(Membership(Configuration(group, 1, outsiders, ["n9@127.0.0.1:9"] * 3))),
                    SnapshotPiece(1, 0, ordering=True, last=False, data=empty),
                    SnapshotPiece(1, 1, ordering=False, last=True, data=b""),
                    msg.HandOver(Ballot(1, own, 0)), msg.HandOver(Ballot(1, members[0], 0)),
                ):  # fmt: skip
                    liar.send([(own, target, [message])])
                    time.sleep(0.01)  # what follows a mistake is lost with its connection
            assert liar.connections > 4
            liar.close()
        client.put("after", b"v")
        assert client.count(wbkv.prefix("kept ")) == 40
        check(cluster)


def check(cluster: LocalCluster) -> None:
    """The nodes are up, with the members that they had, and have dialled no others."""
    for node in (N1, N2):
        status = ask(cluster.config.status_socket(node))
        assert status is not None, cluster.log(node).read_text()[-4000:]
        for group in status["groups"].values():
            assert group["configuration"] == 0
            assert group["ballot"] < 1000 * NUMBER_JUMP
        assert set(status["transport"]["peers"]) <= {N1, N2, N3}
        assert "Traceback" not in cluster.log(node).read_text()


def test_the_others_go_on_whatever_a_node_says(cluster: LocalCluster) -> None:
    config = cluster.config
    with wbkv.connect([config.nodes[node].api or "" for node in (N1, N2)]) as client:
        kept: dict[str, bytes] = {}
        recent = client.put("first", b"")
        own = [member for group in config.groups for member in config.members(group)[2:3]]
        grammar = Grammar({g: config.members(g) for g in config.groups}, own, recent)
        pids = {node: cluster.pid(node) for node in (N1, N2)}
        liars = {node: Liar(config, N3, node) for node in (N1, N2)}
        any_frame = grammar.frames()

        @st.composite
        def frames(draw: st.DrawFn) -> Any:  # whose name Hypothesis can print
            return draw(any_frame)

        def put(key: str) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                try:
                    client.put(key, key.encode())
                except (wbkv.OutcomeUnknown, wbkv.Unavailable, wbkv.DeadlineExceeded):
                    assert time.monotonic() < deadline, "the cluster does not serve any more"
                else:
                    kept[key] = key.encode()
                    return

        class Lies(RuleBasedStateMachine):
            said = 0

            @rule(burst=frames(), node=st.sampled_from([N1, N2]))
            def lie(self, burst: Any, node: NodeId) -> None:
                for frame in burst:
                    liars[node].send(frame)
                self.said += 1

            @precondition(lambda self: self.said > 5)
            @rule()
            def serve(self) -> None:
                put(f"key {len(kept)}")
                self.said = 0

            @invariant()
            def alive(self) -> None:
                for node, pid in pids.items():
                    if pid is None or started_at(pid) is None:
                        pytest.fail(f"{node} has stopped: {cluster.log(node).read_text()[-4000:]}")

        run_state_machine_as_test(
            Lies,
            settings=settings(
                max_examples=200 if CAMPAIGN else 3,
                stateful_step_count=40,
                deadline=None,
                derandomize=not CAMPAIGN,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )
        put("last")
        for key, value in kept.items():
            assert client.get(key) == value, "an acknowledged write is lost"
        assert liars[N1].connections > 1, "nothing that it said was wrong"
        check(cluster)
        for liar in liars.values():
            liar.close()
