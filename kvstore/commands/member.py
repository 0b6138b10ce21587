"""`wbkv member`: show the members of a cluster's groups, and replace a node by another."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.config.toml import load_config
from multicast.membership import Membership
from multicast.types import GroupId, ReplicaId

PATIENCE_S = 60.0


class MemberCommand:
    """Show members, or replace a node."""

    help = "show the members of each group, or replace a node by another"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.description = (
            "A node that has lost its disk does not need this command: start it again, and it rejoins its "
            "groups with a new disk. To replace a node by another: add the new node to the configuration "
            "([nodes.n4], without an incarnation), start it with `wbkv serve --config FILE --node n4`, and "
            "then run `wbkv member replace --config FILE n2 n4` on its machine."
        )
        kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
        shown = kinds.add_parser("list", help="show the members of each group, and their nodes")
        shown.add_argument("--json", action="store_true", help="print one JSON object")
        replace = kinds.add_parser("replace", help="replace a node by another in all its groups")
        replace.add_argument("old", metavar="OLD", help="the node to replace")
        replace.add_argument("new", metavar="NEW", help="its replacement, which runs on this machine")
        replace.add_argument(
            "--timeout", type=float, default=PATIENCE_S, metavar="S", help="seconds to wait (60)"
        )
        for each in (shown, replace):
            each.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        config = load_config(arguments.config)
        try:
            if arguments.what == "list":
                return asyncio.run(_list(config, as_json=arguments.json))
            old, new = NodeId(arguments.old), config.node(arguments.new)
            return asyncio.run(_replace(config, old, new, arguments.timeout))
        except (OSError, TimeoutError) as error:
            sys.stderr.write(f"wbkv member: {error}\n")
            return 1


async def _list(config: Config, *, as_json: bool) -> int:
    from kvstore.bare.client import MulticastClient  # loads what other subcommands do without

    async with MulticastClient.of(config) as client:
        found = await client.memberships()
    groups = [_row(config, membership) for _, membership in sorted(found.items())]
    if as_json:
        print(json.dumps({"groups": groups}))
        return 0
    for group in groups:
        state = "" if group["settled"] else ", changing"
        members = "  ".join(f"{member['node']} ({member['replica']})" for member in group["members"])
        print(f"group {group['id']}, configuration {group['configuration']}{state}:  {members}")
    return 0


def _row(config: Config, membership: Membership) -> dict[str, Any]:
    nodes = _nodes(config, membership)
    return {
        "id": membership.group,
        "configuration": membership.current.number,
        "settled": membership.is_complete,
        "members": [{"node": nodes[m], "replica": str(m)} for m in membership.current.members],
    }


def _nodes(config: Config, membership: Membership) -> dict[ReplicaId, NodeId | None]:
    """The node of each member: of initial members by the configuration, of others as they announced."""
    from kvstore.node.directory import Directory

    directory = Directory(config.incarnations)
    directory.learn(membership)
    return {member: directory.node_of(member) for member in membership.current.members}


async def _replace(config: Config, old: NodeId, new: NodeId, timeout_s: float) -> int:
    from kvstore.bare.client import MulticastClient
    from kvstore.local.status import ask

    deadline = time.monotonic() + timeout_s
    async with MulticastClient.of(config) as client:
        found = await client.memberships()
        leaving = _on(config, found, old)
        if not leaving:
            present = sorted({str(node) for m in found.values() for node in _nodes(config, m).values()})
            raise ValueError(f"{old} is not a member of any group; the members are on {', '.join(present)}")
        rows = [[member.group, member.number, f"{member.incarnation:x}"] for member in leaving]
        socket = config.status_socket(new)
        answer = await asyncio.to_thread(ask, socket, request={"replace": rows})
        if answer is None:
            raise ValueError(f"{new} does not answer on {socket}; start it on this machine with `wbkv serve`")
        if "error" in answer:
            raise ValueError(str(answer["error"]))
        print(f"{new} requests to replace {old} in {len(leaving)} groups")
        waiting = {member.group for member in leaving}
        while waiting:
            if time.monotonic() > deadline:
                which = ", ".join(map(str, sorted(waiting)))
                raise TimeoutError(
                    f"{new} has not replaced {old} in group {which} after {timeout_s:g} s (--timeout), but "
                    "may do so later: see `wbkv member list`"
                )
            await asyncio.sleep(0.2)
            found = await client.memberships()
            members = {member.group for member in _on(config, found, new)}
            for group in sorted(g for g in waiting & members if found[g].is_complete):
                waiting.discard(group)
                print(f"group {group}: {new} has replaced {old}")
    print(f"{old} can be stopped, and its disk deleted")
    return 0


def _on(config: Config, found: Mapping[GroupId, Membership], node: NodeId) -> list[ReplicaId]:
    """The members on a node."""
    return [m for membership in found.values() for m, at in _nodes(config, membership).items() if at == node]


command = MemberCommand()
