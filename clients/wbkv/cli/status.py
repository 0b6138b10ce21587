"""`wbkv status`: show the status of a cluster, through its API.

With `--data DIR` the server's own command answers, if it is installed: it asks each node of a cluster on this
machine through its socket, and shows more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from wbkv.cli import options, tables
from wbkv.data import NodeStatus, Topology

LOCAL: Final = "wbkv.commands.local"
"""The group of entry points for clusters on this machine, by folder."""


class StatusCommand:
    """Show the status of every node."""

    help = "show the nodes and partitions of a cluster"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = (
            "Status 0: at least one node answers. 3: no node answers. "
            "With --data: 1 if no node answers, 2 if the folder has no cluster."
        )
        parser.add_argument(
            "--data",
            type=Path,
            metavar="DIR",
            help="the folder of a cluster on this machine (needs wbkv[server])",
        )
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command."""
        if arguments.data is not None:
            if arguments.endpoints is not None:
                raise ValueError("pass --endpoints or --data, not both")
            return _local(arguments)
        with options.connect(arguments) as client:
            topology, nodes = client.topology(), client.status()
        if arguments.json:
            options.print_json(report(topology, nodes))
        else:
            show(topology, nodes)
        return 0


def _local(arguments: argparse.Namespace) -> int:
    from importlib.metadata import entry_points  # slow, and rarely needed

    (entry,) = entry_points(group=LOCAL, name="status")
    try:
        command: Any = entry.load()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--data needs {error.name}, which is not installed: pip install 'wbkv[server]'"
        ) from None
    status: int = command.run(arguments)
    return status


def report(topology: Topology, nodes: list[NodeStatus]) -> dict[str, Any]:
    """Print the status as JSON."""
    return {
        "cluster": topology.cluster,
        "nodes": [
            {
                "name": node.name, "address": node.address, "up": node.partitions is not None,
                "details": None if node.partitions is None else json.loads(node.details),
                "problem": node.details if node.partitions is None else None,
            }
            for node in nodes
        ],
        "partitions": [
            {
                "id": partition.id, "leader": partition.leader,
                "members": [
                    {"node": node.name, "serving": own.serving, "leads": own.leads, "revision": own.revision}
                    for node in nodes
                    for own in node.partitions or ()
                    if own.id == partition.id
                ],
            }
            for partition in topology.partitions
        ],
        "limits": dict(topology.limits),
    }  # fmt: skip


def show(topology: Topology, nodes: list[NodeStatus]) -> None:
    """Print the status as tables."""
    up = [node for node in nodes if node.partitions is not None]
    options.print_line(f"cluster {topology.cluster}: {len(up)} of {len(nodes)} nodes answer\n")
    tables.show(
        ("NODE", "ADDRESS", "ANSWERS", "LEADS"),
        [
            (
                node.name, node.address, "NO" if node.partitions is None else "yes",
                ", ".join(str(own.id) for own in node.partitions or () if own.leads) or None,
            )
            for node in nodes
        ],
    )  # fmt: skip
    options.print_line("")
    tables.show(
        ("PARTITION", "LEADER", "NODE", "SERVES", "REVISION"),
        [
            (partition.id, partition.leader, node.name, "yes" if own.serving else "NO", own.revision)
            for partition in topology.partitions
            for node in up
            for own in node.partitions or ()
            if own.id == partition.id
        ],
    )


command = StatusCommand()
