"""Replicas driven by hand: their names, their messages, and the steps that begin a ballot."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import settings

from multicast import messages as msg
from multicast import types as t
from multicast.durable import Durable
from multicast.process import Replica
from multicast.protocol import Protocol, Start
from multicast.topology import Topology

EXAMPLES = settings(deadline=None, derandomize=True)
P = TypeVar("P", bound=Protocol)

G0, G1, G2 = t.GroupId(0), t.GroupId(1), t.GroupId(2)
BOTH: t.Destinations = (G0, G1)
CLIENT = t.ClientId(7)
WHOLE = msg.StatePart(1, 0, 1)
"""A state in one piece."""


def replica_ids(group: t.GroupId, count: int) -> list[t.ReplicaId]:
    return [t.ReplicaId(group, number, 0) for number in range(count)]


HERE, THERE = replica_ids(G0, 3), replica_ids(G1, 3)
TOPOLOGY = Topology({G0: HERE, G1: THERE})


def start(
    protocol: type[P], me: t.ReplicaId, topology: Topology = TOPOLOGY, life: int = 1, **options: Any
) -> P:
    """A replica with a randomness of its own in each of its lives. Options are those of `Start`."""
    return protocol(Start(me, topology, random.Random(f"{me} {life}"), 0.0, **options))


@dataclass(slots=True)
class Said:
    """What a replica wanted done."""

    messages: list[tuple[t.Process, msg.Message]] = field(default_factory=list)
    deliver: list[msg.Delivery] = field(default_factory=list)

    def to(self, receiver: t.Process) -> list[msg.Message]:
        return [message for to, message in self.messages if to == receiver]


def drain(replica: Replica[Any], disk: Durable | None = None) -> Said:
    """Do what a host would; what the replica says to itself is handed back to it."""
    said = Said()
    while ready := replica.ready():
        said.deliver += ready.deliver
        if disk is not None:
            disk.apply(ready.persist)
        for receivers, message in [*ready.send, *ready.promise]:
            said.messages += [(to, message) for to in receivers if to != replica.me]
            if replica.me in receivers:
                replica.step(replica.me, message, replica.now)
    return said


def stand(replica: Replica[Any], voters: Iterable[t.ReplicaId], now: float = 0.0) -> t.Ballot:
    """The replica opens a ballot, with the pre-votes of these members; its NEWLEADER is out."""
    replica.tick(now)
    drain(replica)
    ballot = replica.pre_vote_for
    assert ballot is not None
    for voter in voters:
        replica.step(voter, msg.PreVoteAck(ballot), now)
    drain(replica)
    assert replica.ballot == ballot
    return ballot


def lead(replica: Replica[Any], others: Sequence[t.ReplicaId], now: float = 0.0) -> t.Ballot:
    """The replica becomes the leader of a ballot that begins with nothing, with the help of these members."""
    ballot = stand(replica, others, now)
    for other in others:
        replica.step(other, msg.NewLeaderAck(ballot, t.NO_BALLOT, 0, t.NO_TIMESTAMP, WHOLE, ()), now)
    drain(replica)
    for other in others:
        replica.step(other, msg.NewStateAck(ballot), now)
    assert replica.is_leader
    drain(replica)
    return ballot


def follow(replica: Replica[Any], ballot: t.Ballot, now: float = 0.0) -> None:
    """The replica joins a ballot that begins with nothing."""
    replica.step(ballot.leader, msg.NewState(ballot, 0, WHOLE, ()), now)
    drain(replica)
    assert replica.status is t.Status.FOLLOWER


def multicast(
    sequence: int, dest: t.Destinations = (G0,), payload: bytes = b"x", ack_below: int = 1
) -> msg.Multicast:
    """A message of CLIENT."""
    mid = t.MessageId(CLIENT, sequence, t.digest_of(dest, payload))
    return msg.Multicast(mid, dest, payload, ack_below)


def proposal(
    ballot: t.Ballot, messages: Sequence[msg.Multicast], first: int, after: t.Timestamp = t.NO_TIMESTAMP
) -> msg.Accept:
    """What a leader tells group 0 of its proposals, the first of them at this time, each a tick later."""
    group, dests = ballot.leader.group, tuple(m.dest for m in messages)
    times = tuple(t.timestamp(first + index, group) for index in range(len(messages)))
    own = messages if group == G0 else ()  # whose payloads it needs
    return msg.Accept(
        dests if len(set(dests)) > 1 else dests[:1], group, ballot, tuple(m.mid for m in messages), times,
        tuple(m.payload for m in own), tuple(m.ack_below for m in own), after,
    )  # fmt: skip
