"""Client processes: start them, let them begin together, collect their reports, and end them in any case."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from benchmarks.load.worker import READY, Begin, Report

COMMAND: Final = (sys.executable, "-P", "-c", "from benchmarks.load.worker import main; main()")
READY_S: Final = 60.0
GRACE_S: Final = 5.0
COMPLAINT_BYTES: Final = 2000

T = TypeVar("T")


class LoadError(Exception):
    """A client process failed, or did not answer in time."""


class Worker:
    """One client process."""

    def __init__(self, job: object, command: Sequence[str] = COMMAND) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.say(job)

    def _read(self) -> None:
        for line in self._output:
            self._lines.put(line)
        self._lines.put(b"")

    def say(self, what: object) -> None:
        """Send it a line. If it has ended, the next `hear` raises."""
        with contextlib.suppress(BrokenPipeError):
            self._input.write(msgspec.json.encode(what) + b"\n")
            self._input.flush()

    def hear(self, deadline: float) -> bytes:
        """Its next line. Raises `LoadError` if there is none, or none in time."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise LoadError(f"client process {self.pid} does not answer{self._complaint()}") from None
        if not line:
            status = self._process.wait()
            raise LoadError(f"client process {self.pid} has ended with {status}{self._complaint()}")
        return line

    def _complaint(self) -> str:
        size = self._errors.seek(0, 2)
        self._errors.seek(max(0, size - COMPLAINT_BYTES))
        text = self._errors.read().decode(errors="replace").strip()
        return f": {text}" if text else ""

    def close(self, grace_s: float = GRACE_S) -> None:
        """End it: close its input, and kill it if it does not end."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._output.close()
        self._errors.close()


@contextlib.contextmanager
def workers(
    jobs: Sequence[object], command: Sequence[str] = COMMAND, grace_s: float = GRACE_S
) -> Iterator[list[Worker]]:
    """A process for each job, connected and waiting to begin."""
    with contextlib.ExitStack() as stack:
        found = []
        for job in jobs:
            found.append(Worker(job, command))
            stack.callback(found[-1].close, grace_s)
        await_ready(found)
        yield found


def await_ready(found: Sequence[Worker]) -> None:
    """Wait until all of them have said that they are ready."""
    deadline = time.monotonic() + READY_S
    for worker in found:
        line = worker.hear(deadline)
        if line != READY:
            raise LoadError(f"client process {worker.pid} said {line!r:.200}")


def begin(found: Sequence[Worker], at: float) -> None:
    """Let all of them begin at the same moment."""
    moment = Begin(at, time.time() - time.monotonic())
    for worker in found:
        worker.say(moment)


def reports(found: Sequence[Worker], deadline: float) -> list[Report]:
    """What they have measured."""
    return [msgspec.json.decode(worker.hear(deadline), type=Report) for worker in found]
