"""A node of a real cluster says anything that is well-formed: the others go on serving."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
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
from kvstore.local.status import ask
from multicast.types import NUMBER_JUMP
from tests.campaigns import CAMPAIGN
from tests.faults.liar import Grammar, Liar

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
PATIENCE_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "data", 3, 2, durability="os", restart=False) as running:
        running.wait_serving()
        running.stop(N3)
        yield running


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

            @rule(frame=frames(), node=st.sampled_from([N1, N2]))
            def lie(self, frame: Any, node: NodeId) -> None:
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
                    assert pid is not None
                    assert Path(f"/proc/{pid}").exists(), cluster.log(node).read_text()[-4000:]

        run_state_machine_as_test(
            Lies,
            settings=settings(
                max_examples=200 if CAMPAIGN else 4,
                stateful_step_count=60,
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
        for node in (N1, N2):
            status = ask(config.status_socket(node))
            assert status is not None, cluster.log(node).read_text()[-4000:]
            for group in status["groups"].values():
                assert group["configuration"] == 0
                assert group["ballot"] < 1000 * NUMBER_JUMP
            assert set(status["transport"]["peers"]) <= {N1, N2, N3}
            assert "Traceback" not in cluster.log(node).read_text()
        for liar in liars.values():
            liar.close()
