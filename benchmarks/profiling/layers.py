"""Layers of a process: which of them a function belongs to, by its file and its name."""

from __future__ import annotations

import re
from types import CodeType
from typing import Final

LOOP: Final = "event loop, gRPC in C"
"""Code without a Python frame, between callbacks of the event loop: uvloop's, and gRPC's on that thread."""
GRPC_THREADS: Final = "gRPC threads"
DISK_THREADS: Final = "disk threads"
KERNEL: Final = "kernel"
IDLE: Final = "idle"
WATCHING: Final = "watching"
"""What a process does because it is watched. It is in no table."""

_RULES: Final[tuple[tuple[str, str], ...]] = (
    # Answers: what follows the gate, on the replica and on the gateway.
    ("reply", r"kvstore/store/partition\.py:(_send_answers|_send_results|_answer)$"),
    ("reply", r"kvstore/store/gateway\.py:(_take_results|_finish|_outcome|_answered|tell)$"),
    ("reply", r"kvstore/machine/(merge|results)\.py:"),
    ("reply", r"kvstore/machine/codec\.py:encode_result$"),
    ("conversions", r"kvstore/api/(convert|kv|columns|bounds|width|changes)\.py:"),
    ("conversions", r"/wbkv_proto/|/google/protobuf/"),
    ("gRPC edge", r"kvstore/(api|http2)/|/hpack/|/grpc/"),
    ("gate", r"kvstore/store/(gate|dependencies|group_clocks)\.py:"),
    ("execution", r"kvstore/store/(partition|application|share|reads)\.py:"),
    ("gateway", r"kvstore/store/|/multicast/(client|numbering)\.py:"),
    ("execution", r"kvstore/machine/"),
    ("frames", r"kvstore/wire/"),
    ("turns", r"kvstore/node/|kvstore/server/"),
    ("ordering", r"/multicast/"),
    ("log", r"kvstore/storage/(log|records|disk)\.py:"),
    ("", r"kvstore/storage/(environment|checksum|keys|space)\.py:"),  # of the log, or of the state
    ("execution", r"kvstore/storage/"),
    ("client", r"/clients/wbkv/|/site-packages/wbkv/"),
    (WATCHING, r"/benchmarks/profiling/"),
    ("", r"/benchmarks/comparison/client\.py:main$"),  # below everything
    ("load generator", r"/benchmarks/"),
)
"""In order: a layer, and a pattern of file and function. A function without a layer belongs to its caller."""

_COMPILED: Final = [(layer, re.compile(pattern)) for layer, pattern in _RULES]

LAYERS: Final = (
    "load generator", "client", "gRPC edge", LOOP, GRPC_THREADS, "conversions", "gateway", "frames", "turns",
    "ordering", "log", DISK_THREADS, "execution", "gate", "reply", KERNEL, IDLE,
)  # fmt: skip
"""All layers, on the way of a transaction."""


def layer_of(code: CodeType) -> str | None:
    """Return the layer of a function; None if it belongs to its caller's."""
    name = f"{code.co_filename}:{code.co_name}"
    return next((layer for layer, pattern in _COMPILED if pattern.search(name)), None) or None


def thread_layer(name: str) -> str:
    """Return the layer of a thread that is not the event loop's, by its name."""
    return DISK_THREADS if name.startswith("commit ") else GRPC_THREADS
