"""The recorder sees what happened, and both renderings show it. No test depends on what a seed brings."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from multicast.errors import InvalidArgument
from multicast.messages import Heartbeat, Hint, Message, Multicast, NewLeader
from multicast.sim import Scenario, Simulation, Workload
from multicast.sim.checkers import Checker
from multicast.sim.diagram import render_svg
from multicast.sim.faults import Crash
from multicast.sim.host import Host
from multicast.sim.network import Delays
from multicast.sim.trace import (
    BOOKKEEPING,
    CRASH,
    DELIVER,
    LEAD,
    RESTART,
    Arrow,
    Flow,
    Mark,
    Recorder,
    name_of,
    render_text,
    text_lines,
)
from multicast.types import NO_BALLOT, NO_TIMESTAMP, Ballot, ClientId, GroupId, MessageId, Process, ReplicaId

G0, G1 = GroupId(0), GroupId(1)
CLIENT = ClientId(1)
REPLICAS = [ReplicaId(group, number, 0) for group in (G0, G1) for number in range(3)]
PROCESSES = ["c1", *map(str, REPLICAS)]
BALLOT = Ballot(7, REPLICAS[0], 0)
SVG = "{http://www.w3.org/2000/svg}"


class Counter(Checker):
    """Counts what replicas get from each other, independently of the recorder."""

    def __init__(self) -> None:
        self.arrived = 0

    def stepping(self, host: Host, sender: Process, message: Message) -> None:
        self.arrived += isinstance(sender, ReplicaId)


def record(delays: Delays | None = None, crash: Crash | None = None) -> tuple[Flow, Counter]:
    """A run of two messages, both to both groups, and perhaps a crash after half a second."""
    recorder, counter = Recorder(), Counter()
    workload = Workload(clients=1, messages=2, window=1)
    scenario = Scenario(groups=2, replicas=3, faults="none", workload=workload, delays=delays or Delays())
    simulation = Simulation(scenario, 1, observers=[recorder, counter])
    recorder.loop = simulation.loop
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation.clients[CLIENT], "destinations", lambda: [G0, G1])
        if crash is not None:
            simulation.loop.at(0.5, simulation.inject, crash)
        outcome = simulation.run()
    assert outcome.violation is None
    return recorder.flow, counter


@pytest.fixture(scope="module")
def flow() -> Flow:
    return record()[0]


@pytest.fixture(scope="module")
def crash_flow() -> Flow:
    return record(Delays(0.005, 0.005), Crash(REPLICAS[1], 0.7))[0]


def arrows(flow: Flow) -> list[Arrow]:
    return [event for event in flow.events if isinstance(event, Arrow)]


def marks(flow: Flow, kind: str) -> list[Mark]:
    return [event for event in flow.events if isinstance(event, Mark) and event.kind == kind]


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314  # our own output


def classes(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if element.get("class") == name]


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


# Recording


def test_every_replica_delivers_every_message(flow: Flow) -> None:
    seen = [(mark.process, mark.text.split()[0]) for mark in marks(flow, DELIVER)]
    assert sorted(seen) == sorted((replica, mid) for replica in REPLICAS for mid in ("1:1", "1:2"))


def test_arrivals_are_matched_to_sends_in_fifo_order(flow: Flow) -> None:
    last: dict[tuple[object, object], float] = {}
    matched = 0
    for arrow in arrows(flow):
        if arrow.sent_at is None:
            assert arrow.source == CLIENT
            assert isinstance(arrow.message, Multicast)
        elif arrow.arrived_at is not None:
            matched += 1
            link = (arrow.source, arrow.target)
            assert arrow.sent_at <= arrow.arrived_at
            assert last.get(link, 0.0) <= arrow.arrived_at
            last[link] = arrow.arrived_at
            if arrow.source == arrow.target:
                assert arrow.sent_at == arrow.arrived_at
    assert matched > 100


def test_losses_do_not_shift_the_matching(crash_flow: Flow) -> None:
    lost = [arrow for arrow in arrows(crash_flow) if crash_flow.is_lost(arrow)]
    assert lost
    for arrow in arrows(crash_flow):
        if arrow.sent_at is not None and arrow.arrived_at is not None and arrow.source != arrow.target:
            assert arrow.arrived_at - arrow.sent_at == pytest.approx(0.005)


def test_every_arrival_is_recorded_once() -> None:
    flow, counter = record()
    arrived = [a for a in arrows(flow) if a.arrived_at is not None and isinstance(a.source, ReplicaId)]
    assert len(arrived) == counter.arrived


def test_recording_does_not_change_the_run() -> None:
    scenario = Scenario(groups=2, replicas=3, workload=Workload(clients=2, messages=10))
    recorder = Recorder()
    watched = Simulation(scenario, 5, observers=[recorder])
    recorder.loop = watched.loop
    assert watched.run().trace == Simulation(scenario, 5).run().trace


def test_nothing_is_called_lost_without_faults() -> None:
    flow, _ = record(Delays(0.005, 0.005))
    assert any(arrow.arrived_at is None for arrow in arrows(flow)), "nothing was on its way at the end"
    assert not [arrow for arrow in arrows(flow) if flow.is_lost(arrow)]


def test_what_was_sent_just_before_the_end_may_be_on_its_way() -> None:
    late = Arrow(0.98, None, REPLICAS[0], REPLICAS[1], NewLeader(BALLOT))
    early = Arrow(0.5, None, REPLICAS[0], REPLICAS[1], NewLeader(BALLOT))
    to_client = Arrow(0.5, None, REPLICAS[0], CLIENT, Hint(G0, BALLOT))
    flow = Flow([early, to_client, late], ended_at=1.0, slowest_s=0.1)
    assert [flow.is_lost(arrow) for arrow in (early, to_client, late)] == [True, False, False]


def test_leaders_are_marked(flow: Flow) -> None:
    led = {mark.process.group for mark in marks(flow, LEAD) if isinstance(mark.process, ReplicaId)}
    assert led == {G0, G1}


def test_a_recorder_without_a_loop_says_so() -> None:
    outcome = Simulation(Scenario(groups=1, replicas=1), 1, observers=[Recorder()]).run()
    assert "has no loop" in (outcome.violation or "")


def test_an_arrow_needs_a_time() -> None:
    with pytest.raises(InvalidArgument, match="sent_at"):
        Arrow(None, None, CLIENT, REPLICAS[0], "?")


# Text


def test_text_shows_the_paper_s_messages(flow: Flow) -> None:
    text = render_text(flow)
    assert re.search(r"\? +\d+\.\d{3}  c1   -> g0r\d  MULTICAST     1:1 to g0,g1, 24 bytes", text)
    for group in (0, 1):
        accepts = re.findall(rf"(g{group}r\d) -> (g\dr\d)  ACCEPT        1:1 ", text)
        assert {name for pair in accepts for name in pair} == set(map(str, REPLICAS))
        assert re.search(
            rf"g{group}r\d -> g{1 - group}r\d  ACCEPT        1:1 g{group} b\d+@g{group}r\d lts", text
        )
        assert re.search(rf"g{group}r\d -> g{1 - group}r\d  ACCEPT_ACK    1:1 g{group} \[b", text)
        assert re.search(rf"g{group}r\d -> g{group}r\d  DELIVER       1:1 lts \d+\.\d gts \d+\.\d", text)
    for replica in REPLICAS:
        assert re.search(rf"  {replica} .* \* deliver +1:1 gts \d+\.\d", text)
    for name in ("NEWLEADER ", "NEWLEADER_ACK ", "NEW_STATE ", "NEWSTATE_ACK "):
        assert f"  {name}" in text


def test_text_is_in_time_order_and_narrow(crash_flow: Flow) -> None:
    lines = list(text_lines(crash_flow, everything=True))[1:]
    times = [float(line[:11] if "?" not in line[:11] else line[11:23]) for line in lines]
    assert times == sorted(times)
    assert max(map(len, lines)) <= 120


def test_bookkeeping_is_shown_only_when_asked_for(flow: Flow) -> None:
    assert "HEARTBEAT" not in render_text(flow)
    assert not [e for e in flow.shown() if isinstance(e, Arrow) and isinstance(e.message, BOOKKEEPING)]
    assert "HEARTBEAT_ACK" in render_text(flow, everything=True)


def test_text_of_a_window(flow: Flow) -> None:
    at = marks(flow, DELIVER)[0].at
    lines = list(text_lines(flow, start_s=at, end_s=at))
    assert any("* deliver" in line for line in lines)
    assert 1 < len(lines) < len(list(text_lines(flow)))


def test_text_of_a_crash(crash_flow: Flow) -> None:
    text = render_text(crash_flow, everything=True)
    assert re.search(r"^ +500\.000 +g0r1 +\* crash$", text, re.MULTILINE)
    assert re.search(r"^ +1200\.000 +g0r1 +\* restart +with \d+ deliver", text, re.MULTILINE)
    lost = [line for line in text.splitlines() if line[12:23].strip() == "lost"]
    assert lost
    assert all("-> g0r1" in line or "g0r1 ->" in line for line in lost)


def test_text_keeps_to_one_line_per_event() -> None:
    mid = MessageId(CLIENT, 1, 0)
    wide = Multicast(mid, tuple(GroupId(g) for g in range(200)), b"", 1)
    flow = Flow([Mark(0.1, CLIENT, DELIVER, "a\nb\x1b[2J"), Arrow(None, 0.2, CLIENT, REPLICAS[0], wide)])
    lines = render_text(flow).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("a?b?[2J")
    assert lines[2].endswith("...")
    assert len(lines[2]) == 120


def test_names_follow_the_paper() -> None:
    assert name_of(NewLeader(BALLOT)) == "NEWLEADER"
    assert name_of(Heartbeat(NO_BALLOT, NO_TIMESTAMP, ())) == "HEARTBEAT"


# Diagrams


def test_diagram_has_a_lifeline_for_each_process(flow: Flow) -> None:
    root = parse(render_svg(flow))
    assert [line.get("data-process") for line in classes(root, "lifeline")] == PROCESSES
    assert len(classes(root, "band")) == 2


def test_diagram_has_a_dot_for_each_delivery_in_the_window(flow: Flow) -> None:
    delivered = marks(flow, DELIVER)
    assert len(classes(parse(render_svg(flow)), "deliver")) == len(delivered) == 12
    start, end = delivered[2].at, delivered[7].at
    inside = [mark for mark in delivered if start <= mark.at <= end]
    root = parse(render_svg(flow, start_s=start, end_s=end))
    assert len(classes(root, "deliver")) == len(inside) < 12
    assert [line.get("data-process") for line in classes(root, "lifeline")] == PROCESSES


def test_diagram_stays_inside_its_window(flow: Flow) -> None:
    at = marks(flow, DELIVER)[0].at
    root = parse(render_svg(flow, start_s=at - 0.004, end_s=at + 0.001, width=800))
    lines = [line for arrow in classes(root, "arrow") for line in arrow.iter(f"{SVG}line")]
    assert lines
    for line in lines:
        assert 80 < float(line.get("x1", "")) <= float(line.get("x2", "")) < 780


def test_diagram_shows_crash_restart_and_loss(crash_flow: Flow) -> None:
    root = parse(render_svg(crash_flow, everything=True))
    assert len(classes(root, CRASH)) == len(classes(root, RESTART)) == len(classes(root, "down")) == 1
    assert {"lost", "down", "leader", "MULTICAST"} <= set(texts(root))
    assert "down" not in texts(parse(render_svg(crash_flow, end_s=0.4)))


def test_only_few_arrows_are_labelled() -> None:
    def label_count(count: int) -> int:
        pairs = [(REPLICAS[n % 3], REPLICAS[3 + n % 3]) for n in range(count)]
        events: list[Arrow | Mark] = [
            Arrow(n * 0.1, n * 0.1 + 0.01, source, target, NewLeader(BALLOT))
            for n, (source, target) in enumerate(pairs)
        ]
        return texts(parse(render_svg(Flow(events), width=9000))).count("NEWLEADER")

    assert label_count(59) == 59 + 1  # and the legend
    assert label_count(60) == 1


def test_labels_do_not_overlap(flow: Flow) -> None:
    at = marks(flow, DELIVER)[0].at
    root = parse(render_svg(flow, start_s=at - 0.03, end_s=at + 0.03))
    boxes = [
        tuple(float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("fill-opacity")
    ]
    assert len(boxes) > 10
    for index, (x1, y1, w1, h1) in enumerate(boxes):
        for x2, y2, w2, h2 in boxes[:index]:
            apart = x1 + w1 <= x2 or x2 + w2 <= x1 or y1 + h1 <= y2 or y2 + h2 <= y1
            assert apart


def test_hostile_text_is_escaped() -> None:
    hostile = "<script>alert('&\"')</script>\x00]]>"
    kinds = type("<b>&Kind", (), {})
    events: list[Arrow | Mark] = [
        Mark(0.1, REPLICAS[0], DELIVER, hostile),
        Arrow(0.1, 0.2, REPLICAS[0], REPLICAS[1], kinds()),
    ]
    svg = render_svg(Flow(events), title=hostile)
    root = parse(svg)
    assert "<script" not in svg
    assert hostile.replace("\x00", "?") in texts(root)
    assert not [element for element in root.iter() if element.tag.endswith(("script", "b"))]


def test_a_diagram_of_nothing_is_still_a_picture() -> None:
    assert classes(parse(render_svg(Flow())), "lifeline") == []
    late = Flow([Mark(5.0, REPLICAS[0], CRASH, "")])
    for start_s, end_s in ((None, 1.0), (9.0, None), (1.0, 1.0001)):
        root = parse(render_svg(late, start_s=start_s, end_s=end_s))
        assert len(classes(root, "lifeline")) == 1


def test_a_window_must_have_a_length(flow: Flow) -> None:
    with pytest.raises(InvalidArgument, match="start_s"):
        render_svg(flow, start_s=2.0, end_s=1.0)
