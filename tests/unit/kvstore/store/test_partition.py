"""A partition wired by hand: what it asks for, holds and answers, without an ordering protocol."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kvstore.machine import Decision, Machine, MachineState, Placement, Scheme, Store, Vote
from kvstore.machine.codec import encode_request
from kvstore.machine.commands import Command, Request
from kvstore.machine.request import Compare, Get, Operator, Put, Range, Subject, Transaction
from kvstore.machine.results import Got, KeyValue, Outcome
from kvstore.store.gate import CALM_S, Announcement
from kvstore.store.messages import (
    Answer,
    BallotCheck,
    CalmLevels,
    Levels,
    Query,
    Results,
    Votes,
    VotesWanted,
)
from kvstore.store.partition import ANSWER_BYTES, PULL_S, PULLED, Partition
from kvstore.store.questions import Feed, NotYetReply, ReadAt, StrictRead, Values
from multicast.errors import PeerViolation
from multicast.membership import Configuration, Membership
from multicast.messages import Delivery
from multicast.types import (
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Process,
    ReplicaId,
    Timestamp,
    digest_of,
    timestamp,
)

A, B, C = (GroupId(group) for group in range(3))
PLACEMENT = Placement(1, Scheme.ORDERED, (b"", b"m", b"t"), (A, B, C), (A, B, C))
"""Keys from a are in A, from m in B, from t in C."""
GATEWAY = ClientId(99)
NEVER = 1 << 52


def members(group: GroupId) -> tuple[ReplicaId, ...]:
    return tuple([ReplicaId(group, number, 1) for number in range(3)])


class Leader:
    """As much of a replica as a partition looks at: the leader of its group, for ever."""

    def __init__(self, group: GroupId) -> None:
        self.me = members(group)[0]
        self.ballot = self.cballot = self.reading_ballot = Ballot(1, self.me, 0)
        self.is_leader = self.is_current = True
        self.clock = 0
        self.others = members(group)[1:]
        self.readers = members(group), 2
        self.topology = SimpleNamespace(members=members)

    def is_in_ballot(self, ballot: Ballot) -> bool:
        return ballot == self.ballot

    @property
    def membership(self) -> Membership:
        return Membership(Configuration(self.me.group, 0, members(self.me.group)))

    def retained_groups(self) -> list[tuple[Timestamp, Destinations]]:
        return []

    def leader_of(self, group: GroupId) -> ReplicaId:
        return members(group)[0]

    def quorum_time(self) -> int:
        return 1_000_000


def partition_of(group: GroupId) -> Partition:
    replica: Any = Leader(group)
    return Partition(replica, Machine(group, Store(), MachineState(PLACEMENT)))


def delivery(time: int, command: Command, dest: Destinations) -> Delivery:
    payload = encode_request(Request(7, time, 0, NEVER, time, command))
    mid = MessageId(GATEWAY, time, digest_of(dest, payload))
    place = timestamp(time, A)
    return Delivery(mid, dest, payload, 0, place, place, NO_TIMESTAMP, mismatch=False)


def if_absent(key: bytes, *puts: bytes) -> Transaction:
    condition = Compare(key, Subject.EXISTS, Operator.EQUAL, 0)
    return Transaction(conditions=(condition,), then=tuple(Put(each, b"") for each in puts))


def wanted(partition: Partition, turns: int) -> dict[GroupId, set[Timestamp]]:
    """For which votes and outcomes it asks whom, in so many turns."""
    found: dict[GroupId, set[Timestamp]] = {}
    for turn in range(turns):
        for _, receivers, message in partition.turn(turn * 1.1 * PULL_S):
            if isinstance(message, VotesWanted):
                assert partition.me not in receivers
                for receiver in receivers:
                    assert isinstance(receiver, ReplicaId)
                    found.setdefault(receiver.group, set()).update(message.places)
    return found


def test_a_read_that_is_asked_for_again_waits_once() -> None:
    partition = partition_of(A)
    partition.deliver([delivery(10, if_absent(b"n", b"a"), (A, B))])  # b"a" is locked until B votes
    answers: list[Any] = []
    for turn in range(20):
        now = turn * 0.5
        partition.receive(GATEWAY, Query(1, StrictRead((Get(b"a"),))), now)
        if turn == 10:
            partition.receive(GATEWAY, Query(2, StrictRead((Get(b"b"),))), now)
        for _ in range(2):
            for _, receivers, message in partition.turn(now):
                if isinstance(message, BallotCheck):
                    stands = BallotCheck(message.ballot, message.number, asked=False)
                    partition.receive(receivers[0], stands, now)
                elif isinstance(message, Answer):
                    answers.append(message.number)
    assert answers == [2]
    assert len(partition._reads) + len(partition._arrived) == 1
    place = timestamp(10, A)
    partition.receive(members(B)[0], Votes((), ((place, Decision.THEN),)), 20.0)
    partition.receive(members(B)[0], Levels(Announcement(B, place, ())), 20.0)
    answers += [message.number for _, _, message in partition.turn(20.0) if isinstance(message, Answer)]
    assert answers == [2, 1]
    partition.receive(GATEWAY, Query(1, StrictRead((Get(b"a"),))), 20.0)  # the answer was lost
    assert len(partition._arrived) == 1


def test_announcements_are_put_off_until_a_group_asks() -> None:
    partition = partition_of(A)
    partition.turn(0.0)

    def announced(now: float) -> list[tuple[type, Timestamp]]:
        return [
            (type(message), message.announcement.levels[0].value)
            for _, receivers, message in partition.turn(now)
            if isinstance(message, Levels) and receivers == members(B)[:1]
        ]

    def put(time: int) -> Timestamp:
        transaction = Transaction(then=(Put(b"a%d" % time, b""), Put(b"n", b"")))
        partition.deliver([delivery(time, transaction, (A, B))])
        return timestamp(time, A)

    first = put(10)
    assert announced(1.0) == []
    assert partition.wake_at <= 1.0 + 2 * CALM_S
    second = put(11)
    assert announced(1.0 + CALM_S / 2) == []
    assert first < second
    assert announced(1.0 + CALM_S) == [(CalmLevels, second)]
    partition.receive(members(B)[0], Levels(Announcement(B, NO_TIMESTAMP, (), timestamp(12, A))), 1.1)
    assert announced(1.1) == [(Levels, second)], "it has asked"
    assert announced(1.1) == []
    assert [announced(1.1) for _ in [put(12)]] == [[(Levels, timestamp(12, A))]], "it still waits"


def test_a_group_of_one_answers_a_read_at_once() -> None:
    partition = partition_of(A)
    replica: Any = partition.replica
    replica.readers = members(A)[:1], 1
    partition.receive(GATEWAY, Query(1, StrictRead((Get(b"a"),))), 0.0)
    assert Answer in {type(message) for _, _, message in partition.turn(0.0)}


def test_a_leader_asks_its_own_group_too() -> None:
    # The others may have forgotten the outcome: what our group has executed concerns only our group.
    partition = partition_of(A)
    partition.deliver([delivery(10, if_absent(b"n", b"a"), (A, B))])
    assert wanted(partition, 4) == {A: {timestamp(10, A)}, B: {timestamp(10, A)}}


def test_who_waits_for_a_dead_group_does_not_keep_others_from_being_asked() -> None:
    partition = partition_of(A)
    dead = [delivery(10 + i, if_absent(b"t%d" % i, b"a%d" % i), (A, C)) for i in range(PULLED + 10)]
    partition.deliver([*dead, delivery(1000, if_absent(b"n", b"b"), (A, B))])
    assert wanted(partition, 5)[B] == {timestamp(1000, A)}


def test_a_replica_on_a_new_disk_does_not_say_that_there_is_nothing() -> None:
    partition = partition_of(A)
    replica: Any = partition.replica

    def read() -> Any:
        partition.receive(GATEWAY, Query(1, ReadAt((Get(b"a"),))), 0.0)
        (answer,) = [message for _, _, message in partition.turn(0.0) if isinstance(message, Answer)]
        return answer.response

    assert isinstance(read(), Values)  # nothing was ever written
    replica.is_current = False
    assert read() == NotYetReply(0)
    partition.deliver([delivery(10, Transaction(then=(Put(b"a", b""),)), (A,))])
    assert isinstance(read(), Values)  # old, perhaps, but a point of the order


def test_a_watch_does_not_wait_at_a_replica_without_a_state() -> None:
    """It would be silent for as long as the replica restores its state: the leader is asked instead."""
    partition = partition_of(A)
    replica: Any = partition.replica

    def follow() -> list[Any]:
        partition.receive(GATEWAY, Query(1, Feed(5, (Range(b"", None),), 1000, wait_s=1.0)), 0.0)
        return [message.response for _, _, message in partition.turn(0.0) if isinstance(message, Answer)]

    replica.is_current = False
    assert follow() == [NotYetReply(0)]
    replica.is_current = True
    assert follow() == []  # an idle group: it waits for changes
    replica.is_current = False
    partition.deliver([delivery(10, Transaction(then=(Put(b"a", b""),)), (A,))])
    assert follow()


def test_a_replica_votes_for_its_own_group_only() -> None:
    partition = partition_of(A)
    transaction = delivery(1, if_absent(b"n", b"a"), (A, B))
    partition.deliver([transaction])
    vote = Vote(transaction.global_ts, transaction.mid, B, yes=False)
    for stranger in (members(C)[0], members(A)[1]):
        with pytest.raises(PeerViolation, match="a vote of group 1"):
            partition.receive(stranger, Votes((vote,)), 0.0)
    assert partition.machine.open_votes() == [(transaction.global_ts, frozenset((B,)))]
    partition.receive(members(B)[0], Votes((vote,)), 0.0)
    assert partition.machine.open_votes() == []


@pytest.mark.parametrize(
    ("sender", "message", "why"),
    [
        (members(C)[0], Levels(Announcement(B, timestamp(9, B), ())), "an announcement of group 1"),
        (members(B)[0], BallotCheck(Ballot(1, members(A)[0], 0), 1, asked=True), "is not a member"),
        (members(B)[0], BallotCheck(Ballot(1, members(A)[0], 0), 1, asked=False), "is not a member"),
        (GATEWAY, Votes(()), "client .* sent Votes"),
        (GATEWAY, VotesWanted(()), "client .* sent VotesWanted"),
        (GATEWAY, Levels(Announcement(A, timestamp(9, A), ())), "client .* sent Levels"),
        (GATEWAY, BallotCheck(Ballot(1, members(A)[0], 0), 1, asked=False), "client .* sent BallotCheck"),
        (members(B)[0], Results(B, timestamp(9, B), (), (), ()), "sent Results to a replica"),
    ],
)
def test_what_only_others_may_say(sender: Process, message: Any, why: str) -> None:
    partition = partition_of(A)
    closed = partition.gate.closed
    with pytest.raises(PeerViolation, match=why):
        partition.receive(sender, message, 0.0)
    assert partition.gate.closed == closed


def test_a_quorum_of_another_group_does_not_confirm_a_ballot() -> None:
    """A strict read waits for members of its own group."""
    partition = partition_of(A)
    partition.receive(GATEWAY, Query(1, StrictRead((Get(b"a"),))), 0.0)
    (check,) = [message for _, _, message in partition.turn(0.0) if isinstance(message, BallotCheck)]
    for stranger in members(B):
        with contextlib.suppress(PeerViolation):
            partition.receive(stranger, replace(check, asked=False), 0.0)
    assert not [message for _, _, message in partition.turn(0.1) if isinstance(message, Answer)]
    partition.receive(members(A)[1], replace(check, asked=False), 0.2)
    assert [message for _, _, message in partition.turn(0.2) if isinstance(message, Answer)]


def test_large_results_are_answered_in_several_messages() -> None:
    """A link carries no message of any size: all of them together were lost at every retry."""
    partition = partition_of(A)
    mids = [MessageId(GATEWAY, number, 1) for number in range(1, 6)]
    for number, mid in enumerate(mids, 1):
        result = Outcome(
            succeeded=True, unmet=(), results=((0, Got(KeyValue(b"k", bytes(ANSWER_BYTES // 2), 1, 1, 1))),)
        )
        partition._results[mid] = timestamp(number, A), result
    partition._send_answers(mids)
    sent = [message for _, _, message in partition._outgoing if isinstance(message, Results)]
    assert [mid for message in sent for mid in message.mids] == mids
    assert len(sent) == len(mids)
    assert all(len(message.mids) == len(message.places) == len(message.results) for message in sent)
