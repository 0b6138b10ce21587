"""A lock with fencing: one worker at a time edits a report, and a stale holder changes nothing.

A lock alone cannot ensure that. Its holder may stall (a long pause, a slow network) until another worker has
the lock, and then continue. Two things help. In the store, `held.holds()` is a condition of the write itself,
evaluated where the write is ordered. Outside of the store, every request carries `held.token`, which rises
with each holder, and the receiver rejects requests with a lower token than it has seen.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import wbkv

LOCK, REPORT = "lock/report", "lock/lines"
WORKERS, EDITS = 3, 4


class Printer:
    """A device outside of the store. It rejects stale holders."""

    def __init__(self) -> None:
        self.highest = 0
        self.pages: list[str] = []

    def print_page(self, token: int, text: str) -> bool:
        """Print, unless a holder with a higher token has printed before."""
        if token < self.highest:
            return False
        self.highest = token
        self.pages.append(text)
        return True


def edit(client: wbkv.Client[Any], name: str, printer: Printer) -> None:
    """Change the report by reading and writing it, which only the holder of the lock may do."""
    for _ in range(EDITS):
        with client.lock(LOCK) as held:
            lines = client.get(REPORT) or []
            done = client.txn().when(held.holds()).then(wbkv.put(REPORT, [*lines, name])).commit()
            assert done.succeeded, "the lock was lost while we held it"
            assert printer.print_page(held.token, name)


def main(client: wbkv.Client[Any]) -> None:
    """Run workers that edit the report in turns, and a stale holder."""
    client.delete(wbkv.prefix("lock/"))
    printer = Printer()

    # This worker loses the lock unknowingly: here by force, in practice by stalling for too long.
    late = client.lock(LOCK)
    assert late.acquire()
    client.delete(LOCK)

    with ThreadPoolExecutor() as threads:
        names = [f"worker {number}" for number in range(WORKERS)]
        list(threads.map(lambda name: edit(client, name, printer), names))

    lines = client.get(REPORT) or []
    assert sorted(lines) == sorted(names * EDITS), f"two workers edited at once: {lines}"
    assert lines == printer.pages, "the printer has seen another order than the store"
    print(f"{len(lines)} edits, one after the other, with tokens up to {printer.highest}")

    its_edit = client.txn().when(late.holds()).then(wbkv.put(REPORT, ["everything lost"]))
    assert not its_edit.commit().succeeded, "an edit without the lock"
    assert not printer.print_page(late.token, "everything lost"), "a page without the lock"
    assert client.get(REPORT) == lines
    print(f"the stale holder with token {late.token}: rejected by the store, and by the printer")
    try:
        late.release()
    except wbkv.LockLost as error:
        print(error)


if __name__ == "__main__":
    start = wbkv.open if sys.argv[1:] == ["--embedded"] else wbkv.connect
    with start(codec=wbkv.codecs.JSON) as store:
        main(store)
