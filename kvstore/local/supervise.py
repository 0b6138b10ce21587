"""Supervise processes: start them, restart them, and end them with their parent."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from kvstore.config.addresses import NodeId
from kvstore.config.private import open_private

BACK_OFF_S, BACK_OFF_MAX_S = 0.5, 10.0
TAIL_LINES: Final = 10

LOG_BYTES: Final = 8 << 20
"""Size at which a log is rotated. One rotated log is kept."""
LOOK_S: Final = 10.0
"""Interval between checks of the size."""

_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
"""Is not passed on to nodes: each start would compile every module that has no bytecode yet, in half of the
time that the start takes."""

_LAUNCH: Final = """
import ctypes, os, signal, sys
parent_death_signal = 1
ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process has already ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""The child's first code: die with the parent. (A `preexec_fn` is not safe beside threads.)"""


class ClusterError(Exception):
    """The state of the cluster or the machine does not permit an operation; the message says why."""


class Child:
    """A node's process, started, watched and restarted by a thread of its own.

    The thread ends after the process, never before: the kernel sends the parent-death signal when the thread
    that started a process ends, not when that thread's process ends.
    """

    def __init__(
        self,
        name: NodeId,
        command: Sequence[str],
        log: Path,
        keep: Callable[[], bool],
        report: Callable[[str], None],
    ) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._keep = keep
        self._report = report
        self._changing = threading.Lock()
        """Held to start, signal and reap: a signal must never go to a process id that was reused."""
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._began_at = 0
        """Offset in the log at which the current process's output begins."""

    @property
    def pid(self) -> int | None:
        """The id of the process; None if it does not run."""
        with self._changing:
            return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def over(self) -> bool:
        """Whether the process has ended, and is not restarted automatically."""
        return self._thread is not None and not self._thread.is_alive()

    def start(self) -> None:
        """Start the process. Raises `ClusterError` if that fails."""
        if self._thread is not None and self._thread.is_alive():
            raise ClusterError(f"{self.name} is already running")
        self._stopping = threading.Event()
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._watch, args=(started,), name=self.name, daemon=True)
        self._thread.start()
        started.result()

    def _watch(self, started: Future[None]) -> None:
        delay_s = 0.0
        while True:
            began = time.monotonic()
            try:
                with self._changing:
                    if self._stopping.is_set():
                        break
                    process = self._process = self._spawn()
            except (OSError, ValueError) as error:
                what = f"cannot start {self.name}: {error}"
                if not started.done():
                    started.set_exception(ClusterError(what))
                    break
            else:
                if not started.done():
                    started.set_result(None)
                self._attend(process.pid)
                with self._changing:
                    self._signal(signal.SIGKILL)  # to the processes that it has started
                    process.wait()
                what = self.obituary()
            if self._stopping.is_set() or not self._keep():
                break
            delay_s = back_off(delay_s, time.monotonic() - began)
            self._report(f"{what}\nstarting {self.name} again in {delay_s:g} s")
            if self._stopping.wait(delay_s):
                break
        if not started.done():
            started.set_result(None)  # `stop` came before the start

    def _attend(self, pid: int) -> None:
        """Wait until the process has ended, without reaping it, so that its id is not reused."""
        with process_of(pid) as process:
            while not has_ended(process, LOOK_S):
                if rotate(self._log, self._report):
                    self._began_at = 0

    def _spawn(self) -> subprocess.Popen[bytes]:
        launch: list[str] = []
        if sys.platform == "linux":
            launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())]
        with open(open_private(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
            self._began_at = log.tell()
            return subprocess.Popen(  # noqa: S603 - our own command
                [*launch, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in os.environ.items() if name != _NO_BYTECODE},
                process_group=0,  # Ctrl-C is for the supervisor alone
            )

    def _signal(self, number: signal.Signals) -> None:
        """Signal the process and all processes that it has started."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        with self._changing:
            self._signal(number)

    def stop(self, number: signal.Signals) -> None:
        """End the process by this signal, and do not restart it."""
        with self._changing:
            self._stopping.set()
            self._signal(number)
            self._signal(signal.SIGCONT)  # it may be paused

    def wait(self, timeout_s: float) -> bool:
        """Wait for the final end of the process; return whether it has ended."""
        if self._thread is not None:
            self._thread.join(max(timeout_s, 0.0))
        return self._thread is None or not self._thread.is_alive()

    def obituary(self) -> str:
        """Return how the process ended, with the last lines of its log."""
        code = self._process.returncode if self._process is not None else 0
        if code >= 0:
            return f"{self.name} ended with status {code}{self.tail()}"
        return f"{self.name} was killed by signal {-code} ({signal.strsignal(-code)}){self.tail()}"

    def tail(self) -> str:
        """Return the last lines of the log, for the end of a message."""
        try:
            with self._log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._began_at, size - 8192))
                lines = log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        except OSError as error:
            return f"; its log cannot be read: {error}"
        if not lines:
            return f"; it wrote nothing to {self._log}"
        return "\n".join([f"; the end of {self._log}:", *(f"  {line}" for line in lines)])


def back_off(delay_s: float, lived_s: float) -> float:
    """Return the delay before the next start: longer each time, unless the process ran for a while."""
    if lived_s > BACK_OFF_MAX_S or not delay_s:
        return BACK_OFF_S
    return min(2 * delay_s, BACK_OFF_MAX_S)


def rotate(log: Path, report: Callable[[str], None]) -> bool:
    """Rotate a log above LOG_BYTES, which replaces the one rotated before; return whether it did.

    The process appends, and continues at the new end. A line written at this moment may be lost.
    """
    try:
        if not log.exists() or log.stat().st_size <= LOG_BYTES:
            return False
        rotated = log.with_name(f"{log.name}.1")
        os.close(open_private(rotated, os.O_WRONLY | os.O_CREAT))
        shutil.copyfile(log, rotated)
        os.truncate(log, 0)
    except OSError as error:  # e.g. a full disk, which must not end a node
        report(f"cannot rotate {log}: {error}")
        return False
    return True


@contextlib.contextmanager
def process_of(pid: int) -> Iterator[int]:
    """Yield a descriptor of the process; unlike its id, it is never reused."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def has_ended(process: int, timeout_s: float) -> bool:
    """Return whether the process of this descriptor ends within `timeout_s`."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
