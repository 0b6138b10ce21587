"""Wait until a node serves clients, by a strict read of all partitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import grpc
from wbkv_proto.v1 import kv_pb2 as kv
from wbkv_proto.v1.kv_pb2_grpc import KVStub

ATTEMPT_S: Final = 1.0
AGAIN_S: Final = 0.05

_EVERYWHERE: Final = kv.TxnRequest(
    then=[kv.Operation(scan=kv.Scan(range=kv.Range(prefix=b""), limit=1, shape=kv.KEYS))]
)
"""A read that every partition orders and its leader executes."""


class NotServing(Exception):
    """A node does not serve clients at the deadline."""


def wait_serving(address: str, deadline: float, pause: Callable[[float], bool]) -> bool:
    """Wait until the node at this address has answered; return False if `pause` returns True.

    Raises `NotServing` at the deadline, a time of `time.monotonic`.
    """
    with grpc.insecure_channel(address) as channel:
        stub = KVStub(channel)  # type: ignore[no-untyped-call]  # generated
        while True:
            try:
                stub.Txn(_EVERYWHERE, timeout=ATTEMPT_S, wait_for_ready=True)
            except grpc.RpcError as error:
                if time.monotonic() > deadline:
                    raise NotServing(f"{error.code().name}, {error.details()}") from error
            else:
                return True
            if pause(AGAIN_S):
                return False
