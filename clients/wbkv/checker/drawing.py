"""Cycles as pictures: in the terminal, as SVG, and as text for Graphviz."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from wbkv.checker.history import show
from wbkv.checker.verdict import Anomaly, Step, Verdict, meaning

COLOURS = {
    "ww": "#c92a2a",
    "wr": "#2b8a3e",
    "rw": "#1864ab",
    "process": "#868e96",
    "realtime": "#e8590c",
    "revision": "#862e9c",
}
WIDTH = 980
"""The width of the picture, in pixels."""
TEXT = 100
"""How many characters of a line fit into the picture, and into a wide terminal."""
PICTURES = 20
"""How many cycles are drawn. More would hide the first ones, which are the strongest evidence."""


def label(step: Step) -> str:
    """Return the label of a dependency."""
    return step.kind if step.key is None else f"{step.kind} {show(step.key)}"


def operations(verdict: Verdict, number: int) -> str:
    """Return the operations of a transaction on one line."""
    return shorten(", ".join(verdict.transactions[number].operations), TEXT)


def shorten(text: str, length: int) -> str:
    """Cut a text that is too long."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def in_text(verdict: Verdict, anomaly: Anomaly) -> Iterator[str]:
    """Draw a cycle as lines: transactions from top to bottom, and an arrow back."""
    for position, step in enumerate(anomaly.cycle):
        rail = "|   " if position else "+-> "
        yield f"{rail}T{step.source}  {operations(verdict, step.source)}"
        yield f"|    |  {label(step)}"
        yield "|    v" if position < len(anomaly.cycle) - 1 else "+----+"


def as_dot(verdict: Verdict) -> str:
    """Return all cycles as input for Graphviz."""
    lines = ["digraph anomalies {", '  node [shape=box, fontname="monospace"];']
    for position, anomaly in enumerate(_cycles(verdict)):
        lines += [f"  subgraph cluster_{position} {{", f"    label={_quoted(anomaly.name)};"]
        for number in anomaly.transactions:
            text = f"T{number}\n" + "\n".join(verdict.transactions[number].operations)
            lines.append(f"    a{position}_{number} [label={_quoted(text)}];")
        for step in anomaly.cycle:
            ends = f"a{position}_{step.source} -> a{position}_{step.target}"
            colour = COLOURS[step.kind]
            lines.append(f"    {ends} [label={_quoted(label(step))}, color={_quoted(colour)}];")
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def as_svg(verdict: Verdict) -> str:
    """Return all cycles as a self-contained SVG: one ring below the other."""
    body: list[str] = []
    top = 20.0
    for anomaly in _cycles(verdict):
        lines, top = _ring(verdict, anomaly, top)
        body += lines
    if not body:
        body, top = [_text(20, 40, "No cycle was found.", "font-weight='bold'")], 60.0
    markers = "".join(
        f"<marker id='{kind}' viewBox='0 0 10 10' refX='9' refY='5' "
        "markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0 0L10 5L0 10z' fill='{colour}'/></marker>"
        for kind, colour in COLOURS.items()
    )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{top:.0f}' "
        f"font-family='monospace' font-size='12'><defs>{markers}</defs>"
        f"<rect width='100%' height='100%' fill='white'/>{''.join(body)}</svg>\n"
    )


def _ring(verdict: Verdict, anomaly: Anomaly, top: float) -> tuple[list[str], float]:
    """Draw one cycle. Return it, and where the next one begins."""
    steps = anomaly.cycle
    radius = max(70.0, 26.0 * len(steps)) if len(steps) > 2 else 50.0
    centre_x, centre_y = WIDTH / 2, top + 50 + radius + 20
    body = [_text(20, top + 16, f"{anomaly.name}: {meaning(anomaly.name)}", "font-weight='bold'")]
    positions: dict[int, tuple[float, float]] = {}
    for position, step in enumerate(steps):
        angle = 2 * math.pi * position / len(steps) - math.pi
        positions[step.source] = (
            centre_x + 2 * max(radius, 75) * math.cos(angle),
            centre_y + radius * math.sin(angle),
        )
    for step in steps:
        body += _arrow(step, positions[step.source], positions[step.target])
    for number, (x, y) in positions.items():
        title = escape("\n".join(verdict.transactions[number].operations))
        name = _text(x, y + 4, f"T{number}", "text-anchor='middle'")
        body.append(
            f"<g><title>{title}</title><rect x='{x - 28:.1f}' y='{y - 14:.1f}' width='56' height='28' rx='6' "
            f"fill='#f1f3f5' stroke='#343a40'/>{name}</g>"
        )
    y = centre_y + radius + 46
    for number in positions:
        body.append(_text(20, y, f"T{number}: {operations(verdict, number)}"))
        y += 16
    for step in steps:
        colour = f"fill='{COLOURS[step.kind]}'"
        body.append(_text(20, y, shorten(f"{step.kind}: {step.text}", TEXT + 20), colour))
        y += 16
    return body, y + 24


def _arrow(step: Step, begin: tuple[float, float], end: tuple[float, float]) -> list[str]:
    """Draw an arrow that bends outwards, from the border of one box to that of the other."""
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    # Clockwise around the ring, so the left of an arrow's way is outside.
    bend = ((begin[0] + end[0]) / 2 + 0.22 * dy, (begin[1] + end[1]) / 2 - 0.22 * dx)
    x1, y1 = _edge(begin, bend)
    x2, y2 = _edge(end, bend)
    out = 12 / math.hypot(dx, dy)
    x = 0.25 * x1 + 0.5 * bend[0] + 0.25 * x2 + out * dy
    y = 0.25 * y1 + 0.5 * bend[1] + 0.25 * y2 - out * dx
    colour = COLOURS[step.kind]
    anchor = "start" if out * dy > 4 else "end" if out * dy < -4 else "middle"
    return [
        f"<path d='M{x1:.1f} {y1:.1f}Q{bend[0]:.1f} {bend[1]:.1f} {x2:.1f} {y2:.1f}' fill='none' "
        f"stroke='{colour}' stroke-width='1.6' marker-end='url(#{step.kind})'/>",
        _text(x, y + 4, shorten(label(step), 24), f"text-anchor='{anchor}' fill='{colour}'"),
    ]


def _edge(box: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Return the point where a line from the middle of a box leaves it."""
    dx, dy = towards[0] - box[0], towards[1] - box[1]
    scale = min(30 / abs(dx) if dx else math.inf, 16 / abs(dy) if dy else math.inf, 1.0)
    return box[0] + dx * scale, box[1] + dy * scale


def _cycles(verdict: Verdict) -> list[Anomaly]:
    return [anomaly for anomaly in verdict.anomalies if anomaly.cycle][:PICTURES]


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\l") + '"'
