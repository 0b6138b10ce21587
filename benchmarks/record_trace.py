"""Leave a folder of traces: transfers with reads on a local cluster, from several threads, all of it traced.

    python -m benchmarks.record_trace --seconds 10 --threads 4 --kill --out traces

`deliveries-*` are the nodes', `requests-*` the clients', and with `--kill`, which kills a node half-way and
starts it again, `marks-*` say when. Give the folder to `wbkv pipeline verify` and `report`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import wbkv

from kvstore.config.addresses import NodeId
from kvstore.local.cluster import LocalCluster
from multicast import PROTOCOLS, VARIANTS

ACCOUNTS = 300
PATIENCE_S = 30.0
POLL_S = 0.02


def account(rng: random.Random) -> str:
    return f"account/{rng.randrange(ACCOUNTS)}"


@wbkv.transactional
def move(tx: wbkv.Transaction[int], source: str, target: str, amount: int) -> None:
    tx.put(source, (tx.get(source) or 0) - amount)
    tx.put(target, (tx.get(target) or 0) + amount)


def transfer(client: wbkv.Client[int], rng: random.Random) -> None:
    """One request: both balances as they were, and the money moved."""
    one, other = account(rng), account(rng)
    client.txn().then(wbkv.get(one), wbkv.get(other), wbkv.add(one, -1), wbkv.add(other, 1)).commit()


def interactive(client: wbkv.Client[int], rng: random.Random) -> None:
    """Read, then write if nothing has changed."""
    move(client, account(rng), account(rng), rng.randrange(10))


def audit(client: wbkv.Client[int], rng: random.Random) -> None:
    """Reads of all kinds, and of what is in several partitions."""
    keys = [account(rng) for _ in range(rng.randint(1, 5))]
    entry = client.entry(keys[0])
    if entry is not None and rng.random() < 0.5:
        client.get_many(keys, revision=entry.mod_revision)
    else:
        client.get_many(keys, consistency=rng.choice(("strict", "serializable")))


def session(client: wbkv.Client[int], rng: random.Random) -> None:
    """Keys that come and go."""
    name = f"session/{rng.randrange(20)}"
    made = client.txn().when(wbkv.absent(name)).then(wbkv.put(name, 1)).otherwise(wbkv.get(name)).commit()
    if not made.succeeded:
        client.delete(name if rng.random() < 0.9 else wbkv.prefix("session/1"))


SCENARIOS: tuple[Callable[[wbkv.Client[int], random.Random], None], ...] = (
    transfer, transfer, interactive, audit, audit, session,
)  # fmt: skip


def work(client: wbkv.Client[int], rng: random.Random, over: threading.Event) -> None:
    """One thread."""
    while not over.is_set():
        act = rng.choice(SCENARIOS)
        with wbkv.scenario(act.__name__), contextlib.suppress(wbkv.Error):
            act(client, rng)


def crash(cluster: LocalCluster, trace: wbkv.Trace, away_s: float) -> None:
    """Kill a node that leads and start it again, and write down what happens."""
    leaders = {group["id"]: group["leader"] for group in cluster.status()["groups"]}
    node = NodeId(next(filter(None, leaders.values()), cluster.nodes[0]))
    led = {group for group, leader in leaders.items() if leader == node}
    cluster.kill(node)
    trace.mark("crash", node=node)
    back = time.monotonic() + away_s
    while led and time.monotonic() < back + PATIENCE_S:
        for group in cluster.status()["groups"]:
            if group["id"] in led and group["leader"] not in (None, node):
                trace.mark("leader", node=group["leader"], group=group["id"])
                led.remove(group["id"])
        time.sleep(POLL_S)
    time.sleep(max(back - time.monotonic(), 0.0))
    cluster.start(node)
    trace.mark("start", node=node)


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description="leave a folder of traces of a local cluster")
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    add("--seconds", type=float, default=5.0)
    add("--threads", type=int, default=4)
    add("--nodes", type=int, default=3)
    add("--partitions", type=int, default=3)
    add("--protocol", choices=sorted(PROTOCOLS | VARIANTS), default="whitebox")
    add("--kill", action="store_true", help="kill a node half-way, and start it again")
    add("--seed", type=int, default=1)
    arguments = parser.parse_args()
    out: Path = arguments.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        parser.error(f"{out} is not an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    over = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="wbkv-", ignore_cleanup_errors=True) as data,
        LocalCluster(
            data, arguments.nodes, arguments.partitions,
            protocol=arguments.protocol, durability="os", restart=False, trace=out,
        ) as cluster,
        wbkv.Trace(out, protocol=arguments.protocol, clients=arguments.threads) as trace,
    ):  # fmt: skip
        cluster.wait_serving()
        with wbkv.connect(cluster.addresses, codec=wbkv.codecs.INTEGER, trace=trace) as client:
            threads = [
                threading.Thread(target=work, args=(client, random.Random(f"{arguments.seed}/{n}"), over))
                for n in range(arguments.threads)
            ]
            for thread in threads:
                thread.start()
            try:
                time.sleep(arguments.seconds / 2)
                if arguments.kill:
                    crash(cluster, trace, arguments.seconds / 4)
                time.sleep(arguments.seconds / 2)
            finally:
                over.set()
                for thread in threads:
                    thread.join()
    for file in sorted(out.iterdir()):
        print(f"{file.name}: {len(file.read_bytes().splitlines())} lines")


if __name__ == "__main__":
    main()
