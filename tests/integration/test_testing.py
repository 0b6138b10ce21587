"""`wbkv.testing`: clusters in one line."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import wbkv
from wbkv.links import embedded


def children() -> set[int]:
    """Processes that this one has started, and that have not ended."""
    own = os.getpid()
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has just ended
        if int(parent) == own and state != "Z":
            found.add(int(entry.name))
    return found


def test_a_cluster_in_one_line() -> None:
    before = children()
    with wbkv.testing.cluster(nodes=1, partitions=2) as found:
        client = found.using(wbkv.codecs.TEXT)
        client.put("x", "1")
        assert client.get_many(["x", "y"]) == ["1", None]
        assert len(client.topology().partitions) == 2
        assert len(children() - before) == 1
    assert children() <= before


def test_a_cluster_and_its_client_are_traced(tmp_path: Path) -> None:
    with wbkv.testing.cluster(nodes=1, partitions=2, trace=tmp_path / "traces") as client:
        revision = client.put("x", b"1")

    async def task() -> int:
        async with wbkv.testing.aio_cluster(nodes=1, partitions=1, trace=tmp_path / "traces") as client:
            return await client.put("x", b"1")

    revisions = {revision, asyncio.run(task())}
    asked: set[tuple[int, int]] = set()
    for kind, name in (("requests", "revision"), ("deliveries", "gts")):
        files = list((tmp_path / "traces").glob(f"{kind}-*.jsonl"))
        assert len(files) == 2
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        found = {(line["client"], line["sequence"]): line[name] for line in lines if "client" in line}
        asked = asked or set(found)  # a first id whose deadline was too early, in a new cluster, is not named
        assert {found[each] for each in asked} == revisions


def test_nodes_fail_and_come_back() -> None:
    before = children()
    with wbkv.testing.running_cluster(nodes=3, partitions=1) as running:
        assert running.nodes == ["n1", "n2", "n3"]
        assert len(running.addresses) == 3
        with running.connect(timeout=30) as client:
            client.put("x", b"1")
            until = time.monotonic() + 30
            while (leader := client.topology().partitions[0].leader) is None:
                assert time.monotonic() < until, "a node that started last hears of the leader soon"
            running.kill(leader)
            assert len(children() - before) == 2
            assert client.get("x") == b"1"
            client.put("x", b"2")
            running.start(leader)
            other = next(node for node in running.nodes if node != leader)
            running.stop(other)  # without the first, that would leave no quorum
            assert client.get("x") == b"2"
            for wrong in ((), ("n4",)):
                with pytest.raises(ValueError, match="n1, n2, n3"):
                    running.kill(*wrong)
        raised = RuntimeError("a test that fails")
        with pytest.raises(RuntimeError) as found, running.connect() as client:
            raise raised
        assert found.value is raised
    assert children() <= before


def test_a_cluster_in_an_event_loop() -> None:
    before = children()

    async def use() -> None:
        async with wbkv.testing.aio_cluster(nodes=1, partitions=1) as client:
            await client.put("x", b"1")
            assert await client.get("x") == b"1"

    async def give_up() -> None:
        async with wbkv.testing.aio_cluster(nodes=1, partitions=1):
            raise AssertionError("it should have been cancelled")

    async def cancel() -> None:
        task = asyncio.ensure_future(give_up())
        while not children() - before:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())
    asyncio.run(cancel())
    assert children() <= before


def test_what_cannot_be_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(wbkv.InvalidRequest, match="nodes"), wbkv.testing.cluster(nodes=0):
        pass
    (tmp_path / "something").write_text("else")
    with pytest.raises(wbkv.Error, match=str(tmp_path)), wbkv.testing.cluster(nodes=1, data=tmp_path):
        pass

    def nothing(**_: Any) -> list[Any]:
        return []

    embedded.backend.cache_clear()
    monkeypatch.setattr(importlib.metadata, "entry_points", nothing)
    with pytest.raises(wbkv.Error, match=r"wbkv\[server\]"), wbkv.testing.cluster():
        pass
    embedded.backend.cache_clear()
