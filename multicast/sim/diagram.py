"""A recorded run as a picture: the message-flow diagrams of distributed-systems papers, in SVG.

One lifeline per process, time to the right, a slanted arrow per message. A replica's messages to itself take
no time and are not drawn. An arrow with an unobserved end is dashed, with the typical slope of this run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from multicast.client import Reply
from multicast.errors import InvalidArgument
from multicast.messages import Propose, about
from multicast.sim import trace
from multicast.sim.trace import Arrow, Flow, Mark, describe, label_of, name_of
from multicast.types import Process, ReplicaId

LABELLED_ARROWS_MAX: Final = 60
"""With more arrows than this, labels would hide them; the legend's colours must suffice."""

_LEFT, _RIGHT, _TOP = 84.0, 28.0, 46.0
_ROW, _BAND_GAP, _BAND_PAD = 46.0, 16.0, 24.0
_FONT = 10.0

_COLOURS: Final = {
    "MULTICAST": "#1864ab", "REPLY": "#4dabf7", "ACCEPT": "#d9480f", "ACCEPT_ACK": "#d39a00",
    "PROPOSE speculative": "#e8679a", "PROPOSE decided": "#b0135b", "2A lts": "#d9480f", "2B lts": "#d39a00",
    "2A clock": "#5f3dc4", "2B clock": "#9775fa", "2A lts+clock": "#7a3b69", "2B lts+clock": "#8f6a3a",
    "DELIVER": "#2b8a3e", "NEWLEADER": "#862e9c", "NEWLEADER_ACK": "#c25fd6", "NEW_STATE": "#a61e4d",
    "NEWSTATE_ACK": "#f06595", "DELIVERIES": "#0b7285", "HINT": "#5c4033",
    "HEARTBEAT": "#66707a", "HEARTBEAT_ACK": "#97a0a9", "PRE_VOTE": "#6f6596", "PRE_VOTE_ACK": "#9388b8",
    "EXECUTED": "#8a9a5b", "CATCH_UP": "#5f9ea0", "SNAPSHOT": "#0b7285",
}  # fmt: skip
_OTHER_COLOUR: Final = "#9aa0a6"
_CUT_OFF: Final = 'stroke="#e8590c" stroke-width="1.6" stroke-dasharray="1.5 2.5"'
_SYMBOLS: Final = {
    trace.DELIVER: '<circle cx="{x}" cy="{y}" r="4.5" fill="#222"/>',
    trace.CRASH: '<path d="M{x} {y}m-6 -6l12 12m0 -12l-12 12" stroke="#c00" stroke-width="2.5" fill="none"/>',
    trace.RESTART: '<circle cx="{x}" cy="{y}" r="4.5" fill="#fff" stroke="#222" stroke-width="1.5"/>',
    trace.INSTALL: '<path d="M{x} {y}m-4.5 -4.5h9v9h-9z" fill="#0b7285"/>',
    trace.CUT: '<path d="M{x} {y}m-5 6l4 -12m2 12l4 -12" stroke="#e8590c" stroke-width="2" fill="none"/>',
    trace.HEAL: '<path d="M{x} {y}m-5 0l4 5l6 -10" stroke="#2b8a3e" stroke-width="2.2" fill="none"/>',
    trace.RESET: '<path d="M{x} {y}m2 -7l-5 8h6l-5 7" stroke="#e8590c" stroke-width="1.6" fill="none"/>',
    trace.STALL: '<path d="M{x} {y}m-2.5 -5v10m5 -10v10" stroke="#e8590c" stroke-width="2.4"/>',
    trace.NOMINATE: '<path d="M{x} {y}m0 -6l5.5 10h-11z" fill="#862e9c"/>',
    "leader": '<path d="M{x} {y}m-9 0h18" stroke="#444" stroke-width="3.5"/>',
    "cut off": f'<path d="M{{x}} {{y}}m-9 0h18" {_CUT_OFF}/>',
    "down": '<path d="M{x} {y}m-9 0h18" stroke="#c00" stroke-width="1.2" stroke-dasharray="2 3"/>',
    "lost": '<path d="M{x} {y}m-3.5 -3.5l7 7m0 -7l-7 7" stroke="#222" stroke-width="1.5" fill="none"/>',
    "one end not seen": '<path d="M{x} {y}m-11 0h22" stroke="#444" stroke-dasharray="5 3"/>',
}


class Unit(NamedTuple):
    """The unit and the steps of the axis: by default, at most ten round steps."""

    name: str
    per_second: float
    step: float = 0.0


MILLISECONDS: Final = Unit(" ms", 1000.0)

_Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom."""
_Line: TypeAlias = tuple[float, float, float, float]
"""Start and end of a line: x, y, x, y."""


@dataclass(slots=True)
class _Plot:
    """The layout, the drawing so far, the areas that labels must avoid, and the symbols for the legend."""

    flow: Flow
    start_s: float
    end_s: float
    width: float
    rows: dict[Process, float]
    travel_s: float
    unit: Unit
    names: Mapping[str, str]
    dots: set[tuple[Process, float]]
    parts: list[str] = field(default_factory=list)
    taken: list[_Box] = field(default_factory=list)
    lines: list[_Line] = field(default_factory=list)
    """The arrows, which labels should not hide."""
    used: set[str] = field(default_factory=set)

    def x(self, at: float) -> float:
        share = (at - self.start_s) / (self.end_s - self.start_s)
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    @property
    def bottom(self) -> float:
        return max(self.rows.values(), default=_TOP) + _BAND_PAD

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>')

    def text(self, x: float, y: float, text: str, style: str) -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{_clean(text)}</text>')

    def symbol(self, kind: str, x: float, y: float) -> None:
        self.parts.append(_SYMBOLS[kind].format(x=f"{x:.1f}", y=f"{y:.1f}"))
        self.taken.append((x - 5, y - 5, x + 5, y + 5))
        self.used.add(kind)

    def name(self, usual: str) -> str:
        return self.names.get(usual, usual)

    def label(self, text: str, spots: Sequence[tuple[float, float]], colour: str) -> bool:
        """Write a label at one of the first spots where it overlaps no other label and hides few arrows.

        Return False, without writing, if there is no such spot.
        """
        half = _half_width(text)
        costs: list[tuple[float, _Box]] = []
        for index, (x, y) in enumerate(spots):
            box = (x - half, y - _FONT, x + half, y + 2)
            inside = box[0] >= _LEFT and box[2] <= self.width - 8
            if inside and not any(_overlap(box, other) for other in self.taken):
                costs.append((index / 2 + sum(_hides(box, line) for line in self.lines), box))
        if not costs:
            return False
        _, (left, top, right, bottom) = min(costs)
        self.taken.append((left, top, right, bottom))
        # A box and not an outline of the letters: it hides the lines between them, too.
        spot = f'x="{left:.1f}" y="{top + 1:.1f}" width="{right - left:.1f}" height="11.5"'
        self.parts.append(f'<rect {spot} rx="2" fill="#fff" fill-opacity="0.85"/>')
        self.text((left + right) / 2, bottom - 2, text, f'text-anchor="middle" fill="{colour}"')
        return True


def render_svg(
    flow: Flow,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    everything: bool = False,
    title: str = "",
    width: int = 1200,
    unit: Unit = MILLISECONDS,
    names: Mapping[str, str] | None = None,
) -> str:
    """Return the flow as an SVG document; by default, from the first to the last event that is shown.

    `names` replaces the usual names of processes and of application messages, such as c1 and 1:1.
    """
    least, most = 0.0 if start_s is None else start_s, math.inf if end_s is None else end_s
    if least >= most:
        raise InvalidArgument(f"start_s ({start_s}) must be before end_s ({end_s})")
    events = flow.shown(everything=everything, start_s=least, end_s=most)
    arrows = [e for e in events if isinstance(e, Arrow) and e.source != e.target]
    marks = [e for e in events if isinstance(e, Mark)]
    travels = [a.arrived_at - a.sent_at for a in arrows if a.arrived_at is not None and a.sent_at is not None]
    travel_s = statistics.median(travels) if travels else 0.005
    times = [mark.at for mark in marks] + [at for arrow in arrows for at in _times(arrow, travel_s)]
    first, last = min(times, default=least), max(times, default=least + 0.001)
    room = max((last - first) * 0.02, 0.0005)
    left = first - room if start_s is None else start_s
    right = last + room if end_s is None else end_s
    dots = {(mark.process, mark.at) for mark in marks if mark.kind == trace.DELIVER}
    plot = _Plot(flow, left, right, width, _rows(flow.processes()), travel_s, unit, names or {}, dots)
    _draw_bands(plot)
    _draw_axis(plot)
    _draw_lifelines(plot)
    few = len(arrows) < LABELLED_ARROWS_MAX
    plot.parts.append(f'<g stroke-width="{1.3 if few else 0.8}">')
    for arrow in arrows:
        _draw_arrow(plot, arrow)
    plot.parts.append("</g>")
    _draw_marks(plot, marks)
    if few:
        _label_arrows(plot, arrows)
    plot.text(_LEFT, 24, title, 'font-size="14" font-weight="bold"')
    height = _draw_legend(plot, {_kind_of(arrow.message) for arrow in arrows})
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="{_FONT:.0f}" fill="#222">\n<title>{_clean(title or "Message flow")}</title>\n'
        f'<rect width="{width}" height="{height:.0f}" fill="#fff"/>'
    )
    return "\n".join([head, *plot.parts, "</svg>", ""])


def _kind_of(message: object) -> str:
    """Return the key of a colour: a message's name, and of PROPOSE whether all of it is decided."""
    if isinstance(message, Propose):
        return f"{name_of(message)} {'decided' if all(message.decided) else 'speculative'}"
    return name_of(message)


def _clean(text: str) -> str:
    """Escape text for XML, which cannot express most control characters."""
    return escape("".join(c if c.isprintable() else "?" for c in text))


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _half_width(text: str) -> float:
    """Return half the width of a label in the widest of the usual fonts."""
    return sum(0.35 if c.isupper() else 0.3 for c in text) * _FONT + 2


def _hides(box: _Box, line: _Line) -> bool:
    """Return whether the line crosses the box."""
    left, top, right, bottom = box
    x1, y1, x2, y2 = line
    low, high = max(top, min(y1, y2)), min(bottom, max(y1, y2))
    if low > high:
        return False
    if y1 == y2:
        return x1 < right and x2 > left
    a, b = sorted(x1 + (x2 - x1) * (y - y1) / (y2 - y1) for y in (low, high))
    return a < right and b > left


def _times(arrow: Arrow, travel_s: float) -> tuple[float, float]:
    """Return when a message leaves and arrives; an unobserved time is estimated by the typical delay."""
    begin = arrow.at - travel_s if arrow.sent_at is None else arrow.sent_at
    return begin, begin + travel_s if arrow.arrived_at is None else arrow.arrived_at


def _rows(processes: Sequence[Process]) -> dict[Process, float]:
    """Return the heights of lifelines: replicas of one group together, with space between groups."""
    rows: dict[Process, float] = {}
    y, before = _TOP + _BAND_PAD, None
    for process in processes:
        group = process.group if isinstance(process, ReplicaId) else -1
        if before is not None:
            y += _ROW if group == before else _ROW + _BAND_GAP
        rows[process], before = y, group
    return rows


def _draw_bands(plot: _Plot) -> None:
    groups: dict[int, list[float]] = {}
    for process, y in plot.rows.items():
        if isinstance(process, ReplicaId):
            groups.setdefault(process.group, []).append(y)
    for index, (group, ys) in enumerate(groups.items()):
        top, height = ys[0] - _BAND_PAD, ys[-1] - ys[0] + 2 * _BAND_PAD
        plot.parts.append(
            f'<rect class="band" x="8" y="{top:.1f}" width="{plot.width - 16:.1f}" height="{height:.1f}" '
            f'rx="6" fill="{("#eef4fb", "#f8f3e8")[index % 2]}"/>'
        )
        turn = f'transform="translate(20 {top + height / 2:.1f}) rotate(-90)"'
        plot.text(0, 0, f"group {group}", f'text-anchor="middle" font-size="11" fill="#667" {turn}')


def _draw_axis(plot: _Plot) -> None:
    name, scale, step = plot.unit
    start, end = plot.start_s * scale, plot.end_s * scale
    if not step:
        power = 10.0 ** math.floor(math.log10((end - start) / 10))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * 10 >= end - start)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    for tick in range(math.ceil(start / step), math.floor(end / step) + 1):
        x = plot.x(tick * step / scale)
        plot.line(x, _TOP - 6, x, plot.bottom + 6, 'stroke="#c3c8d4" stroke-width="0.6"')
        plot.text(x, plot.bottom + 19, f"{tick * step:.{digits}f}{name}", 'text-anchor="middle" fill="#556"')


def _spans(plot: _Plot, process: Process, begin: str, ends: Sequence[str]) -> Iterator[tuple[float, float]]:
    """Return the intervals, inside the window, from a mark of one kind to the next that ends it."""
    since: float | None = None
    marks = [m for m in plot.flow.events if isinstance(m, Mark) and m.process == process]
    for mark in [*marks, Mark(math.inf, process, ends[0], "")]:
        if mark.kind == begin and since is None:
            since = mark.at
        elif mark.kind in ends and since is not None:
            if mark.at >= plot.start_s and since <= plot.end_s:
                yield plot.x(max(since, plot.start_s)), plot.x(min(mark.at, plot.end_s))
            since = None


def _draw_lifelines(plot: _Plot) -> None:
    """Draw a line per process: thick while it leads, dashed while it is down."""
    for process, y in plot.rows.items():
        style = f'class="lifeline" data-process={quoteattr(label_of(process))} stroke="#444"'
        plot.line(_LEFT, y, plot.width - _RIGHT, y, style)
        plot.text(_LEFT - 8, y + 4, plot.name(label_of(process)), 'text-anchor="end" font-size="12"')
        for x1, x2 in _spans(plot, process, trace.LEAD, (trace.FOLLOW, trace.CRASH)):
            plot.line(x1, y, x2, y, 'class="leading" stroke="#444" stroke-width="3.5"')
            plot.used.add("leader")
        for x1, x2 in _spans(plot, process, trace.CUT, (trace.HEAL,)):
            plot.line(x1, y + 5, x2, y + 5, f'class="cut-off" {_CUT_OFF}')
            plot.used.add("cut off")
        for x1, x2 in _spans(plot, process, trace.CRASH, (trace.RESTART,)):
            plot.line(x1, y, x2, y, 'stroke="#fff" stroke-width="4"')
            plot.line(x1, y, x2, y, 'class="down" stroke="#c00" stroke-width="1.2" stroke-dasharray="2 3"')
            plot.used.add("down")


def _ends(plot: _Plot, arrow: Arrow) -> tuple[float, float, float, float]:
    """Return the ends of an arrow, perhaps outside the window. A lost one ends about half-way."""
    begin, end = _times(arrow, plot.travel_s)
    x1, x2, y1, y2 = plot.x(begin), plot.x(end), plot.rows[arrow.source], plot.rows[arrow.target]
    if not plot.flow.is_lost(arrow):
        return x1, y1, x2, y2
    y = (y1 + y2) / 2
    if any(abs(y - row) < 8 for row in plot.rows.values()):  # it would seem to arrive there
        y -= math.copysign(14, y2 - y1)
    return x1, y1, x1 + (x2 - x1) * (y - y1) / (y2 - y1), y


def _draw_arrow(plot: _Plot, arrow: Arrow) -> None:
    x1, y1, x2, y2 = _ends(plot, arrow)
    slope = (y2 - y1) / (x2 - x1) if x2 > x1 else 0.0
    left, right = max(x1, plot.x(plot.start_s)), min(x2, plot.x(plot.end_s))
    lost = plot.flow.is_lost(arrow)
    seen = lost or None not in (arrow.sent_at, arrow.arrived_at)
    colour = _COLOURS.get(_kind_of(arrow.message), _OTHER_COLOUR)
    style = f'stroke="{colour}"'
    if not seen:
        style += ' stroke-dasharray="5 3"'
        plot.used.add("one end not seen")
    what = f"{label_of(arrow.source)} to {label_of(arrow.target)}: {name_of(arrow.message)} "
    plot.parts.append(f'<g class="arrow"><title>{_clean(what + describe(arrow.message))}</title>')
    drawn = (left, y1 + (left - x1) * slope, right, y2 - (x2 - right) * slope)
    plot.line(*drawn, style)
    plot.lines.append(drawn)
    if x2 == right and lost:
        plot.symbol("lost", x2, y2)
    elif x2 == right:
        angle = math.atan2(y2 - y1, x2 - x1)
        turn = f"translate({x2:.1f} {y2:.1f}) rotate({math.degrees(angle):.1f})"
        tip = -4 if (arrow.target, arrow.arrived_at) in plot.dots else 0  # the dot would hide it
        plot.parts.append(f'<path d="M{tip} 0l-9 -3.6v7.2z" fill="{colour}" transform="{turn}"/>')
        x, y = x2 + (tip - 5) * math.cos(angle), y2 + (tip - 5) * math.sin(angle)
        plot.taken.append((x - 4, y - 4, x + 4, y + 4))
    plot.parts.append("</g>")


def _label_arrows(plot: _Plot, arrows: Sequence[Arrow]) -> None:
    """Label the arrows; of those that leave or arrive together, the one that is easiest to label."""
    labelled: set[tuple[str, Process, float]] = set()
    for arrow in sorted(arrows, key=lambda a: abs(plot.rows[a.source] - plot.rows[a.target])):
        message = arrow.message
        mids = message.mids if isinstance(message, Reply) else dict.fromkeys(about(message))
        text = f"{_kind_of(message)} {_list(plot, map(str, mids))}".rstrip()
        ends = {
            (text, process, at)
            for process, at in ((arrow.source, arrow.sent_at), (arrow.target, arrow.arrived_at))
            if at is not None
        }
        if labelled.isdisjoint(ends) and _label_arrow(plot, arrow, text):
            labelled |= ends


def _list(plot: _Plot, mids: Iterable[str]) -> str:
    """Return application messages for a label: few by name, many by number."""
    names = [plot.name(mid) for mid in mids]
    return f"{len(names)} messages" if len(names) > 3 else ", ".join(names)


def _label_arrow(plot: _Plot, arrow: Arrow, text: str) -> bool:
    """Label an arrow where it passes between two lifelines; a long one nearer to its start."""
    x1, y1, x2, y2 = _ends(plot, arrow)
    between = [row + offset for row in plot.rows.values() for offset in (23, -23, 31, -31, 15, -15)]
    spots = [(x1 + (x2 - x1) * (y - y1) / (y2 - y1), y + 4) for y in between if (y - y1) * (y - y2) < 0]
    best = y1 + math.copysign(max(_ROW / 2, 0.3 * abs(y2 - y1)), y2 - y1) + 4
    spots.sort(key=lambda spot: abs(spot[1] - best))
    return plot.label(text, spots, _COLOURS.get(_kind_of(arrow.message), "#555"))


def _draw_marks(plot: _Plot, marks: Sequence[Mark]) -> None:
    drawn = [(mark, plot.x(mark.at), plot.rows[mark.process]) for mark in marks if mark.kind in _SYMBOLS]
    for mark, x, y in drawn:
        what = _clean(f"{label_of(mark.process)}: {mark.kind} {mark.text}")
        plot.parts.append(f"<g class={quoteattr(mark.kind)}><title>{what}</title>")
        plot.symbol(mark.kind, x, y)
        plot.parts.append("</g>")
    delivered: dict[tuple[float, float], list[str]] = {}
    for mark, x, y in drawn:
        if mark.kind == trace.DELIVER:
            delivered.setdefault((x, y), []).append(mark.text.partition(" ")[0])
    for (x, y), mids in delivered.items():
        text = f"deliver {_list(plot, mids)}"
        aside = _half_width(text) + 7
        spots = [(x + dx, y + dy) for dx in (0, aside, -aside) for dy in (-8, 16)]
        plot.label(text, [*spots, (x + aside, y + 4)], "#222")


def _draw_legend(plot: _Plot, names: set[str]) -> float:
    """Draw the legend of the colours and symbols that occur. Return the picture's height."""
    x, y = _LEFT, plot.bottom + 46
    kinds = [kind for kind in _SYMBOLS if kind in plot.used]
    for name in [*(n for n in _COLOURS if n in names), *sorted(names - set(_COLOURS)), *kinds]:
        if x + 40 + len(name) * 7 > plot.width - _RIGHT:
            x, y = _LEFT, y + 20
        if name in _SYMBOLS:
            plot.symbol(name, x + 11, y - 4)
        else:
            style = f'stroke="{_COLOURS.get(name, _OTHER_COLOUR)}" stroke-width="2.5"'
            plot.line(x, y - 4, x + 22, y - 4, style)
        plot.text(x + 28, y, name, 'font-size="11"')
        x += 50 + len(name) * (7.6 if name.isupper() else 6)
    return y + 20
