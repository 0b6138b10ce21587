"""What `wbkv up` prints when the cluster serves clients: addresses, commands to try, and an example."""

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
"""A transfer between two of three partitions. It is pasted line by line, so no block has a blank line."""


def where(cluster: LocalCluster) -> list[str]:
    """The cluster, and for each node its addresses, its process, and the partitions that it leads."""
    config, found = cluster.config, cluster.status()
    sizes = sorted({len(members) for members in config.groups.values()})
    lines = [
        f"cluster {config.id} is up: {len(config.nodes)} nodes, {len(config.groups)} partitions of "
        f"{' or '.join(map(str, sizes))} ({config.protocol}, {config.durability})"
    ]
    for node in found["nodes"]:
        leads = [str(group["id"]) for group in found["groups"] if group["leader"] == node["id"]]
        leading = f"leads {', '.join(leads)}" if leads else "leads no partition"
        api = config.nodes[NodeId(node["id"])].api
        serves = "" if api is None else f"  serves clients on {api}"
        lines.append(f"  {node['id']}  {node['address']}  process {node['pid']}  {leading}{serves}")
    return lines


def how(cluster: LocalCluster, stop: str) -> list[str]:
    """Commands to type next."""
    wbkv, data = tool("wbkv"), shlex.quote(str(cluster.data))
    lines = [
        f"configuration: {cluster.data / CONFIG}",
        f"output:        {cluster.data}/*.log",
        f"status:        {wbkv} status --data {data}",
    ]
    if cluster.addresses:
        at = "" if cluster.addresses[0] == f"127.0.0.1:{API_PORT}" else f" -e {cluster.addresses[0]}"
        if at:
            every = ",".join(cluster.addresses)
            lines.append(f"not on {API_PORT}:   clients need the address: export WBKV_ENDPOINTS={every}")
        lines += [f"try:           {wbkv} put greeting hello{at}", f"               {wbkv} get greeting{at}"]
    return [*lines, f"stop:          {stop}"]


def example(addresses: Sequence[str]) -> list[str]:
    """The lines of a bank transfer over two partitions."""
    if not addresses:
        return []
    first = f"or paste this into {tool('python')}, a bank transfer that ends with [70, 30]:"
    return ["", first, "", *EXAMPLE.format(endpoints=",".join(addresses)).splitlines(), ""]


def tool(name: str) -> str:
    """The shortest way to call a command of the environment that this one runs in."""
    path = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and Path(found) == path:
        return name
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith("..") else relative)
