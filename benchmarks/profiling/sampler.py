"""Count the CPU time of a process by layer, from inside it, at a cost of about one percent.

The kernel sends a signal for every few milliseconds of CPU time that the process has used. Python handles it
in the main thread, between two bytecodes, and the function that it interrupts gets the user time that this
thread has used since the last sample: so the samples of a window add up to the thread's user time. Time in C
belongs to the function that called it. System time and other threads are counted by the kernel.

If the interrupted function has not begun, the time is its caller's. What has no caller but the event loop is
C code between callbacks.
"""

from __future__ import annotations

import atexit
import dis
import os
import resource
import signal
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from benchmarks.profiling.dumps import dump_on_signal
from benchmarks.profiling.layers import LOOP, layer_of

PERIOD_S: Final = 0.001
"""Of CPU time. Kernels that count it by ticks send a signal with each tick at most, often every 4 ms."""
RESUME: Final = dis.opmap["RESUME"]
"""The first instruction of a function, and of a coroutine that goes on."""
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Sampler:
    """The samples of this process. It belongs to the main thread."""

    def __init__(self) -> None:
        self.user_s: defaultdict[str, float] = defaultdict(float)
        """User time of this thread, by layer."""
        self.functions: defaultdict[str, float] = defaultdict(float)
        """The same, by function: the innermost one that has a layer."""
        self._about: dict[CodeType, tuple[str | None, bytes]] = {}
        """By function: its layer, and its instructions."""
        self._last_s = 0.0

    def start(self) -> None:
        """Take samples from now on, to the end of the process."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.siginterrupt(signal.SIGPROF, False)  # noqa: FBT003 - system calls of other threads go on
        atexit.register(signal.setitimer, signal.ITIMER_PROF, 0.0)
        self._last_s = resource.getrusage(resource.RUSAGE_THREAD).ru_utime
        signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        now_s = resource.getrusage(resource.RUSAGE_THREAD).ru_utime
        spent_s, self._last_s = now_s - self._last_s, now_s
        layer, function = self.place(frame)
        self.user_s[layer] += spent_s
        self.functions[function] += spent_s

    def place(self, frame: FrameType | None) -> tuple[str, str]:
        """Return the layer and the function that were running when this frame was interrupted."""
        if frame is not None and self._has_not_begun(frame):
            frame = frame.f_back
        while frame is not None:
            layer, _ = self._look(frame.f_code)
            if layer is not None:
                code = frame.f_code
                return layer, f"{Path(code.co_filename).name}:{code.co_name}"
            frame = frame.f_back
        return LOOP, LOOP

    def _look(self, code: CodeType) -> tuple[str | None, bytes]:
        found = self._about.get(code)
        if found is None:
            found = self._about[code] = layer_of(code), code.co_code
        return found

    def _has_not_begun(self, frame: FrameType) -> bool:
        code = self._look(frame.f_code)[1]
        return 0 <= frame.f_lasti < len(code) and code[frame.f_lasti] == RESUME

    def found(self) -> dict[str, Any]:
        """Return all samples so far, and the kernel's figures: user and system time by thread."""
        main = resource.getrusage(resource.RUSAGE_THREAD)
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        me = threading.get_native_id()
        others = {}
        for path in Path("/proc/self/task").iterdir():
            tid = int(path.name)
            if tid != me:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                times = int(fields[11]) / TICKS, int(fields[12]) / TICKS
                others[path.name] = (names.get(tid, "C"), *times)
        return {
            "user_s": dict(self.user_s),
            "functions": dict(self.functions),
            "main": (main.ru_utime, main.ru_stime),
            "threads": others,
        }


def watch(folder: Path) -> None:
    """Take samples of this process, and write them into the folder on request."""
    sampler = Sampler()
    sampler.start()
    dump_on_signal(folder, sampler.found)
