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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args, get_origin

import pytest
from sortedcontainers import SortedList

from multicast import messages as msg
from multicast import types as t
from multicast.durable import Checkpoint
from multicast.errors import InvalidArgument, MulticastError, PeerViolation
from multicast.membership import Configuration, Membership
from multicast.protocol import Start
from multicast.topology import Topology
from multicast.whitebox import WhiteBox
from tests.unit.multicast import replicas
from tests.unit.multicast.replicas import CLIENT, G0, G1, TOPOLOGY, drain, follow, lead, multicast, proposal

G9 = t.GroupId(9)
R0, R1, R2 = TOPOLOGY.members(G0)
OTHER, OTHER_LEADER, _ = TOPOLOGY.members(G1)
STRANGER = t.ReplicaId(G0, 7, 0)
REBORN = t.ReplicaId(G0, 1, 0xBAD)
NOW = 1.0
WHOLE = msg.StatePart(1, 0, 1)

CONFIGURATION = Configuration(G0, 0, [R0, R1, R2])
BALLOT = t.Ballot(1, R0, 0)
OTHER_BALLOT = t.Ballot(3, OTHER_LEADER, 0)


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


@contextlib.contextmanager
def unchanged(replica: WhiteBox) -> Iterator[None]:
    before = snapshot(replica)
    yield
    assert snapshot(replica) == before


def test_the_snapshot_sees_everything_that_matters() -> None:
    """Else all tests below could pass for the wrong reason."""
    changes: dict[str, Any] = {
        "clock": lambda r: setattr(r, "clock", r.clock + 1),
        "ballot": lambda r: setattr(r, "ballot", t.Ballot(9, R1, 0)),
        "cballot": lambda r: setattr(r, "cballot", t.Ballot(9, R1, 0)),
        "status": lambda r: setattr(r, "status", t.Status.RECOVERING),
        "entries": lambda r: setattr(r.entries[IN_FLIGHT.mid], "phase", t.Phase.COMMITTED),
        "proposals": lambda r: r.entries[IN_FLIGHT.mid].proposals.pop(),
        "votes": lambda r: setattr(r.entries[IN_FLIGHT.mid], "votes", []),
        "queue": lambda r: r.queue.propose(t.timestamp(99, G0), None),
        "orphans": lambda r: r.orphans.clear(),
        "delivered_ids": lambda r: r.delivered_ids.add(t.MessageId(CLIENT, 50, 0), 1),
        "history": lambda r: r.history._kept.clear(),
        "_ready": lambda r: r._ready.send.append(((R1,), msg.CatchUp(t.NO_TIMESTAMP))),
        "leaders": lambda r: r.leaders.clear(),
        "numbers": lambda r: r.numbers.clear(),
        "selection": lambda r: r.selection.heard_member(R2, 77.0),
        "facts": lambda r: r.facts.update({G1: t.Timestamp(5)}),
    }
    for name, change in changes.items():
        replica = leader()
        before = snapshot(replica)
        assert snapshot(replica) == before
        change(replica)
        assert snapshot(replica) != before, name


# Replicas in the middle of something


DELIVERED = multicast(1, (G0,), b"delivered")
IN_FLIGHT = multicast(2, (G0, G1), b"in flight")
ORPHAN = multicast(3, (G0, G1), b"orphan")
FRESH = multicast(4, (G0,), b"fresh")


def leader() -> WhiteBox:
    replica = replicas.start(WhiteBox, R0)
    assert lead(replica, [R1], NOW) == BALLOT
    replica.step(CLIENT, DELIVERED, NOW)
    drain(replica)
    replica.step(R1, msg.AcceptAck((DELIVERED.mid,), G0, (BALLOT,)), NOW)
    replica.step(CLIENT, IN_FLIGHT, NOW)
    replica.step(OTHER_LEADER, proposal(OTHER_BALLOT, [ORPHAN], 40), NOW)
    drain(replica)
    assert replica.status is t.Status.LEADER
    assert replica.cballot == BALLOT
    assert replica.last_delivered == t.timestamp(1, G0)
    assert replica.entries[IN_FLIGHT.mid].phase is t.Phase.PROPOSED
    assert list(replica.orphans) == [ORPHAN.mid]
    return replica


def follower() -> WhiteBox:
    replica = replicas.start(WhiteBox, R1)
    follow(replica, BALLOT, NOW)
    replica.step(R0, proposal(BALLOT, [DELIVERED], 1), NOW)
    first = t.timestamp(1, G0)
    replica.step(R0, msg.Deliver(BALLOT, t.NO_TIMESTAMP, ((DELIVERED.mid, first, first),)), NOW)
    replica.step(R0, proposal(BALLOT, [IN_FLIGHT], 2), NOW)
    replica.step(OTHER_LEADER, proposal(OTHER_BALLOT, [ORPHAN], 40), NOW)
    drain(replica)
    assert replica.status is t.Status.FOLLOWER
    assert replica.last_delivered == t.timestamp(1, G0)
    assert len(replica.orphans) == 2
    return replica


def recovering() -> WhiteBox:
    replica = replicas.start(WhiteBox, R2)
    replica.step(CLIENT, IN_FLIGHT, NOW)
    replica.step(OTHER_LEADER, proposal(OTHER_BALLOT, [ORPHAN], 40), NOW)
    replica.step(R0, msg.NewLeader(BALLOT), NOW)
    drain(replica)
    assert replica.status is t.Status.RECOVERING
    assert len(replica.waiting) == 1
    return replica


ROLES = {"leader": leader, "follower": follower, "recovering": recovering}
ALL = tuple(ROLES)


def refused(
    role: str, sender: t.Process, message: msg.Message, error: type[MulticastError], named: Iterable[str]
) -> None:
    """The replica refuses the message, says why, and is what it was."""
    replica = ROLES[role]()
    with unchanged(replica), pytest.raises(error) as caught:
        replica.step(sender, message, NOW)
    assert [part for part in named if part not in str(caught.value)] == []


def case(
    name: str, sender: t.Process, message: msg.Message, *named: str, roles: Iterable[str] = ALL
) -> list[Any]:
    return [pytest.param(role, sender, message, named, id=f"{name}, at a {role}") for role in roles]


def cases(*groups: list[Any]) -> list[Any]:
    return [param for group in groups for param in group]


# MULTICAST

LEADER_ONLY = ("leader",)
NOT_RECOVERING = ("leader", "follower")
UNSORTED: t.Destinations = (G1, G0)
REPEATED: t.Destinations = (G0, G0)
UNKNOWN: t.Destinations = (G0, G9)


@pytest.mark.parametrize(
    ("role", "sender", "message", "named"),
    cases(
        case("unknown group", CLIENT, multicast(4, UNKNOWN), "unknown group 9"),
        case("negative group", CLIENT, multicast(4, (t.GroupId(-1), G0)), "unknown group -1"),
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
    role: str, sender: t.Process, message: msg.Multicast, named: tuple[str]
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
        assert replica.entries[mismatch.mid].phase is t.Phase.PROPOSED


# Messages that a sender may not send

SAMPLES: list[msg.Message] = [
    proposal(OTHER_BALLOT, [FRESH], 40),
    msg.AcceptAck((IN_FLIGHT.mid,), G0, (BALLOT, OTHER_BALLOT)),
    msg.Deliver(BALLOT, t.timestamp(1, G0), ((IN_FLIGHT.mid, t.timestamp(2, G0), t.timestamp(2, G0)),)),
    msg.NewLeader(t.Ballot(5, R1, 0)),
    msg.NewLeaderAck(BALLOT, t.NO_BALLOT, 0, t.NO_TIMESTAMP, WHOLE, ()),
    msg.NewState(t.Ballot(5, R1, 0), 0, WHOLE, ()),
    msg.NewStateAck(BALLOT),
    msg.Phase2a(
        t.Ballot(5, R1, 0), msg.LocalTimestamps(), msg.ClockUpdates((IN_FLIGHT.mid,), (t.timestamp(9, G1),))
    ),
    msg.Phase2b(BALLOT, (IN_FLIGHT.mid,), msg.ClockUpdates()),
    msg.Propose(G1, OTHER_BALLOT, (FRESH.mid,), (FRESH.dest,), (t.timestamp(9, G1),), (True,)),
    msg.Hint(G0, t.Ballot(5, R1, 0)),
    msg.Heartbeat(t.Ballot(5, R1, 0), t.NO_TIMESTAMP, ()),
    msg.HeartbeatAck(BALLOT, BALLOT, t.NO_TIMESTAMP),
    msg.PreVote(t.Ballot(5, R1, 0)),
    msg.PreVoteAck(BALLOT),
    msg.HandOver(t.Ballot(5, R1, 0)),
    msg.Join("somewhere", None),
    msg.Members(Membership(Configuration(G0, 1, [R0, R1, REBORN._replace(number=2)]), CONFIGURATION)),
    msg.CatchUp(t.NO_TIMESTAMP),
    msg.Deliveries((), t.timestamp(9, G0)),
    msg.Executed(G1, t.timestamp(9, G1), reply_wanted=True),
    msg.Recall(1),
    msg.Recalled(1, 2, 3),
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
@pytest.mark.parametrize("sender", [STRANGER, REBORN, t.ReplicaId(G9, 0, 0)], ids=str)
@pytest.mark.parametrize(
    "message", [m for m in [*SAMPLES, FRESH] if not isinstance(m, msg.Members)], ids=name_of
)
def test_whoever_is_not_in_the_topology_is_not_listened_to(
    role: str, sender: t.ReplicaId, message: msg.Message
) -> None:
    if sender.group == G9 or (isinstance(message, msg.Join) and sender == STRANGER):
        refused(role, sender, message, PeerViolation, [str(sender)])
    else:
        ignored(role, sender, message)


def ignored(role: str, sender: t.ReplicaId, message: msg.Message) -> None:
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
        msg.NewLeader(t.Ballot(5, R1, 8)),
        msg.NewState(t.Ballot(5, R1, 8), 0, WHOLE, ()),
        msg.Heartbeat(t.Ballot(5, R1, 8), t.NO_TIMESTAMP, ()),
        msg.PreVote(t.Ballot(5, R1, 8)),
        msg.HandOver(t.Ballot(5, R1, 8)),
        msg.Hint(G0, t.Ballot(5, R1, 8)),
    ],
    ids=name_of,
)
def test_who_speaks_of_an_unheard_configuration_is_asked_about_it(role: str, message: msg.Message) -> None:
    ignored(role, R1, message)


@pytest.mark.parametrize("role", ALL)
def test_something_that_is_no_message_is_refused(role: str) -> None:
    refused(role, R1, "hello", PeerViolation, ["g0r1", "str"])  # type: ignore[arg-type]  # wrong on purpose


HIGHER = t.Ballot(5, R1, 0)
ACK = msg.AcceptAck((IN_FLIGHT.mid,), G0, (BALLOT, OTHER_BALLOT))
FOREIGN = proposal(OTHER_BALLOT, [ORPHAN], 40)
ACCEPT, OWN_ACCEPT = proposal(OTHER_BALLOT, [FRESH], 40), proposal(BALLOT, [FRESH], 9)
DELIVER = msg.Deliver(BALLOT, t.timestamp(1, G0), ((IN_FLIGHT.mid, t.timestamp(2, G0), t.timestamp(2, G0)),))
EXECUTED = msg.Executed(G1, t.timestamp(9, G1), reply_wanted=True)
INTERNAL = [m for m in SAMPLES if not isinstance(m, (msg.Accept, msg.AcceptAck, msg.Executed, msg.Members))]


@pytest.mark.parametrize("role", ALL)
@pytest.mark.parametrize("message", INTERNAL, ids=name_of)
def test_another_group_has_no_say_inside_this_one(role: str, message: msg.Message) -> None:
    refused(role, OTHER_LEADER, message, PeerViolation, ["g1r1"])


@pytest.mark.parametrize(
    ("role", "sender", "message", "named"),
    cases(
        case("ACCEPT by another member", R2, OWN_ACCEPT, "7:4", "b1@g0r0", "g0r2"),
        case("ACCEPT by another member of g1", OTHER, ACCEPT, "7:4", "b3@g1r1", "g1r0"),
        case("ACCEPT for another group", OTHER_LEADER, replace(ACCEPT, group=G0), "7:4", "g1r1"),
        case("ACCEPT for no destination", OTHER_LEADER, replace(ACCEPT, dests=((G0,),)), "7:4"),
        case("ACCEPT of what is not for us", OTHER_LEADER, replace(ACCEPT, dests=((G1,),)), "7:4"),
        case("ACCEPT, unsorted", OTHER_LEADER, replace(ACCEPT, dests=(UNSORTED,)), "1, 0"),
        case("ACCEPT, unknown group", OTHER_LEADER, replace(ACCEPT, dests=((G0, G9),)), "unknown group 9"),
        case("ACCEPT of nothing", OTHER_LEADER, replace(FOREIGN, mids=(), local_ts=()), "lengths", "g1r1"),
        case("ACCEPT, too few timestamps", OTHER_LEADER, replace(FOREIGN, local_ts=()), "lengths", "g1r1"),
        case("ACCEPT, a foreign payload", OTHER_LEADER, replace(FOREIGN, payloads=(b"x",)), "wrong", "g1r1"),
        case("ACCEPT, no payload", R0, replace(OWN_ACCEPT, payloads=()), "lengths", "7:4"),
        case("ACCEPT, a payload too many", R0, replace(OWN_ACCEPT, payloads=(b"", b"")), "lengths"),
        case("ACCEPT_ACK for another group", R1, replace(ACK, group=G1), "7:2", "g0r1"),
        case("ACCEPT_ACK by a stranger", OTHER, ACK, "7:2", "g1r0"),
        case("DELIVER by another member", R2, DELIVER, "g0r2"),
        case("NEWLEADER by another member", R2, msg.NewLeader(HIGHER), "g0r2", "b5@g0r1"),
        case("NEW_STATE by another member", R2, msg.NewState(HIGHER, 0, WHOLE, ()), "g0r2", "b5@g0r1"),
        case("HEARTBEAT by another member", R2, msg.Heartbeat(HIGHER, t.NO_TIMESTAMP, ()), "g0r2", "b5@g0r1"),
        case("hint to a stranger", R1, msg.Hint(G0, t.Ballot(5, STRANGER, 0)), "b5@g0r7"),
        case("hint to another group's leader", R1, msg.Hint(G0, t.Ballot(5, OTHER_LEADER, 0)), "b5@g1r1"),
        case("EXECUTED for another group", R1, EXECUTED, "g0r1", "group 1"),
    ),
)  # fmt: skip
def test_a_replica_speaks_for_itself_only(
    role: str, sender: t.Process, message: msg.Message, named: tuple[str]
) -> None:
    refused(role, sender, message, MulticastError, named)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_an_accept_by_a_group_that_is_no_destination_of_a_known_message_is_refused(role: str) -> None:
    """Counted, it would stand for the proposal of a group that has yet to make one."""
    stray = t.ReplicaId(G9, 0, 0)
    topology = Topology({G0: [R0, R1, R2], G1: [OTHER, OTHER_LEADER, t.ReplicaId(G1, 2, 0)], G9: [stray]})
    replica = ROLES[role]()
    replica.topology = topology
    at = t.timestamp(40, G9)
    lie = msg.Accept(((G0, G9),), G9, t.Ballot(3, stray, 0), (FRESH.mid, IN_FLIGHT.mid), (at, at), (), ())
    with unchanged(replica), pytest.raises(PeerViolation, match="7:2"):
        replica.step(stray, lie, NOW)


def test_an_acknowledgement_in_a_ballot_of_an_unknown_group_is_refused() -> None:
    ack = msg.AcceptAck((IN_FLIGHT.mid,), G0, (BALLOT, t.Ballot(3, t.ReplicaId(G9, 0, 0), 0)))
    refused("leader", R1, ack, MulticastError, ["unknown group 9"])


def test_a_mismatch_that_waited_for_a_leader_does_not_hurt_whoever_elects_it() -> None:
    """Two requests under one number wait here; the NEWSTATE_ACK that ends the wait is not to blame."""
    replica = replicas.start(WhiteBox, R0)
    replica.tick(0.0)
    for waiting in (FRESH, multicast(4, (G0,), b"other"), multicast(5, (G0,), b"behind it")):
        replica.step(CLIENT, waiting, NOW)
    replica.step(R1, msg.PreVoteAck(BALLOT), NOW)
    drain(replica)
    replica.step(R1, msg.NewLeaderAck(BALLOT, t.NO_BALLOT, 0, t.NO_TIMESTAMP, WHOLE, ()), NOW)
    drain(replica)
    replica.step(R1, msg.NewStateAck(BALLOT), NOW)
    assert replica.status is t.Status.LEADER
    assert replica.entries[FRESH.mid].phase is not t.Phase.START
    assert multicast(5, (G0,), b"behind it").mid in replica.entries, "what waited behind it is lost"
    assert any(isinstance(message, msg.Heartbeat) for _, message in drain(replica).messages)


def test_a_mismatch_that_waited_for_a_leader_does_not_hurt_a_follower() -> None:
    replica = follower()
    replica.step(R2, msg.NewLeader(t.Ballot(2, R2, 0)), NOW)
    replica.step(CLIENT, multicast(6, (G0,), b"one"), NOW)
    drain(replica)
    # Meanwhile the number is delivered with another payload, and this replica hears of that first.
    delivered, at = multicast(6, (G0,), b"another"), t.timestamp(8, G0)
    one = msg.Delivery(delivered.mid, (G0,), b"another", 1, at, at, replica.last_delivered, mismatch=False)
    replica._catch_up(R2)
    replica.step(R2, msg.Deliveries((one,), at), NOW)
    assert replica.last_delivered == at
    replica.step(R2, msg.NewState(t.Ballot(2, R2, 0), 8, WHOLE, ()), NOW)
    assert replica.status is t.Status.FOLLOWER
    assert any(isinstance(message, msg.NewStateAck) for _, message in drain(replica).messages)


# The host's own calls


@pytest.mark.parametrize("role", ALL)
@pytest.mark.parametrize("beyond", [lambda last: last + 1, lambda last: last + (1 << 40), lambda last: -1])
def test_executed_beyond_what_was_delivered_or_below_zero_is_refused(
    role: str, beyond: Callable[[int], int]
) -> None:
    replica = ROLES[role]()
    watermark = t.Timestamp(beyond(replica.last_delivered))
    with unchanged(replica), pytest.raises(InvalidArgument, match=str(watermark)):
        replica.executed(watermark)


@pytest.mark.parametrize(("role", "ahead"), [*((role, 0) for role in ALL), ("leader", 99 << 10)])
def test_a_snapshot_that_is_not_ahead_is_not_installed_nor_any_by_a_leader(role: str, ahead: int) -> None:
    replica = ROLES[role]()
    with unchanged(replica):
        assert not replica.install(Checkpoint(position=t.Timestamp(replica.last_delivered + ahead)), NOW)


def test_a_replica_that_can_be_no_member_does_not_start() -> None:
    with pytest.raises(InvalidArgument, match="g0r7"):
        replicas.start(WhiteBox, STRANGER)
    with pytest.raises(InvalidArgument, match="unknown group 9"):
        replicas.start(WhiteBox, t.ReplicaId(G9, 0, 0))


def test_a_replica_on_a_new_disk_acts_in_no_ballot() -> None:
    """It asks to join, and sends nothing else, whatever it receives."""
    replica = replicas.start(WhiteBox, REBORN)
    for now in (0.0, 1.0, 5.0):
        replica.tick(now)
        replica.nominate(now)
    for message in (
        msg.NewLeader(HIGHER),
        msg.NewState(HIGHER, 0, WHOLE, ()),
        msg.PreVote(HIGHER),
        proposal(BALLOT, [FRESH], 9),
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
