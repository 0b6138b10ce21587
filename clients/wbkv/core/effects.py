"""Effects: what the client's logic asks its links to do, as data.

Every call of the API is a *plan*: a generator that yields effects (ask a node, wait, read the next message of
a stream) and is sent their results. The two clients run the same plans, one with threads, one in an event
loop; tests run them with neither.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message
from wbkv_proto.v1 import cluster_pb2 as cluster
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.error_pb2 import Error as ApiError

T = TypeVar("T")


class Method(NamedTuple):
    """A method of the API."""

    service: str
    name: str
    response: type[Message]
    in_session: str = ""
    """Its name inside a session; empty if it cannot be called there."""

    @property
    def path(self) -> str:
        """Its path in gRPC."""
        return f"/{self.service}/{self.name}"


_KV: Final = "wbkv.v1.KV"
_CLUSTER: Final = "wbkv.v1.Cluster"
TXN: Final = Method(_KV, "Txn", kv.TxnResponse, "txn")
GET: Final = Method(_KV, "Get", kv.GetResponse, "get")
PUT: Final = Method(_KV, "Put", kv.PutResponse, "put")
DELETE: Final = Method(_KV, "Delete", kv.DeleteResponse, "delete")
SCAN: Final = Method(_KV, "Scan", kv.ScanResponse)
SPLITS: Final = Method(_KV, "Splits", kv.SplitsResponse)
SNAPSHOT: Final = Method(_KV, "Snapshot", kv.SnapshotResponse)
RELEASE: Final = Method(_KV, "ReleaseSnapshot", kv.ReleaseSnapshotResponse)
COMPACT: Final = Method(_KV, "Compact", kv.CompactResponse)
RESERVE: Final = Method(_KV, "Reserve", kv.ReserveResponse)
WATCH: Final = Method(_KV, "Watch", kv.WatchResponse)
TOPOLOGY: Final = Method(_CLUSTER, "Topology", cluster.TopologyResponse)
STATUS: Final = Method(_CLUSTER, "Status", cluster.StatusResponse)


class Ask(NamedTuple):
    """Send a request. The result is the response, or a `Failure`."""

    address: str
    method: Method
    request: Message
    timeout_s: float
    """The time limit."""
    patience_s: float
    """How long a node may be silent before it counts as disconnected."""


class Wait(NamedTuple):
    """Let some time pass."""

    seconds: float


class ReplyStream(Protocol):
    """A stream of responses."""

    def cancel(self) -> None:
        """End the stream. It may be called at any time, also after the end."""


class Open(NamedTuple):
    """Open a stream. The result is a `ReplyStream`; its first message is a `Failure` if that failed."""

    address: str
    method: Method
    request: Message


class Next(NamedTuple):
    """Read the next message of a stream. The result is the message, None at the end, or a `Failure`."""

    stream: ReplyStream
    timeout_s: float


class Emit(NamedTuple):
    """Return one of several items to the caller."""

    item: Any


class Failure(NamedTuple):
    """A request that was rejected, or not answered."""

    error: ApiError
    begun: bool = True
    """Whether the request may have reached the node."""
    heard: bool = True
    """Whether the node itself has answered. If not, it may be disconnected."""
    silent: bool = False
    """Whether time has passed without a sign of the node, which may be busy, paused or off."""


Effect: TypeAlias = Ask | Wait | Open | Next | Emit
Plan: TypeAlias = Generator[Effect, Any, T]


def failed(kind: ApiError.Kind, message: str, *, begun: bool = True, silent: bool = False) -> Failure:
    """Return a failure that the client has noticed itself, and that a retry may resolve."""
    error = ApiError(kind=kind, message=message, retryable=True, same_id=True)
    return Failure(error, begun, heard=False, silent=silent)


def nothing() -> Plan[None]:
    """Emit nothing."""
    yield from ()


def mapped(plan: Plan[None], change: Callable[[Any], Any]) -> Plan[None]:
    """Run a plan with a function applied to every item that it emits."""
    answer: Any = None
    try:
        while True:
            effect = plan.send(answer)
            answer = yield Emit(change(effect.item)) if type(effect) is Emit else effect
    except StopIteration:
        return
    finally:
        plan.close()
