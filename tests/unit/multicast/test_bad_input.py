"""Bad input is refused with an error that names the offending value, and nothing has changed.

Three replicas of one group are tried, each in the middle of something: a leader with one message in flight,
one delivered, and another group's proposal for one it has not seen; a follower of it; and a recovering
process with a MULTICAST waiting. Before and after, every variable of the replica is compared, however deep.
"""

from __future__ import annotations

import contextlib
import enum
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args, get_origin

import pytest
from sortedcontainers import SortedList

from multicast import messages as msg
from multicast.durable import Checkpoint
from multicast.errors import InvalidArgument, MulticastError, PeerViolation
from multicast.membership import Configuration, Membership
from multicast.protocol import Start
from multicast.topology import Topology
from multicast.types import (
    NO_BALLOT,
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Phase,
    Process,
    ReplicaId,
    Status,
    Timestamp,
    digest_of,
    timestamp,
)
from multicast.whitebox import WhiteBox

G0, G1, G9 = GroupId(0), GroupId(1), GroupId(9)
R0, R1, R2 = (ReplicaId(G0, number, 0) for number in range(3))
OTHER, OTHER_LEADER = ReplicaId(G1, 0, 0), ReplicaId(G1, 1, 0)
STRANGER = ReplicaId(G0, 7, 0)
REBORN = ReplicaId(G0, 1, 0xBAD)
CLIENT = ClientId(7)
WHOLE = msg.StatePart(1, 0, 1)
NOW = 1.0

CONFIGURATION = Configuration(G0, 0, [R0, R1, R2])
BALLOT = Ballot(1, R0, 0)
OTHER_BALLOT = Ballot(3, OTHER_LEADER, 0)


# What is in a replica


def freeze(value: Any) -> Any:
    """A deep, comparable picture of a value, independent of it."""
    if value is None or isinstance(value, (int, float, str, bytes, enum.Enum)):
        return value
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, dict):
        return [(freeze(key), freeze(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque, SortedList)):
        return [freeze(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(freeze(item) for item in value)
    return type(value).__name__, {name: freeze(item) for name, item in attributes(value)}


def attributes(value: object) -> Iterable[tuple[str, Any]]:
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    names += list(getattr(value, "__dict__", {}))
    return [(name, getattr(value, name)) for name in names]


CONSTANT = {"topology", "configuration", "timing", "_handlers", "now", "checked"}


def snapshot(replica: WhiteBox) -> dict[str, Any]:
    """All variables of a replica, but the time, what never changes, and which destinations are known to be in
    order.
    """
    found = {name: freeze(value) for name, value in attributes(replica) if name not in CONSTANT}
    return {**found, "memberships": freeze(replica.topology.memberships)}


def test_the_snapshot_sees_everything_that_matters() -> None:
    """Else all tests below could pass for the wrong reason."""
    changes: dict[str, Any] = {
        "clock": lambda r: setattr(r, "clock", r.clock + 1),
        "ballot": lambda r: setattr(r, "ballot", Ballot(9, R1, 0)),
        "cballot": lambda r: setattr(r, "cballot", Ballot(9, R1, 0)),
        "status": lambda r: setattr(r, "status", Status.RECOVERING),
        "entries": lambda r: setattr(r.entries[IN_FLIGHT.mid], "phase", Phase.COMMITTED),
        "proposals": lambda r: r.entries[IN_FLIGHT.mid].proposals.pop(),
        "votes": lambda r: setattr(r.entries[IN_FLIGHT.mid], "votes", []),
        "queue": lambda r: r.queue.propose(timestamp(99, G0), None),
        "orphans": lambda r: r.orphans.clear(),
        "delivered_ids": lambda r: r.delivered_ids.add(MessageId(CLIENT, 50, 0), 1),
        "history": lambda r: r.history._kept.clear(),
        "_ready": lambda r: r._ready.send.append(((R1,), msg.CatchUp(NO_TIMESTAMP))),
        "leaders": lambda r: r.leaders.clear(),
        "numbers": lambda r: r.numbers.clear(),
        "selection": lambda r: r.selection.heard_member(R2, 77.0),
        "facts": lambda r: r.facts.update({G1: Timestamp(5)}),
    }
    for name, change in changes.items():
        replica = leader()
        before = snapshot(replica)
        assert snapshot(replica) == before
        change(replica)
        assert snapshot(replica) != before, name


# Replicas in the middle of something


def multicast(sequence: int, dest: Destinations, payload: bytes = b"x", ack_below: int = 1) -> msg.Multicast:
    return msg.Multicast(MessageId(CLIENT, sequence, digest_of(dest, payload)), dest, payload, ack_below)


DELIVERED = multicast(1, (G0,), b"delivered")
IN_FLIGHT = multicast(2, (G0, G1), b"in flight")
ORPHAN = multicast(3, (G0, G1), b"orphan")
FRESH = multicast(4, (G0,), b"fresh")


def start(me: ReplicaId) -> WhiteBox:
    return WhiteBox(Start(me, Topology.uniform(2, 3), random.Random(1), 0.0))


def drain(replica: WhiteBox) -> list[msg.Message]:
    """Do what the host would; what the replica says to itself is handed back."""
    said: list[msg.Message] = []
    while ready := replica.ready():
        for receivers, message in [*ready.send, *ready.promise]:
            said.append(message)
            if replica.me in receivers:
                replica.step(replica.me, message, NOW)
    return said


def leader() -> WhiteBox:
    replica = start(R0)
    replica.tick(0.0)
    replica.step(R1, msg.PreVoteAck(BALLOT), NOW)
    drain(replica)
    replica.step(R1, msg.NewLeaderAck(BALLOT, NO_BALLOT, 0, NO_TIMESTAMP, WHOLE, ()), NOW)
    drain(replica)
    replica.step(R1, msg.NewStateAck(BALLOT), NOW)
    replica.step(CLIENT, DELIVERED, NOW)
    drain(replica)
    replica.step(R1, msg.AcceptAck((DELIVERED.mid,), G0, (BALLOT,)), NOW)
    replica.step(CLIENT, IN_FLIGHT, NOW)
    replica.step(OTHER_LEADER, foreign_accept(ORPHAN), NOW)
    drain(replica)
    assert replica.status is Status.LEADER
    assert replica.cballot == BALLOT
    assert replica.last_delivered == timestamp(1, G0)
    assert replica.entries[IN_FLIGHT.mid].phase is Phase.PROPOSED
    assert list(replica.orphans) == [ORPHAN.mid]
    return replica


def follower() -> WhiteBox:
    replica = start(R1)
    replica.step(R0, msg.NewState(BALLOT, 0, WHOLE, ()), NOW)
    replica.step(R0, own_accept(DELIVERED, 1), NOW)
    replica.step(
        R0, msg.Deliver(BALLOT, NO_TIMESTAMP, ((DELIVERED.mid, timestamp(1, G0), timestamp(1, G0)),)), NOW
    )
    replica.step(R0, own_accept(IN_FLIGHT, 2), NOW)
    replica.step(OTHER_LEADER, foreign_accept(ORPHAN), NOW)
    drain(replica)
    assert replica.status is Status.FOLLOWER
    assert replica.last_delivered == timestamp(1, G0)
    assert len(replica.orphans) == 2
    return replica


def recovering() -> WhiteBox:
    replica = start(R2)
    replica.step(CLIENT, IN_FLIGHT, NOW)
    replica.step(OTHER_LEADER, foreign_accept(ORPHAN), NOW)
    replica.step(R0, msg.NewLeader(BALLOT), NOW)
    drain(replica)
    assert replica.status is Status.RECOVERING
    assert len(replica.waiting) == 1
    return replica


def own_accept(message: msg.Multicast, time: int) -> msg.Accept:
    at = timestamp(time, G0)
    return msg.Accept((message.dest,), G0, BALLOT, (message.mid,), (at,), (message.payload,), (1,))


def foreign_accept(message: msg.Multicast) -> msg.Accept:
    return msg.Accept((message.dest,), G1, OTHER_BALLOT, (message.mid,), (timestamp(40, G1),), (), ())


ROLES = {"leader": leader, "follower": follower, "recovering": recovering}
ALL = tuple(ROLES)


def refused(
    role: str, sender: Process, message: msg.Message, error: type[MulticastError], named: Iterable[str]
) -> None:
    """The replica refuses the message, says why, and is what it was."""
    replica = ROLES[role]()
    before = snapshot(replica)
    with pytest.raises(MulticastError) as caught:
        replica.step(sender, message, NOW)
    assert snapshot(replica) == before
    assert isinstance(caught.value, error)
    for part in named:
        assert part in str(caught.value)


def case(
    name: str, sender: Process, message: msg.Message, *named: str, roles: Iterable[str] = ALL
) -> list[Any]:
    return [pytest.param(role, sender, message, named, id=f"{name}, at a {role}") for role in roles]


def cases(*groups: list[Any]) -> list[Any]:
    return [param for group in groups for param in group]


# MULTICAST

LEADER_ONLY = ("leader",)
NOT_RECOVERING = ("leader", "follower")
UNSORTED: Destinations = (G1, G0)
REPEATED: Destinations = (G0, G0)
UNKNOWN: Destinations = (G0, G9)


@pytest.mark.parametrize(
    ("role", "sender", "message", "named"),
    cases(
        case("unknown group", CLIENT, multicast(4, UNKNOWN), "unknown group 9"),
        case("negative group", CLIENT, multicast(4, (GroupId(-1), G0)), "unknown group -1"),
        case("no destination", CLIENT, multicast(4, ()), "at least one destination"),
        case("unsorted", CLIENT, multicast(4, UNSORTED), "1, 0"),
        case("repeated", CLIENT, multicast(4, REPEATED), "0, 0"),
        case("unknown group from a replica", OTHER, multicast(4, UNKNOWN), "unknown group 9"),
        case("not for this group", CLIENT, multicast(4, (G1,)), "7:4", "group 0"),
        case("acknowledges itself", CLIENT, multicast(4, (G0,), ack_below=5), "7:4", "ack_below 5"),
        case("wrong digest", CLIENT, FRESH._replace(payload=b"forged"), "7:4", "digest"),
        case("wrong destinations", CLIENT, FRESH._replace(dest=(G0, G1)), "7:4", "digest"),
        case("wrong digest of a replica", OTHER, FRESH._replace(payload=b"forged"), "7:4", "digest"),
        case("id in flight, other payload", CLIENT, multicast(2, (G0, G1), b"y"), "7:2", roles=LEADER_ONLY),
        case("id in flight, other groups", CLIENT, multicast(2, (G0,), b"y"), "7:2", roles=LEADER_ONLY),
        case("delivered id, other payload", CLIENT, multicast(1, (G0,)), "7:1", roles=NOT_RECOVERING),
        case("delivered id, other groups", CLIENT, multicast(1, (G0, G1), b"delivered"), "7:1",
             roles=NOT_RECOVERING),
    ),
)  # fmt: skip
def test_a_bad_multicast_is_refused(
    role: str, sender: Process, message: msg.Multicast, named: tuple[str]
) -> None:
    refused(role, sender, message, InvalidArgument, named)


def test_a_good_multicast_is_not_refused() -> None:
    for role in ALL:
        replica = ROLES[role]()
        before = snapshot(replica)
        replica.step(CLIENT, FRESH, NOW)
        assert snapshot(replica) != before


def test_a_mismatch_that_another_group_orders_is_ordered() -> None:
    """Departure 6: a refusal would leave the other group waiting for ever."""
    replica = leader()
    for mismatch in (multicast(2, (G0, G1), b"y"), multicast(1, (G0, G1), b"y")):
        replica.step(OTHER_LEADER, mismatch, NOW)
        assert replica.entries[mismatch.mid].phase is Phase.PROPOSED


# Messages that a sender may not send

SAMPLES: list[msg.Message] = [
    foreign_accept(FRESH),
    msg.AcceptAck((IN_FLIGHT.mid,), G0, (BALLOT, OTHER_BALLOT)),
    msg.Deliver(BALLOT, timestamp(1, G0), ((IN_FLIGHT.mid, timestamp(2, G0), timestamp(2, G0)),)),
    msg.NewLeader(Ballot(5, R1, 0)),
    msg.NewLeaderAck(BALLOT, NO_BALLOT, 0, NO_TIMESTAMP, WHOLE, ()),
    msg.NewState(Ballot(5, R1, 0), 0, WHOLE, ()),
    msg.NewStateAck(BALLOT),
    msg.Phase2a(
        Ballot(5, R1, 0), msg.LocalTimestamps(), msg.ClockUpdates((IN_FLIGHT.mid,), (timestamp(9, G1),))
    ),
    msg.Phase2b(BALLOT, (IN_FLIGHT.mid,), msg.ClockUpdates()),
    msg.Propose(G1, OTHER_BALLOT, (FRESH.mid,), (FRESH.dest,), (timestamp(9, G1),), (True,)),
    msg.Hint(G0, Ballot(5, R1, 0)),
    msg.Heartbeat(Ballot(5, R1, 0), NO_TIMESTAMP, ()),
    msg.HeartbeatAck(BALLOT, BALLOT, NO_TIMESTAMP),
    msg.PreVote(Ballot(5, R1, 0)),
    msg.PreVoteAck(BALLOT),
    msg.HandOver(Ballot(5, R1, 0)),
    msg.Join("somewhere", None),
    msg.Members(Membership(Configuration(G0, 1, [R0, R1, REBORN._replace(number=2)]), CONFIGURATION)),
    msg.CatchUp(NO_TIMESTAMP),
    msg.Deliveries((), timestamp(9, G0)),
    msg.Executed(G1, timestamp(9, G1), reply_wanted=True),
]


def name_of(message: msg.Message) -> str:
    return type(message).__name__


def test_every_message_has_a_sample() -> None:
    assert {type(m) for m in SAMPLES} | {msg.Multicast, msg.MembersWanted} == {
        get_origin(kind) or kind for kind in get_args(msg.Message)
    }


@pytest.mark.parametrize("role", ALL)
@pytest.mark.parametrize("message", SAMPLES, ids=name_of)
def test_a_client_may_only_multicast(role: str, message: msg.Message) -> None:
    refused(role, CLIENT, message, PeerViolation, ["client 7", name_of(message)])


@pytest.mark.parametrize("role", ALL)
@pytest.mark.parametrize("sender", [STRANGER, REBORN, ReplicaId(G9, 0, 0)], ids=str)
@pytest.mark.parametrize(
    "message", [m for m in [*SAMPLES, FRESH] if not isinstance(m, msg.Members)], ids=name_of
)
def test_whoever_is_not_in_the_topology_is_not_listened_to(
    role: str, sender: ReplicaId, message: msg.Message
) -> None:
    if sender.group == G9 or (isinstance(message, msg.Join) and sender == STRANGER):
        refused(role, sender, message, PeerViolation, [str(sender)])
    else:
        ignored(role, sender, message)


def ignored(role: str, sender: ReplicaId, message: msg.Message) -> None:
    """Nothing changes; the sender is only asked for its membership, or sent ours."""
    replica = ROLES[role]()
    drain(replica)
    before = snapshot(replica)
    replica.step(sender, message, NOW)
    ready = replica.ready()
    assert {receivers for receivers, _ in ready.send} == {(sender,)}
    assert {type(answer) for _, answer in ready.send} <= {msg.Members, msg.MembersWanted}
    assert not [*ready.persist, *ready.promise, *ready.deliver, *ready.transfers, *ready.learned]
    after = snapshot(replica)
    for name in ("asked_members", "_ready"):
        del before[name], after[name]
    assert after == before


@pytest.mark.parametrize("role", ALL)
@pytest.mark.parametrize(
    "message",
    [
        msg.NewLeader(Ballot(5, R1, 8)),
        msg.NewState(Ballot(5, R1, 8), 0, WHOLE, ()),
        msg.Heartbeat(Ballot(5, R1, 8), NO_TIMESTAMP, ()),
        msg.PreVote(Ballot(5, R1, 8)),
        msg.HandOver(Ballot(5, R1, 8)),
        msg.Hint(G0, Ballot(5, R1, 8)),
    ],
    ids=name_of,
)
def test_who_speaks_of_an_unheard_configuration_is_asked_about_it(role: str, message: msg.Message) -> None:
    ignored(role, R1, message)


@pytest.mark.parametrize("role", ALL)
def test_something_that_is_no_message_is_refused(role: str) -> None:
    refused(role, R1, "hello", PeerViolation, ["g0r1", "str"])  # type: ignore[arg-type]  # wrong on purpose


HIGHER = Ballot(5, R1, 0)
VECTOR = (BALLOT, OTHER_BALLOT)
FOREIGN = foreign_accept(ORPHAN)
ACCEPT = foreign_accept(FRESH)
DELIVER = msg.Deliver(BALLOT, timestamp(1, G0), ((IN_FLIGHT.mid, timestamp(2, G0), timestamp(2, G0)),))
EXECUTED = msg.Executed(G1, timestamp(9, G1), reply_wanted=True)
INTERNAL = [m for m in SAMPLES if not isinstance(m, (msg.Accept, msg.AcceptAck, msg.Executed, msg.Members))]


@pytest.mark.parametrize("role", ALL)
@pytest.mark.parametrize("message", INTERNAL, ids=name_of)
def test_another_group_has_no_say_inside_this_one(role: str, message: msg.Message) -> None:
    refused(role, OTHER_LEADER, message, PeerViolation, ["g1r1"])


@pytest.mark.parametrize(
    ("role", "sender", "message", "named"),
    cases(
        case("ACCEPT by another member", R2, own_accept(FRESH, 9), "7:4", "b1@g0r0", "g0r2"),
        case("ACCEPT by another member of g1", OTHER, foreign_accept(FRESH), "7:4", "b3@g1r1", "g1r0"),
        case("ACCEPT for another group", OTHER_LEADER, replace(ACCEPT, group=G0), "7:4", "g1r1"),
        case("ACCEPT for no destination", OTHER_LEADER, replace(ACCEPT, dests=((G0,),)), "7:4"),
        case("ACCEPT of what is not for us", OTHER_LEADER, replace(ACCEPT, dests=((G1,),)), "7:4"),
        case("ACCEPT, unsorted", OTHER_LEADER, replace(ACCEPT, dests=(UNSORTED,)), "1, 0"),
        case("ACCEPT, unknown group", OTHER_LEADER, replace(ACCEPT, dests=((G0, G9),)), "unknown group 9"),
        case("ACCEPT of nothing", OTHER_LEADER, replace(FOREIGN, mids=(), local_ts=()), "lengths", "g1r1"),
        case("ACCEPT, too few timestamps", OTHER_LEADER, replace(FOREIGN, local_ts=()), "lengths", "g1r1"),
        case("ACCEPT, a foreign payload", OTHER_LEADER, replace(FOREIGN, payloads=(b"x",)), "wrong", "g1r1"),
        case("ACCEPT, no payload", R0, replace(own_accept(FRESH, 9), payloads=()), "lengths", "7:4"),
        case("ACCEPT, a payload too many", R0, replace(own_accept(FRESH, 9), payloads=(b"", b"")), "lengths"),
        case("ACCEPT_ACK for another group", R1, msg.AcceptAck((IN_FLIGHT.mid,), G1, VECTOR), "7:2", "g0r1"),
        case("ACCEPT_ACK by a stranger", OTHER, msg.AcceptAck((IN_FLIGHT.mid,), G0, VECTOR), "7:2", "g1r0"),
        case("DELIVER by another member", R2, DELIVER, "g0r2"),
        case("NEWLEADER by another member", R2, msg.NewLeader(HIGHER), "g0r2", "b5@g0r1"),
        case("NEW_STATE by another member", R2, msg.NewState(HIGHER, 0, WHOLE, ()), "g0r2", "b5@g0r1"),
        case("HEARTBEAT by another member", R2, msg.Heartbeat(HIGHER, NO_TIMESTAMP, ()), "g0r2", "b5@g0r1"),
        case("hint to a stranger", R1, msg.Hint(G0, Ballot(5, STRANGER, 0)), "b5@g0r7"),
        case("hint to another group's leader", R1, msg.Hint(G0, Ballot(5, OTHER_LEADER, 0)), "b5@g1r1"),
        case("EXECUTED for another group", R1, EXECUTED, "g0r1", "group 1"),
    ),
)  # fmt: skip
def test_a_replica_speaks_for_itself_only(
    role: str, sender: Process, message: msg.Message, named: tuple[str]
) -> None:
    refused(role, sender, message, MulticastError, named)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_an_accept_by_a_group_that_is_no_destination_of_a_known_message_is_refused(role: str) -> None:
    """Counted, it would stand for the proposal of a group that has yet to make one."""
    stray = ReplicaId(G9, 0, 0)
    topology = Topology({G0: [R0, R1, R2], G1: [OTHER, OTHER_LEADER, ReplicaId(G1, 2, 0)], G9: [stray]})
    replica = ROLES[role]()
    replica.topology = topology
    before = snapshot(replica)
    at = timestamp(40, G9)
    lie = msg.Accept(((G0, G9),), G9, Ballot(3, stray, 0), (FRESH.mid, IN_FLIGHT.mid), (at, at), (), ())
    with pytest.raises(PeerViolation, match="7:2"):
        replica.step(stray, lie, NOW)
    assert snapshot(replica) == before


def test_an_acknowledgement_in_a_ballot_of_an_unknown_group_is_refused() -> None:
    ack = msg.AcceptAck((IN_FLIGHT.mid,), G0, (BALLOT, Ballot(3, ReplicaId(G9, 0, 0), 0)))
    refused("leader", R1, ack, MulticastError, ["unknown group 9"])


def test_a_mismatch_that_waited_for_a_leader_does_not_hurt_whoever_elects_it() -> None:
    """Two requests under one number wait here; the NEWSTATE_ACK that ends the wait is not to blame."""
    replica = start(R0)
    replica.tick(0.0)
    for waiting in (FRESH, multicast(4, (G0,), b"other"), multicast(5, (G0,), b"behind it")):
        replica.step(CLIENT, waiting, NOW)
    replica.step(R1, msg.PreVoteAck(BALLOT), NOW)
    drain(replica)
    replica.step(R1, msg.NewLeaderAck(BALLOT, NO_BALLOT, 0, NO_TIMESTAMP, WHOLE, ()), NOW)
    drain(replica)
    replica.step(R1, msg.NewStateAck(BALLOT), NOW)
    assert replica.status is Status.LEADER
    assert replica.entries[FRESH.mid].phase is not Phase.START
    assert multicast(5, (G0,), b"behind it").mid in replica.entries, "what waited behind it is lost"
    assert any(isinstance(message, msg.Heartbeat) for message in drain(replica))


def test_a_mismatch_that_waited_for_a_leader_does_not_hurt_a_follower() -> None:
    replica = follower()
    replica.step(R2, msg.NewLeader(Ballot(2, R2, 0)), NOW)
    replica.step(CLIENT, multicast(6, (G0,), b"one"), NOW)
    drain(replica)
    # Meanwhile the number is delivered with another payload, and this replica hears of that first.
    delivered, at = multicast(6, (G0,), b"another"), timestamp(8, G0)
    one = msg.Delivery(delivered.mid, (G0,), b"another", 1, at, at, replica.last_delivered, mismatch=False)
    replica.step(R2, msg.Deliveries((one,), at), NOW)
    assert replica.last_delivered == at
    replica.step(R2, msg.NewState(Ballot(2, R2, 0), 8, WHOLE, ()), NOW)
    assert replica.status is Status.FOLLOWER
    assert any(isinstance(message, msg.NewStateAck) for message in drain(replica))


# The host's own calls


@pytest.mark.parametrize("role", ALL)
@pytest.mark.parametrize("ahead", [1, 1 << 40])
def test_executed_beyond_what_was_delivered_is_refused(role: str, ahead: int) -> None:
    replica = ROLES[role]()
    before = snapshot(replica)
    watermark = Timestamp(replica.last_delivered + ahead)
    with pytest.raises(InvalidArgument, match=str(watermark)):
        replica.executed(watermark)
    assert snapshot(replica) == before


def test_executed_below_zero_is_refused() -> None:
    replica = leader()
    before = snapshot(replica)
    with pytest.raises(InvalidArgument, match="-1"):
        replica.executed(Timestamp(-1))
    assert snapshot(replica) == before


@pytest.mark.parametrize("role", ALL)
def test_a_snapshot_that_is_not_ahead_is_not_installed(role: str) -> None:
    replica = ROLES[role]()
    before = snapshot(replica)
    assert not replica.install(Checkpoint(position=replica.last_delivered), NOW)
    assert snapshot(replica) == before


def test_a_leader_installs_no_snapshot() -> None:
    replica = leader()
    before = snapshot(replica)
    assert not replica.install(Checkpoint(position=timestamp(99, G0)), NOW)
    assert snapshot(replica) == before


def test_a_replica_that_can_be_no_member_does_not_start() -> None:
    with pytest.raises(InvalidArgument, match="g0r7"):
        start(STRANGER)
    with pytest.raises(InvalidArgument, match="unknown group 9"):
        start(ReplicaId(G9, 0, 0))


def test_a_replica_on_a_new_disk_acts_in_no_ballot() -> None:
    """It asks to join, and sends nothing else, whatever it receives."""
    replica = start(REBORN)
    for now in (0.0, 1.0, 5.0):
        replica.tick(now)
        replica.nominate(now)
    for message in (
        msg.NewLeader(HIGHER),
        msg.NewState(HIGHER, 0, WHOLE, ()),
        msg.PreVote(HIGHER),
        own_accept(FRESH, 9),
    ):
        for sender in (R0, R1):
            with contextlib.suppress(PeerViolation):
                replica.step(sender, message, NOW)
    ready = replica.ready()
    assert {type(said) for _, said in ready.send} == {msg.Join, msg.Members}
    assert not ready.persist
    assert not ready.promise


def test_a_malformed_topology_starts_nobody() -> None:
    with pytest.raises(InvalidArgument, match="group 0 has 2 members"):
        Start(R0, Topology({G0: [R0, R1]}), random.Random(1), 0.0)
