"""The style of plots, and their conversion to files: equal figures give equal bytes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

INK: Final = "#1a1c1e"
"""The colour of text and axes. The page replaces it by its own, so that plots are legible on dark ground."""

# Okabe and Ito's palette, safe for the colour-blind, without its yellow, which is invisible on white.
_KNOWN: Final = {"whitebox": "#0072B2", "fastcast": "#D55E00", "ftskeen": "#009E73", "skeen": "#CC79A7"}
_OTHERS: Final = ("#E69F00", "#56B4E9", "#999999", "#9467bd", "#8c564b", "#7f7f00")
PALETTE: Final = (*_KNOWN.values(), *_OTHERS)
"""For lines of one protocol."""
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES: Final = ("-", "--", ":", "-.")
_NAMES: Final = {"whitebox": "WbCast", "fastcast": "FastCast", "ftskeen": "FT-Skeen", "skeen": "Skeen"}
_STYLE: Final[dict[Any, Any]] = {  # Matplotlib types each name by itself
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.facecolor": "white",
    "figure.titlesize": 12,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": "#8a8f98",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "savefig.dpi": 144,
    "svg.fonttype": "none",
    "svg.hashsalt": "wbkv",
    "text.color": INK,
    "text.parse_math": False,  # names may have dollars
    "xtick.color": INK,
    "ytick.color": INK,
}


def protocol_name(protocol: str) -> str:
    """Return the paper's name of a protocol, or the name as it is."""
    return _NAMES.get(protocol, protocol or "unnamed protocol")


def protocol_styles(protocols: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a marker for each protocol. The paper's have the same ones in every report."""
    names = sorted(set(protocols))
    others = [name for name in names if name not in _KNOWN and name]
    colours = {**_KNOWN, "": INK}
    colours |= {name: _OTHERS[index % len(_OTHERS)] for index, name in enumerate(others)}
    order = [*_KNOWN, *others, ""]
    return {name: (colours[name], _MARKERS[order.index(name) % len(_MARKERS)]) for name in names}


@contextmanager
def styled() -> Iterator[None]:
    """Apply our style in the block, whatever the user's settings."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def as_svg(figure: Figure, name: str) -> str:
    """Return SVG without a date, whose ids depend only on the name and the figure."""
    out = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def as_png(figure: Figure) -> bytes:
    """Return PNG without the program's version."""
    out = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def number(value: float) -> str:
    """Format a number for an axis or a label: 0.25, 1, 40, 2.5k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def plain_log(axes: Axes, which: str) -> None:
    """Make an axis logarithmic, with plain numbers (0.5, 20, 3k) that do not overlap."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = sorted(axes.get_xlim() if which == "x" else axes.get_ylim())
    steps = (1.0, 2.0, 5.0) if high / max(low, 1e-12) < 200 else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())


def plain(axes: Axes, which: str) -> None:
    """Label a linear axis with short numbers."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def label(row: Mapping[str, Any]) -> str:
    """Return the label of a measurement in a legend."""
    parts = [protocol_name(row["protocol"])] if row["protocol"] else []
    if row["clients"]:
        parts.append(f"{row['clients']:,} client{'' if row['clients'] == 1 else 's'}")
    return ", ".join(parts) or "all clients"
