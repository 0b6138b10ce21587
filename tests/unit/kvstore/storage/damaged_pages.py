"""Open a state with random damage in its pages, and read it all, by seed.

Run as a process: LMDB may end it.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

from kvstore import storage
from kvstore.storage import scrub
from kvstore.storage.errors import StorageError
from kvstore.storage.identity import Identity
from multicast.types import GroupId
from tests.unit.kvstore.storage.disks import CLUSTER, G0, G1, NODE, StoreRig

ROWS = {f"row-{number:05}".encode(): f"value {number} " + "x" * (number % 50) for number in range(3000)}
ROWS |= {f"large-{number}".encode(): f"{number}" * 9000 for number in range(5)}
ROWS |= {b"long-" + b"k" * 700 + b"%d" % number: f"long {number}" for number in range(20)}


def fill(path: Path) -> None:
    """Make a disk whose state has branch, leaf and overflow pages, and some that are free."""
    storage.create(path, Identity.new(CLUSTER, NODE, "os", "store"))
    rig = StoreRig(path)
    for group in (G0, G1):
        for start in range(0, len(ROWS), 1000):
            for key, value in list(ROWS.items())[start : start + 1000]:
                rig.map(group=group).put(key, value)
            rig.flush(b"", group)
    rig.disk.close()


def damage(file: Path, rng: random.Random) -> str:
    """Change some bytes: anywhere in a page, in its header, or in its list of rows."""
    data = bytearray(file.read_bytes())
    pages = len(data) // 4096
    changes = []
    for _ in range(rng.choice((1, 1, 2, 8))):
        page = rng.randrange(2, pages)
        at = rng.choice((rng.randrange(4096), rng.randrange(16), rng.randrange(16, 64)))
        data[4096 * page + at] ^= 1 << rng.randrange(8)
        changes.append(f"{page}:{at}")
    if rng.random() < 0.2:
        page = rng.randrange(2, pages)
        data[4096 * page : 4096 * (page + 1)] = bytes((rng.choice((0, 0xFF)),)) * 4096
        changes.append(f"{page}:all")
    file.write_bytes(data)
    return " ".join(changes)


def outcome_of(path: Path) -> str:
    """Return what reading the disk ends in: "missing" if some read did not notice that rows are missing, be
    it that others did; it is wrong if the check of all rows does not notice it, either.
    """
    try:
        rig = StoreRig(path)
    except StorageError:
        return "refused"
    found = "right"
    try:
        for group in (G0, G1):
            for read in (_scan, _scan_back, _gets):
                try:
                    wrong = read(rig, group)
                    if wrong == "missing":
                        found = "missing"
                    elif wrong:
                        return f"WRONG: {wrong} in group {group}"
                except StorageError:
                    found = "noticed" if found != "missing" else found
    finally:
        try:
            rig.disk.close()
        except StorageError:
            found = "noticed" if found != "missing" else found
    if found == "missing" and not any(report.bad for report in scrub.walk(path / "state")):
        return "WRONG: rows are missing, and no check notices it"
    return found


def _scan(rig: StoreRig, group: GroupId) -> str:
    return _judge(list(rig.map(group=group).items(b"", None)))


def _scan_back(rig: StoreRig, group: GroupId) -> str:
    return _judge(list(rig.map(group=group).items(b"", None, reverse=True))[::-1])


def _judge(rows: list[tuple[bytes, str]]) -> str:
    if rows != sorted(rows) or any(ROWS.get(key) != value for key, value in rows):
        return "a row that is not there, or not so"
    return "" if len(rows) == len(ROWS) else "missing"


def _gets(rig: StoreRig, group: GroupId) -> str:
    """Every key by itself: one that cannot be read does not keep others from being read wrongly."""
    noticed: StorageError | None = None
    missing = ""
    for key, value in ROWS.items():
        try:
            found = rig.map(group=group).get(key)
            if found is None:
                missing = "missing"
            elif found != value:
                return f"another value of {key!r}"
        except StorageError as error:
            noticed = error
    if noticed is not None:
        raise noticed
    return missing


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(template: Path, work: Path, first: int, last: int) -> None:
    """Try these seeds, and print what each ends in."""
    for seed in range(first, last):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(template, work)
        what = damage(work / "state" / "data.mdb", random.Random(seed))
        say(f"{seed} begins: {what}")
        say(f"{seed} ends: {outcome_of(work)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
