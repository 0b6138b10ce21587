"""`wbkv txn`: execute a transaction."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from wbkv.cli import language, options, scriptjson, tables
from wbkv.cli.script import Script
from wbkv.cli.text import escape
from wbkv.data import Entry, Failed, Scanned, TxnResult

EXAMPLES: Final = """\
examples:
  Move 30 from alice to bob, if both exist:
    wbkv txn 'when exists(alice) and exists(bob) then add alice -30; add bob 30 otherwise get alice; get bob'

  Take 3 from the stock, unless that would leave less than none (then nothing changes):
    wbkv txn 'add stock -3 floor 0; put order/7 3'

  Take a lock if it is free, or else show its holder:
    wbkv txn 'when absent(lock/door) then put lock/door me otherwise get lock/door'

  Several reads as of one revision, as JSON:
    wbkv txn --json 'get alice; scan prefix(user/) limit 10 reverse; scan between(a, m)'

conditions:
  exists(KEY)  absent(KEY)  value(KEY) == VALUE  value(KEY) starts_with VALUE  number(KEY) >= N
  version(KEY) == N  mod_revision(KEY) == N  create_revision(KEY) == N  unchanged(RANGE) since REVISION
  any(CONDITION, ...)  all(CONDITION, ...)             also !=, <, >, <= and >=; values are bytes
operations:
  get KEY  put KEY VALUE  swap KEY VALUE  del KEY  del RANGE  append KEY VALUE  min KEY N  max KEY N
  add KEY N [floor N] [ceiling N]  scan RANGE [limit N] [reverse]     between them ; or a new line
ranges:
  prefix(KEY)  between(KEY, KEY)  everything()
Keys and values with spaces or any of ()<>=!;,# need quotes, "..." or '...', with escapes: \\x00 \\n \\".

As JSON (--from-json): {"when": [["number", "bob", ">", 0]], "then": [["add", "bob", 30]], "otherwise":
[["get", "bob"]]}; also ["any", CONDITION, ...] and ["add", KEY, N, {"floor": N}]; ranges are {"prefix": KEY},
{"between": [KEY, KEY]}, {"everything": true}; keys and values that are not text are {"base64": "..."}.

If an operation cannot be performed (not a number, below the floor ...), nothing is written in any partition.
Status 0: `then` was executed. 1: a condition does not hold (`otherwise` was executed), or an operation
failed.
"""


class TxnCommand:
    """Execute a transaction."""

    help = "execute a transaction: operations in any partitions, if conditions hold"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = EXAMPLES
        add = parser.add_argument
        how = "the transaction; - or nothing reads the standard input"
        add("script", metavar="TRANSACTION", nargs="?", help=how)
        add("--file", metavar="FILE", help="read the transaction from a file")
        add("--from-json", action="store_true", help="the transaction is JSON")
        alone = "perform the other operations if one cannot be performed, instead of none"
        add("--allow-failures", action="store_true", help=alone)
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        if arguments.script is not None and arguments.file is not None:
            raise ValueError("pass the transaction or --file FILE, not both")
        script = _read(arguments)
        with options.connect(arguments) as client:
            result = (
                client.txn(allow_failures=arguments.allow_failures or script.allow_failures)
                .when(*(condition.lower() for condition in script.conditions))
                .then(*(operation.lower() for operation in script.then))
                .otherwise(*(operation.lower() for operation in script.otherwise))
                .commit()
            )
        if arguments.json:
            options.print_json(_json(result))
        else:
            _print(script, result)
        return int(not result.succeeded or any(isinstance(each, Failed) for each in result.results))


def _read(arguments: argparse.Namespace) -> Script:
    if arguments.script in (None, "-"):
        text = options.read_input(arguments.file or "-").decode("utf-8", "surrogateescape")
    else:
        text = arguments.script
    if arguments.from_json:
        return scriptjson.parse(text)
    try:
        return language.parse(text)
    except language.ScriptError as error:
        raise ValueError(f"{error}\n{error.pointer}") from None


def _json(result: TxnResult[bytes]) -> dict[str, Any]:
    return {
        "succeeded": result.succeeded, "revision": result.revision, "unmet": list(result.unmet),
        "results": [_result_json(each) for each in result.results],
    }  # fmt: skip


def _result_json(found: Entry[bytes] | Scanned[bytes] | Failed | int | None) -> Any:
    if isinstance(found, Entry):
        return options.entry_json(found)
    if isinstance(found, Scanned):
        entries = [options.entry_json(entry) for entry in found.entries]
        return {"entries": entries, "count": found.count, "more": found.more}
    return {"failed": found.fault} if isinstance(found, Failed) else found


def _print(script: Script, result: TxnResult[bytes]) -> None:
    if not result.succeeded:
        unmet = ", ".join(str(script.conditions[index]) for index in result.unmet)
        sys.stderr.write(f"wbkv txn: does not hold: {unmet}\n")
    branch = script.then if result.succeeded else script.otherwise
    rows = [
        (str(operation) if index == 0 else "", line)
        for operation, found in zip(branch, result.results, strict=True)
        for index, line in enumerate(_lines_of(found))
    ]
    if rows:
        tables.show(("OPERATION", "RESULT"), rows)
    options.print_line(f"revision {result.revision}")


def _lines_of(found: Entry[bytes] | Scanned[bytes] | Failed | int | None) -> list[str]:
    """Return the lines that show a result."""
    if isinstance(found, Entry):
        return [escape(found.value)]
    if isinstance(found, Scanned):
        lines = [f"{escape(entry.key)} = {escape(entry.value)}" for entry in found.entries]
        return [*lines, f"{found.count} keys{', and more' if found.more else ''}"]
    if isinstance(found, Failed):
        return [f"FAILED: {found.fault}"]
    return ["-" if found is None else str(found)]


command = TxnCommand()
