"""`wbkv status`: how a cluster is, asked through its API.

With `--data DIR` the server's own command answers, if it is installed: it asks the nodes of a cluster on this
machine one by one, on their sockets, and knows more of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from wbkv.cli import options, tables
from wbkv.data import NodeStatus, Topology

LOCAL: Final = "wbkv.commands.local"
"""The group of entry points that answer for a cluster's folder."""


class StatusCommand:
    """Ask every node how it is."""

    help = "show the nodes and partitions of a cluster"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = (
            "Status 0: at least one node answers. 3: none does. "
            "With --data: 1 if none does, 2 if there is no cluster in the folder."
        )
        parser.add_argument(
            "--data",
            type=Path,
            metavar="DIR",
            help="ask the cluster of this folder (needs wbkv[server])",
        )
        options.add_common(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it."""
        if arguments.data is not None:
            if arguments.endpoints is not None:
                raise ValueError("give --endpoints or --data")
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
    """For programs."""
    return {
        "cluster": topology.cluster,
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "up": node.partitions is not None,
                "details": None if node.partitions is None else json.loads(node.details),
                "problem": node.details if node.partitions is None else None,
            }
            for node in nodes
        ],
        "partitions": [
            {
                "id": partition.id,
                "leader": partition.leader,
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
    }


def show(topology: Topology, nodes: list[NodeStatus]) -> None:
    """For people."""
    up = [node for node in nodes if node.partitions is not None]
    options.print_line(f"cluster {topology.cluster}: {len(up)} of {len(nodes)} nodes answer\n")
    tables.show(
        ("NODE", "ADDRESS", "ANSWERS", "LEADS"),
        [
            (
                node.name,
                node.address,
                "NO" if node.partitions is None else "yes",
                ", ".join(str(own.id) for own in node.partitions or () if own.leads) or None,
            )
            for node in nodes
        ],
    )
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
