"""What `wbkv up` says when the cluster serves: where everything is, how to talk to it, and an example."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvstore.config.addresses import NodeId
from kvstore.config.model import API_PORT
from kvstore.local.cluster import LocalCluster
from kvstore.local.folder import CONFIG

EXAMPLE: Final = """\
import wbkv

client = wbkv.connect("{endpoints}", codec=wbkv.codecs.INTEGER)
client.put("account/alice", 100)
client.put("account/bob", 0)

@wbkv.transactional
def transfer(tx, source, target, amount):
    balance = tx.get(source)
    if balance < amount:
        raise ValueError(f"{{source}} has only {{balance}}")
    tx.put(source, balance - amount)
    tx.put(target, tx.get(target) + amount)

transfer(client, "account/alice", "account/bob", 30)
print(client.get_many(["account/alice", "account/bob"]))
client.close()
"""
"""The accounts are in different partitions of three. No block has a blank line: it is pasted line by line."""


def where(cluster: LocalCluster) -> list[str]:
    """Each node: its addresses, its process, what it leads."""
    config, found = cluster.config, cluster.status()
    sizes = sorted({len(members) for members in config.groups.values()})
    lines = [
        f"cluster {config.id} is up: {len(config.nodes)} nodes, {len(config.groups)} partitions of "
        f"{' or '.join(map(str, sizes))} ({config.protocol}, {config.durability})"
    ]
    for node in found["nodes"]:
        leads = [str(group["id"]) for group in found["groups"] if group["leader"] == node["id"]]
        said = f"leads {', '.join(leads)}" if leads else "leads nothing"
        api = config.nodes[NodeId(node["id"])].api
        serves = "" if api is None else f"  serves clients on {api}"
        lines.append(f"  {node['id']}  {node['address']}  process {node['pid']}  {said}{serves}")
    return lines


def how(cluster: LocalCluster, stop: str) -> list[str]:
    """What to type next."""
    wbkv, data = tool("wbkv"), shlex.quote(str(cluster.data))
    lines = [
        f"configuration: {cluster.data / CONFIG}",
        f"output:        {cluster.data}/*.log",
        f"look:          {wbkv} status --data {data}",
    ]
    if cluster.addresses:
        at = "" if cluster.addresses[0] == f"127.0.0.1:{API_PORT}" else f" -e {cluster.addresses[0]}"
        if at:
            told = ",".join(cluster.addresses)
            lines.append(f"not on {API_PORT}:   clients must be told: export WBKV_ENDPOINTS={told}")
        lines += [
            f"talk:          {wbkv} put greeting hello{at}",
            f"               {wbkv} get greeting{at}",
        ]
    return [*lines, f"stop:          {stop}"]


def example(addresses: Sequence[str]) -> list[str]:
    """A bank transfer over two partitions."""
    if not addresses:
        return []
    first = f"or paste this into {tool('python')}, a bank transfer that ends with [70, 30]:"
    return ["", first, "", *EXAMPLE.format(endpoints=",".join(addresses)).splitlines(), ""]


def tool(name: str) -> str:
    """How to call a command of the environment that this one runs in."""
    path = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and Path(found) == path:
        return name
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith("..") else relative)
