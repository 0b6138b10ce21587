"""`wbkv serve`: one node of a cluster, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvstore.config.private import warn_if_readable
from kvstore.config.toml import load_config

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error")


class ServeCommand:
    """Run a node until SIGTERM or SIGINT."""

    help = "run one node of a cluster"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments to the parser."""
        parser.epilog = (
            "SIGTERM or Ctrl-C: hand over leadership, and end. "
            "Status 0: stopped by a signal. 1: failed; the log says why. 2: invalid arguments."
        )
        add = parser.add_argument
        add("--config", type=Path, required=True, metavar="FILE", help="the cluster's configuration (TOML)")
        add("--node", required=True, metavar="NAME", help="the node to run")
        add(
            "--create",
            action="store_true",
            help="create the node's first disk: only for a cluster that has never run",
        )
        add("--reclaim", action="store_true", help="first shrink the node's files to what is in use")
        add("--trace", type=Path, metavar="DIR", help="folder in which to record deliveries; overrides FILE")
        add("--log-level", choices=LEVELS, default="info", help="lowest level of messages to log (info)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        config = load_config(arguments.config)
        node = config.node(arguments.node)
        if arguments.trace is not None:
            config = replace(config, trace=str(arguments.trace.absolute()))
        logging.basicConfig(
            level=arguments.log_level.upper(),
            format=f"%(asctime)s.%(msecs)03d %(levelname)s {node} %(name)s: %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
            stream=sys.stderr,
        )
        os.umask(0o077)  # for what libraries create: our own code sets modes itself
        warn_if_readable(arguments.config)
        # Only here: a node needs packages that other subcommands do without.
        import uvloop

        from kvstore import storage
        from kvstore.server.crashes import crash_trace
        from kvstore.server.process import serve
        from kvstore.storage.errors import StorageError

        try:
            if arguments.create:
                from kvstore.local.disk import create_disk

                create_disk(config, node)
            if arguments.reclaim:
                try:
                    storage.reclaim(config.data(node))
                except StorageError as error:  # the node is of more use than its space
                    logger.warning("%s; the node starts with its files as they are", error)
            with (
                crash_trace(config.crash_trace(node), config.data(node)),
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                return runner.run(serve(config, node))
        except (OSError, StorageError) as error:  # a traceback would not help the operator
            logger.critical("stopped: %s", error)
        except Exception:
            logger.critical("stopped by an internal error", exc_info=True)
        return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand without loading the others: local clusters start their nodes by this."""
    parser = argparse.ArgumentParser(prog="wbkv serve", description=command.help)
    command.configure(parser)
    try:
        return command.run(parser.parse_args(argv))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"wbkv serve: {error}\n")
        return 2


command = ServeCommand()

if __name__ == "__main__":
    sys.exit(main())
