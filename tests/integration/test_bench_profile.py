"""Processes that are watched, briefly: samples and events come from real nodes and clients."""

from __future__ import annotations

from types import SimpleNamespace

from benchmarks.profile import watched
from benchmarks.profiling.layers import IDLE, LOOP
from benchmarks.profiling.shares import spent_us
from benchmarks.profiling.timeline import time_line

SIZES = SimpleNamespace(warm_up=0.1, seconds=0.5)


def test_samples_of_nodes_and_clients() -> None:
    with watched("sampler", "sampler", 1) as store:
        done, wall_s, (before, after) = store.measure("two-session", 20, SIZES)
    assert after.keys() == {"n1", "n2", "n3", "c1"}
    nodes = [spent_us(before[name], after[name], wall_s, done.calls) for name in ("n1", "n2", "n3")]
    layers = {layer for each in nodes for layer, us in each.items() if us > 0}
    assert len(layers - {IDLE, LOOP}) >= 5
    for name, counted in after.items():
        # What came after the last sample is in none of them.
        assert 0 < sum(counted["user_s"].values()) <= counted["main"][0], name


def test_time_line_of_real_calls() -> None:
    with watched("events", "calls", 1) as store:
        _, _, (_, said) = store.measure("two", 1, SIZES)
    client = said.pop("c1")
    found = time_line(said, client)
    assert found.calls
    line = found.typical()
    assert line[0][1:] == ("client", "call")
    assert line[-1][1:] == ("client", "answer")
    names = [f"{where}: {what}" for _, where, what in line]
    order = [
        "gateway: call arrives", "gateway: request is read; multicast", "gateway: outcome is known",
        "gateway: reply leaves",
    ]  # fmt: skip
    assert [name for name in names if name in order] == order
    assert "log: durable" in {what for _, _, what in line}
    assert any(name.startswith("leader: from gateway: ") for name in names)
