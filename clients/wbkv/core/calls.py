"""Calls: routed by the topology, and retried under the same id at other nodes until the time limit."""

from __future__ import annotations

import math
import threading
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message
from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

from wbkv.core.effects import TOPOLOGY, Ask, Failure, Method, Plan, Wait
from wbkv.core.environment import Environment
from wbkv.core.forks import at_fork
from wbkv.core.identity import WINDOW, Identity
from wbkv.core.revision_time import REPEAT_S, RevisionTime
from wbkv.core.routing import Router
from wbkv.core.tracing import traced
from wbkv.data import RequestId
from wbkv.errors import (
    DeadlineExceeded,
    Error,
    LimitExceeded,
    OutcomeUnknown,
    RequestExpired,
    RequestMismatch,
    Unavailable,
    error_of,
)
from wbkv.record.trace import Trace

PATIENCE_S: Final = 2.0
"""How long a node may be silent before another is asked. It doubles with every attempt."""

RENEWALS: Final = 3
"""How often a write takes a new id, since the deadline of its first one had passed before it was sent."""

BACKOFF_S: Final = 0.01
BACKOFF_MAX_S: Final = 1.0
UNREACHED_MAX_S: Final = 0.2
"""The longest back-off after an attempt that has reached no node: it has cost the cluster nothing, and all
nodes may be about to start."""

TOPOLOGY_S: Final = 2.0
"""The time limit for fetching the topology."""

Write: TypeAlias = kv.TxnRequest | kv.PutRequest | kv.DeleteRequest
"""A request that has an id."""


class Calls:
    """The calls of one client, from all its threads or tasks."""

    def __init__(self, router: Router, timeout_s: float, trace: Trace | None = None) -> None:
        if not isinstance(trace, Trace | None):
            raise TypeError(f"the trace must be a wbkv.Trace, not {trace!r}")
        self.router = router
        self.trace = trace
        self.timeout_s = time_of(timeout_s, timeout_s)
        self.seen = 0
        """The highest revision in any response: later reads must be at least as recent."""
        self.environment: Final = router.environment
        self.time = RevisionTime()
        """What time it is, by the cluster's revisions."""
        self._identity = Identity(self.environment)
        self._now = self.environment.now
        self._learning_until = 0.0
        self.forked()
        at_fork(self)

    def forked(self) -> None:
        """Replace the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()

    def saw(self, revision: int) -> None:
        """Record a revision that a response contained."""
        if revision > self.seen:
            self.time.tell(revision, self._now())
            with self._lock:
                self.seen = max(revision, self.seen)

    # The topology

    def connect(self, wait_s: float) -> Plan[None]:
        """Find the cluster. Raises `Unavailable` if no node answers within `wait_s`.

        While a node is silent, as it is busy or paused, this goes on for the time limit of a call.
        """
        begun = self._now()
        tries = 0
        while True:
            last: Failure | None = None
            deadline = begun + wait_s
            for address in self.router.seeds:
                answer = yield Ask(address, TOPOLOGY, cluster.TopologyRequest(), TOPOLOGY_S, TOPOLOGY_S)
                if not isinstance(answer, Failure):
                    if self.router.learn(answer):
                        self.time.tell(answer.header.revision, self._now())
                    return
                last = answer
                if not answer.error.retryable:
                    raise error_of(answer.error)
                if answer.silent:
                    deadline = begun + max(wait_s, self.timeout_s)
            tries += 1
            if self._now() >= deadline:
                seeds = ", ".join(self.router.seeds)
                reason = "" if last is None or not last.begun else f" ({last.error.message})"
                raise Unavailable(f"no node answers on {seeds}{reason}: is the cluster up?")
            yield Wait(backoff(tries, self.environment, reached=last is not None and last.begun))

    def refresh(self, left_s: float) -> Plan[None]:
        """Fetch the topology again. Only speed depends on it, so a failure is ignored."""
        now = self._now()
        if now < self._learning_until:
            return
        self._learning_until = now + TOPOLOGY_S
        address = self.router.address_for(None, 0)
        limit_s = min(left_s, TOPOLOGY_S)
        answer = yield Ask(address, TOPOLOGY, cluster.TopologyRequest(), limit_s, TOPOLOGY_S)
        if isinstance(answer, Failure):
            self.router.failed(address, answer.error, gone=_is_gone(answer, limit_s, TOPOLOGY_S))
        elif self.router.learn(answer):
            self._learning_until = 0.0
            self.time.tell(answer.header.revision, self._now())
        else:
            self.router.failed(address, ApiError(), gone=True)  # the address belongs to another cluster now

    # Calls

    def read(self, method: Method, request: Message, key: bytes | None, timeout_s: float | None) -> Plan[Any]:
        """Make a call that changes nothing, or that may be executed twice."""
        plan = self._attempts(method, request, key, time_of(timeout_s, self.timeout_s), writes=False)
        return plan if self.trace is None else traced(self.trace, self.router, plan, method, request)

    def write(
        self,
        method: Method,
        request: Write,
        key: bytes,
        timeout_s: float | None,
        named: RequestId | None = None,
    ) -> Plan[Any]:
        """Make a call that must not be executed twice, under an id of this client, or the id `named`."""
        left_s = min(time_of(timeout_s, self.timeout_s), REPEAT_S)
        if named is not None:
            request.id.CopyFrom(_checked(named))
        plan = self._attempts(method, request, key, left_s, writes=True)
        return plan if self.trace is None else traced(self.trace, self.router, plan, method, request)

    def _attempts(
        self, method: Method, request: Any, key: bytes | None, timeout_s: float, *, writes: bool
    ) -> Plan[Any]:
        now = self._now()
        deadline = now + timeout_s
        router = self.router
        signed = None
        renewals = 0
        if writes:
            request.min_revision = self.seen
            if not request.HasField("id"):
                signed = self._identity.sign(request.id)
                request.id.deadline = self.time.deadline(now)
        try:
            size = request.ByteSize()
            if size > router.request_bytes:
                raise LimitExceeded(
                    f"the request of {size} bytes exceeds {router.request_bytes} (limits.message_bytes); "
                    "split it"
                )
            left = timeout_s
            if router.due:
                yield from self.refresh(timeout_s / 2)
                left = max(deadline - self._now(), 0.001)
            tried: list[str] = []
            unsure = False
            while True:
                tries = len(tried)
                address = router.address_for(key, tries, tried)
                patience_s = PATIENCE_S * (1 << min(tries, 8))
                limit_s = min(left, max(left / 2, patience_s))
                answer = yield Ask(address, method, request, limit_s, patience_s)
                if type(answer) is not Failure:
                    if tried:
                        router.answered(address)
                    header = answer.header
                    self.saw(header.transaction_revision or header.revision)
                    return answer
                error = answer.error
                if signed is not None and not unsure and _is_late(error) and renewals < RENEWALS:
                    # No attempt was executed, or ever will be: the deadline had been too early.
                    renewals += 1
                    now = self._now()
                    self.time.tell(error.revision, now)
                    self._identity.done(signed)
                    signed = self._identity.sign(request.id)
                    request.id.deadline = self.time.deadline(now)
                    left = max(deadline - now, 0.001)
                    continue
                if error.kind == ApiError.OPERATION_FAILED:
                    self.saw(error.revision)  # it tells of the state there
                if not error.retryable:
                    raise _refused(error, unsure=unsure, named=writes and signed is None)
                unsure = unsure or (writes and answer.begun and error.same_id)
                router.failed(address, error, gone=_is_gone(answer, limit_s, patience_s))
                tried.append(address)
                left = yield from self._pause(len(tried), deadline, reached=answer.begun)
                if left <= 0:
                    raise out_of_time(answer, timeout_s, tried, unsure=unsure)
        finally:
            if signed is not None:
                self._identity.done(signed)

    def _pause(self, tries: int, deadline: float, *, reached: bool) -> Plan[float]:
        """Wait before the next attempt. Return the time that is left then."""
        left = deadline - self._now()
        if left > 0:
            yield Wait(min(backoff(tries, self.environment, reached=reached), left))
            left = deadline - self._now()
        if left > 0 and self.router.due:
            yield from self.refresh(left)
            left = deadline - self._now()
        return left


def time_of(asked_s: float | None, usual_s: float) -> float:
    """Return the time limit of a call."""
    if asked_s is None:
        return usual_s
    if not 0 < asked_s < math.inf:
        raise ValueError(f"the timeout must be a positive number of seconds, not {asked_s!r}")
    return asked_s


def _is_gone(failure: Failure, limit_s: float, patience_s: float) -> bool:
    """Return whether to prefer other nodes for a while: not if the caller's own time limit was too short."""
    return not failure.heard and (failure.error.kind != ApiError.DEADLINE_PASSED or limit_s >= patience_s)


def backoff(tries: int, environment: Environment, *, reached: bool = True) -> float:
    """Return the wait before the next attempt: exponential, with jitter; short if no node was `reached`."""
    longest = min(BACKOFF_S * (1 << min(tries, 10)), BACKOFF_MAX_S if reached else UNREACHED_MAX_S)
    return longest * environment.rng.uniform(0.5, 1.0)


def _is_late(error: ApiError) -> bool:
    """Return whether an attempt came after its deadline, and is known not to have been executed."""
    return error.kind == ApiError.REQUEST_EXPIRED and bool(error.revision)


def _checked(named: RequestId) -> kv.RequestId:
    """Return an id as a message of the API. Raises `ValueError` if it is invalid."""
    client, sequence, deadline = named
    if not 0 < client < 2**63:
        raise ValueError(f"the client of a RequestId must be from 1 to 2^63 - 1, not {client!r}")
    if not 0 < sequence <= WINDOW:
        raise ValueError(f"the sequence of a RequestId must be from 1 to {WINDOW}, not {sequence!r}")
    if not 0 < deadline < 2**53:
        raise ValueError(f"the deadline of a RequestId must be a revision, not {deadline!r}")
    return kv.RequestId(client=client, sequence=sequence, ack_below=1, deadline=deadline)


_RESULTS: Final = (ApiError.OPERATION_FAILED, ApiError.RESPONSE_TOO_LARGE, ApiError.INTERNAL)
"""Errors that are the result of a request, whichever attempt was ordered."""


def _refused(error: ApiError, *, unsure: bool, named: bool) -> Error:
    """Return the exception for a rejected attempt. An earlier attempt may have been executed nevertheless."""
    if named and error.kind == ApiError.REQUEST_EXPIRED:
        return RequestExpired(f"this attempt was not executed: {error.message}")
    if named and error.kind == ApiError.REQUEST_MISMATCH:
        return RequestMismatch(error.message)
    if unsure and error.kind not in _RESULTS:
        return OutcomeUnknown(f"an earlier attempt without an answer may have been executed; {error.message}")
    if error.kind in (ApiError.REQUEST_EXPIRED, ApiError.REQUEST_FORGOTTEN):
        return Unavailable(f"not executed: {error.message}")
    return error_of(error)


def out_of_time(last: Failure, timeout_s: float, tried: list[str], *, unsure: bool = False) -> Error:
    """Return the exception for a call whose time is over."""
    where = ", ".join(dict.fromkeys(tried))
    message = f"no answer within {timeout_s:g} s from {where}; last error: {last.error.message}"
    if unsure:
        return OutcomeUnknown(f"{message}. The write may have been executed, or may yet be")
    if last.begun:
        return DeadlineExceeded(message)
    return Unavailable(f"{message}: is the cluster up?")
