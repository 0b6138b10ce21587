"""Serve the status of a node, and merge the answers of all nodes.

Each node has a unix socket beside its disk. A client sends a line of JSON, gets one back, and the connection
is closed: `{}` asks for a `NodeAnswer`; other requests are operators' actions. The socket needs no address,
no client and no quorum, so it works even when the cluster does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NotRequired, TypeAlias, TypedDict, cast

from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from multicast.types import GROUP_BITS, GroupId

ASK_S: Final = 2.0
"""How long a node may take to answer before it counts as down."""

_ANSWER_MAX: Final = 1 << 22
_REQUEST_MAX: Final = 1 << 16
_PATH_MAX: Final = 107
"""Bytes of a unix socket's path, without the closing zero."""


Status: TypeAlias = Callable[[], Mapping[str, Any]]
Act: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class ReplicaAnswer(TypedDict):
    """A node's report on its replica of one group."""

    status: str
    ballot: int
    leader: str | None
    """The node that leads the group, as far as this replica knows."""
    clock: int
    delivered: int
    """Position of the last delivery: a global timestamp."""
    entries: int
    store_bytes: int
    configuration: NotRequired[int]
    """Number of the newest configuration of the group that this replica knows."""
    settled: NotRequired[bool]
    """Whether that configuration is complete, with no change of members under way."""
    time: NotRequired[Mapping[str, Any]]
    """At a leader: quorum time, whether it is held back, and which members' clocks are wrong."""
    damage: NotRequired[str]
    """What was wrong with its state, which is not restored yet."""
    deliveries: NotRequired[int]
    """Number of messages that this replica has delivered. Lag is counted in these, or else in ticks."""


class NodeAnswer(TypedDict):
    """A node's report on itself."""

    id: str
    pid: int
    address: str
    groups: Mapping[str, ReplicaAnswer]


class NodeStatus(TypedDict):
    """A node in the output of `wbkv status`."""

    id: str
    pid: int | None
    address: str
    up: bool
    relayed: dict[str, str]
    """The nodes that do not hear this one, each with the node through which its frames go."""
    space: str | None
    """Of its disk: "enough", "low" (the node takes no writes) or "full" (its replicas do not vote)."""
    free_bytes: int | None
    files: Mapping[str, Mapping[str, int]] | None
    """Of its `state` and `log`: the bytes `used`, those `free` for later writes, and of the `file`."""
    scrub: Mapping[str, Any] | None
    """What the scrubber has read and found: see `kvstore.store.scrubber`."""


class ReplicaStatus(TypedDict):
    """A replica in the output. All but `node` and `up` are null if its node does not answer."""

    node: str
    status: str | None
    clock: int | None
    delivered: int | None
    lag: int | None
    entries: int | None
    store_bytes: int | None
    configuration: int | None
    settled: bool | None
    time: Mapping[str, Any] | None
    """At a leader: see `multicast.protocol.Protocol.time_of_day`."""
    damage: str | None
    """What is wrong with its disk, while it takes part in nothing because of that."""
    comparison: Mapping[str, Any] | None
    """How its content compares with that of other replicas: see `kvstore.store.comparison`."""
    history: Mapping[str, Any] | None
    """What is kept of its group's history, and what holds it: see `kvstore.store.compactor`."""
    up: bool


class GroupStatus(TypedDict):
    """A group: `leader` is a node, or null while there is no leader."""

    id: int
    leader: str | None
    ballot: int | None
    replicas: list[ReplicaStatus]


class ClusterStatus(TypedDict):
    """The object that `wbkv status --json` prints."""

    nodes: list[NodeStatus]
    groups: list[GroupStatus]


class _StatusConnection(asyncio.Protocol):
    """One connection: a request and its answer."""

    _transport: asyncio.Transport
    _timer: asyncio.TimerHandle

    def __init__(self, status: Status, act: Act) -> None:
        self._status = status
        self._act = act
        self._asked = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(ASK_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._asked += data
        if len(self._asked) > _REQUEST_MAX:
            self._transport.close()
        elif b"\n" in data:
            try:
                answer = json.dumps(self._answer(bytes(self._asked)))
                self._transport.write(answer.encode() + b"\n")
            finally:
                self._transport.close()

    def _answer(self, asked: bytes) -> Mapping[str, Any]:
        try:
            request = json.loads(asked)
            if isinstance(request, dict):
                return self._act(request) if request else self._status()
        except ValueError as error:
            return {"error": str(error)}
        return {"error": f"{request!r:.80} is not a valid request: send a JSON object"}


def _nothing(request: Mapping[str, Any]) -> Mapping[str, Any]:
    raise ValueError(f"this node does not support the request {', '.join(request)}")


async def serve_status(path: Path, status: Status, act: Act = _nothing) -> asyncio.Server:
    """Answer each request with what `status` returns at that moment, or with the result of `act`.

    Both run in the loop, so they must not block; `act` raises `ValueError` for a request that fails. Close
    the server to end it. A socket left behind by a crash is replaced: the lock of the disk ensures that no
    other process is this node.
    """
    listening = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        with _short(path) as address:
            listening.bind(address)
            path.chmod(0o600)
            loop = asyncio.get_running_loop()
            return await loop.create_unix_server(lambda: _StatusConnection(status, act), sock=listening)
    except BaseException:
        listening.close()
        raise


def ask(
    path: Path, timeout_s: float = ASK_S, request: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the node's report on itself, or its answer to a request; None if it does not answer."""
    deadline = time.monotonic() + timeout_s
    received = bytearray()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with _short(path) as address:
                connection.settimeout(timeout_s)
                connection.connect(address)
            connection.sendall(json.dumps(request or {}).encode() + b"\n")
            while piece := connection.recv(1 << 16):
                received += piece
                connection.settimeout(max(deadline - time.monotonic(), 1e-3))
                if len(received) > _ANSWER_MAX or time.monotonic() > deadline:
                    return None
        except OSError:
            return None  # No socket, no listener, or no answer in time: the node is down.
    try:
        answer = json.loads(received)
    except ValueError:
        return None  # The node stopped in the middle of its answer.
    return answer if isinstance(answer, dict) else None


def ask_all(config: Config, timeout_s: float = ASK_S) -> ClusterStatus:
    """Ask all nodes at once; return the status of the whole cluster."""
    with ThreadPoolExecutor(min(len(config.nodes), 32)) as pool:
        found = pool.map(lambda node: ask(config.status_socket(node), timeout_s), config.nodes)
        return merge(config, dict(zip(config.nodes, found, strict=True)))


def merge(config: Config, answers: Mapping[NodeId, Mapping[str, Any] | None]) -> ClusterStatus:
    """Return the cluster's status from the nodes' answers; a node without one is down."""
    up = {node: answer for node, answer in answers.items() if answer is not None}
    replicas = {
        node: {GroupId(int(group)): replica for group, replica in answer.get("groups", {}).items()}
        for node, answer in up.items()
    }
    disks = {node: answer.get("disk") or {} for node, answer in up.items()}
    return {
        "nodes": [
            {
                "id": name,
                "pid": up[name].get("pid") if name in up else None,
                "address": node.address,
                "up": name in up,
                "relayed": up[name].get("relays", {}).get("through", {}) if name in up else {},
                "space": disks[name].get("space") if name in disks else None,
                "free_bytes": _number(disks[name], "free_bytes") if name in disks else None,
                "files": disks[name].get("files") if name in disks else None,
                "scrub": disks[name].get("scrub") if name in disks else None,
            }
            for name, node in config.nodes.items()
        ],
        "groups": [
            _group(group, members, {node: its[group] for node, its in replicas.items() if group in its})
            for group, members in sorted(config.groups.items())
        ],
    }


def _group(
    group: GroupId, members: Iterable[NodeId], found: Mapping[NodeId, Mapping[str, Any]]
) -> GroupStatus:
    # A leader that was paused may not know yet that it was deposed.
    leading = [node for node in found if found[node].get("status") == "leader"]
    leader = max(leading, key=lambda node: _number(found[node], "ballot") or 0, default=None)
    ballots = [_number(found[node], "ballot") for node in ([leader] if leader is not None else found)]
    counted = all("deliveries" in replica for replica in found.values())
    measure = "deliveries" if counted else "delivered"
    ahead = max((_number(replica, measure) or 0 for replica in found.values()), default=0)
    # Later members are not in the configuration; they are on the nodes that report them.
    nodes = dict.fromkeys([*members, *found])
    return {
        "id": group,
        "leader": leader,
        "ballot": max((ballot for ballot in ballots if ballot is not None), default=None),
        "replicas": [_replica(node, found.get(node), measure, ahead) for node in nodes],
    }


def _replica(node: NodeId, found: Mapping[str, Any] | None, measure: str, ahead: int) -> ReplicaStatus:
    report = found or {}
    position = _number(report, measure)
    return {
        "node": node,
        "status": report.get("status"),
        "clock": _number(report, "clock"),
        "delivered": _number(report, "delivered"),
        "lag": None if position is None else _behind(ahead - position, measure),
        "entries": _number(report, "entries"),
        "store_bytes": _number(report, "store_bytes"),
        "configuration": _number(report, "configuration"),
        "settled": report.get("settled"),
        "time": report.get("time") or None,
        "damage": report.get("damage"),
        "comparison": report.get("comparison"),
        "history": report.get("history"),
        "up": found is not None,
    }


def _behind(difference: int, measure: str) -> int:
    """Return the lag in messages; or, of two positions, in ticks of the logical clock, 0 only if equal."""
    return difference if measure == "deliveries" else -(-difference >> GROUP_BITS)


def _number(report: Mapping[str, Any], key: str) -> int | None:
    value = report.get(key)
    return value if isinstance(value, int) else None


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a path within the limit of 107 bytes of unix sockets, which data folders may exceed."""
    if len(os.fsencode(path)) <= _PATH_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
