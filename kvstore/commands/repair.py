"""`wbkv repair`: check the disk of a node that does not run, and mend what can be mended safely."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from kvstore import storage
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.config.toml import load_config
from kvstore.storage.identity import LOG, STATE
from kvstore.storage.scrub import TableReport


class RepairCommand:
    """Check a node's disk, and drop a damaged state."""

    help = "check the disk of a node that does not run, and let it fetch a damaged state again"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.description = (
            "Checks every row of a node's disk: checksums, order, and that none is missing. The node must "
            "not run. --drop-state mends a damaged state: the node fetches it from members of its groups "
            "when it starts, and takes part in nothing before. A damaged log cannot be mended, as it has the "
            "node's promises: move the node's folder away and start the node, while all other members of its "
            "groups are well; it joins them as a new member."
        )
        parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration")
        parser.add_argument("--node", required=True, metavar="NODE", help="the node whose disk is checked")
        parser.add_argument(
            "--drop-state",
            action="store_true",
            help="replace the state by an empty one, and keep the old one",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return 0 if the disk is sound or was mended, 1 otherwise."""
        config = load_config(arguments.config)
        me = config.node(arguments.node)
        try:
            return _repair(config, me, drop=arguments.drop_state)
        except storage.StorageError as error:
            sys.stderr.write(f"wbkv repair: {error}\n")
            return 1


def _repair(config: Config, me: NodeId, *, drop: bool) -> int:
    path = config.data(me)
    bad = set()
    for name, found in storage.check(path).items():
        print(f"{path / name}:")
        if isinstance(found, storage.StorageError):
            bad.add(name)
            print(f"  {found}")
        elif _show(found):
            bad.add(name)
    if LOG in bad:
        print("the log is damaged: it cannot be mended (see `wbkv repair --help`)")
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
