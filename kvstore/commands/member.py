"""`wbkv member`: show the members of a cluster's groups, and replace a node by another."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kvstore.commands.groups import GroupsCommand
from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from multicast.membership import Membership
from multicast.types import GroupId, ReplicaId

PATIENCE_S = 60.0


class MemberCommand(GroupsCommand):
    """Show members, or replace a node."""

    help = "show the members of each group, or replace a node by another"
    name = "member"
    description = (
        "A node that has lost its disk does not need this command: start it again, and it rejoins its "
        "groups with a new disk. To replace a node by another: add the new node to the configuration "
        "([nodes.n4], without an incarnation), start it with `wbkv serve --config FILE --node n4`, and "
        "then run `wbkv member replace --config FILE n2 n4` on its machine."
    )
    show = ("list", "show the members of each group, and their nodes")
    change = ("replace", "replace a node by another in all its groups")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of `replace`."""
        parser.add_argument("old", metavar="OLD", help="the node to replace")
        parser.add_argument("new", metavar="NEW", help="its replacement, which runs on this machine")
        parser.add_argument(
            "--timeout", type=float, default=PATIENCE_S, metavar="S", help="seconds to wait (60)"
        )

    def rows(self, config: Config) -> Sequence[dict[str, Any]]:
        """Return the members of each group."""
        return [_row(config, membership) for membership in asyncio.run(_memberships(config)).values()]

    def line(self, row: dict[str, Any]) -> str:
        """Return a group's members with their nodes."""
        state = "" if row["settled"] else ", changing"
        members = "  ".join(f"{member['node']} ({member['replica']})" for member in row["members"])
        return f", configuration {row['configuration']}{state}:  {members}"

    def carry_out(self, config: Config, arguments: argparse.Namespace) -> int:
        """Replace a node; return the exit status."""
        old, new = NodeId(arguments.old), config.node(arguments.new)
        return asyncio.run(_replace(config, old, new, arguments.timeout))


async def _memberships(config: Config) -> Mapping[GroupId, Membership]:
    from kvstore.bare.client import MulticastClient  # loads what other subcommands do without

    async with MulticastClient.of(config) as client:
        return await client.memberships()


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
