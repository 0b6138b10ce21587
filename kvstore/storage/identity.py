"""The identity of a disk, and the state in which it was left.

    disk.json   its identity, and the state in which it was left
    lock        locked by the process that uses the disk
    log/        LMDB: the records behind acknowledgements
    state/      LMDB: the state that deliveries made
    rolled-back the log lacks promises that other nodes remember: this disk is lost
    log.damaged-*, state.damaged-*  what was set aside: see `renewal` and `disk.replace_state`

`disk.json` is not in LMDB because it must be readable when nothing else is: without fsync, a power cut may
leave an environment that cannot even be opened safely.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from kvstore.config.addresses import INCARNATION_MAX, NodeId, new_incarnation
from kvstore.config.checks import DURABILITY, Durability
from kvstore.config.private import open_private
from kvstore.storage.checksum import seed_of, unseal_number
from kvstore.storage.errors import LostDisk, StorageError
from kvstore.storage.keys import INCARNATION, META
from multicast.types import BEGUN_MAX, GROUPS_MAX, GroupId, begun_anew

FORMAT: Final = 10
"""Version of everything on the disk. Any change of the format needs another."""

Keeps: TypeAlias = Literal["deliveries", "store"]
"""What the state is: all deliveries, for bare multicast; or a store's tables."""


# Directories

DISK: Final = "disk.json"
LOCK: Final = "lock"
LOG: Final = "log"
STATE: Final = "state"
COPY: Final = "data.mdb.copy"
"""A file that is to take the place of an environment's, while it is being made: see `reclamation`."""
ROLLED_BACK: Final = "rolled-back"
TEXT_MAX: Final = 4096
"""The longest reason in a mark."""


# Identity


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner and kind of a disk. They never change, except for `begun`."""

    cluster: str
    node: NodeId
    incarnation: int
    """Random, in 1..2^63-1: a node that comes back with another disk is not the same replica."""
    durability: Durability = "fsync"
    keeps: Keeps = "deliveries"
    format: int = FORMAT
    begun: Mapping[GroupId, int] = field(default_factory=dict)
    """How often the replica of a group has begun anew here, since its log was damaged, if it ever did."""

    def __post_init__(self) -> None:
        for name in ("cluster", "node"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be a name, not {getattr(self, name)!r}")
        if self.durability not in DURABILITY:
            raise ValueError(f'durability must be "fsync" or "os", not {self.durability!r}')
        if self.keeps not in get_args(Keeps):
            raise ValueError(f'keeps must be "deliveries" or "store", not {self.keeps!r}')
        if type(self.incarnation) is not int or not 0 < self.incarnation <= INCARNATION_MAX:
            raise ValueError(f"incarnation must be in 1..2^63-1, not {self.incarnation!r}")
        for group, times in self.begun.items():
            if not 0 <= group < GROUPS_MAX or type(times) is not int or not 0 < times <= BEGUN_MAX:
                raise ValueError(f"group {group} cannot have begun anew {times!r} times")

    def incarnation_of(self, group: GroupId) -> int:
        """Return the incarnation of the group's replica on this disk."""
        return begun_anew(self.incarnation, self.begun.get(group, 0))

    @classmethod
    def new(
        cls, cluster: str, node: NodeId, durability: Durability = "fsync", keeps: Keeps = "deliveries"
    ) -> Identity:
        """Return the identity of a new disk."""
        return cls(cluster, node, new_incarnation(), durability, keeps)


@dataclass(frozen=True, slots=True)
class Left:
    """The state in which a disk was left."""

    clean: bool = True
    boot: str = ""
    """The boot id of the operating system that last used the disk."""

    def __post_init__(self) -> None:
        if type(self.clean) is not bool or not isinstance(self.boot, str):
            raise ValueError(f"clean and boot cannot be {self.clean!r} and {self.boot!r}")


def read_disk(path: Path) -> tuple[Identity, Left]:
    """Return the contents of `disk.json`. Rejects an unknown format."""
    file = path / DISK
    try:
        fields: Any = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise StorageError(f"{path} has no disk: there is no {DISK}") from None
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise StorageError(f"{file} is not JSON: {error}") from error
    if not isinstance(fields, dict) or "format" not in fields:
        raise StorageError(f"{file} does not name the format of the disk")
    if fields["format"] != FORMAT:
        raise StorageError(
            f"{path} has format {fields['format']}, but this program knows only format {FORMAT}"
        )
    try:
        left = Left(fields.pop("clean"), fields.pop("boot"))
        begun = {GroupId(int(group)): times for group, times in fields.pop("begun", {}).items()}
        identity = Identity(**fields, begun=begun)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{file} is not the identity of a disk: {error}") from error
    return identity, left


def write_disk(path: Path, identity: Identity, left: Left) -> None:
    """Replace `disk.json`, durably: after a crash it is either the old one or this."""
    fields = dataclasses.asdict(identity) | dataclasses.asdict(left)
    if not identity.begun:
        del fields["begun"]
    replacement = path / f"{DISK}.new"
    try:
        with open(open_private(replacement, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
            json.dump(fields, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(path / DISK)
        sync_directory(path)
    except OSError as error:
        raise StorageError(f"{path / DISK} cannot be written: {error.strerror}") from error


def check_owner(path: Path, identity: Identity, cluster: str, node: NodeId, keeps: Keeps) -> None:
    """Reject a disk of another cluster or node, or of another kind."""
    if identity.cluster != cluster:
        raise StorageError(f"{path} is a disk of cluster {identity.cluster!r}, not of {cluster!r}")
    if identity.node != node:
        raise StorageError(f"{path} is the disk of node {identity.node!r}, not of {node!r}")
    if identity.keeps != keeps:
        raise StorageError(f"{path} is a disk for {identity.keeps!r}, not for {keeps!r}")


def check_incarnation(path: Path, identity: Identity, value: bytes) -> None:
    """Reject an environment of another disk, by its value of `INCARNATION`."""
    found = unseal_number(value, f"{path}, incarnation", seed_of(META, INCARNATION))
    if found != identity.incarnation:
        raise StorageError(f"{path} is of incarnation {found:x}, but its disk of {identity.incarnation:x}")


def check_lost(path: Path, identity: Identity, left: Left, boot: str) -> None:
    """Reject a disk whose log was rolled back; and one without fsync, if the machine has stopped since it
    was in use.
    """
    mark = path / ROLLED_BACK
    if mark.exists():
        raise LostDisk(f"{path} is an old copy: {mark.read_text(errors='replace')[:TEXT_MAX]}")
    if identity.durability == "os" and not left.clean and left.boot != boot:
        raise LostDisk(
            f"{path} was in use with durability 'os' when its machine stopped: it may lack promises"
        )


def mark_rolled_back(path: Path, reason: str) -> None:
    """Mark a disk as lost, since its log was rolled back. The mark is durable when this returns."""
    file = path / ROLLED_BACK
    try:
        with open(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as opened:
            opened.write(reason[:TEXT_MAX])
            opened.flush()
            os.fsync(opened.fileno())
        sync_directory(path)
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """Return the id of this boot of the operating system."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
