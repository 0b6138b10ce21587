"""Every sequence of two and three faults and actions leaves a store that serves soon, wherever it can."""

from __future__ import annotations

import pytest

from kvstore.simulation.store import SimApplication
from kvstore.store.replica_view import ReplicaView
from multicast.types import GroupId
from tests.campaigns import CAMPAIGN
from tests.sim.sequences import ACTIONS, SEQUENCES, Operated

FOUND = [
    ("wipe", "replace", "kill"),
    ("replace", "restart all", "kill"),
    ("replace", "kill", "cut"),
    ("replace of 1", "stop of 1", "kill of 0"),
    ("pause", "cut", "wipe"),
    ("cut", "pause"),
]
"""After these, calls through some node took seconds."""


@pytest.mark.parametrize("sequence", FOUND if not CAMPAIGN else SEQUENCES, ids=", ".join)
def test_all_partitions_with_a_quorum_serve_within_two_seconds(sequence: tuple[str, ...]) -> None:
    for seed in range(3 if CAMPAIGN else 1):
        Operated(sequence, seed).check()


def test_all_actions_are_done_and_most_leave_a_quorum() -> None:
    assert len(SEQUENCES) == len(ACTIONS) ** 2 + len(ACTIONS) ** 3
    assert Operated(("replace", "pause"), 0).check() >= 36
    assert Operated(("kill", "kill"), 0).check() == 0, "one node of three is not asked"


class FollowsNoLeader(SimApplication):
    """A gateway that learns of leaders only by hints, and asks the supposed leader twice."""

    def _follow(self, group: GroupId, replica: ReplicaView, now: float) -> None:
        self.gateway._sender.doubts = False
        self.gateway._sender.answering.clear()


def test_a_gateway_that_does_not_follow_its_replicas_is_caught() -> None:
    for seed in range(30):
        run = Operated(("replace of 1", "stop of 1", "kill of 0"), seed)
        run.application_type = FollowsNoLeader
        try:
            run.check()
        except AssertionError as error:
            if "Availability" in str(error):
                return
    pytest.fail("it came through")
