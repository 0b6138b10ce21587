# Generated from aio/connect.py by clients/tools/sync_client.py (`make sync-client`): do not edit.
"""Open clients for threads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, overload

import grpc

from wbkv.client import Client
from wbkv.codecs import BYTES, Codecs
from wbkv.core.calls import Calls
from wbkv.core.environment import SYSTEM
from wbkv.core.recording import requests_of
from wbkv.core.routing import Router, endpoints_of
from wbkv.data import Consistency, V
from wbkv.links.embedded import EmbeddedLink
from wbkv.links.grpc_threads import GrpcLink
from wbkv.links.threads import run
from wbkv.record.history import History
from wbkv.record.trace import Trace


@overload
def connect(
    endpoints: str | Iterable[str] | None = None,
    *,
    timeout: float = 10.0,
    consistency: Consistency = "strict",
    wait: float = 0.0,
    history: History | None = None,
    trace: Trace | None = None,
    credentials: grpc.ChannelCredentials | None = None,
) -> Client[bytes]: ...


@overload
def connect(
    endpoints: str | Iterable[str] | None = None,
    *,
    timeout: float = 10.0,
    codec: Codecs[V],
    consistency: Consistency = "strict",
    wait: float = 0.0,
    history: History | None = None,
    trace: Trace | None = None,
    credentials: grpc.ChannelCredentials | None = None,
) -> Client[V]: ...


def connect(
    endpoints: str | Iterable[str] | None = None,
    *,
    timeout: float = 10.0,
    codec: Codecs[Any] = BYTES,
    consistency: Consistency = "strict",
    wait: float = 0.0,
    history: History | None = None,
    trace: Trace | None = None,
    credentials: grpc.ChannelCredentials | None = None,
) -> Client[Any]:
    """Connect to a cluster by any of its nodes, which name the others.

    - `endpoints`: "host:port", or several, separated by commas or in a list. The default is
      $WBKV_ENDPOINTS, or else 127.0.0.1:7400 to 7402.
    - `timeout`: the default time limit of a call, all its attempts together.
    - `codec`: how values are encoded, also by prefixes of keys (see `wbkv.codecs`); the default are bytes.
    - `consistency`: the default consistency of reads, "strict" or "serializable".
    - `wait`: how long to wait for a cluster that is not up yet, before `Unavailable` is raised.
    - `history`: records requests and results for `wbkv check`: see `wbkv.History`.
    - `trace`: records each request and its revision for `wbkv pipeline`: see `wbkv.Trace`.
    """
    calls = Calls(Router(endpoints_of(endpoints), SYSTEM), timeout, trace)
    requests = requests_of(calls, codec, consistency, history)

    link = GrpcLink(credentials)
    try:
        run(link, calls.connect(wait))
    except BaseException:
        link.close()
        raise
    return Client(link, requests)


@overload
def open(  # noqa: A001 - as `wbkv.open` it cannot be mistaken
    path: str | os.PathLike[str] | None = None,
    *,
    partitions: int | None = None,
    durability: str | None = None,
    keep_history: str | None = None,
    timeout: float = 10.0,
    consistency: Consistency = "strict",
    history: History | None = None,
    trace: Trace | None = None,
) -> Client[bytes]: ...


@overload
def open(  # noqa: A001 - as `wbkv.open` it cannot be mistaken
    path: str | os.PathLike[str] | None = None,
    *,
    partitions: int | None = None,
    durability: str | None = None,
    keep_history: str | None = None,
    timeout: float = 10.0,
    codec: Codecs[V],
    consistency: Consistency = "strict",
    history: History | None = None,
    trace: Trace | None = None,
) -> Client[V]: ...


def open(  # noqa: A001 - as `wbkv.open` it cannot be mistaken
    path: str | os.PathLike[str] | None = None,
    *,
    partitions: int | None = None,
    durability: str | None = None,
    keep_history: str | None = None,
    timeout: float = 10.0,
    codec: Codecs[Any] = BYTES,
    consistency: Consistency = "strict",
    history: History | None = None,
    trace: Trace | None = None,
) -> Client[Any]:
    """Open an embedded store: all partitions in this process, no network, the same calls and guarantees.

    Without a path the store is temporary: closing it removes the data. `keep_history` is how long earlier
    versions and changes stay readable, such as "12h", "7d" or "forever"; a new store keeps a day. Arguments
    left as None keep the stored value, or the default for a new store. Needs `wbkv[server]`.
    """
    calls = Calls(Router(("embedded",), SYSTEM), timeout, trace)
    requests = requests_of(calls, codec, consistency, history)

    link = EmbeddedLink.opened(path, partitions, durability, keep_history)
    run(link, calls.connect(0.0))
    return Client(link, requests)
