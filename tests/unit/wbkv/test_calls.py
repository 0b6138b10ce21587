"""Calls as plans: who is asked, what is repeated, and what is raised when time is over."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import wbkv
from wbkv.core.calls import BACKOFF_MAX_S, PATIENCE_S, RENEWALS, TOPOLOGY_S, UNREACHED_MAX_S, Calls, backoff
from wbkv.core.effects import Ask, Failure, Open
from wbkv.core.environment import SYSTEM
from wbkv.core.identity import Identity
from wbkv.core.requests import Requests
from wbkv.core.revision_time import LIFE_S, REPEAT_S
from wbkv.core.routing import REFRESH_S, REST_S, Placement, Router, endpoints_of
from wbkv.errors import error_of
from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError
from wbkv_proto.v1.error_pb2 import Leader

from kvstore.machine import placement as machine
from multicast.types import GroupId
from tests.unit.wbkv.model import (
    ADDRESSES,
    MESSAGE_BYTES,
    Clock,
    ModelLink,
    drive,
    lost,
    script,
    times,
    told,
    topology,
)

H1, H2, H3 = ADDRESSES


def ids(link: ModelLink, name: str) -> list[tuple[int, int, int]]:
    found: list[Any] = [ask.request for ask in link.kinds(name)]
    return [(each.id.client, each.id.sequence, each.id.ack_below) for each in found]


# Where


@pytest.mark.parametrize("scheme", machine.Scheme)
@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_keys_are_where_the_store_has_them(scheme: machine.Scheme, partitions: int) -> None:
    rng = random.Random(partitions)
    groups = [GroupId(i) for i in range(partitions)]
    if scheme is machine.Scheme.HASHED:
        theirs = machine.Placement.evenly(groups)
    else:
        starts = (b"", *sorted({rng.randbytes(2) for _ in range(partitions - 1)}))
        owners = tuple(rng.choice(groups) for _ in starts)
        theirs = machine.Placement(1, scheme, starts, owners, tuple(groups))
    ours = Placement(scheme is machine.Scheme.HASHED, theirs.starts, theirs.owners)
    pieces = [b"{", b"}", b"{}", b"a", b"user", b"\0", b"\xff", b"/"]
    for _ in range(3000):
        key = b"".join(rng.choices(pieces, k=rng.randint(1, 8))) + rng.randbytes(rng.randint(0, 3))
        assert ours.partition_of(key) == theirs.group_of(key), key


def test_a_call_goes_to_the_leader_of_its_key(link: ModelLink, requests: Requests[bytes]) -> None:
    drive(link, requests.put("a", b"1", None))
    drive(link, requests.put("z", b"1", None))
    drive(link, requests.get("z", None, 0, None, None))
    drive(link, requests.transact((wbkv.exists("a"),), (wbkv.put("x", b""),), (), None))
    assert link.addresses == [H1, H2, H2, H2]
    assert not link.kinds("Topology")


def test_another_node_is_asked_under_the_same_id(link: ModelLink, requests: Requests[bytes]) -> None:
    link.after = times(2, lost())
    assert drive(link, requests.put("a", b"1", None)) == 110
    assert link.addresses[0] == H1
    assert len(set(link.addresses)) == 3
    assert len(set(ids(link, "Put"))) == 1
    assert len(link.store.log) == 1


def test_a_node_that_knows_the_leader_is_believed(link: ModelLink, requests: Requests[bytes]) -> None:
    moved = [Leader(partition=0, node="n3", address=H3)]
    link.before = times(1, told(ApiError.UNAVAILABLE, retryable=True, same_id=True, leaders=moved))
    link.after = lambda asked: lost() if asked.method.name == "Topology" else None
    drive(link, requests.put("a", b"1", None))
    drive(link, requests.put("a", b"2", None))
    assert link.addresses == [H1, H3, H3]


def test_a_node_that_is_gone_is_left_alone_for_a_while(link: ModelLink, requests: Requests[bytes]) -> None:
    link.before = lambda asked: lost(begun=False) if asked.address == H1 else None
    drive(link, requests.put("a", b"1", None))
    first = len(link.asked)
    for _ in range(10):
        drive(link, requests.put("a", b"1", None))
    assert H1 not in [ask.address for ask in link.asked[first:]]
    link.before = lambda asked: None
    link.clock.now += REST_S + REFRESH_S
    drive(link, requests.put("a", b"1", None))
    assert link.addresses[-1] == H1


def test_a_silent_node_costs_one_call_its_patience(link: ModelLink, requests: Requests[bytes]) -> None:
    """It leads, by the map that all others give, and does not answer."""
    link.before = lambda asked: lost(ApiError.DEADLINE_PASSED) if asked.address == H1 else None
    begun = link.clock.now
    drive(link, requests.put("a", b"1", None))
    assert PATIENCE_S <= link.clock.now - begun < 2 * PATIENCE_S + 1
    begun = link.clock.now
    drive(link, requests.put("a", b"1", None))
    assert link.clock.now == begun


def test_a_caller_in_a_hurry_says_nothing_of_the_node(link: ModelLink, requests: Requests[bytes]) -> None:
    link.before = times(1, lost(ApiError.DEADLINE_PASSED))
    with pytest.raises(wbkv.OutcomeUnknown):
        drive(link, requests.put("a", b"1", 0.1))
    drive(link, requests.put("a", b"1", None))
    assert link.addresses == [H1, H1]


def test_the_map_is_asked_for_when_it_is_old(link: ModelLink, requests: Requests[bytes]) -> None:
    drive(link, requests.get("a", None, 0, None, None))
    link.clock.now += REFRESH_S + 1
    drive(link, requests.get("a", None, 0, None, None))
    drive(link, requests.get("a", None, 0, None, None))
    assert [ask.method.name for ask in link.asked] == ["Get", "Topology", "Get", "Get"]


def test_the_map_is_not_asked_for_since_nodes_are_busy(link: ModelLink, requests: Requests[bytes]) -> None:
    link.before = times(3, told(ApiError.OVERLOADED, retryable=True))
    drive(link, requests.put("a", b"1", None))
    assert not link.kinds("Topology")


def test_asking_for_the_map_takes_no_longer_than_the_call_may(
    link: ModelLink, clock: Clock, requests: Requests[bytes]
) -> None:
    link.before = lambda asked: lost(ApiError.DEADLINE_PASSED)
    clock.now += REFRESH_S + 1
    begun = clock.now
    with pytest.raises(wbkv.DeadlineExceeded):
        drive(link, requests.get("a", None, 0, None, 0.5))
    assert clock.now - begun <= 0.5 + 1e-9


def test_another_clusters_map_is_ignored(link: ModelLink, clock: Clock, requests: Requests[bytes]) -> None:
    def other(request: Any) -> cluster.TopologyResponse:
        return topology("another", leaders=("n3", "n3"))

    link.store._topology = other  # type: ignore[method-assign]  # it is another cluster now
    clock.now += REFRESH_S + 1
    for _ in range(5):
        drive(link, requests.put("a", b"1", None))
    assert requests.calls.router.topology is not None
    assert requests.calls.router.topology.cluster == "c"
    assert len(link.kinds("Topology")) == 1  # and not asked for again and again


@pytest.mark.parametrize(
    "wrong", ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "h1:1,,h2:2", "h:1 2", ["h:1", "h"], "h:\u0661"]
)
def test_endpoints_that_are_none(wrong: str | list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WBKV_ENDPOINTS", raising=False)
    with pytest.raises(ValueError, match="endpoint"):
        endpoints_of(wrong)


def test_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoints_of("a:1, b:2,a:1") == ("a:1", "b:2")
    assert endpoints_of(["[::1]:7400"]) == ("[::1]:7400",)
    monkeypatch.setenv("WBKV_ENDPOINTS", "e:5,f:6")
    assert endpoints_of(None) == ("e:5", "f:6")
    monkeypatch.delenv("WBKV_ENDPOINTS")
    assert endpoints_of(None) == ("127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402")


# Connecting


def test_connecting_tries_all_endpoints(link: ModelLink) -> None:
    calls = Calls(Router((H3, H2, H1), link.clock.environment), 10.0)
    link.before = lambda asked: lost(begun=False) if asked.address != H1 else None
    drive(link, calls.connect(0.0))
    assert [ask.address for ask in link.asked] == [H3, H2, H1]


def test_connecting_waits_for_a_silent_node_as_a_call_does(link: ModelLink, clock: Clock) -> None:
    """A node that is busy for some seconds is not down."""
    begun = clock.now

    def silent(asked: Ask | Open) -> Failure | None:
        if clock.now >= begun + 7.0:
            return None
        clock.now += TOPOLOGY_S
        return lost()._replace(silent=True)

    link.before = silent
    drive(link, Calls(Router((H1,), link.clock.environment), 10.0).connect(0.0))
    assert clock.now < begun + 9.0
    begun = clock.now
    with pytest.raises(wbkv.Unavailable, match="no node answers"):
        drive(link, Calls(Router((H1,), link.clock.environment), 5.0).connect(0.0))
    assert clock.now >= begun + 5.0


def test_connecting_fails_at_once_or_after_so_long(link: ModelLink, clock: Clock) -> None:
    link.before = lambda asked: lost(begun=False)
    calls = Calls(Router((H1, H2), clock.environment), 10.0)
    with pytest.raises(wbkv.Unavailable, match="no node answers on h1:1, h2:2"):
        drive(link, calls.connect(0.0))
    assert not clock.slept
    begun = clock.now
    with pytest.raises(wbkv.Unavailable):
        drive(link, calls.connect(5.0))
    assert 5.0 <= clock.now - begun < 5.0 + BACKOFF_MAX_S


def test_what_is_no_node_is_said_at_once(link: ModelLink) -> None:
    link.before = lambda asked: told(ApiError.INVALID_REQUEST)
    with pytest.raises(wbkv.InvalidRequest):
        drive(link, Calls(Router((H1,), link.clock.environment), 10.0).connect(60.0))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_timeouts_that_are_none(link: ModelLink, requests: Requests[bytes], timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        wbkv.connect("127.0.0.1:1", timeout=timeout)
    with pytest.raises(ValueError, match="timeout"):
        drive(link, requests.put("a", b"", timeout))
    assert not link.asked


# How often, and how long


def test_waiting_in_between_is_bounded_and_jittered() -> None:
    for tries in (1, 2, 3, 8, 100, 10_000):
        waits = [backoff(tries, SYSTEM) for _ in range(200)]
        assert 0 < min(waits) < max(waits) <= BACKOFF_MAX_S
    assert max(backoff(1, SYSTEM) for _ in range(200)) < min(backoff(4, SYSTEM) for _ in range(200))


def test_nodes_that_are_not_reached_are_tried_again_soon(
    link: ModelLink, clock: Clock, requests: Requests[bytes]
) -> None:
    """A call continues soon after its nodes have started, however long that has taken."""
    link.before = lambda asked: lost(begun=False)
    with pytest.raises(wbkv.Unavailable):
        drive(link, Calls(Router((H1,), clock.environment), 10.0).connect(9.0))
    with pytest.raises(wbkv.Unavailable):
        drive(link, requests.put("a", b"", 9.0))
    assert max(clock.slept) <= UNREACHED_MAX_S


@pytest.mark.parametrize("failure", [lost(), lost(begun=False), told(ApiError.OVERLOADED, retryable=True)])
def test_a_call_ends_in_time(link: ModelLink, clock: Clock, requests: Requests[bytes], failure: Any) -> None:
    link.before = lambda asked: failure
    begun = clock.now
    with pytest.raises(wbkv.Error):
        drive(link, requests.put("a", b"1", 3.0))
    assert 3.0 <= clock.now - begun <= 3.0 + 1e-9
    assert len(link.addresses) < 40


def test_patience_grows(link: ModelLink, requests: Requests[bytes]) -> None:
    link.before = lambda asked: lost(ApiError.DEADLINE_PASSED) if asked.method.name == "Put" else None
    with pytest.raises(wbkv.OutcomeUnknown):
        drive(link, requests.put("a", b"1", 60.0))
    patience = [ask.patience_s for ask in link.kinds("Put") if isinstance(ask, Ask)]
    assert patience == [PATIENCE_S * 2**i for i in range(len(patience))]
    assert all(ask.timeout_s <= 60 for ask in link.kinds("Put") if isinstance(ask, Ask))


def test_a_write_is_not_repeated_for_longer_than_it_is_remembered(
    link: ModelLink, clock: Clock, requests: Requests[bytes]
) -> None:
    link.before = lambda asked: lost(ApiError.DEADLINE_PASSED)
    begun = clock.now
    with pytest.raises(wbkv.OutcomeUnknown):
        drive(link, requests.put("a", b"1", 100_000.0))
    assert clock.now - begun <= REPEAT_S + 1e-6


# What is raised


CALLS: dict[str, Callable[[Requests[bytes]], Any]] = {
    "put": lambda requests: requests.put("a", b"1", 3.0),
    "get": lambda requests: requests.get("a", None, 0, None, 3.0),
    "reading txn": lambda requests: requests.transact((), (wbkv.get("a"),), (), 3.0),
}


@pytest.mark.parametrize(
    ("call", "failure", "error"),
    [
        ("put", lost(), wbkv.OutcomeUnknown), ("put", lost(ApiError.DEADLINE_PASSED), wbkv.OutcomeUnknown),
        ("put", told(ApiError.OUTCOME_UNKNOWN, retryable=True, same_id=True), wbkv.OutcomeUnknown),
        ("put", told(ApiError.UNAVAILABLE, retryable=True, same_id=True), wbkv.OutcomeUnknown),
        ("put", lost(begun=False), wbkv.Unavailable),
        ("put", told(ApiError.OVERLOADED, retryable=True), wbkv.DeadlineExceeded),
        ("get", lost(), wbkv.DeadlineExceeded), ("get", lost(begun=False), wbkv.Unavailable),
        ("get", lost(ApiError.DEADLINE_PASSED), wbkv.DeadlineExceeded),
        ("get", told(ApiError.UNAVAILABLE, retryable=True, same_id=True), wbkv.DeadlineExceeded),
        ("reading txn", lost(), wbkv.DeadlineExceeded),
    ],
)  # fmt: skip
def test_what_is_known_when_time_is_over(
    link: ModelLink, requests: Requests[bytes], call: str, failure: Any, error: type[wbkv.Error]
) -> None:
    link.before = lambda asked: failure if asked.method.name != "Topology" else None
    with pytest.raises(wbkv.Error) as found:
        drive(link, CALLS[call](requests))
    assert type(found.value) is error
    assert found.value.retry_safe is (error is not wbkv.OutcomeUnknown)
    assert len(link.addresses) > 1


def test_one_lost_answer_makes_the_outcome_unknown(link: ModelLink, requests: Requests[bytes]) -> None:
    link.before = script(lost(), *[lost(begun=False)] * 99)
    with pytest.raises(wbkv.OutcomeUnknown, match="may have been executed"):
        drive(link, requests.put("a", b"1", 2.0))


KINDS = {
    ApiError.INVALID_REQUEST: wbkv.InvalidRequest, ApiError.LIMIT_EXCEEDED: wbkv.LimitExceeded,
    ApiError.UNAVAILABLE: wbkv.Unavailable, ApiError.OVERLOADED: wbkv.Unavailable,
    ApiError.OUTCOME_UNKNOWN: wbkv.OutcomeUnknown, ApiError.DEADLINE_PASSED: wbkv.DeadlineExceeded,
    ApiError.COMPACTED: wbkv.Compacted, ApiError.FUTURE_REVISION: wbkv.FutureRevision,
    ApiError.PINNED: wbkv.Pinned, ApiError.REQUEST_MISMATCH: wbkv.RequestMismatch,
    ApiError.REQUEST_EXPIRED: wbkv.OutcomeUnknown, ApiError.WINDOW_FULL: wbkv.Unavailable,
    ApiError.REQUEST_FORGOTTEN: wbkv.OutcomeUnknown, ApiError.RESPONSE_TOO_LARGE: wbkv.ResponseTooLarge,
    ApiError.OPERATION_FAILED: wbkv.OperationFailed,
    ApiError.INTERNAL: wbkv.ServerError, ApiError.KIND_UNSPECIFIED: wbkv.ServerError,
}  # fmt: skip


def test_every_kind_of_error_has_an_exception() -> None:
    assert set(KINDS) == set(ApiError.Kind.values())
    for kind, error in KINDS.items():
        found = error_of(ApiError(kind=kind, message="why", revision=7))
        assert type(found) is error
        assert str(found) == "why"
        if isinstance(found, wbkv.Compacted | wbkv.ResponseTooLarge):
            assert found.revision == 7
    assert type(error_of(ApiError(kind=99))) is wbkv.ServerError  # type: ignore[arg-type]  # of a newer server


@pytest.mark.parametrize("kind", [k for k in KINDS if k != 0])
def test_what_cannot_be_retried_is_raised_at_once(
    link: ModelLink, clock: Clock, requests: Requests[bytes], kind: ApiError.Kind
) -> None:
    link.before = lambda asked: told(kind)
    with pytest.raises(wbkv.Error) as found:
        drive(link, requests.put("a", b"1", None))
    never_begun = kind in (ApiError.REQUEST_EXPIRED, ApiError.REQUEST_FORGOTTEN)
    assert type(found.value) is (wbkv.Unavailable if never_begun else KINDS[kind])
    assert len(link.asked) == 1
    assert not clock.slept


def test_an_abort_is_definite_also_after_an_attempt_without_an_answer(
    link: ModelLink, requests: Requests[bytes]
) -> None:
    """The store keeps it as the request's result, and what it tells is as of a revision."""
    answers = [
        told(ApiError.UNAVAILABLE, retryable=True, same_id=True),
        told(ApiError.OPERATION_FAILED, revision=777),
    ]
    link.before = lambda asked: answers.pop(0)
    with pytest.raises(wbkv.OperationFailed):
        drive(link, requests.number(wbkv.add("a", 1), None))
    assert not answers
    assert requests.calls.seen == 777


@pytest.mark.parametrize("kind", [ApiError.REQUEST_EXPIRED, ApiError.REQUEST_FORGOTTEN])
def test_a_repetition_that_came_too_late_says_nothing_of_the_first(
    link: ModelLink, requests: Requests[bytes], kind: ApiError.Kind
) -> None:
    link.before = script(lost(), told(kind))
    with pytest.raises(wbkv.OutcomeUnknown):
        drive(link, requests.put("a", b"1", None))


def test_errors_are_what_pythonistas_expect() -> None:
    assert issubclass(wbkv.InvalidRequest, ValueError)
    assert issubclass(wbkv.LimitExceeded, wbkv.InvalidRequest)
    assert issubclass(wbkv.DeadlineExceeded, TimeoutError)
    public = [getattr(wbkv, name) for name in wbkv.__all__]
    errors = [each for each in public if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) == 18
    assert all(issubclass(error, wbkv.Error) for error in errors)


# Ids and sizes


def test_a_write_under_a_given_id_is_executed_once(link: ModelLink, client: wbkv.Client[bytes]) -> None:
    named = wbkv.RequestId(7, 4096, wbkv.later(link.store.revision, 60))
    first = client.txn(id=named).then(wbkv.put("k", b"1")).commit()
    client.put("k", b"2")
    again = client.txn(id=named).then(wbkv.put("k", b"1")).commit()
    assert again == first
    assert client.get("k") == b"2"
    assert link.store.results.keys() >= {(7, 4096)}


@pytest.mark.parametrize(
    "named", [(0, 1, 1), (2**63, 1, 1), (1, 0, 1), (1, 4097, 1), (1, 1, 0), (1, 1, 2**53)], ids=str
)
def test_what_is_no_id(client: wbkv.Client[bytes], named: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="of a RequestId must be"):
        client.txn(id=wbkv.RequestId(*named)).then(wbkv.put("k", b"")).commit()


@pytest.mark.parametrize(
    ("kind", "error"),
    [(ApiError.REQUEST_EXPIRED, wbkv.RequestExpired), (ApiError.REQUEST_MISMATCH, wbkv.RequestMismatch)],
)
def test_what_is_said_of_a_given_id(
    link: ModelLink, client: wbkv.Client[bytes], kind: ApiError.Kind, error: type[wbkv.Error]
) -> None:
    """Also if an attempt without an answer came before: another client's attempts may have, at any time."""
    for failures in ([], [lost()]):
        link.before = script(*failures, told(kind))
        with pytest.raises(error):
            client.txn(id=wbkv.RequestId(1, 1, 99)).then(wbkv.put("k", b"")).commit()


def test_revisions_are_times() -> None:
    assert wbkv.later(7 << 10 | 3, 1.5) == (7 + 15_000) << 10 | 3


def test_requests_are_acknowledged_when_nobody_will_repeat_them() -> None:
    identity = Identity(SYSTEM)
    messages = [kv.RequestId() for _ in range(4)]
    first, second, third = [identity.sign(message) for message in messages[:3]]
    assert [m.sequence for m in messages[:3]] == [1, 2, 3]
    assert [m.ack_below for m in messages[:3]] == [1, 1, 1]
    identity.done(second)
    identity.done(first)
    identity.sign(messages[3])
    assert (messages[3].sequence, messages[3].ack_below) == (4, third.number)
    assert len({m.client for m in messages}) == 1
    assert 0 < messages[0].client < 2**63


def test_all_ways_out_of_a_write_acknowledge_it(link: ModelLink, requests: Requests[bytes]) -> None:
    link.before = lambda asked: told(ApiError.INVALID_REQUEST)
    with pytest.raises(wbkv.InvalidRequest):
        drive(link, requests.put("a", b"1", None))
    link.before = lambda asked: lost()
    with pytest.raises(wbkv.OutcomeUnknown):
        drive(link, requests.put("a", b"1", 1.0))
    abandoned = requests.put("a", b"1", None)
    next(abandoned)
    abandoned.close()
    link.before = lambda asked: None
    link.asked.clear()
    drive(link, requests.put("a", b"1", None))
    assert [found[1:] for found in ids(link, "Put")] == [(4, 4)]


def test_the_child_of_a_fork_is_another_client() -> None:
    identity = Identity(SYSTEM)
    mine, theirs = kv.RequestId(), kv.RequestId()
    identity.sign(mine)
    identity._lock.acquire()  # by a thread that the child does not have
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            identity.sign(theirs)
            os.write(writing, theirs.SerializeToString())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        theirs.ParseFromString(pipe.read())
    os.waitpid(child, 0)
    identity._lock.release()
    assert theirs.sequence == 1
    assert theirs.client not in (0, mine.client)


def test_a_request_that_is_too_large_is_not_sent(link: ModelLink, requests: Requests[bytes]) -> None:
    drive(link, requests.put("a", b"1" * (MESSAGE_BYTES - 200), None))
    link.asked.clear()
    for size in (MESSAGE_BYTES, MESSAGE_BYTES - 80):  # a session puts something around it
        with pytest.raises(wbkv.LimitExceeded, match="message_bytes"):
            drive(link, requests.put("a", b"1" * size, None))
    assert not link.asked


def test_what_was_seen_never_goes_back(requests: Requests[bytes]) -> None:
    calls = requests.calls
    everything = list(range(1, 20_001))

    def see(part: list[int]) -> None:
        for revision in part:
            calls.saw(revision)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(see, (everything[i::4] for i in range(4))))
    assert calls.seen == 20_000


def test_reads_and_writes_carry_what_was_seen(link: ModelLink, requests: Requests[bytes]) -> None:
    revision = drive(link, requests.put("a", b"1", None))
    drive(link, requests.put("a", b"2", None))
    drive(link, requests.get("a", None, 0, "serializable", None))
    drive(link, requests.get("a", None, 0, None, None))
    asked: list[Any] = [ask.request for ask in link.asked]
    assert [each.min_revision for each in asked] == [0, revision, revision + 10, 0]


@pytest.mark.parametrize("wrong", [-1, "1", 1.5, None])
def test_revisions_that_are_none(link: ModelLink, requests: Requests[bytes], wrong: Any) -> None:
    with pytest.raises(ValueError, match="revision"):
        drive(link, requests.get("a", None, wrong, None, None))
    with pytest.raises(ValueError, match="consistency"):
        drive(link, requests.get("a", None, 0, "eventual", None))  # type: ignore[arg-type]  # that is the test
    assert not link.asked


# Deadlines of ids


def put_ids(link: ModelLink) -> list[Any]:
    """The ids of all attempts."""
    found: list[Any] = [asked.request for asked in link.kinds("Put")]
    return [request.id for request in found]


def late(revision: int) -> Any:
    """A node refuses an attempt: its deadline was before this revision."""
    return told(ApiError.REQUEST_EXPIRED, revision=revision)


def test_ids_have_a_deadline_by_what_nodes_have_told(
    link: ModelLink, clock: Clock, requests: Requests[bytes]
) -> None:
    drive(link, requests.put("a", b"1", None))
    told_revision = requests.calls.seen
    clock.now += 60
    drive(link, requests.put("b", b"1", None))
    assert put_ids(link)[-1].deadline == wbkv.later(told_revision, 60 + LIFE_S)
    clock.now += 1e6
    drive(link, requests.put("c", b"1", None))
    deadline = put_ids(link)[-1].deadline
    assert deadline < wbkv.later(requests.calls.seen, 3600 + LIFE_S + 1), "a cluster's time may stand still"


def test_a_first_attempt_after_its_deadline_takes_a_new_id(
    link: ModelLink, requests: Requests[bytes]
) -> None:
    now = wbkv.later(0, 1e6)
    link.before = script(late(now))
    drive(link, requests.put("a", b"1", None))
    assert [each.sequence for each in put_ids(link)] == [1, 2]
    assert put_ids(link)[1].deadline >= wbkv.later(now, LIFE_S)


def test_a_repetition_after_its_deadline_does_not(link: ModelLink, requests: Requests[bytes]) -> None:
    link.before = script(lost(), late(wbkv.later(0, 1e6)))
    with pytest.raises(wbkv.OutcomeUnknown):
        drive(link, requests.put("a", b"1", None))
    assert {each.sequence for each in put_ids(link)} == {1}


def test_a_write_does_not_take_new_ids_for_ever(link: ModelLink, requests: Requests[bytes]) -> None:
    link.before = lambda _: late(wbkv.later(0, 1e6))
    with pytest.raises(wbkv.Unavailable, match="not executed"):
        drive(link, requests.put("a", b"1", None))
    assert len(put_ids(link)) == 1 + RENEWALS
