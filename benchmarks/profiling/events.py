"""Note what a node does and when, for the time line of one transaction across processes.

Methods of the node are wrapped when the process starts: each call is noted with its time, which is that of
CLOCK_MONOTONIC and so the same in all processes of a machine. A node that is not watched has no trace of it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.profiling.dumps import dump_on_signal


class Point(NamedTuple):
    """A method whose calls are noted: what is noted at its begin and at its end. Empty: nothing."""

    module: str
    name: str
    """Class and method, or a function."""
    begin: str
    end: str = ""
    only_if_given: bool = False
    """Whether nothing is noted if the method's first argument is empty."""


def _kinds(envelopes: Sequence[Any]) -> str:
    """The messages of a frame: their kinds, and how many."""
    counted = Counter(type(message).__name__ for _, _, messages in envelopes for message in messages)
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in sorted(counted.items()))


POINTS: Final = (
    Point("kvstore.api.calls", "Calls.begin", "call arrives"),
    Point("kvstore.api.session", "_SessionStream._begin_all", "call arrives"),
    Point("kvstore.store.gateway", "Gateway.transact", "request is read; multicast"),
    Point("kvstore.server.engine", "Engine._turn_now", "turn begins", "turn ends"),
    Point("kvstore.storage.log", "LmdbLog._start", "log: write and fsync"),
    Point("kvstore.node.loop", "Node.durable", "log: durable"),
    Point("kvstore.store.application", "StoreApplication.deliver", "deliver and execute"),
    Point("kvstore.store.partition", "Partition._send_answers", "gate is passed; answer", only_if_given=True),
    Point("kvstore.store.gateway", "Gateway._finish", "outcome is known"),
    Point("kvstore.api.calls", "Calls._written", "reply leaves"),
    Point("kvstore.api.session", "_SessionStream._send", "reply leaves"),
)
"""Points of a node. A test checks that they exist."""

FRAMES: Final = (
    Point("kvstore.server.engine", "Engine.receive", "from"),
    Point("kvstore.wire.transport", "Transport.send", "to"),
)
"""Points whose arguments are noted, too: a node, and the kinds of messages."""

CLIENT: Final = Point("benchmarks.comparison.calls", "WbkvCalls.row", "call", "answer")
"""The point of a client: it makes the function that makes the calls."""


def method_of(point: Point) -> tuple[Any, str]:
    """Return the class or module of a point, and the method's name there. Raises if there is none."""
    owner: Any = importlib.import_module(point.module)
    *path, name = point.name.split(".")
    for each in path:
        owner = getattr(owner, each)
    if not callable(getattr(owner, name)):
        raise TypeError(f"{point.name} of {point.module} is not a method")
    return owner, name


class Events:
    """What has happened in this process: times and names, in order."""

    def __init__(self) -> None:
        self.found: list[tuple[float, str]] = []

    def note(self, name: str) -> None:
        """Note an event."""
        self.found.append((time.monotonic(), name))

    def hook(self, point: Point, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the method of a point. Raises `AttributeError` if there is none."""
        owner, name = method_of(point)
        method = getattr(owner, name)
        setattr(owner, name, functools.wraps(method)(around(method)))

    def noted(self, point: Point) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return what wraps a method, or a coroutine function, of a point."""
        note, begin, end, only_if_given = self.note, point.begin, point.end, point.only_if_given

        def around(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if not only_if_given or arguments[1]:
                    note(begin)
                try:
                    return method(*arguments, **options)
                finally:
                    if end:
                        note(end)

            async def await_call(*arguments: Any, **options: Any) -> Any:
                note(begin)
                try:
                    return await method(*arguments, **options)
                finally:
                    if end:
                        note(end)

            return await_call if inspect.iscoroutinefunction(method) else call

        return around

    def hook_all(self) -> None:
        """Note everything that a node does."""
        for point in POINTS:
            self.hook(point, self.noted(point))

        def receiving(method: Callable[..., Any]) -> Callable[..., Any]:
            def receive(engine: Any, envelopes: Any, node: Any = None) -> None:
                self.note(f"from {node}: {_kinds(envelopes)}")
                method(engine, envelopes, node)

            return receive

        def sending(method: Callable[..., Any]) -> Callable[..., Any]:
            def send(transport: Any, node: Any, envelopes: Any) -> None:
                self.note(f"to {node}: {_kinds(envelopes)}")
                method(transport, node, envelopes)

            return send

        for point, around in zip(FRAMES, (receiving, sending), strict=True):
            self.hook(point, around)

    def hook_calls(self) -> None:
        """Note the calls of a client."""

        def rows(method: Callable[..., Any]) -> Callable[..., Any]:
            def row(calls: Any, name: str) -> Any:
                made = method(calls, name)

                async def call() -> None:
                    self.note(CLIENT.begin)
                    await made()
                    self.note(CLIENT.end)

                return call

            return row

        self.hook(CLIENT, rows)

    def take(self) -> list[tuple[float, str]]:
        """Return what was noted since the last time."""
        found, self.found = self.found, []
        return found


def watch(folder: Path) -> None:
    """Note what this node does, and write it into the folder on request."""
    events = Events()
    events.hook_all()
    dump_on_signal(folder, events.take)
