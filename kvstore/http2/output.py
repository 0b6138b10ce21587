"""What a connection has to send: frames that gather for one write, and data within the client's windows.

Data beyond the windows, or beyond what one write should hold, stay with their streams, which take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from kvstore.http2.errors import ConnectionFault, ErrorCode
from kvstore.http2.frames import FRAME_BYTES, WINDOW, WINDOW_MAX
from kvstore.http2.patience import Patience

CHUNK: Final = 32 << 10
"""Bytes of a response in one frame, if the client takes such."""
OUTPUT_BYTES: Final = 64 << 10
"""Of responses that gather for one write; what is more waits where it is reserved for."""


class Sender(Protocol):
    """A stream with something to send."""

    def send_chunk(self, most: int) -> None:
        """Send the next part of it, as many bytes at most."""


class Output:
    """The output of one connection. `wake` is called when there is some, once until it was taken."""

    def __init__(self, wake: Callable[[], None], patience: Patience) -> None:
        self._wake = wake
        self._patience = patience
        self._awake = False
        self._frames: list[bytes | memoryview] = []
        self._size = 0
        """Bytes of data among them."""
        self._queue: deque[Sender] = deque()
        """Streams with something to send, and a window for it, in turns."""
        self._window = WINDOW
        """Bytes that the client takes on all streams together."""
        self._chunk = FRAME_BYTES
        self.paused = False
        """Whether the transport takes no more data."""

    def put(self, frame: bytes) -> None:
        """Send a frame that is not data."""
        self._frames.append(frame)
        if not self._awake:
            self._awake = True
            self._wake()

    def direct(self) -> int:
        """Return how many bytes of data may be put at once, in one frame."""
        if self.paused or self._queue or self._size >= OUTPUT_BYTES:
            return 0
        return min(self._window, self._chunk)

    def put_data(self, first: bytes, data: bytes | memoryview, last: bytes, size: int) -> None:
        """Send data that take so much of the window, between the headers before and behind them."""
        frames = self._frames
        frames.append(first)
        frames.append(data)
        if last:
            frames.append(last)
        self._size += size
        self._window -= size
        self._patience.worked += 1 + (size >> 12)
        if not self._awake:
            self._awake = True
            self._wake()

    def queue(self, stream: Sender) -> None:
        """Let a stream send something, in its turn."""
        self._queue.append(stream)
        self._go_on()

    def take(self) -> bytes:
        """Take what is to be sent now."""
        queue = self._queue
        while queue and self._window > 0 and self._size < OUTPUT_BYTES and not self.paused:
            queue.popleft().send_chunk(min(self._chunk, self._window))
        found = b"".join(self._frames)
        self._frames.clear()
        self._size = 0
        self._awake = False
        if self._window > 0 and not self.paused:
            self._go_on()
        return found

    def clear(self) -> None:
        """Send no more data: the connection ends."""
        self._queue.clear()

    def resume(self) -> None:
        """The transport takes more."""
        self.paused = False
        self._go_on()

    def widen(self, more: int) -> None:
        """The client takes more. Raises `ConnectionFault` if that is more than there can be."""
        self._window += more
        if self._window > WINDOW_MAX:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31 - 1")
        self._go_on()

    def set_frame_size(self, size: int) -> None:
        """The client takes frames of this size."""
        if not FRAME_BYTES <= size < 1 << 24:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frames of {size} bytes at most")
        self._chunk = min(size, CHUNK)

    def _go_on(self) -> None:
        if self._queue and not self._awake:
            self._awake = True
            self._wake()
