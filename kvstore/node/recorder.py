"""Record the deliveries of a running node in a file: evidence for checkers of whole runs.

Each run of a node has a file of its own, `deliveries-NODE-START-RANDOM.jsonl`, with a line of JSON for each
delivery of each of its replicas. `pipeline/wbkv_pipeline/traces.py` describes the lines.

The recorder writes in large pieces, twice a second, and before the node's state is committed: so the next run
begins at or below the end of this file, and no delivery is missing between them, however this run ends. It
does not wait for the disk, only for the operating system. A write error must not harm the node: recording
ends, and the log gives the reason, as does the last line if it fits. Only a crash tears the last line.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from kvstore.config.addresses import NodeId
from kvstore.config.private import make_private, open_private
from kvstore.machine.commands import is_own
from multicast.messages import Delivery
from multicast.quorum_time import OWN_CLIENTS
from multicast.types import Destinations, GroupId, Timestamp

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
"""Size of buffered lines that triggers a write."""


class _Head(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a request; decoding skips the rest."""

    client: int
    sequence: int


_head: Final = msgspec.msgpack.Decoder(_Head).decode


class _Lines:
    """The line prefixes and the last line number of one group."""

    __slots__ = ("message", "other", "position")

    def __init__(self, run: str, node: NodeId, group: GroupId) -> None:
        shared = f'{{"run":{json.dumps(run)},"node":{json.dumps(node)},"group":{group},"kind":'
        self.message = f'{shared}"message","position":'
        self.other = shared
        self.position = 0


class DeliveryRecorder:
    """The recorder of one run, with a file of its own."""

    def __init__(self, folder: Path, node: NodeId, *, requests: bool) -> None:
        """Create the file, and its folder if need be. `requests`: messages carry requests of a store.

        Raises `OSError`.
        """
        began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.run = f"{node}-{began}-{secrets.token_hex(4)}"
        self._node = node
        self._requests = requests
        self._groups: dict[GroupId, _Lines] = {}
        make_private(folder)
        self.path = folder / f"deliveries-{self.run}.jsonl"
        self._file = open_private(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._waiting: list[str] = []
        self._size = 0
        """Size of the buffered lines in characters; all are ASCII, so also in bytes."""
        self._whole = 0
        """Size of the whole lines in the file, in bytes."""
        self._open = True

    # Events

    def began(self, group: GroupId, position: Timestamp) -> None:
        """Record that a replica has started, with everything up to this position."""
        self._groups[group] = _Lines(self.run, self._node, group)
        self._mark("begin", group, position)

    def jumped(self, group: GroupId, position: Timestamp) -> None:
        """Record that a replica has installed a snapshot, which is at this position."""
        self._mark("jump", group, position)

    def _mark(self, kind: str, group: GroupId, position: Timestamp) -> None:
        lines = self._groups[group]
        lines.position += 1
        self._add(f'{lines.other}"{kind}","position":{lines.position},"gts":{position}}}\n')

    def delivered(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """Record a replica's next deliveries."""
        if not self._open:
            return
        lines = self._groups[group]
        begin, position = lines.message, lines.position
        found = []
        for mid, dest, payload, _, _, gts, _, _ in deliveries:
            position += 1
            origin, number, digest = mid
            client = self._client_fields(origin, payload)
            found.append(
                f'{begin}{position},"gts":{gts},"origin":{_signed(origin)},"number":{number},'
                f'"digest":{_signed(digest)},"destinations":{_shown(dest)}{client}}}\n'
            )
        lines.position = position
        self._add("".join(found))

    def _client_fields(self, origin: int, payload: bytes) -> str:
        """Return the client's id and sequence; nothing for the gateway's own housekeeping requests."""
        if not self._requests or origin in OWN_CLIENTS:
            return ""
        try:
            head = _head(payload)
        except (msgspec.DecodeError, RecursionError):
            return ""
        if is_own(origin, head.client):
            return ""
        return f',"client":{head.client},"sequence":{head.sequence}'

    def _add(self, text: str) -> None:
        if self._open:
            self._waiting.append(text)
            self._size += len(text)
            if self._size >= PIECE_BYTES:
                self.write()

    # The file

    def write(self) -> None:
        """Write the buffered lines."""
        if not self._waiting:
            return
        data = "".join(self._waiting).encode()
        self._waiting.clear()
        self._size = 0
        try:
            self._write_lines(data)
        except OSError as error:
            logger.error("stopped recording deliveries in %s: %s", self.path, error)  # noqa: TRY400 - no trace explains more
            self._write_reason(str(error))
            self._end()

    def close(self) -> None:
        """Write the buffered lines, and close the file."""
        if self._open:
            self.write()
            self._end()

    def _end(self) -> None:
        if self._open:
            self._open = False
            os.close(self._file)

    def _write_lines(self, data: bytes) -> None:
        """Write whole lines. After an error, the file has as many of them as possible, and no torn one."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:] if written else data)
        except OSError:
            self._whole += data.rfind(b"\n", 0, written) + 1
            os.ftruncate(self._file, self._whole)
            os.lseek(self._file, self._whole, os.SEEK_SET)
            raise
        self._whole += written

    def _write_reason(self, reason: str) -> None:
        line = json.dumps({"run": self.run, "node": self._node, "kind": "stopped", "error": reason})
        try:
            self._write_lines(line.encode() + b"\n")
        except OSError as error:
            logger.debug("cannot write to %s why it ends: %s", self.path, error)


@functools.lru_cache(4096)
def _shown(dest: Destinations) -> str:
    """Return the destinations as JSON; cached, for few sets of them occur in many messages."""
    return json.dumps(dest)


def _signed(number: int) -> int:
    """Return an unsigned number of 64 bits as a signed one, which readers of traces use."""
    return number - (1 << 64) if number >> 63 else number
