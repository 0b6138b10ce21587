"""Create the disk of a node, and replace one that is lost."""

from __future__ import annotations

import logging

from kvstore import storage
from kvstore.config.addresses import NodeId, new_incarnation
from kvstore.config.model import Config
from kvstore.storage.identity import Identity, Keeps

logger = logging.getLogger(__name__)


def create_disk(config: Config, me: NodeId, incarnation: int | None = None) -> None:
    """Create a disk for a node: its first one, with the incarnation of the configuration, or another.

    No other disk may ever have had that incarnation: a node that has lost its disk returns with a new one.
    """
    if incarnation is None:
        incarnation = config.incarnations.get(me) or new_incarnation()
    keeps: Keeps = "store" if config.application == "store" else "deliveries"
    storage.create(config.data(me), Identity(config.id, me, incarnation, config.durability, keeps))


def replace_lost_disk(config: Config, me: NodeId, why: str) -> None:
    """Create a new disk with a new incarnation, and keep the remains of the lost one beside it."""
    path = config.data(me)
    if path.exists() and any(path.iterdir()):
        kept = path.with_name(f"{path.name}.lost-{new_incarnation():x}")
        path.rename(kept)
        why += f" (kept as {kept.name})"
    if me in config.incarnations:
        logger.warning(
            "%s; %s starts with a new disk, and asks the other members to let it replace its old replicas"
            " (to start a cluster that has never run, use --create)", why, me,
        )  # fmt: skip
    else:
        logger.info("%s; %s starts with its first disk, in no group yet", why, me)
    create_disk(config, me, new_incarnation())
