"""Sabotages of all-or-nothing transactions, each in a line or two: what the design does not get wrong."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from kvstore.machine import Aborted, Decision, Delivered, Footprint, Machine, Vote
from kvstore.machine import operations as performing
from kvstore.machine.commands import Request
from kvstore.machine.operations import failures_of, perform_all
from kvstore.machine.placement import GroupShare, share_of
from kvstore.machine.request import Append, PointOperation, Swap, Transaction
from kvstore.machine.results import Failure, Result
from kvstore.machine.sessions import Sessions
from kvstore.machine.slices import Meter, finish, unmetered
from kvstore.machine.state import Judgement
from kvstore.machine.versions import Writer
from kvstore.machine.waiting import OpenTransaction, decide
from kvstore.store.partition import Partition
from multicast.types import Destinations, GroupId, Timestamp


def ignores_votes_on_failures(patch: pytest.MonkeyPatch) -> None:
    """A group asks the others for their conditions, and not whether they can perform the branch."""

    def share(command: Transaction, *arguments: Any) -> GroupShare | None:
        found = share_of(command, *arguments)
        if found is None or len(arguments[-1]) == 1:
            return found
        nobody: frozenset[GroupId] = frozenset()
        return replace(found, voters=found.judges, then_may_fail=nobody, otherwise_may_fail=nobody)

    patch.setattr("kvstore.machine.machine.share_of", share)


def executes_before_all_have_said(patch: pytest.MonkeyPatch) -> None:
    """A branch is executed when the conditions are known, unless some group has said that it cannot."""

    def early(
        part: GroupShare, group: GroupId, judged: Judgement, votes: Mapping[GroupId, Vote]
    ) -> Decision | None:
        nobody: frozenset[GroupId] = frozenset()
        return decide(replace(part, then_may_fail=nobody, otherwise_may_fail=nobody), group, judged, votes)

    patch.setattr("kvstore.machine.waiting.decide", early)


def reads_the_previous_value_afterwards(patch: pytest.MonkeyPatch) -> None:
    """A swap returns what it has written."""
    perform = performing.perform

    def swapped(operation: PointOperation, versions: Any, writer: Writer, room: Any) -> Any:
        if isinstance(operation, Swap):
            writer.put(operation.key, operation.value)
            return room.get(operation.key, versions.get(operation.key))
        return perform(operation, versions, writer, room)

    patch.setattr("kvstore.machine.operations.perform", swapped)
    patch.setattr("kvstore.machine.machine.perform", swapped)


class _SessionsWithoutAborts(Sessions):
    def executed(self, request: Request, destinations: Destinations, gts: Timestamp, result: Result) -> None:
        if not isinstance(result, Aborted):
            super().executed(request, destinations, gts, result)
        else:
            self._open.pop((request.client, destinations, request.sequence), None)


class ForgetsAborts(Machine):
    """That a transaction was aborted is not kept in the session: a late copy of it may be executed."""

    def __init__(self, group: GroupId, store: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(group, store, *arguments, **options)
        kept = self._sessions._open
        self._sessions = _SessionsWithoutAborts(store.sessions, store.results, self._sessions._window)
        self._sessions._open = kept


class TriesAtDelivery(Machine):
    """Whether a branch can be performed is judged at delivery, not when the locks are granted."""

    def _lock(self, opened: OpenTransaction) -> None:
        delivered, part = opened.delivered, opened.part
        if not hasattr(self, "tried"):
            self.tried: dict[int, Judgement] = {}
        work = super()._judgement(delivered, part, opened.floor, None, unmetered())
        self.tried[delivered.gts] = finish(work)
        super()._lock(opened)

    def _judgement(
        self, delivered: Delivered, part: GroupShare, floor: int, as_of: int | None, meter: Meter
    ) -> Generator[None, None, Judgement]:
        judged = yield from super()._judgement(delivered, part, floor, as_of, meter)
        early = getattr(self, "tried", {}).get(delivered.gts, judged)
        return replace(judged, then=early.then, otherwise=early.otherwise)


class TriesWithoutOverlay(Machine):
    """A branch is tried operation by operation: none sees the writes of those before it."""

    def _try(
        self, branch: Any, part: GroupShare, delivered: Delivered, floor: int, as_of: int | None, meter: Meter
    ) -> Generator[None, None, tuple[Failure, ...]]:
        writer = Writer(self._over(as_of, meter), delivered.gts, floor)
        seen = self._over(as_of, meter)
        results = yield from perform_all(branch, part, seen, writer, self._limits, floor, meter)
        return failures_of(branch, results, allowed=part.allow_failures)


class OwnLimitDecides(Machine):
    """How large a value may become is what this replica is configured with, not what the message says."""

    def deliver(self, delivered: Delivered) -> Footprint:
        command = delivered.request.command
        if isinstance(command, Transaction):
            most = self._limits.value_bytes
            branches = [
                tuple(replace(each, most=most) if isinstance(each, Append) else each for each in branch)
                for branch in (command.then, command.otherwise)
            ]
            command = replace(command, then=branches[0], otherwise=branches[1])
            delivered = replace(delivered, request=replace(delivered.request, command=command))
        return super().deliver(delivered)


class AbortsSkipTheGate(Partition):
    """That a transaction was aborted is told at once."""

    def _take_effects(self) -> None:
        super()._take_effects()
        for mid, found in list(self._results.items()):
            if isinstance(found, tuple) and isinstance(found[1], Aborted):
                self._send_answers([mid])
