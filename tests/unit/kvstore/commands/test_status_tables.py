"""What `wbkv status --data` says of files and history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvstore.commands.cluster import _tables
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.local.status import merge


def answer(node: str, leads: int, files: Any, history: Any) -> dict[str, Any]:
    groups = {
        str(group): {
            "status": "leader" if group == leads else "follower", "ballot": 1, "leader": "n1", "clock": 7,
            "delivered": 9, "entries": 0, "store_bytes": 5, "history": history,
        }
        for group in range(2)
    }  # fmt: skip
    disk = {"space": "enough", "free_bytes": 1, "scrub": None, "files": files}
    return {"id": node, "pid": 1, "address": "a", "groups": groups, "disk": disk}


def test_files_and_history_have_tables(tmp_path: Path) -> None:
    config = Config.local(2, 2, 1, tmp_path, groups=[["n1"], ["n2"]])
    state, log = {"used": 10, "free": 20, "file": 30}, {"used": 1, "free": 2, "file": 3}
    kept = {
        "keep": "1d", "keep_bytes": None, "floor": 1024, "floor_time": "2026-01-02T00:00:00Z",
        "oldest_pin": {"name": "nightly", "revision": 1024, "time": "2026-01-01T12:00:00Z", "until": "x"},
        "held_by": "nightly", "dropping": False,
    }  # fmt: skip
    new = {**kept, "floor": 0, "floor_time": None, "oldest_pin": None, "held_by": None, "keep": "forever"}
    found = merge(
        config,
        {
            NodeId("n1"): answer("n1", 0, {"state": state, "log": log}, kept),
            NodeId("n2"): answer("n2", 1, {}, new),
        },
    )
    text = "\n".join(_tables(config, found))
    assert (
        "NODE  STATE  FREE  FILE  LOG  FREE  FILE\n"
        "n1    10     20    30    1    2     3\n"
        "\n"
        "GROUP  KEEP     HISTORY SINCE         REVISION  OLDEST SNAPSHOT                 HELD BY\n"
        "0      1d       2026-01-02T00:00:00Z  1024      nightly (2026-01-01T12:00:00Z)  nightly\n"
        "1      forever  the beginning         0         -                               -"
    ) in text
    assert found["nodes"][0]["files"] == {"state": state, "log": log}
    assert found["groups"][0]["replicas"][0]["history"] == kept


def test_nodes_that_say_nothing_of_it_have_none(tmp_path: Path) -> None:
    config = Config.local(1, 1, 1, tmp_path)
    old = {"id": "n1", "pid": 1, "address": "a", "groups": {}}
    text = "\n".join(_tables(config, merge(config, {NodeId("n1"): old})))
    assert "STATE" not in text
    assert "KEEP" not in text
