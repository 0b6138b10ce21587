"""Check a run against a store that executes everything alone, in real time.

The naive `Model` executes the delivered order once more. Every answer must be the model's, and so must every
replica's state at the end (a). What each read saw, and which call returned before another began, must not
make the order a circle (b). No request is executed twice, and none gets two different results (c). A result
that is reported as complete up to a revision is (d). What users of the client were told follows from all that
(e): a call has executed one write at most, and none if it says so; what a committed interactive transaction
has read was there when it committed; a watch has returned every change, whole, once, in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from kvstore.machine import Delivered, Limits, Placement
from kvstore.machine.codec import decode_request, decode_result
from kvstore.machine.ordered import MemoryMap
from kvstore.machine.request import (
    Append,
    Calculate,
    Compare,
    Delete,
    DeleteRange,
    Get,
    Operation,
    Put,
    Range,
    ReadOperation,
    Scan,
    Shape,
    Swap,
    Transaction,
    Unchanged,
)
from kvstore.machine.results import (
    Aborted,
    Deleted,
    Failed,
    Got,
    KeyValue,
    Number,
    OperationResult,
    Outcome,
    Refusal,
    Refused,
    Result,
    Scanned,
    Unmet,
    Written,
)
from kvstore.machine.sessions import WINDOW
from kvstore.simulation.circles import Node, find_circle
from kvstore.simulation.history import (
    AbortedCall,
    Call,
    Cut,
    History,
    Interactive,
    Pages,
    ReadAtCall,
    ScanCall,
    StrictCall,
    Transact,
    UserOperation,
    Watched,
)
from kvstore.simulation.model import Model, ordered
from kvstore.store.gateway import Committed, Ordered
from kvstore.store.partition import Partition
from kvstore.store.questions import Event, Values
from multicast.messages import Delivery
from multicast.quorum_time import OWN_CLIENTS
from multicast.sim.checkers import Violation
from multicast.types import GroupId, MessageId, Timestamp

if TYPE_CHECKING:
    from kvstore.simulation.store import DeliveryChecker

EVERYTHING = Range(b"", None)


@dataclass(slots=True)
class Execution:
    """One message, at its position, and its result in each of its groups."""

    delivered: Delivered
    answers: dict[GroupId, Result | Refusal]
    fresh: bool
    """Whether it was executed there, and not before."""


@dataclass(slots=True)
class Replay:
    """All messages, executed by the model."""

    model: Model
    executions: dict[Timestamp, Execution] = field(default_factory=dict)
    positions: dict[MessageId, Timestamp] = field(default_factory=dict)
    requests: dict[tuple[int, int], list[Execution]] = field(default_factory=lambda: defaultdict(list))
    """Where each request of a client was executed."""
    changes: dict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    """When each key changed."""

    @property
    def final(self) -> dict[bytes, bytes]:
        """What there is at the end."""
        return {key: entry.value for group in self.model.groups.values() for key, entry in group.now.items()}

    def first(self, gts: Timestamp, group: GroupId) -> Result | Refusal | None:
        """Return the result of a request's first delivery: a copy that came too late may get it."""
        delivered = self.executions[gts].delivered
        request = delivered.request
        for execution in self.requests.get((request.client, request.sequence), ()):
            if execution.delivered.destinations == delivered.destinations:
                return execution.answers[group]
        return None


def replay(deliveries: Mapping[Timestamp, Delivery], placement: Placement, limits: Limits) -> Replay:
    """Execute everything once more, in the order of global timestamps."""
    model = Model(placement, limits, WINDOW)
    found = Replay(model)
    for gts, delivery in sorted(deliveries.items()):
        if delivery.mid.client in OWN_CLIENTS:
            continue
        delivered = Delivered(gts, delivery.mid, delivery.dest, decode_request(delivery.payload))
        before = len(model.executed)
        model.execute(delivered)
        answers = {group: model.groups[group].answers[-1][1] for group in delivery.dest}
        execution = Execution(delivered, answers, len(model.executed) > before)
        found.executions[gts] = execution
        found.positions[delivery.mid] = gts
        request = delivered.request
        if execution.fresh:
            found.requests[request.client, request.sequence].append(execution)
        for group in delivery.dest:
            states = model.groups[group].states
            if states[-1][0] == gts:
                for key in states[-1][1].keys() | states[-2][1].keys():
                    if states[-1][1].get(key) != states[-2][1].get(key):
                        found.changes[key].append(gts)
    return found


def check_history(
    history: History,
    recorder: DeliveryChecker,
    placement: Placement,
    limits: Limits,
    partitions: Iterable[Partition],
) -> Replay:
    """Check everything. Returns the model's execution."""
    found = replay(recorder.deliveries, placement, limits)
    _check_answers(found, recorder.answers)
    _check_once(found)
    placed = {}
    for call in history.calls:
        if isinstance(call.asked, Transact):
            placed[call.number] = _check_transaction(found, call)
        elif isinstance(call.outcome, Values):
            _check_values(found, call)
        elif isinstance(call.outcome, Pages):
            _check_scan(found, call)
    _check_states(found, partitions)
    for operation in history.operations:
        _check_operation(found, operation)
    for interactive in history.interactive:
        _check_interactive(found, interactive)
    expected = events_of(found)
    for watched in history.watched:
        _check_watched(expected, watched)
    check_strict(found, history, placed)
    return found


# (a), (c): every answer is the model's


def _check_answers(found: Replay, answers: Iterable[tuple[GroupId, MessageId, Timestamp, bytes]]) -> None:
    for group, mid, delivered, data in answers:
        gts = found.positions.get(mid)
        result = decode_result(data)
        if gts is None:
            raise Violation("Replay", f"group {group} answers {mid}, which was not delivered")
        expected = found.executions[gts].answers[group]
        if isinstance(result, Refused):
            same = result.refusal in (expected, Refusal.FORGOTTEN)
            if (
                result.refusal is Refusal.EXPIRED
                and found.executions[gts].delivered.request.deadline < delivered
            ):
                same = True  # asked again after its deadline, when what became of it may be forgotten
        else:
            same = result == expected or result == found.first(gts, group)
        if not same:
            request = found.executions[gts].delivered.request
            raise Violation("Replay", f"group {group} answers {request} at {gts}: {result}, not {expected}")


def _check_once(found: Replay) -> None:
    for (client, sequence), executions in found.requests.items():
        digests = [(e.delivered.request.digest, e.delivered.destinations) for e in executions]
        if len(set(digests)) < len(digests):
            positions = [e.delivered.gts for e in executions]
            raise Violation("Once", f"request {sequence} of {client} was executed at {positions}")


def _check_transaction(found: Replay, call: Call) -> Execution | None:
    """Check the answers to all attempts of a call. Returns its execution."""
    assert isinstance(call.asked, Transact)
    if call.identity is None:  # it changes nothing, and its gateway gave it an id
        position = call.outcome.revision if isinstance(call.outcome, Committed) else None
        execution = None if position is None else found.executions.get(Timestamp(position))
    else:
        executions = found.requests.get((call.identity.client, call.identity.sequence), [])
        execution = executions[0] if executions else None
    for outcome in (call.outcome, *call.more):
        if not isinstance(outcome, Committed | AbortedCall):
            continue
        if execution is None:
            raise Violation("Replay", f"no group has executed {call}")
        if _is_aborted(execution) or isinstance(outcome, AbortedCall):
            _check_aborted(call, execution, outcome)
            continue
        expected = _merge(call.asked.transaction, execution)
        answer = outcome.revision, outcome.succeeded, outcome.unmet, outcome.results
        if answer != expected:
            raise Violation("Replay", f"{call}: {answer}, not {expected}")
        _check_complete(found, call, outcome)
    return execution


def _is_aborted(execution: Execution) -> bool:
    return any(isinstance(each, Aborted) for each in execution.answers.values())


def _check_aborted(call: Call, execution: Execution, outcome: Committed | AbortedCall) -> None:
    """The client was told all failures of all groups, and nothing else."""
    parts = [each for each in execution.answers.values() if isinstance(each, Aborted)]
    failures = {failure.operation: failure for part in parts for failure in part.failures}
    in_then = all(part.in_then for part in parts)
    expected = AbortedCall(execution.delivered.gts, in_then, tuple(failures[i] for i in sorted(failures)))
    if outcome != expected:
        raise Violation("Replay", f"{call}: {outcome}, not {expected}")


def _unmet(transaction: Transaction, parts: Iterable[Outcome]) -> tuple[Unmet, ...]:
    """The conditions that do not hold, as their client has numbered them: what it has combined is one."""
    unmet: dict[int, Unmet] = {}
    for part in parts:
        for each in part.unmet:
            if each.fault is None or each.condition not in unmet:
                unmet[each.condition] = each
    count = len(transaction.conditions)

    def conditions_of(number: int) -> list[int]:
        if number < count:
            return [number]
        members = transaction.formula[number - count].members
        return [each for member in members for each in conditions_of(member)]

    def holds(number: int) -> bool:
        if number < count:
            return number not in unmet
        node = transaction.formula[number - count]
        return (any if node.any else all)(map(holds, node.members))

    inner = {member for node in transaction.formula for member in node.members}
    roots = [number for number in range(count + len(transaction.formula)) if number not in inner]
    roots.sort(key=lambda root: min(conditions_of(root)))
    found = []
    for place, root in enumerate(roots):
        if not holds(root):
            faults = [unmet[i].fault for i in conditions_of(root) if i in unmet]
            found.append(Unmet(place, next((fault for fault in faults if fault is not None), None)))
    return tuple(found)


def _merge(transaction: Transaction, execution: Execution) -> tuple[Any, ...]:
    parts = {g: each for g, each in execution.answers.items() if isinstance(each, Outcome)}
    succeeded = all(part.succeeded for part in parts.values())
    unmet = _unmet(transaction, [part for _, part in sorted(parts.items())])
    results: list[OperationResult] = []
    for i, operation in enumerate(transaction.then if succeeded else transaction.otherwise):
        found = [result for _, part in sorted(parts.items()) for at, result in part.results if at == i]
        scans = [each for each in found if isinstance(each, Scanned)]
        failed = [each for each in found if isinstance(each, Failed)]
        if failed:
            results.append(failed[0])
        elif scans:
            assert isinstance(operation, Scan)
            results.append(_merge_scans(operation, scans))
        elif isinstance(found[0], Deleted):
            deleted = [each for each in found if isinstance(each, Deleted)]
            left = sorted(each.resume for each in deleted if each.resume)
            results.append(Deleted(sum(each.count for each in deleted), left[0] if left else b""))
        else:
            alone: Got | Written | Number | Failed | Scanned = found[0]
            results.append(alone)
    return execution.delivered.gts, succeeded, unmet, tuple(results)


def _merge_scans(asked: Scan, parts: Sequence[Scanned]) -> Scanned:
    """All entries, as far as every group has gone."""
    if asked.shape is Shape.COUNT:
        return Scanned((), sum(part.count for part in parts), more=False)
    entries = sorted((e for part in parts for e in part.entries), key=lambda e: e.key, reverse=asked.reverse)
    for end in [part.entries[-1].key for part in parts if part.more]:
        entries = [e for e in entries if (e.key >= end if asked.reverse else e.key <= end)]
    return Scanned(tuple(entries), len(entries), any(part.more for part in parts))


# (d): what is reported as complete


def _check_complete(found: Replay, call: Call, outcome: Committed) -> None:
    """Nothing up to the revision that its client may rely on has changed what it read."""
    for key, seen in _seen(outcome.results).items():
        others = [gts for gts in found.changes.get(key, ()) if gts != outcome.revision]
        missed = others[bisect_right(others, seen) : bisect_right(others, outcome.complete)]
        if missed:
            raise Violation("Complete", f"{call} has {key!r} of {seen}, and misses {missed}")


def _seen(results: Sequence[OperationResult]) -> dict[bytes, int]:
    seen = {}
    for result in results:
        if isinstance(result, Got) and result.entry is not None:
            seen[result.entry.key] = result.entry.mod_revision
        elif isinstance(result, Scanned):
            seen |= {entry.key: entry.mod_revision for entry in result.entries}
    return seen


def _state(found: Replay, revision: int) -> dict[bytes, KeyValue]:
    """What all groups had at a revision."""
    return {key: entry for group in found.model.groups.values() for key, entry in group.at(revision).items()}


def _entry(found: Replay, key: bytes, revision: int) -> KeyValue | None:
    return found.model.groups[found.model.placement.group_of(key)].at(revision).get(key)


def _results_at(
    state: Mapping[bytes, KeyValue], operations: Sequence[ReadOperation]
) -> Iterator[OperationResult]:
    for operation in operations:
        if isinstance(operation, Get):
            yield Got(state.get(operation.key))
        elif not isinstance(operation, Scan):
            assert_never(operation)
        else:
            entries = tuple(ordered(dict(state), operation.range, reverse=False))
            yield Scanned(entries, len(entries), more=False)


def _check_values(found: Replay, call: Call) -> None:
    """A read at a revision is the model's; a strict one has at least what it says to be complete."""
    asked, outcome = call.asked, call.outcome
    if isinstance(asked, ReadAtCall):
        if asked.revision and outcome.revision != asked.revision:
            raise Violation("Replay", f"{call} is of another revision")
        expected = tuple(_results_at(_state(found, outcome.revision), asked.operations))
        if outcome.results != expected:
            raise Violation("Replay", f"{call} is not {expected}")
    else:
        assert isinstance(asked, StrictCall)
        for key, (_, until) in _saw(found, asked, outcome).items():
            if until <= outcome.revision:
                raise Violation("Complete", f"{call} misses {until} of {key!r}")


def _check_scan(found: Replay, call: Call) -> None:
    """A scan's pages together are the model's state at the scan's revision, as far as the scan went."""
    asked, outcome = call.asked, call.outcome
    assert isinstance(asked, ScanCall)
    if asked.revision and outcome.revision != asked.revision:
        raise Violation("Replay", f"{call} is of another revision")
    expected = tuple(ordered(_state(found, outcome.revision), asked.range, reverse=asked.reverse))
    if asked.limit:
        expected = expected[: asked.limit]
    if outcome.entries != (expected if outcome.whole else expected[: len(outcome.entries)]):
        raise Violation("Scan", f"{call} is not {expected}")


def _saw(found: Replay, asked: StrictCall, outcome: Values) -> dict[bytes, tuple[int, int]]:
    """For each key that was read, the change that was seen, and the one after it."""
    spans: dict[bytes, tuple[int, int]] = {}
    for operation, result in zip(asked.operations, outcome.results, strict=True):
        keys: set[bytes] = set()
        entries: dict[bytes, KeyValue] = {}
        if isinstance(operation, Get) and isinstance(result, Got):
            keys = {operation.key}
            entries = {} if result.entry is None else {operation.key: result.entry}
        elif isinstance(operation, Scan) and isinstance(result, Scanned):
            if operation.shape is Shape.COUNT:
                _check_count(found, operation, result.count, outcome)
                continue
            entries = {entry.key: entry for entry in result.entries}
            keys = _scanned(found, operation, result)
        for key in sorted(keys):
            spans[key] = _span(found, key, entries.get(key))
    if spans and max(span[0] for span in spans.values()) >= min(span[1] for span in spans.values()):
        raise Violation("Replay", f"{asked} saw {outcome}, which was never there at once")
    return spans


def _scanned(found: Replay, asked: Scan, result: Scanned) -> set[bytes]:
    """All keys that a scan has passed, whether they were there or not."""
    keys = _covered(found, asked.range) | {entry.key for entry in result.entries}
    if not result.more:
        return keys
    last = result.entries[-1].key
    return {key for key in keys if (key >= last if asked.reverse else key <= last)}


def _check_count(found: Replay, asked: Scan, count: int, outcome: Values) -> None:
    """There were so many keys at some time since all that is complete."""
    later = sorted({gts for changes in found.changes.values() for gts in changes if gts > outcome.revision})
    for revision in (outcome.revision, *later):
        if count == sum(asked.range.covers(key) for key in _state(found, revision)):
            return
    raise Violation("Replay", f"{asked} found {count} keys, as there never were since {outcome.revision}")


def _span(found: Replay, key: bytes, entry: KeyValue | None) -> tuple[int, int]:
    changes = found.changes.get(key, [])
    if entry is None:
        return _absent(found, key, changes)
    at = bisect_left(changes, entry.mod_revision)
    if at == len(changes) or changes[at] != entry.mod_revision or _entry(found, key, changes[at]) != entry:
        raise Violation("Replay", f"{entry} was read, and was never there")
    return changes[at], changes[at + 1] if at + 1 < len(changes) else 1 << 60


def _absent(found: Replay, key: bytes, changes: Sequence[int]) -> tuple[int, int]:
    """An absent key says which removal was seen only if there is one."""
    gone = [i for i, gts in enumerate(changes) if _entry(found, key, gts) is None]
    if not gone:
        return 0, changes[0] if changes else 1 << 60
    return -1, 1 << 60


# (a): replicas' states


def _check_states(found: Replay, partitions: Iterable[Partition]) -> None:
    first: dict[GroupId, Partition] = {}
    for partition in partitions:
        group, versions = found.model.groups[partition.group], partition.machine.versions
        live = {entry.key: entry for entry in versions.scan(EVERYTHING)}
        if live != group.now:
            raise Violation("Replay", f"{partition.me} has {live}, not {group.now}")
        if versions.floor != group.floor:
            raise Violation("Replay", f"{partition.me} has floor {versions.floor}, not {group.floor}")
        other = first.setdefault(partition.group, partition)
        if other is partition:
            for revision in sorted({versions.floor, *(r for r, _ in group.states if r >= versions.floor)}):
                seen = {entry.key: entry for entry in versions.scan_at(EVERYTHING, revision)}
                if seen != group.at(revision):
                    raise Violation(
                        "Replay", f"{partition.me} has {seen} at {revision}, not {group.at(revision)}"
                    )
        else:
            for name in ("latest", "history", "sessions", "results"):
                mine, its = _table(partition, name), _table(other, name)
                if mine != its:
                    raise Violation("Agreement", f"{name} of {partition.me} and {other.me}: {mine} and {its}")


def _table(partition: Partition, name: str) -> MemoryMap[Any, Any]:
    machine = partition.machine
    owner = machine.versions if name in ("latest", "history") else machine._sessions  # noqa: SLF001 - all of it
    found: MemoryMap[Any, Any] = getattr(owner, f"_{name}")
    return found


# (e): what users of the client are told


def _check_operation(found: Replay, operation: UserOperation) -> None:
    """A call of a user's is executed once at most, under whichever ids its attempts were made."""
    executed = []
    for call in operation.writes:
        assert call.identity is not None
        for execution in found.requests.get((call.identity.client, call.identity.sequence), ()):
            parts = [each for each in execution.answers.values() if isinstance(each, Outcome)]
            if all(part.succeeded for part in parts) and not _is_aborted(execution):
                executed.append(execution.delivered.gts)
    if len(executed) > (not operation.not_executed):
        told = "told to be without effect, " if operation.not_executed else ""
        raise Violation("Once", f"{operation.what} was {told}executed at {executed}")


def _check_interactive(found: Replay, interactive: Interactive) -> None:
    """All that a committed transaction has read was there just before its commit."""
    before = interactive.revision - 1
    for key, seen in interactive.reads.items():
        entry = _entry(found, key, before)
        there = None if entry is None else (entry.value, entry.mod_revision)
        if there != seen:
            raise Violation("Interactive", f"{interactive} read {key!r} as {seen}, and it was {there}")
    state = _state(found, before) if interactive.ranges else {}
    for asked, seen_there in interactive.ranges:
        entries = tuple((e.key, e.value) for e in ordered(state, asked, reverse=False))
        if entries != seen_there:
            raise Violation("Interactive", f"{interactive} read {asked} as {seen_there}, not {entries}")


def events_of(found: Replay) -> list[tuple[int, tuple[Event, ...]]]:
    """What each transaction changed, by the model."""
    events: dict[int, list[Event]] = {}
    for group in found.model.groups.values():
        before: dict[bytes, Any] = {}
        for revision, values in group.states:
            for key in before.keys() | values.keys():
                entry = values.get(key)
                if entry != before.get(key):
                    event = Event(key, None, 0, 0)
                    if entry is not None:
                        event = Event(key, entry.value, entry.create_revision, entry.version)
                    events.setdefault(revision, []).append(event)
            before = values
    return [(revision, tuple(sorted(each))) for revision, each in sorted(events.items())]


def _check_watched(expected: Sequence[tuple[int, tuple[Event, ...]]], watched: Watched) -> None:
    """A watch has exactly the transactions of the order, whole."""
    should = tuple((gts, events) for gts, events in expected if watched.after < gts <= watched.upto)
    if watched.found != should:
        after, upto = watched.after, watched.upto
        raise Violation("Feed", f"after {after}, up to {upto}: {watched.found}, not {should}")


# (b): real time


def check_strict(found: Replay, history: History, placed: Mapping[int, Execution | None]) -> None:
    """No circle of conflicts and real time."""
    nodes: list[Node] = []
    for call in history.calls:
        node = None
        if isinstance(call.asked, Transact):
            execution = placed[call.number]
            if execution is not None:
                node = _transaction_node(found, call, execution)
        elif (
            call.returned is not None
            and isinstance(call.asked, StrictCall)
            and isinstance(call.outcome, Values)
        ):
            spans = _saw(found, call.asked, call.outcome)
            reads = {key: span[0] for key, span in spans.items() if span[0] >= 0}
            node = Node(str(call), call.invoked, call.returned, reads)
        elif isinstance(call.asked, Cut | ScanCall) and isinstance(call.outcome, Ordered | Pages):
            if isinstance(call.asked, ScanCall) and call.asked.revision:
                continue
            position = call.outcome.revision
            ranges = call.asked.ranges if isinstance(call.asked, Cut) else (call.asked.range,)
            keys = [key for key in found.changes if any(asked.covers(key) for asked in ranges)]
            reads = dict.fromkeys(keys, position)
            node = Node(str(call), call.invoked, call.returned, reads, position=position)
        if node is not None:
            nodes.append(node)
    find_circle(nodes)


def _transaction_node(found: Replay, call: Call, execution: Execution) -> Node:
    assert isinstance(call.asked, Transact)
    transaction, gts = call.asked.transaction, execution.delivered.gts
    parts = [each for each in execution.answers.values() if isinstance(each, Outcome)]
    aborted = [each for each in execution.answers.values() if isinstance(each, Aborted)]
    picks_then = all(part.succeeded for part in parts) and all(part.in_then for part in aborted)
    taken = transaction.then if picks_then else transaction.otherwise
    if aborted:  # what it would have read is not told, but what its writes depend on is
        taken = tuple(each for each in taken if each.writes)
    reads: set[bytes] = set()
    for condition in transaction.conditions:
        if isinstance(condition, Unchanged):
            reads |= _covered(found, condition.range)
        elif isinstance(condition, Compare):
            reads.add(condition.key)
        else:
            assert_never(condition)
    for operation in taken:
        reads |= _read_by(found, operation)
    writes = tuple(key for key, changes in found.changes.items() if _has(changes, gts))
    returned = call.returned if isinstance(call.outcome, Committed | AbortedCall) else None
    return Node(str(call), call.invoked, returned, dict.fromkeys(sorted(reads), gts - 1), writes, gts)


def _has(changes: Sequence[int], gts: int) -> bool:
    at = bisect_left(changes, gts)
    return at < len(changes) and changes[at] == gts


def _covered(found: Replay, asked: Range) -> set[bytes]:
    return {key for key in found.changes if asked.covers(key)}


def _read_by(found: Replay, operation: Operation) -> set[bytes]:
    if isinstance(operation, Scan | DeleteRange):
        return _covered(found, operation.range)
    if isinstance(operation, Get | Append | Calculate | Delete | Swap):
        return {operation.key}
    if isinstance(operation, Put):
        return set()
    assert_never(operation)
