"""What the client's logic wants done, as data.

Every call of the API is a *plan*: a generator that yields what is to be done (ask a node, wait, read the next
message of a stream) and is sent what came of it. The two clients run the same plans, one with threads, one in
an event loop; tests run them with neither.
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
    """A call of the API."""

    service: str
    name: str
    response: type[Message]
    in_session: str = ""
    """What it is called inside a session, if it can be."""

    @property
    def path(self) -> str:
        """As gRPC calls it."""
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
WATCH: Final = Method(_KV, "Watch", kv.WatchResponse)
TOPOLOGY: Final = Method(_CLUSTER, "Topology", cluster.TopologyResponse)
STATUS: Final = Method(_CLUSTER, "Status", cluster.StatusResponse)


class Ask(NamedTuple):
    """Send a request, and come back with the response or a `Failure`."""

    address: str
    method: Method
    request: Message
    timeout_s: float
    """How long this may take."""
    patience_s: float
    """After how long a node that says nothing at all may be taken for dead."""


class Wait(NamedTuple):
    """Let some time pass."""

    seconds: float


class ReplyStream(Protocol):
    """Messages that come one after the other."""

    def cancel(self) -> None:
        """No more is wanted. At any time, also when it has ended."""


class Open(NamedTuple):
    """Begin a stream, and come back with a `ReplyStream`. Failures come with its first message."""

    address: str
    method: Method
    request: Message


class Next(NamedTuple):
    """Come back with a stream's next message, None at its end, or a `Failure`."""

    stream: ReplyStream
    timeout_s: float


class Emit(NamedTuple):
    """Something for the caller, who is to get more than one thing."""

    item: Any


class Failure(NamedTuple):
    """A request was not answered, or refused."""

    error: ApiError
    begun: bool = True
    """Whether it may have reached the node."""
    heard: bool = True
    """Whether the node has said so itself. If not, it may be gone."""


Effect: TypeAlias = Ask | Wait | Open | Next | Emit
Plan: TypeAlias = Generator[Effect, Any, T]


def failed(kind: ApiError.Kind, message: str, *, begun: bool = True) -> Failure:
    """A failure that no node has told of, and that may have another outcome when tried again."""
    return Failure(ApiError(kind=kind, message=message, retryable=True, same_id=True), begun, heard=False)


def mapped(plan: Plan[None], change: Callable[[Any], Any]) -> Plan[None]:
    """The plan, with everything that it emits changed."""
    answer: Any = None
    try:
        while True:
            effect = plan.send(answer)
            answer = yield Emit(change(effect.item)) if type(effect) is Emit else effect
    except StopIteration:
        return
    finally:
        plan.close()
