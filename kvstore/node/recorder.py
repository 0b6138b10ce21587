"""What a node delivers, written to a file while it runs: evidence for checkers that look at whole runs.

Each run of a node has a file of its own, `deliveries-NODE-START-RANDOM.jsonl`, with a line of JSON for each
delivery of each of its replicas. `pipeline/wbkv_pipeline/traces.py` says what the lines have.

Lines are written in large pieces, twice a second, and before the node's state is committed: so the next run
begins nowhere above what this one has written, and no delivery is missing between them, however this one
ends. The operating system has them then; that the disk has them nobody waits for. A file that cannot be
written must not harm the node: recording ends, the log says why, and so does the last line, if there is room
for it. Only the last line can be torn, by a crash.
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
from kvstore.machine.commands import is_own
from multicast.membership import MEMBERSHIP
from multicast.messages import Delivery
from multicast.types import Destinations, GroupId, Timestamp

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
"""How much may wait to be written."""


class _Head(msgspec.Struct, array_like=True, gc=False):
    """How a request begins. The rest of it is passed over."""

    client: int
    sequence: int


_head: Final = msgspec.msgpack.Decoder(_Head).decode


class _Lines:
    """One group's."""

    __slots__ = ("message", "other", "position")

    def __init__(self, run: str, node: NodeId, group: GroupId) -> None:
        shared = f'{{"run":{json.dumps(run)},"node":{json.dumps(node)},"group":{group},"kind":'
        self.message = f'{shared}"message","position":'
        self.other = shared
        self.position = 0


class DeliveryRecorder:
    """The file of one run."""

    def __init__(self, folder: Path, node: NodeId, *, requests: bool) -> None:
        """Make the file, in a folder that is made if need be. `requests`: messages carry a store's requests.

        Raises `OSError`.
        """
        began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.run = f"{node}-{began}-{secrets.token_hex(4)}"
        self._node = node
        self._requests = requests
        self._groups: dict[GroupId, _Lines] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"deliveries-{self.run}.jsonl"
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._waiting: list[str] = []
        self._size = 0
        """Of what waits, in characters, which are bytes here."""
        self._whole = 0
        """How much of the file is whole lines."""
        self._open = True

    # What happens

    def began(self, group: GroupId, position: Timestamp) -> None:
        """A replica has started, with everything up to this position."""
        self._groups[group] = _Lines(self.run, self._node, group)
        self._mark("begin", group, position)

    def jumped(self, group: GroupId, position: Timestamp) -> None:
        """A replica has taken over the state of another, which is at this position."""
        self._mark("jump", group, position)

    def _mark(self, kind: str, group: GroupId, position: Timestamp) -> None:
        lines = self._groups[group]
        lines.position += 1
        self._add(f'{lines.other}"{kind}","position":{lines.position},"gts":{position}}}\n')

    def delivered(self, group: GroupId, deliveries: Sequence[Delivery]) -> None:
        """A replica's next deliveries."""
        if not self._open:
            return
        lines = self._groups[group]
        begin, position = lines.message, lines.position
        found = []
        for mid, dest, payload, _, _, gts, _, _ in deliveries:
            position += 1
            origin, number, digest = mid
            whose = self._whose(origin, payload)
            found.append(
                f'{begin}{position},"gts":{gts},"origin":{_signed(origin)},"number":{number},'
                f'"digest":{_signed(digest)},"destinations":{_shown(dest)}{whose}}}\n'
            )
        lines.position = position
        self._add("".join(found))

    def _whose(self, origin: int, payload: bytes) -> str:
        """The client's id of the request: none if the gateway made it up, as it does for housekeeping."""
        if not self._requests or origin == MEMBERSHIP:
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
        """Write what is not written yet."""
        if not self._waiting:
            return
        data = "".join(self._waiting).encode()
        self._waiting.clear()
        self._size = 0
        try:
            self._write_lines(data)
        except OSError as error:
            logger.error("deliveries are not recorded any more: %s: %s", self.path, error)  # noqa: TRY400 - no trace explains more
            self._say_why(str(error))
            self._end()

    def close(self) -> None:
        """Write the rest."""
        if self._open:
            self.write()
            self._end()

    def _end(self) -> None:
        if self._open:
            self._open = False
            os.close(self._file)

    def _write_lines(self, data: bytes) -> None:
        """Write whole lines. If that fails, as many of them as possible are in the file, and no piece."""
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

    def _say_why(self, why: str) -> None:
        line = json.dumps({"run": self.run, "node": self._node, "kind": "stopped", "error": why})
        try:
            self._write_lines(line.encode() + b"\n")
        except OSError as error:
            logger.debug("%s cannot say why it ends: %s", self.path, error)


@functools.lru_cache(4096)
def _shown(dest: Destinations) -> str:
    """There are few sets of destinations, for many messages."""
    return json.dumps(dest)


def _signed(number: int) -> int:
    """As signed numbers of 64 bits, which readers have, instead of unsigned ones."""
    return number - (1 << 64) if number >> 63 else number
