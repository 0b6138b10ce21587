"""Sabotages of the service and of the SDK, each in a line or two: what neither gets wrong."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from wbkv.core import streams
from wbkv.core.calls import Calls
from wbkv.core.effects import Method, Open, Plan
from wbkv.core.locks import Holding
from wbkv.core.transactions import Attempt
from wbkv.errors import OutcomeUnknown, Unavailable
from wbkv.operations import Condition
from wbkv_proto.v1 import kv_pb2 as kv

from kvstore.machine.request import ReadOperation
from kvstore.store.questions import Entries, Page, Values
from kvstore.store.service import Service
from multicast.types import GroupId, timestamp

# The service


class PagesOfNow(Service):
    """Each page of a scan is of the time at which it is fetched."""

    async def _page(self, group: GroupId, timeout_s: float, page: Page) -> Entries:
        newest = timestamp(self._gateway.newest(), GroupId(0))
        return await super()._page(group, timeout_s, replace(page, revision=max(page.revision, newest)))


class IgnoresMinRevision(Service):
    """A serializable read does not wait until the replica has what its client has seen."""

    async def _values(
        self, group: GroupId, operations: tuple[ReadOperation, ...], revision: int, min_revision: int
    ) -> Values:
        return await super()._values(group, operations, revision, min(min_revision, 1))


# The SDK


class RetriesUnderANewId(Calls):
    """A write of unknown outcome is made again, as another one."""

    def write(self, method: Method, request: Any, *arguments: Any) -> Plan[Any]:
        try:
            return (yield from super().write(method, request, *arguments))
        except OutcomeUnknown:
            request.ClearField("id")
            return (yield from super().write(method, request, *arguments))


class ForgetsWhatItSent(Calls):
    """A write that has no answer in time is told to be without effect."""

    def write(self, method: Method, request: Any, *arguments: Any) -> Plan[Any]:
        try:
            return (yield from super().write(method, request, *arguments))
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from error


class RenewsWhatIsLost(Holding):
    """A lock that has expired is renewed, if no other client has taken it."""

    def renew(self) -> Plan[bool]:
        if self.lost:
            self._safe_until = self._now() + self.ttl_s
        return super().renew()


class SeesNoPhantoms(Attempt):
    """The ranges that an interactive transaction has read may change."""

    def _conditions(self) -> list[Condition]:
        return [each for each in super()._conditions() if each.key in self._read]


class CountsOnlyOnce(Attempt):
    """What a transaction has counted, or scanned after a removal of a range, may change."""

    def rows(self, *arguments: Any, **options: Any) -> Plan[None]:
        protected = list(self._ranges)
        yield from super().rows(*arguments, **options)
        if options.get("shape") == kv.KEYS or self._removed:
            self._ranges[:] = protected


def _on_resume(plan: Plan[None], request: Any, change: Any) -> Plan[None]:
    """Run a plan, and change its request before it opens another stream."""
    answer: Any = None
    opened = 0
    while True:
        try:
            effect = plan.send(answer)
        except StopIteration:
            return
        if type(effect) is Open:
            opened += 1
            if opened > 1:
                change(request)
        answer = yield effect


_watch, _scan = streams.watch, streams.scan


def resumes_from_now(calls: Calls, request: Any, timeout_s: float) -> Plan[None]:
    """A watch that is resumed begins anew."""

    def begin_anew(request: Any) -> None:
        request.after = 0

    return _on_resume(_watch(calls, request, timeout_s), request, begin_anew)


def resumes_at_another_revision(calls: Calls, request: Any, asked: Any, timeout_s: float) -> Plan[None]:
    """A scan that is resumed goes on at the newest revision."""

    def at_any(request: Any) -> None:
        request.revision = 0

    return _on_resume(_scan(calls, request, asked, timeout_s), request, at_any)
