"""A simulated client's link: the SDK's own, on simulated connections, with every call and answer recorded."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message
from wbkv.core.effects import SCAN, Ask, Failure, Open, ReplyStream, failed
from wbkv.errors import ClientClosed
from wbkv.links.grpc_tasks import AsyncGrpcLink
from wbkv_proto.v1.error_pb2 import Error as ApiError

from kvstore.simulation.history import AbortedCall, Call, ReadAtCall, Transact, UserOperation
from kvstore.store.gateway import Committed
from kvstore.store.questions import Values
from multicast.sim.checkers import Violation
from wbkv_sim.facts import aborted_by, asked_of, told_by

if TYPE_CHECKING:
    from wbkv_sim.clients import ClientProcess

PATIENCE: Final = 0.2
"""Simulated nodes count as disconnected that much sooner: a run lasts some seconds."""

REPEATS: Final = 0.1
"""How often a request turns up once more at a random node, as from a slow network."""

STREAM_ENDS: Final = 0.04
"""How often a stream ends instead of its next message, while there are faults, as behind proxies."""

OPERATION: Final[ContextVar[UserOperation | None]] = ContextVar("operation", default=None)
"""The user's call that the running task serves."""


class SimLink(AsyncGrpcLink):
    """The link of one client."""

    def __init__(self, process: ClientProcess) -> None:
        super().__init__()
        self._process = process
        self._history = process.simulation.history
        self._now = process.simulation.loop

    def _channel(self, address: str) -> Any:
        if self._closed:
            raise ClientClosed("the client is closed")
        found: Any = self._channels.get(address)
        if found is None:
            found = self._process.channel(address)
            self._channels[address] = found
        return found

    def ask(self, ask: Ask) -> Awaitable[Message | Failure]:
        """Send a request, and record it and its answer."""
        ask = ask._replace(patience_s=ask.patience_s * PATIENCE)
        answer = super().ask(ask)
        if not ask.method.in_session:
            return answer
        operation = OPERATION.get()
        if operation is not None and operation.asking is not ask.request:
            if operation.asking is not None:
                operation.asked_at = self._now.now
            operation.asking = ask.request
        asked, identity = asked_of(ask.request)
        if identity is None or not isinstance(asked, Transact):
            call = self._history.invoke(self._process.number, asked, self._now.now)
        else:
            call = self._history.write(asked, self._now.now, identity)
            if operation is not None and call not in operation.writes:
                operation.writes.append(call)
        return self._noted(call, ask, answer)

    async def _noted(self, call: Call, ask: Ask, answer: Awaitable[Message | Failure]) -> Message | Failure:
        found = await answer
        if not isinstance(found, Failure):
            self._take(call, found, getattr(ask.request, "min_revision", 0))
            self._repeat_some(call, ask)
        elif found.error.kind == ApiError.OPERATION_FAILED:
            self._note(call, aborted_by(found.error))
            self._repeat_some(call, ask)
        elif found.error.kind == ApiError.INTERNAL:
            raise Violation("Api", f"{call}: {found.error.message}")
        return found

    def _take(self, call: Call, found: Message, at_least: int = 0) -> None:
        told = told_by(call.asked, found)
        if isinstance(call.asked, ReadAtCall) and not call.asked.revision and told.revision < at_least:
            raise Violation(
                "Session", f"{call}: {told.revision} is below {at_least}, which the client has seen"
            )
        self._note(call, told)

    def _note(self, call: Call, told: Committed | Values | AbortedCall) -> None:
        if call.returned is None and call.outcome is None:
            call.outcome, call.returned = told, self._now.now
        elif isinstance(told, Committed | AbortedCall):
            call.more.append(told)

    def _repeat_some(self, call: Call, ask: Ask) -> None:
        if call.identity is not None and self._process.rng.random() < REPEATS:
            self._process.later(self._process.rng.expovariate(2.0), self._repeat, call, ask)

    def _repeat(self, call: Call, ask: Ask) -> None:
        self._process.loop.create_task(self._ask_again(call, ask))

    async def _ask_again(self, call: Call, ask: Ask) -> None:
        process = self._process
        address = process.rng.choice(process.addresses)
        if not self._closed:
            found = await super().ask(ask._replace(address=address))
            if not isinstance(found, Failure):
                self._take(call, found)
            elif found.error.kind == ApiError.OPERATION_FAILED:
                self._note(call, aborted_by(found.error))

    def open(self, open_: Open) -> ReplyStream:
        """Open a stream; of scans, with small pages."""
        if open_.method is SCAN:
            open_.request.page_bytes = self._process.rng.choice((1, 20, 100))  # type: ignore[attr-defined]  # a ScanRequest
        return super().open(open_)

    async def next(self, stream: Any) -> Message | Failure | None:
        """Return the next message of a stream, which may end instead."""
        found = await super().next(stream)
        if self._process.simulation.faulty and self._process.rng.random() < STREAM_ENDS:
            stream.cancel()
            return failed(ApiError.UNAVAILABLE, "the stream was reset")
        return found
