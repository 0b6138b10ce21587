"""The `wbkv` command, assembled from the subcommands that are installed.

The client's own commands are modules of `wbkv.cli`; others are entry points of the group `wbkv.commands`.
A subcommand whose packages are missing is not offered: a client-only install has the client's commands, the
server's install adds its own. Only the subcommand that runs is loaded, so that a `get` starts quickly.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Protocol, cast

from wbkv import errors
from wbkv.cli.hints import did_you_mean

OWN: Final = {
    "compact": "compact", "completion": "completion", "del": "delete", "get": "get", "help": "help",
    "put": "put", "scan": "scan", "snapshot": "snapshot", "status": "status", "txn": "txn", "watch": "watch",
}  # fmt: skip
"""The client's commands and their modules."""

GROUP: Final = "wbkv.commands"
ENDING: Final = ("-h", "--help", "--version")
WITH_VALUE: Final = ("-e", "--endpoints", "--timeout")
"""The options with a value that are allowed before the command."""

BEFORE: Final = (*WITH_VALUE, *ENDING, "--json")
"""All options that are allowed there."""

EPILOG: Final = """\
Options of all client commands, such as --endpoints and --json, are also allowed before the command.
`wbkv help COMMAND` and `wbkv COMMAND --help` describe a command.

exit status:
  0    success
  1    negative result: the key is absent, a condition does not hold, the check failed, or an operation cannot
       be performed (nothing was written)
  2    bad usage or bad input: nothing was executed
  3    the cluster is unreachable or timed out: nothing was executed
  4    unknown: a write may have been executed
  5    the requested history was compacted
  6    internal error of the cluster, or a response that is too large to be sent
  130  interrupted by Ctrl-C
"""


STATUSES: Final[tuple[tuple[type[errors.Error], int], ...]] = (
    (errors.Pinned, 1), (errors.OperationFailed, 1), (errors.InvalidRequest, 2), (errors.Unavailable, 3),
    (errors.DeadlineExceeded, 3),
    (errors.OutcomeUnknown, 4), (errors.Compacted, 5),
)  # fmt: skip
FAILED: Final = 6
INTERRUPTED: Final = 130


class Command(Protocol):
    """A subcommand, as an entry point must provide it."""

    help: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command. Return the exit status."""


class Missing(ValueError):
    """A command that is unknown or not installed."""


class Parser(argparse.ArgumentParser):
    """A parser that suggests corrections, and allows options between arguments.

    It rejects abbreviated options, whose meaning would change when another option is added.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(allow_abbrev=False, **how)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments, or exit with an error message."""
        nested = any(action.nargs == argparse.PARSER for action in self._actions)
        # After `--`, or with nested subcommands, options cannot be anywhere.
        mixed = not nested and "--" not in argv
        parse = self.parse_known_intermixed_args if mixed else self.parse_known_args
        arguments, rest = parse(argv)
        if rest:
            hint = did_you_mean(rest[0].partition("=")[0], self.options(argv))
            self.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return arguments

    def options(self, argv: Sequence[str]) -> Collection[str]:
        """Return the options of the subcommand that the arguments name."""
        for index, word in enumerate(argv):
            for action in self._actions:
                if action.nargs == argparse.PARSER and isinstance(action.choices, dict):
                    nested = action.choices.get(word)
                    if isinstance(nested, Parser):
                        return nested.options(argv[index + 1 :])
        return self._option_string_actions


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. Return the exit status, as in `EPILOG`."""
    try:
        if argv is not None:
            return _main(argv)
        with _interruptible():
            return _main(sys.argv[1:])
    except KeyboardInterrupt:
        return INTERRUPTED


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT raise `KeyboardInterrupt`, and end the program at once when this is over.

    It does so also where the program was started with SIGINT ignored: a shell starts `command &` of a script
    so, and Python then leaves the signal ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def _main(argv: Sequence[str]) -> int:
    before, name, after = _split(argv)
    if name is None:
        full_parser().parse_args(before)  # exits with the help, or an error message
        return 2
    try:
        command = load(name)
    except Missing as error:
        unknown = [word for word in before if word[:1] == "-" and word.partition("=")[0] not in BEFORE]
        hint = did_you_mean(unknown[0].partition("=")[0], BEFORE) if unknown else ""
        complaint = f"there is no option {unknown[0]}{hint}" if unknown else error
        sys.stderr.write(f"wbkv: {complaint}\n")
        return 2
    parser = Parser(prog=f"wbkv {name}", description=command.help)
    command.configure(parser)
    return _run(name, command, parser.parse([*before, *after]))


def _split(argv: Sequence[str]) -> tuple[Sequence[str], str | None, Sequence[str]]:
    """Split the arguments into options before the command, the command if any, and the rest."""
    index = 0
    while index < len(argv) and argv[index].startswith("-") and argv[index] not in ENDING:
        index += 2 if argv[index] in WITH_VALUE else 1
    if index >= len(argv) or argv[index].startswith("-"):
        return argv, None, ()
    return argv[:index], argv[index], argv[index + 1 :]


def load(name: str) -> Command:
    """Load the command of this name. Raises `Missing`, whose message names the remedy."""
    if name in OWN:
        return cast(Command, importlib.import_module(f"wbkv.cli.{OWN[name]}").command)
    others = {entry.name: entry for entry in _others()}
    if name in others:
        try:
            return cast(Command, others[name].load())
        except ModuleNotFoundError as error:
            raise Missing(_needs(name, error)) from None
    known = list(_installed())
    hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
    raise Missing(f"there is no command {name!r}{hint}")


def _others() -> Collection[Any]:
    from importlib.metadata import entry_points  # slow, and the client's commands do not need it

    return entry_points(group=GROUP)


def _needs(name: str, error: ModuleNotFoundError) -> str:
    if error.name == "wbkv_bench":
        return f"{name} belongs to the development install: clone the repository, `make .venv/installed`"
    extra = {"check": "check", "completion": "cli", "pipeline": "pipeline"}.get(name, "server")
    return f"{name} needs {error.name}, which is not installed: pip install 'wbkv[{extra}]'"


def full_parser() -> argparse.ArgumentParser:
    """Return a parser of all installed commands: for the help, and for completion scripts."""
    from wbkv.cli.options import add_common

    parser = Parser(
        prog="wbkv",
        description="A partitioned key-value store on atomic multicast.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    add_common(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in _installed().items():
        command.configure(commands.add_parser(name, help=command.help, description=command.help))
    return parser


def _installed() -> dict[str, Command]:
    """Load all commands whose packages are installed."""
    found: dict[str, Command] = {}
    for name in sorted({*OWN, *(entry.name for entry in _others())}):
        with contextlib.suppress(Missing):
            found[name] = load(name)
    return found


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"wbkv {version('wbkv')}\n")
        parser.exit()


def _run(name: str, command: Command, arguments: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot encode must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = command.run(arguments)
        sys.stdout.flush()
    except errors.Error as error:
        return _complain(name, error, status_of(error))
    except ValueError as error:
        # Every ValueError of the commands names the argument and the reason.
        return _complain(name, error)
    except BrokenPipeError:
        # The reader of the output has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(name, error)
    except ModuleNotFoundError as error:
        return _complain(name, _needs(name, error))
    return status


def status_of(error: errors.Error) -> int:
    """Return the exit status for an error of the client."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), FAILED)


def _complain(name: str, error: object, status: int = 2) -> int:
    sys.stderr.write(f"wbkv {name}: {error}\n")
    return status
