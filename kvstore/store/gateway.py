"""A node's gateway: multicasts on behalf of clients, asks replicas questions, and merges their answers.

A gateway is a process of its own, with its own numbers for messages. Clients' request ids travel inside the
messages and are judged when these are executed, so that no client can disturb the ordering.

Like everything below it, it does no I/O: calls and messages go in, `turn` returns the outgoing messages. A
caller passes a function that gets the outcome: a value, or an exception of `kvstore.store.errors`.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, assert_never

from kvstore.machine import Placement
from kvstore.machine.codec import Unreadable, decode_result, digest_of, encode_command, encode_request
from kvstore.machine.commands import Command, Request, Tick, own_client
from kvstore.machine.merge import merge, merge_aborted
from kvstore.machine.placement import groups_of
from kvstore.machine.request import Limits, Range, Transaction, Unchanged
from kvstore.machine.results import (
    Aborted,
    Done,
    OperationResult,
    Outcome,
    Refusal,
    Refused,
    Result,
    Unmet,
    WrongPartition,
)
from kvstore.machine.sessions import WINDOW
from kvstore.node.pace import MOVING_S
from kvstore.node.ports import Outgoing
from kvstore.store import errors
from kvstore.store.admission import (
    BUDGET_ROWS,
    SMALL_ROWS,
    WAIT_S,
    WAITING_BYTES,
    WAITING_LONG,
    Admission,
)
from kvstore.store.estimates import CountRows, has_ranges, rows_of
from kvstore.store.group_clocks import WAITING, GroupClocks, Verdict
from kvstore.store.messages import Answer, Query, RaiseClock, Results
from kvstore.store.questions import (
    RESPONSES,
    Busy,
    ClockReport,
    ClockWanted,
    Feed,
    NotLeading,
    Question,
    Response,
)
from kvstore.store.retention import REQUEST_TICKS, REQUEST_TICKS_MAX
from multicast.client import MulticastRefused, Reply, Sender
from multicast.errors import InvariantBroken, PeerViolation
from multicast.membership import Membership
from multicast.messages import Hint, Members, Multicast
from multicast.numbering import Numbering
from multicast.topology import Topology
from multicast.types import (
    LARGE_BYTES,
    NO_TIMESTAMP,
    Ballot,
    ClientId,
    Destinations,
    GroupId,
    MessageId,
    Process,
    ReplicaId,
    Timestamp,
    time_of,
    timestamp,
)

RETRY_S: Final = 0.5
"""How long to wait for an answer before another replica is asked."""

IN_FLIGHT: Final = 16_384
IN_FLIGHT_GROUP: Final = 4096
"""Messages in flight to one group: others go on when it stalls."""
SLOT_BYTES: Final = (64 << 20) // IN_FLIGHT_GROUP
"""A small message counts once more in its groups for so many bytes of it: one group that stalls takes half of
all bytes."""
IN_FLIGHT_BYTES: Final = 128 << 20
"""Bytes times destinations of small messages in flight before further ones are rejected; for large ones, see
`admission`."""

JOINED: Final = 64
"""Copies of a large request that may wait for its outcome, beside the first."""

STALLED_S: Final = 3.0
"""After so long without an outcome, a large message counts as stalled: not against the budget that it shares
with those of other groups, which could not go on while one group is down."""

STALLED: Final = 4
"""Stalled messages of one group: beyond that, further large ones are rejected at once."""

REROUTED: Final = 5
"""How often a request is routed by a newer map before its client gets an error."""

DAY: Final = timestamp(REQUEST_TICKS_MAX, GroupId(0))
"""The revisions of a day: deadlines are at most that far ahead."""

YEAR: Final = 366 * DAY
"""The most by which a deadline may be ahead of the groups that answer, while others do not. The time of these
may be far ahead, after an operator's mistake, and clients have it from them."""

OnDone: TypeAlias = Callable[[Any], None]
_Key: TypeAlias = tuple[int, int, int]
"""Client, number and digest of a request."""


class Stager(Protocol):
    """Spreads payloads: see `kvstore.node.staging`."""

    def stage(
        self,
        payload: bytes,
        dest: Destinations,
        members: Iterable[ReplicaId],
        done: Callable[[int], None],
        now: float,
    ) -> None:
        """Spread a payload to the nodes of these replicas; then call `done` with its digest."""


class Identity(NamedTuple):
    """A client's id of a request, which may be retried under it and is executed once."""

    client: int
    sequence: int
    ack_below: int
    deadline: int
    """A revision: above it, the request is not executed any more. 0: the gateway chooses one."""


class Committed(NamedTuple):
    """The outcome of a transaction."""

    revision: int
    complete: int
    """Everything up to here is executed in all groups concerned, and is in what was read."""
    succeeded: bool
    unmet: tuple[Unmet, ...]
    results: tuple[OperationResult, ...]


class Ordered(NamedTuple):
    """The outcome of housekeeping, or of a cut: its position in the order."""

    revision: int


class _Call:
    """A message in flight. Most attributes keep their defaults, which are those of the class: a small message
    sets none of them.
    """

    key: _Key | None = None
    """Of a large message."""
    joined: tuple[OnDone, ...] = ()
    """Callers that have sent the same request meanwhile."""
    rows: int = 0
    """Of a transaction on ranges: the rows that it looks at, about."""
    admitted: bool = False
    """Whether these rows count as in flight."""
    slots: int = 1
    """For how many messages it counts in its groups."""
    began_at: float = 0.0
    stalled: bool = False
    """Whether it has been under way for so long that it does not count against the shared budgets."""
    complete: int = 0

    def __init__(
        self, command: Command, dest: Destinations, identity: Identity | None, done: OnDone, weight: int,
        own: int, numbering: Numbering, at_least: int, routed: int, deadline: int,
    ) -> None:  # fmt: skip
        """`weight` is bytes times destinations, `own` the number that the gateway gave the request if its
        client gave none, and `routed` how often it was sent again: by another map of keys, or with a later
        deadline.
        """
        self.command = command
        self.dest = dest
        self.identity = identity
        self.done = done
        self.weight = weight
        self.own = own
        self.numbering = numbering
        self.at_least = at_least
        self.routed = routed
        self.deadline = deadline
        self.results: dict[GroupId, Result] = {}

    def tell(self, outcome: Any) -> None:
        """Pass the outcome to all callers."""
        self.done(outcome)
        for done in self.joined:
            done(outcome)


@dataclass(slots=True)
class _Question:
    """A question in flight."""

    group: GroupId
    question: Question
    done: OnDone
    of_leader: bool
    retry_at: float
    tries: int = 0


class Gateway:
    """One node's gateway. See the module."""

    def __init__(
        self,
        me: ClientId,
        topology: Topology,
        placement: Placement,
        *,
        limits: Limits,
        local: Mapping[GroupId, ReplicaId],
        clock: Callable[[], int],
        rng: random.Random,
        monotonic: Callable[[], float] | None = None,
        count: CountRows = lambda _group, _range, _most: None,
    ) -> None:
        """`local` are the replicas of the same node, and `clock` returns the highest of their clocks.
        `monotonic` is the node's own: without it, calls are made at the time of the last turn. `count` counts
        the rows of ranges, as far as this node knows them.
        """
        self.me = me
        self.placement = placement
        self.limits = limits
        self.wake_at = float("inf")
        self._sender = Sender(me, topology, RETRY_S, doubts=True)
        self._local = local
        self.clocks = GroupClocks(lambda: self._sender.topology, clock)
        """What the groups have told of their clocks: a gateway does not use a wall clock."""
        self._rng = rng
        self._now = 0.0
        self._monotonic = monotonic
        self._clients = itertools.count(1)
        self._numbering = self._next_numbering()
        self._calls: dict[MessageId, _Call] = {}
        self._bytes = 0
        """The weight of all small messages in flight."""
        self._bytes_late = 0
        """The bytes of requests that wait until a leader has told what time it is."""
        self._admission: Admission[tuple[_Call, bytes]] = Admission()
        self._large: dict[_Key, _Call] = {}
        """Large messages that are in flight or wait, by the request."""
        self._count = count
        self._long: Admission[tuple[_Call, bytes, _Key]] = Admission(BUDGET_ROWS, WAITING_LONG)
        """Transactions on ranges of more than some rows."""
        self._heavy: dict[int, _Call] = {}
        """Messages that count against one of these budgets, by identity, the oldest first."""
        self._stalled: Counter[GroupId] = Counter()
        self._under_way: Counter[GroupId] = Counter()
        self._answered_at: dict[GroupId, float] = {}
        """When each group last answered."""
        self._numbers = itertools.count(1)
        self._questions: dict[int, _Question] = {}
        self._asking: Counter[GroupId] = Counter()
        """Questions in flight to each group, without those that wait for changes."""
        self._outgoing: list[Outgoing] = []
        self._clocks: dict[GroupId, Timestamp] = {}
        """The highest position that each group has reported."""
        self.stager: Stager | None = None
        """Spreads large payloads before their messages are ordered."""
        self.stage_bytes = LARGE_BYTES
        self._staging = 0
        """The number of messages whose payloads are being spread."""
        self.low_space: str | None = None
        """Why this node takes no writes of its clients, if its disk has too little space."""
        self._above: dict[MessageId, int] = {}
        """The time that messages must be above: replicas are sent a `RaiseClock` before them."""

    @property
    def in_flight(self) -> int:
        """The number of messages and questions in flight, and of those that wait."""
        waiting = self._admission.waiting + self._long.waiting + self.clocks.waiting + self._staging
        return len(self._calls) + len(self._questions) + waiting

    def under_way(self, now: float) -> int:
        """Return how many messages and reads wait for answers of partitions that have answered lately. Feeds
        wait for changes, not for answers.
        """
        calls = reads = 0
        for group, at in self._answered_at.items():
            if at > now - MOVING_S:
                calls += self._under_way[group]
                reads += self._asking[group]
        return min(calls, len(self._calls)) + reads

    @property
    def groups(self) -> tuple[GroupId, ...]:
        """All partitions."""
        return self.placement.groups

    def leader(self, group: GroupId) -> ReplicaId:
        """Return the presumed leader of a group."""
        return self._sender.leader(group)

    def learn(self, membership: Membership) -> None:
        """Take over a membership that a replica of this node believes."""
        self._sender.learn(membership, self._now)

    def newest(self) -> int:
        """Return what time it is, by the groups' clocks."""
        return self.clocks.now(self._now)

    def knows(self, revision: int) -> bool:
        """Return whether a revision is confirmed: some group has reached it."""
        return self.clocks.knows(revision, self._now)

    def confirm(self, revision: int, done: Callable[[Verdict], None]) -> None:
        """Ask the groups whether a client can have seen the revision. Raises if too many calls wait."""
        self._check_waiting()
        self.clocks.ask(revision, done, self._now)

    def _check_waiting(self) -> None:
        if self.clocks.waiting >= WAITING:
            raise errors.Overloaded(f"{WAITING} calls wait for the groups' clocks at this node; retry later")

    def _wait_for_time(self, command: Command, late: Callable[[], None]) -> None:
        """Go on with a request when a leader has told what time it is. Raises if too much waits for that."""
        self._check_waiting()
        size = len(encode_request(Request(0, 0, 0, 0, 0, command)))
        waiting = self._bytes_late + size
        if waiting > IN_FLIGHT_BYTES:
            raise errors.Overloaded(
                f"no partition's leader has told this node the time yet, and requests of {self._bytes_late} "
                f"bytes wait for it (at most {IN_FLIGHT_BYTES}); retry later"
            )
        self._bytes_late = waiting

        def go_on() -> None:
            self._bytes_late -= size
            late()

        self.clocks.when_informed(go_on, self._now)

    def follow(self, group: GroupId, ballot: Ballot, membership: Membership, now: float) -> None:
        """Follow a leader that a replica of this node follows, or is: it need not be found by retries."""
        self._now = now
        self._sender.learn(membership, now)
        before = self.leader(group)
        self._sender.step(Hint(group, ballot), now)
        if self.leader(group) != before:
            for number, asked in list(self._questions.items()):
                if asked.group == group and asked.of_leader:
                    asked.tries = 0
                    self._send_question(number)

    # Transactions and housekeeping

    def transact(
        self,
        transaction: Transaction,
        done: OnDone,
        *,
        identity: Identity | None = None,
        min_revision: int = 0,
    ) -> None:
        """Execute a valid transaction, once. Raises, with nothing done, if that is not possible now.

        It gets a position above `min_revision`, unless no group confirms that revision.
        """
        if self.low_space is not None and transaction.writes:
            raise errors.LowSpace(self.low_space)
        at_least = _carried(transaction, min_revision) if transaction.conditions else min_revision
        wanted = at_least if at_least and not self.knows(at_least) else 0
        if identity is not None and self._is_ahead(identity.deadline, DAY):
            wanted = max(wanted, identity.deadline - DAY)
        if not wanted:
            self._transact(transaction, done, identity, at_least)
            return
        verdict = self.clocks.doubt(wanted, self._now)
        if verdict is not None:
            self._transact_judged(transaction, done, identity, at_least, verdict)
        else:
            self.confirm(wanted, partial(self._transact_late, transaction, done, identity, at_least))

    def _is_ahead(self, deadline: int, by: int) -> bool:
        """Return whether a deadline is that far ahead, by what is known here."""
        return deadline > timestamp(self.newest(), GroupId(0)) + by

    def _transact_late(
        self, transaction: Transaction, done: OnDone, identity: Identity | None, at_least: int,
        verdict: Verdict,
    ) -> None:  # fmt: skip
        """Go on with a transaction that had to wait for the groups' clocks."""
        _attempt(partial(self._transact_judged, transaction, done, identity, at_least, verdict), done)

    def _transact_judged(
        self, transaction: Transaction, done: OnDone, identity: Identity | None, at_least: int,
        verdict: Verdict,
    ) -> None:  # fmt: skip
        """Execute a transaction whose revisions the groups have confirmed, or not. If some do not answer, the
        client may have its revisions from these, and must not be locked out.
        """
        if identity is not None:
            if verdict is Verdict.REFUTED and self._is_ahead(identity.deadline, DAY):
                raise errors.InvalidRequest(
                    f"the request's deadline, revision {identity.deadline}, is more than a day ahead of "
                    f"revision {timestamp(self.newest(), GroupId(0))}"
                )
            if self._is_ahead(identity.deadline, YEAR):
                raise errors.Unavailable(
                    f"the request's deadline, revision {identity.deadline}, is more than a year ahead of "
                    "what the partitions that answer have reached; retry"
                )
        since = _carried(transaction, 0)
        if verdict is Verdict.UNKNOWN and not self.knows(since):
            raise errors.Unavailable(
                f"some partitions do not answer whether revision {since}, of a condition, exists; retry"
            )
        self._transact(transaction, done, identity, at_least)

    def _transact(
        self, transaction: Transaction, done: OnDone, identity: Identity | None, at_least: int
    ) -> None:
        if identity is not None and identity.deadline and not self.clocks.informed:
            # A client of a new cluster does not know the time either: its deadline may be long over.
            again = partial(self.transact, transaction, done, identity=identity, min_revision=at_least)
            self._wait_for_time(transaction, partial(_attempt, again, done))
            return
        now = timestamp(self.clocks.highest, GroupId(0))
        if identity is not None and 0 < identity.deadline < now:
            raise errors.RequestExpired(
                f"the request's deadline, revision {identity.deadline}, has passed: revision {now}", now
            )
        self._multicast(transaction, groups_of(transaction, self.placement), done, identity, at_least, 0)

    def command(self, group: GroupId, command: Command, done: OnDone, *, at_least: int = 0) -> None:
        """Order housekeeping of one group, at a position above a revision."""
        self._multicast(command, (group,), done, None, at_least, 0)

    def _multicast(
        self, command: Command, dest: Destinations, done: OnDone, identity: Identity | None, at_least: int,
        routed: int,
    ) -> None:  # fmt: skip
        if len(self._calls) >= IN_FLIGHT or self._bytes >= IN_FLIGHT_BYTES:
            raise errors.Overloaded(
                f"{len(self._calls)} messages of {self._bytes} bytes are in flight at this node; retry later"
            )
        for group in dest:
            if self._under_way[group] >= IN_FLIGHT_GROUP:
                raise errors.Overloaded(
                    f"{IN_FLIGHT_GROUP} messages to partition {group}, or fewer of 64 MiB in all, are in "
                    f"flight at this node; retry later"
                )
        if not (self.clocks.informed or (identity is not None and identity.deadline)):
            again = partial(self._multicast, command, dest, done, identity, at_least, routed)
            self._wait_for_time(command, partial(_attempt, again, done))
            return
        numbering, own = self._numbering, 0
        if identity is None:
            if numbering.is_full(WINDOW):
                numbering = self._numbering = self._next_numbering()
            own = numbering.take()
            named = Identity(numbering.client, own, numbering.ack_below, self._deadline())
        else:
            named = identity if identity.deadline else identity._replace(deadline=self._deadline())
        encoded = encode_command(command)
        digest = digest_of(encoded)
        payload = encode_request(
            Request(named.client, named.sequence, named.ack_below, named.deadline, digest, encoded)  # type: ignore[arg-type]  # as bytes
        )
        weight = len(payload) * len(dest)
        call = _Call(command, dest, identity, done, weight, own, numbering, at_least, routed, named.deadline)
        if type(command) is Transaction and has_ranges(command):
            call.rows = rows_of(command, self.placement, dest, self.limits, self._count)
        key = (named.client, named.sequence, digest)
        if call.rows <= SMALL_ROWS:
            self._begin_short(call, payload, key)
        else:
            self._check_stalled(call)
            self._begin_long(call, payload, key)

    def _begin_short(self, call: _Call, payload: bytes, key: _Key) -> None:
        if call.weight <= self._admission.small_bytes:
            self._bytes += call.weight
            self._begin(call, payload)
        else:
            self._begin_large(call, payload, key)

    def _check_stalled(self, call: _Call) -> None:
        for group in call.dest:
            if self._stalled[group] >= STALLED:
                self._end_number(call)
                raise errors.Overloaded(
                    f"partition {group} has not answered {self._stalled[group]} large transactions of this "
                    f"node for {STALLED_S:g} s; retry later"
                )

    def _set_aside_stalled(self) -> None:
        """Let other groups' large messages go on, though some are not answered."""
        while self._heavy:
            call = next(iter(self._heavy.values()))
            if call.began_at + STALLED_S > self._now:
                break
            del self._heavy[id(call)]
            call.stalled = True
            self._stalled.update(call.dest)
            if call.key is not None:
                self._admission.finished(call.weight)
                self._admit()
            self._end_long(call)

    def _begin_long(self, call: _Call, payload: bytes, key: _Key) -> None:
        """Multicast a transaction on large ranges now or later."""
        long = self._long
        if long.admit(call.rows):
            call.admitted = True
            try:
                self._begin_short(call, payload, key)
            except errors.StoreError:
                self._end_long(call)
                raise
        elif not long.wait(key[0], (call, payload, key), 1, call.rows, self._now):
            self._end_number(call)
            raise errors.Overloaded(
                f"{long.in_flight} transactions on ranges of {long.weight} rows are in flight at this node, "
                f"and {long.waiting} wait; retry later, or scan and count outside of transactions"
            )

    def _end_long(self, call: _Call) -> None:
        """Note that a call does not look at rows any more, and let others go on."""
        if call.admitted:
            call.admitted = False
            self._long.finished(call.rows)
            while (admitted := self._long.next()) is not None:
                self._go_on_long(*admitted)

    def _go_on_long(self, call: _Call, payload: bytes, key: _Key) -> None:
        """Multicast a transaction on large ranges that has waited."""
        call.admitted = True
        try:
            self._begin_short(call, payload, key)
        except errors.StoreError as error:
            call.admitted = False
            self._long.finished(call.rows)
            call.tell(error)

    def _begin(self, call: _Call, payload: bytes) -> None:
        """Multicast a message for the first time; a large payload is staged before."""
        if call.admitted or call.key is not None:
            call.began_at = self._now
            self._heavy[id(call)] = call
        if self.stager is None or len(payload) < self.stage_bytes:
            self._begin_now(call, payload)
            return
        self._staging += 1
        members = [member for group in call.dest for member in self._sender.topology.members(group)]
        now = self._now if self._monotonic is None else self._monotonic()
        self.stager.stage(payload, call.dest, members, partial(self._begin_staged, call, payload), now)

    def _begin_staged(self, call: _Call, payload: bytes, digest: int) -> None:
        self._staging -= 1
        self._begin_now(call, payload, digest if len(payload) >= LARGE_BYTES else None)

    def _begin_now(self, call: _Call, payload: bytes, digest: int | None = None) -> None:
        # After a pause of the process, the last turn was long ago, and the first response would seem slow.
        now = self._now if self._monotonic is None else self._monotonic()
        message = self._sender.multicast(call.dest, payload, now, digest)
        at_least = call.at_least
        if at_least and self._is_behind(at_least, call.dest) and self.knows(at_least):
            self._above[message.mid] = time_of(Timestamp(at_least)) + 1
        if call.key is None and len(payload) >= SLOT_BYTES:
            call.slots += len(payload) // SLOT_BYTES
        for group in call.dest:
            self._under_way[group] += call.slots
        self._calls[message.mid] = call

    def _is_behind(self, at_least: int, dest: Destinations) -> bool:
        """Return whether a group has not reported a position at or above a revision yet."""
        return any(at_least > self._clocks.get(group, NO_TIMESTAMP) for group in dest)

    def _begin_large(self, call: _Call, payload: bytes, key: _Key) -> None:
        """Multicast a large message now or later. A retry of one that is under way joins it."""
        known = self._large.get(key)
        if known is None:
            self._check_stalled(call)
        if known is not None and known.dest == call.dest:
            if len(known.joined) >= JOINED:
                raise errors.Overloaded(f"{JOINED} copies of this request wait at this node; retry later")
            known.joined += (call.done,)
            self._end_long(call)
        elif self._admission.admit(call.weight):
            call.key = key
            self._large[key] = call
            self._begin(call, payload)
        elif self._admission.wait(key[0], (call, payload), len(payload), call.weight, self._now):
            call.key = key
            self._large[key] = call
        else:
            self._end_number(call)
            large = self._admission
            raise errors.Overloaded(
                f"{large.in_flight} large transactions are in flight at this node, and {large.waiting} of "
                f"{large.waiting_bytes} bytes wait (at most {WAITING_BYTES}); retry later"
            )

    def _admit(self) -> None:
        """Multicast large messages that have waited, as far as the budget allows."""
        while (admitted := self._admission.next()) is not None:
            self._begin(*admitted)

    def _expire(self) -> None:
        """Reject large messages, and transactions on large ranges, that have waited for too long."""
        for call, *_ in self._long.expired(self._now):
            self._end_number(call)
            call.tell(
                errors.Overloaded(
                    f"a transaction on ranges of about {call.rows} rows has waited for {WAIT_S} s behind "
                    f"others; retry later, or scan and count outside of transactions"
                )
            )
        for call, _ in self._admission.expired(self._now):
            self._forget_large(call)
            self._end_number(call)
            self._end_long(call)
            call.tell(
                errors.Overloaded(
                    f"a transaction of {call.weight // len(call.dest)} bytes to {len(call.dest)} partitions "
                    f"has waited for {WAIT_S} s behind other large ones; retry later"
                )
            )
        self._admit()

    def _forget_large(self, call: _Call) -> None:
        if call.key is not None and self._large.get(call.key) is call:
            del self._large[call.key]

    def _end_number(self, call: _Call) -> None:
        if call.own:
            call.numbering.done(call.own)

    def _next_numbering(self) -> Numbering:
        return Numbering(ClientId(own_client(self.me, next(self._clients))))

    def _deadline(self) -> int:
        return timestamp(self.newest() + REQUEST_TICKS, GroupId(0))

    def _finish(self, mid: MessageId, positions: Mapping[GroupId, int]) -> None:
        call = self._calls.pop(mid)
        self._above.pop(mid, None)
        for group in call.dest:
            self._under_way[group] -= call.slots
        if call.stalled:
            self._stalled.subtract(call.dest)
        if call.key is None:
            self._bytes -= call.weight
        else:
            self._forget_large(call)
            if not call.stalled:
                self._admission.finished(call.weight)
                self._admit()
        self._heavy.pop(id(call), None)
        self._end_long(call)
        self._end_number(call)
        revision = max(positions.values())
        try:
            outcome = self._outcome(call, call.results, revision)
        except (InvariantBroken, LookupError) as error:
            # The results of its groups do not fit together: one of them is wrong, and it is not known which.
            outcome = errors.OutcomeUnknown(f"the groups' results contradict each other: {error}")
        if outcome is not None:
            call.tell(outcome)

    def _outcome(self, call: _Call, results: Mapping[GroupId, Result], revision: int) -> object | None:
        """Return the merged outcome; None if the request was sent again."""
        outcomes: dict[GroupId, Outcome] = {}
        aborted: dict[GroupId, Aborted] = {}
        for group, result in results.items():
            if isinstance(result, Outcome):
                outcomes[group] = result
            elif isinstance(result, Aborted):
                aborted[group] = result
            elif isinstance(result, Refused):
                return self._refused(call, result, revision)
            elif isinstance(result, WrongPartition):
                return self._reroute(call, result.placement)
            elif not isinstance(result, Done):
                assert_never(result)
        if not isinstance(call.command, Transaction):
            return Ordered(revision)
        if aborted:
            in_then, failures = merge_aborted(call.command, {**outcomes, **aborted})
            return errors.TransactionAborted(failures, in_then=in_then, revision=revision)
        succeeded, unmet, merged = merge(call.command, self.placement, outcomes)
        # What it has read is as of its own position, however much was executed before the answer left.
        return Committed(revision, min(call.complete, revision), succeeded, unmet, merged)

    def _refused(self, call: _Call, refused: Refused, revision: int) -> object | None:
        """Return the error; None if the request was sent again.

        A message at a position above its deadline is executed nowhere, ever. If the deadline was our own
        choice, by clocks that we did not know well enough, the request gets a later one. Without such a
        position the request may have been executed, and its result be forgotten since.
        """
        expired = refused.refusal is Refusal.EXPIRED
        if expired and not isinstance(call.command, Transaction) and call.routed < REROUTED:
            return self._send_again(call, call.dest)  # housekeeping may be done twice
        if refused.refusal is Refusal.FUTURE_REVISION and not isinstance(call.command, Transaction):
            # It was sent without a confirmation, since some group did not answer.
            if self.knows(call.at_least) and call.routed < REROUTED:
                return self._send_again(call, call.dest)
            return errors.Unavailable(f"some partitions do not answer what time it is: {refused.message}")
        if not expired:
            return _error(refused)
        if revision <= call.deadline:
            if isinstance(call.command, Transaction):
                return errors.OutcomeUnknown(refused.message)
            return _error(refused)
        if (call.identity is None or not call.identity.deadline) and call.routed < REROUTED:
            return self._send_again(call, call.dest)
        return errors.RequestExpired(refused.message, revision)

    def _reroute(self, call: _Call, placement: Placement) -> object | None:
        if placement.version > self.placement.version:
            self.placement = placement
        if call.routed == REROUTED or not isinstance(call.command, Transaction):
            return errors.WrongPartition(placement)
        return self._send_again(call, groups_of(call.command, self.placement))

    def _send_again(self, call: _Call, dest: Destinations) -> object | None:
        try:
            self._multicast(call.command, dest, call.tell, call.identity, call.at_least, call.routed + 1)
        except errors.StoreError as error:
            return error
        return None

    # Questions

    def ask(self, group: GroupId, question: Question, done: OnDone, *, of_leader: bool) -> int:
        """Ask a replica: the leader, or any. A caller that gives up must `forget` the number."""
        number = next(self._numbers)
        self._questions[number] = _Question(group, question, done, of_leader, 0.0)
        self._asking[group] += not isinstance(question, Feed)
        self._send_question(number)
        return number

    def forget(self, number: int) -> None:
        """Drop a question: its caller has given up."""
        asked = self._questions.pop(number, None)
        if asked is not None:
            self._asking[asked.group] -= not isinstance(asked.question, Feed)

    def _send_question(self, number: int) -> None:
        asked = self._questions[number]
        asked.retry_at = self._now + RETRY_S
        if isinstance(asked.question, Feed):
            asked.retry_at += asked.question.wait_s
        local = self._local.get(asked.group)
        members = self._sender.topology.members(asked.group)
        targets: tuple[ReplicaId, ...]
        if not asked.of_leader and local is not None and asked.tries % 2 == 0:
            targets = (local,)
        elif asked.tries < (1 if asked.of_leader else 2):
            targets = (self.leader(asked.group),)
        elif asked.of_leader:
            targets = tuple(members)  # only the leader does more than answer that it does not lead
        else:
            targets = (members[self._rng.randrange(len(members))],)
        asked.tries += 1
        self._outgoing.append((self.me, targets, Query(number, asked.question)))

    def _answered(self, sender: ReplicaId, number: int, response: Response) -> None:
        asked = self._questions.get(number)
        if asked is None:
            return
        if sender.group != asked.group or not isinstance(response, RESPONSES[type(asked.question)]):
            what = f"{type(response).__name__} to a {type(asked.question).__name__}"
            raise PeerViolation(f"{sender} answered with {what} for group {asked.group}")
        if isinstance(response, NotLeading):
            self._sender.does_not_lead(sender, self._now)
            asked.retry_at = self._now + RETRY_S / 10
            if response.ballot.number:
                self._sender.step(Hint(asked.group, response.ballot), self._now)
                if self.leader(asked.group) == response.ballot.leader:
                    asked.tries = min(asked.tries, 1)
            return
        self.forget(number)
        self._answered_at[asked.group] = self._now
        asked.done(
            errors.Overloaded(f"too many reads wait at partition {asked.group}; retry later")
            if isinstance(response, Busy)
            else response
        )

    # A revision to read at

    def cut(self, ranges: tuple[Range, ...], done: OnDone) -> None:
        """Order a cut: a revision at which reads of these ranges see all that has completed so far."""
        groups = {group for asked in ranges for group in self.placement.groups_of_range(asked)}
        self._multicast(Tick(ranges), tuple(sorted(groups)), done, None, 0, 0)

    # Input and output

    def receive(self, sender: Process, messages: Iterable[Any], now: float) -> None:
        """Handle messages of replicas."""
        self._now = now
        if not isinstance(sender, ReplicaId):
            raise PeerViolation(f"{sender} sent a gateway messages, but is not a replica")
        for message in messages:
            if isinstance(message, Results):
                self._take_results(sender, message)
            elif isinstance(message, Answer):
                if isinstance(message.response, ClockReport):
                    if message.response.leads:
                        self.clocks.inform(message.response.now, now)
                    self._take_clock(sender, message.number, message.response)
                else:
                    self._answered(sender, message.number, message.response)
            elif isinstance(message, Hint | Members | MulticastRefused):
                if isinstance(message, Hint):
                    self._sender.does_not_lead(sender, now)
                # Without replicas, this node has no better source than a single member.
                self._sender.step(message, now, sender if self._local else None)
            else:
                raise PeerViolation(f"{sender} sent {type(message).__name__} to a gateway")
        for refused in self._sender.refused:
            call = self._calls.get(refused.mid)
            if call is not None:  # else it was answered after all
                call.tell(errors.OutcomeUnknown(refused.reason))
        self._sender.refused.clear()

    def _take_clock(self, sender: ReplicaId, number: int, report: ClockReport) -> None:
        if report.version > self._sender.topology.membership(sender.group).version:
            self._sender.ask_members(sender.group)
        self.clocks.answered(sender, number, report.clock, report.version, self._now)

    def _take_results(self, sender: ReplicaId, message: Results) -> None:
        group = message.group
        if sender.group != group:
            raise PeerViolation(f"{sender} sent results of group {group}")
        if not len(message.mids) == len(message.places) == len(message.results) > 0:
            raise PeerViolation(
                f"{sender} sent {len(message.results)} results of {len(message.mids)} messages"
            )
        complete = int(message.complete)
        for mid, data in zip(message.mids, message.results, strict=True):
            call = self._calls.get(mid)
            if call is not None and group not in call.results:
                try:
                    result = decode_result(data)
                except Unreadable as error:
                    raise PeerViolation(f"{sender} sent a result of {mid} that is none: {error}") from None
                if not call.results or complete < call.complete:
                    call.complete = complete
                call.results[group] = result
        self._answered_at[group] = self._now
        highest = max(message.places, default=NO_TIMESTAMP)
        self._clocks[group] = max(self._clocks.get(group, NO_TIMESTAMP), highest)
        self.clocks.inform(time_of(highest), self._now)
        moved = self._sender.answered_by(sender, message.mids)
        self._sender.step(Reply(message.mids, group, message.places), self._now)
        if moved:
            self._sender.send_again(group, self._now)
        finished, self._sender.finished = self._sender.finished, {}
        for mid, positions in finished.items():
            self._finish(mid, positions)

    @property
    def is_due(self) -> bool:
        """Whether `turn` has messages to return."""
        return bool(self._outgoing or self._sender.sends)

    def turn(self, now: float) -> list[Outgoing]:
        """Return all outgoing messages."""
        self._now = now
        if now >= self.wake_at:
            self.wake_at = float("inf")
            if self._heavy:
                self._set_aside_stalled()
            if self._admission.waiting or self._long.waiting:
                self._expire()
            self._sender.tick(now)
            for number, asked in list(self._questions.items()):
                if asked.retry_at <= now:
                    self._send_question(number)
        if now >= self.clocks.wake_at:
            self.clocks.tick(now)
            number, members = self.clocks.questions(now)
            if members:
                self._outgoing.append((self.me, tuple(members), Query(number, ClockWanted())))
        outgoing, self._outgoing = self._outgoing, []
        for receivers, message in self._sender.drain():
            if self._above and isinstance(message, Multicast) and message.mid in self._above:
                outgoing.append((self.me, receivers, RaiseClock(self._above[message.mid])))
            outgoing.append((self.me, receivers, message))
        busy = self._calls or self._questions or self._heavy or self._admission.waiting or self._long.waiting
        self.wake_at = min(self.wake_at, now + RETRY_S / 8) if busy else float("inf")
        self.wake_at = min(self.wake_at, self.clocks.wake_at)
        return outgoing


_ERRORS: Final[Mapping[Refusal, type[errors.StoreError]]] = {
    Refusal.MISMATCH: errors.RequestMismatch,
    Refusal.WINDOW_FULL: errors.WindowFull,
    Refusal.EXPIRED: errors.RequestExpired,
    Refusal.FORGOTTEN: errors.RequestForgotten,
    Refusal.FUTURE_REVISION: errors.FutureRevision,
    Refusal.PINNED: errors.Pinned,
}


def _carried(transaction: Transaction, revision: int) -> int:
    """Return the highest revision that a request carries: its caller's, or that of a condition."""
    for condition in transaction.conditions:
        if isinstance(condition, Unchanged) and condition.since > revision:
            revision = condition.since
    return revision


def _attempt(call: Callable[[], None], done: OnDone) -> None:
    """Go on with a call that had to wait: its caller hears of errors as of any outcome."""
    try:
        call()
    except (errors.StoreError, errors.InvalidRequest) as error:
        done(error)


def _error(refused: Refused) -> Exception:
    if refused.refusal is Refusal.COMPACTED:
        return errors.Compacted(refused.message)
    return _ERRORS.get(refused.refusal, errors.StoreError)(refused.message)
