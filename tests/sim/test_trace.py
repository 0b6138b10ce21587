"""The recorder sees what happened, and both renderings show it. No test depends on what a seed brings."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from multicast import PROTOCOLS, FastCast, Protocol, WhiteBox
from multicast import messages as msg
from multicast import types as t
from multicast.client import Reply
from multicast.errors import InvalidArgument
from multicast.sim import Scenario, Simulation, Workload
from multicast.sim.checkers import Checker
from multicast.sim.diagram import Unit, render_svg
from multicast.sim.faults import ClientDeath, Crash, Cut, Fault, Heal, Nominate, Reset, Stall
from multicast.sim.host import Host, LogSnapshot
from multicast.sim.network import Delays
from multicast.sim.trace import (
    BOOKKEEPING,
    CRASH,
    CUT,
    DELIVER,
    HEAL,
    LEAD,
    NOMINATE,
    RESET,
    RESTART,
    STALL,
    Arrow,
    Flow,
    FlowRecorder,
    Mark,
    describe,
    name_of,
    render_text,
    text_lines,
)

G0, G1 = t.GroupId(0), t.GroupId(1)
CLIENT = t.ClientId(1)
REPLICAS = [t.ReplicaId(group, number, 0) for group in (G0, G1) for number in range(3)]
PROCESSES = ["c1", *map(str, REPLICAS)]
BALLOT = t.Ballot(7, REPLICAS[0], 0)
MID, OTHER_MID = t.MessageId(CLIENT, 1, 0), t.MessageId(CLIENT, 2, 0)
SVG = "{http://www.w3.org/2000/svg}"
EVEN = Delays(0.005, 0.005)


class Counter(Checker):
    """Counts what replicas and clients get, independently of the recorder."""

    def __init__(self) -> None:
        self.arrived = 0

    def stepping(self, host: Host, sender: t.Process, message: msg.Message) -> None:
        self.arrived += 1

    def received(self, receiver: t.Process, sender: t.Process, message: object) -> None:
        self.arrived += 1


def watched(scenario: Scenario, seed: int, *others: Checker) -> tuple[Simulation, Flow]:
    """A run under a recorder, and what it records."""
    recorder = FlowRecorder()
    simulation = Simulation(scenario, seed, observers=[recorder, *others])
    recorder.loop = simulation.loop
    return simulation, recorder.flow


def record(
    delays: Delays | None = None, crash: Crash | None = None, protocol: type[Protocol] = WhiteBox
) -> tuple[Flow, Counter]:
    """A run of two messages, both to both groups, and perhaps a crash after half a second."""
    counter, workload = Counter(), Workload(clients=1, messages=2, window=1)
    scenario = Scenario(protocol, 2, 3, "none", workload, delays=delays or Delays())
    simulation, flow = watched(scenario, 1, counter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation.clients[CLIENT], "destinations", lambda: [G0, G1])
        if crash is not None:
            simulation.loop.at(0.5, simulation.inject, crash)
        outcome = simulation.run()
    assert outcome.violation is None
    return flow, counter


def record_faults(*faults: tuple[float, Fault]) -> tuple[Flow, Simulation]:
    """Two clients, and faults, with links that take 5 ms. CLIENT multicasts one message, at 1 s."""
    workload = Workload(clients=2, messages=0)
    simulation, flow = watched(Scenario(groups=2, faults="none", workload=workload, delays=EVEN), 1)
    for at, fault in faults:
        simulation.loop.at(at, simulation.inject, fault)

    def multicast() -> None:
        simulation.clients[CLIENT].submit([G0, G1], b"")

    simulation.loop.at(1.0, multicast)
    simulation.start()
    simulation.run_until(lambda: False, 3.0)
    return flow, simulation


@pytest.fixture(scope="module")
def flow() -> Flow:
    return record()[0]


@pytest.fixture(scope="module")
def crash_flow() -> Flow:
    return record(EVEN, Crash(REPLICAS[1], 0.7))[0]


def arrows(flow: Flow) -> list[Arrow]:
    return [event for event in flow.events if isinstance(event, Arrow)]


def marks(flow: Flow, kind: str) -> list[Mark]:
    return [event for event in flow.events if isinstance(event, Mark) and event.kind == kind]


def diagram(flow: Flow, **options: Any) -> ElementTree.Element:
    """The flow's diagram, parsed."""
    return ElementTree.fromstring(render_svg(flow, **options))  # noqa: S314  # our own output


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
        assert arrow.sent_at is not None
        if arrow.arrived_at is not None:
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
    assert len([a for a in arrows(flow) if a.arrived_at is not None]) == counter.arrived


def test_both_ends_of_what_clients_say_and_hear_are_seen(flow: Flow) -> None:
    asked = [arrow for arrow in arrows(flow) if isinstance(arrow.message, msg.Multicast)]
    answered = [arrow for arrow in arrows(flow) if isinstance(arrow.message, Reply)]
    assert {arrow.source for arrow in asked} == {arrow.target for arrow in answered} == {CLIENT}
    assert all(0.001 <= (a.arrived_at or 0) - (a.sent_at or 9) < 0.2 for a in [*asked, *answered])
    assert "?" not in render_text(flow, everything=True)


def test_the_copy_that_arrived_is_matched_not_the_one_that_was_lost() -> None:
    """A client repeats the very same object, after the first was lost on a link that is cut, or is cut or
    reset meanwhile, at a replica that is down, or on a connection that a restart supersedes.
    """
    leader = REPLICAS[0]
    schedules: list[list[tuple[float, Fault]]] = [
        [(0.9, Cut([CLIENT], [leader])), (1.2, Heal())],
        [(1.001, Cut([CLIENT], [leader])), (1.2, Heal())],
        [(1.001, Reset(CLIENT, leader))],
        [(0.9, Crash(leader, 0.2))],
        [(0.9, Crash(leader, 0.102))],
    ]
    for schedule in schedules:
        flow, _ = record_faults(*schedule)
        asked = [a for a in arrows(flow) if isinstance(a.message, msg.Multicast)]
        first, second, *_ = [a for a in asked if (a.source, a.target) == (CLIENT, leader)]
        assert first.message is second.message
        assert flow.is_lost(first)
        assert second.arrived_at == pytest.approx(second.at + 0.005)


def test_an_arrow_takes_as_long_as_its_link_whatever_goes_wrong() -> None:
    for protocol in PROTOCOLS:
        workload, counter = Workload(clients=3, messages=60), Counter()
        replicas = 1 if protocol == "skeen" else 3
        scenario = Scenario(PROTOCOLS[protocol], 3, replicas, "all", workload, delays=EVEN)
        simulation, flow = watched(scenario, 2, counter)
        assert simulation.run().violation is None
        arrived = [arrow for arrow in arrows(flow) if arrow.arrived_at is not None]
        assert len(arrived) == counter.arrived
        assert all(arrow.sent_at is not None for arrow in arrived)
        travelled = [arrow for arrow in arrived if arrow.source != arrow.target]
        assert {round((arrow.arrived_at or 0) - arrow.at, 9) for arrow in travelled} == {0.005}


def test_a_snapshot_is_seen_to_arrive() -> None:
    flow, simulation = record_faults()
    host = simulation.hosts[REPLICAS[0]]
    assert host.replica is not None
    snapshot = LogSnapshot(host.replica.checkpoint(), tuple(host.log))
    host._send((REPLICAS[1],), snapshot)
    simulation.run_until(lambda: False, simulation.loop.now + 0.1)
    (arrow,) = [arrow for arrow in arrows(flow) if arrow.message is snapshot]
    assert arrow.arrived_at == pytest.approx(arrow.at + 0.005)
    assert describe(snapshot) == "1 delivery"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_recording_does_not_change_the_run(protocol: str) -> None:
    replicas = 1 if protocol == "skeen" else 3
    scenario = Scenario(PROTOCOLS[protocol], 2, replicas, workload=Workload(clients=2, messages=10))
    assert watched(scenario, 5)[0].run().trace == Simulation(scenario, 5).run().trace


def test_nothing_is_called_lost_without_faults() -> None:
    flow, _ = record(EVEN)
    assert any(arrow.arrived_at is None for arrow in arrows(flow)), "nothing was on its way at the end"
    assert not [arrow for arrow in arrows(flow) if flow.is_lost(arrow)]


def test_what_was_sent_just_before_the_end_may_be_on_its_way() -> None:
    late = Arrow(0.98, None, REPLICAS[0], REPLICAS[1], msg.NewLeader(BALLOT))
    early = Arrow(0.5, None, REPLICAS[0], REPLICAS[1], msg.NewLeader(BALLOT))
    flow = Flow([early, late], ended_at=1.0, slowest_s=0.1)
    assert [flow.is_lost(arrow) for arrow in (early, late)] == [True, False]
    lines = render_text(flow).splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["lost", "under"]


def test_leaders_are_marked(flow: Flow) -> None:
    led = {mark.process.group for mark in marks(flow, LEAD) if isinstance(mark.process, t.ReplicaId)}
    assert led == {G0, G1}


def test_a_recorder_without_a_loop_says_so() -> None:
    outcome = Simulation(Scenario(groups=1, replicas=1), 1, observers=[FlowRecorder()]).run()
    assert "has no loop" in (outcome.violation or "")


def test_an_arrow_needs_a_time() -> None:
    with pytest.raises(InvalidArgument, match="sent_at"):
        Arrow(None, None, CLIENT, REPLICAS[0], "?")


# Faults


def test_faults_are_marked_where_they_happen() -> None:
    r0, r1, *others = REPLICAS
    flow, _ = record_faults(
        (0.50, Cut([r0], REPLICAS)),
        (0.55, Cut(REPLICAS, [r1])),
        (0.60, Heal()),
        (0.65, Reset(CLIENT, r1)),
        (0.70, Stall(r0, 0.25)),
        (0.75, Nominate(r1)),
        (0.80, ClientDeath(1, halfway=False)),
        (0.85, Heal()),
    )
    expected = [
        (0.50, r0, CUT, "to " + " ".join(map(str, [r1, *others]))),
        (0.55, r1, CUT, "from " + " ".join(map(str, [r0, *others]))),
        (0.60, r0, HEAL, ""),
        (0.60, r1, HEAL, ""),
        (0.65, CLIENT, RESET, "link to g0r1"),
        (0.70, r0, STALL, "disk, 250 ms"),
        (0.75, r1, NOMINATE, ""),
        (0.80, t.ClientId(2), CRASH, "for ever"),
    ]
    kinds = {kind for _, _, kind, _ in expected}
    found = [event for event in flow.events if isinstance(event, Mark) and event.kind in kinds]
    assert [(mark.at, mark.process, mark.kind, mark.text) for mark in found] == expected
    text = render_text(flow)
    assert re.search(r"^ +500\.000 +g0r0 +\* cut +to g0r1 g0r2 g1r0 g1r1 g1r2$", text, re.MULTILINE)
    assert re.search(r"^ +750\.000 +g0r1 +\* nominate$", text, re.MULTILINE)
    root = diagram(flow)
    drawn = Tally(element.get("class") for element in root.iter() if element.get("class"))
    assert {kind: drawn[kind] for kind in kinds} == Tally(kind for _, _, kind, _ in expected)
    ends = [float(line.get("x2", "")) for line in classes(root, "cut-off")]
    healed = [path.get("d", "") for heal in classes(root, HEAL) for path in heal.iter(f"{SVG}path")]
    assert ends == [float(path[1:].split()[0]) for path in healed]
    assert {*kinds, "cut off", "down"} <= set(texts(root))


def test_a_run_ends_with_healing() -> None:
    scenario = Scenario(groups=2, faults="none", workload=Workload(clients=1, messages=1))
    simulation, flow = watched(scenario, 1)
    simulation.loop.at(0.5, simulation.inject, Cut(REPLICAS[:3], REPLICAS[3:]))
    assert simulation.run().violation is None
    assert [mark.process for mark in marks(flow, HEAL)] == REPLICAS[:3]
    assert {mark.text for mark in marks(flow, CUT)} == {"to g1r0 g1r1 g1r2"}


def test_what_a_dead_client_is_sent_is_lost() -> None:
    flow, _ = record_faults((1.001, ClientDeath(0, halfway=False)))
    answers = [arrow for arrow in arrows(flow) if isinstance(arrow.message, Reply)]
    assert len(answers) == 2
    assert all(flow.is_lost(arrow) for arrow in answers)


# Text


def test_text_shows_the_paper_s_messages(flow: Flow) -> None:
    text = render_text(flow)
    assert re.search(r"\d\.\d{3} +\d+\.\d{3}  c1   -> g0r\d  MULTICAST     1:1 to g0,g1, 24 bytes", text)
    assert re.search(r"\d\.\d{3} +\d+\.\d{3}  g0r\d -> c1    REPLY         1:1 g0 gts \d", text)
    for group in (0, 1):
        accepts = re.findall(rf"(g{group}r\d) -> (g\dr\d)  ACCEPT        1:1 ", text)
        assert {name for pair in accepts for name in pair} == set(map(str, REPLICAS))
        there = rf"g{group}r\d -> g{1 - group}r\d"
        assert re.search(rf"{there}  ACCEPT        1:1 g{group} b\d+@g{group}r\d lts", text)
        assert re.search(rf"{there}  ACCEPT_ACK    1:1 g{group} \[b", text)
        assert re.search(rf"g{group}r\d -> g{group}r\d  DELIVER       1:1 lts \d+\.\d gts \d+\.\d", text)
    for replica in REPLICAS:
        assert re.search(rf"  {replica} .* \* deliver +1:1 gts \d+\.\d", text)
    for name in ("NEWLEADER ", "NEWLEADER_ACK ", "NEW_STATE ", "NEWSTATE_ACK "):
        assert f"  {name}" in text


def test_text_is_in_time_order_and_narrow(crash_flow: Flow) -> None:
    lines = list(text_lines(crash_flow, everything=True))[1:]
    times = [float(line[:11]) for line in lines]
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
    mid = t.MessageId(CLIENT, 1, 0)
    wide = msg.Multicast(mid, tuple(t.GroupId(g) for g in range(200)), b"", 1)
    flow = Flow([Mark(0.1, CLIENT, DELIVER, "a\nb\x1b[2J"), Arrow(None, 0.2, CLIENT, REPLICAS[0], wide)])
    lines = render_text(flow).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("a?b?[2J")
    assert lines[2].endswith("...")
    assert len(lines[2]) == 120


def test_names_follow_the_paper() -> None:
    assert name_of(msg.NewLeader(BALLOT)) == "NEWLEADER"
    assert name_of(msg.Heartbeat(t.NO_BALLOT, t.NO_TIMESTAMP, ())) == "HEARTBEAT"


def test_consensus_is_described() -> None:
    dest, lts, gts = (G0, G1), t.timestamp(3, G0), t.timestamp(4, G1)
    proposed = "1:1 g0 b7@g0r0 lts 3.0"
    local = msg.LocalTimestamps((MID,), (dest,), (b"x",), (1,), (lts,))
    clock = msg.ClockUpdates((OTHER_MID,), (gts,))
    nothing, none = msg.LocalTimestamps(), msg.ClockUpdates()
    described: Sequence[tuple[object, str, str]] = [
        (msg.Propose(G0, BALLOT, (MID,), (dest,), (lts,), (True,)), "PROPOSE", f"{proposed}, decided"),
        (msg.Propose(G0, BALLOT, (MID,), (dest,), (lts,), (False,)), "PROPOSE", f"{proposed}, speculative"),
        (
            msg.Propose(G0, BALLOT, (MID, OTHER_MID), (dest, dest), (lts, lts), (False, True)),
            "PROPOSE", "1:1 1:2 g0 b7@g0r0 lts 3.0 3.0, speculative decided",
        ),
        (msg.Phase2a(BALLOT, local, none), "2A lts", "1:1 lts 3.0 b7@g0r0"),
        (msg.Phase2a(BALLOT, nothing, clock), "2A clock", "1:2 past gts 4.1 b7@g0r0"),
        (
            msg.Phase2a(BALLOT, local, clock),
            "2A lts+clock", "1:1 lts 3.0, 1:2 past gts 4.1 b7@g0r0",
        ),
        (msg.Phase2b(BALLOT, (MID,), none), "2B lts", "1:1 lts b7@g0r0"),
        (msg.Phase2b(BALLOT, (), clock), "2B clock", "1:2 past gts 4.1 b7@g0r0"),
        (
            msg.Phase2b(BALLOT, (MID,), clock),
            "2B lts+clock", "1:1 lts, 1:2 past gts 4.1 b7@g0r0",
        ),
    ]  # fmt: skip
    assert [(name_of(message), describe(message)) for message, _, _ in described] == [
        (name, text) for _, name, text in described
    ]


def test_text_shows_fastcast() -> None:
    text = render_text(record(EVEN, protocol=FastCast)[0])
    for said in ("PROPOSE       1:1 .* speculative", "PROPOSE       1:1 .* decided"):
        assert re.search(f"g0r. -> g1r.  {said}", text)
        assert re.search(f"g1r. -> g0r.  {said}", text)
    for name in ("2A lts", "2B lts", "2A clock", "2B clock"):
        assert re.search(rf"g0r. -> g0r.  {name:<13} 1:1 ", text)
        assert not re.search(rf"g0r. -> g1r.  {name}", text)
    assert "?" not in text


# Diagrams


def test_diagram_has_a_lifeline_for_each_process(flow: Flow) -> None:
    root = diagram(flow)
    assert [line.get("data-process") for line in classes(root, "lifeline")] == PROCESSES
    assert len(classes(root, "band")) == 2


def test_diagram_has_a_dot_for_each_delivery_in_the_window(flow: Flow) -> None:
    delivered = marks(flow, DELIVER)
    assert len(classes(diagram(flow), "deliver")) == len(delivered) == 12
    start, end = delivered[2].at, delivered[7].at
    inside = [mark for mark in delivered if start <= mark.at <= end]
    root = diagram(flow, start_s=start, end_s=end)
    assert len(classes(root, "deliver")) == len(inside) < 12
    assert [line.get("data-process") for line in classes(root, "lifeline")] == PROCESSES


def test_diagram_stays_inside_its_window(flow: Flow) -> None:
    at = marks(flow, DELIVER)[0].at
    root = diagram(flow, start_s=at - 0.004, end_s=at + 0.001, width=800)
    lines = [line for arrow in classes(root, "arrow") for line in arrow.iter(f"{SVG}line")]
    assert lines
    for line in lines:
        assert 80 < float(line.get("x1", "")) <= float(line.get("x2", "")) < 780


def test_diagram_shows_crash_restart_and_loss(crash_flow: Flow) -> None:
    root = diagram(crash_flow, everything=True)
    assert len(classes(root, CRASH)) == len(classes(root, RESTART)) == len(classes(root, "down")) == 1
    assert {"lost", "down", "leader", "MULTICAST"} <= set(texts(root))
    assert "down" not in texts(diagram(crash_flow, end_s=0.4))


def test_diagram_shows_consensus_and_who_speculates() -> None:
    flow = record(EVEN, protocol=FastCast)[0]
    at = marks(flow, DELIVER)[0].at
    root = diagram(flow, start_s=at - 0.05, end_s=at + 0.05)
    kinds = ["PROPOSE speculative", "PROPOSE decided", "2A lts", "2B lts", "2A clock", "2B clock", "DELIVER"]
    shown = texts(root)
    assert set(kinds) <= set(shown)
    assert {f"{kind} 1:1" for kind in kinds} <= set(shown)
    lines = [line for arrow in classes(root, "arrow") for line in arrow.iter(f"{SVG}line")]
    assert len({line.get("stroke") for line in lines}) == len(kinds) + 2  # MULTICAST and REPLY


def test_diagram_in_other_units_and_names(flow: Flow) -> None:
    at = marks(flow, DELIVER)[0].at
    names = {"c1": "client", "1:1": "m"}
    root = diagram(flow, start_s=at - 0.03, end_s=at + 0.03, unit=Unit("δ", 200, 3), names=names)
    shown = texts(root)
    ticks = [text for text in shown if text.endswith("δ")]
    assert len(ticks) == 4
    assert ticks == [f"{int(ticks[0][:-1]) + 3 * index}δ" for index in range(4)]
    assert {"client", "deliver m", "MULTICAST m", "ACCEPT m"} <= set(shown)
    assert not [text for text in shown if "1:1" in text or text == "c1"]


def test_deliveries_at_one_instant_share_a_label() -> None:
    def shown(count: int) -> list[str]:
        events: list[Arrow | Mark] = [
            Mark(0.1, REPLICAS[0], DELIVER, f"1:{n} gts {n}.0") for n in range(count)
        ]
        return [text for text in texts(diagram(Flow(events))) if text.startswith("deliver ")]

    assert shown(2) == ["deliver 1:0, 1:1"]
    assert shown(4) == ["deliver 4 messages"]


def test_arrows_that_leave_or_arrive_together_are_labelled_once() -> None:
    r0, r1, r2 = REPLICAS[:3]
    leaving = [Arrow(0.1, at, r0, target, msg.NewLeader(BALLOT)) for at, target in ((0.12, r1), (0.13, r2))]
    arriving = [
        Arrow(at, 0.3, source, r0, msg.Heartbeat(BALLOT, t.NO_TIMESTAMP, ()))
        for at, source in ((0.2, r1), (0.21, r2))
    ]
    found = Tally(texts(diagram(Flow([*leaving, *arriving]), everything=True)))
    assert found["NEWLEADER"] == found["HEARTBEAT"] == 1 + 1  # and the legend
    apart = [Arrow(0.1, 0.12, r0, r1, msg.NewLeader(BALLOT)), Arrow(0.2, 0.23, r0, r2, msg.NewLeader(BALLOT))]
    assert texts(diagram(Flow([*apart]))).count("NEWLEADER") == 2 + 1


def test_only_few_arrows_are_labelled() -> None:
    def label_count(count: int) -> int:
        pairs = [(REPLICAS[n % 3], REPLICAS[3 + n % 3]) for n in range(count)]
        events: list[Arrow | Mark] = [
            Arrow(n * 0.1, n * 0.1 + 0.01, source, target, msg.NewLeader(BALLOT))
            for n, (source, target) in enumerate(pairs)
        ]
        return texts(diagram(Flow(events), width=9000)).count("NEWLEADER")

    assert label_count(59) == 59 + 1  # and the legend
    assert label_count(60) == 1


def test_labels_do_not_overlap(flow: Flow) -> None:
    at = marks(flow, DELIVER)[0].at
    root = diagram(flow, start_s=at - 0.03, end_s=at + 0.03)
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
    root = diagram(Flow(events), title=hostile)
    assert "<script" not in render_svg(Flow(events), title=hostile)
    assert hostile.replace("\x00", "?") in texts(root)
    assert not [element for element in root.iter() if element.tag.endswith(("script", "b"))]


def test_a_diagram_of_nothing_is_still_a_picture() -> None:
    assert classes(diagram(Flow()), "lifeline") == []
    late = Flow([Mark(5.0, REPLICAS[0], CRASH, "")])
    for start_s, end_s in ((None, 1.0), (9.0, None), (1.0, 1.0001)):
        root = diagram(late, start_s=start_s, end_s=end_s)
        assert len(classes(root, "lifeline")) == 1


def test_a_window_must_have_a_length(flow: Flow) -> None:
    with pytest.raises(InvalidArgument, match="start_s"):
        render_svg(flow, start_s=2.0, end_s=1.0)
