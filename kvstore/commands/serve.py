"""`wbkv serve`: one node of a cluster, in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvstore.config.toml import load_config

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error")


class ServeCommand:
    """Run a node until it is told to stop."""

    help = "run one node of a cluster"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = "SIGTERM or Ctrl-C: hand leadership over, and end. Status 0: it was told to stop."
        add = parser.add_argument
        add("--config", type=Path, required=True, metavar="FILE", help="the cluster's configuration (TOML)")
        add("--node", required=True, metavar="NAME", help="which of its nodes to be")
        add(
            "--create",
            action="store_true",
            help="first make the node's first disk: only for a cluster that has never run",
        )
        add("--trace", type=Path, metavar="DIR", help="record there what is delivered, whatever FILE says")
        add("--log-level", choices=LEVELS, default="info", help="how much to say (info)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it."""
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
        # A gRPC server that ends before it began logs itself while it is deallocated, which crashes.
        logging.getLogger("grpc._cython.cygrpc").setLevel(logging.INFO)
        # Only here: a node needs packages that other subcommands do without.
        import uvloop

        from kvstore.server.process import serve
        from kvstore.storage.errors import StorageError

        try:
            if arguments.create:
                from kvstore.local.disk import create_disk

                create_disk(config, node)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(serve(config, node))
        except (OSError, StorageError) as error:  # nothing that a trace would explain
            logger.critical("stopped: %s", error)
        except Exception:
            logger.critical("stopped by an error of its own", exc_info=True)
        return 1


def main(argv: Sequence[str] | None = None) -> int:
    """The subcommand by itself, without loading all others: how local clusters start their nodes."""
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
