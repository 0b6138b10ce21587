"""A stand-in for a node, and the `wbkv` command with it in the place of `wbkv serve`.

    python standin.py --config FILE --node NAME      the node: it only listens, and says how it is
    python standin.py wbkv up --data DIR ...         the command

`STANDIN` in the environment says how nodes misbehave, as JSON: {"n2": "dies"}.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from kvstore.config.addresses import NodeId
from kvstore.config.model import Config
from kvstore.config.toml import load_config
from kvstore.local.status import NodeAnswer, serve_status

NODE = (sys.executable, "-P", str(Path(__file__).resolve()))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def answer(config: Config, me: NodeId, *, headless: bool) -> NodeAnswer:
    leaders = {group: config.node_of(config.topology.preferred_leader(group)) for group in config.groups}
    return {
        "id": me,
        "pid": os.getpid(),
        "address": config.nodes[me].address,
        "groups": {
            str(group): {
                "status": "leader" if leaders[group] == me and not headless else "follower",
                "ballot": 1,
                "leader": leaders[group],
                "clock": 7,
                "delivered": 4096,
                "entries": 0,
                "store_bytes": 8192,
                "deliveries": 4,
            }
            for group, members in config.groups.items()
            if me in members
        },
    }


async def serve(config: Config, me: NodeId, habit: str) -> int:
    say(f"{me} begins")
    if habit == "dies":
        say("I cannot go on")
        return 3
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if habit == "deaf" else told.set)
    listening = await asyncio.start_server(lambda _, writer: writer.close(), *config.addresses[me])
    if habit == "parent":
        child = subprocess.Popen(["/bin/sleep", "600"])
        say(f"child {child.pid}")
    if habit != "silent":
        await serve_status(config.status_socket(me), lambda: answer(config, me, headless=habit == "headless"))
    await told.wait()
    listening.close()
    say(f"{me} ends")
    return 0


def make_disk(config: Config, me: NodeId) -> None:
    config.data(me).mkdir()


def node(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--node", required=True)
    arguments = parser.parse_args(argv)
    config = load_config(arguments.config)
    habits = json.loads(os.environ.get("STANDIN", "{}"))
    return asyncio.run(serve(config, config.node(arguments.node), habits.get(arguments.node, "")))


def wbkv(argv: list[str]) -> int:
    from wbkv.cli import main as command

    from kvstore.commands.cluster import UpCommand
    from kvstore.local.cluster import LocalCluster

    cluster = functools.partial(LocalCluster, command=NODE, make_disk=make_disk)
    up = UpCommand(cluster, api_port=lambda *_: None, serves=lambda *_: True)
    load = command.load
    with mock.patch.object(command, "load", lambda name: up if name == "up" else load(name)):
        return command.main(argv)


if __name__ == "__main__":
    sys.exit(wbkv(sys.argv[2:]) if sys.argv[1] == "wbkv" else node(sys.argv[1:]))
