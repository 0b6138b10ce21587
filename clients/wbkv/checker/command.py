"""`wbkv check`: decide whether a recorded history is strictly serializable."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from wbkv.checker import MODELS, Verdict, check, read

# Not imported here: other commands should not wait for them.
for package in ("numpy", "rustworkx"):
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"wbkv check needs {package}: install wbkv[check]", name=package)


class CheckCommand:
    """Check a history, and report the verdict."""

    help = "decide from a recorded history whether the store was strictly serializable"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = "Status 0: it holds. 1: anomalies were found. 2: no history, or bad arguments."
        add = parser.add_argument
        add("file", metavar="FILE", help="JSON lines, as clients record them; - for standard input")
        add("--model", choices=MODELS, default=MODELS[0], help=f"what must hold ({MODELS[0]})")
        add("--json", action="store_true", help="print one JSON object")
        add("--draw", type=Path, metavar="FILE", help="draw the cycles found: FILE.svg, or FILE.dot")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        from wbkv.checker import drawing, report

        drawn: Path | None = arguments.draw
        if drawn is not None and drawn.suffix not in (".svg", ".dot"):
            raise ValueError(f"--draw {drawn}: only .svg and .dot can be drawn")
        verdict = _judge(arguments.file, arguments.model)
        if drawn is not None:
            draw = drawing.as_svg if drawn.suffix == ".svg" else drawing.as_dot
            drawn.write_text(draw(verdict), encoding="utf-8")
        if arguments.json:
            print(report.as_json(verdict))
        else:
            for line in report.as_text(verdict):
                print(line)
        return 0 if verdict.holds else 1


def _judge(name: str, model: str) -> Verdict:
    if name == "-":
        return check(read(sys.stdin.buffer), model)
    with Path(name).open("rb") as file:
        return check(read(file), model)


command = CheckCommand()
