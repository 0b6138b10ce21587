"""What a gateway makes of what no correct replica says."""

from __future__ import annotations

import random

import pytest

from kvstore.gateway import Gateway
from kvstore.machine import Limits
from kvstore.messages import Results
from multicast.errors import PeerViolation
from multicast.topology import Topology
from multicast.types import ClientId, MessageId, Timestamp
from tests.unit.test_partition import GATEWAY, PLACEMENT, A, B, C, members

MID, PLACE = MessageId(ClientId(1), 1, 1), Timestamp(7)


@pytest.mark.parametrize(
    "results",
    [
        Results(A, PLACE, (), (), ()),
        Results(A, PLACE, (MID,), (), (b"",)),
        Results(A, PLACE, (MID,), (PLACE,), ()),
        Results(B, PLACE, (MID,), (PLACE,), (b"",)),
    ],
)
def test_results_that_are_none_are_refused(results: Results) -> None:
    topology = Topology({group: members(group) for group in (A, B, C)})
    gateway = Gateway(
        GATEWAY, topology, PLACEMENT,
        limits=Limits(), local={}, ticks=lambda: 0, rng=random.Random(1),
    )  # fmt: skip
    with pytest.raises(PeerViolation):
        gateway.receive(members(A)[0], [results], 0.0)
