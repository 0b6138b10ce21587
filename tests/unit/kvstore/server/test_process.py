"""Nodes that stop all at once, turns, and lost disks: the node returns with new replicas."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.local.cluster import free_ports
from kvstore.local.disk import create_disk
from kvstore.node.pace import COMPANY, FEW
from kvstore.server.process import Server
from kvstore.storage import identity
from multicast.errors import InvariantBroken
from multicast.types import ClientId, GroupId, ReplicaId

N1, SPARE = NodeId("n1"), NodeId("spare")
WAIT_S = 60.0
"""Nothing here takes long; this is when to give up."""


def test_nodes_that_stop_all_at_once_do_not_wait_for_each_other_to_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hands a group to another that stops as well. This is their only deadline."""
    monkeypatch.setattr("kvstore.server.process.HAND_OVER_S", 10 * WAIT_S)
    config = Config.local(3, 3, 3, tmp_path, ports=free_ports(3), durability="os")

    async def main() -> None:
        servers = [Server(config, node) for node in config.nodes]
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            running = [group.create_task(server.run()) for server in servers]
            while any(len(server.engine.node.leading()) != 1 for server in servers):
                await asyncio.sleep(0.01)
            for server in servers:
                server.engine.stopped.set()
        assert [task.result() for task in running] == [0, 0, 0]

    for node in config.nodes:
        create_disk(config, node)
    asyncio.run(main())


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.local(3, 2, 3, tmp_path, durability="os")


def replicas_of(config: Config, node: NodeId = N1) -> set[ReplicaId]:
    """The replicas of the node's disk, once it has started."""

    async def main() -> set[ReplicaId]:
        server = Server(config, node)
        try:
            return set(server.engine.node.replicas)
        finally:
            await asyncio.to_thread(server.engine.disk.close)

    return asyncio.run(main())


def first(config: Config) -> set[ReplicaId]:
    return {ReplicaId(GroupId(g), 0, config.incarnations[N1]) for g in (0, 1)}


def test_the_first_disk_has_the_members_that_the_groups_began_with(config: Config) -> None:
    create_disk(config, N1)
    assert replicas_of(config) == replicas_of(config) == first(config)


@pytest.mark.parametrize("empty", [False, True])
def test_without_its_disk_a_node_has_new_replicas_for_ever(config: Config, *, empty: bool) -> None:
    create_disk(config, N1)
    shutil.rmtree(config.data(N1))
    if empty:
        config.data(N1).mkdir()
    found = replicas_of(config)
    assert {(r.group, r.number) for r in found} == {(0, 0), (1, 0)}
    assert found.isdisjoint(first(config))
    assert replicas_of(config) == found


def test_a_disk_that_may_lack_promises_is_kept_but_not_used(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create_disk(config, N1)
    path = config.data(N1)

    async def crash() -> None:
        server = Server(config, N1)
        await asyncio.to_thread(shutil.copytree, path, path.with_name("copy"))
        await asyncio.to_thread(server.engine.disk.close)

    asyncio.run(crash())
    shutil.rmtree(path)
    path.with_name("copy").rename(path)
    monkeypatch.setattr("kvstore.storage.disk.boot_id", lambda: "after a reboot")
    found = replicas_of(config)
    assert found.isdisjoint(first(config))
    assert "may lack promises (kept as n1.lost-" in caplog.text
    (kept,) = path.parent.glob("n1.lost-*")
    assert identity.read_disk(kept)[0].incarnation == config.incarnations[N1]
    assert replicas_of(config) == found


def test_another_nodes_disk_is_refused_and_left_alone(config: Config) -> None:
    create_disk(config, NodeId("n2"))
    config.data(NodeId("n2")).rename(config.data(N1))
    with pytest.raises(storage.StorageError, match="n2"):
        replicas_of(config)
    assert not list(config.data(N1).parent.glob("*.lost-*"))


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(config: Config) -> None:
    config.data(N1).mkdir(parents=True)
    (config.data(N1) / "thesis.tex").write_text("mine")
    with pytest.raises(storage.StorageError):
        replicas_of(config)
    assert (config.data(N1) / "thesis.tex").read_text() == "mine"


def test_a_node_of_no_group_has_no_replicas(config: Config) -> None:
    assert replicas_of(config.with_node(SPARE, 7), SPARE) == set()


@pytest.mark.parametrize("what", ["receive", "committed", "tick", "turn"])
def test_a_node_whose_state_is_wrong_stops_at_any_call(
    config: Config, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    create_disk(config, N1)
    wrong = InvariantBroken("votes contradict each other")

    def fail(*_: object) -> None:
        raise wrong

    async def main() -> None:
        server = Server(config, N1)
        engine = server.engine
        monkeypatch.setattr(engine.node, what, fail)
        calls = {
            "receive": lambda: server._frame(NodeId("n2"), [(ClientId(1), ClientId(2), [])], 0),
            "committed": lambda: engine._committed({}),
            "tick": engine._tick,
            "turn": engine._turn,
        }
        calls[what]()
        assert engine.failure is wrong
        assert engine.stopped.is_set()
        await asyncio.to_thread(server.engine.disk.close)

    asyncio.run(main())


def test_a_timer_whose_work_is_done_takes_no_turn(config: Config) -> None:
    create_disk(config, N1)

    async def main() -> None:
        server = Server(config, N1)
        engine = server.engine
        taken: list[bool] = []
        for due_in in (WAIT_S, 0.0):
            engine.node.wake_at = engine.now() + due_in
            engine._tick()
            taken.append(engine._turning)
            if due_in:
                assert engine._wake_at == engine.node.wake_at, "it wakes then"
        assert taken == [False, True]
        engine.rest()
        await asyncio.to_thread(engine.disk.close)

    asyncio.run(main())


@pytest.mark.parametrize(("under_way", "turns"), [(1, 5), (COMPANY, 1), (100, 1)])
def test_a_node_with_company_takes_one_turn_for_all_that_comes_together(
    config: Config, monkeypatch: pytest.MonkeyPatch, under_way: int, turns: int
) -> None:
    monkeypatch.setattr("kvstore.server.engine.QUIET_S", 0.02)  # however slow this machine is
    monkeypatch.setattr("kvstore.server.engine.MOST_S", WAIT_S)
    monkeypatch.setattr("kvstore.server.engine.gather_s", lambda count: 0.05 if count >= FEW else 0.0)
    create_disk(config, N1)
    taken: list[int] = []

    async def main() -> None:
        server = Server(config, N1)
        engine = server.engine
        monkeypatch.setattr(engine.node, "under_way", lambda _: under_way)
        monkeypatch.setattr(engine, "_turn_now", lambda: taken.append(1))
        for _ in range(5):
            engine.turn_soon()
            await asyncio.sleep(0)  # a round of the loop
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            while not taken:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.disk.close)

    asyncio.run(main())
    assert len(taken) == turns


def test_events_without_end_do_not_keep_a_node_from_its_turn(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.server.engine.QUIET_S", WAIT_S)
    create_disk(config, N1)
    taken: list[int] = []

    async def main() -> None:
        server = Server(config, N1)
        engine = server.engine
        monkeypatch.setattr(engine.node, "under_way", lambda _: COMPANY)
        monkeypatch.setattr(engine, "_turn_now", lambda: taken.append(1))
        async with asyncio.timeout(WAIT_S / 2):
            while not taken:
                engine.turn_soon()
                await asyncio.sleep(0)
        await asyncio.to_thread(engine.disk.close)

    asyncio.run(main())
