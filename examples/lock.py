"""A lock with fencing: one worker at a time edits a report, and who comes too late changes nothing.

A lock alone cannot promise that. Its holder may stall (a long pause, a slow network) until the lock is
another's, and then go on as if nothing had happened. Two things help. In the store, `held.holds()` is a
condition of the write itself, judged where the write is ordered. Outside of it, `held.token` goes along with
every request: it rises with each holder, and whoever gets the requests refuses those of earlier ones.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import wbkv

LOCK, REPORT = "lock/report", "lock/lines"
WORKERS, EDITS = 3, 4


class Printer:
    """Something outside the store. It takes nothing from who has been replaced."""

    def __init__(self) -> None:
        self.highest = 0
        self.pages: list[str] = []

    def print_page(self, token: int, text: str) -> bool:
        """Print, unless somebody with a higher token has printed before."""
        if token < self.highest:
            return False
        self.highest = token
        self.pages.append(text)
        return True


def edit(client: wbkv.Client[Any], name: str, printer: Printer) -> None:
    """Change the report by reading and writing it, as only who is alone may do."""
    for _ in range(EDITS):
        with client.lock(LOCK) as held:
            lines = client.get(REPORT) or []
            done = client.txn().when(held.holds()).then(wbkv.put(REPORT, [*lines, name])).commit()
            assert done.succeeded, "the lock was lost while we held it"
            assert printer.print_page(held.token, name)


def main(client: wbkv.Client[Any]) -> None:
    """Let some workers edit the report in turns, and one come too late."""
    client.delete(wbkv.prefix("lock/"))
    printer = Printer()

    # This one takes the lock, and loses it without knowing: here by force, else by being away for too long.
    late = client.lock(LOCK)
    assert late.acquire()
    client.delete(LOCK)

    with ThreadPoolExecutor() as threads:
        names = [f"worker {number}" for number in range(WORKERS)]
        list(threads.map(lambda name: edit(client, name, printer), names))

    lines = client.get(REPORT) or []
    assert sorted(lines) == sorted(names * EDITS), f"two were at it at once: {lines}"
    assert lines == printer.pages, "the printer has seen another order than the store"
    print(f"{len(lines)} edits, one after the other, with tokens up to {printer.highest}")

    its_edit = client.txn().when(late.holds()).then(wbkv.put(REPORT, ["everything lost"]))
    assert not its_edit.commit().succeeded, "an edit without the lock"
    assert not printer.print_page(late.token, "everything lost"), "a page without the lock"
    assert client.get(REPORT) == lines
    print(f"the one that came too late, with token {late.token}: refused by the store, and by the printer")
    try:
        late.release()
    except wbkv.LockLost as error:
        print(error)


if __name__ == "__main__":
    start = wbkv.open if sys.argv[1:] == ["--embedded"] else wbkv.connect
    with start(codec=wbkv.codecs.JSON) as store:
        main(store)
