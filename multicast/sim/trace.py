"""The flow of a run, message by message: its recorder, and its rendering as text."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from multicast.client import MulticastRefused, Reply
from multicast.errors import InvalidArgument
from multicast.messages import (
    Accept,
    AcceptAck,
    CatchUp,
    ClockUpdates,
    Deliver,
    Deliveries,
    Delivery,
    Executed,
    HandOver,
    Heartbeat,
    HeartbeatAck,
    Hint,
    Join,
    Members,
    MembersWanted,
    Message,
    Multicast,
    NewLeader,
    NewLeaderAck,
    NewState,
    NewStateAck,
    Phase2a,
    Phase2b,
    PreVote,
    PreVoteAck,
    Propose,
    StatePart,
)
from multicast.sim.checkers import Checker
from multicast.sim.faults import ClientDeath, Cut, Fault, Heal, Nominate, Reset, Stall
from multicast.sim.host import Host, LogSnapshot
from multicast.sim.network import Loop
from multicast.types import (
    DISK_BITS,
    ClientId,
    MessageId,
    Process,
    ReplicaId,
    begun_anew,
    disk_of,
    format_timestamp,
)

DELIVER: Final = "deliver"
CRASH: Final = "crash"
RESTART: Final = "restart"
LEAD: Final = "lead"
FOLLOW: Final = "follow"
INSTALL: Final = "install"
CUT: Final = "cut"
HEAL: Final = "heal"
RESET: Final = "reset"
STALL: Final = "stall"
NOMINATE: Final = "nominate"

BOOKKEEPING: Final = (Heartbeat, HeartbeatAck, PreVote, PreVoteAck, Executed, CatchUp)
"""Periodic messages that order nothing: shown only on request."""

LINE_MAX: Final = 120

_NAMES: Final[dict[type, str]] = {
    NewLeader: "NEWLEADER",
    NewLeaderAck: "NEWLEADER_ACK",
    NewStateAck: "NEWSTATE_ACK",
    LogSnapshot: "SNAPSHOT",
    MulticastRefused: "REFUSED",
}


@dataclass(slots=True)
class Arrow:
    """One message from one process to another. At least one of its two times is known."""

    sent_at: float | None
    arrived_at: float | None
    """None if it was lost, or still in flight at the end."""
    source: Process
    target: Process
    message: object

    def __post_init__(self) -> None:
        if self.sent_at is None and self.arrived_at is None:
            raise InvalidArgument("an arrow needs sent_at or arrived_at")

    @property
    def at(self) -> float:
        """When it was sent or, if only that is known, when it arrived."""
        at = self.arrived_at if self.sent_at is None else self.sent_at
        assert at is not None
        return at


@dataclass(slots=True)
class Mark:
    """An event at one process."""

    at: float
    process: Process
    kind: str
    text: str


Event: TypeAlias = Arrow | Mark


@dataclass(slots=True)
class Flow:
    """The recorded events of one run."""

    events: list[Event] = field(default_factory=list)
    ended_at: float = float("inf")
    """When the recording ended: what had not arrived by then may still have been in flight."""
    slowest_s: float = 0.0
    """The longest travel time of a message."""

    def processes(self) -> list[Process]:
        """Return all processes that take part: clients first, then replicas by group."""
        found: set[Process] = set()
        for event in self.events:
            found.update((event.source, event.target) if isinstance(event, Arrow) else (event.process,))
        return sorted(found, key=lambda p: (1, *p) if isinstance(p, ReplicaId) else (0, p, 0, 0))

    def shown(
        self, *, everything: bool = False, start_s: float = 0.0, end_s: float = float("inf")
    ) -> list[Event]:
        """Return the events within the window, by time; bookkeeping only with `everything`."""
        chosen = [
            event
            for event in self.events
            if event.at <= end_s
            and ((event.arrived_at or event.at) if isinstance(event, Arrow) else event.at) >= start_s
            and (everything or not (isinstance(event, Arrow) and isinstance(event.message, BOOKKEEPING)))
        ]
        return sorted(chosen, key=lambda event: event.at)

    def is_lost(self, arrow: Arrow) -> bool:
        """Return whether it never arrived, although the slowest message would have."""
        if arrow.arrived_at is not None:
            return False
        return self.ended_at - arrow.at > self.slowest_s + 1e-9  # ignore rounding errors


class FlowRecorder(Checker):
    """An observer that records a run. Give it the simulation's `loop` before the run starts."""

    def __init__(self, loop: Loop | None = None) -> None:
        self.loop = loop
        self.flow = Flow(ended_at=0.0)
        self._in_flight: dict[tuple[Process, Process], deque[Arrow]] = defaultdict(deque)
        self._down: set[Process] = set()
        self._leading: set[Process] = set()
        self._cut: set[tuple[Process, Process]] = set()
        self._cut_off: dict[Process, None] = {}
        """The processes that are marked as cut off, in order."""

    def sent(self, host: Host, receivers: Sequence[Process], message: object) -> None:
        """A replica's message leaves."""
        self._note_leadership(host)
        self._leaves(host.me, receivers, message)

    def client_sent(self, client: ClientId, receivers: Sequence[Process], message: object) -> None:
        """A client's message leaves."""
        self._leaves(client, receivers, message)

    def _leaves(self, sender: Process, receivers: Sequence[Process], message: object) -> None:
        """Draw an arrow to each receiver; its arrival is not known yet."""
        now = self._now()
        for receiver in receivers:
            arrow = Arrow(now, None, sender, receiver, message)
            self.flow.events.append(arrow)
            if (sender, receiver) not in self._cut:
                self._in_flight[sender, receiver].append(arrow)

    def stepping(self, host: Host, sender: Process, message: Message) -> None:
        """A replica is about to handle a message."""
        self.received(host.me, sender, message)

    def received(self, receiver: Process, sender: Process, message: object) -> None:
        """Complete the arrow of a message that has arrived; draw one if its sending was not observed."""
        now = self._now()
        for target in _on_the_machine_of(receiver):
            in_flight = self._in_flight[sender, target]
            # Arrows keep their messages alive, so that no two messages in flight share an identity.
            found = next((i for i, arrow in enumerate(in_flight) if arrow.message is message), None)
            if found is not None:
                break
        else:
            self.flow.events.append(Arrow(None, now, sender, receiver, message))
            return
        for _ in range(found):  # links are FIFO: earlier messages will not arrive any more
            in_flight.popleft()
        arrow = in_flight.popleft()
        arrow.arrived_at = now
        self.flow.slowest_s = max(self.flow.slowest_s, now - arrow.at)

    def stepped(self, host: Host, sender: Process, message: Message) -> None:
        """Check whether the message changed the replica's leadership."""
        self._note_leadership(host)

    def delivered(self, host: Host, delivery: Delivery) -> None:
        """A replica's application got a message."""
        mismatch = " (mismatch)" if delivery.mismatch else ""
        self._mark(host.me, DELIVER, f"{delivery.mid} gts {format_timestamp(delivery.global_ts)}{mismatch}")

    def installed(self, host: Host) -> None:
        """A replica's application was replaced by a snapshot."""
        self._mark(host.me, INSTALL, f"snapshot of {_count(host.log, 'delivery', 'deliveries')}")

    def crashed(self, host: Host) -> None:
        """A replica is down."""
        self._leading.discard(host.me)
        self._down.add(host.me)
        self._mark(host.me, CRASH, "")

    def restarted(self, host: Host) -> None:
        """A replica is up again. Its first start, at the beginning of a run, is not marked."""
        here = _on_the_machine_of(host.me)
        if not self._down.isdisjoint(here):
            self._down.difference_update(here)
            self._mark(host.me, RESTART, f"with {_count(host.log, 'delivery', 'deliveries')}")
            for link, in_flight in self._in_flight.items():
                if not set(here).isdisjoint(link):  # all its connections are new
                    in_flight.clear()

    def injected(self, fault: Fault) -> None:
        """Mark a fault. Crashes are marked by `crashed`."""
        match fault:
            case Cut(sources, targets):
                self._draw_cut(sources, targets)
            case Heal():
                for process in self._cut_off:
                    self._mark(process, HEAL, "")
                self._cut.clear()
                self._cut_off.clear()
            case Reset(source, target):
                self._mark(source, RESET, f"link to {label_of(target)}")
                self._in_flight[source, target].clear()
            case Stall(replica, for_s):
                self._mark(replica, STALL, f"disk, {for_s * 1000:.0f} ms")
            case Nominate(replica):
                self._mark(replica, NOMINATE, "")
            case ClientDeath(client):
                self._mark(ClientId(client + 1), CRASH, "for ever")

    def _draw_cut(self, sources: Sequence[Process], targets: Sequence[Process]) -> None:
        """Mark the side with fewer processes."""
        few, many, way = (
            (sources, targets, "to") if len(sources) <= len(targets) else (targets, sources, "from")
        )
        for process in few:
            others = [label_of(other) for other in many if other != process]
            if others:
                self._cut_off[process] = None
                self._mark(process, CUT, f"{way} {' '.join(others)}")
        for link in itertools.product(sources, targets):
            if link[0] != link[1]:
                self._cut.add(link)
                self._in_flight[link].clear()

    def _now(self) -> float:
        if self.loop is None:
            raise InvalidArgument("the recorder has no loop; set its loop to the simulation's before the run")
        self.flow.ended_at = self.loop.now
        return self.loop.now

    def _mark(self, process: Process, kind: str, text: str) -> None:
        self.flow.events.append(Mark(self._now(), process, kind, text))

    def _note_leadership(self, host: Host) -> None:
        replica = host.replica
        leads = replica is not None and replica.is_leader
        if leads == (host.me in self._leading):
            return
        (self._leading.add if leads else self._leading.remove)(host.me)
        self._mark(host.me, LEAD if leads else FOLLOW, str(getattr(replica, "cballot", "")))


def _on_the_machine_of(process: Process) -> list[Process]:
    """Return a replica, and its predecessors on the same machine, whose disks were lost."""
    if not isinstance(process, ReplicaId):
        return [process]
    disk = disk_of(process.incarnation)
    return [
        process._replace(incarnation=begun_anew(number, times))
        for number in range(disk, -1, -1)
        for times in range(process.incarnation >> DISK_BITS, -1, -1)
    ]


def name_of(message: object) -> str:
    """Return the paper's name of a message, where the paper has one; of a vote, also its subject."""
    match message:
        case Phase2a(_, local, clocks):
            return f"2A {_questions(local.mids, clocks.mids)}"
        case Phase2b(_, mids, clocks):
            return f"2B {_questions(mids, clocks.mids)}"
    kind = type(message)
    return _NAMES.get(kind) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()


def _questions(local: Sequence[MessageId], clocks: Sequence[MessageId]) -> str:
    """Return what a group decides: local timestamps ("lts"), clock updates ("clock"), or both."""
    return "+".join(name for mids, name in ((local, "lts"), (clocks, "clock")) if mids)


def label_of(process: Process) -> str:
    """Return a process's label: g0r1, or c1 for a client."""
    return str(process) if isinstance(process, ReplicaId) else f"c{process}"


def describe(message: object) -> str:
    """Return a message's essential fields, in short."""
    ts = format_timestamp
    match message:
        case Multicast(mid, dest, payload):
            return f"{mid} to {','.join(f'g{g}' for g in dest)}, {len(payload)} bytes"
        case Accept(_, group, ballot, mids, local_ts, payloads):
            what = f"{' '.join(map(str, mids))} g{group} {ballot} lts {' '.join(map(ts, local_ts))}"
            return f"{what}, payload" if payloads else what
        case AcceptAck(mids, group, ballots):
            return f"{' '.join(map(str, mids))} g{group} [{' '.join(map(str, ballots))}]"
        case Propose(group, ballot, mids, _, local_ts, decided):
            how = ["decided" if fact else "speculative" for fact in decided]
            what = f"{' '.join(map(str, mids))} g{group} {ballot} lts {' '.join(map(ts, local_ts))}"
            return f"{what}, {' '.join(how)}"
        case Phase2a(ballot, local, clocks):
            asked = (f"{mid} lts {ts(at)}" for mid, at in zip(local.mids, local.local_ts, strict=True))
            return f"{', '.join([*asked, *_passes(clocks)])} {ballot}"
        case Phase2b(ballot, mids, clocks):
            votes = (f"{mid} lts" for mid in mids)
            return f"{', '.join([*votes, *_passes(clocks)])} {ballot}"
        case Deliver(ballot, previous, run):
            decisions = ", ".join(f"{mid} lts {ts(local_ts)} gts {ts(gts)}" for mid, local_ts, gts in run)
            return f"{decisions} {ballot} after {ts(previous)}"
        case NewLeaderAck(ballot, cballot, clock, executed, part, entries):
            known = f"cballot {cballot} clock {clock} executed {ts(executed)}"
            return f"{ballot} {known}, {_pieces(part, entries)}"
        case NewState(ballot, clock, part, entries):
            return f"{ballot} clock {clock}, {_pieces(part, entries)}"
        case (
            NewLeader(ballot) | NewStateAck(ballot) | PreVote(ballot) | PreVoteAck(ballot) | HandOver(ballot)
        ):
            return str(ballot)
        case Hint(group, ballot):
            return f"g{group} {ballot}"
        case Join(_, evicts):
            return "" if evicts is None else f"evicts {evicts}"
        case MembersWanted(group):
            return f"g{group}"
        case Members(membership):
            state = "complete" if membership.is_complete else "changing"
            return f"g{membership.group} configuration {membership.current.number}, {state}"
        case Heartbeat(ballot, last_delivered):
            return f"{ballot} delivered {ts(last_delivered)}"
        case HeartbeatAck(ballot, cballot, executed):
            return f"{ballot} cballot {cballot} executed {ts(executed)}"
        case CatchUp(after):
            return f"after {ts(after)}"
        case Deliveries(deliveries, last_delivered):
            return f"{_count(deliveries, 'delivery', 'deliveries')}, sender at {ts(last_delivered)}"
        case Executed(group, watermark):
            return f"g{group} up to {ts(watermark)}"
        case LogSnapshot(log=log):
            return _count(log, "delivery", "deliveries")
        case Reply(mids, group, positions):
            return ", ".join(f"{mid} g{group} gts {ts(at)}" for mid, at in zip(mids, positions, strict=True))
        case MulticastRefused(mid, group, reason):
            return f"{mid} g{group}: {reason}"
        case _:
            return ""


def _passes(clocks: ClockUpdates) -> list[str]:
    return [f"{mid} past gts {format_timestamp(at)}" for mid, at in zip(*clocks, strict=True)]


def _count(things: Sequence[object], one: str, many: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else many}"


def _pieces(part: StatePart, entries: Sequence[object]) -> str:
    piece = f" (part {part.index + 1}/{part.count})" if part.count > 1 else ""
    return _count(entries, "entry", "entries") + piece


def text_lines(
    flow: Flow, *, everything: bool = False, start_s: float = 0.0, end_s: float = float("inf")
) -> Iterator[str]:
    """Yield a header, then one line per event by time; for messages, by the time of sending."""
    width = max((len(label_of(process)) for process in flow.processes()), default=4)
    yield f"{'sent ms':>11} {'arrived ms':>11}  {'from':<{width}}    {'to':<{width}}  message"
    for event in flow.shown(everything=everything, start_s=start_s, end_s=end_s):
        if isinstance(event, Arrow):
            sent = "?" if event.sent_at is None else f"{event.sent_at * 1000:.3f}"
            path = f"{label_of(event.source):<{width}} -> {label_of(event.target):<{width}}"
            line = f"{sent:>11} {_arrival(flow, event):>11}  {path}  {name_of(event.message):<13} "
            line += describe(event.message)
        else:
            who = f"{label_of(event.process):<{2 * width + 4}}"
            line = f"{event.at * 1000:>11.3f} {'':>11}  {who}  * {event.kind:<11} {event.text}"
        line = "".join(c if c.isprintable() else "?" for c in line.rstrip())
        yield line if len(line) <= LINE_MAX else line[: LINE_MAX - 3] + "..."


def _arrival(flow: Flow, arrow: Arrow) -> str:
    if arrow.arrived_at is not None:
        return f"{arrow.arrived_at * 1000:.3f}"
    return "lost" if flow.is_lost(arrow) else "under way"


def render_text(
    flow: Flow, *, everything: bool = False, start_s: float = 0.0, end_s: float = float("inf")
) -> str:
    """Return the flow as text: the lines of `text_lines`."""
    return "\n".join(text_lines(flow, everything=everything, start_s=start_s, end_s=end_s)) + "\n"
