"""Clusters of processes on this machine, for tests and notebooks. Needs `wbkv[server]`.

    with wbkv.testing.cluster() as client:
        client.put("x", b"1")

A pytest fixture, for tests that kill nodes and connect clients of their own:

    @pytest.fixture(scope="module")
    def running():
        with wbkv.testing.running_cluster(nodes=3, partitions=2) as running:
            yield running

    def test_nothing_is_lost(running):
        with running.connect() as client:
            client.put("x", b"1")
            running.kill("n1")
            assert client.get("x") == b"1"
            running.start("n1")

Clusters are temporary and do not wait for disks, unless `data` names a folder. All processes end with the
block, or with this process, however it ends. `wbkv.open()` is faster where a test needs no processes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from typing import Any, Protocol

from wbkv import aio
from wbkv.client import Client
from wbkv.connect import connect
from wbkv.data import Consistency
from wbkv.errors import Error, InvalidRequest
from wbkv.links.embedded import backend
from wbkv.record.history import History
from wbkv.record.trace import Trace

__all__ = ["RunningCluster", "aio_cluster", "cluster", "running_cluster"]

Path = str | os.PathLike[str]


class _Processes(Protocol):
    """The cluster that the entry point `cluster` starts."""

    @property
    def addresses(self) -> Sequence[str]: ...

    @property
    def nodes(self) -> Sequence[str]: ...

    def kill(self, *nodes: Any) -> None: ...

    def stop(self, *nodes: Any) -> None: ...

    def start(self, *nodes: Any) -> None: ...


class RunningCluster:
    """A running cluster, whose nodes can be killed and started. `running_cluster` returns one."""

    def __init__(self, processes: _Processes) -> None:
        self._processes = processes

    def __repr__(self) -> str:
        return f"<wbkv.testing.RunningCluster on {', '.join(self.addresses)}>"

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes: n1, n2, ..."""
        return list(self._processes.nodes)

    @property
    def addresses(self) -> list[str]:
        """The addresses of the nodes for clients, in the same order."""
        return list(self._processes.addresses)

    def connect(
        self,
        *,
        timeout: float = 10.0,
        consistency: Consistency = "strict",
        history: History | None = None,
        trace: Trace | None = None,
    ) -> Client[bytes]:
        """Connect a client: see `wbkv.connect`. Its `using` selects another codec than bytes."""
        return connect(self.addresses, timeout=timeout, consistency=consistency, history=history, trace=trace)

    def aio_connect(
        self,
        *,
        timeout: float = 10.0,
        consistency: Consistency = "strict",
        history: History | None = None,
        trace: Trace | None = None,
    ) -> aio.Opening[aio.Client[bytes]]:
        """Connect a client for the running event loop: see `wbkv.aio.connect`."""
        return aio.connect(
            self.addresses, timeout=timeout, consistency=consistency, history=history, trace=trace
        )

    def kill(self, *nodes: str) -> None:
        """Kill these nodes, as a crash does. They stay down until `start`."""
        self._processes.kill(*self._known(nodes))

    def stop(self, *nodes: str) -> None:
        """Let these nodes hand over leadership, and stop. They stay down until `start`."""
        self._processes.stop(*self._known(nodes))

    def start(self, *nodes: str) -> None:
        """Start nodes that were killed or stopped. They serve a moment later; clients reconnect."""
        self._processes.start(*self._known(nodes))

    def _known(self, nodes: Sequence[str]) -> Sequence[str]:
        for node in nodes:
            if node not in self.nodes:
                raise ValueError(f"the cluster has no node {node!r}, only {', '.join(self.nodes)}")
        if not nodes:
            raise ValueError(f"no node was given; the cluster has {', '.join(self.nodes)}")
        return nodes


@contextmanager
def running_cluster(
    nodes: int = 3,
    partitions: int = 3,
    *,
    durability: str | None = None,
    keep_history: str | None = None,
    data: Path | None = None,
    trace: Path | None = None,
) -> Iterator[RunningCluster]:
    """Run a cluster whose nodes can be killed and started, for the duration of the block.

    `durability` is "os" or "fsync", `keep_history` how long history is kept: "90s", "1d", "forever".
    `data` is a folder that keeps the data. `trace` is a folder where nodes record what they deliver.
    """
    with ExitStack() as stack:
        yield _enter(stack, nodes, partitions, durability, keep_history, data, trace)


@contextmanager
def cluster(
    nodes: int = 3,
    partitions: int = 3,
    *,
    durability: str | None = None,
    keep_history: str | None = None,
    data: Path | None = None,
    timeout: float = 10.0,
    consistency: Consistency = "strict",
    history: History | None = None,
    trace: Path | None = None,
) -> Iterator[Client[bytes]]:
    """Run a cluster for the duration of the block, and connect a client. See `running_cluster`.

    With `trace`, a folder, the client is traced as well: see `wbkv.Trace`.
    """
    with ExitStack() as stack:
        running = _enter(stack, nodes, partitions, durability, keep_history, data, trace)
        own = _trace_in(stack, trace)
        yield stack.enter_context(
            running.connect(timeout=timeout, consistency=consistency, history=history, trace=own)
        )


@asynccontextmanager
async def aio_cluster(
    nodes: int = 3,
    partitions: int = 3,
    *,
    durability: str | None = None,
    keep_history: str | None = None,
    data: Path | None = None,
    timeout: float = 10.0,
    consistency: Consistency = "strict",
    history: History | None = None,
    trace: Path | None = None,
) -> AsyncIterator[aio.Client[bytes]]:
    """Like `cluster`, for the running event loop, which is not blocked while the cluster starts and stops."""
    stack = ExitStack()
    entering = asyncio.to_thread(_enter, stack, nodes, partitions, durability, keep_history, data, trace)
    begun = asyncio.ensure_future(entering)
    try:
        running = await asyncio.shield(begun)
        async with running.aio_connect(
            timeout=timeout, consistency=consistency, history=history, trace=_trace_in(stack, trace)
        ) as client:
            yield client
    finally:
        await asyncio.wait([begun])  # a cancelled caller leaves no process behind
        await asyncio.to_thread(stack.close)


def _trace_in(stack: ExitStack, folder: Path | None) -> Trace | None:
    """Open a client's trace beside those of the nodes."""
    return None if folder is None else stack.enter_context(Trace(folder))


def _enter(
    stack: ExitStack,
    nodes: int,
    partitions: int,
    durability: str | None,
    keep_history: str | None,
    data: Path | None,
    trace: Path | None,
) -> RunningCluster:
    """Start a cluster, which the stack stops."""
    run: Any = backend("cluster")
    try:
        context: AbstractContextManager[_Processes] = run(
            nodes, partitions, durability=durability, keep_history=keep_history, data=data, trace=trace
        )
        return RunningCluster(stack.enter_context(context))
    except ValueError as error:
        raise InvalidRequest(f"cannot run the cluster: {error}") from error
    except Exception as error:
        raise Error(f"cannot run the cluster: {error}") from error
