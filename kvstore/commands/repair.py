"""`wbkv repair`: check the disk of a node that does not run, and mend what can be mended safely."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.config.toml import load_config
from kvstore.storage.identity import LOG, STATE
from kvstore.storage.renewal import kept_logs
from kvstore.storage.scrub import TableReport

POLL_S: Final = 0.2
"""How often a node that reads its rows is asked how far it is."""


class RepairCommand:
    """Check a node's disk, and drop a damaged state."""

    help = "check the disk of a node that does not run, and let it fetch a damaged state again"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.description = (
            "Checks every row of a node's disk: checksums, order, and that none is missing. The node must "
            "not run, except for --running: then the node itself reads the rows of its state, and restores "
            "what is damaged from members of its groups. --drop-state mends a damaged state: the node "
            "fetches it from members of its groups when it starts, and takes part in nothing before. A "
            "damaged log cannot be mended, as it has the node's promises. When the node starts, it sets the "
            "log aside (log.damaged-*, never deleted), and the replicas whose promises it has lost begin "
            "anew; each takes part again when its partition has a quorum that is well without it. The "
            "node's other replicas go on."
        )
        parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration")
        parser.add_argument("--node", required=True, metavar="NODE", help="the node whose disk is checked")
        how = parser.add_mutually_exclusive_group()
        how.add_argument(
            "--running",
            action="store_true",
            help="let a node that runs read all rows of its state now, and wait until it has",
        )
        how.add_argument(
            "--drop-state",
            action="store_true",
            help="replace the state by an empty one, and keep the old one",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return 0 if the disk is sound or was mended, 1 otherwise."""
        config = load_config(arguments.config)
        me = config.node(arguments.node)
        if arguments.running:
            return _scrub(config, me)
        try:
            return _repair(config, me, drop=arguments.drop_state)
        except storage.StorageError as error:
            sys.stderr.write(f"wbkv repair: {error}\n")
            return 1


def _repair(config: Config, me: NodeId, *, drop: bool) -> int:
    path = config.data(me)
    bad = set()
    checked = storage.check(path)
    logs = checked[LOG]
    for name, found in checked.items():
        print(f"{path / name}:")
        if isinstance(found, storage.StorageError):
            bad.add(name)
            print(f"  {found}")
        elif _show(found):
            bad.add(name)
    for group, times in sorted(storage.begun(path).items()):
        count = "once" if times == 1 else f"{times} times"
        print(f"partition {group} has begun anew {count}, since its log was damaged")
    for kept in kept_logs(path):
        print(f"a damaged log is kept as {kept.name}")
    if LOG in bad:
        print(
            f"{_whose(logs)} is damaged: start {me}, and what is lost begins anew (see `wbkv repair --help`)"
        )
        return 1
    if not drop:
        print("the state is damaged: --drop-state mends it" if STATE in bad else "the disk is sound")
        return int(STATE in bad)
    alone = [group for group, nodes in config.groups.items() if list(nodes) == [me]]
    if alone:
        raise storage.StorageError(f"partition {alone[0]} has no other member that could restore its state")
    kept = storage.replace_state(path)
    print(f"the state is empty now, and restored when {me} starts; the old one is {kept}")
    return 0


def _scrub(config: Config, me: NodeId) -> int:
    """Let a running node read all rows; print what it finds."""
    from kvstore.local.status import ask  # loads what a node that does not run can do without

    socket = config.status_socket(me)
    answer = ask(socket, request={"scrub": True})
    if answer is None or "pass" not in answer:
        reason = "it does not answer" if answer is None else answer.get("error")
        sys.stderr.write(f"wbkv repair: {me} cannot be asked to read its rows: {reason}\n")
        return 1
    while True:
        status = ask(socket)
        if status is None:
            sys.stderr.write(f"wbkv repair: {me} has stopped while it read its rows; see its log\n")
            return 1
        scrub = status["disk"]["scrub"]
        if scrub["passes"] >= answer["pass"]:
            break
        time.sleep(POLL_S)
    print(f"{me} has read {scrub['last_rows']} rows; damage found since it started: {scrub['found']}")
    for finding in scrub["findings"]:
        print(f"  DAMAGED {finding}")
    for group, replica in sorted(status["groups"].items()):
        if replica.get("damage"):
            print(f"  group {group} is being restored")
    return int(bool(scrub["found"]))


def _whose(logs: list[TableReport] | storage.StorageError) -> str:
    """Return whose log is damaged."""
    if isinstance(logs, storage.StorageError):
        return "the log"
    groups = {finding.group for report in logs for finding in report.findings}
    if None in groups:
        return "the log"
    shown = ", ".join(map(str, sorted(group for group in groups if group is not None)))
    return f"the log of partition{'s' if len(groups) > 1 else ''} {shown}"


def _show(reports: Iterable[TableReport]) -> int:
    """Print what was found; return the number of bad rows."""
    bad = 0
    for report in reports:
        groups = ", ".join(f"group {group}: {rows}" for group, rows in sorted(report.rows.items()))
        print(
            f"  {report.database}: {sum(report.rows.values())} rows are sound"
            + (f" ({groups})" if groups else "")
        )
        for finding in report.findings:
            print(f"    DAMAGED {finding}")
        if report.bad > len(report.findings):
            print(f"    and {report.bad - len(report.findings)} more")
        bad += report.bad
    return bad


command = RepairCommand()
