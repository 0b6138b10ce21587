"""Tables: drawn by rich on a terminal, plain columns elsewhere.

Rows may come one by one and be many: they are laid out in pages, so that a long scan neither waits for its
end nor needs memory for all of it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from wbkv.cli.text import escape
from wbkv.data import Entry

PAGE_ROWS: Final = 500


def show(head: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> int:
    """Print a table. Return the number of rows."""
    remaining = iter(rows)
    widths = [len(name) for name in head]
    shown = 0
    page = [[_cell(cell) for cell in row] for row in itertools.islice(remaining, PAGE_ROWS)]
    if title:
        sys.stdout.write(f"{title}\n")
    while page or not shown:
        if not (_on_terminal() and _draw(head, page, heading=not shown)):
            _columns(head, page, widths, heading=not shown)
        if not page:
            break
        shown += len(page)
        page = [[_cell(cell) for cell in row] for row in itertools.islice(remaining, PAGE_ROWS)]
    return shown


def show_entries(entries: Iterable[Entry[bytes]], *, long: bool) -> None:
    """Print keys and values; with `long`, also their revisions and versions."""
    if not long:
        show(("KEY", "VALUE"), ((escape(entry.key), escape(entry.value)) for entry in entries))
        return
    show(
        ("KEY", "VALUE", "VERSION", "CREATED", "MODIFIED"),
        (
            (escape(entry.key), escape(entry.value), entry.version, entry.create_revision, entry.mod_revision)
            for entry in entries
        ),
    )


def _cell(cell: object) -> str:
    return "-" if cell is None else str(cell)


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _draw(head: Sequence[str], page: Sequence[Sequence[str]], *, heading: bool) -> bool:
    """Print with rich, if it is installed. Rich omits colours if NO_COLOR is set."""
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    table = Table(box=SIMPLE_HEAD, show_header=heading, header_style="bold cyan", pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in page:
        # As Text objects, since stored values may look like rich's markup.
        table.add_row(*map(Text, row))
    Console().print(table)
    return True


def _columns(head: Sequence[str], page: Sequence[Sequence[str]], widths: list[int], *, heading: bool) -> None:
    """Print columns, each as wide as its widest cell so far."""
    lines = [head, *page] if heading else page
    for index, column in enumerate(zip(*lines, strict=True)):
        widths[index] = max(widths[index], *map(len, column))
    for line in lines:
        sys.stdout.write("  ".join(map(str.ljust, line, widths)).rstrip() + "\n")
